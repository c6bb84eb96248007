//! The settings of a tokenizer in a Hugging Face directory outside the tokenizer's own file: tokenizer_config.json,
//! special_tokens_map.json, added_tokens.json, and the class named in config.json.
//!
//! The order of precedence is that of `PreTrainedTokenizerBase._from_pretrained` in transformers 5.24:
//!
//! - If tokenizer_config.json has `added_tokens_decoder`, it is the only list of added tokens. special_tokens_map.json
//!   and added_tokens.json are then not read.
//! - Otherwise special_tokens_map.json overrides the names in tokenizer_config.json, and the tokens in tokenizer.json
//!   override those of added_tokens.json.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use serde_json::{Map, Value};

use super::{exists, printable, read_text};
use llama_trace_core::error::{Error, Result};

/// The maximum size of these files in bytes. A file with all added tokens has some hundred kilobytes.
const MAX_CONFIG: u64 = 16 << 20;
/// The maximum size in bytes of a tokenizer.json that is read to determine its class.
const MAX_JSON: u64 = 64 << 20;

/// The names of tokens that every tokenizer may have, in the order in which transformers adds them.
const NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// The field of the other special tokens, and its name in transformers 4.
const EXTRA: &str = "extra_special_tokens";
const ADDITIONAL: &str = "additional_special_tokens";
/// The field that marks an object in tokenizer_config.json as an `AddedToken`.
const TYPE: &str = "__type";
/// The defaults of transformers' `LlamaTokenizer` for names that no file sets.
const LLAMA: [(&str, &str); 3] = [("unk_token", "<unk>"), ("bos_token", "<s>"), ("eos_token", "</s>")];
/// The defaults of `Qwen2Tokenizer`.
const QWEN2: [(&str, &str); 3] =
    [("unk_token", "<|endoftext|>"), ("eos_token", "<|endoftext|>"), ("pad_token", "<|endoftext|>")];

/// The tokens for infilling that `CodeLlamaTokenizer` adds, by their names and default texts.
const CODE_LLAMA: [(&str, &str); 5] = [
    ("prefix_token", "▁<PRE>"),
    ("middle_token", "▁<MID>"),
    ("suffix_token", "▁<SUF>"),
    ("eot_token", "▁<EOT>"),
    ("fill_token", "<FILL_ME>"),
];
/// The other tokenizer classes of transformers 5.24 that have rules of their own, without "Tokenizer". This program
/// does not follow these rules. `GemmaTokenizer` is not among them: it makes what the tokenizer.json of every Gemma has.
const OTHERS: &str = "Albert Auto Bart Barthez Bartpho Basic BertGeneration BertJapanese Bert Bertweet BigBird BioGpt \
    BlenderbotSmall Blenderbot ByT5 CLIP CTRL Camembert Canine Character Clvp CodeGen Cohere ConvBert CpmAnt Cpm \
    DPRContextEncoder DPRQuestionEncoder DPRReader Deberta DebertaV2 Dia DistilBert Esm Esmc FNet FSMT \
    FastSpeech2Conformer Flaubert Funnel GPT2 GPTNeoXJapanese GPTNeoX GPTSw3 Herbert LED Lasr LayoutLMv2 \
    LayoutLMv3 LayoutXLM Luke Lxmert M2M100 MBart50 MBart MLuke MPNet Marian MarkupLM Mecab Mgpstr MobileBert Mvp \
    MyT5 Nllb Nougat OpenAIGPT PLBart Parakeet Pegasus Perceiver Phobert Pop2Piano ProphetNet Qwen3_5 Rag Reformer \
    RemBert RoCBert RoFormer Roberta SeamlessM4T Siglip2 Siglip Speech2Text SpeechT5 Splinter SqueezeBert T5 Tapas \
    Tipsv2 Udop VideoPrism Vits Wav2Vec2CTC Wav2Vec2PhonemeCTC Whisper Wordpiece XGLM XLMRoberta XLM XLNet";

/// The types of models for which transformers ignores the declared class and reads tokenizer.json as it is.
const BACKEND: &str =
    "ernie4_5 glm glm4 granite ministral ministral3 mistral mistral3 olmo2 olmo3 phi3 stablelm";

/// A token that is found verbatim in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Added {
    pub(crate) content: String,
    /// Whether it is found only as a whole word.
    pub(crate) single_word: bool,
    /// Whether the token includes the white space before it.
    pub(crate) lstrip: bool,
    /// Whether the token includes the white space after it.
    pub(crate) rstrip: bool,
    /// Whether it is searched in the normalized text.
    pub(crate) normalized: bool,
    /// Whether it is a special token, not text.
    pub(crate) special: bool,
}

