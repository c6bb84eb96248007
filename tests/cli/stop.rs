//! A process that is told to stop in the middle of long work.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::{command, files_and_folders};

/// A model of zeros whose pass over a long prompt takes a processor minutes by plain loops. The file is as sparse as
/// its values.
fn slow_model(folder: &Path) {
    let (layers, dim, hidden, vocab) = (16, 512, 2048, 300);
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": dim,
        "intermediate_size": hidden, "num_hidden_layers": layers, "num_attention_heads": 8,
        "num_key_value_heads": 8, "vocab_size": vocab, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": true, "torch_dtype": "float32",
    });
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    let mut add = |name: String, shape: &[usize]| {
        let start = end;
        end += 4 * shape.iter().product::<usize>();
        let tensor = serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [start, end]});
        header.insert(name, tensor);
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
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_len((head.len() + end) as u64).unwrap();
}

/// Twenty times the half second in which a request to stop is answered: machines that test are busy.
const PATIENCE: Duration = Duration::from_secs(10);

#[test]
fn ctrl_c_ends_an_export_in_the_middle_of_its_one_long_pass() {
    let folder = tempfile::tempdir().unwrap();
    slow_model(folder.path());
    let place = tempfile::tempdir().unwrap();
    let ids: Vec<String> = (0..4000).map(|i| (i % 300).to_string()).collect();
    let ids_file = folder.path().join("ids.txt");
    fs::write(&ids_file, ids.join(" ")).unwrap();
    let mut child = command(["export", "--cpu-kernel", "portable", "--stages", "sampled", "--ids"])
        .arg(format!("@{}", ids_file.display()))
        .arg("--model")
        .arg(folder.path())
        .arg("--out")
        .arg(place.path().join("dump"))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while files_and_folders(place.path()).is_empty() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it began");
        std::thread::sleep(Duration::from_millis(10));
    }
    // Into the pass.
    std::thread::sleep(Duration::from_millis(500));
    assert!(child.try_wait().unwrap().is_none(), "the pass is not long enough for this test");
    let pid = child.id().to_string();
    let asked = Instant::now();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if asked.elapsed() > PATIENCE => {
                child.kill().unwrap();
                panic!("it went on for {PATIENCE:?} after Ctrl-C");
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    assert_eq!(status.code(), Some(130));
    assert!(files_and_folders(place.path()).is_empty(), "something is left behind");
}
