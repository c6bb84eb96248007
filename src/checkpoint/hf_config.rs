//! config.json of a Hugging Face directory, read as transformers reads it for the model types of
//! [`Family`]: Llama, and the families that are Llama with a switch or two.

use serde_json::{Map, Value};

use super::names::printable;
use crate::config::{ModelConfig, Pairing, RopeScaling};
use crate::error::{Error, Result};

/// The hyperparameters in the text of a config.json; `place` names the file in messages.
///
/// Defaults are those of transformers' configuration class for the family, except for the sizes of the model, which have to
/// be there: a file without them belongs to something else.
///
/// # Errors
/// [`Error::Model`] where the text is no JSON object, a field has the wrong type, or the model has a part
/// that is not computed here.
pub(super) fn model_config(text: &str, place: &str) -> Result<ModelConfig> {
    let object = parse_object(text, place)?;
    let fields = Fields { object: &object, place, prefix: "" };
    let family = family(&fields)?;
    refuse_what_is_not_computed(&fields)?;

    let dim = fields.required_size("hidden_size")?;
    let heads = fields.required_size("num_attention_heads")?;
    let head_dim = match fields.size("head_dim")? {
        Some(head_dim) => head_dim,
        // Qwen3 does not divide.
        None if family == Family::Qwen3 => 128,
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
    let kv_heads = match fields.size("num_key_value_heads")? {
        Some(kv_heads) => kv_heads,
        None if family == Family::Llama || object.contains_key("num_key_value_heads") => heads,
        // transformers has a number for these, which fits one size of the family only.
        None => fields.required_size("num_key_value_heads")?,
    };
    let layers = fields.required_size("num_hidden_layers")?;
    let (window, window_from) = window(&fields, family, layers)?;
    let (qkv_bias, output_bias, mlp_bias) = match family {
        Family::Llama => {
            let attention = fields.flag("attention_bias")?;
            (attention, attention, fields.flag("mlp_bias")?)
        }
        Family::Qwen3 => {
            let attention = fields.flag("attention_bias")?;
            (attention, attention, false)
        }
        // Qwen2's biases are in its code, not in its configuration (Qwen2 report, section 2.2).
        Family::Qwen2 => (true, false, false),
        Family::Mistral => (false, false, false),
    };
    let context = match family {
        Family::Llama => 2048,
        Family::Mistral => 131_072,
        Family::Qwen2 | Family::Qwen3 => 32_768,
    };
    let (rope_theta, rope_scaling) = rope(&fields)?;
    let config = ModelConfig {
        dim,
        layers,
        heads,
        kv_heads,
        head_dim,
        ffn_dim: fields.required_size("intermediate_size")?,
        vocab: fields.required_size("vocab_size")?,
        context: fields.size("max_position_embeddings")?.unwrap_or(context),
        norm_eps: fields.number("rms_norm_eps")?.unwrap_or(1e-6),
        rope_theta,
        rope_scaling,
        pairing: Pairing::Halves,
        qkv_bias,
        output_bias,
        mlp_bias,
        qk_norm: family == Family::Qwen3,
        window,
        window_from,
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
            return Err(rope
                .wrong("rope_type", expected, format!("\"{}\"", printable(other)))
                .next("use a model with one of these"));
        }
    };
    Ok((theta, scaling))
}

/// θ of RoPE where config.json has none.
const DEFAULT_THETA: f32 = 10000.0;

/// What transformers calls a `model_type`, where it is computed here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    /// Llama 1 to 3.3; TinyLlama, SmolLM and SmolLM2 are Llamas too.
    Llama,
    /// Llama with a sliding window (Jiang et al., 2023).
    Mistral,
    /// Llama with biases on queries, keys and values, and a window in the upper layers where
    /// `use_sliding_window` says so (Qwen2 report, Yang et al., 2024).
    Qwen2,
    /// Llama with norms on queries and keys, and Qwen2's window (Qwen3 report, Yang et al., 2025).
    Qwen3,
}

