//! Tests of `llama-trace check`: all lines pass on a correct model, and the expected line detects each fault.

use std::path::Path;

use llama_trace::backend::cpu::Cpu;
use llama_trace::check::{self, Check, Plan, Report, Sample};
use llama_trace::checkpoint;
use llama_trace::config::{CacheDtype, DEFAULT_GROUP, Precision};
use llama_trace::error::Result;
use llama_trace::model::Model;
use llama_trace::tokenizer::{self, TextStream, Tokenizer};
use llama_trace::trace::{Address, Subject};

use super::fault::{Fault, Other};
use super::{MODELS, PRECISIONS, common, model_in};

/// The report on a model, over 40 tokens.
fn report(model: &Model) -> Report {
    let tokens = (model.config.context - check::DECODES).min(40);
    let ids = check::seeded_ids(model.config.vocab, tokens, 1);
    let plan = Plan { ids, split: None, tokenizer: None, sample: Sample::Seeded(1) };
    check::run(model, None, &plan, &|_, _| {}).unwrap()
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

#[test]
fn every_line_holds_on_every_format_and_with_a_cache_that_rounds() {
    let formats = [
        "formats/hf/bf16",
        "formats/meta/single",
        "formats/gguf/k_blocks.gguf",
        "formats/gguf/scaled.gguf",
        "formats/llama2c/v0.bin",
        "formats/llama2c/v2_across.bin",
    ];
    for path in formats {
        let checkpoint = checkpoint::open(&common::fixture(path)).unwrap();
        let group = checkpoint.group().unwrap_or(DEFAULT_GROUP);
        for precision in [Precision::F32, Precision::Bf16, Precision::Q8 { group }] {
            for dtype in [CacheDtype::F32, CacheDtype::F16, CacheDtype::Bf16] {
                let cpu = Cpu::default().with_precision(precision).with_cache_dtype(dtype);
                let report = report(&Model::load(&checkpoint, cpu).unwrap());
                assert!(report.ok(), "{path} in {precision:?}, {dtype:?}: {:#?}", report.checks);
            }
        }
    }
}

#[test]
fn the_processor_is_no_distance_from_its_own_float32_and_within_the_bound_where_it_rounds() {
    let cpu = model_in("gqa", Cpu::default());
    let ids = check::seeded_ids(cpu.config.vocab, 30, 1);
    let plan = Plan { ids, split: None, tokenizer: None, sample: Sample::Seeded(1) };
    for precision in PRECISIONS {
        let model = model_in("gqa", Cpu::default().with_precision(precision));
        let report = check::run(&model, Some(&cpu), &plan, &|_, _| {}).unwrap();
        let check = report.checks.iter().find(|check| check.name == "float32").unwrap();
        assert!(check.ok, "{precision:?}: {check:?}");
        assert_eq!(check.worst == 0.0, precision == Precision::F32, "{check:?}");
    }
}

/// The lines of the report that detect a fault. The first list has their names up to the colon, so that every kernel
/// has the name `kernel`.
fn caught(name: &str, precision: Precision, fault: Fault) -> (Vec<String>, Vec<Check>) {
    let checkpoint = match name {
        "" => llama_trace::builtin::open(),
        name => checkpoint::open(&common::fixture(&format!("golden/{name}"))),
    };
    let cpu = Cpu::default().with_precision(precision);
    let model = Model::load(&checkpoint.unwrap(), Other::new(cpu, fault)).unwrap();
    let mut report = report(&model);
    report.checks.retain(|check| !check.ok);
    let mut names: Vec<String> =
        report.checks.iter().map(|check| check.name.split(':').next().unwrap().to_owned()).collect();
    names.dedup();
    (names, report.checks)
}

/// The stage at which a line fails.
fn stage(check: &Check) -> String {
    let Some(Address { subject: Some(Subject::Step(step)), .. }) = &check.at else { panic!("{check:?}") };
    step.name().to_owned()
}

#[test]
fn each_fault_is_caught_by_the_line_that_is_there_for_it_and_where_it_is() {
    let q8 = Precision::Q8 { group: 32 };
    use Precision::{Bf16, F32};
    for (name, precision, fault, line, at) in [
        ("gqa", F32, Fault::NoEpsilon, "float64", "attn_norm"),
        ("qwen3", F32, Fault::NoEpsilon, "float64", "attn_norm"),
        ("", F32, Fault::NoEpsilon, "float64", "attn_norm"),
        ("gqa", q8, Fault::NoEpsilon, "float64", "attn_norm"),
        ("gqa", F32, Fault::NoEpsilon, "kernel", "attn_norm"),
        ("gqa", F32, Fault::SwappedHeads, "float64", "qk"),
        ("gqa", Bf16, Fault::SwappedHeads, "float64", "qk"),
        ("gqa", q8, Fault::SwappedHeads, "derived", "qk"),
        ("gqa", F32, Fault::SwappedHeads, "kernel", "attn_heads"),
        ("gqa", F32, Fault::OtherOrder, "kernel", "xq"),
        ("mha_bias", F32, Fault::OtherOrder, "kernel", "xq"),
        ("mistral", F32, Fault::NoWindow, "float64", "masked_scores"),
        ("tied_llama3", F32, Fault::OtherPosition, "float64", "rope_cos"),
        ("gqa", F32, Fault::OtherCache, "float64", "cache_k"),
        ("gqa", F32, Fault::Watched, "recorded", "logits"),
        ("gqa", F32, Fault::OneThread, "threads", "xq"),
        ("gqa", F32, Fault::Together, "batch", "embedding"),
        ("gqa", F32, Fault::NotANumber, "float64", "ffn_silu"),
        ("gqa", Bf16, Fault::NotANumber, "float64", "ffn_silu"),
        ("gqa", q8, Fault::NotANumber, "float64", "ffn_silu"),
        ("gqa", Bf16, Fault::CutOff, "float64", "ffn_hidden"),
        ("gqa", q8, Fault::OtherSteps, "float64", "attn_norm_q8"),
        ("gqa", q8, Fault::OtherSteps, "kernel", "attn_norm_scale"),
    ] {
        let (names, checks) = caught(name, precision, fault);
        let found = checks.iter().find(|check| check.name.split(':').next() == Some(line));
        let Some(found) = found else { panic!("{name} in {precision:?}: {fault:?} is caught by {names:?}") };
        assert_eq!(stage(found), at, "{name} in {precision:?}, {fault:?}: {found:?}");
        assert_eq!(found.worst.is_nan(), fault == Fault::NotANumber && line == "float64", "{found:?}");
    }
    // Each of these faults is detected by one line only.
    for (fault, line) in
        [(Fault::OtherOrder, "kernel"), (Fault::OneThread, "threads"), (Fault::Together, "batch")]
    {
        assert_eq!(caught("gqa", F32, fault).0, [line], "{fault:?}");
    }
}

/// A tokenizer that reads every `a` as an `e`.
struct Mishearing(Box<dyn Tokenizer>);

impl Tokenizer for Mishearing {
    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.0.encode(&text.replace('a', "e"))
    }

    fn encode_plain(&self, text: &str) -> Result<Vec<u32>> {
        self.0.encode_plain(&text.replace('a', "e"))
    }

    fn bos(&self) -> Option<u32> {
        self.0.bos()
    }

    fn vocab_size(&self) -> usize {
        self.0.vocab_size()
    }

    fn label(&self, id: u32) -> String {
        self.0.label(id)
    }

    fn stream(&self) -> TextStream<'_> {
        self.0.stream()
    }
}

