//! The tokenizer that transformers 5.24 builds from a folder: the tokenizer's file, with the tokens of the files beside
//! it.
//!
//! `TokenizersBackend` uses tokenizer.json unchanged. `LlamaTokenizer` uses the vocabulary, the merges and the
//! post-processor, but its own rules for splitting texts. It adds `▁` only before the first stretch of a text;
//! transformers 4 and the `tokenizers` crate add one before every stretch after an added token. `Qwen2Tokenizer` also
//! replaces the rules for splitting texts, with Qwen2's expression. A tokenizer.model is converted
//! (`SentencePieceExtractor`, `SpmConverter.build_tokenizer_from_spm_proto`).

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::{
    AddedToken, Model as _, ModelWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper,
    Tokenizer as Inner,
};

use super::byte_level::{Cut, template};
use super::check::Checked;
use super::decoder::{ALPHABET, Decoder};
use super::sizes::{self, Growth, check_added};
use super::{HfTokenizer, guarded};
use crate::files::{Added, Beside, Class};

/// The contents of a tokenizer.model.
pub(in crate::tokenizer) struct Model {
    /// Text, score and type of each piece.
    pub(in crate::tokenizer) pieces: Vec<(String, f32, Type)>,
    /// The model's names for the unknown, beginning and end tokens, if it has these tokens.
    pub(in crate::tokenizer) names: [Option<String>; 3],
    pub(in crate::tokenizer) byte_fallback: bool,
    pub(in crate::tokenizer) dummy_prefix: bool,
    pub(in crate::tokenizer) remove_extra_spaces: bool,
}

/// The type of a piece, as far as the conversion needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tokenizer) enum Type {
    Normal,
    Control,
    User,
    Other,
}

/// The crate's tokenizer of a tokenizer.json, read by the rules of the folder's class.
pub(super) fn json(inner: Inner, checked: Checked, beside: &Beside) -> Result<HfTokenizer, String> {
    let extra = beside.extra.as_ref().or(beside.additional.as_ref());
    let extra = extra.map_or(&[][..], Vec::as_slice);
    if beside.class == Class::Backend {
        return complete(inner, checked, beside, beside.added.values().cloned(), extra, None);
    }
    let ModelWrapper::BPE(model) = inner.get_model() else {
        return Err("a model of another type than BPE, for this class of tokenizer".into());
    };
    // If no file lists all added tokens, the tokenizer's own tokens are used first, then those of added_tokens.json.
    let mut added = beside.added.clone();
    if !beside.listed {
        let own = inner.get_added_tokens_decoder();
        added.extend(own.into_iter().map(|(id, token)| (id.into(), ours(token))));
    }
    let (mut made, checked, name) = match beside.class {
        Class::Qwen2 => (qwen2(model.clone(), beside)?, of_qwen2(model, checked.ids), "Qwen2Tokenizer"),
        Class::Llama | Class::CodeLlama | Class::Backend => {
            let (pre_tokenizer, decoder) = llama(beside);
            let mut made = Inner::new(of_llama(model.clone(), beside));
            made.with_pre_tokenizer(Some(section::<PreTokenizerWrapper>(pre_tokenizer)?));
            let name = if beside.class == Class::CodeLlama { "CodeLlamaTokenizer" } else { "LlamaTokenizer" };
            (made, of_llama_checked(checked.ids, &decoder)?, name)
        }
    };
    made.with_post_processor(inner.get_post_processor().cloned());
    let same = rules(&inner) == rules(&made);
    // `CodeLlamaTokenizer` itself adds the beginning token. If there is a tokenizer.json, the settings of the other
    // files for it are ignored.
    let own =
        (beside.class == Class::CodeLlama).then(|| Beside { around: Some((true, false)), ..beside.clone() });
    let defaults = own.as_ref().map(|_| &[][..]);
    let mut tokenizer =
        complete(made, checked, own.as_ref().unwrap_or(beside), added.into_values(), extra, defaults)?;
    if beside.class == Class::Qwen2 {
        // This class adds its special tokens a second time, without their flags.
        let names = beside.named.iter().map(|(_, token)| token).chain(extra);
        let plain: Vec<AddedToken> = names.map(|token| theirs(Added::new(&token.content))).collect();
        guarded(|| tokenizer.inner.add_tokens(plain))?;
        tokenizer =
            HfTokenizer { ends: tokenizer.ends, ..HfTokenizer::new(tokenizer.inner, tokenizer.checked)? };
    }
    let note = format!(
        "tokenizer.json is read as {name} of transformers 5 reads it: with the file's vocabulary and merges, \
         but without the file's rules for splitting texts, which transformers 4 and the tokenizers library use"
    );
    Ok(HfTokenizer { note: (!same).then_some(note), ..tokenizer })
}

