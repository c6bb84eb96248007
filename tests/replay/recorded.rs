//! A trace has the bits of the recorded run, whichever stages were kept.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use llama_trace::backend::Backend;
use llama_trace::backend::cpu::{Cpu, Kernel};
use llama_trace::config::{CacheDtype, ModelConfig, Precision};
use llama_trace::error::Error;
use llama_trace::generate::{Sampler, Session};
use llama_trace::model::Model;
use llama_trace::record::about::Fingerprint;
use llama_trace::record::plan::{Texts, stages};
use llama_trace::record::writer::TextsOf;
use llama_trace::record::{About, Keep, Plan, Target, Trace, Writer};
use llama_trace::replay::derive::follows;
use llama_trace::replay::{LEAST_MEMORY, Recorded};
use llama_trace::trace::explanation::ExplanationAt;
use llama_trace::trace::lens::{AttributionAt, LensAt};
use llama_trace::trace::manifest::Drawing;
use llama_trace::trace::patch::{PatchAt, PatchMap};
use llama_trace::trace::stream::StreamAt;
use llama_trace::trace::units::{UnitOrder, UnitsAt, WritesAt};
use llama_trace::trace::{
    Answer, Filters, Frame, ModelCard, Order, Part, PassDims, Probe, Query, Recorder, Region, Run, Sampling,
    Select, Site, Source, Spread, Stage, Values,
};

use super::{MODELS, PASSES, ask, assert_same, model_in, sampler, start};

/// The description in a trace with these stages. It does not come from a real run.
fn about(card: ModelCard, stages: &[Stage]) -> About {
    About {
        program: "a test".into(),
        cache: "f32".into(),
        sampling: Drawing { sampling: Sampling::default(), stream: 0 },
        sequences: 1,
        keep: Keep::All,
        budget: None,
        stages: stages.iter().map(|stage| stage.name().to_owned()).collect(),
        exact: true,
        fingerprint: Fingerprint { config: String::new(), weights: String::new() },
        card,
    }
}

/// Records a run of `draws` passes, when `planned` passes were expected.
fn record(
    model: &Model,
    prompt: &[u32],
    keep: (Keep, Option<u64>),
    passes: (usize, usize),
    path: &Path,
) -> HashMap<Site, Frame> {
    record_drawn(model, sampler().sampling(), prompt, keep, passes, path)
}

/// Records a run of the usual length with other sampler settings.
pub(crate) fn record_with(
    model: &Model,
    sampling: Sampling,
    prompt: &[u32],
    keep: Keep,
    path: &Path,
) -> HashMap<Site, Frame> {
    record_drawn(model, sampling, prompt, (keep, None), (PASSES, PASSES), path)
}

fn record_drawn(
    model: &Model,
    sampling: Sampling,
    prompt: &[u32],
    (keep, budget): (Keep, Option<u64>),
    (draws, planned): (usize, usize),
    path: &Path,
) -> HashMap<Site, Frame> {
    let card = model.card();
    let (sampler, filters) = (Sampler::new(sampling).unwrap(), sampling.filters());
    let sampling = Drawing { sampling, stream: 0 };
    let found = model.fingerprint().unwrap();
    let about = About {
        program: "a test".into(),
        cache: model.backend.cache_dtype().name().into(),
        sampling,
        sequences: 1,
        keep,
        budget,
        stages: stages(&card.sizes(), filters, keep, follows)
            .iter()
            .map(|stage| stage.name().to_owned())
            .collect(),
        exact: true,
        fingerprint: Fingerprint { config: found.config, weights: found.weights },
        card,
    };
    let decode =
        (1..planned).map(|pass| PassDims { pass, start: prompt.len() + pass - 1, tokens: 1, filters });
    let first = PassDims { pass: 0, start: 0, tokens: prompt.len(), filters };
    let passes: Vec<_> = [first].into_iter().chain(decode).collect();
    let texts = TextsOf { labels: Vec::new(), prompts: vec![Some("é".into())] };
    let plan = Plan::of(&about, &[passes], &[], Texts { prompt_bytes: 2, ..Texts::default() }).unwrap();
    let target = Target::check(path, false).unwrap();
    let mut writer = Writer::begin(&target, about, plan, texts).unwrap();
    let mut session = Session::new(model, sampler.clone()).unwrap();
    let mut again = Session::new(model, sampler).unwrap();
    let (select, mut frames, mut ids) = (Select::all(), HashMap::new(), prompt.to_vec());
    for _ in 0..draws {
        let dims = session.next_pass(ids.len());
        let mut recorder = Recorder::new(model.sizes(), dims, &select, |frame: Frame| {
            frames.insert(frame.site, frame);
        });
        writer.next([(0, dims)].into_iter());
        let drawn = again.run(&ids, &mut writer).unwrap();
        writer.check().unwrap();
        assert_eq!(session.run(&ids, &mut recorder).unwrap(), drawn);
        ids = vec![drawn];
    }
    writer.finish(&target).unwrap();
    frames
}

