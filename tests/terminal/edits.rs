//! Edits in a trace: an edited run needs the model's weights, from `--model` or from the program itself.

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
fn a_trace_without_its_model_says_what_to_type() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("golden/gqa").display().to_string();
    let trace = recorded(folder.path(), &["--model", &model, "--ids", "1,5,9,3"]);
    for (size, key) in [((80, 24), "E"), ((120, 40), "w")] {
        let mut viewer = Terminal::start(size, command(&["open", &trace, "--at", "p0/L1/xq"]));
        viewer.shows(&["p0/L1/xq["]);
        viewer.send(key);
        viewer.shows(&["llama-trace open run.trace --model DIR"]);
        quit(viewer);
    }
}