/// The tokenizer class of transformers that reads the directory. Classes that this program treats alike share a
/// variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// `TokenizersBackend`, which uses tokenizer.json unchanged.
    Backend,
    /// `LlamaTokenizer`, which uses the vocabulary and the merges, but its own rules for splitting texts.
    Llama,
    /// `CodeLlamaTokenizer`, which does the same and adds tokens for infilling.
    CodeLlama,
    /// `Qwen2Tokenizer`, which has the rules of Qwen2.
    Qwen2,
}

/// The settings from the files beside a tokenizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Beside {
    /// The class that reads the tokenizer.
    pub(crate) class: Class,
    /// The declared class, if transformers follows its rules and this program does not.
    pub(crate) other: Option<String>,
    /// The added tokens by their ids in the files. They are added in this order and get the next free ids.
    pub(crate) added: BTreeMap<u64, Added>,
    /// Whether `added` is complete: it comes from `added_tokens_decoder`.
    pub(crate) listed: bool,
    /// The named tokens: `bos_token` and so on.
    pub(crate) named: Vec<(String, Added)>,
    /// The names that a file sets to null: tokens that the tokenizer does not have.
    pub(crate) absent: Vec<String>,
    /// The other special tokens. `None` if no file lists any.
    pub(crate) extra: Option<Vec<Added>>,
    /// The tokens that special_tokens_map.json lists under transformers 4's name. They are used only if `extra` is
    /// `None`.
    pub(crate) additional: Option<Vec<Added>>,
    /// Whether the text after each added token is tokenized as a new text (`legacy`).
    pub(crate) legacy: Option<bool>,
    /// Whether a space is added at the beginning of a text (`add_prefix_space`).
    pub(crate) prefix_space: Option<bool>,
    /// Whether a token is added at the beginning of a text, and whether one is added at its end. `None` if no file sets
    /// either.
    pub(crate) around: Option<(bool, bool)>,
    /// `chat_template` of tokenizer_config.json.
    pub(crate) template: Option<Value>,
}

/// The contents of the files.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Texts<'a> {
    /// tokenizer_config.json.
    pub(crate) config: Option<&'a str>,
    /// special_tokens_map.json.
    pub(crate) names: Option<&'a str>,
    /// added_tokens.json.
    pub(crate) added: Option<&'a str>,
}

impl Beside {
    /// Reads the files in `folder`. Returns `None` if they hold no settings of a tokenizer.
    ///
    /// # Errors
    /// Returns [`Error::Model`] if a file is damaged.
    pub(crate) fn read(folder: &Path) -> Result<Option<Self>> {
        let text = |name: &str, limit| {
            let path = folder.join(name);
            if exists(&path) { read_text(&path, limit).map(Some) } else { Ok(None) }
        };
        let [config, names, added] =
            ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"];
        let [config, names, added] =
            [text(config, MAX_CONFIG)?, text(names, MAX_CONFIG)?, text(added, MAX_CONFIG)?];
        // An unreadable config.json is reported when the model is opened.
        let model = text("config.json", MAX_CONFIG).ok().flatten();
        let model: Map<String, Value> =
            model.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        let has_class =
            model.contains_key("tokenizer_class") || matches!(model_type(&model), Some("qwen2" | "qwen3"));
        if config.is_none() && names.is_none() && added.is_none() && !has_class {
            return Ok(None);
        }
        let texts = Texts { config: config.as_deref(), names: names.as_deref(), added: added.as_deref() };
        let byte_level = || {
            let json = text("tokenizer.json", MAX_JSON).ok().flatten();
            json.is_some_and(|text| text.contains("\"ByteLevel\""))
        };
        Self::parse(texts, &model, byte_level, &folder.display().to_string()).map(Some)
    }

