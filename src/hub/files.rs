//! The files of a repository that are needed, and whether a folder has them.

use std::collections::HashSet;
use std::path::Path;

use super::name::Name;
use llama_trace_core::error::{Error, Result};
use llama_trace_formats::checkpoint::huggingface;
use llama_trace_formats::checkpoint::limits::MAX_FILES;
use llama_trace_formats::files::printable;

/// The parts of a model that are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Everything that a run needs.
    Model,
    /// Only the headers; values are not downloaded unless they are in the cache.
    Headers,
    /// Only the tokenizer.
    Tokenizer,
}

pub(super) const CONFIG: &str = "config.json";
const TOKENIZERS: [&str; 2] = ["tokenizer.json", "tokenizer.model"];

/// Optional files in the same folder as the weights.
const BESIDE: [&str; 2] = ["generation_config.json", "chat_template.jinja"];
/// Optional files in the same folder as a tokenizer.
pub(super) const BESIDE_TOKENIZER: [&str; 3] =
    ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"];

/// The weights of a repository.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Weights {
    /// A file in Hugging Face's layout: all weights, or an index of several files.
    HuggingFace(&'static str),
    /// The files of Meta's own layout.
    Meta(Vec<String>),
    /// The named file, and the other parts if it was split.
    Gguf(Vec<String>),
}

/// Returns the files of `listed` to download before the weights. They are small, and show whether the weights can be
/// used.
pub(super) fn small<'l>(listed: &'l [String], name: &Name, need: Need) -> Vec<&'l str> {
    if name.file.is_some() {
        // A GGUF file needs no other files.
        return Vec::new();
    }
    let has = |name: &str| listed.iter().find(|listed| *listed == name).map(String::as_str);
    let tokenizer = TOKENIZERS.iter().find_map(|name| has(name));
    let of_tokenizer = BESIDE_TOKENIZER.into_iter().filter_map(has).chain(tokenizer);
    let config = has(CONFIG).into_iter();
    match need {
        Need::Tokenizer if tokenizer.is_none() => Vec::new(),
        Need::Tokenizer => config.chain(of_tokenizer).collect(),
        Need::Model | Need::Headers => {
            config.chain(BESIDE.into_iter().filter_map(has)).chain(of_tokenizer).collect()
        }
    }
}

/// Returns the small files that a repository need not have. The cache notes which of them are absent.
pub(super) fn optional() -> impl Iterator<Item = &'static str> {
    BESIDE.into_iter().chain(BESIDE_TOKENIZER).chain(TOKENIZERS)
}

/// Returns the weights among the files in `listed`.
///
/// # Errors
/// [`Error::Model`] if there are none in a supported format; the message names the files that are there.
pub(super) fn weights(listed: &[String], name: &Name) -> Result<Weights> {
    let all: HashSet<&str> = listed.iter().map(String::as_str).collect();
    let has = |name: &str| all.contains(name);
    if let Some(file) = &name.file {
        let files = parts(file);
        return match files.iter().all(|file| has(file)) {
            true => Ok(Weights::Gguf(files)),
            false => Err(not_there(listed, name, file)),
        };
    }
    if let Some(weights) = huggingface::WEIGHTS.into_iter().find(|file| has(CONFIG) && has(file)) {
        return Ok(Weights::HuggingFace(weights));
    }
    let shards: Vec<String> = listed.iter().filter(|file| is_meta_shard(file)).cloned().collect();
    if has("params.json") && !shards.is_empty() {
        return Ok(Weights::Meta([vec!["params.json".into()], shards].concat()));
    }
    Err(nothing(listed, name))
}

/// Checks that the folder of a commit has every needed file; otherwise returns the name of one that is missing.
pub(super) fn find(folder: &Path, name: &Name, need: Need) -> std::result::Result<(), String> {
    let has = |name: &str| folder.join(name).exists();
    let all = |names: &[String]| match names.iter().find(|name| !has(name)) {
        Some(missing) => Err(missing.clone()),
        None => Ok(()),
    };
    if let Some(file) = &name.file {
        return all(&parts(file));
    }
    if need == Need::Tokenizer {
        return if TOKENIZERS.iter().any(|name| has(name)) { Ok(()) } else { Err(TOKENIZERS[0].into()) };
    }
    if !has(CONFIG) && has("params.json") {
        return if has("consolidated.00.pth") { Ok(()) } else { Err("consolidated.00.pth".into()) };
    }
    all(&[CONFIG.into()])?;
    match huggingface::WEIGHTS.into_iter().find(|file| has(file)) {
        Some(index) if huggingface::is_index(index) => {
            all(&huggingface::shard_names(&folder.join(index)).map_err(|_| index.to_owned())?)
        }
        Some(_) => Ok(()),
        None => Err(huggingface::WEIGHTS[0].into()),
    }
}

/// Returns the tokenizer's file in the folder of a commit.
pub(super) fn tokenizer(folder: &Path) -> Option<std::path::PathBuf> {
    TOKENIZERS.iter().map(|name| folder.join(name)).find(|path| path.exists())
}

/// Returns the names of all parts of a split GGUF file from the name of one part; only `file` if it was not split.
fn parts(file: &str) -> Vec<String> {
    let split = || {
        let stem = file.strip_suffix(".gguf")?;
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let digits = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
        let count: usize = count.parse().ok().filter(|_| digits(count) && digits(number))?;
        if count > MAX_FILES {
            return None;
        }
        Some((1..=count).map(|number| format!("{stem}-{number:05}-of-{count:05}.gguf")).collect())
    };
    split()
        .filter(|parts: &Vec<String>| parts.iter().any(|part| part == file))
        .unwrap_or_else(|| vec![file.into()])
}

