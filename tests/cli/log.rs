//! `log`: every step, in the order of the pass.

use serde_json::Value;

use super::common::llama_trace;
use super::{PROMPT, ok};

#[test]
fn the_log_has_every_step_in_order() {
    let text = ok(&llama_trace(["log", "--prompt", PROMPT, "-n", "2", "--values"]));
    for expected in [
        "pass 0 (prefill), 5 tokens after 0 cached: \"<|begin_of_text|>\" \"Once\" \" upon\" \" a\" \" time\"",
        "pass 1 (decode), 1 token after 5 cached",
        "layer 0 of 0-3",
        "layer 3 of 0-3",
        "transpose    keys (K=5, ",
        "[view]",
        "[derived]",
        "-inf×10",
    ] {
        assert!(text.contains(expected), "{expected} is not in\n{text}");
    }
    let masks = text.lines().filter(|line| line.contains("-> mask ")).count();
    assert_eq!(masks, 1, "a decode pass hides nothing");

    let json = ok(&llama_trace(["log", "--prompt", PROMPT, "--format", "json", "--values"]));
    let lines: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let layers = lines.iter().filter_map(|line| line["layer"].as_u64()).max().unwrap() + 1;
    assert_eq!(lines.len() as u64, 10 + layers * (24 + 7));
    for line in &lines {
        let took = line["kind"] == "run";
        assert_eq!(line["time_us"].is_number(), took, "{line}");
    }
    let softmax = lines.iter().find(|line| line["step"] == "softmax").unwrap();
    assert_eq!(softmax["values"]["max"], 1.0);
    assert_eq!(softmax["inputs"][0]["name"], "masked_scores");
}

#[test]
fn the_log_counts_layers_from_0_and_takes_the_selections_of_export() {
    let all = ok(&llama_trace(["log", "--prompt", PROMPT]));
    assert!(!all.contains("layer 4") && !all.contains(" / "), "{all}");
    let args = [
        "log",
        "--prompt",
        PROMPT,
        "-n",
        "3",
        "--pass",
        "1-2",
        "--layers",
        "0,2",
        "--stage",
        "xq,keys_t,logits",
    ];
    let text = ok(&llama_trace(args));
    let places = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| line.starts_with("[p"));
        let place = |line: &str| line.split_whitespace().take(3).collect::<Vec<_>>().join(" ");
        lines.map(place).collect()
    };
    let pass = |pass: usize| {
        let place = |place: &str| format!("[p{pass}] {place}");
        [place("layer 0"), place("layer 0"), place("layer 2"), place("layer 2"), place("- matmul")]
    };
    assert_eq!(places(&text), [pass(1), pass(2)].concat(), "{text}");
    assert!(!text.contains("pass 0") && text.contains("pass 2 sampled"), "{text}");
    let json = ok(&llama_trace(args.into_iter().chain(["--format", "json", "--values"])));
    let lines: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 10);
    let layers: Vec<_> = lines.iter().map(|line| line["layer"].as_u64()).collect();
    assert_eq!(layers[..5], [Some(0), Some(0), Some(2), Some(2), None]);
    let valued = |line: &&Value| line["values"].is_object();
    assert_eq!(lines.iter().filter(valued).count(), 6, "a view has no values of its own");
}

/// Returns the first line of `log` whose output is `stage`.
fn log_line<'a>(log: &'a str, stage: &str) -> &'a str {
    log.lines().find(|line| line.contains(&format!("-> {stage} ("))).unwrap_or_else(|| panic!("no {stage}"))
}

#[test]
fn int8_stages_are_logged_as_integers_and_weights_as_int8() {
    let log = ok(&llama_trace(["log", "--prompt", PROMPT, "--precision", "q8", "--values"]));
    let line = log_line(&log, "attn_norm_q8");
    let values = line.rsplit_once("]  ").unwrap().1;
    assert!(values.starts_with("min -127 max 127 mean ") || values.contains("max 127 "), "{line}");
    let first = values.rsplit_once('[').unwrap().1.trim_end_matches(" …]");
    assert!(first.split(' ').all(|value| value.parse::<i8>().is_ok()), "{line}");
    assert!(log_line(&log, "attn_norm_scale").contains("D/g=4"), "{log}");
    let line = log_line(&log, "xq");
    assert!(
        line.contains("attn_norm_q8 (")
            && line.contains("attn_norm_scale (")
            && line.contains("; int8, g=32)")
    );
    assert!(log_line(&log, "tokens").contains("min ") && !log_line(&log, "tokens").contains(".0000 max"));
    let float = ok(&llama_trace(["log", "--prompt", PROMPT]));
    assert!(!float.contains("int8") && !float.contains("_q8"));

    let json =
        ok(&llama_trace(["log", "--prompt", PROMPT, "--precision", "q8", "--values", "--format", "json"]));
    let lines: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let line = |step: &str| lines.iter().find(|line| line["step"] == step).unwrap();
    assert!(line("attn_norm_q8")["values"]["first"][0].is_i64());
    assert_eq!(line("xq")["inputs"][2]["int8_group"], 32);
    assert!(line("attn_norm")["inputs"][1].get("int8_group").is_none());
}
