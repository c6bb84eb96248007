//! A device that is lost in the middle of a run gives an error, in text, batch, chat and `--step`. The tokens before
//! the error are kept.

use super::cuda::{ROOM, small};
use super::*;
use llama_trace_core::error::Error;
use llama_trace_core::stop;
use llama_trace_cuda::Cuda;
use llama_trace_engine::generate::{Batch, Chat, Prompts};

/// A small model on a device that is lost after this many launches. The launches of loading do not count.
fn lost_after(launches: usize) -> Option<Model> {
    let checkpoint = random::of_config("random", small(0), Dtype::BF16);
    // Each random weight takes one launch.
    let made = checkpoint.tensors().filter(|(_, tensor)| tensor.shape().len() == 2).count();
    Some(Model::load(&checkpoint, Cuda::lost_after(ROOM, made.saturating_add(launches))?).unwrap())
}

fn assert_lost(error: &Error) {
    assert_eq!(error.exit_code(), 4);
    let text = error.to_string();
    assert!(text.contains("the CUDA device cannot run a kernel") && text.contains("--device cpu"), "{text}");
}

#[test]
fn a_device_that_is_lost_ends_the_run_with_an_error_and_what_was_drawn_stays() {
    let mut drawn_before = Vec::new();
    for launches in [0, 1, 60, 200, 400] {
        let Some(model) = lost_after(launches) else { return };
        let mut session = Session::with_capacity(&model, sampler(), 64).unwrap();
        session.begin(prompt(4), &[], 50).unwrap();
        let mut drawn = Vec::new();
        let error = loop {
            match session.pass(&mut NoProbe) {
                Ok(id) => drawn.push(id),
                Err(error) => break error,
            }
        };
        assert_lost(&error);
        assert!(session.pass(&mut NoProbe).is_err(), "the device stays lost");
        assert!(drawn.starts_with(&drawn_before) && drawn.len() + 4 >= session.ran().len());
        drawn_before = drawn;
    }
    assert!(drawn_before.len() > 3);
}

#[test]
fn texts_of_a_batch_keep_what_was_drawn_before_the_device_was_lost() {
    fn run(model: &Model) -> (Vec<Vec<u32>>, Option<Error>) {
        let ids = vec![prompt(3), prompt(9), prompt(1)];
        let mut texts = vec![Vec::new(); ids.len()];
        let prompts = Prompts { ids, ends: Vec::new(), draws: 9, context: None, chunk: None, memory: None };
        let mut batch = Batch::new(model, sampler(), prompts, |_| None).unwrap();
        loop {
            match batch.ready() {
                Ok(true) => {}
                Ok(false) => return (texts, None),
                Err(error) => return (texts, Some(error)),
            }
            match batch.pass(&mut NoProbe) {
                Ok(drawn) => drawn.iter().for_each(|drawn| texts[drawn.sequence].push(drawn.id)),
                Err(error) => return (texts, Some(error)),
            }
        }
    }
    let Some(model) = lost_after(usize::MAX) else { return };
    let (whole, none) = run(&model);
    assert!(none.is_none() && whole.iter().all(|text| text.len() == 9));
    let mut most = 0;
    for launches in [0, 30, 150, 300] {
        let (texts, error) = run(&lost_after(launches).unwrap());
        assert_lost(&error.unwrap());
        assert!(whole.iter().zip(&texts).all(|(whole, text)| whole.starts_with(text)), "{texts:?}");
        most = most.max(texts[0].len());
    }
    assert!((2..9).contains(&most), "{most}");
}

#[test]
fn a_chat_has_shown_what_was_drawn_and_asks_no_lost_device_again() {
    let Some(model) = lost_after(200) else { return };
    let mut chat = Chat::new(Session::with_capacity(&model, sampler(), 64).unwrap());
    let mut shown = Vec::new();
    let mut show = |id| {
        shown.push(id);
        Ok::<(), Error>(())
    };
    let error = chat.answer(&prompt(4), &[], 50, &mut show).unwrap_err();
    assert_lost(&error);
    assert_lost(&chat.answer(&prompt(6), &[], 50, &mut show).unwrap_err());
    assert!(shown.len() > 2, "{shown:?}");
}

#[test]
fn passes_that_were_traced_are_still_shown_when_the_device_is_lost() {
    // A recorded pass takes more launches. With 700 launches, at least the first pass is complete.
    let Some(model) = lost_after(700) else { return };
    let (ids, draws, sampler) = (prompt(4), 50, sampler());
    let (tokenizer, eos, memory, context) = (None, Vec::new(), DEFAULT_MEMORY, Some(64));
    let start = Start { ids, draws, sampler, tokenizer, eos, memory, context };
    let mut live = Live::start(Arc::new(model), start).unwrap();
    while live.status() != Status::Idle {
        live.wait(stop::LOOK);
        live.poll().unwrap();
    }
    let passes = live.outline().passes.len();
    assert!((1..50).contains(&passes), "{passes}");
    // Stages in memory are shown, other stages are errors, and no further pass runs.
    assert_lost(&live.advance().unwrap_err());
    assert!(live.outline().passes[0].sampled.is_some());
}
