//! params.json: the arguments of the `Transformer` class in Meta's code.

use serde_json::Value;

use super::super::fields::Source;
use super::super::json::{Fields, parse_object};
use super::super::screen::{Notes, Screen};
use crate::files::brief;
use llama_trace_core::config::{ModelConfig, Pairing, RopeScaling};
use llama_trace_core::error::{Error, Result};

/// The contents of params.json. The weights supply the missing hyperparameters later ([`Params::config`]).
#[derive(Debug)]
pub(super) struct Params {
    /// The model width, which shows how the embedding table was split.
    pub(super) dim: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    ffn_dim: usize,
    /// `None` for the −1 of Llama 1 and 2: the size of the tokenizer's vocabulary.
    vocab: Option<usize>,
    context: usize,
    norm_eps: f32,
    rope_theta: f32,
    rope_scaling: RopeScaling,
    /// Deviations from the file.
    pub(super) notes: Notes,
}

impl Params {
    /// Reads the hyperparameters from the text of a params.json without the fields `ignore`. `place` names the file in
    /// messages. The defaults are those of `ModelArgs` in Meta's code.
    ///
    /// # Errors
    /// Returns [`Error::Model`] if the text is not a JSON object, a field has the wrong type, or the model has an
    /// unsupported part. Returns [`Error::Usage`] if ignoring a field has no effect.
    pub(super) fn read(text: &str, place: &str, ignore: &[String]) -> Result<Self> {
        let mut object = parse_object(text, place)?;
        let mut screen = Screen::new(place, ignore);
        screen.take_out(&mut object)?;
        ignore.iter().try_for_each(|name| screen.check_ignored(&[Source::Meta], name, name))?;
        screen.fields(&[Source::Meta], "", object.iter().map(|(name, value)| (name.as_str(), value)))?;
        let fields = Fields { object: &object, place, prefix: "" };
        let dim = fields.required_size("dim")?;
        let heads = fields.required_size("n_heads")?;
        let head_dim = match fields.size("head_dim")? {
            Some(head_dim) => head_dim,
            None if heads > 0 && dim.is_multiple_of(heads) => dim / heads,
            None => {
                return Err(fields.wrong("n_heads", "a divisor of dim", format!("{heads} for dim {dim}")));
            }
        };
        let (norm_eps, rope_theta) =
            (fields.number("norm_eps")?.unwrap_or(1e-5), fields.number("rope_theta")?.unwrap_or(10000.0));
        let vocab = match fields.get("vocab_size").and_then(Value::as_i64) {
            Some(-1) => None,
            _ => fields.size("vocab_size")?,
        };
        let scaled = fields.flag("use_scaled_rope")?;
        let (factor, high) = (fields.number("rope_scaling_factor")?, fields.number("rope_high_freq_factor")?);
        // The constants of `apply_scaling` in Meta's llama-models. Only Llama 4's code reads these two fields: if the
        // file has one of them, Llama 4's constants are used, otherwise Llama 3's.
        let (factor, high_freq_factor) = match (factor, high) {
            (None, None) => (8.0, 4.0),
            (factor, high) => (factor.unwrap_or(16.0), high.unwrap_or(1.0)),
        };
        if scaled && high_freq_factor <= 1.0 {
            return Err(fields.wrong(
                "rope_high_freq_factor",
                "a number above 1",
                high_freq_factor.to_string(),
            ));
        }
        let rope_scaling = match scaled {
            true => {
                RopeScaling::Llama3 { factor, low_freq_factor: 1.0, high_freq_factor, original_context: 8192 }
            }
            false => RopeScaling::None,
        };
        Ok(Self {
            dim,
            layers: fields.required_size("n_layers")?,
            heads,
            kv_heads: fields.size("n_kv_heads")?.unwrap_or(heads),
            head_dim,
            ffn_dim: match fields.size("hidden_dim")? {
                Some(ffn_dim) => ffn_dim,
                None => ffn_dim(&fields, dim)?,
            },
            vocab,
            context: fields.size("max_seq_len")?.unwrap_or_else(|| context(scaled, rope_theta, norm_eps)),
            norm_eps,
            rope_theta,
            rope_scaling,
            notes: screen.notes,
        })
    }

