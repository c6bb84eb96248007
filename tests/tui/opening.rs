//! The screen before the end of the first pass, stopped work, and stages that arrive in blocks.

use llama_trace::trace::{Address, Source, Stats};
use llama_trace::tui::OpenAt;
use llama_trace::tui::open::open;
use llama_trace::tui::theme::Depth;
use llama_trace::tui::update::Effect;
use llama_trace::tui::user_event::KeyCode;
use ndarray::ArrayD;
use ndarray_npy::ReadNpyExt;

use crate::stage::Stage;
use crate::synthetic::Synthetic;

fn opening() -> Stage {
    Stage::new(Synthetic::opening(), (120, 40), Depth::True)
}

#[test]
fn during_the_first_pass_tokens_and_outline_are_shown_and_keys_work() {
    let mut stage = opening();
    stage.shows("running the prompt: layer 1 of 0-2");
    stage.shows("│␣Once│␣upon");
    stage.shows("▸ layer 2");
    stage.shows("p0/tokens[t=11] = 12");
    stage.keys("n").shows("Esc stops and leaves");
    assert_eq!(stage.name(), "embedding");
    stage.keys("t");
    assert_eq!(stage.message(), "running the next token …");
    stage.wait().shows("p0/embedding[t=11,d=0] = ");
    stage.shows("is next");
    assert_eq!(stage.wait().app.place().path(), "p1/embedding");
}

#[test]
fn escape_quits_during_the_first_pass_and_later_only_stops_work() {
    let mut stage = opening();
    assert_eq!(stage.key(KeyCode::Esc), Effect::Abandon);
    stage.wait();
    stage.source.working = true;
    stage.keys("n").shows("Esc stops it");
    assert_eq!(stage.key(KeyCode::Esc), Effect::Stop);
    assert!(stage.source.stopped);
    stage.sync();
    stage.shows("p0/embedding[t=11,d=0] = ");
    assert_eq!(stage.key(KeyCode::Esc), Effect::None, "Esc without running work must do nothing");
}

#[test]
fn stopped_work_is_reported_and_computed_on_request() {
    let mut stage = Stage::at("xq");
    stage.source.interrupts = true;
    stage.keys("N").shows("The computation was stopped. r starts it again.");
    stage.source.interrupts = false;
    stage.sync();
    stage.shows("The computation was stopped.");
    stage.keys("r").shows("p0/L2/xq[t=11,h=2,c=0] = ");
}

#[test]
fn a_requested_pass_opens_when_it_arrives_unless_the_user_moved() {
    let place =
        OpenAt { pass: Some(1), layer: Some(2), stage: Some("xq".into()), passes: 2, ..OpenAt::default() };
    for moves in [false, true] {
        let mut stage = opening();
        open(&mut stage.app, &place).unwrap();
        stage.sync();
        assert_eq!(stage.app.place().path(), "p0/tokens");
        stage.wait();
        // Opening help or changing panels and views does not count as going elsewhere.
        stage.keys("??").keys("iivv");
        stage.key(KeyCode::Tab);
        stage.key(KeyCode::BackTab);
        if moves {
            stage.keys("n");
            assert!(stage.message().contains("/p1/L2/xq goes there"), "{}", stage.message());
        }
        stage.source.advance().unwrap();
        stage.wait();
        assert_eq!(stage.app.place().path(), if moves { "p0/embedding" } else { "p1/L2/xq" });
    }
    let mut stage = opening();
    let mask = OpenAt { pass: Some(1), stage: Some("mask".into()), passes: 2, ..OpenAt::default() };
    assert!(open(&mut stage.app, &mask).unwrap_err().to_string().contains("pass 1 has no mask"));
    let beyond = OpenAt { pass: Some(2), passes: 2, ..OpenAt::default() };
    assert_eq!(open(&mut stage.app, &beyond).unwrap_err().exit_code(), 2);
}

