//! tokenizer.json, read by Hugging Face's `tokenizers` crate. Byte-level vocabularies in other files are also converted
//! to the crate's tokenizer (see [`byte_level`]).

pub(super) mod byte_level;
mod check;
mod decoder;
mod folder;
mod merge_steps;
mod pieces;
mod sizes;
mod wrong;

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{PreTokenizedString, PreTokenizer};

use self::check::Checked;
use self::decoder::Decoding;
use self::merge_steps::Rules;
use super::{Stretch, TextStream, TokenBytes, Tokenizer, label};
use crate::files::{Beside, printable};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::threads;

pub(super) use self::folder::{Model, Type, ranks, sentencepiece};

/// A tokenizer of the `tokenizers` crate.
pub(super) struct HfTokenizer {
    inner: tokenizers::Tokenizer,
    /// The same tokenizer without special tokens, created at first use.
    plain: OnceLock<tokenizers::Tokenizer>,
    checked: Checked,
    special: HashSet<u32>,
    bos: Option<u32>,
    ends: Vec<u32>,
    /// A note about how the file is read, if the file alone does not determine it.
    note: Option<String>,
    /// The text at which CodeLlama's tokenizer splits a prompt for infilling. Infilling is not supported: a prompt with
    /// this text is an error.
    fill: Option<String>,
    /// The merge rules of the model, created when they are first shown.
    rules: OnceLock<Rules>,
    /// Whether the rank of a merge is the id of its result.
    by_id: bool,
}

/// Reads the text of a tokenizer.json found at `place`, with the settings of the files beside it.
///
/// # Errors
/// Returns [`Error::Model`] if it is damaged or has an unsupported part.
pub(super) fn parse(text: &str, place: &str, beside: Option<&Beside>) -> Result<HfTokenizer> {
    let wrong = |(expected, found): (String, String)| {
        Error::model("the tokenizer cannot be read")
            .at(place)
            .expected(expected)
            .found(printable(&found))
            .next("fetch the file again, give another one with --tokenizer, or run the model on token ids")
    };
    let checked = check::read(text).map_err(wrong)?;
    if checked.cuts_as_gpt2 {
        compile_expression();
    }
    let loaded = guarded(|| tokenizers::Tokenizer::from_bytes(text)).and_then(|mut inner| {
        // A text must not be silently truncated or padded.
        inner.with_truncation(None).map_err(|error| error.to_string())?;
        inner.with_padding(None);
        Ok(inner)
    });
    let inner = loaded.map_err(|error| wrong(("a valid tokenizer.json".into(), error)))?;
    let tokenizer = match beside {
        None => HfTokenizer::new(inner, checked),
        Some(beside) => folder::json(inner, checked, beside),
    };
    tokenizer.map_err(|error| wrong(("a valid tokenizer.json".into(), error)))
}

/// Makes the crate compile GPT-2's expression, which happens once. The compilation runs on another thread while the
/// file is read, because it takes as long as reading a small file. If no thread can be started, the first text triggers
/// the compilation.
fn compile_expression() {
    threads::ahead(|| {
        let _ = ByteLevel::default().pre_tokenize(&mut PreTokenizedString::from("a"));
    });
}

/// The special token that encoding adds before a text, if any. It is the first token of the empty text, and a text of
/// one letter must begin with it too. If that text does not, the token is an end token.
fn leading_special(inner: &tokenizers::Tokenizer) -> std::result::Result<Option<u32>, String> {
    let first = |text: &str| -> std::result::Result<_, String> {
        let encoding = guarded(|| inner.encode(text, true))?;
        let special = encoding.get_special_tokens_mask().first() == Some(&1);
        Ok(encoding.get_ids().first().copied().filter(|_| special))
    };
    let (empty, letter) = (first("")?, first("a").unwrap_or(None));
    Ok(empty.filter(|_| empty == letter))
}

/// Runs a part of the `tokenizers` crate. On some damaged files the crate panics instead of returning an error, for
/// example with a merge that is longer than every token.
fn guarded<T>(run: impl FnOnce() -> tokenizers::Result<T>) -> std::result::Result<T, String> {
    quiet::install();
    match quiet::silenced(|| catch_unwind(AssertUnwindSafe(run))) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("contents that contradict each other".into()),
    }
}

/// Keeps panics from being printed if they are caught and reported as errors.
mod quiet {
    use std::cell::Cell;
    use std::panic::{set_hook, take_hook};
    use std::sync::Once;

    thread_local! {
        static SILENT: Cell<bool> = const { Cell::new(false) };
    }

