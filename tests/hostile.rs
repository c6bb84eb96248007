//! Bad input: every mistake and every damaged file is answered with what is wrong, where, and what to do,
//! and an exit code of its own; never with a panic, an abort, a hang, or memory that no file justifies.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[cfg(target_os = "linux")]
#[path = "hostile/bounds.rs"]
mod bounds;
#[cfg(target_os = "linux")]
#[path = "hostile/child.rs"]
mod child;
mod common;
#[cfg(target_os = "linux")]
#[path = "hostile/frames.rs"]
mod frames;
#[cfg(target_os = "linux")]
#[path = "hostile/random.rs"]
mod random;
#[cfg(target_os = "linux")]
#[path = "hostile/trace.rs"]
mod trace;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::models::{self, BIN_VOCAB, Tensors};
use common::{command, data, fixture, llama_trace, stderr, stdout};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Asserts that `args` are refused with this exit code and a message that has every one of `texts`.
fn refused(args: &[&str], code: i32, texts: &[&str]) {
    check(&format!("{args:?}"), &llama_trace(args), code, texts);
}

fn check(what: &str, output: &Output, code: i32, texts: &[&str]) {
    let message = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{what}: {message}");
    assert!(stdout(output).is_empty(), "{what} prints {:?}", stdout(output));
    // A model that could be opened is named before what is wrong with the rest.
    assert!(message.lines().take(2).any(|line| line.starts_with("error: ")), "{what}: {message}");
    for text in ["expected: ", "next: "].iter().chain(texts) {
        assert!(message.contains(text), "{what}: `{text}` is not in\n{message}");
    }
    // Names and texts come from files: none of them may move the cursor, or fill the screen.
    assert!(!message.contains('\x1b') && message.len() < 4000, "{what}: {message:?}");
}

/// The arguments that open the model at `path` and run it on ids.
fn run(path: &Path) -> [&str; 5] {
    ["log", "--model", path.to_str().unwrap(), "--ids", "1,2"]
}

/// Writes `bytes` to a file of this name.
fn file(folder: &TempDir, name: &str, bytes: impl AsRef<[u8]>) -> std::path::PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn a_path_without_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.bin");
    refused(&run(&missing), 3, &["where: ", "missing.bin", "found: No such file", "check the spelling"]);
    refused(&run(folder.path()), 3, &["config.json with model.safetensors", "found: no model file at all"]);
    file(&folder, "pytorch_model.bin", "");
    file(&folder, "config.json", "{}");
    refused(&run(folder.path()), 3, &["found: config.json, pytorch_model.bin"]);
    let text = file(&folder, "notes.bin", "a".repeat(100));
    refused(&run(&text), 3, &["notes.bin", "expected: ", "found: ", "llama2.c"]);
    let empty = file(&folder, "empty.bin", "");
    refused(&run(&empty), 3, &["the file is empty", "found: 0 bytes"]);
    for (name, bytes, kind) in [
        ("m.gguf", &b"GGUF\x03\0\0\0"[..], "GGUF"),
        ("m.pth", b"PK\x03\x04", "zip archive"),
        ("m.bin", b"version https://git-lfs.github.com/spec/v1", "git lfs pull"),
    ] {
        refused(&run(&file(&folder, name, bytes)), 3, &[name, kind]);
    }
}

/// A pipe has no end before somebody writes to it, and a device may have none: limits turn waiting for it
/// into a failure.
#[cfg(target_os = "linux")]
#[test]
fn what_is_no_regular_file_is_never_read() {
    let refused = |args: &[&str], texts: &[&str]| {
        let end = child::run(args, &[]);
        assert_eq!((end.wrong(), end.code), (None, Some(3)));
        assert!(texts.iter().all(|text| end.stderr.contains(text)), "{}", end.stderr);
    };
    refused(&run(Path::new("/dev/zero")), &["not a regular file", "device"]);
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    refused(&run(&pipe), &["not a regular file", "pipe"]);
    let model = models::golden("gqa", |_| {});
    fs::rename(&pipe, model.path().join("tokenizer.json")).unwrap();
    refused(&run(model.path()), &["tokenizer.json", "not a regular file"]);
}