/// The family that `model_type` names, or where that is absent the class in `architectures`.
fn family(fields: &Fields<'_>) -> Result<Family> {
    const FAMILIES: [(&str, &str, Family); 4] = [
        ("llama", "LlamaForCausalLM", Family::Llama),
        ("mistral", "MistralForCausalLM", Family::Mistral),
        ("qwen2", "Qwen2ForCausalLM", Family::Qwen2),
        ("qwen3", "Qwen3ForCausalLM", Family::Qwen3),
    ];
    let architectures = fields.get("architectures").and_then(Value::as_array);
    let kind = fields.text("model_type")?;
    let is = |(name, class, _): &&(&str, &str, Family)| match kind {
        Some(kind) => kind == *name,
        None => architectures.is_some_and(|list| list.iter().any(|name| name == class)),
    };
    FAMILIES.iter().find(is).map(|(_, _, family)| *family).ok_or_else(|| {
        let found = fields.get("model_type").map_or("no model_type".into(), brief);
        let expected = "\"llama\" (Llama 1 to 3.3, TinyLlama, SmolLM, SmolLM2), \"mistral\", \"qwen2\" \
            (Qwen2, Qwen2.5) or \"qwen3\"; no other architecture is computed here";
        fields.wrong("model_type", expected, found).next("use a model of one of these families")
    })
}

/// The sliding window and the first layer that has it. In Mistral every layer has it; in Qwen the layers from
/// `max_window_layers` on, and none unless `use_sliding_window` is true.
fn window(fields: &Fields<'_>, family: Family, layers: usize) -> Result<(Option<usize>, usize)> {
    let used = match family {
        Family::Llama => return Ok((None, 0)),
        Family::Mistral => true,
        Family::Qwen2 | Family::Qwen3 => fields.flag("use_sliding_window")?,
    };
    let window = match fields.size("sliding_window")? {
        _ if !used => None,
        // transformers has a window where the field is absent, and none where it is null.
        None if !fields.object.contains_key("sliding_window") => Some(4096),
        window => window,
    };
    let from = match (family, layer_types(fields, layers)?) {
        (Family::Mistral, None) => 0,
        (_, Some(from)) => from,
        (_, None) => fields.size("max_window_layers")?.unwrap_or(28),
    };
    let listed = fields.get("layer_types").is_some();
    if listed && family == Family::Mistral && window.is_some() && from != 0 {
        let expected = "\"sliding_attention\" for every layer: Mistral has one window for all";
        return Err(fields.wrong("layer_types", expected, "some \"full_attention\"".into()));
    }
    if listed && window.is_none() && from < layers {
        let expected = "\"full_attention\" for every layer where no sliding_window is used";
        return Err(fields.wrong("layer_types", expected, "some \"sliding_attention\"".into()));
    }
    Ok(if window.is_some() && from < layers { (window, from) } else { (None, 0) })
}

/// The first layer with a window that the list `layer_types` names, where there is such a list.
fn layer_types(fields: &Fields<'_>, layers: usize) -> Result<Option<usize>> {
    let Some(value) = fields.get("layer_types") else { return Ok(None) };
    let expected = "a list with \"full_attention\" for the first layers and \"sliding_attention\" for the \
        others; no other pattern is computed here";
    let kinds = value.as_array().filter(|kinds| kinds.len() == layers);
    let kinds = kinds.ok_or_else(|| fields.wrong("layer_types", expected, brief(value)))?;
    let from = kinds.iter().take_while(|kind| *kind == "full_attention").count();
    match kinds[from..].iter().find(|kind| *kind != "sliding_attention") {
        Some(kind) => Err(fields.wrong("layer_types", expected, format!("{} among the others", brief(kind)))),
        None => Ok(Some(from)),
    }
}