fn is_meta_shard(file: &str) -> bool {
    let number = file.strip_prefix("consolidated.").and_then(|rest| rest.strip_suffix(".pth"));
    number.is_some_and(|number| number.len() == 2 && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The maximum number of names that a message lists.
const SHOWN: usize = 12;

/// Returns the files in `listed` that `which` selects, as a message lists them.
fn listing(listed: &[String], which: impl Fn(&str) -> bool) -> String {
    let names: Vec<String> = listed.iter().filter(|name| which(name)).map(|name| printable(name)).collect();
    let more = names.len().saturating_sub(SHOWN);
    let text = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{text} and {more} more") } else { text }
}

fn is_gguf(name: &str) -> bool {
    name.to_ascii_lowercase().ends_with(".gguf")
}

fn not_there(listed: &[String], name: &Name, file: &str) -> Error {
    let ggufs = listing(listed, is_gguf);
    Error::model(format!("the repository has no file `{file}`, or not all parts of it"))
        .at(name)
        .expected("one of its GGUF files")
        .found(if ggufs.is_empty() { "no GGUF file at all".into() } else { ggufs })
        .next("correct the name after the `:`")
}

/// Returns the error for a repository without a supported model.
fn nothing(listed: &[String], name: &Name) -> Error {
    const TELLING: [&str; 8] = ["json", "safetensors", "gguf", "pth", "bin", "pt", "model", "ckpt"];
    let wrong = Error::model("the repository has no model in Hugging Face's layout")
        .at(name)
        .expected(format!("config.json, and one of {}", huggingface::WEIGHTS.join(", ")));
    if let Some(first) = listed.iter().find(|name| is_gguf(name)) {
        return wrong
            .found(format!("GGUF files: {}", listing(listed, is_gguf)))
            .next(format!("name the one to open: --model {name}:{}", printable(first)));
    }
    let telling = |name: &str| TELLING.iter().any(|ending| name.ends_with(&format!(".{ending}")));
    let found = listing(listed, telling);
    wrong
        .found(if found.is_empty() { "no model file at all".into() } else { found })
        .next("look for a version of the model as safetensors or GGUF")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.into()).collect()
    }

    #[test]
    fn only_what_is_read_is_fetched() {
        let llama = listed(&[
            ".gitattributes",
            "LICENSE.txt",
            "README.md",
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "original/consolidated.00.pth",
            "original/params.json",
            "pytorch_model.bin",
            "../config.json",
            "special_tokens_map.json",
            "tokenizer.json",
            "tokenizer.model",
            "tokenizer_config.json",
        ]);
        let name = Name::parse("org/name").unwrap();
        let of_tokenizer = ["tokenizer_config.json", "special_tokens_map.json", "tokenizer.json"];
        assert_eq!(
            small(&llama, &name, Need::Model),
            [&["config.json", "generation_config.json"], &of_tokenizer[..]].concat()
        );
        assert_eq!(small(&llama, &name, Need::Tokenizer), [&["config.json"], &of_tokenizer[..]].concat());
        assert_eq!(weights(&llama, &name).unwrap(), Weights::HuggingFace("model.safetensors"));
        for index in ["model.safetensors.index.json", "pytorch_model.bin.index.json"] {
            let sharded = listed(&["config.json", index, "a-00001-of-00002", "consolidated.00.pth"]);
            assert_eq!(weights(&sharded, &name).unwrap(), Weights::HuggingFace(index));
        }
        let pickled = listed(&["config.json", "pytorch_model.bin", "model.safetensors.index.json"]);
        assert_eq!(weights(&pickled[..2], &name).unwrap(), Weights::HuggingFace("pytorch_model.bin"));
        assert_eq!(weights(&pickled, &name).unwrap(), Weights::HuggingFace("model.safetensors.index.json"));
        let meta = listed(&["consolidated.00.pth", "consolidated.01.pth", "params.json", "tokenizer.model"]);
        let files = listed(&["params.json", "consolidated.00.pth", "consolidated.01.pth"]);
        assert_eq!(weights(&meta, &name).unwrap(), Weights::Meta(files));
        assert_eq!(small(&meta, &name, Need::Model), ["tokenizer.model"]);
    }

    #[test]
    fn a_gguf_file_comes_with_its_parts() {
        let all = listed(&["q/m-00001-of-00002.gguf", "q/m-00002-of-00002.gguf", "m.gguf"]);
        let files = |file: &str| weights(&all, &Name::parse(&format!("a/b:{file}")).unwrap());
        assert_eq!(files("m.gguf").unwrap(), Weights::Gguf(listed(&["m.gguf"])));
        assert_eq!(files("q/m-00002-of-00002.gguf").unwrap(), Weights::Gguf(all[..2].to_vec()));
        assert_eq!(parts("m-00003-of-00002.gguf"), ["m-00003-of-00002.gguf"]);
        assert!(files("n.gguf").unwrap_err().to_string().contains("q/m-00001-of-00002.gguf"));
    }

    #[test]
    fn what_cannot_be_opened_is_named() {
        let name = Name::parse("a/b-GGUF").unwrap();
        let text = weights(&listed(&["README.md", "m.Q8_0.gguf"]), &name).unwrap_err().to_string();
        assert!(
            text.contains("GGUF files: m.Q8_0.gguf") && text.contains("--model a/b-GGUF:m.Q8_0.gguf"),
            "{text}"
        );
        let text = weights(&listed(&["config.json", "model.ckpt", "README.md"]), &name).unwrap_err();
        assert!(text.to_string().contains("found: config.json, model.ckpt\n"), "{text}");
    }
}
