//! A Hugging Face directory: config.json, and model.safetensors or its shards with their index.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Component, Path};

use serde::Deserialize;

use super::limits::{MAX_FILES, MAX_TENSORS};
use super::tensor::Contents;
use super::{Checkpoint, Format, Naming, Notes, Weight, hf_config, safetensors, unread};
use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::files::{Bytes, folder_of as folder_of_file, printable, read_text};

/// The largest config.json or generation_config.json that is read; real ones have a few kilobytes.
const MAX_CONFIG: u64 = 1 << 20;
/// The largest index of shards that is read; Llama 3.1 405B's has 97 KB.
const MAX_INDEX: u64 = 8 << 20;

/// The file that holds all weights, or else the one that names its shards.
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Whether the directory `path` holds what [`open`] reads.
pub(super) fn is_here(path: &Path) -> bool {
    let has = |name: &str| path.join(name).exists();
    has("config.json") && (has(SINGLE) || has(INDEX))
}

/// The directory that is meant where one of its files is named: model.safetensors, a shard that the index names,
/// the index, or config.json.
pub(super) fn folder_of(path: &Path) -> Option<&Path> {
    let (folder, name) = (folder_of_file(path), path.file_name()?.to_str()?);
    let is_shard = || {
        let index = folder.join(INDEX);
        name.ends_with(".safetensors")
            && index.exists()
            && shard_names(&index).is_ok_and(|names| names.iter().any(|shard| shard == name))
    };
    let one_of_its_files = [SINGLE, INDEX, "config.json"].contains(&name) || is_shard();
    (is_here(folder) && one_of_its_files).then_some(folder)
}

/// Opens the checkpoint in the directory `path` without the fields `ignore` of its configuration. As in transformers, model.safetensors goes before an
/// index of shards where both are there.
///
/// # Errors
/// [`Error::Model`] where a file is missing or damaged, or the model is of a kind not computed here.
pub(super) fn open(path: &Path, ignore: &[String]) -> Result<Checkpoint> {
    if !is_here(path) {
        return Err(no_model(path));
    }
    let [config_path, single, index] = ["config.json", SINGLE, INDEX].map(|name| path.join(name));
    let config_text = read_text(&config_path, MAX_CONFIG)?;
    let config_place = config_path.display().to_string();
    let config = hf_config::model_config(&config_text, &config_place, ignore)?;
    let generation_path = path.join("generation_config.json");
    let generation_place = generation_path.display().to_string();
    let generation = match generation_path.exists() {
        true => Some(read_text(&generation_path, MAX_CONFIG)?),
        false => None,
    };
    let generation = generation.as_ref().map(|text| (text.as_str(), generation_place.as_str()));
    let eos = hf_config::stop_ids(generation, (&config_text, &config_place))?;
    let (contents, files) = match single.exists() {
        true => (safetensors::parse(&Bytes::map(&single)?, &single.display().to_string())?, 1),
        false => read_shards(path, &index)?,
    };
    // `.` and `..` have no name of their own.
    let full = path.canonicalize().unwrap_or_else(|_| path.into());
    let name = full.file_name().unwrap_or(full.as_os_str()).to_string_lossy().into_owned();
    let checkpoint = assemble(name, config, eos, contents, files, &path.display().to_string())?;
    Ok(Checkpoint { path: Some(path.into()), ..checkpoint })
}

/// Puts together what the files of a directory say, wherever they came from. The path is left empty.
///
/// # Errors
/// [`Error::Model`] where a tensor belongs to a part that is not computed here.
pub(super) fn assemble(
    name: String,
    (mut config, mut notes): (ModelConfig, Notes),
    eos: Vec<u32>,
    contents: Contents,
    files: usize,
    place: &str,
) -> Result<Checkpoint> {
    notes.unread = unread::screen(&contents, Naming::HuggingFace, &config, place)?;
    let Contents { tensors, unreadable } = contents;
    if config.tied {
        // As transformers 5 does: where both are stored and differ, the configuration is wrong and the
        // head that was stored is the head.
        let [embedding, head] =
            [Weight::Embedding, Weight::Head].map(|weight| tensors.get(&Naming::HuggingFace.name(weight)));
        if let (Some(embedding), Some(head)) = (embedding, head) {
            config.tied = embedding.dtype() == head.dtype()
                && embedding.shape() == head.shape()
                && embedding.bytes().equal(head.bytes());
        }
    }
    Ok(Checkpoint {
        name,
        format: Format::HuggingFace { files },
        path: None,
        config,
        eos,
        notes,
        tensors,
        unreadable,
        naming: Naming::HuggingFace,
    })
}