/// Checks a tokenizer with the built-in model on `text`. Without a text, checks it on some of the model's ids.
fn of_tokenizer(tokenizer: &dyn Tokenizer, text: Option<&str>) -> Check {
    let model = Model::load(&llama_trace::builtin::open().unwrap(), Cpu::default()).unwrap();
    let split = text.map(|text| tokenizer.encode(text).unwrap());
    let ids = split.clone().unwrap_or_else(|| check::seeded_ids(tokenizer.vocab_size(), 9, 1));
    let plan = Plan { ids, split, tokenizer: Some(tokenizer), sample: Sample::Seeded(1) };
    let mut report = check::run(&model, None, &plan, &|_, _| {}).unwrap();
    report.checks.pop().unwrap()
}

fn built_in() -> Box<dyn Tokenizer> {
    tokenizer::open(Path::new(&common::fixture("builtin/tokenizer.json"))).unwrap()
}

#[test]
fn a_tokenizer_that_gives_back_another_text_is_caught_and_the_built_in_one_gives_back_its_own() {
    for text in [Some("Once upon a time"), Some(" a  b\n\ta"), None] {
        let good = of_tokenizer(&*built_in(), text);
        assert!(good.ok && good.skipped.is_none(), "{text:?}: {good:?}");
    }
    let bad = of_tokenizer(&Mishearing(built_in()), None);
    assert!(!bad.ok && bad.worst > 1.0, "{bad:?}");
}

#[test]
fn what_a_context_leaves_room_for_is_checked_and_what_it_does_not_is_refused() {
    let model = model_in("gqa", Cpu::default());
    let context = model.config.context;
    for tokens in [1, 2, context - 1, context] {
        let ids = check::seeded_ids(model.config.vocab, tokens, 1);
        let plan = Plan { ids, split: None, tokenizer: None, sample: Sample::All };
        let report = check::run(&model, None, &plan, &|_, _| {}).unwrap();
        assert!(report.ok(), "{tokens} tokens: {:#?}", report.checks);
        assert_eq!(report.tokens.len(), 1 + check::DECODES.min(context - tokens));
        assert_eq!(report.rows.0, report.rows.1, "all rows are computed");
    }
    for (ids, what) in
        [(vec![1; context + 1], "context"), (vec![], "no tokens"), (vec![u32::MAX], "vocabulary")]
    {
        let plan = Plan { ids, split: None, tokenizer: None, sample: Sample::All };
        let error = check::run(&model, None, &plan, &|_, _| {}).unwrap_err();
        assert_eq!(error.exit_code(), 4, "{error}");
        assert!(error.to_string().contains(what), "{error}");
    }
}
