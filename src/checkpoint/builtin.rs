//! The model inside the program: a Hugging Face directory that was put into the binary, so that there is
//! something to look at before anything was fetched. `fixtures/train` makes it.

use super::huggingface::assemble;
use super::{Checkpoint, Format, hf_config, safetensors};
use crate::error::Result;
use crate::files::Bytes;

macro_rules! file {
    ($name:literal) => {
        concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/builtin/", $name)
    };
}

const CONFIG: &str = include_str!(file!("config.json"));
const GENERATION_CONFIG: &str = include_str!(file!("generation_config.json"));
/// Its weights, whose values begin with a line of the processor's cache: a vector of them then is in one line.
static WEIGHTS: Weights = Weights { _room: [0; ROOM], file: *include_bytes!(file!("model.safetensors")) };

#[repr(C, align(64))]
struct Weights {
    _room: [u8; ROOM],
    file: [u8; include_bytes!(file!("model.safetensors")).len()],
}

/// Bytes before the file, so that the values after its header of so many bytes begin with a line.
const ROOM: usize = {
    let [a, b, c, d, ..] = *include_bytes!(file!("model.safetensors"));
    (8 + u32::from_le_bytes([a, b, c, d]) as usize).wrapping_neg() % 64
};
/// Its tokenizer.json.
pub(super) const TOKENIZER: &str = include_str!(file!("tokenizer.json"));
/// Its tokenizer_config.json.
pub(super) const TOKENIZER_CONFIG: &str = include_str!(file!("tokenizer_config.json"));
/// Its chat_template.jinja.
pub(super) const CHAT_TEMPLATE: &str = include_str!(file!("chat_template.jinja"));
/// What it is called in messages.
pub(super) const PLACE: &str = "the built-in model";

/// Opens the built-in model, by the same code as one on disk.
///
/// # Errors
/// None in a program that passed its tests, where nothing is to be ignored; they are those of a directory.
pub(super) fn open(ignore: &[String]) -> Result<Checkpoint> {
    let config = hf_config::model_config(CONFIG, PLACE, ignore)?;
    let eos = hf_config::stop_ids(Some((GENERATION_CONFIG, PLACE)), (CONFIG, PLACE))?;
    let contents = safetensors::parse(&Bytes::Static(&WEIGHTS.file), PLACE)?;
    let format = Format::HuggingFace { files: 1, pickled: false };
    assemble("built-in".into(), config, eos, contents, format, PLACE)
}

#[cfg(test)]
mod tests {
    use super::super::{LayerWeight, Weight};
    use super::*;

    #[test]
    fn it_is_whole() {
        let model = open(&[]).unwrap();
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
    }
}