/// The part of model.safetensors.index.json that says where a tensor lies.
#[derive(Deserialize)]
struct Index {
    /// Tensor to file name.
    weight_map: BTreeMap<String, String>,
}

/// Reads the index of shards, whose file names must be plain ones: it must not make this program read, or
/// fetch, files elsewhere.
fn read_index(index_path: &Path) -> Result<Index> {
    let index: Index = serde_json::from_str(&read_text(index_path, MAX_INDEX)?).map_err(|error| {
        let expected = "JSON with a `weight_map` from tensor names to file names";
        wrong_index(
            index_path,
            "the index of shards cannot be read",
            expected,
            &printable(&error.to_string()),
        )
    })?;
    if index.weight_map.len() > MAX_TENSORS {
        let what = "the index names more tensors than any model has";
        let found = index.weight_map.len().to_string();
        return Err(wrong_index(index_path, what, &format!("at most {MAX_TENSORS}"), &found));
    }
    for file in index.weight_map.values() {
        let mut parts = Path::new(file).components();
        let plain = matches!((parts.next(), parts.next()), (Some(Component::Normal(name)), None) if name == file.as_str());
        if !plain || file.contains('\\') {
            let what = "the index names a shard outside the directory";
            return Err(wrong_index(index_path, what, "plain file names", &format!("`{}`", printable(file))));
        }
    }
    let files = index.weight_map.values().collect::<HashSet<_>>().len();
    if files > MAX_FILES {
        let what = "the index names more files than any model is in";
        return Err(wrong_index(index_path, what, &format!("at most {MAX_FILES}"), &files.to_string()));
    }
    Ok(index)
}

fn wrong_index(index_path: &Path, what: &str, expected: &str, found: &str) -> Error {
    Error::model(what)
        .in_file(index_path)
        .expected(expected)
        .found(found)
        .next("fetch the index and every shard that it names again")
}

/// The files that the index names, each once.
///
/// # Errors
/// [`Error::Model`] where the index is damaged, or names a file outside its directory.
pub(crate) fn shard_names(index_path: &Path) -> Result<Vec<String>> {
    let names: BTreeSet<String> = read_index(index_path)?.weight_map.into_values().collect();
    Ok(names.into_iter().collect())
}

/// Opens every shard that the index names, once, and checks that each tensor is where the index says.
fn read_shards(folder: &Path, index_path: &Path) -> Result<(Contents, usize)> {
    let wrong =
        |what: String, expected: &str, found: String| wrong_index(index_path, &what, expected, &found);
    let index = read_index(index_path)?;
    let mut shards: BTreeMap<&str, Contents> = BTreeMap::new();
    for file in index.weight_map.values() {
        if shards.contains_key(file.as_str()) {
            continue;
        }
        let path = folder.join(file);
        if !path.exists() {
            let what = format!("the shard `{}` is missing", printable(file));
            return Err(wrong(what, "every file that the index names", "no such file".into()));
        }
        shards.insert(file, safetensors::parse(&Bytes::map(&path)?, &path.display().to_string())?);
    }
    let files = shards.len();
    let mut all = Contents::default();
    for (name, file) in &index.weight_map {
        let shard = shards.get_mut(file.as_str());
        let Some((shard, name)) = shard.map(|shard| (shard, name.clone())) else { continue };
        if let Some(tensor) = shard.tensors.remove(&name) {
            all.tensors.insert(name, tensor);
        } else if let Some(dtype) = shard.unreadable.remove(&name) {
            all.unreadable.insert(name, dtype);
        } else {
            let what = format!("tensor `{}` is not in the shard that the index names", printable(&name));
            let found = super::names::nearest(&name, shard.tensors.keys());
            return Err(wrong(what, &format!("it in `{}`", printable(file)), found));
        }
    }
    Ok((all, files))
}

