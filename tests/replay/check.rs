//! What `llama-trace check` finds: that all holds where it does, and which line catches what is broken.

use llama_trace::backend::Backend;
use llama_trace::backend::cpu::Cpu;
use llama_trace::check::{self, Plan, Report, Sample};
use llama_trace::model::Model;

use super::{MODELS, PRECISIONS, model_in};

/// The report on a model, over 40 tokens.
fn report<B: Backend>(model: &Model<B>) -> Report {
    let tokens = (model.config.context - check::DECODES).min(40);
    let ids = check::seeded_ids(model.config.vocab, tokens, 1);
    let plan = Plan { ids, split: None, tokenizer: None, sample: Sample::Seeded(1) };
    check::run(model, &plan, &|_, _| {}).unwrap()
}

#[test]
fn every_line_holds_on_every_golden_model_in_every_precision() {
    for name in MODELS {
        for precision in PRECISIONS {
            let model = model_in(name, Cpu::default().with_precision(precision));
            let report = report(&model);
            assert!(report.ok(), "{name} in {precision:?}: {:#?}", report.checks);
        }
    }
}
