//! Frames within a memory budget. A stage that does not fit is computed again or arrives in blocks, with the same bits.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::atomic::Ordering;

use llama_trace::config::ModelConfig;
use llama_trace::generate::Session;
use llama_trace::stop::LOOK;
use llama_trace::trace::{Answer, Part, Probe, Query, Spread, Values};

use super::fault::{Fault, Other};
use super::*;

/// A checksum of every row of every stage of a run, so the run need not be kept.
#[derive(Default)]
struct Sums {
    rows: HashMap<Site, Vec<u64>>,
}

impl Probe for Sums {
    fn enabled(&self) -> bool {
        true
    }

    fn wants(&self, _: Site) -> bool {
        true
    }

    fn record(&mut self, site: Site, rows: Range<usize>, values: Values<'_>) {
        let width = values.len() / rows.len();
        let sums = self.rows.entry(site).or_default();
        sums.resize(sums.len().max(rows.end), 0);
        for (i, row) in rows.enumerate() {
            let values = values.slice(i * width..(i + 1) * width);
            sums[row] = match values {
                Values::F32(values) => sum(values.iter().map(|value| u64::from(value.to_bits()))),
                Values::I64(values) => sum(values.iter().map(|&value| value as u64)),
                Values::I8(values) => sum(values.iter().map(|&value| value as u64)),
            };
        }
    }
}

fn sum(values: impl Iterator<Item = u64>) -> u64 {
    let mut hasher = DefaultHasher::new();
    values.for_each(|value| value.hash(&mut hasher));
    hasher.finish()
}

/// A checksum for each row of `block`, whose rows must be whole and contiguous.
fn sums_of(block: &Block) -> Vec<u64> {
    let width = *block.shape.last().unwrap();
    assert_eq!(block.region.shape().last(), Some(&width), "rows are whole");
    match &block.frame.data {
        FrameData::F32(array) => rows(array.as_slice().unwrap(), width, |value| u64::from(value.to_bits())),
        FrameData::I64(array) => rows(array.as_slice().unwrap(), width, |value| value as u64),
        FrameData::I8(array) => rows(array.as_slice().unwrap(), width, |value| value as u64),
    }
}

fn rows<T: Copy>(values: &[T], width: usize, bits: impl Fn(T) -> u64) -> Vec<u64> {
    values.chunks_exact(width).map(|row| sum(row.iter().map(|&value| bits(value)))).collect()
}

/// Reads every stage of a live run within `memory`, from the last to the first, and compares each row with the pass
/// itself. Returns how many blocks were not whole stages.
fn compare_within(memory: usize, model: impl Fn() -> Model, prompt: &[u32], passes: usize) -> usize {
    let (plain, mut sums) = (model(), Sums::default());
    let mut session = Session::new(&plain, sampler()).unwrap();
    let (mut ids, mut sites) = (prompt.to_vec(), Vec::new());
    for _ in 0..passes {
        sites.extend(Site::all(&plain.sizes(), session.next_pass(ids.len())));
        ids = vec![session.run(&ids, &mut sums).unwrap()];
    }
    assert_eq!(sites.len(), sums.rows.len());

    let mut live = start_within(memory, model(), prompt, passes, Vec::new());
    let mut blocks = 0;
    for site in sites.into_iter().rev() {
        let recorded = &sums.rows[&site];
        let dims = live.outline().passes[site.pass].dims;
        let shape = plain.sizes().shape(site.stage.axes(), dims);
        let (_, outer) = shape.split_last().unwrap();
        let mut row = 0;
        while row < recorded.len() {
            // The region of the whole row.
            let mut rest = row;
            let mut region: Vec<_> = outer
                .iter()
                .rev()
                .map(|length| {
                    let at = rest % length;
                    rest /= length;
                    at..at + 1
                })
                .collect();
            region.reverse();
            region.push(0..*shape.last().unwrap());
            let region = Region(region);
            let block = wait_for(&mut live, site, &region).unwrap();
            assert!(block.region.covers(&region), "{site} {region:?}");
            let found = sums_of(&block);
            if block.is_whole() {
                assert!(found == *recorded, "{site} differs");
                break;
            }
            blocks += 1;
            // The rows from this one on that are contiguous in the block.
            let run = block.run(row * shape.last().unwrap()).unwrap();
            let first = run.start / shape.last().unwrap();
            let count = run.len() / shape.last().unwrap();
            assert!(found[first..first + count] == recorded[row..row + count], "{site} from row {row}");
            row += count;
        }
    }
    assert!(live.most_held() <= memory, "{} bytes held, {memory} are allowed", live.most_held());
    assert!(live.most_held() > 0);
    blocks
}

