//! `patch`: its maps, its metrics and its errors.

use std::path::Path;

use ndarray::ArrayD;
use ndarray_npy::ReadNpyExt;
use serde_json::Value;

use crate::common::{fixture, llama_trace, stderr};
use crate::ok;

const CLEAN: &str = "1,5,9,3,7,2";
const CORRUPTED: &str = "1,5,4,3,8,2";
const CLEAN_TEXT: &str = "Once upon a time";
const CORRUPTED_TEXT: &str = "One day";

fn patch(args: &[&str]) -> std::process::Output {
    let model = fixture("golden/gqa");
    let all =
        ["patch", "--model", model.to_str().unwrap(), "--clean-ids", CLEAN, "--corrupted-ids", CORRUPTED];
    llama_trace([&all[..], args].concat())
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&ok(&patch(&[&["--format", "json"], args].concat()))).unwrap()
}

fn places(found: &Value, part: &str) -> Vec<Value> {
    let maps = found["maps"].as_array().unwrap();
    maps.iter().find(|map| map["part"] == part).unwrap()["places"].as_array().unwrap().clone()
}

/// The last logits of a run, exported.
fn logits(ids: &str, args: &[&str]) -> Vec<f32> {
    let folder = tempfile::tempdir().unwrap();
    let (out, model) = (folder.path().join("out"), fixture("golden/gqa"));
    let all = ["export", "--model", model.to_str().unwrap(), "--ids", ids, "--stage", "logits", "--out"];
    ok(&llama_trace([&all[..], &[out.to_str().unwrap()], args].concat()));
    let file = std::fs::File::open(find(&out)).unwrap();
    let array = ArrayD::<f32>::read_npy(file).unwrap();
    array.index_axis(ndarray::Axis(0), array.shape()[0] - 1).iter().copied().collect()
}

fn find(folder: &Path) -> std::path::PathBuf {
    let entries = || std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let file = entries().find(|path| path.extension().is_some_and(|suffix| suffix == "npy"));
    file.unwrap_or_else(|| find(&entries().find(|path| path.is_dir()).unwrap()))
}

#[test]
fn a_place_has_the_value_of_the_run_with_this_edit() {
    let found = json(&["--parts", "residual,attn,ffn,heads,neurons", "--top", "2"]);
    let id = |name: &str| found[name]["id"].as_u64().unwrap() as usize;
    let (answer, wrong) = (id("answer"), id("wrong"));
    let (clean, corrupted) = (logits(CLEAN, &[]), logits(CORRUPTED, &[]));
    let difference = |logits: &[f32]| f64::from(logits[answer]) - f64::from(logits[wrong]);
    // Reading a decimal number may change its last bit.
    let near = |value: &Value, expected: f64, what: &str| {
        let value = value.as_f64().unwrap();
        assert!((value - expected).abs() < 1e-12, "{what}: {value} and {expected}");
    };
    near(&found["clean"]["value"], difference(&clean), "clean");
    near(&found["corrupted"]["value"], difference(&corrupted), "corrupted");
    // The source of an edit is a text or a trace, and this model has no tokenizer: the clean run is a trace.
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("clean.trace");
    let (model, trace) = (fixture("golden/gqa"), trace.to_str().unwrap());
    ok(&llama_trace([
        "record",
        "--model",
        model.to_str().unwrap(),
        "--ids",
        CLEAN,
        "--keep",
        "all",
        "--out",
        trace,
    ]));
    for (part, at) in
        [("residual", 2), ("residual", 10), ("attn", 4), ("ffn", 2), ("heads", 1), ("neurons", 0)]
    {
        let place = &places(&found, part)[at];
        let address = place["place"].as_str().unwrap();
        let edited = logits(CORRUPTED, &["--edit", &format!("{address} = {trace}:{address}")]);
        near(&place["value"], difference(&edited), address);
        let [value, from, to] = [&edited, &corrupted, &clean].map(|logits| difference(logits));
        near(&place["effect"], (value - from) / (to - from), address);
    }
}

#[test]
fn each_map_has_every_place_once() {
    let found = json(&["--parts", "heads,residual,residual"]);
    assert_eq!(found["maps"].as_array().unwrap().len(), 2);
    let heads = places(&found, "heads");
    let residual = places(&found, "residual");
    let layers = residual.len() / 6 - 1;
    assert_eq!((residual.len() % 6, heads.len() % layers), (0, 0));
    assert_eq!(found["places"], residual.len() + heads.len());
    assert_eq!((&residual[2]["place"], &residual[2]["layer"]), (&"p0/embedding[t=2]".into(), &Value::Null));
    assert_eq!((&residual[6 + 4]["t"], &residual[6 + 4]["layer"]), (&4.into(), &0.into()));
    assert_eq!((&heads[1]["place"], &heads[1]["head"]), (&"p0/L0/attn_heads[h=1]".into(), &1.into()));
    // Before the first token that differs, nothing changes. After the last layer, the last token is the answer.
    let effect = |at: usize| residual[at]["effect"].as_f64().unwrap();
    assert_eq!((effect(0), effect(1), effect(residual.len() - 1)), (0.0, 0.0, 1.0));
    assert!(effect(2) != 0.0, "the embedding of a token that differs");
}