    /// Installs a panic hook that forwards everything to the previous hook, except from a silenced thread.
    pub(super) fn install() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            let before = take_hook();
            set_hook(Box::new(move |panic| {
                if !SILENT.get() {
                    before(panic);
                }
            }));
        });
    }

    pub(super) fn silenced<T>(run: impl FnOnce() -> T) -> T {
        SILENT.set(true);
        let result = run();
        SILENT.set(false);
        result
    }
}

impl HfTokenizer {
    /// Wraps the tokenizer that the crate created from a file.
    fn new(inner: tokenizers::Tokenizer, checked: Checked) -> std::result::Result<Self, String> {
        let bos = leading_special(&inner)?;
        // A token that was added as special stays special, even if it is added again without this flag.
        let added = inner.get_added_vocabulary();
        let special = added.get_added_tokens_decoder().iter();
        let special =
            special.filter(|(_, token)| added.is_special_token(&token.content)).map(|(id, _)| *id).collect();
        let (plain, rules) = (OnceLock::new(), OnceLock::new());
        let (ends, note, fill) = (Vec::new(), None, None);
        Ok(Self { inner, plain, checked, special, bos, ends, note, fill, rules, by_id: false })
    }

    /// The crate's tokenizer that reads special tokens, or if `plain` is set, the one that does not.
    fn inner(&self, plain: bool) -> &tokenizers::Tokenizer {
        if !plain {
            return &self.inner;
        }
        self.plain.get_or_init(|| {
            let mut inner = self.inner.clone();
            inner.set_encode_special_tokens(true);
            inner
        })
    }

    /// Checks that normalizing `text` does not make it too long.
    fn check(&self, text: &str) -> Result<()> {
        self.checked.growth.check(text.len()).map_err(|(expected, found)| {
            Error::prompt("the text would grow too long when it is normalized")
                .expected(expected)
                .found(found)
                .next("give a shorter text, another tokenizer with --tokenizer, or token ids")
        })
    }

    /// The ids of `text`. If `added` is set, the post-processor's tokens are included.
    fn ids(&self, text: &str, plain: bool, added: bool) -> Result<Vec<u32>> {
        self.check(text)?;
        if let Some(fill) = self.fill.as_ref().filter(|fill| !plain && text.contains(fill.as_str())) {
            return Err(Error::prompt("CodeLlama's infilling is not supported")
                .expected(format!("a text without {fill}"))
                .found(format!("{fill} in the text"))
                .next("write the prompt with ▁<PRE>, ▁<SUF> and ▁<MID>, or give token ids"));
        }
        let long = text.len() > pieces::LENGTH;
        let Some(blanks) = long.then(|| pieces::blanks(&self.inner)).flatten() else {
            return Ok(self.whole(text, 0, plain, added)?.get_ids().to_vec());
        };
        let (mut ids, mut after, mut place) = (Vec::new(), Vec::new(), 0);
        let inside = pieces::Inside::of(&self.inner);
        for piece in pieces::of(text, pieces::LENGTH, blanks, inside.as_ref()) {
            let encoding = self.whole(piece, place, plain, added && place == 0)?;
            // The post-processor's tokens after the first piece belong after the last piece.
            let own = encoding.get_special_tokens_mask().iter().rposition(|&special| special == 0);
            let (first, rest) = encoding.get_ids().split_at(own.map_or(0, |last| last + 1));
            ids.extend_from_slice(first);
            after.extend_from_slice(rest);
            place += piece.len();
        }
        ids.append(&mut after);
        Ok(ids)
    }

    /// The crate's encoding of a text that begins at `place` in a longer one.
    fn whole(&self, text: &str, place: usize, plain: bool, added: bool) -> Result<tokenizers::Encoding> {
        let inner = self.inner(plain);
        let encoding = guarded(|| inner.encode(text, added)).map_err(|error| {
            Error::prompt("the text cannot be split into tokens")
                .expected("text that the model's vocabulary covers")
                .found(printable(&error))
                .next("remove the characters that the vocabulary lacks, or give token ids")
        })?;
        if self.checked.drops_unknown {
            check_covered(text, encoding.get_offsets(), place)?;
        }
        Ok(encoding)
    }
}