pub(super) fn thin(dim: usize, layers: usize, vocab: usize) -> Model {
    let config = ModelConfig {
        dim,
        layers,
        ffn_dim: dim + 8,
        vocab,
        tied: true,
        ..ModelConfig::of_heads(2, 1, dim / 2)
    };
    Model::load(&random::of_config("thin", config, Dtype::BF16), Cpu::default()).unwrap()
}

#[test]
fn within_64_mib_every_stage_of_1100_tokens_over_128256_is_there_and_the_same() {
    let prompt: Vec<u32> = (0..1100).map(|i| i * 113 % 128_256).collect();
    let blocks = compare_within(64 << 20, || thin(16, 2, 128_256), &prompt, 2);
    assert!(blocks > 100, "the logits alone are 564 MB; {blocks} blocks");
}

#[test]
fn inputs_of_layers_that_had_to_go_are_made_again_over_many_layers_and_passes() {
    let prompt: Vec<u32> = (1..=40).collect();
    // The input of a layer takes 5 KB in the prefill. So the budgets have room for no input, for one, or for a few
    // inputs.
    for memory in [16 << 10, 32 << 10, 96 << 10, 1 << 20] {
        compare_within(memory, || thin(32, 12, 50), &prompt, 6);
    }
}

#[test]
fn within_little_memory_every_family_and_precision_shows_what_the_pass_computed() {
    for (_, model) in models_in(&["gqa", "mistral", "qwen3"]) {
        compare_within(8 << 10, model, &[1, 5, 9, 3, 7, 2, 2, 8], PASSES);
    }
}

/// The inputs of all layers fit into half of the memory. The scores of a head do not fit into a sixteenth of it.
#[test]
fn a_stage_runs_its_own_layer_and_no_other_where_the_inputs_of_all_have_room() {
    const LAYERS: usize = 12;
    let prompt: Vec<u32> = (0..200).map(|i| i % 50).collect();
    let (dim, width) = (32, size_of::<f32>());
    let memory = 2 * LAYERS * prompt.len() * dim * width;
    let config = thin(dim, LAYERS, 50).config;
    let checkpoint = random::of_config("thin", config, Dtype::BF16);
    let other = Other::new(Cpu::default(), Fault::Sound);
    let ran = other.layers();
    let model = Model::load(&checkpoint, other).unwrap();
    let sizes = model.sizes();
    let mut live = start_within(memory, model, &prompt, 1, Vec::new());
    assert_eq!(ran.swap(0, Ordering::SeqCst), LAYERS, "the pass itself");
    let dims = live.outline().passes[0].dims;
    let scores = sizes.shape(Stage::Qk.axes(), dims).iter().product::<usize>() * width;
    assert!(scores > memory / 16, "they come in blocks");
    let sites = Site::all(&sizes, dims);
    // The order of the sites jumps back and forth, so that no two requests are close.
    let far = (0..sites.len()).map(|i| i * 37 % sites.len());
    for (turn, site) in far.map(|i| sites[i]).enumerate() {
        let shape = sizes.shape(site.stage.axes(), dims);
        for region in [
            Region(shape.iter().map(|&length| length - 1..length).collect()),
            Region(shape.iter().map(|_| 0..1).collect()),
        ] {
            wait_for(&mut live, site, &region).unwrap();
            // An answer arrives before its layer has run to the end. The next request is answered after that.
            rows_of(&mut live, Some(0), "wq", turn % dim..turn % dim + 1);
            let (now, most) = (ran.swap(0, Ordering::SeqCst), usize::from(site.layer.is_some()));
            assert!(now <= most, "{now} layers were run for {site}");
        }
    }
    assert!(live.most_held() <= memory, "{} bytes held, {memory} are allowed", live.most_held());
}