/// A prompt without an end.
#[cfg(target_os = "linux")]
#[test]
fn a_prompt_is_read_up_to_a_limit() {
    let end = child::run(&["--prompt-file", "/dev/zero"], &[]);
    assert_eq!((end.wrong(), end.code), (None, Some(4)));
    assert!(end.stderr.contains("at most 67108864 bytes"), "{}", end.stderr);
}

#[test]
fn a_bin_file_of_another_size_than_its_header_says() {
    let folder = tempfile::tempdir().unwrap();
    let whole = models::bin();
    let good = file(&folder, "good.bin", &whole);
    assert!(llama_trace(run(&good)).status.success(), "the file is right before it is damaged");
    let size = whole.len();
    for length in [28, 100, size / 2, size - 4, size - 1] {
        let path = file(&folder, "m.bin", &whole[..length]);
        refused(
            &run(&path),
            3,
            &["m.bin", &format!("{size} bytes for dim 8"), &format!("found: {length} bytes")],
        );
    }
    for more in [1, 4, 100_000] {
        let path = file(&folder, "m.bin", [&whole[..], &vec![0; more]].concat());
        refused(&run(&path), 3, &[&format!("{size} bytes for"), &format!("found: {} bytes", size + more)]);
    }
    refused(&run(&file(&folder, "m.bin", &whole[..27])), 3, &["found: 27 bytes, less than a header"]);
}

#[test]
fn a_bin_file_with_absurd_numbers() {
    let folder = tempfile::tempdir().unwrap();
    for field in 0..7 {
        for number in [0, -1, i32::MIN, i32::MAX, 1 << 20, 1 << 30] {
            let mut bytes = models::bin();
            bytes[4 * field..4 * field + 4].copy_from_slice(&i32::to_le_bytes(number));
            refused(&run(&file(&folder, "m.bin", &bytes)), 3, &["where: ", "m.bin", "found: "]);
        }
    }
}

/// A llama2.c file of version 2 with groups of `group` values: dim 8, hidden 12, 1 layer, 2 heads, 1 kv head, a
/// tied vocabulary of 40.
fn version_2(group: usize) -> Vec<u8> {
    let numbers = [8, 12, 1, 2, 1, 40, 16].iter().flat_map(|number: &i32| number.to_le_bytes());
    let mut bytes: Vec<u8> = b"24ka\x02\0\0\0".iter().copied().chain(numbers).chain([1]).collect();
    bytes.extend((group as i32).to_le_bytes());
    bytes.resize(256, 0);
    bytes.extend(1.0_f32.to_le_bytes().repeat(3 * 8));
    for count in [40_usize * 8, 8 * 8, 4 * 8, 4 * 8, 8 * 8, 12 * 8, 8 * 12, 12 * 8] {
        bytes.extend((0..count).map(|i| (i * 37 % 251) as u8));
        bytes.extend(0.01_f32.to_le_bytes().repeat(count.div_ceil(group)));
    }
    bytes
}

#[test]
fn a_version_2_file_with_groups_that_cannot_be() {
    let folder = tempfile::tempdir().unwrap();
    let whole = version_2(5);
    for group in [0_i32, -1, -32, i32::MIN] {
        let mut bytes = whole.clone();
        bytes[37..41].copy_from_slice(&group.to_le_bytes());
        refused(&run(&file(&folder, "m.bin", &bytes)), 3, &["m.bin", &format!("groups of {group} values")]);
    }
    // Other groups ask for another number of scales.
    for group in [1_i32, 4, 6, 1000, i32::MAX] {
        let mut bytes = whole.clone();
        bytes[37..41].copy_from_slice(&group.to_le_bytes());
        let found = format!("found: {} bytes", whole.len());
        refused(&run(&file(&folder, "m.bin", &bytes)), 3, &[&format!("groups of {group}"), &found]);
    }
    for length in [8, 40, 255, 256, 300, whole.len() / 2, whole.len() - 1] {
        refused(&run(&file(&folder, "m.bin", &whole[..length])), 3, &["m.bin", &format!("{length} bytes")]);
    }
    refused(&run(&file(&folder, "m.bin", [&whole[..], &[0]].concat())), 3, &["m.bin", "found: "]);
}