#[test]
fn every_metric_is_0_for_the_corrupted_and_1_for_the_clean_run() {
    for metric in ["logit-diff", "prob", "kl"] {
        let found = json(&["--metric", metric, "--parts", "residual"]);
        assert_eq!(found["metric"], metric);
        let all = places(&found, "residual");
        let last = &all[all.len() - 1];
        assert_eq!((&last["value"], &last["effect"]), (&found["clean"]["value"], &1.0.into()), "{metric}");
        assert_eq!((&all[0]["value"], &all[0]["effect"]), (&found["corrupted"]["value"], &0.0.into()));
    }
    assert_eq!(json(&["--metric", "kl"])["clean"]["value"], 0.0);
    let named = json(&["--answer", "4", "--wrong", "6"]);
    assert_eq!((&named["answer"]["id"], &named["wrong"]["id"]), (&4.into(), &6.into()));
}

#[test]
fn neurons_are_listed_by_their_direct_effect() {
    let found = places(&json(&["--parts", "neurons", "--top", "5"]), "neurons");
    assert_eq!(found.len(), 5);
    let sizes = found.iter().map(|place| place["direct"].as_f64().unwrap().abs());
    assert!(sizes.is_sorted_by(|a, b| a >= b));
    assert!(found.iter().all(|place| place["neuron"].is_u64() && place["effect"].is_f64()), "{found:?}");
}

#[test]
fn the_text_has_a_row_for_each_layer_and_names_the_tokens() {
    let page = ok(&patch(&["--parts", "residual,heads,neurons", "--top", "3"]));
    for text in [
        "effect in %",
        "  embedding ",
        "  L0 ",
        "  t 2 \"#9\" | \"#4\"",
        "  t 3 \"#3\"\n",
        "L1/ffn_hidden[f=",
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
    assert!(page.contains("forward passes over 6 tokens") && !page.contains("NaN"), "{page}");
}

#[test]
fn the_picture_has_a_cell_for_each_place() {
    let picture = ok(&patch(&["--format", "svg"]));
    assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"));
    let places = json(&[])["places"].as_u64().unwrap() as usize;
    assert_eq!(picture.matches("width=\"22\" height=\"22\"").count(), places);
    let output = patch(&["--format", "svg", "--parts", "neurons"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

#[test]
fn an_edit_has_a_line_with_the_cells_of_both_runs() {
    let output = patch(&["--edit", "L1/attn_heads[h=0] = 0", "--without", "L0/h1"]);
    let said = stderr(&output);
    // Two prompts of six tokens, and heads of eight values.
    for line in [
        "edit `L0/h1 off`: 96 cells changed, p0/L0/attn_heads[t=0,h=1,c=0] from ",
        "edit `L1/attn_heads[h=0] = 0`: 96 cells",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    assert!(!said.contains("changed nothing") && said.contains("the edits moved the logits"), "{said}");
}

#[test]
fn what_cannot_be_compared_is_an_error() {
    let refused = |args: &[&str], code: i32, texts: &[&str]| {
        let output = llama_trace([&["patch"], args].concat());
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        for text in texts {
            assert!(said.contains(text), "{args:?}: {text:?} is not in {said}");
        }
    };
    refused(&["--clean", CLEAN_TEXT], 2, &["--corrupted"]);
    let both = ["--clean", CLEAN_TEXT, "--corrupted", CORRUPTED_TEXT];
    refused(&both, 4, &["same number of tokens", "clean: 5 tokens, ", "\" upon\"", "\"One\"", "tokenize"]);
    let same = ["--clean", CLEAN_TEXT, "--corrupted", CLEAN_TEXT];
    refused(&same, 4, &["same value in both runs", "--answer"]);
    let ids = ["--clean-ids", "1,5,9", "--corrupted-ids", "1,5,8"];
    refused(&[&ids[..], &["--answer", "99999"]].concat(), 2, &["not a token of this model", "from 0 to"]);
    refused(&[&ids[..], &["--wrong", "Once upon"]].concat(), 2, &["not a token of this model", "2 tokens"]);
    let model = fixture("golden/gqa");
    let unread = ["--model", model.to_str().unwrap(), "--clean", "One", "--corrupted", "Two"];
    refused(&unread, 4, &["no tokenizer", "the clean prompt", "token ids with --clean-ids"]);
    refused(&["--clean-ids", "1,99999", "--corrupted-ids", "1,5"], 4, &["vocabulary"]);
    refused(&[&ids[..], &["--parts", "mlp"]].concat(), 2, &["residual", "neurons"]);
    refused(&[&ids[..], &["--without", "L99/h0"]].concat(), 2, &["no layer 99"]);
}