    /// The configuration of a model whose embedding table has `rows` rows.
    ///
    /// # Errors
    /// Returns [`Error::Model`] if the size of the vocabulary is unknown or a size is invalid.
    pub(super) fn config(&self, rows: Option<usize>, tied: bool) -> Result<ModelConfig> {
        let vocab = self.vocab.or(rows).ok_or_else(|| {
            Error::model("the size of the vocabulary is not known")
                .expected(
                    "`vocab_size` above 0; or −1, and a tensor `tok_embeddings.weight` with a row for each token",
                )
                .found("neither")
                .next("fetch the model's files again")
        })?;
        let config = ModelConfig {
            dim: self.dim,
            layers: self.layers,
            ffn_dim: self.ffn_dim,
            vocab,
            context: self.context,
            norm_eps: self.norm_eps,
            rope_theta: self.rope_theta,
            rope_scaling: self.rope_scaling.clone(),
            pairing: Pairing::Neighbours,
            tied,
            ..ModelConfig::of_heads(self.heads, self.kv_heads, self.head_dim)
        };
        config.check()?;
        Ok(config)
    }
}

/// The feed-forward width by the rule of `FeedForward` in Meta's code: two thirds of 4·dim, times the multiplier,
/// rounded up.
fn ffn_dim(fields: &Fields<'_>, dim: usize) -> Result<usize> {
    let multiple = fields.size("multiple_of")?.unwrap_or(256);
    if multiple == 0 {
        return Err(fields.wrong("multiple_of", "a whole number, 1 or larger", "0".into()));
    }
    let mut hidden = 2 * (4 * dim) / 3;
    if let Some(value) = fields.get("ffn_dim_multiplier") {
        let wrong = || fields.wrong("ffn_dim_multiplier", "a number above 0 and up to 1000", brief(value));
        let multiplier = value.as_f64().filter(|&number| number > 0.0 && number <= 1000.0);
        // In float64, as in Python.
        hidden = (multiplier.ok_or_else(wrong)? * hidden as f64) as usize;
    }
    hidden.checked_next_multiple_of(multiple).ok_or_else(|| {
        fields.wrong(
            "multiple_of",
            "a smaller number: the width is rounded up to a multiple of it",
            multiple.to_string(),
        )
    })
}

