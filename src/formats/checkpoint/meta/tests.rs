//! Tests with small models in Meta's format: one file, two files, and invalid ones.

use super::super::pth::tests::pth;
use super::super::{LayerWeight, open as open_any};
use super::*;
use llama_trace_core::tensor::Bytes;
use tempfile::TempDir;

/// dim 4, 2 heads, 1 kv head, width 8, 6 tokens, 1 layer.
const PARAMS: &str =
    r#"{"dim": 4, "n_layers": 1, "n_heads": 2, "n_kv_heads": 1, "multiple_of": 8, "vocab_size": 6}"#;

/// A file of float16 tensors: name, shape, and two letters for each value.
fn file(tensors: &[(&str, &[usize], &str)]) -> Vec<u8> {
    let keys: Vec<String> = (0..tensors.len()).map(|i| i.to_string()).collect();
    let strides: Vec<Vec<usize>> = tensors
        .iter()
        .map(|(_, shape, _)| (0..shape.len()).map(|axis| shape[axis + 1..].iter().product()).collect())
        .collect();
    let entries: Vec<_> = tensors
        .iter()
        .enumerate()
        .map(|(i, (name, shape, values))| {
            (*name, "Half", &*keys[i], values.len() / 2, 0, *shape, &*strides[i])
        })
        .collect();
    let storages: Vec<_> =
        keys.iter().zip(tensors).map(|(key, (_, _, values))| (&**key, values.as_bytes())).collect();
    pth(&entries, &storages)
}

fn folder(params: &str, files: &[Vec<u8>]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("params.json"), params).unwrap();
    for (i, file) in files.iter().enumerate() {
        std::fs::write(folder.path().join(format!("consolidated.{i:02}.pth")), file).unwrap();
    }
    folder
}

fn message(folder: &TempDir) -> String {
    open_any(folder.path()).unwrap_err().to_string()
}

#[test]
fn a_single_file_is_read_in_place() {
    let norm = file(&[("norm.weight", &[4], "aabbccdd"), ("rope.freqs", &[1], "zz")]);
    let folder = folder(PARAMS, &[norm]);
    for path in [folder.path().into(), folder.path().join("consolidated.00.pth")] {
        let model = open_any(&path).unwrap();
        assert_eq!(
            (model.format, model.config.vocab, model.config.tied),
            (Format::Meta { files: 1 }, 6, true)
        );
        let tensor = model.tensor(Weight::FinalNorm, &[4]).unwrap();
        assert!(matches!(tensor.bytes(), Bytes::Held(..)));
        assert_eq!(&**tensor.bytes(), b"aabbccdd");
    }
}

#[test]
fn slices_are_joined_along_their_own_axes() {
    // Split by dimension, as in Llama 1 and 2: the columns of the embedding and the rows of wq.
    let name = |weight| Naming::Meta.name(Weight::Layer(0, weight));
    let (wq, wo) = (name(LayerWeight::Wq), name(LayerWeight::Wo));
    let slice = |letters: [&str; 4]| {
        file(&[
            ("norm.weight", &[4], "nnnnnnnn"),
            (&wq, &[2, 4], letters[0]),
            (&wo, &[4, 2], letters[1]),
            ("tok_embeddings.weight", &[6, 2], letters[2]),
            ("output.weight", &[3, 4], letters[3]),
        ])
    };
    let (a, b) = ("a".repeat(24), "b".repeat(24));
    let files = [
        slice(["aaaaaaaaAAAAAAAA", "aaaaAAAAaaaaAAAA", &a, &a]),
        slice(["bbbbbbbbBBBBBBBB", "bbbbBBBBbbbbBBBB", &b, &b]),
    ];
    let folder = folder(&PARAMS.replace("6}", "-1}"), &files);
    let model = open_any(folder.path()).unwrap();
    assert_eq!((model.format, model.config.vocab, model.config.tied), (Format::Meta { files: 2 }, 6, false));
    let bytes = |weight: Weight| model.tensor(weight, &weight.shape(&model.config)).unwrap().bytes().to_vec();
    assert_eq!(bytes(Weight::FinalNorm), b"nnnnnnnn");
    assert_eq!(bytes(Weight::Layer(0, LayerWeight::Wq)), b"aaaaaaaaAAAAAAAAbbbbbbbbBBBBBBBB");
    assert_eq!(bytes(Weight::Layer(0, LayerWeight::Wo)), b"aaaabbbbAAAABBBBaaaabbbbAAAABBBB");
    assert_eq!(bytes(Weight::Embedding), b"aaaabbbb".repeat(6));
    assert_eq!(bytes(Weight::Head), [a, b].concat().into_bytes());
}