/// The error for a directory without a model, saying what lies there instead.
fn no_model(path: &Path) -> Error {
    const TELLING: [&str; 8] = ["json", "safetensors", "gguf", "pth", "bin", "pt", "model", "ckpt"];
    let mut found: Vec<String> = std::fs::read_dir(path)
        .map(|entries| {
            entries
                .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
                .filter(|name| TELLING.iter().any(|ending| name.ends_with(&format!(".{ending}"))))
                .take(1000)
                .collect()
        })
        .unwrap_or_default();
    found.sort();
    let more = found.len().saturating_sub(8);
    found.truncate(8);
    let mut names = found.iter().map(|name| printable(name)).collect::<Vec<_>>().join(", ");
    if names.is_empty() {
        names = "no model file at all".into();
    } else if more > 0 {
        names += &format!(" and {more} more");
    }
    Error::model("the directory holds no model that is read here")
        .in_file(path)
        .expected("config.json with model.safetensors (or its shards and their index), or Meta's params.json with consolidated.00.pth")
        .found(names)
        .next("give the directory of a Llama in Hugging Face's or Meta's layout, a GGUF file, or a llama2.c .bin file")
}

#[cfg(test)]
mod tests {
    use super::super::safetensors::tests::file;
    use super::super::{Weight, open as open_any};
    use super::*;
    use tempfile::TempDir;