pub(crate) fn open(path: &Path, memory: usize) -> (Arc<Trace>, Box<dyn Source>) {
    let trace = Arc::new(Trace::open(path).unwrap());
    let source = Recorded::new(Arc::<Trace>::clone(&trace), None, None, memory).open(Run::ITSELF, 0).unwrap();
    (trace, source)
}

fn block(source: &mut dyn Source, site: Site, shape: &[usize]) -> Result<Frame, Error> {
    match ask(source, &Query::Block(site, Region::whole(shape)))? {
        Answer::Block(block) => {
            assert!(block.is_whole(), "{site}");
            Ok((*block.frame).clone())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_stage_of_a_trace_that_is_opened_has_the_bits_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let precisions = [Precision::F32, Precision::Bf16, Precision::Q8 { group: 32 }];
    let cpus = precisions.map(|precision| Cpu::default().with_precision(precision));
    let mut runs: Vec<_> = MODELS.iter().flat_map(|name| cpus.clone().map(|cpu| (*name, cpu))).collect();
    runs.extend([
        ("gqa", Cpu::default().with_cache_dtype(CacheDtype::F16)),
        ("gqa", Cpu::default().with_precision(Precision::Q8 { group: 7 })),
    ]);
    // The trace has the arithmetic of its kernel.
    let wasm = precisions.map(|precision| Cpu::with_kernel(Kernel::wasm()).with_precision(precision));
    runs.extend(wasm.map(|cpu| ("qwen3", cpu)));
    for (number, (name, cpu)) in runs.into_iter().enumerate() {
        let precision = cpu.precision();
        let model = model_in(name, cpu);
        for keep in [Keep::Minimal, Keep::All] {
            let path = folder.path().join(format!("{number}{keep:?}"));
            let prompt = [1, 5, 9, 3, 7];
            let frames = record(&model, &prompt, (keep, None), (PASSES, PASSES), &path);
            let (trace, mut source) = open(&path, 1 << 30);
            let mut derived = 0;
            for (site, frame) in &frames {
                let ours = block(&mut *source, *site, frame.shape()).unwrap();
                assert_same(&ours, frame);
                if trace.holds(*site) {
                    let (stats, digests) = (trace.stats(*site).unwrap(), trace.digests(*site).unwrap());
                    assert!((stats.max as f32).to_bits() == (frame.stats().max as f32).to_bits(), "{site}");
                    let whole = ring::digest::digest(&ring::digest::SHA256, trace.bytes(*site).unwrap());
                    assert!(digests == [whole.as_ref()], "{site}");
                } else {
                    derived += 1;
                }
            }
            assert_eq!(derived > 0, keep == Keep::Minimal, "{name} in {precision:?}");
            let passes = &source.outline().passes;
            assert_eq!((passes.len(), passes[0].tokens.len()), (PASSES, prompt.len()));
            assert!(source.advance().unwrap_err().to_string().contains("recorded"), "there is no next token");
        }
    }
}

#[test]
fn what_has_no_room_whole_is_derived_in_blocks_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let model = model_in("gqa", Cpu::default().with_precision(Precision::Q8 { group: 7 }));
    let prompt: Vec<u32> = (0..40).map(|id| id % 20).collect();
    let path = folder.path().join("trace");
    let frames = record(&model, &prompt, (Keep::Minimal, None), (2, 2), &path);
    // A budget so small that only a few numbers fit.
    let trace = Arc::new(Trace::open(&path).unwrap());
    let mut source = Recorded::new(trace, None, None, 1 << 11).open(Run::ITSELF, 0).unwrap();
    for (site, frame) in &frames {
        let shape = frame.shape().to_vec();
        let last: Vec<usize> = shape.iter().map(|length| length - 1).collect();
        for index in [vec![0; shape.len()], last] {
            let region = Region(index.iter().map(|&at| at..at + 1).collect());
            let Answer::Block(block) = ask(&mut *source, &Query::Block(*site, region)).unwrap() else {
                panic!()
            };
            assert_eq!(format!("{:?}", block.get(&index)), format!("{:?}", frame.get(&index)), "{site}");
        }
        let Answer::Spread(spread) = ask(&mut *source, &Query::Spread(Part::whole(*site))).unwrap() else {
            panic!()
        };
        let whole = Spread::of_frame(frame, None).stats;
        assert_eq!((spread.stats.nan, spread.stats.neg_inf), (whole.nan, whole.neg_inf), "{site}");
        assert!(spread.stats.max == whole.max || whole.max.is_nan(), "{site}");
    }
    let part = Part { site: Site::once(0, Stage::Logits), held: Some((0, 3)) };
    let Answer::Order(order) = ask(&mut *source, &Query::Order(part)).unwrap() else { panic!() };
    let frame = Arc::new(frames[&part.site].clone());
    assert_eq!(order.ids, Order::of(&llama_trace::trace::Block::whole(frame), part.held).ids);
}

#[test]
fn a_run_that_ended_early_leaves_no_room_for_what_did_not_come() {
    let folder = tempfile::tempdir().unwrap();
    let model = model_in("mistral", Cpu::default());
    for keep in [Keep::Minimal, Keep::All] {
        let [early, exact] = ["early", "exact"].map(|name| folder.path().join(format!("{name}{keep:?}")));
        let prompt = [1, 5, 9, 3, 7];
        let frames = record(&model, &prompt, (keep, None), (4, 40), &early);
        record(&model, &prompt, (keep, None), (4, 4), &exact);
        let [(one, mut source), (other, _)] = [&early, &exact].map(|path| open(path, LEAST_MEMORY));
        for (site, frame) in &frames {
            assert_same(&block(&mut *source, *site, frame.shape()).unwrap(), frame);
            assert_eq!(
                (one.bytes(*site), one.digests(*site)),
                (other.bytes(*site), other.digests(*site)),
                "{site}"
            );
        }
        assert!(!one.has(Site::once(4, Stage::Logits)));
    }
}

/// Each block of 256 KiB has its own digest, whichever rows come first.
#[test]
fn a_part_that_was_changed_is_refused_and_the_rest_of_its_stage_is_shown() {
    const BLOCK: usize = 256 << 10;
    let folder = tempfile::tempdir().unwrap();
    let model = model_in("gqa", Cpu::default());
    let card = model.card();
    let site = Site::layer(0, 1, Stage::FfnUp);
    let width = card.config.ffn_dim;
    // A little more than three blocks, so that rows cross their borders.
    let tokens = 3 * BLOCK / (4 * width) + 5;
    let card = ModelCard { config: ModelConfig { context: tokens + 1, ..card.config }, ..card };
    let about = about(card, &[Stage::Tokens, Stage::FfnUp, Stage::Sampled]);
    let passes = [vec![PassDims { pass: 0, start: 0, tokens, ..PassDims::default() }]];
    let value = |layer: usize, row: usize, column: usize| (layer + row * 31 + column) as f32 * 0.3;
    let write = |path: &Path, orders: &[Range<usize>]| {
        let plan = Plan::of(&about, &passes, &[], Texts::default()).unwrap();
        let target = Target::check(path, false).unwrap();
        let texts = TextsOf { labels: Vec::new(), prompts: vec![None] };
        let mut writer = Writer::begin(&target, about.clone(), plan, texts).unwrap();
        writer.next([(0, passes[0][0])].into_iter());
        writer.record(Site::once(0, Stage::Tokens), 0..1, Values::I64(&vec![1; tokens]));
        writer.record(Site::once(0, Stage::Sampled), 0..1, Values::I64(&[1]));
        for rows in orders {
            for layer in 0..about.card.config.layers {
                let row = |row: usize| (0..width).map(move |column| value(layer, row, column));
                let values: Vec<f32> = rows.clone().flat_map(row).collect();
                writer.record(Site { layer: Some(layer), ..site }, rows.clone(), Values::F32(&values));
            }
        }
        writer.check().unwrap();
        writer.finish(&target).unwrap();
    };
    let paths = ["in-order", "rows", "mixed"].map(|name| folder.path().join(name));
    let (third, all): (_, Range<usize>) = (tokens / 3, 0..tokens);
    write(&paths[0], std::slice::from_ref(&all));
    let rows: Vec<Range<usize>> = all.clone().map(|row| row..row + 1).collect();
    write(&paths[1], &rows);
    write(&paths[2], &[2 * third..tokens, 0..third, third + 3..2 * third, third..third + 3]);
    let first = std::fs::read(&paths[0]).unwrap();
    for path in &paths {
        let trace = Trace::open(path).unwrap();
        assert_eq!(trace.digests(site).unwrap().len(), 4);
        assert!(trace.rows(site, all.clone()).unwrap().is_some());
        let mut bytes = std::fs::read(path).unwrap();
        // The means in the files may differ, because they are summed in the order in which the values arrive. The
        // digests must be the same.
        let digests = |bytes: &[u8]| {
            std::fs::write(folder.path().join("one"), bytes).unwrap();
            Trace::open(&folder.path().join("one")).unwrap().digests(site).map(<[_]>::to_vec)
        };
        assert_eq!(digests(&bytes), digests(&first), "{path:?}");
        // A value in the second block.
        let place = trace.bytes(site).unwrap();
        let start = bytes.windows(place.len()).position(|window| window == place).unwrap();
        bytes[start + BLOCK + 5] ^= 1;
        // Windows does not let a mapped file change.
        drop(trace);
        std::fs::write(path, bytes).unwrap();
        let trace = Trace::open(path).unwrap();
        let row = BLOCK / (4 * width) + 1;
        let error = trace.rows(site, row..row + 1).unwrap_err().to_string();
        assert!(error.contains("p0/L1/ffn_up are not those that were recorded"), "{error}");
        for rows in [0..row - 1, tokens - 1..tokens] {
            assert!(trace.rows(site, rows).unwrap().is_some());
        }
        assert!(trace.rows(site, all.clone()).is_err());
        // In a viewer that has no room for a whole stage, only the damaged part is missing.
        let mut source = Recorded::new(Arc::new(trace), None, None, 1 << 18).open(Run::ITSELF, 0).unwrap();
        let at = |row: usize| Query::Block(site, Region(vec![row..row + 1, 0..1]));
        assert!(ask(&mut *source, &at(row)).unwrap_err().to_string().contains("record it again"));
        assert!(ask(&mut *source, &at(tokens - 1)).is_ok());
    }
}

#[test]
fn the_header_stays_small_with_two_thousand_decode_passes() {
    let folder = tempfile::tempdir().unwrap();
    let model = model_in("gqa", Cpu::default());
    let path = folder.path().join("trace");
    let context = model.config.context;
    let card = model.card();
    // A context with room for all these passes. The model's own context is shorter.
    let card = ModelCard { config: ModelConfig { context: context.max(4096), ..card.config }, ..card };
    let about = about(card.clone(), &stages(&card.sizes(), Filters::NONE, Keep::All, follows));
    let decode = (1..=2000).map(|pass| PassDims { pass, start: 4 + pass, tokens: 1, ..PassDims::default() });
    let first = PassDims { pass: 0, start: 0, tokens: 5, ..PassDims::default() };
    let passes: Vec<_> = [first].into_iter().chain(decode).collect();
    let plan = Plan::of(&about, &[passes], &[], Texts::default()).unwrap();
    let target = Target::check(&path, false).unwrap();
    let texts = TextsOf { labels: Vec::new(), prompts: vec![None] };
    Writer::begin(&target, about, plan, texts).unwrap().finish(&target).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert!(header < 1 << 20, "{header}");
}

#[test]
fn within_a_budget_what_is_left_out_is_known_beforehand_and_told_when_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let model = model_in("gqa", Cpu::default());
    let path = folder.path().join("whole");
    let prompt: Vec<u32> = (0..40).map(|id| id % 20).collect();
    record(&model, &prompt, (Keep::Minimal, None), (3, 3), &path);
    let whole = path.metadata().unwrap().len();
    let path = folder.path().join("less");
    let budget = whole - 6000;
    let frames = record(&model, &prompt, (Keep::Minimal, Some(budget)), (3, 3), &path);
    assert!(path.metadata().unwrap().len() <= budget);
    let (trace, mut source) = open(&path, LEAST_MEMORY);
    let (mut there, mut left_out) = (0, 0);
    for (site, frame) in &frames {
        match block(&mut *source, *site, frame.shape()) {
            Ok(ours) => {
                assert_same(&ours, frame);
                there += 1;
            }
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("is not there") && text.contains("budget"), "{text}");
                assert!(trace.stats(*site).is_some() || follows(site.stage), "{site}");
                left_out += 1;
            }
        }
    }
    assert!(left_out > 0 && there > left_out, "{left_out} left out, {there} there");
}

