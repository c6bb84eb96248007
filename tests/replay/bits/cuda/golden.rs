//! The device against the float64 reference of `fixtures/golden`.

#[path = "../../../golden/reference.rs"]
mod reference;

use std::path::{Path, PathBuf};

use super::*;
use reference::{MODELS, difference, ids, open, record_on};

/// Path of a file in `fixtures/`, or in the folder that LLAMA_TRACE_FIXTURES names.
fn fixture(path: &str) -> PathBuf {
    let folder = std::env::var_os("LLAMA_TRACE_FIXTURES").map(PathBuf::from);
    folder.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")).join(path)
}

#[test]
fn every_stage_of_every_model_agrees_with_the_reference_on_the_device() {
    for model in MODELS {
        let Some(cuda) = Cuda::of_tests(ROOM) else { return };
        let ours = record_on(cuda, &open(model), &ids(model, "prompt_ids"));
        assert_eq!(difference(&ours, &reference::reference(model)), None, "{model}");
    }
}

#[test]
fn greedy_tokens_are_those_of_the_reference_on_the_device() {
    for name in MODELS {
        let Some(cuda) = Cuda::of_tests(ROOM) else { return };
        let (prompt, expected) = (ids(name, "prompt_ids"), ids(name, "greedy_ids"));
        let model = Model::load(&open(name), cuda).unwrap();
        let mut session = Session::new(&model, sampler()).unwrap();
        session.begin(prompt, &[], expected.len()).unwrap();
        let drawn: Vec<u32> = expected.iter().map(|_| session.pass(&mut NoProbe).unwrap()).collect();
        assert_eq!(drawn, expected, "{name}");
    }
}
