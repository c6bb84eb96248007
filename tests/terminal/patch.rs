//! The map of patching: from the command to a place and back.

use super::{command, quit};
use crate::common::{fixture, llama_trace, stderr};
use crate::pty::Terminal;

#[test]
fn a_clean_prompt_opens_the_map_and_enter_goes_to_a_place_and_back() {
    for size in [(80, 24), (120, 40)] {
        let prompt = ["--prompt", "The fox kite lake bed drum fox kite lake", "--step"];
        let mut viewer = Terminal::start(size, command(&prompt));
        viewer.shows(&["p0/tokens["]);
        viewer.send("/patch The fox kite lake hat\r");
        viewer.shows(&["Clean: 6 tokens, ", "This run: 10 tokens, "]);
        viewer.send("/patch The fox kite lake hat drum fox kite lake\r");
        viewer.shows(&["the clean run is r", "108", "103"]);
        viewer.send("jlllll");
        viewer.shows(&["108 % = logit of ␣hat − logit of ␣on", "p0/L0/ffn_residual[t=5]"]);
        viewer.send("\r");
        viewer.shows(&["p0/L0/ffn_residual[t=5,d="]);
        viewer.send("\u{7f}");
        viewer.shows(&["108 % = logit of ␣hat − logit of ␣on", "patch of residual"]);
        viewer.send("[");
        viewer.shows(&["patch of heads", "109"]);
        quit(viewer);
    }
}

#[test]
fn a_trace_alone_asks_for_its_model() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("run.trace").display().to_string();
    let model = fixture("golden/gqa").display().to_string();
    let output = llama_trace(["record", "--model", &model, "--ids", "1,5,9,3", "-n", "2", "--out", &trace]);
    assert!(output.status.success(), "{}", stderr(&output));
    let mut viewer = Terminal::start((120, 40), command(&["open", &trace]));
    viewer.shows(&["p0/tokens["]);
    viewer.send("/patch A fox\r");
    viewer.shows(&["--model"]);
    quit(viewer);
}