#[test]
fn statistics_alone_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let model = model_in("gqa", Cpu::default());
    let path = folder.path().join("trace");
    let frames = record(&model, &[1, 5, 9], (Keep::Stats, None), (2, 2), &path);
    let (trace, mut source) = open(&path, LEAST_MEMORY);
    for (site, frame) in &frames {
        let stats = trace.stats(*site).unwrap();
        assert!((stats.min as f32).to_bits() == (frame.stats().min as f32).to_bits(), "{site}");
        let asked = block(&mut *source, *site, frame.shape());
        // Stages that do not depend on the weights need no weights.
        let is_known = [Stage::Tokens, Stage::Sampled, Stage::Mask].contains(&site.stage);
        assert_eq!(asked.is_ok(), is_known, "{site}");
        if let Err(error) = asked {
            let text = error.to_string();
            assert!(text.contains("--keep stats"), "{text}");
            let text = text.split("statistics: ").nth(1).expect(&text);
            // The statistics are shown instead of the values.
            for (name, value) in
                [("min", stats.min), ("max", stats.max), ("mean", stats.mean), ("std", stats.std)]
            {
                let told = text.split(&format!("{name} ")).nth(1).unwrap().split([',', ';']).next().unwrap();
                assert_eq!(
                    told.parse::<f32>().unwrap().to_bits(),
                    (value as f32).to_bits(),
                    "{name}, {text}"
                );
            }
        }
    }
}