/// The rules by which a tokenizer normalizes and splits texts, as JSON for a comparison.
fn rules(inner: &Inner) -> String {
    let rules =
        serde_json::to_string(&(inner.get_normalizer(), inner.get_pre_tokenizer())).unwrap_or_default();
    // `trim_offsets` changes only the positions of tokens in the text, which are not needed.
    rules.replace("\"trim_offsets\":true", "\"trim_offsets\":false")
}

/// `model` with the rules of `Qwen2Tokenizer`.
fn qwen2(mut model: BPE, beside: &Beside) -> Result<Inner, String> {
    (model.unk_token, model.fuse_unk, model.byte_fallback, model.ignore_merges) = (None, false, false, false);
    let mut inner = Inner::new(model);
    let normalizer = section::<NormalizerWrapper>(json!({"type": "NFC"}))?;
    guarded(|| inner.with_normalizer(Some(normalizer)).map(|_| ()))?;
    let mut cut = Cut::Qwen2.section();
    if beside.prefix_space == Some(true) {
        cut["pretokenizers"][1]["add_prefix_space"] = true.into();
    }
    inner.with_pre_tokenizer(Some(section::<PreTokenizerWrapper>(cut)?));
    Ok(inner)
}

fn of_qwen2(model: &BPE, ids: u32) -> Checked {
    let covered = ALPHABET.iter().all(|letter| model.token_to_id(letter.encode_utf8(&mut [0; 4])).is_some());
    let growth = Growth::of([json!({"type": "NFC"})].iter(), 1);
    Checked { decoder: Decoder::ByteLevel, drops_unknown: !covered, ids, growth, cuts_as_gpt2: false }
}

/// A converted tokenizer.model, with the settings of the files beside it.
///
/// # Errors
/// Returns a description of what is wrong.
pub(in crate::tokenizer) fn sentencepiece(model: &Model, beside: &Beside) -> Result<HfTokenizer, String> {
    // Control pieces and user-defined pieces are found verbatim. A list in the folder replaces them.
    let is_added = |kind: Type| matches!(kind, Type::Control | Type::User);
    let own = model.pieces.iter().filter(|(.., kind)| is_added(*kind));
    let own = own.map(|(text, _, kind)| Added { special: *kind == Type::Control, ..Added::new(text) });
    let ids = model.pieces.len() as u32;
    if matches!(beside.class, Class::Llama | Class::CodeLlama) {
        let extra = beside.extra.clone().unwrap_or_else(|| own.collect());
        let vocab: Vocab = model.pieces.iter().map(|(text, ..)| text.clone()).zip(0..).collect();
        let mut merges = Vec::new();
        let mut pieces: Vec<_> = vocab.iter().collect();
        pieces.sort_unstable_by_key(|(_, id)| **id);
        for (text, _) in pieces {
            let cuts = text.char_indices().skip(1).map(|(at, _)| text.split_at(at));
            let both = cuts.filter(|(left, right)| vocab.contains_key(*left) && vocab.contains_key(*right));
            merges.extend(both.map(|(left, right)| (left.to_owned(), right.to_owned())));
        }
        let (pre_tokenizer, decoder) = llama(beside);
        let mut inner = Inner::new(of_llama(bpe(vocab, merges)?, beside));
        inner.with_pre_tokenizer(Some(section::<PreTokenizerWrapper>(pre_tokenizer)?));
        let checked = of_llama_checked(ids, &decoder)?;
        return complete(inner, checked, beside, beside.added.values().cloned(), &extra, Some(&[]));
    }
    let extra = beside.extra.clone().unwrap_or_else(|| own.filter(|token| token.special).collect());
    let (inner, checked) = backend(model, beside)?;
    // Each stretch between added tokens gets its own prefix only if these tokens are found in the unnormalized text.
    let added = beside.added.values().cloned();
    let added = added.map(|token| Added { normalized: token.normalized && !model.dummy_prefix, ..token });
    let names = ["unk_token", "bos_token", "eos_token"].into_iter().zip(&model.names);
    let defaults: Vec<_> = names.filter_map(|(name, text)| Some((name, text.clone()?))).collect();
    complete(inner, checked, beside, added, &extra, Some(&defaults))
}

