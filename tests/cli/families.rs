//! Families whose layers differ, and stages that a family computes at another place in the pass.

use std::fs;

use serde_json::Value;

use crate::common::{fixture, llama_trace, stderr};
use crate::ok;

/// The commands on a tiny model of a family, with three tokens.
struct Family(String);

impl Family {
    fn new(name: &str) -> Self {
        Self(fixture(&format!("families/{name}")).display().to_string())
    }

    fn run(&self, args: &[&str]) -> String {
        ok(&llama_trace([args, &["--model", &self.0, "--ids", "1,5,9"]].concat()))
    }

    /// The screen of the viewer at `address`.
    fn screen(&self, address: &str, view: &str) -> String {
        let out = tempfile::tempdir().unwrap();
        let file = out.path().join("screen.txt");
        let name = file.display().to_string();
        self.run(&["snapshot", "--at", address, "--view", view, "--size", "120x40", "--out", &name]);
        fs::read_to_string(file).unwrap()
    }

    fn refused(&self, args: &[&str]) -> String {
        let output = llama_trace([args, &["--model", &self.0, "--ids", "1,5,9"]].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        stderr(&output)
    }

    /// The steps of the first pass, with their layers.
    fn steps(&self) -> Vec<(Option<u64>, String)> {
        let lines = self.run(&["log", "-n", "1", "--format", "json"]);
        let step = |line: &str| {
            let line: Value = serde_json::from_str(line).unwrap();
            Some((line["layer"].as_u64(), line["step"].as_str()?.to_owned()))
        };
        lines.lines().filter_map(step).collect()
    }
}

#[test]
fn a_layer_without_rope_has_no_rotated_queries_and_attention_reads_others() {
    let smollm3 = Family::new("smollm3");
    let steps = smollm3.steps();
    for (layer, turns) in [true, false, false, true].into_iter().enumerate() {
        for name in ["xq_rope", "xk_rope"] {
            assert_eq!(steps.contains(&(Some(layer as u64), name.into())), turns, "{layer}, {name}");
        }
        assert_eq!(steps.iter().filter(|step| **step == (Some(layer as u64), "queries_t".into())).count(), 1);
        let text = smollm3.run(&["explain", &format!("L{layer}/qk[h=1,t=2,k=1]")]);
        let read = if turns { "xq_rope[t=2,h=1,c=0]" } else { "xq[t=2,h=1,c=0]" };
        assert!(text.contains(read), "{text}");
        assert_eq!(text.contains("xq_rope"), turns, "{text}");
        let text = smollm3.run(&["explain", &format!("L{layer}/queries_t[h=1,t=2,c=3]")]);
        assert_eq!(text.contains("xq_rope"), turns, "{text}");
    }
    let said = smollm3.refused(&["explain", "L1/xq_rope[t=2,h=1,c=0]"]);
    assert!(said.contains("layer 1 has no xq_rope"), "{said}");
    let said = smollm3.refused(&["log", "-n", "1", "--edit", "L1-2/xq_rope = 0"]);
    assert!(said.contains("layer 1 has no xq_rope"), "{said}");
    let screen = smollm3.screen("L1/xk", "numbers");
    assert!(screen.contains("xk_heads") && !screen.contains("xk_rope"), "{screen}");
}

#[test]
fn tables_of_rope_are_in_the_layers_where_layers_differ_and_norms_stand_where_they_are_computed() {
    let gemma3 = Family::new("gemma3");
    let steps = gemma3.steps();
    assert!(!steps.contains(&(None, "rope_cos".into())));
    let layer: Vec<&str> = steps.iter().filter(|step| step.0 == Some(5)).map(|step| &*step.1).collect();
    let at = |name: &str| layer.iter().position(|other| *other == name).unwrap();
    assert!(at("xk_norm") < at("rope_cos") && at("rope_sin") < at("xq_rope"));
    // The window has θ = 300, the other layer θ = 2500 and a factor.
    for (address, theta) in [("L4/rope_cos[t=1,i=1]", "300^"), ("L5/rope_cos[t=1,i=1]", "2500^")] {
        let text = gemma3.run(&["explain", address]);
        assert!(text.contains(&format!("p0/{address}")) && text.contains(theta), "{text}");
        let step: Value =
            serde_json::from_str(&gemma3.run(&["explain", address, "--format", "json"])).unwrap();
        assert_eq!(step["difference"], 0.0, "{step}");
    }
    let screen = gemma3.screen("L5/rope_sin[t=1,i=0]", "rope");
    assert!(screen.contains("p0/L5/rope_sin") && screen.contains("linear"), "{screen}");

    let hunyuan = Family::new("hunyuan");
    let steps = hunyuan.steps();
    let layer: Vec<&str> = steps.iter().filter(|step| step.0 == Some(0)).map(|step| &*step.1).collect();
    let at = |name: &str| layer.iter().position(|other| *other == name).unwrap();
    assert!(at("xk_rope") < at("xq_norm") && at("xk_norm") < at("cache_k"));
    let text = hunyuan.run(&["explain", "L0/qk[h=1,t=2,k=1]"]);
    assert!(text.contains("xq_norm[t=2,h=1,c=0]"), "{text}");
}

#[test]
fn files_traces_and_edits_know_such_stages_by_their_names() {
    let folder = tempfile::tempdir().unwrap();
    for (name, chosen, files) in [
        ("gemma3", "rope_cos", ["layer_00/rope_cos.npy", "layer_05/rope_cos.npy"]),
        ("hunyuan", "xq_norm", ["layer_00/xq_norm.npy", "layer_01/xq_norm.npy"]),
    ] {
        let family = Family::new(name);
        let out = folder.path().join(name);
        family.run(&["export", "-n", "1", "--stage", chosen, "--out", &out.display().to_string()]);
        let manifest: Value =
            serde_json::from_str(&fs::read_to_string(out.join("manifest.json")).unwrap()).unwrap();
        for file in files {
            assert!(out.join("pass_000").join(file).exists(), "{file}");
        }
        let written = manifest["files"].as_array().unwrap();
        assert!(written.iter().all(|file| file["stage"] == chosen && !file["layer"].is_null()), "{manifest}");

        let trace = folder.path().join(format!("{name}.trace"));
        let trace = trace.display().to_string();
        for keep in ["all", "minimal"] {
            family.run(&["record", "-n", "2", "--keep", keep, "--force", "--out", &trace]);
            let text = ok(&llama_trace(["log", "--trace", &trace, "--stage", chosen]));
            assert!(text.contains(chosen), "{text}");
            assert!(ok(&family_diff(&trace, &family)).contains("same"), "{name}, {keep}");
        }
    }
    let gemma3 = Family::new("gemma3");
    let value = |at: &str, edits: &[&str]| {
        let edits: Vec<&str> = edits.iter().flat_map(|edit| ["--edit", edit]).collect();
        let json = gemma3.run(&[&["explain", at, "--format", "json"], &edits[..]].concat());
        serde_json::from_str::<Value>(&json).unwrap()["value"].as_f64().unwrap()
    };
    let [first, last] = ["L0/rope_cos[t=1,i=0]", "L5/rope_cos[t=1,i=0]"];
    assert_eq!(value(first, &["L0/rope_cos = 7"]), 7.0);
    assert_eq!(value(last, &["L0/rope_cos = 7"]), value(last, &[]));
    assert_eq!(value(last, &["rope_cos = 7"]), 7.0);
    assert_eq!(value(last, &["L0/rope_cos = L5/rope_sin", "L5/rope_cos = 3"]), 3.0);

    let hunyuan = Family::new("hunyuan");
    let json = |at: &str, edits: &[&str]| {
        let json = hunyuan.run(&[&["explain", at, "--format", "json"], edits].concat());
        serde_json::from_str::<Value>(&json).unwrap()
    };
    // Without the norm, attention reads the rotated queries.
    let turned = json("L1/xq_rope[t=1,h=0,c=0]", &["--edit", "L1/xq_norm off"]);
    let normed = json("L1/xq_norm[t=1,h=0,c=0]", &["--edit", "L1/xq_norm off"]);
    assert_eq!(turned["value"], normed["value"]);
}

/// `diff` of the recorded run with the model.
fn family_diff(trace: &str, family: &Family) -> std::process::Output {
    llama_trace(["diff", trace, trace, "--model", &family.0])
}