/// One group for a whole matrix is odd and allowed; it takes no more memory than any other.
#[cfg(target_os = "linux")]
#[test]
fn a_version_2_file_with_the_smallest_and_the_largest_groups_runs() {
    let folder = tempfile::tempdir().unwrap();
    for group in [1, 5, 7, 320, 1 << 20, i32::MAX as usize] {
        let path = file(&folder, "m.bin", version_2(group));
        for precision in ["q8", "f32", "bf16"] {
            let args = [&run(&path)[..], &["--values", "-n", "3", "--precision", precision]].concat();
            let end = child::run(&args, &[folder.path()]);
            assert_eq!((end.wrong(), end.code), (None, Some(0)), "{group} {precision}");
        }
    }
}

/// Scales that are no numbers go through a run like weights that are none.
#[test]
fn scales_that_are_no_numbers_run_with_a_line_that_says_so() {
    let folder = tempfile::tempdir().unwrap();
    for value in [f32::NAN, f32::INFINITY] {
        let mut bytes = version_2(4096);
        let end = bytes.len();
        bytes[end - 4..].copy_from_slice(&value.to_le_bytes());
        let output = llama_trace(run(&file(&folder, "m.bin", &bytes)).iter().chain(&["--values"]));
        assert!(output.status.success(), "{value}: {}", stderr(&output));
        assert!(stderr(&output).contains("not a number (NaN)"), "{value}: {}", stderr(&output));
    }
}

#[test]
fn a_safetensors_file_of_another_size_than_its_header_says() {
    let model = models::golden("gqa", |_| {});
    let path = model.path().join("model.safetensors");
    let whole = fs::read(&path).unwrap();
    let size = whole.len();
    for (length, texts) in [
        (0, &["the file is empty", "0 bytes"][..]),
        (5, &["cut off", "found: 5 bytes"]),
        (8, &["cut off", "8 bytes"]),
        (100, &["cut off", "in a file of 100 bytes"]),
        (size / 2, &["cut off", "bytes by its header"]),
        (size - 1, &["cut off", &format!("expected: {size} bytes"), &format!("found: {} bytes", size - 1)]),
    ] {
        fs::write(&path, &whole[..length]).unwrap();
        refused(&run(model.path()), 3, &[&["model.safetensors"], texts].concat());
    }
    fs::write(&path, [&whole[..], b"more"].concat()).unwrap();
    let texts = ["after its last tensor", &format!("{size} bytes by"), &format!("found: {} bytes", size + 4)];
    refused(&run(model.path()), 3, &texts);
    for length in [0, 1, 1 << 40, u64::MAX] {
        fs::write(&path, [&u64::to_le_bytes(length)[..], &whole[8..]].concat()).unwrap();
        refused(&run(model.path()), 3, &["model.safetensors", "header"]);
    }
}

#[test]
fn a_tensor_of_the_wrong_shape() {
    let name = "model.layers.1.self_attn.k_proj.weight";
    let model = models::golden("gqa", |tensors| {
        tensors.get_mut(name).unwrap().0.reverse();
    });
    let (right, wrong) = (shape(name, |_| {}), shape(name, |shape| shape.reverse()));
    assert_ne!(right, wrong);
    refused(
        &run(model.path()),
        3,
        &[name, "wrong shape", &format!("expected: {right}"), &format!("found: {wrong}"), "key projection"],
    );
    // The configuration of another model makes every tensor wrong.
    let model = models::golden("gqa", |_| {});
    models::edit_json(&model.path().join("config.json"), |config| config["intermediate_size"] = json!(24));
    refused(&run(model.path()), 3, &["mlp.gate_proj.weight", "[24, ", "configuration"]);
    models::edit_json(&model.path().join("config.json"), |config| {
        config["num_hidden_layers"] = json!(1_000_000);
    });
    refused(&run(model.path()), 3, &["mlp.gate_proj.weight", "wrong shape"]);
}