#[test]
fn explanations_need_the_model_where_they_need_weights_and_are_then_those_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let cpu = Cpu::default().with_precision(Precision::Q8 { group: 32 });
    let path = folder.path().join("trace");
    let model = model_in("gqa", cpu.clone());
    let frames = record(&model, &[1, 5, 9, 3, 7], (Keep::Minimal, None), (3, 3), &path);
    let (trace, mut alone) = open(&path, LEAST_MEMORY);
    let model = Arc::new(model_in("gqa", cpu.clone()));
    let mut with_model = Recorded::new(trace, Some(model), None, LEAST_MEMORY).open(Run::ITSELF, 0).unwrap();
    let mut needed = 0;
    for (site, frame) in frames.iter().filter(|(site, _)| site.stage != Stage::Tokens) {
        let at = frame.shape().iter().product::<usize>() - 1;
        let query = Query::Explanation(ExplanationAt { site: *site, at, terms: 4 });
        let Answer::Explanation(whole) = ask(&mut *with_model, &query).unwrap() else { panic!() };
        assert_eq!(whole.difference(), 0.0, "{site}");
        match ask(&mut *alone, &query) {
            Ok(Answer::Explanation(found)) => assert_eq!(format!("{found:?}"), format!("{whole:?}")),
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                assert!(error.to_string().contains("--model"), "{site}: {error}");
                needed += 1;
            }
        }
        assert_eq!(ask(&mut *alone, &query).is_err(), !site.stage.info().weights.is_empty(), "{site}");
    }
    assert!(needed > 0);
    let site = Site::layer(0, 0, Stage::FfnResidual);
    let lens = Query::Lens(LensAt { site, tokens: 0..2, top: 3 });
    assert!(ask(&mut *alone, &lens).unwrap_err().to_string().contains("--model"));
    let mut live = start(model_in("gqa", cpu), &[1, 5, 9, 3, 7], 3, Vec::new());
    for (pass, tokens) in [(0, 0..2), (0, 1..5), (2, 0..1)] {
        for layer in 0..live.outline().card.sizes().layers {
            let site = Site::layer(pass, layer, Stage::FfnResidual);
            let lens = Query::Lens(LensAt { site, tokens: tokens.clone(), top: 3 });
            let [of_trace, of_run] = [&mut *with_model, &mut live].map(|source| ask(source, &lens).unwrap());
            assert!(matches!(&of_trace, Answer::Lens(readings) if readings.len() == tokens.len()));
            assert_eq!(format!("{of_trace:?}"), format!("{of_run:?}"), "{lens}: to the bit");
        }
    }
    let site = Site::once(0, Stage::Logits);
    let split = Query::Attribution(AttributionAt { site, token: 1, id: None, against: None });
    assert!(ask(&mut *alone, &split).unwrap_err().to_string().contains("--model"));
    assert!(matches!(ask(&mut *with_model, &split).unwrap(), Answer::Attribution(_)));
    let clean = vec![1, 5, 8, 3, 7].into();
    let patch = Query::Patch(PatchAt { site, clean, map: PatchMap::Residual, places: 0..5 });
    assert!(ask(&mut *alone, &patch).unwrap_err().to_string().contains("--model"));
    let [of_trace, of_run] = [&mut *with_model, &mut live].map(|source| ask(source, &patch).unwrap());
    assert_eq!(format!("{of_trace:?}"), format!("{of_run:?}"), "{patch}: to the bit");
    let site = Site::layer(0, 0, Stage::FfnHidden);
    let writes = Query::Writes(WritesAt { site, token: 1, units: vec![3], top: 2 });
    assert!(ask(&mut *alone, &writes).unwrap_err().to_string().contains("--model"));
    assert!(
        matches!(ask(&mut *with_model, &writes).unwrap(), Answer::Writes(writings) if writings.len() == 1)
    );
    let units = |order| Query::Units(UnitsAt { site, token: 1, order });
    assert!(ask(&mut *alone, &units(UnitOrder::Effect)).unwrap_err().to_string().contains("--model"));
    assert!(ask(&mut *with_model, &units(UnitOrder::Effect)).is_ok());
    // Answers that need no weights are the same without them.
    let stream = Query::Stream(StreamAt { site: site.other(Stage::FfnResidual), tokens: 1..3 });
    for query in [stream, units(UnitOrder::Hidden)] {
        let [one, other] = [&mut *alone, &mut *with_model].map(|source| ask(source, &query));
        assert_eq!(format!("{:?}", one.unwrap()), format!("{:?}", other.unwrap()), "{query}");
    }
}

#[test]
fn with_the_model_what_the_trace_has_not_is_computed_again_over_the_same_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let model = model_in("gqa", Cpu::default());
    let frames = record(&model, &[1, 5, 9, 3, 7], (Keep::Stats, None), (3, 3), &path);
    let (trace, _) = open(&path, LEAST_MEMORY);
    let mut source =
        Recorded::new(trace, Some(Arc::new(model)), None, LEAST_MEMORY).open(Run::ITSELF, 0).unwrap();
    for (site, frame) in &frames {
        assert_same(&block(&mut *source, *site, frame.shape()).unwrap(), frame);
    }
}
