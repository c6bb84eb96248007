//! Tests with small directories in Hugging Face's layout, valid and invalid.

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
    let model = open_any(folder.path()).unwrap();
    assert_eq!((model.format, &model.eos[..]), (Format::HuggingFace { files: 1, pickled: false }, &[2][..]));
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
    assert_eq!(model.format, Format::HuggingFace { files: 2, pickled: false });
    assert!(model.has(Weight::Head));

    let text = open(folder(false, &[files[0], files[2]]).path(), &[]).unwrap_err().to_string();
    assert!(text.contains("`b.safetensors` is missing"), "{text}");
}

/// As in transformers: every tensor of every shard is read, and the last one wins. The tensor names in the index are
/// only used for notes.
#[test]
fn shards_hold_what_they_hold_whatever_their_index_says() {
    let [first, second] = [1.0, 2.0].map(|value| table("model.embed_tokens.weight", value));
    let both = file(&[("model.norm.weight", &[4], &[3.0; 4]), ("lm_head.weight", &[3, 4], &[4.0; 12])]);
    let index = br#"{"weight_map":{"lm_head.weight":"a.safetensors","mtp.weight":"b.safetensors",
        "x":"./c/.//d.safetensors","y":"./a.safetensors"}}"#;
    let folder = folder(true, &[("model.safetensors.index.json", index)]);
    std::fs::create_dir(folder.path().join("c")).unwrap();
    for (name, bytes) in [("a", &second), ("b", &both), ("c/d", &first)] {
        std::fs::write(folder.path().join(format!("{name}.safetensors")), bytes).unwrap();
    }
    let model = open(folder.path(), &[]).unwrap();
    assert_eq!(model.format, Format::HuggingFace { files: 3, pickled: false });
    let embedding = model.tensor(Weight::Embedding, &[3, 4]).unwrap();
    // Sorted as text, `a.safetensors` comes after `./c`.
    assert_eq!(embedding.bytes()[..4], 2.0_f32.to_le_bytes());
    assert_eq!(model.notes.absent, ["mtp.weight", "x", "y"]);
    assert_eq!(model.notes.twice, ["model.embed_tokens.weight"]);
}

#[test]
fn an_index_reads_only_its_own_directory() {
    for name in ["../a.safetensors", "/etc/passwd", "a/../b", "a/..", "..", ".", "./", "", "./../a", "a\\\\b"]
    {
        let index = format!(r#"{{"weight_map":{{"x":"{name}"}}}}"#);
        for file in ["model.safetensors.index.json", "pytorch_model.bin.index.json"] {
            let folder = folder(false, &[(file, index.as_bytes())]);
            let text = open(folder.path(), &[]).unwrap_err().to_string();
            assert!(text.contains("outside the directory"), "{name}: {text}");
        }
    }
}

/// A link that leads out of the directory is followed only to the hub's blobs.
#[cfg(unix)]
#[test]
fn links_lead_out_of_the_directory_to_a_cache_alone() {
    use std::os::unix::fs::symlink;
    let elsewhere = tempfile::tempdir().unwrap();
    let bytes = table("lm_head.weight", 1.0);
    let blobs = elsewhere.path().join("models--org--name/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::write(blobs.join("0123"), &bytes).unwrap();
    std::fs::write(elsewhere.path().join("a.safetensors"), &bytes).unwrap();
    let index = br#"{"weight_map":{"lm_head.weight":"sub/a.safetensors"}}"#;
    let opened = |link: &dyn Fn(&Path)| {
        let folder = folder(true, &[("model.safetensors.index.json", index), ("b.safetensors", &bytes)]);
        link(folder.path());
        open(folder.path(), &[])
    };
    let in_sub = |target: std::path::PathBuf| {
        opened(&|folder| {
            std::fs::create_dir(folder.join("sub")).unwrap();
            symlink(&target, folder.join("sub/a.safetensors")).unwrap();
        })
    };
    in_sub("../b.safetensors".into()).unwrap();
    in_sub(blobs.join("0123")).unwrap();
    let out = in_sub(elsewhere.path().join("a.safetensors"));
    let folder = opened(&|folder| symlink(elsewhere.path(), folder.join("sub")).unwrap());
    for refused in [out, folder] {
        let text = refused.unwrap_err().to_string();
        assert!(
            text.contains("a link out of the directory") && text.contains("`sub/a.safetensors`"),
            "{text}"
        );
    }
}

#[test]
fn names_are_read_as_transformers_reads_them() {
    for (name, read) in [
        ("layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("embed_tokens.weight", "model.embed_tokens.weight"),
        ("norm.weight", "model.norm.weight"),
        ("model.model.norm.weight", "model.norm.weight"),
        ("model.lm_head.weight", "lm_head.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("model.norm.weight", "model.norm.weight"),
        ("normal.weight", "normal.weight"),
    ] {
        assert_eq!(with_base(name), read);
    }
    let both = |value: f32| {
        let [flat, base] = [[1.0; 4], [value; 4]];
        file(&[("norm.weight", &[4], &flat), ("model.norm.weight", &[4], &base)])
    };
    let open = |bytes: &[u8]| open(folder(true, &[("model.safetensors", bytes)]).path(), &[]);
    assert_eq!(open(&both(1.0)).unwrap().tensors.len(), 1);
    let text = open(&both(2.0)).unwrap_err().to_string();
    assert!(text.contains("two tensors for one weight") && text.contains("`norm.weight`"), "{text}");
}

#[test]
fn float64_is_rounded_and_said() {
    let header = r#"{"lm_head.weight":{"dtype":"F64","shape":[3,4],"data_offsets":[0,96]}}"#;
    let mut bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    bytes.extend([0.1_f64; 12].iter().flat_map(|value| value.to_le_bytes()));
    let model = open(folder(true, &[("model.safetensors", &bytes)]).path(), &[]).unwrap();
    assert_eq!(model.notes.lines(), ["tensors of float64, rounded to float32: `lm_head.weight`"]);
    assert_eq!(model.tensor(Weight::Head, &[3, 4]).unwrap().bytes()[..4], 0.1_f32.to_le_bytes());
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
