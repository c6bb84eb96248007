//! Edits in a trace: with the model, which `--model` or the program itself gives, and without it.

use std::path::Path;

use super::{command, quit};
use crate::common::{fixture, llama_trace, stderr};
use crate::pty::Terminal;

/// Records a run. Returns the path of the trace.
fn recorded(folder: &Path, args: &[&str]) -> String {
    let trace = folder.join("run.trace").to_str().unwrap().to_owned();
    let output = llama_trace([&["record", "-n", "3", "--out", &trace], args].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    trace
}

/// Edits the number under the cursor, and looks at the edited run and back.
fn edits(viewer: &mut Terminal) {
    viewer.send("E");
    viewer.shows(&["edit p0/L1/xq[t="]);
    viewer.send("9\r");
    viewer.shows(&["r1 runs this prompt with p0/L1/xq["]);
    viewer.shows(&["= 9"]);
    viewer.send("c");
    viewer.shows(&["r0"]);
}

#[test]
fn a_trace_opened_with_its_model_is_edited_in_another_run() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("golden/gqa").display().to_string();
    let trace = recorded(folder.path(), &["--model", &model, "--ids", "1,5,9,3"]);
    for size in [(80, 24), (120, 40)] {
        let at = ["--at", "p0/L1/xq", "--model", &model];
        let mut viewer = Terminal::start(size, command(&[&["open", &trace][..], &at].concat()));
        viewer.shows(&["p0/L1/xq["]);
        edits(&mut viewer);
        quit(viewer);
    }
}

#[test]
fn a_trace_of_the_built_in_model_is_edited_without_an_option() {
    let folder = tempfile::tempdir().unwrap();
    let trace = recorded(folder.path(), &["--prompt", "Once upon a time"]);
    let mut viewer = Terminal::start((120, 40), command(&["open", &trace, "--at", "p0/L1/xq"]));
    viewer.shows(&["p0/L1/xq["]);
    edits(&mut viewer);
    quit(viewer);
}

#[test]
fn a_trace_without_its_model_is_edited_up_to_the_next_weights() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("golden/gqa").display().to_string();
    let trace = recorded(folder.path(), &["--model", &model, "--ids", "1,5,9,3"]);
    for size in [(80, 24), (120, 40)] {
        let mut viewer = Terminal::start(size, command(&["open", &trace, "--at", "p0/L1/scores"]));
        viewer.shows(&["p0/L1/scores["]);
        viewer.send("w");
        viewer.shows(&["llama-trace open run.trace --model DIR"]);
        viewer.send("E");
        viewer.shows(&["edit p0/L1/scores["]);
        viewer.send("9\r");
        viewer.shows(&["r1 is the trace with p0/L1/scores[", "= 9"]);
        viewer.send("/softmax\r");
        viewer.shows(&["r1:p0/L1/softmax["]);
        viewer.send("/attn_output\r");
        viewer.shows(&["an edit reaches it", "--model"]);
        quit(viewer);
    }
}
