//! config.json of a Hugging Face directory, read as transformers reads it for `model_type` "llama".

use serde_json::{Map, Value};

use super::names::printable;
use crate::config::{ModelConfig, Pairing, RopeScaling};
use crate::error::{Error, Result};

/// The hyperparameters in the text of a config.json; `place` names the file in messages.
///
/// Defaults are those of transformers' `LlamaConfig`, except for the sizes of the model, which have to
/// be there: a file without them belongs to something else.
///
/// # Errors
/// [`Error::Model`] where the text is no JSON object, a field has the wrong type, or the model has a part
/// that is not computed here.
pub(super) fn model_config(text: &str, place: &str) -> Result<ModelConfig> {
    let object = parse_object(text, place)?;
    let fields = Fields { object: &object, place, prefix: "" };
    refuse_what_is_not_computed(&fields)?;

    let dim = fields.required_size("hidden_size")?;
    let heads = fields.required_size("num_attention_heads")?;
    let head_dim = match fields.size("head_dim")? {
        Some(head_dim) => head_dim,
        None if heads > 0 && dim.is_multiple_of(heads) => dim / heads,
        None => {
            let found = format!("hidden_size {dim}, num_attention_heads {heads}");
            return Err(fields.wrong(
                "head_dim",
                "a divisible hidden_size where head_dim is not given",
                found,
            ));
        }
    };
    let attention_bias = fields.flag("attention_bias")?;
    let (rope_theta, rope_scaling) = rope(&fields)?;
    let config = ModelConfig {
        dim,
        layers: fields.required_size("num_hidden_layers")?,
        heads,
        kv_heads: fields.size("num_key_value_heads")?.unwrap_or(heads),
        head_dim,
        ffn_dim: fields.required_size("intermediate_size")?,
        vocab: fields.required_size("vocab_size")?,
        context: fields.size("max_position_embeddings")?.unwrap_or(2048),
        norm_eps: fields.number("rms_norm_eps")?.unwrap_or(1e-6),
        rope_theta,
        rope_scaling,
        pairing: Pairing::Halves,
        qkv_bias: attention_bias,
        output_bias: attention_bias,
        mlp_bias: fields.flag("mlp_bias")?,
        tied: fields.flag("tie_word_embeddings")?,
    };
    config.check().map_err(|error| error.at(place))?;
    Ok(config)
}

/// The ids that end a text: those of generation_config.json, where it names some, else of config.json. Both
/// are given as text and place.
///
/// # Errors
/// [`Error::Model`] where a text is no JSON object, or has something else for ids.
pub(super) fn stop_ids(generation: Option<(&str, &str)>, config: (&str, &str)) -> Result<Vec<u32>> {
    for (text, place) in generation.into_iter().chain([config]) {
        if let Some(ids) = eos(text, place)? {
            return Ok(ids);
        }
    }
    Ok(Vec::new())
}

/// `eos_token_id` in the text of a config.json or generation_config.json: a number, a list of numbers, or
/// none where it is absent or null.
fn eos(text: &str, place: &str) -> Result<Option<Vec<u32>>> {
    let object = parse_object(text, place)?;
    let fields = Fields { object: &object, place, prefix: "" };
    let Some(value) = fields.get("eos_token_id") else { return Ok(None) };
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids = match value {
        Value::Array(list) => list.iter().map(id).collect::<Option<Vec<_>>>(),
        value => id(value).map(|id| vec![id]),
    };
    ids.map(Some).ok_or_else(|| fields.wrong("eos_token_id", "a token id, or a list of them", brief(value)))
}

/// θ and the scaling, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling`.
fn rope(fields: &Fields<'_>) -> Result<(f32, RopeScaling)> {
    let theta = fields.number("rope_theta")?;
    let (name, inner) = match (fields.object("rope_parameters")?, fields.object("rope_scaling")?) {
        (Some(object), _) => ("rope_parameters.", object),
        (None, Some(object)) => ("rope_scaling.", object),
        (None, None) => return Ok((theta.unwrap_or(DEFAULT_THETA), RopeScaling::None)),
    };
    let rope = Fields { object: inner, place: fields.place, prefix: name };
    let theta = rope.number("rope_theta")?.or(theta).unwrap_or(DEFAULT_THETA);
    if let Some(part) = rope.number("partial_rotary_factor")?
        && part != 1.0
    {
        return Err(rope.wrong(
            "partial_rotary_factor",
            "1: every component of a head is turned",
            part.to_string(),
        ));
    }
    let kind = match rope.text("rope_type")? {
        Some(kind) => Some(kind),
        None => rope.text("type")?,
    };
    let scaling = match kind {
        None | Some("default") => RopeScaling::None,
        Some("linear") => RopeScaling::Linear { factor: rope.required_number("factor")? },
        Some("llama3") => RopeScaling::Llama3 {
            factor: rope.required_number("factor")?,
            low_freq_factor: rope.required_number("low_freq_factor")?,
            high_freq_factor: rope.required_number("high_freq_factor")?,
            original_context: rope.required_size("original_max_position_embeddings")?,
        },
        Some(other) => {
            let expected =
                "\"default\", \"linear\" or \"llama3\"; other kinds of RoPE scaling are not computed here";
            return Err(rope.wrong("rope_type", expected, format!("\"{}\"", printable(other))));
        }
    };
    Ok((theta, scaling))
}