impl Tokenizer for HfTokenizer {
    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.ids(text, false, true)
    }

    fn encode_plain(&self, text: &str) -> Result<Vec<u32>> {
        self.ids(text, true, false)
    }

    fn merges(&self, text: &str, plain: bool) -> Result<Option<Vec<Stretch>>> {
        merge_steps::stretches(self, text, plain)
    }

    fn encode_marked(&self, text: &str) -> Result<Vec<u32>> {
        self.ids(text, false, false)
    }

    fn specials(&self) -> Vec<String> {
        self.special.iter().filter_map(|&id| self.inner.id_to_token(id)).collect()
    }

    fn bos(&self) -> Option<u32> {
        self.bos
    }

    fn ends(&self) -> Vec<u32> {
        self.ends.clone()
    }

    fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    fn longest(&self) -> usize {
        (0..self.checked.ids).map(|id| self.label(id).len()).max().unwrap_or(0)
    }

    fn label(&self, id: u32) -> String {
        match self.inner.id_to_token(id) {
            None => label::unknown(id),
            Some(name) if self.special.contains(&id) => name,
            Some(name) => label::of_bytes(&self.checked.decoder.bytes(&name)),
        }
    }

    fn stream(&self) -> TextStream<'_> {
        TextStream::new(Stream { tokenizer: self, decoding: Decoding::new(&self.checked.decoder) })
    }
}

/// Checks that the tokens with these byte ranges cover every character except white space. The text begins at `place`
/// in a longer one.
fn check_covered(text: &str, offsets: &[(usize, usize)], place: usize) -> Result<()> {
    let mut covered = vec![false; text.len()];
    for &(from, to) in offsets {
        if let Some(range) = covered.get_mut(from..to) {
            range.fill(true);
        }
    }
    let missing = text.char_indices().find(|&(at, character)| {
        !character.is_whitespace() && !covered[at..at + character.len_utf8()].contains(&true)
    });
    let Some((at, character)) = missing else { return Ok(()) };
    Err(Error::prompt(format!("the vocabulary has no token for {character:?}"))
        .at(format!("byte {} of the text", place + at))
        .expected("characters that the vocabulary covers; it has no token for unknown characters")
        .found(format!("U+{:04X}", u32::from(character)))
        .next("leave the character out, or give token ids"))
}

/// Decodes one text.
struct Stream<'a> {
    tokenizer: &'a HfTokenizer,
    decoding: Decoding<'a>,
}