    /// Parses the contents of files in the folder `place`. `model` holds the fields of its config.json. `byte_level`
    /// returns whether tokenizer.json belongs to a byte-level tokenizer.
    ///
    /// # Errors
    /// The errors of [`Beside::read`].
    pub(crate) fn parse(
        texts: Texts<'_>,
        model: &Map<String, Value>,
        byte_level: impl FnOnce() -> bool,
        place: &str,
    ) -> Result<Self> {
        let object = |name: &str, text: Option<&str>| -> Result<Map<String, Value>> {
            let read = text.map_or_else(|| Ok(Map::new()), serde_json::from_str);
            read.map_err(|error| wrong(place, name, "a JSON object", &error.to_string()))
        };
        let mut fields = object("tokenizer_config.json", texts.config)?;
        let (class, other) = class(&fields, model, byte_level);
        let template = fields.remove("chat_template");
        let bad = |(name, value): (String, Value)| {
            wrong(place, &name, "texts, and objects with `content` and flags", &value.to_string())
        };
        // transformers 4's "additional" tokens are called "extra" from version 5 on.
        if list_of(&fields, EXTRA).is_none_or(Vec::is_empty)
            && let Some(list) = fields.remove(ADDITIONAL)
        {
            fields.insert(EXTRA.into(), list);
        }
        let mut added = BTreeMap::new();
        let listed = fields.get("added_tokens_decoder").is_some_and(|list| !list.is_null());
        if listed {
            let list = &fields["added_tokens_decoder"];
            let read = |(id, token): (&String, &Value)| Some((id.parse().ok()?, object_token(token, None)?));
            let read = list.as_object().and_then(|list| list.iter().map(read).collect::<Option<_>>());
            added = read.ok_or_else(|| bad(("added_tokens_decoder".into(), list.clone())))?;
        } else {
            for (name, value) in object("special_tokens_map.json", texts.names)? {
                let value = match (object_token(&value, Some(true)), value) {
                    (Some(token), _) => json(&token),
                    (None, Value::Array(more)) if name == EXTRA => {
                        let known = list_of(&fields, EXTRA).cloned().unwrap_or_default();
                        let new: Vec<_> = more.into_iter().filter(|token| !known.contains(token)).collect();
                        [known, new].concat().into()
                    }
                    (None, value) => value,
                };
                fields.insert(name, value);
            }
            let names = NAMES.iter().filter_map(|name| fields.get(*name));
            let extra = list_of(&fields, EXTRA).into_iter().flatten();
            let special: HashSet<&str> = names.chain(extra).filter_map(text_of).collect();
            for (content, id) in object("added_tokens.json", texts.added)? {
                let id = id.as_u64().ok_or_else(|| {
                    wrong(place, "added_tokens.json", "an id for each token", &id.to_string())
                })?;
                let special = special.contains(content.as_str());
                added.insert(id, Added { normalized: !special, special, ..Added::new(content) });
            }
        }
        let named = named(&mut fields, class).map_err(bad)?;
        let absent =
            fields.iter().filter(|(_, value)| value.is_null()).map(|(name, _)| name.clone()).collect();
        let tokens = |name: &str| {
            let Some(list) = list_of(&fields, name) else { return Ok(None) };
            let tokens: Option<Vec<Added>> = list.iter().map(token).collect();
            tokens.map(Some).ok_or_else(|| bad((name.into(), list.clone().into())))
        };
        let (extra, additional) = (tokens(EXTRA)?, tokens(ADDITIONAL)?);
        let flag = |name: &str| fields.get(name).and_then(Value::as_bool);
        let around = [flag("add_bos_token"), flag("add_eos_token")];
        let around = match class {
            Class::CodeLlama => [around[0].or(Some(true)), around[1]],
            _ => around,
        };
        Ok(Self {
            class,
            other,
            added,
            listed,
            named,
            absent,
            extra,
            additional,
            legacy: flag("legacy"),
            prefix_space: flag("add_prefix_space"),
            around: around.iter().any(Option::is_some).then(|| {
                let [bos, eos] = around.map(|flag| flag.unwrap_or(false));
                (bos, eos)
            }),
            template,
        })
    }

    /// Returns whether a file other than the tokenizer's own defines tokens.
    pub(crate) fn names_tokens(&self) -> bool {
        !self.added.is_empty() || !self.named.is_empty() || self.extra.is_some() || self.additional.is_some()
    }
}

impl Added {
    /// A special token as transformers creates it from a string.
    pub(crate) fn new(content: impl Into<String>) -> Self {
        Self {
            content: content.into(),
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: false,
            special: true,
        }
    }
}

fn wrong(place: &str, name: &str, expected: &str, found: &str) -> Error {
    Error::model("the tokenizer's configuration cannot be read")
        .at(format!("{name} in {place}"))
        .expected(expected)
        .found(printable(&found.chars().take(300).collect::<String>()))
        .next("fetch the file again, or give another tokenizer with --tokenizer")
}

fn model_type(model: &Map<String, Value>) -> Option<&str> {
    model.get("model_type").and_then(Value::as_str)
}