/// The shape that a tensor of the golden model has, as messages write it.
fn shape(name: &str, change: impl Fn(&mut Vec<usize>)) -> String {
    let mut shape = models::tensors(&fixture("golden/gqa"))[name].0.clone();
    change(&mut shape);
    format!("{shape:?}")
}

#[test]
fn a_missing_tensor_is_named_with_the_ones_nearest_to_it() {
    let rename = |from: &'static str, to: &'static str| {
        move |tensors: &mut Tensors| {
            let tensor = tensors.remove(from).unwrap();
            tensors.insert(to.into(), tensor);
        }
    };
    let (from, to) = ("model.layers.0.mlp.down_proj.weight", "model.layers.0.mlp.downproj.weight");
    let model = models::golden("gqa", rename(from, to));
    let texts = [
        format!("no tensor `{from}`"),
        format!("found: nearest names: `{to}`, `model.layers.1.mlp.down_proj.weight`"),
    ];
    refused(&run(model.path()), 3, &[&texts[0], &texts[1], "down projection"]);

    let model = models::golden("gqa", |tensors| tensors.retain(|name, _| !name.contains("layers.1.")));
    refused(
        &run(model.path()),
        3,
        &["model.layers.1.input_layernorm.weight", "nearest names: `model.layers.0.input"],
    );
    let model = models::golden("gqa", Tensors::clear);
    refused(&run(model.path()), 3, &["found: no tensors at all"]);
    // A name that would clear the screen.
    let model = models::golden("gqa", rename("model.norm.weight", "\x1b[2Jmodel.norm.weight"));
    refused(&run(model.path()), 3, &["`\\u{1b}[2Jmodel.norm.weight`"]);
}

/// A change of a JSON file, and what the message about it says.
type Change<'a> = (&'a dyn Fn(&mut Value), &'a [&'a str]);

#[test]
fn a_configuration_that_is_none() {
    let cases: &[Change<'_>] = &[
        (&|config| *config = json!([]), &["no JSON object"]),
        (&|config| *config = json!({}), &["model_type", "\"llama\""]),
        (&|config| config["model_type"] = json!("gemma2"), &["\"gemma2\"", "\"llama\""]),
        (&|config| drop(remove(config, "hidden_size")), &["`hidden_size`", "found: no such field"]),
        (
            &|config| config["hidden_size"] = json!("64"),
            &["`hidden_size`", "a whole number", "found: \"64\""],
        ),
        (&|config| config["num_hidden_layers"] = json!(0), &["number of layers", "found: 0"]),
        (&|config| config["num_key_value_heads"] = json!(3), &["key/value heads", "a divisor"]),
        (&|config| config["head_dim"] = json!(7), &["head width", "even", "found: 7"]),
        (&|config| config["vocab_size"] = json!(u64::MAX), &["`vocab_size`"]),
        (&|config| config["rms_norm_eps"] = json!(-1), &["RMSNorm epsilon", "found: -1"]),
        (&|config| config["rope_parameters"]["rope_theta"] = json!(0), &["RoPE theta", "found: 0"]),
        (
            &|config| config["rope_parameters"]["rope_type"] = json!("yarn"),
            &["`rope_parameters.rope_type`", "\"yarn\""],
        ),
        (&|config| config["hidden_act"] = json!("gelu"), &["`hidden_act`", "\"gelu\""]),
        (&|config| config["quantization_config"] = json!({"quant_method": "awq"}), &["quantized", "awq"]),
        (&|config| config["eos_token_id"] = json!([-1]), &["`eos_token_id`", "a token id"]),
    ];
    for (change, texts) in cases {
        let model = models::golden("gqa", |_| {});
        models::edit_json(&model.path().join("config.json"), change);
        refused(&run(model.path()), 3, &[&["where: ", "config.json"], *texts].concat());
    }
    let model = models::golden("gqa", |_| {});
    for (text, found) in [("", "EOF"), ("{", "EOF"), ("nonsense", "line 1"), ("{\"a\": 1} x", "trailing")] {
        fs::write(model.path().join("config.json"), text).unwrap();
        refused(&run(model.path()), 3, &["no JSON object", "config.json", found]);
    }
    fs::write(model.path().join("config.json"), [0xff]).unwrap();
    refused(&run(model.path()), 3, &["UTF-8", "config.json"]);
    fs::write(model.path().join("config.json"), "[".repeat(100_000)).unwrap();
    refused(&run(model.path()), 3, &["config.json", "found: "]);
}