/// A tokenizer of ranks without special tokens, completed with the special tokens of the files beside it. If these
/// files skip ids after the ranks, transformers fills the gaps.
///
/// # Errors
/// Returns a description of what is wrong.
pub(in crate::tokenizer) fn ranks(tokenizer: HfTokenizer, beside: &Beside) -> Result<HfTokenizer, String> {
    let base = u64::from(tokenizer.checked.ids);
    let last = beside.added.keys().next_back().copied().filter(|last| *last >= base);
    if last.is_some_and(|last| last - base >= sizes::MAX_ADDED.0 as u64) {
        return Err("added tokens with ids far above the ranks".into());
    }
    let fill = |id: u64| match beside.added.get(&id) {
        Some(token) => token.content.clone(),
        None => format!("<|reserved_token_{id}|>"),
    };
    let filled: Vec<String> = last.map_or_else(Vec::new, |last| (base..=last).map(fill).collect());
    let more = beside.extra.iter().flatten().filter(|token| !filled.contains(&token.content));
    let all: Vec<Added> =
        filled.iter().map(Added::new).chain(more.map(|token| Added::new(&token.content))).collect();
    let HfTokenizer { mut inner, checked, by_id, .. } = tokenizer;
    guarded(|| inner.add_tokens(all.into_iter().map(theirs)))?;
    let extra = beside.extra.as_ref().or(beside.additional.as_ref()).map_or(&[][..], Vec::as_slice);
    let made = complete(inner, checked, beside, beside.added.values().cloned(), extra, Some(&[]))?;
    Ok(HfTokenizer { by_id, ..made })
}

/// Adds `added` and the named tokens to `inner`. `defaults` has the named tokens of the tokenizer's own file, which are
/// used for names that the folder does not set. If `defaults` is given, the folder also decides which tokens are added
/// around a text.
fn complete(
    mut inner: Inner,
    mut checked: Checked,
    beside: &Beside,
    added: impl Iterator<Item = Added>,
    extra: &[Added],
    defaults: Option<&[(&str, String)]>,
) -> Result<HfTokenizer, String> {
    let mut named = beside.named.clone();
    for (name, text) in defaults.into_iter().flatten() {
        if !named.iter().any(|(known, _)| known == name) && !beside.absent.iter().any(|absent| absent == name)
        {
            named.push(((*name).into(), Added::new(text)));
        }
    }
    let names: HashSet<&str> = named.iter().map(|(_, token)| token.content.as_str()).collect();
    let present = inner.get_added_tokens_decoder();
    let known: HashSet<&AddedToken> = present.values().collect();
    let mut tokens: Vec<AddedToken> = added.map(theirs).filter(|token| !known.contains(token)).collect();
    let found: HashSet<String> = present.values().chain(&tokens).map(|token| token.content.clone()).collect();
    let more = named.iter().map(|(_, token)| token).chain(extra);
    tokens.extend(more.filter(|token| !found.contains(&token.content)).cloned().map(theirs));
    for token in &mut tokens {
        token.special |= names.contains(token.content.as_str());
    }
    let sizes: Vec<_> = present
        .values()
        .chain(&tokens)
        .map(|token| sizes::Added { id: 0, content: Cow::Borrowed(token.content.as_str()) })
        .collect();
    let shortest =
        check_added(&sizes).map_err(|(expected, found)| format!("{found}; expected {expected}"))?;
    checked.growth = checked.growth.with_shortest(shortest);
    guarded(|| inner.add_tokens(tokens))?;
    let id = |name: &str| {
        let text = named.iter().find(|(known, _)| known == name).map(|(_, token)| token.content.as_str())?;
        Some((text, inner.token_to_id(text)?))
    };
    let ends = id("eos_token").map(|(_, id)| id).into_iter().collect();
    if let (Some((bos, eos)), Some(_)) = (beside.around, defaults) {
        let [bos, eos] =
            [("bos_token", bos), ("eos_token", eos)].map(|(name, wanted)| id(name).filter(|_| wanted));
        let around = template(bos, eos);
        inner.with_post_processor(Some(section::<PostProcessorWrapper>(around)?));
    }
    let last = inner.get_added_tokens_decoder().keys().max().map_or(0, |last| last + 1);
    checked.ids = checked.ids.max(last);
    let note = beside.other.as_ref().map(|name| {
        format!(
            "transformers 5 reads the tokenizer as {name}, but this program does not know the rules of {name}: it \
             reads tokenizer.json as it is, and may split some texts into other tokens"
        )
    });
    let fill = named.iter().find(|(name, _)| name == "fill_token" && beside.class == Class::CodeLlama);
    let fill = fill.map(|(_, token)| token.content.clone());
    Ok(HfTokenizer { ends, note, fill, ..HfTokenizer::new(inner, checked)? })
}

