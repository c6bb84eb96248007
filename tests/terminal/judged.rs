//! `diff A B --tui`: the tracer opens at the first difference, with both runs side by side.

use std::path::Path;

use super::{command, quit};
use crate::common::{fixture, llama_trace, models, stderr};
use crate::pty::Terminal;

fn recorded(model: &Path, to: &Path) -> String {
    let [model, to] = [model, to].map(|path| path.to_str().unwrap());
    let output =
        llama_trace(["record", "--model", model, "--ids", "1,5,9,13,17,21", "--keep", "all", "-o", to]);
    assert!(output.status.success(), "{}", stderr(&output));
    to.to_owned()
}

#[test]
fn two_traces_open_at_the_first_difference_and_both_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    // B's model is a copy of A's model with another matrix in its second layer.
    let other = models::golden("gqa", |tensors| {
        let (_, bytes) = tensors.get_mut("model.layers.1.mlp.gate_proj.weight").unwrap();
        bytes.reverse();
        let (words, _) = bytes.as_chunks_mut::<4>();
        words.iter_mut().for_each(|word| word.reverse());
    });
    let a = recorded(&fixture("golden/gqa"), &folder.path().join("a.trace"));
    let b = recorded(other.path(), &folder.path().join("b.trace"));
    for size in [(80, 24), (200, 60)] {
        let mut viewer = Terminal::start(size, command(&["diff", &a, &b, "--tui"]));
        viewer.shows(&["A · tensor", "B · A − B = ", "p0/L1/ffn_gate["]);
        viewer.send("D");
        viewer.shows(&["2 of ", "p0/L1/ffn_silu["]);
        viewer.send("\r");
        // `ffn_silu` needs no weights, because both traces have its input.
        viewer.shows(&["where from there", "g / (1 + e^−g)"]);
        // Waits between the two keys: sent together, Esc and `i` would be Alt-i.
        viewer.send("\u{1b}");
        viewer.until("the derivation is closed", |screen| !screen.contents().contains("where from"));
        viewer.send("i");
        viewer.shows(&["A against B", "p0/L2"]);
        quit(viewer);
    }
    let refused = llama_trace(["diff", &a, &b, "--tui"]);
    assert_eq!(refused.status.code(), Some(6), "{}", stderr(&refused));
}

/// The capture.toml of a port need not name the model or the texts of its ids. The texts then come from `--model`.
#[test]
fn a_port_is_shown_beside_the_reference_with_the_models_texts() {
    let folder = tempfile::tempdir().unwrap();
    let [port, model] = ["port/story/wrong", "builtin"].map(|name| fixture(name).display().to_string());
    let reference = folder.path().join("reference").display().to_string();
    let output = llama_trace(["export", "--prompt", "Once upon a time", "--out", &reference]);
    assert!(output.status.success(), "{}", stderr(&output));
    let mut viewer =
        Terminal::start((120, 40), command(&["diff", &reference, &port, "--model", &model, "--tui"]));
    viewer.shows(&["A · tensor", "B · A − B = ", "p0/L0/xq_rope["]);
    viewer.until("ids have texts", |screen| !screen.contents().contains("#391"));
    // The message must not ask for --model, which was given. The reason is that the port wrote no rotated queries.
    viewer.send("\r");
    let said = ["r1:p0/L0/xq_rope[", "r1:p0/L0/xq is not there", "write this stage in B too"];
    let screen = viewer.shows(&[&["where from there"][..], &said].concat());
    assert!(!screen.contains("--model"), "{screen}");
    // Waits between the two keys: sent together, Esc and `q` would be Alt-q.
    viewer.send("\u{1b}");
    viewer.until("the derivation is closed", |screen| !screen.contents().contains("where from"));
    ends(viewer);
    let viewer = Terminal::start((120, 40), command(&["open", &port, "--model", &model]));
    viewer.shows(&["␣time"]);
    ends(viewer);
}

/// Quits. Only the messages from before the viewer opened remain on the screen.
fn ends(mut viewer: Terminal) {
    viewer.send("q");
    let end = viewer.end();
    assert_eq!(end.code, 0, "{}", end.screen);
    assert!(end.screen.contains("that this folder does not have"), "{}", end.screen);
    assert!(!end.screen.contains("xq_rope"), "{}", end.screen);
}