fn remove(object: &mut Value, name: &str) -> Option<Value> {
    object.as_object_mut().unwrap().shift_remove(name)
}

#[test]
fn an_index_of_shards_that_is_wrong() {
    let cases: &[Change<'_>] = &[
        (&|index| *index = json!(null), &["index of shards cannot be read", "weight_map"]),
        (
            &|index| index["weight_map"]["lm_head.weight"] = json!("no.safetensors"),
            &["`no.safetensors` is missing"],
        ),
        (
            &|index| index["weight_map"]["lm_head.weight"] = json!("../x"),
            &["outside the directory", "`../x`"],
        ),
        (&|index| index["weight_map"]["none"] = json!("a.safetensors"), &["`none` is not in the shard"]),
        (&|index| drop(remove(&mut index["weight_map"], "model.norm.weight")), &["model.norm.weight"]),
    ];
    for (change, texts) in cases {
        let model = models::sharded();
        assert!(
            llama_trace(run(model.path())).status.success(),
            "the files are right before they are damaged"
        );
        models::edit_json(&model.path().join("model.safetensors.index.json"), change);
        refused(&run(model.path()), 3, texts);
    }
}

#[test]
fn a_tokenizer_that_is_none_or_of_another_model() {
    let folder = tempfile::tempdir().unwrap();
    let model = file(&folder, "m.bin", models::bin());
    let args = |tokenizer: &'static str| {
        let path = folder.path().join(tokenizer).display().to_string();
        ["--model", model.to_str().unwrap(), "--prompt", "ab", "-n", "1", "--tokenizer"]
            .map(str::to_owned)
            .into_iter()
            .chain([path])
            .collect::<Vec<_>>()
    };
    let refused = |tokenizer, texts: &[&str]| {
        let args = args(tokenizer);
        refused(&args.iter().map(String::as_str).collect::<Vec<_>>(), 3, &[&[tokenizer], texts].concat());
    };
    file(&folder, "good.bin", models::tok_bin(BIN_VOCAB));
    assert!(llama_trace(args("good.bin")).status.success(), "the file is right before it is damaged");
    file(&folder, "fewer.bin", models::tok_bin(BIN_VOCAB - 1));
    refused("fewer.bin", &["cut off", "exactly 300 tokens", "token 299"]);
    file(&folder, "more.bin", models::tok_bin(BIN_VOCAB + 1));
    refused("more.bin", &["more tokens than the model", "exactly 300 tokens", "after token 299"]);
    let mut long = models::tok_bin(BIN_VOCAB);
    long[8..12].copy_from_slice(&i32::MAX.to_le_bytes());
    file(&folder, "long.bin", long);
    refused("long.bin", &["cut off", "token 0"]);
    refused("missing.json", &["cannot be opened", "No such file"]);
    file(&folder, "empty.json", "");
    refused("empty.json", &["the file is empty"]);
    file(&folder, "damaged.json", "{\"model\": {\"type\": \"BPE\"");
    refused("damaged.json", &["a tokenizer.json", "EOF"]);
    file(&folder, "other.json", "{\"model\": {\"type\": \"WordPiece\"}}");
    refused("other.json", &["BPE, Unigram, WordLevel", "`WordPiece`"]);
    fs::create_dir(folder.path().join("folder")).unwrap();
    refused("folder", &["found: a directory"]);
}

