//! Checks of a tokenizer.json before the `tokenizers` crate reads it.
//!
//! There are two reasons. First, this program decodes tokens to text one at a time (see [`Decoder`]) and must know the
//! decoder. Second, the crate does not check some parameters; a damaged file could make it panic or exhaust the memory.
//! Only parts that were checked are passed on.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::decoder::Decoder;
use super::sizes::{Added, Growth, Ids, check_added, check_expression};
use super::wrong::Wrong;

/// The maximum size in bytes of a section other than the vocabulary. Real ones have a few hundred.
const MAX_SECTION: usize = 64 << 10;
/// The maximum number of parts in a section.
const MAX_PARTS: usize = 32;
/// The maximum factor by which the normalizers may lengthen a text.
const MAX_GROWTH: usize = 4096;

const MODELS: &[&str] = &["BPE", "Unigram", "WordLevel"];
const NORMALIZERS: &[&str] =
    &["Sequence", "Prepend", "Replace", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "StripAccents"];
const PRE_TOKENIZERS: &[&str] = &[
    "Sequence",
    "ByteLevel",
    "Metaspace",
    "Split",
    "Whitespace",
    "WhitespaceSplit",
    "Digits",
    "Punctuation",
];
const POST_PROCESSORS: &[&str] = &["Sequence", "ByteLevel", "TemplateProcessing"];

/// The properties of a tokenizer.json that the rest of this module needs.
#[derive(Debug)]
pub(super) struct Checked {
    /// The decoding of tokens to text.
    pub decoder: Decoder,
    /// Whether the model silently drops characters without a token.
    pub drops_unknown: bool,
    /// The largest id, plus one.
    pub ids: u32,
    /// The growth of a text by the normalizers.
    pub growth: Growth,
    /// Whether texts are split by GPT-2's expression.
    pub cuts_as_gpt2: bool,
}

#[derive(Deserialize)]
struct Sections<'a> {
    model: Model,
    #[serde(default, borrow)]
    added_tokens: Vec<Added<'a>>,
    #[serde(borrow)]
    normalizer: Option<&'a RawValue>,
    #[serde(borrow)]
    pre_tokenizer: Option<&'a RawValue>,
    #[serde(borrow)]
    post_processor: Option<&'a RawValue>,
    #[serde(borrow)]
    decoder: Option<&'a RawValue>,
}

/// The model. Of its vocabulary only the ids are read, and its merges are skipped.
#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: String,
    dropout: Option<f64>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    vocab: Ids,
}

/// Checks the text of a tokenizer.json.
///
/// # Errors
/// Returns what was expected and found if the file has an unsupported part.
pub(super) fn read(text: &str) -> Result<Checked, Wrong> {
    let sections: Sections<'_> = serde_json::from_str(text)
        .map_err(|error| ("a valid tokenizer.json".to_string(), error.to_string()))?;
    let model = &sections.model;
    one_of("model", &model.kind, MODELS)?;
    let has = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    if has(&model.continuing_subword_prefix) || has(&model.end_of_word_suffix) {
        return Err((
            "a model without subword prefix or word suffix".into(),
            "a subword prefix or word suffix".into(),
        ));
    }
    if model.dropout.is_some_and(|dropout| dropout != 0.0) {
        return Err(("a deterministic model".into(), "a model with dropout".into()));
    }
    let shortest = check_added(&sections.added_tokens)?;
    let added = sections.added_tokens.iter().map(|token| token.id + 1).max().unwrap_or(0);
    let ids = u32::try_from(added.max(model.vocab.end())).unwrap_or(u32::MAX);
    let normalizer = parts("normalizer", sections.normalizer, "normalizers", NORMALIZERS)?;
    let growth = normalizer.iter().fold(1_usize, |growth, part| {
        growth.saturating_mul(part["content"].as_str().map_or(1, |content| content.len().max(1)))
    });
    if growth > MAX_GROWTH {
        return Err((
            "normalizers that keep a text's length about the same".into(),
            format!("growth up to {growth} times the length"),
        ));
    }
    let pre_tokenizer = parts("pre_tokenizer", sections.pre_tokenizer, "pretokenizers", PRE_TOKENIZERS)?;
    for part in normalizer.iter().chain(&pre_tokenizer) {
        check_expression(part)?;
    }
    // `parts` returns the last part first.
    let growth = Growth::of(normalizer.iter().rev(), shortest);
    for part in parts("post_processor", sections.post_processor, "processors", POST_PROCESSORS)? {
        check_template(&part)?;
    }
    let decoder = match section("decoder", sections.decoder)? {
        Some(value) => Decoder::new(&value)?,
        None => Decoder::Words,
    };
    let drops_unknown = model.kind == "BPE" && model.unk_token.is_none() && normalizer.is_empty();
    let cuts = |part: &Value| part["type"] == "ByteLevel" && part["use_regex"] != false;
    let cuts_as_gpt2 = pre_tokenizer.iter().any(cuts);
    Ok(Checked { decoder, drops_unknown, ids, growth, cuts_as_gpt2 })
}