/// The pre-tokenizer and the decoder of `LlamaTokenizer`, as sections of a tokenizer.json.
fn llama(beside: &Beside) -> (Value, Value) {
    let legacy = beside.legacy.unwrap_or(false) && beside.class == Class::Llama;
    let scheme = match (beside.prefix_space.unwrap_or(true), legacy) {
        (false, _) => "never",
        (true, true) => "always",
        (true, false) => "first",
    };
    let decoder = decoder(true, scheme != "never" || beside.class == Class::CodeLlama);
    (json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false}), decoder)
}

fn decoder(byte_fallback: bool, prefix: bool) -> Value {
    let mut parts = vec![json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "})];
    if byte_fallback {
        parts.push(json!({"type": "ByteFallback"}));
    }
    if prefix {
        parts.push(json!({"type": "Fuse"}));
        parts.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    json!({"type": "Sequence", "decoders": parts})
}

/// `model` with the settings of `LlamaTokenizer`. `CodeLlamaTokenizer` has a token for unknown characters.
fn of_llama(mut model: BPE, beside: &Beside) -> BPE {
    let unknown =
        beside.named.iter().find(|(name, _)| name == "unk_token").map(|(_, token)| token.content.clone());
    let unknown = unknown.filter(|_| beside.class == Class::CodeLlama);
    (model.unk_token, model.fuse_unk, model.byte_fallback, model.ignore_merges) =
        (unknown, true, true, false);
    model
}

fn of_llama_checked(ids: u32, decoder: &Value) -> Result<Checked, String> {
    let decoder = Decoder::new(decoder).map_err(|(_, found)| found)?;
    // `▁` before a text, and one for each space.
    let growth = Growth::of([json!({"type": "Prepend", "prepend": "▁"}), spaces()].iter(), 1);
    Ok(Checked { decoder, drops_unknown: true, ids, growth, cuts_as_gpt2: false })
}

/// The normalizer that replaces a space by `▁`.
fn spaces() -> Value {
    json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})
}

fn bpe(vocab: Vocab, merges: Merges) -> Result<BPE, String> {
    guarded(|| BPE::builder().vocab_and_merges(vocab, merges).build())
}

