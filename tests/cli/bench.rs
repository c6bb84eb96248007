//! `bench`: the form of its report. The measured times are not tested.

use serde_json::Value;

use super::common::llama_trace;
use super::ok;

#[test]
fn a_benchmark_reports_every_figure_and_the_limits_of_the_machine() {
    let args = ["bench", "--prompt-tokens", "4,8", "--gen", "3", "--threads", "1", "--stages"];
    let more = ["--batch", "1,3", "--format", "json"];
    let report: Value = serde_json::from_str(&ok(&llama_trace(args.iter().chain(&more)))).unwrap();
    for pointer in [
        "/read_bandwidth_gbs",
        "/matmul_gflops",
        "/load_s",
        "/first_token_s",
        "/decode/tokens_per_s",
        "/decode/gbs",
        "/decode/weights_bytes",
        "/decode/cache_bytes",
        "/decode/sampling_greedy_s/median",
        "/decode/sampling_top_p_s/median",
        "/prefill/0/tokens_per_s",
        "/prefill/1/gflops",
        "/prefill/1/share_of_matmul",
        "/batch/0/tokens_per_s",
        "/batch/1/ratio",
        "/batch/1/decode/median",
    ] {
        let value = report.pointer(pointer).and_then(Value::as_f64);
        assert!(value.is_some_and(|value| value > 0.0), "{pointer}: {value:?}");
    }
    assert_eq!(report["threads"], 1);
    let sizes: Vec<_> = report["batch"].as_array().unwrap().iter().map(|batch| &batch["sequences"]).collect();
    assert!(sizes == [1, 3] && report["batch"][0]["ratio"] == 1.0, "{}", report["batch"]);
    assert!(report["decodes"].as_array().unwrap().len() == 1 && report["decodes"][0] == report["decode"]);
    assert!(report["decode"]["share_of_bandwidth"].is_null(), "the built-in model fits into a cache");
    assert!(report["stages"].as_array().unwrap().iter().any(|stage| stage["stage"] == "ffn_down"));
    let table = ok(&llama_trace(["bench", "--prompt-tokens", "4", "--gen", "2"]));
    assert!(table.contains("in cache") && table.contains("tokens/s"), "{table}");
}

#[test]
fn tuning_times_every_kernel_and_names_the_fastest_in_a_line_of_the_table() {
    let args = ["bench", "--prompt-tokens", "4", "--gen", "2", "--tune"];
    let report = ok(&llama_trace(args.iter().chain(&["--format", "json"])));
    let report: Value = serde_json::from_str(&report).unwrap();
    let tuning = &report["tuning"];
    let timed: Vec<_> = tuning["kernels"].as_array().unwrap().iter().collect();
    let available = llama_trace::backend::cpu::Kernel::available();
    let (kernels, readings) = timed.split_at(available.len());
    for (timed, kernel) in kernels.iter().zip(&available) {
        assert!(timed["kernel"] == kernel.name() && timed["reading"].is_null(), "{timed}");
    }
    let speed = |timed: &Value, what: &str| timed[what]["median"].as_f64().unwrap();
    assert!(timed.iter().all(|timed| speed(timed, "prefill") > 0.0 && speed(timed, "decode") > 0.0));
    let time = |timed: &&&Value| (1e12 / speed(timed, "prefill") + 1e12 / speed(timed, "decode")) as u64;
    let fastest = &kernels.iter().min_by_key(time).unwrap()["kernel"];
    // The report has every order of reading for the fastest kernel, and for no other kernel.
    for reading in readings {
        assert!(reading["kernel"] == *fastest && reading["reading"].is_string(), "{reading}");
    }
    assert_eq!(readings.is_empty(), fastest == "portable", "{fastest}: {readings:?}");
    if let Some(line) = tuning["line"].as_str() {
        assert!(line.contains(&format!(", {fastest}, ")), "{line}");
    }
    let table = ok(&llama_trace(args));
    assert!(available.iter().all(|kernel| table.contains(&format!("\n  {} ", kernel.name()))), "{table}");
    let refused = llama_trace(args.iter().chain(&["--cpu-kernel", "portable"]));
    assert_eq!(refused.status.code(), Some(2));
    assert_eq!(llama_trace(["bench", "--gen", "0", "--prompt-tokens", "4", "--tune"]).status.code(), Some(2));
}