#[test]
fn a_prompt_that_cannot_be_run() {
    let long = vec!["word"; 2000].join(" ");
    let ids = vec!["1"; 600].join(",");
    refused(
        &["log", "--prompt", &long],
        4,
        &["longer than the model's context", "at most 512 tokens", "found: "],
    );
    refused(
        &["log", "--ids", &ids],
        4,
        &["longer than the model's context", "at most 512", "found: 600 tokens"],
    );
    refused(&["--ids", &ids], 4, &["found: 600 tokens"]);
    refused(
        &["log", "--ids", "1,1024"],
        4,
        &["outside the model's vocabulary", "token 1 of", "from 0 to 1023", "found: 1024"],
    );
    refused(&["--ids", "4294967296"], 4, &["larger than those of any vocabulary", "4294967296"]);
    refused(&["--ids=-1"], 4, &["`-1`"]);
    refused(&["--ids", " , "], 4, &["no tokens"]);
    refused(&["--prompt-file", "/"], 4, &["where: /", "found: Is a directory"]);
    let folder = tempfile::tempdir().unwrap();
    let latin = file(&folder, "latin", b"caf\xe9");
    refused(&["--prompt-file", latin.to_str().unwrap()], 4, &["latin", "UTF-8", "byte 3"]);
    refused(&["--ids", &format!("@{}", latin.display())], 4, &["latin", "UTF-8"]);
}

#[test]
fn a_stage_a_layer_or_a_pass_that_does_not_exist() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let export = |args: &[&str], texts: &[&str]| {
        let all = ["export", "--prompt", "x", "--out", out.to_str().unwrap()];
        refused(&[&all[..], args].concat(), 2, texts);
        assert!(!out.exists());
    };
    export(&["--stages", "nothing"], &["tokens, embedding", "softmax", "sampled", "found: ", "nothing"]);
    export(&["--stages", "xq,sofmax"], &["did you mean `softmax`?"]);
    export(&["--stages", ""], &["softmax"]);
    export(&["--stages", "keys_t"], &["is a view", "`keys`"]);
    export(&["--layers", "4"], &["from 0 to 3", "`4`"]);
    export(&["--layers", "3-1"], &["from 0 to 3", "`3-1`"]);
    export(&["--layers", "0-99999999999999999999"], &["from 0 to 3"]);
    export(&["--passes", "1"], &["0, the only pass", "`1`", "-n 2"]);
    export(&["--pass", "9"], &["no pass 9", "add -n 10"]);
    export(&["--pass", "600"], &["room for"]);
    export(&["--layer", "x"], &["no list of numbers of a layer", "`x`", "leave --layer out"]);
    export(&["--layer", "-1"], &["no list of numbers", "from 0 to 3"]);
    export(&["--layer", "3-1"], &["runs backwards", "smaller number first: 1-3"]);
    export(&["--stage", "foo"], &["next: choose one of these"]);
    export(&["--stage", "ffn"], &["did you mean `ffn_"]);
    export(&["-n", "0"], &["-n 1 or more"]);
    // What this run does not have is not left out in silence.
    export(&["--stage", "xq,xq_norm"], &["has no xq_norm", "Qwen3"]);
    export(&["--stage", "ffn_norm_q8"], &["has no ffn_norm_q8", "--precision q8"]);
    export(&["-n", "3", "--pass", "1-2", "--stage", "mask"], &["pass 1 has no mask"]);
}