fn one_of(section: &str, kind: &str, known: &[&str]) -> Result<(), Wrong> {
    match known.contains(&kind) {
        true => Ok(()),
        false => Err((format!("{section}: {}", known.join(", ")), format!("`{kind}`"))),
    }
}

/// A section as a JSON value. `None` if it is null or absent.
fn section(name: &str, raw: Option<&RawValue>) -> Result<Option<Value>, Wrong> {
    let Some(raw) = raw else { return Ok(None) };
    if raw.get().len() > MAX_SECTION {
        return Err((format!("{name}: at most {MAX_SECTION} bytes"), format!("{} bytes", raw.get().len())));
    }
    serde_json::from_str(raw.get()).map_err(|error| (format!("{name}: JSON"), error.to_string()))
}

/// The parts of a section, the last one first: a single part or a (nested) sequence of parts. All must be `known`.
/// `list` is the name of a sequence's field.
fn parts(name: &str, raw: Option<&RawValue>, list: &str, known: &[&str]) -> Result<Vec<Value>, Wrong> {
    let mut waiting: Vec<Value> = section(name, raw)?.into_iter().collect();
    let mut parts = Vec::new();
    while let Some(mut part) = waiting.pop() {
        let kind =
            part["type"].as_str().ok_or_else(|| (format!("{name} with a type"), "none".to_string()))?;
        one_of(name, kind, known)?;
        if kind == "Sequence" {
            let Value::Array(inner) = part[list].take() else {
                return Err((format!("{name}: a sequence with a list `{list}`"), "none".into()));
            };
            waiting.extend(inner);
        } else {
            parts.push(part);
        }
        if parts.len() + waiting.len() > MAX_PARTS {
            return Err((format!("{name}: at most {MAX_PARTS} parts"), "more".into()));
        }
    }
    Ok(parts)
}

/// Checks that a template contains only the text itself and tokens that it defines.
fn check_template(part: &Value) -> Result<(), Wrong> {
    if part["type"] != "TemplateProcessing" {
        return Ok(());
    }
    let defined = |id: &Value| id.as_str().is_some_and(|id| part["special_tokens"].get(id).is_some());
    let pieces = part["single"].as_array().map_or(&[][..], Vec::as_slice);
    if pieces.iter().filter(|piece| piece.get("Sequence").is_some()).count() > 1 {
        let expected = "post_processor: a template with the text once";
        return Err((expected.into(), "the text several times".into()));
    }
    for piece in pieces {
        let special = piece.get("SpecialToken").map(|token| &token["id"]);
        let sequence = piece.get("Sequence").map(|sequence| &sequence["id"]);
        if !(special.is_some_and(defined) || sequence.is_some_and(|id| id == "A")) {
            let expected = "post_processor: a template of the text and of tokens that it defines";
            return Err((expected.into(), piece.to_string()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn with(section: &str, value: Value) -> Result<Checked, Wrong> {
        let mut file = json!({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}});
        file[section] = value;
        read(&file.to_string())
    }

    #[test]
    fn unknown_parts_are_named() {
        with("normalizer", Value::Null).unwrap();
        with("normalizer", json!({"type": "Sequence", "normalizers": [{"type": "NFC"}]})).unwrap();
        let nested = json!({"type": "Sequence", "normalizers": [{"type": "Precompiled"}]});
        assert_eq!(with("normalizer", nested).unwrap_err().1, "`Precompiled`");
        assert_eq!(with("pre_tokenizer", json!({"type": "FixedLength"})).unwrap_err().1, "`FixedLength`");
        assert_eq!(with("model", json!({"type": "WordPiece"})).unwrap_err().1, "`WordPiece`");
        with("model", json!({"type": "BPE", "dropout": 0.1})).unwrap_err();
        with("pre_tokenizer", json!([1])).unwrap_err();
        with("pre_tokenizer", json!("ByteLevel")).unwrap_err();
    }

    #[test]
    fn sections_have_bounds() {
        let part = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
        let many = |count: usize| json!({"type": "Sequence", "normalizers": vec![part.clone(); count]});
        with("normalizer", many(12)).unwrap();
        assert!(with("normalizer", many(13)).unwrap_err().1.contains("growth"));
        assert!(with("normalizer", many(33)).unwrap_err().0.contains("at most 32"));
        let long = json!({"type": "Prepend", "prepend": "x".repeat(MAX_SECTION)});
        assert!(with("normalizer", long).unwrap_err().0.contains("at most 65536 bytes"));
    }

    #[test]
    fn templates_ask_for_what_they_define() {
        let template = |piece: Value| {
            let tokens = json!({"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}});
            let pieces = [piece, json!({"Sequence": {"id": "A", "type_id": 0}})];
            with(
                "post_processor",
                json!({"type": "TemplateProcessing", "single": pieces, "special_tokens": tokens}),
            )
        };
        template(json!({"SpecialToken": {"id": "<s>", "type_id": 0}})).unwrap();
        template(json!({"SpecialToken": {"id": "</s>", "type_id": 0}})).unwrap_err();
        template(json!({"Sequence": {"id": "B", "type_id": 0}})).unwrap_err();
    }
}