/// Names what the model has and this program would compute wrongly or not at all.
fn refuse_what_is_not_computed(fields: &Fields<'_>) -> Result<()> {
    if let Some(quantization) = fields.get("quantization_config") {
        let method = quantization.get("quant_method").map_or("without a quant_method".into(), brief);
        let expected = "absent: weights are read as F32, F16 or BF16";
        let found = format!("a quantized model, {method}");
        return Err(fields
            .wrong("quantization_config", expected, found)
            .next("use the model as it was before, or a GGUF file of it"));
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
            qk_norm: false,
            window: None,
            window_from: 0,
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

    /// A configuration of `family` with `changes`.
    fn of(family: &str, changes: &Value) -> Result<ModelConfig> {
        let mut all = json!({"model_type": family, "num_key_value_heads": 2});
        for (name, value) in changes.as_object().unwrap() {
            all[name] = value.clone();
        }
        with(&all)
    }

    #[test]
    fn a_family_is_its_switches() {
        let config = of("mistral", &json!({"attention_bias": true, "mlp_bias": true})).unwrap();
        assert!(!config.qkv_bias && !config.output_bias && !config.mlp_bias && !config.qk_norm);
        assert_eq!((config.window, config.window_from, config.context), (Some(4096), 0, 131_072));
        assert_eq!(of("mistral", &json!({"sliding_window": null})).unwrap().window, None);
        assert_eq!(of("mistral", &json!({"sliding_window": 7})).unwrap().window, Some(7));
        of("mistral", &json!({"sliding_window": 0})).unwrap_err();

        let config = of("qwen2", &json!({"sliding_window": 7})).unwrap();
        assert!(config.qkv_bias && !config.output_bias && !config.mlp_bias && !config.qk_norm);
        assert_eq!((config.window, config.head_dim), (None, 16));

        let config = of("qwen3", &json!({})).unwrap();
        assert!(config.qk_norm && !config.qkv_bias && !config.output_bias);
        assert_eq!((config.window, config.head_dim), (None, 128));
        let config = of("qwen3", &json!({"attention_bias": true, "head_dim": 8})).unwrap();
        assert!(config.qkv_bias && config.output_bias && !config.mlp_bias && config.head_dim == 8);

        let named =
            json!({"model_type": null, "architectures": ["Qwen3ForCausalLM"], "num_key_value_heads": 2});
        assert!(with(&named).unwrap().qk_norm);
        assert!(message(&json!({"model_type": "qwen2"})).contains("num_key_value_heads"));
        assert_eq!(of("qwen2", &json!({"num_key_value_heads": null})).unwrap().kv_heads, 4);
        assert_eq!(with(&json!({"sliding_window": 7})).unwrap().window, None, "a Llama has none");
    }

    #[test]
    fn the_layers_with_a_window_are_counted_or_listed() {
        for family in ["qwen2", "qwen3"] {
            let windows = |changes: Value| {
                let mut all = json!({"use_sliding_window": true, "sliding_window": 7});
                for (name, value) in changes.as_object().unwrap() {
                    all[name] = value.clone();
                }
                of(family, &all).map(|config| (config.window, config.window_from))
            };
            let (full, sliding) = ("full_attention", "sliding_attention");
            assert_eq!(windows(json!({})).unwrap(), (None, 0), "28 layers without one");
            assert_eq!(windows(json!({"max_window_layers": 1})).unwrap(), (Some(7), 1));
            assert_eq!(windows(json!({"max_window_layers": 0})).unwrap(), (Some(7), 0));
            assert_eq!(windows(json!({"layer_types": [full, sliding]})).unwrap(), (Some(7), 1));
            assert_eq!(windows(json!({"layer_types": [full, full]})).unwrap(), (None, 0));
            for wrong in
                [json!([sliding, full]), json!([full]), json!([full, "chunked_attention"]), json!("x")]
            {
                windows(json!({"layer_types": wrong})).unwrap_err();
            }
            let off = json!({"use_sliding_window": false, "layer_types": [full, sliding]});
            assert!(windows(off).unwrap_err().to_string().contains("layer_types"));
        }
        let mixed = json!({"layer_types": ["full_attention", "sliding_attention"]});
        assert!(of("mistral", &mixed).unwrap_err().to_string().contains("layer_types"));
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
        for other in ["smollm3", "mistral3", "mistral4", "ministral", "gemma2", "phi3", "qwen3_moe", ""] {
            let text = message(&json!({"model_type": other}));
            let works = ["\"llama\"", "\"mistral\"", "\"qwen2\"", "\"qwen3\"", "SmolLM2"];
            assert!(text.contains(&format!("\"{other}\"")), "{text}");
            assert!(text.contains("next: use a model of one of these families"), "{text}");
            assert!(works.iter().all(|name| text.contains(name)), "{text}");
        }
        assert!(message(&json!({"model_type": null})).contains("no model_type"));
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
