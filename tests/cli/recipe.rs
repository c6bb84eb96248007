//! The recipe of `llama-trace help diff` for another project's CI: a tiny port in numpy, once correct and once with a
//! mistake.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use super::{common, fixture, llama_trace, ok, stdout};

/// Compares the port's folder as the recipe does. Returns the exit code and the report.
fn judged(port: &Path) -> (i32, Value) {
    let folder = TempDir::new().unwrap();
    let (model, reference) = (fixture("golden/gqa"), folder.path().join("reference"));
    let [model, out] = [&model, &reference].map(|path| path.to_str().unwrap());
    ok(&llama_trace(["export", "--model", model, "--ids", "1,5,9,13,17,21", "--out", out]));
    let base = ["diff", out, port.to_str().unwrap(), "--model", model, "--format"];
    let junit = llama_trace(base.into_iter().chain(["junit"]));
    let output = llama_trace(base.into_iter().chain(["json"]));
    assert_eq!(junit.status.code(), output.status.code());
    let failed = stdout(&junit).contains("<failure");
    assert_eq!(failed, output.status.code() == Some(1), "{}", stdout(&junit));
    (output.status.code().unwrap(), serde_json::from_str(&stdout(&output)).unwrap())
}

fn check(right: &Path, wrong: &Path) {
    let (code, report) = judged(right);
    assert_eq!((code, &report["same"]), (0, &true.into()), "{report}");
    let (code, report) = judged(wrong);
    assert_eq!(code, 1);
    assert!(report["first"]["address"].as_str().unwrap().starts_with("p0/L0/xq_rope["), "{report}");
    assert_eq!(report["diagnosis"][0]["name"], "rope_pairing", "{report}");
}

#[test]
fn a_numpy_port_passes_and_its_mistake_is_found_at_its_address() {
    check(&fixture("port/right"), &fixture("port/wrong"));
}

#[test]
fn the_port_run_on_this_machine_gets_the_same_verdict() {
    let has_numpy = Command::new("python3").args(["-c", "import numpy"]).output();
    if !has_numpy.is_ok_and(|output| output.status.success()) {
        return common::skip("python3 has no numpy");
    }
    let folder = TempDir::new().unwrap();
    let [right, wrong] = ["right", "wrong"].map(|name| folder.path().join(name));
    for (out, bug) in [(&right, None), (&wrong, Some("--bug"))] {
        let mut port = Command::new("python3");
        port.arg(fixture("port/port.py")).arg(fixture("golden/gqa")).arg(out);
        assert!(port.args(["--ids", "1,5,9,13,17,21"]).args(bug).status().unwrap().success());
    }
    check(&right, &wrong);
}
