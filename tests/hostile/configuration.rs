//! Files in the folder of the weights: config.json and tokenizer.json.

use std::fs;

use serde_json::json;

use super::common::llama_trace;
use super::common::models::{self, BIN_VOCAB};
use super::{Change, file, refused, remove, run};

#[test]
fn an_invalid_configuration_is_refused() {
    let cases: &[Change<'_>] = &[
        (&|config| *config = json!([]), &["not a JSON object"]),
        (&|config| *config = json!({}), &["model_type", "\"llama\""]),
        (&|config| config["model_type"] = json!("gpt2"), &["\"gpt2\"", "\"llama\""]),
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
            &|config| config["rope_parameters"]["rope_type"] = json!("spiral"),
            &["`rope_parameters.rope_type`", "\"spiral\""],
        ),
        (&|config| config["hidden_act"] = json!("relu"), &["`hidden_act`", "\"relu\""]),
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
        refused(&run(model.path()), 3, &["not a JSON object", "config.json", found]);
    }
    fs::write(model.path().join("config.json"), [0xff]).unwrap();
    refused(&run(model.path()), 3, &["UTF-8", "config.json"]);
    fs::write(model.path().join("config.json"), "[".repeat(100_000)).unwrap();
    refused(&run(model.path()), 3, &["config.json", "found: "]);
}

#[test]
fn an_invalid_tokenizer_or_one_of_another_model_is_refused() {
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
    refused("damaged.json", &["a valid tokenizer.json", "EOF"]);
    file(&folder, "other.json", "{\"model\": {\"type\": \"WordPiece\"}}");
    refused("other.json", &["BPE, Unigram, WordLevel", "`WordPiece`"]);
    fs::create_dir(folder.path().join("folder")).unwrap();
    refused("folder", &["found: a directory"]);
}
