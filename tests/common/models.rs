//! Small models for tests that damage them: copies of the golden models, and a llama2.c file with its tokenizer.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::fixture;

/// Shape and F32 bytes of each tensor.
pub(crate) type Tensors = BTreeMap<String, (Vec<usize>, Vec<u8>)>;

/// The tensors of the model in `folder`.
pub(crate) fn tensors(folder: &Path) -> Tensors {
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    tensors.iter().map(|(name, view)| (name.into(), (view.shape().to_vec(), view.data().to_vec()))).collect()
}

fn write(tensors: &Tensors, path: &Path) {
    let views = tensors
        .iter()
        .map(|(name, (shape, bytes))| (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
    safetensors::serialize_to_file(views, None, path).unwrap();
}

/// A folder that has only a golden model's configuration.
fn configured(model: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let config = fixture(&format!("golden/{model}")).join("config.json");
    fs::copy(config, folder.path().join("config.json")).unwrap();
    folder
}

/// A copy of a golden model with its tensors changed by `change`.
pub(crate) fn golden(model: &str, change: impl FnOnce(&mut Tensors)) -> TempDir {
    let folder = configured(model);
    let mut tensors = tensors(&fixture(&format!("golden/{model}")));
    change(&mut tensors);
    write(&tensors, &folder.path().join("model.safetensors"));
    folder
}

/// The golden GQA model in two files, a.safetensors and b.safetensors, with their index.
pub(crate) fn sharded() -> TempDir {
    let folder = configured("gqa");
    let all = tensors(&fixture("golden/gqa"));
    let (a, b): (Tensors, Tensors) = all.into_iter().partition(|(name, _)| name.contains("layers.0."));
    let mut map = Map::new();
    for (file, tensors) in [("a.safetensors", a), ("b.safetensors", b)] {
        write(&tensors, &folder.path().join(file));
        map.extend(tensors.into_keys().map(|name| (name, json!(file))));
    }
    let index = json!({"metadata": {"total_size": 0}, "weight_map": map});
    fs::write(folder.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
    folder
}

/// Changes a JSON file by `change`.
pub(crate) fn edit_json(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    change(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

/// Number of tokens of the llama2.c model.
pub(crate) const BIN_VOCAB: usize = 300;

/// A llama2.c file: dim 8, hidden 12, 2 layers, 2 heads, 1 kv head, a tied vocabulary, context 16.
pub(crate) fn bin() -> Vec<u8> {
    let [dim, hidden, layers, heads, kv_heads, vocab, context] = [8, 12, 2, 2, 1, BIN_VOCAB, 16];
    let head_dim = dim / heads;
    let layer = 2 * dim + 2 * dim * dim + 2 * dim * kv_heads * head_dim + 3 * dim * hidden;
    let values = vocab * dim + layers * layer + dim + context * head_dim;
    let mut bytes: Vec<u8> = [dim, hidden, layers, heads, kv_heads, vocab, context]
        .iter()
        .flat_map(|&size| (size as i32).to_le_bytes())
        .collect();
    bytes.extend((0..values).flat_map(|i| ((i * 7 % 13) as f32 / 10.0 - 0.6).to_le_bytes()));
    bytes
}

/// A tokenizer.bin of `vocab` tokens: special tokens, the bytes, a few letters, and filler tokens.
pub(crate) fn tok_bin(vocab: usize) -> Vec<u8> {
    let letters = [" ", "a", "b", "ab", " a", " ab"];
    let token = |id: usize| match id {
        0 => "<unk>".to_owned(),
        1 => "\n<s>\n".to_owned(),
        2 => "\n</s>\n".to_owned(),
        3..259 => format!("<0x{:02X}>", id - 3),
        _ => letters.get(id - 259).map_or_else(|| format!("t{id}"), |&text| text.to_owned()),
    };
    let mut bytes = 6_i32.to_le_bytes().to_vec();
    for id in 0..vocab {
        let token = token(id);
        bytes.extend((-(id as f32)).to_le_bytes());
        bytes.extend((token.len() as i32).to_le_bytes());
        bytes.extend(token.as_bytes());
    }
    bytes
}

/// A tokenizer.model in Llama 3's format: the 256 bytes have ranks 0 to 255, and `tokens` have the ranks from 256 on.
pub(crate) fn ranks(tokens: &[&str]) -> String {
    let bytes = (0..=u8::MAX).map(|byte| vec![byte]);
    let all = bytes.chain(tokens.iter().map(|token| token.as_bytes().to_vec())).zip(0..);
    all.map(|(token, rank): (_, u32)| format!("{} {rank}\n", STANDARD.encode(token))).collect()
}

/// Writes a model of zeros with this number of layers, D, F, heads and V into `folder`. The file is sparse.
pub(crate) fn zeros(folder: &Path, [layers, dim, hidden, heads, vocab]: [usize; 5]) {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": dim,
        "intermediate_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": heads, "vocab_size": vocab, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": true, "torch_dtype": "float32",
    });
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let (mut header, mut end) = (Map::new(), 0);
    let mut add = |name: String, shape: &[usize]| {
        let start = end;
        end += 4 * shape.iter().product::<usize>();
        header.insert(name, json!({"dtype": "F32", "shape": shape, "data_offsets": [start, end]}));
    };
    add("model.embed_tokens.weight".into(), &[vocab, dim]);
    add("model.norm.weight".into(), &[dim]);
    for layer in 0..layers {
        let mut add = |name: &str, shape: &[usize]| add(format!("model.layers.{layer}.{name}.weight"), shape);
        for name in ["q_proj", "k_proj", "v_proj", "o_proj"] {
            add(&format!("self_attn.{name}"), &[dim, dim]);
        }
        add("mlp.gate_proj", &[hidden, dim]);
        add("mlp.up_proj", &[hidden, dim]);
        add("mlp.down_proj", &[dim, hidden]);
        add("input_layernorm", &[dim]);
        add("post_attention_layernorm", &[dim]);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let path = folder.join("model.safetensors");
    let head = [&(header.len() as u64).to_le_bytes()[..], &header].concat();
    fs::write(&path, &head).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len((head.len() + end) as u64).unwrap();
}