/// The tokenizer that `TokenizersBackend` builds from a tokenizer.model. It splits a text like SentencePiece.
fn backend(model: &Model, beside: &Beside) -> Result<(Inner, Checked), String> {
    // The folder may rename pieces, but not to the name of another piece.
    let mut names: Vec<&str> = model.pieces.iter().map(|(text, ..)| text.as_str()).collect();
    let renamed = |id: usize| beside.added.get(&(id as u64)).map(|token| token.content.as_str());
    let kept: HashSet<&str> =
        names.iter().enumerate().filter(|(id, _)| renamed(*id).is_none()).map(|(_, text)| *text).collect();
    for (id, name) in names.iter_mut().enumerate() {
        *name = renamed(id).filter(|new| !kept.contains(new)).unwrap_or(name);
    }
    let mut normal: HashMap<&str, (f32, usize)> = HashMap::new();
    let mut user: Vec<&str> = Vec::new();
    for (id, (name, (_, score, kind))) in names.iter().zip(&model.pieces).enumerate() {
        match kind {
            Type::Normal => _ = normal.insert(name, (*score, id)),
            Type::User => user.push(name),
            Type::Control | Type::Other => {}
        }
    }
    user.sort_by_key(|text| std::cmp::Reverse(text.chars().count()));
    let mut ranked = Vec::new();
    for (text, (score, id)) in &normal {
        for (left, right) in text.char_indices().skip(1).map(|(at, _)| text.split_at(at)) {
            if normal.contains_key(left) && normal.contains_key(right) {
                ranked.push((-score, *id, left.to_owned(), right.to_owned()));
            }
        }
    }
    ranked.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| (a.1, &a.2, &a.3).cmp(&(b.1, &b.2, &b.3))));
    let merges = ranked.into_iter().map(|(_, _, left, right)| (left, right)).collect();
    let vocab: Vocab = names.iter().map(|name| (*name).to_owned()).zip(0..).collect();
    let mut built = bpe(vocab, merges)?;
    built.unk_token = Some(model.names[0].clone().unwrap_or_else(|| "<unk>".into()));
    (built.fuse_unk, built.byte_fallback, built.ignore_merges) =
        (true, model.byte_fallback, !user.is_empty());
    let mut inner = Inner::new(built);
    let replace = |pattern: &str, content: &str| json!({"type": "Replace", "pattern": {"Regex": pattern}, "content": content});
    let mut normalizers = Vec::new();
    if model.remove_extra_spaces {
        normalizers.extend([replace(r"\A +| +\z", ""), replace(" {2,}", " ")]);
    }
    normalizers.push(spaces());
    let always = beside.legacy.unwrap_or(true);
    if model.dummy_prefix && always {
        normalizers.push(replace(r"\A▁", "▁▁"));
    }
    let sequence = json!({"type": "Sequence", "normalizers": normalizers});
    guarded(|| inner.with_normalizer(Some(section::<NormalizerWrapper>(sequence)?)).map(|_| ()))?;
    let mut cuts = Vec::new();
    if model.dummy_prefix {
        let scheme = if always { "always" } else { "first" };
        cuts.push(json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false}));
    }
    if !user.is_empty() {
        let pattern: Vec<String> = user.iter().map(|text| regex::escape(text)).collect();
        let pattern = json!({"Regex": pattern.join("|")});
        cuts.push(json!({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false}));
    }
    if !cuts.is_empty() {
        let sequence = json!({"type": "Sequence", "pretokenizers": cuts});
        inner.with_pre_tokenizer(Some(section::<PreTokenizerWrapper>(sequence)?));
    }
    let decoder =
        Decoder::new(&decoder(model.byte_fallback, model.dummy_prefix)).map_err(|(_, found)| found)?;
    // At most two `▁` before each stretch, and one for each space.
    let growth = Growth::of([json!({"type": "Prepend", "prepend": "▁▁"}), spaces()].iter(), 1);
    let ids = model.pieces.len() as u32;
    Ok((inner, Checked { decoder, drops_unknown: false, ids, growth, cuts_as_gpt2: false }))
}

/// A part of the crate, built from its section of a tokenizer.json.
fn section<T: DeserializeOwned>(section: Value) -> Result<T, String> {
    serde_json::from_value(section).map_err(|error| error.to_string())
}

/// Converts a token to the crate's type.
fn theirs(token: Added) -> AddedToken {
    let Added { content, single_word, lstrip, rstrip, normalized, special } = token;
    AddedToken { content, single_word, lstrip, rstrip, normalized, special }
}

fn ours(token: AddedToken) -> Added {
    let AddedToken { content, single_word, lstrip, rstrip, normalized, special } = token;
    Added { content, single_word, lstrip, rstrip, normalized, special }
}