/// The context that a model was trained with, which params.json does not contain. It is inferred from the differences
/// between the generations. Llama 3.1 to 3.3 scale RoPE. Llama 3 has θ = 500,000, and Code Llama θ = 1,000,000. Llama 2
/// has ε = 1e-5, and Llama 1 ε = 1e-6.
fn context(scaled: bool, rope_theta: f32, norm_eps: f32) -> usize {
    match () {
        () if scaled => 131_072,
        () if rope_theta == 500_000.0 => 8192,
        () if rope_theta == 1_000_000.0 => 16_384,
        () if norm_eps == 1e-6 => 2048,
        () => 4096,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    /// The params.json of Llama 3.2 1B.
    fn small() -> Value {
        json!({"dim": 2048, "n_layers": 16, "n_heads": 32, "n_kv_heads": 8, "vocab_size": 128256,
            "ffn_dim_multiplier": 1.5, "multiple_of": 256, "norm_eps": 1e-05, "rope_theta": 500000.0,
            "use_scaled_rope": true})
    }

    fn config(changes: &Value) -> Result<ModelConfig> {
        let mut params = small();
        for (name, value) in changes.as_object().unwrap() {
            params[name] = value.clone();
        }
        Params::read(&params.to_string(), "params.json", &[])?.config(Some(32000), false)
    }

    #[test]
    fn llama_3_2_1b() {
        let config = config(&json!({})).unwrap();
        assert_eq!((config.ffn_dim, config.kv_heads, config.head_dim, config.vocab), (8192, 8, 64, 128_256));
        assert_eq!((config.context, config.rope_theta), (131_072, 500_000.0));
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192,
        };
        assert_eq!(config.rope_scaling, scaling);
    }

    #[test]
    fn the_feed_forward_widths_of_metas_models() {
        // dim, ffn_dim_multiplier, multiple_of, width: Llama 1 7B, 2 70B, 3 8B, 3 70B, 3.1 405B, 3.2 3B
        let models = [
            (4096, Value::Null, 256, 11008),
            (8192, json!(1.3), 4096, 28672),
            (4096, json!(1.3), 1024, 14336),
            (8192, json!(1.3), 4096, 28672),
            (16384, json!(1.2), 4096, 53248),
            (3072, json!(1.0), 256, 8192),
        ];
        for (dim, multiplier, multiple, width) in models {
            let changes = json!({"dim": dim, "ffn_dim_multiplier": multiplier, "multiple_of": multiple});
            assert_eq!(config(&changes).unwrap().ffn_dim, width, "{changes}");
        }
    }

    #[test]
    fn what_is_absent_is_as_in_llama_1() {
        let text = r#"{"dim": 64, "multiple_of": 4, "n_heads": 8, "n_layers": 5, "norm_eps": 1e-06, "vocab_size": -1}"#;
        let config = Params::read(text, "params.json", &[]).unwrap().config(Some(512), true).unwrap();
        assert_eq!((config.kv_heads, config.vocab, config.ffn_dim, config.context), (8, 512, 172, 2048));
        assert_eq!((config.rope_theta, config.rope_scaling), (10000.0, RopeScaling::None));
        assert_eq!((config.pairing, config.tied), (Pairing::Neighbours, true));
        let unknown =
            Params::read(text, "params.json", &[]).unwrap().config(None, true).unwrap_err().to_string();
        assert!(unknown.contains("vocabulary"), "{unknown}");
    }

    #[test]
    fn what_is_not_computed_is_named() {
        for name in [
            "moe",
            "moe_args",
            "vision_args",
            "vision_chunk_size",
            "vision_num_cross_attention_layers",
            "quantization_args",
            "lora_args",
            "sliding_window",
            "use_qk_norm",
            "nope_layer_interval",
            "attention_chunk_size",
            "yarn",
        ] {
            let text = config(&json!({name: {"a": 1}})).unwrap_err().to_string();
            assert!(text.contains(&format!("`{name}`")), "{text}");
            config(&json!({name: null})).unwrap();
        }
    }

    #[test]
    fn every_field_is_obeyed_harmless_or_refused() {
        use crate::checkpoint::fields::{Neutral, Null, Rule, TABLE};
        let read = |changes: &Value| {
            let mut params = small();
            for (name, value) in changes.as_object().unwrap() {
                params[name] = value.clone();
            }
            let params = Params::read(&params.to_string(), "params.json", &[])?;
            Ok((params.config(Some(32000), false)?, params.notes))
        };
        let same =
            |changes: Value| assert_eq!(read(&changes).unwrap(), read(&json!({})).unwrap(), "{changes}");
        let refused = |changes: Value, name: &str| {
            let text = read(&changes).map_err(|error: Error| error.to_string()).unwrap_err();
            assert!(text.contains(&format!("`{name}`")) && text.contains("next: "), "{text}");
        };
        for row in TABLE.iter().filter(|row| row.source == Source::Meta) {
            for &name in row.names {
                match (row.rule, row.null) {
                    (Rule::Obeyed, Null::Absent) => {}
                    (_, Null::Fails) => refused(json!({name: null}), name),
                    (_, Null::Absent) => same(json!({name: null})),
                }
                match row.rule {
                    Rule::Obeyed => {}
                    Rule::Harmless => same(json!({name: 7})),
                    Rule::Storage => refused(json!({name: {"bits": 4}}), name),
                    Rule::Refused(neutral) => {
                        refused(json!({name: 0.25}), name);
                        refused(json!({name: {"a": 1}}), name);
                        for neutral in neutral {
                            match neutral {
                                Neutral::Number(number) => same(json!({name: number})),
                                Neutral::Text(text) => same(json!({name: text})),
                                Neutral::True => same(json!({name: true})),
                            }
                        }
                    }
                }
            }
        }
        refused(json!({"my_rope": 1}), "my_rope");
        assert_eq!(read(&json!({"author": "x"})).unwrap().1.unknown, ["author"]);
        let params = json!({"dim": 64, "n_heads": 8, "n_layers": 5, "use_qk_norm": true}).to_string();
        let ignoring = Params::read(&params, "params.json", &["use_qk_norm".into()]).unwrap();
        assert_eq!(ignoring.notes.ignored, ["use_qk_norm"]);
    }

    #[test]
    fn wrong_types_and_absurd_numbers_are_errors() {
        for wrong in [json!(-2), json!(1.5), json!(1e300), json!([]), json!({}), json!(true), json!(u64::MAX)]
        {
            for name in ["dim", "n_heads", "n_kv_heads", "vocab_size", "multiple_of", "max_seq_len"] {
                config(&json!({name: wrong.clone()})).unwrap_err();
            }
        }
        for wrong in [json!(0), json!(-1), json!("x"), json!(1e300)] {
            config(&json!({"ffn_dim_multiplier": wrong})).unwrap_err();
        }
        config(&json!({"multiple_of": 0})).unwrap_err();
        config(&json!({"n_heads": 0})).unwrap_err();
        config(&json!({"dim": 2047})).unwrap_err();
        config(&json!({"dim": i32::MAX, "n_heads": 1, "multiple_of": i32::MAX})).unwrap_err();
        assert!(Params::read("[]", "params.json", &[]).is_err());
    }

    proptest! {
        #[test]
        fn mutated_text_never_panics(at: prop::sample::Index, byte in 0x20_u8..0x7f) {
            let mut text = small().to_string().into_bytes();
            let at = at.index(text.len());
            text[at] = byte;
            let params = Params::read(&String::from_utf8(text).unwrap(), "params.json", &[]);
            let _ = params.map(|params| params.config(Some(7), false));
        }
    }
}