/// θ of RoPE where config.json has none.
const DEFAULT_THETA: f32 = 10000.0;

/// Names what the model has and this program would compute wrongly or not at all.
fn refuse_what_is_not_computed(fields: &Fields<'_>) -> Result<()> {
    let is_llama = match fields.text("model_type")? {
        Some(kind) => kind == "llama",
        None => fields.get("architectures").is_some_and(|list| {
            list.as_array().is_some_and(|list| list.iter().any(|name| name == "LlamaForCausalLM"))
        }),
    };
    if !is_llama {
        let found = fields.get("model_type").map_or("no model_type".into(), brief);
        return Err(fields.wrong("model_type", "\"llama\"; no other architecture is computed here", found));
    }
    if let Some(quantization) = fields.get("quantization_config") {
        let method = quantization.get("quant_method").map_or("without a quant_method".into(), brief);
        let expected = "absent: weights are read as F32, F16 or BF16";
        return Err(fields.wrong("quantization_config", expected, format!("a quantized model, {method}")));
    }
    match fields.text("hidden_act")? {
        None | Some("silu" | "swish") => Ok(()),
        Some(other) => Err(fields.wrong("hidden_act", "\"silu\"", format!("\"{}\"", printable(other)))),
    }
}

/// The JSON object in the text of a file.
pub(super) fn parse_object(text: &str, place: &str) -> Result<Map<String, Value>> {
    serde_json::from_str(text).map_err(|error| {
        Error::model("the file is no JSON object")
            .at(place)
            .expected("JSON with the model's hyperparameters")
            .found(printable(&error.to_string()))
            .next("fetch the file again")
    })
}

/// A JSON object whose fields are asked for by name and type. A null counts as absent.
pub(super) struct Fields<'a> {
    pub(super) object: &'a Map<String, Value>,
    /// The file, for messages.
    pub(super) place: &'a str,
    /// What stands before a field's name in messages, with the dot: empty for the file's own object.
    pub(super) prefix: &'a str,
}

impl<'a> Fields<'a> {
    pub(super) fn wrong(&self, name: &str, expected: &str, found: String) -> Error {
        Error::model(format!("`{}{name}` is not what this program can use", self.prefix))
            .at(self.place)
            .expected(expected)
            .found(found)
            .next("check the file against the one that the model was published with")
    }

    pub(super) fn get(&self, name: &str) -> Option<&'a Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    fn typed<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.wrong(name, expected, brief(value)))
    }

    /// A whole number from 0 to 2³¹ − 1, beyond which no length or size of a model goes.
    pub(super) fn size(&self, name: &str) -> Result<Option<usize>> {
        self.typed(name, "a whole number below 2147483648", |value| {
            value.as_u64().filter(|&size| size <= i32::MAX as u64).map(|size| size as usize)
        })
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<f32>> {
        self.typed(name, "a number", |value| value.as_f64().map(|number| number as f32))
    }

    fn text(&self, name: &str) -> Result<Option<&'a str>> {
        self.typed(name, "a string", Value::as_str)
    }

    fn object(&self, name: &str) -> Result<Option<&'a Map<String, Value>>> {
        self.typed(name, "an object", Value::as_object)
    }

    /// A boolean that is false where it is absent.
    pub(super) fn flag(&self, name: &str) -> Result<bool> {
        Ok(self.typed(name, "true or false", Value::as_bool)?.unwrap_or(false))
    }

    pub(super) fn required_size(&self, name: &str) -> Result<usize> {
        self.size(name)?.ok_or_else(|| self.wrong(name, "a whole number", "no such field".into()))
    }

    fn required_number(&self, name: &str) -> Result<f32> {
        self.number(name)?.ok_or_else(|| self.wrong(name, "a number", "no such field".into()))
    }
}