/// The class that `AutoTokenizer` selects for the directory, and its name if this program does not follow the rules of
/// the class.
fn class(
    fields: &Map<String, Value>,
    model: &Map<String, Value>,
    byte_level: impl FnOnce() -> bool,
) -> (Class, Option<String>) {
    let declared = fields.get("tokenizer_class").or_else(|| model.get("tokenizer_class"));
    let declared = declared.and_then(Value::as_str).unwrap_or_default();
    let name = declared.strip_suffix("Fast").unwrap_or(declared);
    let class = match (model_type(model), name) {
        (Some(model), _) if BACKEND.split_ascii_whitespace().any(|known| known == model) => Class::Backend,
        (Some("qwen2"), _) | (Some("qwen3"), "") => Class::Qwen2,
        (_, "Qwen2Tokenizer") => Class::Qwen2,
        (_, "CodeLlamaTokenizer") => Class::CodeLlama,
        (_, "LlamaTokenizer") if !byte_level() => Class::Llama,
        (_, name) => {
            let short = name.strip_suffix("Tokenizer").unwrap_or_default();
            let other = !short.is_empty() && OTHERS.split_ascii_whitespace().any(|known| known == short);
            return (Class::Backend, other.then(|| name.to_owned()));
        }
    };
    (class, None)
}

/// The named tokens: first the common ones, then those of this model only.
fn named(
    fields: &mut Map<String, Value>,
    class: Class,
) -> std::result::Result<Vec<(String, Added)>, (String, Value)> {
    let own = match class {
        Class::Backend => &[][..],
        Class::Llama | Class::CodeLlama => &LLAMA,
        Class::Qwen2 => &QWEN2,
    };
    let infilling = if class == Class::CodeLlama { &CODE_LLAMA[..] } else { &[] };
    for (name, token) in own.iter().chain(infilling) {
        fields.entry(*name).or_insert_with(|| (*token).into());
    }
    let infilling = infilling.iter().map(|(name, _)| name);
    let usual: Vec<String> = NAMES.iter().chain(infilling).map(|name| (*name).to_owned()).collect();
    let is_own = |(name, value): &(&String, &Value)| {
        name.ends_with("_token") && !usual.contains(name) && token(value).is_some()
    };
    let own: Vec<String> = fields.iter().filter(is_own).map(|(name, _)| name.clone()).collect();
    let mut named = Vec::new();
    for name in usual.iter().chain(&own).cloned() {
        match fields.get(&name) {
            None | Some(Value::Null) => {}
            Some(value) => match token(value) {
                Some(token) => named.push((name, token)),
                None => return Err((name, value.clone())),
            },
        }
    }
    if let Some(Value::Object(more)) = fields.get(EXTRA) {
        for (name, value) in more {
            named.push((name.clone(), token(value).ok_or_else(|| (name.clone(), value.clone()))?));
        }
    }
    Ok(named)
}

fn list_of<'f>(fields: &'f Map<String, Value>, name: &str) -> Option<&'f Vec<Value>> {
    fields.get(name)?.as_array()
}

/// A token given as a string or as an object. An object marked as an `AddedToken` has its own flags; any other is
/// special.
fn token(value: &Value) -> Option<Added> {
    match value {
        Value::String(text) => Some(Added::new(text)),
        value => object_token(value, value.get(TYPE).is_none().then_some(true)),
    }
}

/// A token from the fields of transformers' `AddedToken`; `special` overrides its own flag.
fn object_token(value: &Value, special: Option<bool>) -> Option<Added> {
    let flag = |name: &str| value.get(name).and_then(Value::as_bool);
    let special = special.or_else(|| flag("special")).unwrap_or(false);
    Some(Added {
        content: value.get("content")?.as_str()?.to_owned(),
        single_word: flag("single_word").unwrap_or(false),
        lstrip: flag("lstrip").unwrap_or(false),
        rstrip: flag("rstrip").unwrap_or(false),
        normalized: flag("normalized").unwrap_or(!special),
        special,
    })
}

/// The text of a token. transformers does not look into an object marked as an `AddedToken` here.
fn text_of(value: &Value) -> Option<&str> {
    match value {
        Value::Object(fields) if !fields.contains_key(TYPE) => fields.get("content")?.as_str(),
        value => value.as_str(),
    }
}

/// A token as a JSON object.
fn json(token: &Added) -> Value {
    let Added { content, single_word, lstrip, rstrip, normalized, special } = token;
    serde_json::json!({"content": content, "single_word": single_word, "lstrip": lstrip, "rstrip": rstrip,
        "normalized": normalized, "special": special})
}