#[test]
fn an_address_opens_its_number_and_omitted_indices_are_0() {
    let at = |text: &str| OpenAt { at: Some(Address::parse(text).unwrap()), passes: 2, ..OpenAt::default() };
    for (text, place) in [
        ("p0/L1/softmax[h=2,t=5,k=1]", "p0/L1/softmax[h=2,t=5,k=1]"),
        ("softmax[h=2]", "p0/L0/softmax[h=2,t=11,k=0]"),
        ("r0:s0/L2", "p0/L2/attn_norm[t=11,d=0]"),
        ("keys_t[k=3,c=1]", "p0/L0/keys_t[h=0,c=1,k=3]"),
        ("", "p0/tokens[t=11]"),
    ] {
        let mut stage = Stage::new(Synthetic::new(), (120, 40), Depth::True);
        open(&mut stage.app, &at(text)).unwrap();
        stage.sync();
        assert_eq!(stage.app.place().address(&stage.app.index()), place, "{text}");
    }
    let mut stage = opening();
    open(&mut stage.app, &at("p1/L1/xq[h=3]")).unwrap();
    stage.wait();
    stage.source.advance().unwrap();
    stage.wait();
    assert_eq!(stage.app.place().address(&stage.app.index()), "p1/L1/xq[t=0,h=3,c=0]");
    for (text, message) in [
        ("r1:xq", "there is no run r1"),
        ("s2/xq", "there is no sequence 2"),
        ("p2/xq", "there is no pass 2"),
        ("L9/xq", "there is no layer 9: 0 to 2"),
        ("xq[h=9]", "head 9 is past the last: 0 to 3"),
        ("wq", "wq is a weight"),
        ("wq[o=1,i=99]", "dim 99 is past the last: 0 to 31"),
        ("p1/mask", "pass 1 has no mask"),
    ] {
        let error = open(&mut opening().app, &at(text)).unwrap_err();
        assert!(error.to_string().contains(message) && error.exit_code() == 2, "{text}: {error}");
    }
}

/// Two viewers at the same place: the first gets whole stages, the second gets blocks of 40 values.
fn in_blocks(step: &str) -> (Stage, Stage) {
    let mut source = Synthetic::new();
    source.largest = 40;
    let mut blocks = Stage::new(source, (100, 20), Depth::True);
    let place = OpenAt { stage: Some(step.into()), layer: Some(1), head: Some(2), ..OpenAt::default() };
    open(&mut blocks.app, &place).unwrap();
    blocks.sync();
    (Stage::sized(step, (100, 20), Depth::True), blocks)
}

#[test]
fn a_stage_in_blocks_looks_and_moves_like_a_whole_stage() {
    for step in ["softmax", "logits", "keys_t", "attn_merged", "ffn_up", "probs", "queries_t"] {
        let (mut whole, mut blocks) = in_blocks(step);
        for keys in ["", "jjl", "a", "jl", "2", "]", "s", "aa", "3", "s", "0kk", "[", "a"] {
            whole.keys(keys);
            blocks.keys(keys);
            assert_eq!(blocks.screen(), whole.screen(), "{step} after `{keys}`");
        }
    }
    let (_, blocks) = in_blocks("softmax");
    assert!(!blocks.app.tensor().unwrap().block().is_whole());
}

#[test]
fn a_stage_in_blocks_is_exported_whole() {
    let folder = tempfile::tempdir().unwrap();
    for step in ["softmax", "logits", "keys_t"] {
        let (mut whole, mut blocks) = in_blocks(step);
        blocks.export(folder.path());
        whole.export(folder.path());
        let message = blocks.message().to_owned();
        let (path, _) = message.strip_prefix("wrote ").unwrap().split_once(" · ").unwrap();
        let again = path.replace(".npy", "-2.npy");
        assert_eq!(std::fs::read(path).unwrap(), std::fs::read(again).unwrap(), "{step}");
        assert!(message.contains(match step {
            "softmax" => "p0_L1_softmax.npy · (4, 12, 12) float32 · ",
            "logits" => "p0_logits.npy · (12, 64) float32 · ",
            // A view is exported as its stage.
            _ => "p0_L1_keys.npy · (12, 4, 8) float32 · ",
        }));
        let told = format!(" · {} bytes", std::fs::metadata(path).unwrap().len());
        assert!(message.ends_with(&told), "{message}");
        let array = ArrayD::<f32>::read_npy(std::fs::File::open(path).unwrap()).unwrap();
        assert_eq!(array.shape(), whole.app.tensor().unwrap().block().shape, "{step}");
    }
}

#[test]
fn an_export_that_is_not_finished_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let (_, mut blocks) = in_blocks("softmax");
    let saving = llama_trace::tui::export::save(&mut blocks.app, &mut blocks.source, folder.path());
    assert!(saving.is_some_and(|saving| saving.percent() < 100));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn statistics_of_parts_are_combined() {
    let values: Vec<f64> = (0..100).map(|i| f64::from(i * i % 37) - 9.0).collect();
    for size in [1, 7, 99] {
        let mut sum = llama_trace::trace::frame::Summing::default();
        for part in values.chunks(size) {
            sum.add(part.iter().copied());
        }
        sum.add([f64::NAN, f64::INFINITY].into_iter());
        let (ours, whole) = (sum.stats(), Stats::of(values.iter().copied()));
        assert_eq!((ours.min, ours.max, ours.nan, ours.pos_inf), (whole.min, whole.max, 1, 1));
        assert!((ours.mean - whole.mean).abs() < 1e-12 && (ours.std - whole.std).abs() < 1e-12, "{size}");
    }
}