/// A JSON value in a few words.
pub(super) fn brief(value: &Value) -> String {
    match value {
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
        Value::String(text) => format!("\"{}\"", printable(text)),
        scalar => scalar.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn small() -> Value {
        json!({
            "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 96, "vocab_size": 100,
        })
    }

    fn with(changes: &Value) -> Result<ModelConfig> {
        let mut config = small();
        for (name, value) in changes.as_object().unwrap() {
            config[name] = value.clone();
        }
        model_config(&config.to_string(), "config.json")
    }

    fn message(changes: &Value) -> String {
        with(changes).unwrap_err().to_string()
    }

    #[test]
    fn defaults_are_those_of_transformers() {
        let config = with(&json!({})).unwrap();
        let expected = ModelConfig {
            dim: 64,
            layers: 2,
            heads: 4,
            kv_heads: 4,
            head_dim: 16,
            ffn_dim: 96,
            vocab: 100,
            context: 2048,
            norm_eps: 1e-6,
            rope_theta: 10000.0,
            rope_scaling: RopeScaling::None,
            pairing: Pairing::Halves,
            qkv_bias: false,
            output_bias: false,
            mlp_bias: false,
            tied: false,
        };
        assert_eq!(config, expected);
    }

    #[test]
    fn null_counts_as_absent() {
        let nulls =
            json!({"head_dim": null, "num_key_value_heads": null, "rope_scaling": null, "mlp_bias": null});
        assert_eq!(with(&nulls).unwrap(), with(&json!({})).unwrap());
    }

    #[test]
    fn attention_bias_is_on_all_four_projections() {
        let config = with(&json!({"attention_bias": true})).unwrap();
        assert!(config.qkv_bias && config.output_bias && !config.mlp_bias);
    }

    #[test]
    fn head_dim_may_differ_from_the_quotient() {
        assert_eq!(with(&json!({"head_dim": 32})).unwrap().q_dim(), 128);
        assert!(message(&json!({"hidden_size": 65})).contains("head_dim"));
        assert!(message(&json!({"num_attention_heads": 0})).contains("head_dim"));
    }

    #[test]
    fn rope_in_both_spellings() {
        let llama3 = json!({
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        });
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192,
        };
        let old = with(&json!({"rope_theta": 500000, "rope_scaling": llama3})).unwrap();
        assert_eq!((old.rope_theta, old.rope_scaling.clone()), (500000.0, scaling));

        let mut parameters = llama3;
        parameters["rope_theta"] = json!(500000.0);
        assert_eq!(with(&json!({"rope_parameters": parameters})).unwrap(), old);

        let linear = with(&json!({"rope_scaling": {"type": "linear", "factor": 2}})).unwrap();
        assert_eq!(linear.rope_scaling, RopeScaling::Linear { factor: 2.0 });
        let default = with(&json!({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}})).unwrap();
        assert_eq!((default.rope_theta, default.rope_scaling), (1e6, RopeScaling::None));
    }

    #[test]
    fn what_is_not_computed_is_named() {
        assert!(message(&json!({"model_type": "mistral"})).contains("\"mistral\""));
        assert!(message(&json!({"rope_scaling": {"type": "yarn", "factor": 2}})).contains("\"yarn\""));
        assert!(
            message(&json!({"rope_scaling": {"type": "llama3", "factor": 2}})).contains("low_freq_factor")
        );
        assert!(message(&json!({"quantization_config": {"quant_method": "awq"}})).contains("\"awq\""));
        assert!(message(&json!({"hidden_act": "gelu"})).contains("\"gelu\""));
        assert!(message(&json!({"rope_parameters": {"partial_rotary_factor": 0.5}})).contains("0.5"));
    }

    #[test]
    fn wrong_types_and_absurd_numbers_are_errors() {
        let text = message(&json!({"num_hidden_layers": "two"}));
        assert!(text.contains("`num_hidden_layers`") && text.contains("\"two\""), "{text}");
        for wrong in [json!(-1), json!(1.5), json!(1e300), json!([]), json!({}), json!(true), json!(u64::MAX)]
        {
            for name in ["hidden_size", "num_key_value_heads", "vocab_size", "max_position_embeddings"] {
                with(&json!({name: wrong.clone()})).unwrap_err();
            }
        }
        with(&json!({"rms_norm_eps": "small"})).unwrap_err();
        with(&json!({"tie_word_embeddings": 1})).unwrap_err();
        with(&json!({"rope_scaling": "linear"})).unwrap_err();
        assert!(model_config(&"[".repeat(10_000), "config.json").is_err());
        assert!(model_config("[]", "config.json").is_err());
    }

    #[test]
    fn eos_is_a_number_or_a_list() {
        assert_eq!(eos("{}", "").unwrap(), None);
        assert_eq!(eos(r#"{"eos_token_id": null}"#, "").unwrap(), None);
        assert_eq!(eos(r#"{"eos_token_id": 2}"#, "").unwrap(), Some(vec![2]));
        assert_eq!(eos(r#"{"eos_token_id": [128001, 128009]}"#, "").unwrap(), Some(vec![128001, 128009]));
        for wrong in ["-1", "1.5", "\"</s>\"", "[[1]]", "4294967296"] {
            eos(&format!(r#"{{"eos_token_id": {wrong}}}"#), "").unwrap_err();
        }
    }

    proptest! {
        #[test]
        fn mutated_text_never_panics(at: prop::sample::Index, byte in 0x20_u8..0x7f) {
            let mut text = small().to_string().into_bytes();
            let at = at.index(text.len());
            text[at] = byte;
            let text = String::from_utf8(text).unwrap();
            let _ = model_config(&text, "config.json");
            let _ = eos(&text, "config.json");
        }
    }
}