#[test]
fn options_that_ask_for_what_cannot_be() {
    refused(&["log", "--ids", "1", "--threads", "0"], 2, &["--threads from 1 to 1024", "found: 0"]);
    refused(
        &["log", "--ids", "1", "--threads", "1000000"],
        2,
        &["--threads from 1 to 1024", "found: 1000000"],
    );
    refused(&["log", "--ids", "1", "--cpu-kernel", "abacus"], 2, &["portable", "found: `abacus`"]);
    refused(&["log", "--ids", "1", "--temperature=-1"], 2, &["--temperature", "found: -1"]);
    refused(&["log", "--ids", "1", "--top-p", "inf"], 2, &["--top-p", "up to 1", "found: inf"]);
    refused(&["bench", "--prompt-tokens", "4,513"], 2, &["from 1 to 512", "found: 513"]);
    refused(&["bench", "--shape", "llama-9"], 2, &["llama-3.2-1b", "`llama-9`"]);
    refused(&["man", "nothing"], 2, &["no such command", "export", "`nothing`"]);
}

#[test]
fn a_number_that_is_none_is_answered_by_what_a_number_is() {
    let told = |args: &[&str]| {
        let output = llama_trace(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        stderr(&output)
    };
    for args in [
        &["--prompt", "x", "-n", "-1"][..],
        &["--prompt", "x", "-n", "many"],
        &["--prompt", "x", "--tokens=-1"],
        &["chat", "-n", "-1"],
        &["log", "--top-k", "-1"],
        &["log", "--seed", "-1"],
        &["log", "--threads", "-1"],
        &["bench", "--gen", "-1"],
        &["bench", "--cached", "-1"],
        &["bench", "--prompt-tokens", "-1"],
        &["--step", "--pass", "-1"],
        &["--step", "--head", "-1"],
    ] {
        let told = told(args);
        assert!(told.contains("a whole number is expected, 0 or more"), "{args:?}: {told}");
    }
    // A number that is one, but too large, is not called something else.
    assert!(told(&["log", "-n", "99999999999999999999999"]).contains("a smaller number is expected"));
    assert!(told(&["lens", "--top", "0"]).contains("1 or more is expected"));
    refused(&["bench", "--prompt-tokens", "0"], 2, &["--prompt-tokens", "lengths from 1", "found: 0"]);
    let one = told(&["--step", "--layers", "0,2"]);
    assert!(one.contains("'0,2'") && one.contains("--step opens at one place"), "{one}");
    assert!(told(&["completions", "cmd"]).contains("zsh"));
}

/// However many tokens are asked for, no more than fit into the context take memory or time.
#[test]
fn absurd_numbers_of_tokens_end_with_the_context() {
    let model = models::golden("gqa", |_| {});
    models::edit_json(&model.path().join("config.json"), |config| {
        config["max_position_embeddings"] = json!(6);
    });
    let path = model.path().to_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    for (count, number) in ["1000000000000", "18446744073709551615"].iter().enumerate() {
        let out = folder.path().join(count.to_string());
        let export = ["export", "--stages", "sampled", "--out", out.to_str().unwrap()];
        for command in [&["log"][..], &[], &export] {
            let output =
                llama_trace(command.iter().chain(&["--model", path, "--ids", "1,2,3,4", "-n", number]));
            assert!(output.status.success(), "{command:?}: {}", stderr(&output));
            assert!(
                stderr(&output).contains("context of 6 tokens is full"),
                "{command:?}: {}",
                stderr(&output)
            );
        }
        assert_eq!(fs::read_dir(&out).unwrap().count(), 1 + 3, "the manifest and three passes");
        let out = folder.path().join("never");
        let args =
            ["export", "--model", path, "--ids", "1", "-n", number, "--passes", "0-999999999999", "--out"];
        refused(&[&args[..], &[out.to_str().unwrap()]].concat(), 2, &["from 0 to 5"]);
    }
}

#[test]
fn weights_that_are_no_numbers_run_with_a_line_that_says_so() {
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let model = models::golden("gqa", |tensors| {
            for (_, bytes) in tensors.values_mut() {
                *bytes = value.to_le_bytes().repeat(bytes.len() / 4);
            }
        });
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("dump");
        let path = model.path().to_str().unwrap();
        let all = ["--model", path, "--ids", "1,2", "-n", "2"];
        for args in [
            &[][..],
            &["--temperature", "1"],
            &["--temperature", "1", "--top-k", "3", "--top-p", "0.5"],
            &["log", "--values"],
            &["log", "--format", "json", "--values"],
            &["export", "--out", out.to_str().unwrap()],
        ] {
            let output = llama_trace(args.iter().chain(&all));
            assert!(output.status.success(), "{value} {args:?}: {}", stderr(&output));
            let told = stderr(&output).lines().filter(|line| line.contains("not a number (NaN)")).count();
            assert_eq!(told, 1, "{value} {args:?}: {}", stderr(&output));
        }
    }
}