impl TokenBytes for Stream<'_> {
    fn bytes(&mut self, id: u32) -> Vec<u8> {
        match self.tokenizer.inner.id_to_token(id) {
            Some(name) if !self.tokenizer.special.contains(&id) => self.decoding.push(&name),
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{data, decode};
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn special(id: u32, content: &str) -> Value {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    }

    pub(super) fn template(token: &str, id: u32) -> Value {
        json!({"type": "TemplateProcessing", "pair": [],
            "single": [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {token: {"id": token, "ids": [id], "tokens": [token]}}})
    }

    /// A tokenizer like Llama 3's: byte-level BPE, special tokens last.
    pub(super) fn byte_level() -> Value {
        let mut vocab: serde_json::Map<String, Value> = ["!", "a", "b", "Ġ", "â", "Ĥ", "¬", "Ġa", "âĤ"]
            .iter()
            .enumerate()
            .map(|(id, token)| (token.to_string(), id.into()))
            .collect();
        vocab.insert("ab".into(), 9.into());
        json!({"version": "1.0", "truncation": null, "padding": null,
            "added_tokens": [special(10, "<|begin|>"), special(11, "<|end|>")],
            "normalizer": null,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "post_processor": template("<|begin|>", 10),
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false, "byte_fallback": false,
                "vocab": vocab, "merges": [["Ġ", "a"], ["â", "Ĥ"], ["a", "b"]]}})
    }

    /// A tokenizer like Llama 2's: `▁` for spaces and before a text, byte tokens for missing characters.
    pub(super) fn pieces() -> Value {
        let mut vocab = serde_json::Map::new();
        for token in ["<unk>", "<s>", "</s>"] {
            vocab.insert(token.into(), vocab.len().into());
        }
        for byte in 0..=255 {
            vocab.insert(format!("<0x{byte:02X}>"), vocab.len().into());
        }
        for token in ["▁", "a", "b", "▁a", "ab"] {
            vocab.insert(token.into(), vocab.len().into());
        }
        json!({"version": "1.0", "truncation": null, "padding": null,
            "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
            "pre_tokenizer": null, "post_processor": template("<s>", 1),
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
            "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
                "vocab": vocab, "merges": ["▁ a", "a b"]}})
    }

    pub(super) fn load(file: &Value) -> HfTokenizer {
        parse(&file.to_string(), "tokenizer.json", None).unwrap()
    }

    #[test]
    fn byte_level_tokens() {
        let tokenizer = load(&byte_level());
        assert_eq!((tokenizer.bos(), tokenizer.vocab_size()), (Some(10), 12));
        let ids = tokenizer.encode("ab a€!").unwrap();
        assert_eq!(ids, [10, 9, 7, 8, 6, 0]);
        let labels: Vec<_> = ids.iter().map(|&id| tokenizer.label(id)).collect();
        assert_eq!(labels, ["<|begin|>", "ab", " a", "<0xE2><0x82>", "<0xAC>", "!"]);
        assert_eq!(tokenizer.label(99), "#99");
        let mut stream = tokenizer.stream();
        let parts: Vec<_> = ids.iter().map(|&id| stream.push(id)).collect();
        assert_eq!(parts, ["", "ab", " a", "", "€", "!"]);
    }

    #[test]
    fn a_character_that_would_be_dropped_is_an_error() {
        let text = load(&byte_level()).encode("ab zoo").unwrap_err().to_string();
        assert!(text.contains("no token for 'z'") && text.contains("byte 3"), "{text}");
    }

    #[test]
    fn sentencepiece_tokens() {
        let tokenizer = load(&pieces());
        let ids = tokenizer.encode("a aé").unwrap();
        assert_eq!(ids, [1, 262, 262, 3 + 0xc3, 3 + 0xa9]);
        assert_eq!([262, 3 + 0xc3, 2].map(|id| tokenizer.label(id)), [" a", "<0xC3>", "</s>"]);
        assert_eq!(decode(&tokenizer, &ids), "a aé");
        assert_eq!(tokenizer.encode("").unwrap(), [1]);
    }

    #[test]
    fn an_end_token_is_no_beginning() {
        let mut file = byte_level();
        file["post_processor"]["single"].as_array_mut().unwrap().reverse();
        assert_eq!(load(&file).bos(), None);
        file["post_processor"] = Value::Null;
        assert_eq!(load(&file).bos(), None);
    }

    #[test]
    fn truncation_and_padding_are_off() {
        let mut file = byte_level();
        file["truncation"] =
            json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
        file["padding"] = json!({"strategy": {"Fixed": 100}, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "!"});
        assert_eq!(load(&file).encode("ab a").unwrap(), [10, 9, 7]);
    }

    /// The crate panics here on a slice: its buffer is as long as the longest token.
    #[test]
    fn a_panic_of_the_crate_is_an_error() {
        let mut file = byte_level();
        file["added_tokens"] = json!([]);
        file["post_processor"] = Value::Null;
        file["model"]["merges"] = json!([["âĤ", "ab"]]);
        let text = parse(&file.to_string(), "tokenizer.json", None).err().unwrap().to_string();
        assert!(text.contains("contradict"), "{text}");
    }

    #[test]
    fn every_truncation_is_an_error() {
        let text = byte_level().to_string();
        for end in (0..text.len()).filter(|&end| text.is_char_boundary(end)) {
            assert!(parse(&text[..end], "tokenizer.json", None).is_err());
        }
    }

    fn check_against_the_crate(tokenizer: &HfTokenizer, text: &str) {
        let ids = tokenizer.encode(text).unwrap();
        assert_eq!(decode(tokenizer, &ids), tokenizer.inner.decode(&ids, true).unwrap());
    }

    proptest! {
        #[test]
        fn text_is_what_the_crate_decodes(text in "[ab é€🦙]{0,12}") {
            check_against_the_crate(&load(&pieces()), &text);
            let known: String = text.chars().filter(|c| "ab €".contains(*c)).collect();
            check_against_the_crate(&load(&byte_level()), &known);
        }

        #[test]
        fn mutated_files_never_panic(at: prop::sample::Index, byte in 0x20_u8..0x7f, swap: prop::sample::Index) {
            for file in [byte_level(), pieces()] {
                let mut bytes = file.to_string().into_bytes();
                let (at, swap) = (at.index(bytes.len()), swap.index(bytes.len()));
                bytes[at] = byte;
                bytes.swap(at, swap);
                let text = String::from_utf8_lossy(&bytes).into_owned();
                if let Ok(tokenizer) = parse(&text, "tokenizer.json", None) {
                    let _ = tokenizer.encode("ab a€! <s>").map(|ids| decode(&tokenizer, &ids));
                    (0..300).for_each(|id| drop(tokenizer.label(id)));
                }
            }
        }
    }

    #[test]
    fn the_words_of_a_tiny_model() {
        let Some(folder) = data() else { return };
        let text = std::fs::read_to_string(folder.join("tiny-llama-float/tokenizer.json")).unwrap();
        let tokenizer = parse(&text, "tokenizer.json", None).unwrap();
        assert_eq!(tokenizer.encode("hello world").unwrap(), [8, 9]);
        assert_eq!((tokenizer.bos(), tokenizer.vocab_size()), (None, 32));
        check_against_the_crate(&tokenizer, "hello world : json");
    }
}