#[test]
fn statistics_of_a_stage_in_blocks_are_those_of_the_whole() {
    let model = || model("gqa");
    let prompt: Vec<u32> = (1..=20).collect();
    let (frames, _) = record(&model(), &prompt);
    let mut live = start_within(8 << 10, model(), &prompt, 1, Vec::new());
    for (stage, layer) in [(Stage::Softmax, Some(1)), (Stage::MaskedScores, Some(0)), (Stage::Logits, None)] {
        let site = Site { layer, ..Site::once(0, stage) };
        let whole = frames[&site].floats().unwrap();
        for held in [None, Some((0, 1)), Some((1, 3)), Some((whole.ndim() - 1, 4))] {
            let answer = ask(&mut live, &Query::Spread(Part { site, held }));
            let Ok(Answer::Spread(spread)) = answer else { panic!("{answer:?}") };
            let part = match held {
                Some((axis, index)) => whole.index_axis(ndarray::Axis(axis), index),
                None => whole.view(),
            };
            let expected = llama_trace::trace::Stats::of(part.iter().map(|&value| f64::from(value)));
            let stats = spread.stats;
            let exact = |stats: &llama_trace::trace::Stats| (stats.min, stats.max, stats.neg_inf, stats.nan);
            assert_eq!(exact(&stats), exact(&expected), "{site} {held:?}");
            for (ours, theirs) in [(stats.mean, expected.mean), (stats.std, expected.std)] {
                assert!(
                    (ours - theirs).abs() <= 1e-12 * expected.std,
                    "{site} {held:?}: {ours}, not {theirs}"
                );
            }
            // The colour scale is the same, and the values beyond it were counted.
            let whole = Spread::of_frame(&frames[&site], held);
            assert_eq!(
                (spread.usual, spread.beyond_usual),
                (whole.usual, whole.beyond_usual),
                "{site} {held:?}"
            );
            let beyond = |size: f64| {
                part.iter().filter(|value| value.is_finite() && f64::from(value.abs()) > size).count()
            };
            assert_eq!(spread.beyond_deviations, beyond(spread.deviations), "{site} {held:?}");
            assert!(spread.deviations.is_nan() || spread.deviations >= whole.deviations * (1.0 - 1e-12));
        }
    }
}

#[test]
fn work_that_was_stopped_can_be_asked_for_again_with_the_same_bits() {
    let prompt: Vec<u32> = (0..1500).map(|i| i * 7 % 300).collect();
    let model = || thin(128, 8, 300);
    let mut plain = start(model(), &prompt, 2, Vec::new());
    let start = Start {
        ids: prompt,
        draws: 2,
        sampler: sampler(),
        tokenizer: None,
        eos: Vec::new(),
        memory: DEFAULT_MEMORY,
        context: None,
    };
    let mut live = Live::start(Arc::new(model()), start).unwrap();
    let under_way = |live: &Live| matches!(live.status(), Status::Working(text) if text.contains("layer"));
    let idle = |live: &mut Live| {
        while live.status() != Status::Idle {
            live.wait(LOOK);
            live.poll().unwrap();
        }
    };
    assert_eq!(live.outline().passes[0].tokens.len(), 1500, "the tokens are there at once");
    while !under_way(&live) {
        std::thread::yield_now();
    }
    live.stop();
    idle(&mut live);
    assert_eq!(live.outline().passes[0].sampled, None, "the pass was stopped");
    for _ in 0..2 {
        live.advance().unwrap();
        idle(&mut live);
    }
    assert_eq!(live.outline(), plain.outline());

    let site = Site::layer(0, 7, Stage::Softmax);
    let some = Region(vec![0..1, 0..1, 0..1]);
    assert!(source::block(&mut live, site, &some).is_pending());
    while !under_way(&live) {
        std::thread::yield_now();
    }
    live.stop();
    assert!(matches!(wait_for(&mut live, site, &some), Err(llama_trace::error::Error::Interrupted(_))));
    let (ours, theirs) =
        (wait_for(&mut live, site, &some).unwrap(), wait_for(&mut plain, site, &some).unwrap());
    assert_same(&ours.frame, &theirs.frame);
}

/// A request to stop works however soon it comes after a query. A later query is answered.
#[test]
fn what_was_asked_for_a_moment_ago_is_stopped_too() {
    let prompt: Vec<u32> = (0..600).map(|i| i * 7 % 300).collect();
    let mut live = start_within(LEAST_MEMORY, thin(128, 6, 300), &prompt, 1, Vec::new());
    let some = Region(vec![0..1, 0..1, 0..1]);
    for round in 0..60_u32 {
        // Between the two requests the worker has no time, a little time, or enough time to begin.
        let [first, second] = [Stage::Softmax, Stage::Scores].map(|stage| Site::layer(0, 5, stage));
        assert!(source::block(&mut live, first, &some).is_pending(), "{round}");
        assert!(source::block(&mut live, second, &some).is_pending());
        for _ in 0..(1_u32 << (round % 12)) {
            std::hint::spin_loop();
        }
        live.stop();
        for site in [first, second] {
            let stopped = wait_for(&mut live, site, &some);
            assert!(matches!(stopped, Err(llama_trace::error::Error::Interrupted(_))), "{round}: {site}");
        }
    }
    let last = Site::layer(0, 5, Stage::Softmax);
    assert!(wait_for(&mut live, last, &some).is_ok());
}
