//! The model inside the program, for use before any other model was downloaded. `fixtures/train` makes it.

use std::sync::LazyLock;

use llama_trace_core::error::Result;
use llama_trace_formats::checkpoint::{BuiltIn, Checkpoint};
use serde_json::Value;

macro_rules! file {
    ($name:literal) => {
        concat!("../fixtures/builtin/", $name)
    };
}

/// The model's files.
pub static BUILT_IN: BuiltIn = BuiltIn {
    place: "the built-in model",
    config: include_str!(file!("config.json")),
    generation_config: include_str!(file!("generation_config.json")),
    weights: &WEIGHTS.file,
    tokenizer: include_str!(file!("tokenizer.json")),
    tokenizer_config: include_str!(file!("tokenizer_config.json")),
    chat_template: include_str!(file!("chat_template.jinja")),
};

/// Numbers that describe its heads, measured by `fixtures/train`.
static HEADS: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!(file!("heads.json"))).unwrap_or_default());

/// A number of `heads.json`: `induction/layer`.
pub fn fact(path: &str) -> Option<f64> {
    path.split('/').try_fold(&*HEADS, |json, key| json.get(key))?.as_f64()
}

/// The model's weights. The values begin at the start of a cache line of the processor, so that a SIMD vector of values
/// lies in one cache line.
static WEIGHTS: Weights = Weights { _room: [0; ROOM], file: *include_bytes!(file!("model.safetensors")) };

#[repr(C, align(64))]
struct Weights {
    _room: [u8; ROOM],
    file: [u8; include_bytes!(file!("model.safetensors")).len()],
}

/// Number of bytes before the file. With these bytes, the values after the file's header begin at the start of a cache
/// line.
const ROOM: usize = {
    let [a, b, c, d, ..] = *include_bytes!(file!("model.safetensors"));
    (8 + u32::from_le_bytes([a, b, c, d]) as usize).wrapping_neg() % 64
};

/// Opens the built-in model.
///
/// # Errors
/// None in a program that passed its tests.
pub fn open() -> Result<Checkpoint> {
    BUILT_IN.open(&[])
}

#[cfg(test)]
mod tests {
    use super::*;
    use llama_trace_formats::checkpoint::{LayerWeight, Weight, chat_template};

    #[test]
    fn it_is_whole() {
        let model = open().unwrap();
        let config = &model.config;
        let first = model.tensor(Weight::Embedding, &[config.vocab, config.dim]).unwrap();
        assert!(
            (first.bytes().as_ptr() as usize).is_multiple_of(64),
            "values begin with a line of the cache"
        );
        let last = Weight::Layer(config.layers - 1, LayerWeight::W2);
        model.tensor(last, &[config.dim, config.ffn_dim]).unwrap();
        assert_eq!(model.name, "built-in");
        assert!(model.path.is_none() && !model.eos.is_empty());
        assert!(model.eos.iter().all(|&id| (id as usize) < config.vocab));
        let files = chat_template::read(&model).unwrap();
        assert!(files.template.unwrap().0.contains("<|start_header_id|>"));
        assert_eq!(files.tokens["bos_token"], "<|begin_of_text|>");
        assert_eq!((fact("induction/layer"), fact("induction/nothing"), fact("")), (Some(1.0), None, None));
    }
}