#[test]
fn the_embedding_by_vocabulary_as_in_llama_3() {
    let slice = |letter: &str| file(&[("tok_embeddings.weight", &[3, 4], &letter.repeat(24))]);
    for vocab in ["6}", "-1}"] {
        let folder = folder(&PARAMS.replace("6}", vocab), &[slice("a"), slice("b")]);
        let model = open_any(folder.path()).unwrap();
        let bytes = model.tensor(Weight::Embedding, &[6, 4]).unwrap().bytes().to_vec();
        assert_eq!(bytes, [[b'a'; 24], [b'b'; 24]].concat());
    }
}

#[test]
fn slices_that_do_not_add_up_are_named() {
    let embedding = |shape: &[usize]| {
        file(&[("tok_embeddings.weight", shape, &"a".repeat(2 * shape.iter().product::<usize>()))])
    };
    let text = message(&folder(PARAMS, &[embedding(&[3, 4]), embedding(&[4, 4])]));
    assert!(text.contains("do not add up") && text.contains("[6, 4]") && text.contains("[4, 4]"), "{text}");
    let text = message(&folder(PARAMS, &[embedding(&[3, 4]), file(&[("norm.weight", &[4], "nnnnnnnn")])]));
    assert!(text.contains("is not in every file") && text.contains("consolidated.00.pth"), "{text}");
}

#[test]
fn missing_files_are_named() {
    let norm = file(&[("norm.weight", &[4], "aabbccdd")]);
    let folder = folder(PARAMS, &[norm.clone(), norm.clone(), norm]);
    std::fs::remove_file(folder.path().join("consolidated.01.pth")).unwrap();
    assert!(message(&folder).contains("consolidated.01.pth is missing"));
    std::fs::remove_file(folder.path().join("consolidated.02.pth")).unwrap();
    std::fs::remove_file(folder.path().join("params.json")).unwrap();
    assert!(message(&folder).contains("params.json is missing"));
}

#[test]
fn slices_under_many_names_do_not_fill_the_memory() {
    // One megabyte that serves as the slice of a thousand matrices.
    let values = "a".repeat(1 << 20);
    let names: Vec<String> =
        (0..1000).map(|layer| Naming::Meta.name(Weight::Layer(layer, LayerWeight::Wq))).collect();
    let entries: Vec<_> = names
        .iter()
        .map(|name| (&**name, "Half", "0", 1 << 19, 0, &[512, 1024][..], &[1024, 1][..]))
        .collect();
    let slice = pth(&entries, &[("0", values.as_bytes())]);
    let params = r#"{"dim": 1024, "n_layers": 1000, "n_heads": 2, "vocab_size": 6}"#;
    let text = message(&folder(params, &[slice.clone(), slice]));
    assert!(text.contains("much more memory than the files"), "{text}");
}

/// A real file written by PyTorch, with Meta's names.
#[test]
fn a_model_that_pytorch_wrote() {
    let folder = std::env::var_os("LLAMA_TRACE_DATA")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"), PathBuf::from);
    let folder = folder.join("executorch-demo-pth");
    if !folder.is_dir() {
        eprintln!("skipped: no folder {}", folder.display());
        return;
    }
    let copy = tempfile::tempdir().unwrap();
    std::fs::copy(folder.join("demo_rand_params.pth"), copy.path().join("consolidated.00.pth")).unwrap();
    std::fs::copy(folder.join("demo_config.json"), copy.path().join("params.json")).unwrap();
    let model = open_any(copy.path()).unwrap();
    assert_eq!((model.config.ffn_dim, model.config.layers, model.config.vocab), (172, 5, 512));
    for weight in [Weight::Embedding, Weight::FinalNorm, Weight::Head] {
        model.tensor(weight, &weight.shape(&model.config)).unwrap();
    }
    for (layer, weight) in
        (0..5).flat_map(|layer| [LayerWeight::Wq, LayerWeight::W2].map(|weight| (layer, weight)))
    {
        let weight = Weight::Layer(layer, weight);
        model.tensor(weight, &weight.shape(&model.config)).unwrap();
    }
}