    const CONFIG: &str = r#"{"model_type":"llama","hidden_size":4,"num_hidden_layers":1,"num_attention_heads":2,
        "intermediate_size":6,"vocab_size":3,"eos_token_id":2,"tie_word_embeddings":TIED}"#;

    fn folder(tied: bool, files: &[(&str, &[u8])]) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), CONFIG.replace("TIED", &tied.to_string())).unwrap();
        for (name, bytes) in files {
            std::fs::write(folder.path().join(name), bytes).unwrap();
        }
        folder
    }

    fn table(name: &str, value: f32) -> Vec<u8> {
        file(&[(name, &[3, 4], &[value; 12])])
    }

    #[test]
    fn a_single_file_is_opened() {
        let bytes = table("model.embed_tokens.weight", 1.0);
        let folder = folder(true, &[("model.safetensors", &bytes)]);
        let model = open_any(Some(folder.path())).unwrap();
        assert_eq!((model.format, &model.eos[..]), (Format::HuggingFace { files: 1 }, &[2][..]));
        assert_eq!(model.tensor(Weight::Embedding, &[3, 4]).unwrap().count(), 12);
        assert!(!model.has(Weight::Head));
    }

    #[test]
    fn a_missing_tensor_is_named_with_its_neighbours() {
        let bytes = table("model.embed_token.weight", 1.0);
        let folder = folder(false, &[("model.safetensors", &bytes)]);
        let model = open(folder.path(), &[]).unwrap();
        let text = model.tensor(Weight::Embedding, &[3, 4]).unwrap_err().to_string();
        assert!(
            text.contains("`model.embed_tokens.weight`") && text.contains("`model.embed_token.weight`"),
            "{text}"
        );
        let text = model.tensor(Weight::Head, &[3, 4]).unwrap_err().to_string();
        assert!(text.contains("`lm_head.weight`"), "{text}");
    }

    #[test]
    fn a_wrong_shape_and_a_wrong_dtype_are_named() {
        let header = r#"{"model.norm.weight":{"dtype":"I8","shape":[4],"data_offsets":[0,4]}}"#;
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(&[0; 4]);
        let model = open(folder(false, &[("model.safetensors", &bytes)]).path(), &[]).unwrap();
        let text = model.tensor(Weight::FinalNorm, &[4]).unwrap_err().to_string();
        assert!(text.contains("I8"), "{text}");

        let bytes = table("model.embed_tokens.weight", 1.0);
        let model = open(folder(false, &[("model.safetensors", &bytes)]).path(), &[]).unwrap();
        let text = model.tensor(Weight::Embedding, &[4, 3]).unwrap_err().to_string();
        assert!(text.contains("[3, 4]") && text.contains("[4, 3]"), "{text}");
    }

    #[test]
    fn a_tied_model_may_store_only_its_head() {
        let bytes = table("lm_head.weight", 7.0);
        let model = open(folder(true, &[("model.safetensors", &bytes)]).path(), &[]).unwrap();
        assert!(model.has(Weight::Embedding) && !model.has(Weight::Head));
        let tensor = model.tensor(Weight::Embedding, &[3, 4]).unwrap();
        assert_eq!(tensor.bytes()[..4], 7.0_f32.to_le_bytes());
    }

    #[test]
    fn two_stored_tables_are_tied_only_where_they_agree() {
        let both = |head: f32| {
            let [a, b] = [[1.0; 12], [head; 12]];
            let bytes = file(&[("model.embed_tokens.weight", &[3, 4], &a), ("lm_head.weight", &[3, 4], &b)]);
            open(folder(true, &[("model.safetensors", &bytes)]).path(), &[]).unwrap()
        };
        assert!(both(1.0).config.tied && !both(1.0).has(Weight::Head));
        assert!(!both(2.0).config.tied && both(2.0).has(Weight::Head));
    }

    #[test]
    fn generation_config_decides_where_to_stop() {
        let bytes = table("lm_head.weight", 1.0);
        let weights = ("model.safetensors", &bytes[..]);
        let eos = |text: &str| {
            open(folder(true, &[weights, ("generation_config.json", text.as_bytes())]).path(), &[])
                .map(|model| model.eos)
        };
        assert_eq!(eos(r#"{"eos_token_id":[0,1]}"#).unwrap(), [0, 1]);
        assert_eq!(eos("{}").unwrap(), [2]);
        assert!(eos("{").unwrap_err().to_string().contains("generation_config.json"));
    }

    #[test]
    fn shards_are_found_through_their_index() {
        let [a, b] = [table("model.embed_tokens.weight", 1.0), table("lm_head.weight", 2.0)];
        let index = br#"{"metadata":{},"weight_map":{"model.embed_tokens.weight":"a.safetensors",
            "lm_head.weight":"b.safetensors"}}"#;
        let shards = [("a.safetensors", &a[..]), ("b.safetensors", &b[..])];
        let files = [shards[0], shards[1], ("model.safetensors.index.json", index)];
        let model = open(folder(false, &files).path(), &[]).unwrap();
        assert_eq!(model.format, Format::HuggingFace { files: 2 });
        assert!(model.has(Weight::Head));

        let text = open(folder(false, &[files[0], files[2]]).path(), &[]).unwrap_err().to_string();
        assert!(text.contains("`b.safetensors` is missing"), "{text}");
        let swapped = [shards[0], ("b.safetensors", &a[..]), files[2]];
        let text = open(folder(false, &swapped).path(), &[]).unwrap_err().to_string();
        assert!(text.contains("`lm_head.weight` is not in the shard"), "{text}");
    }

    #[test]
    fn an_index_reads_only_its_own_directory() {
        for name in ["../a.safetensors", "/etc/passwd", "a/b", "..", ".", "", "./a", "a\\\\b"] {
            let index = format!(r#"{{"weight_map":{{"x":"{name}"}}}}"#);
            let folder = folder(false, &[("model.safetensors.index.json", index.as_bytes())]);
            let text = open(folder.path(), &[]).unwrap_err().to_string();
            assert!(text.contains("outside the directory"), "{name}: {text}");
        }
    }

    #[test]
    fn a_directory_without_a_model_says_what_is_there() {
        let folder = folder(false, &[("consolidated.00.pth", b""), ("notes.txt", b"")]);
        let text = open(folder.path(), &[]).unwrap_err().to_string();
        assert!(text.contains("found: config.json, consolidated.00.pth\n"), "{text}");
        assert!(
            open(tempfile::tempdir().unwrap().path(), &[]).unwrap_err().to_string().contains("no model file")
        );
    }
}