/// A disk that is full, and a terminal that is gone, are no reason to panic.
#[cfg(target_os = "linux")]
#[test]
fn outputs_that_cannot_be_written() {
    let full = || Stdio::from(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    for args in [
        &["info"][..],
        &["log", "--prompt", "x"],
        &["--prompt", "x"],
        &["log", "--prompt", "x", "--format", "json"],
        &["--help"],
        &["log", "--help"],
        &["--version"],
    ] {
        let output = command(args).stdout(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(5), "{args:?}: {}", stderr(&output));
        let message = stderr(&output);
        assert!(message.contains("standard output") && message.contains("No space left"), "{message}");
    }
    let model = models::golden("gqa", |tensors| {
        tensors.get_mut("model.norm.weight").unwrap().1.fill(0xff);
    });
    let model = model.path().to_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("dump");
    for (args, code) in [
        (&["--model", "/nonexistent", "--prompt", "x"][..], 3),
        (&["--model", model, "--ids", "1"], 0),
        (&["log", "--model", model, "--ids", "1"], 0),
        (&["export", "--model", model, "--ids", "1", "--out", out.to_str().unwrap()], 0),
        (&["log", "--prompt", "x", "-n", "1000"], 0),
    ] {
        let output = command(args).stderr(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}");
    }
}

/// What a file of the largest header costs, in the same memory as every other file.
#[cfg(target_os = "linux")]
#[test]
fn files_of_many_and_of_long_names_stay_within_their_memory() {
    let limit = (8 << 20) - 20;
    let many = |entry: &dyn Fn(usize) -> String| {
        let mut text = String::from("{");
        for number in 0.. {
            let entry = entry(number);
            if text.len() + entry.len() + 2 > limit {
                break;
            }
            text += &entry;
            text.push(',');
        }
        text.pop();
        text + "}"
    };
    let empty = |name: &str| format!("\"{name}\":{{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}");
    let long = "x".repeat(limit - 100);
    for header in [many(&|number| empty(&number.to_string())), format!("{{{}}}", empty(&long))] {
        let model = models::golden("gqa", |_| {});
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
        fs::write(model.path().join("model.safetensors"), bytes).unwrap();
        let path = model.path().to_str().unwrap();
        for args in [&["info", "--model", path][..], &run(model.path())] {
            let end = child::run(args, &[model.path()]);
            assert_eq!(end.wrong(), None, "{args:?}");
        }
    }
    let model = models::sharded();
    let index =
        many(&|number| format!("\"{number}\":\"a.safetensors\"")).replacen('{', "{\"weight_map\":{", 1) + "}";
    fs::write(model.path().join("model.safetensors.index.json"), index).unwrap();
    let end = child::run(&run(model.path()), &[model.path()]);
    assert_eq!((end.wrong(), end.code), (None, Some(3)));
}

#[test]
fn real_files_cut_short_are_refused() {
    for name in ["stories260K.bin", "stories260K_q80.bin"] {
        let Some(path) = data(&format!("stories260K/{name}")) else { return };
        let whole = fs::read(&path).unwrap();
        let folder = tempfile::tempdir().unwrap();
        for length in [10, 28, 1000, whole.len() - 1] {
            refused(
                &run(&file(&folder, "m.bin", &whole[..length])),
                3,
                &["m.bin", &format!("{length} bytes")],
            );
        }
    }
}
