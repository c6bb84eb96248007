//! A bfloat16 unit that sums many tokens in another order. The order of a row depends on its own span, and not on the
//! other sequences of the pass.

use std::ops::Range;

use super::{VOCAB, bits, models};
use llama_trace_core::trace::{NoProbe, Probe, Site, Values};
use llama_trace_engine::backend::Span;
use llama_trace_engine::model::{Activations, KvCache, Model, pass};

/// All rows that a pass records, by site.
#[derive(Default)]
struct Bits(std::collections::BTreeMap<Site, Vec<(usize, Vec<u32>)>>);

impl Probe for Bits {
    fn enabled(&self) -> bool {
        true
    }

    fn wants(&self, _: Site) -> bool {
        true
    }

    fn record(&mut self, site: Site, rows: Range<usize>, values: Values<'_>) {
        let values = match values {
            Values::F32(values) => bits(values.iter().copied()),
            Values::I64(values) => values.iter().map(|value| *value as u32).collect(),
            Values::I8(values) => values.iter().map(|value| i32::from(*value).cast_unsigned()).collect(),
        };
        self.0.entry(site).or_default().push((rows.start, values));
    }
}

/// Runs a pass over `spans` with the caches of their sequences. Returns the bits of the last logits.
fn run(
    model: &Model,
    caches: &mut [KvCache],
    work: &mut Activations,
    spans: &[Span],
    probe: &mut dyn Probe,
) -> Vec<Vec<u32>> {
    let id = |sequence: usize, position: usize| ((position * 37 + sequence * 11) % VOCAB) as u32;
    let ids: Vec<u32> =
        spans.iter().flat_map(|span| (span.start..span.keys()).map(|at| id(span.sequence, at))).collect();
    // The spans are in the order of the sequences.
    let mut now: Vec<_> = (caches.iter_mut().enumerate())
        .filter(|(sequence, _)| spans.iter().any(|span| span.sequence == *sequence))
        .map(|(_, cache)| cache)
        .collect();
    pass::forward(model, &mut now, work, 0, spans, &ids, probe).unwrap();
    let logits = |i| {
        let mut seen = Vec::new();
        let see = |logits: &[f32]| {
            seen = bits(logits.iter().copied());
            Ok(())
        };
        pass::last_logits(model, work, i, see).unwrap();
        seen
    };
    (0..spans.len()).map(logits).collect()
}

#[test]
fn a_row_is_summed_in_the_order_of_its_own_span() {
    /// Tokens of each sequence in one pass and in the next. From 16 tokens of one sequence on, the unit is used.
    const PASSES: [[usize; 4]; 2] = [[20, 1, 17, 9], [1, 16, 2, 15]];
    for (name, model) in models(512) {
        let cache = |_| KvCache::with_capacity(&model.config, &*model.backend, 36).unwrap();
        let [mut together, mut unwatched, mut alone] =
            [(); 3].map(|()| (0..4).map(cache).collect::<Vec<_>>());
        let mut work = Activations::new(&model).unwrap();
        for tokens in PASSES {
            let span = |(sequence, &tokens): (usize, &usize)| Span {
                sequence,
                start: together[sequence].len(),
                tokens,
            };
            let spans: Vec<_> = tokens.iter().enumerate().map(span).collect();
            let mut seen = Bits::default();
            let logits = run(&model, &mut together, &mut work, &spans, &mut seen);
            assert!(
                run(&model, &mut unwatched, &mut work, &spans, &mut NoProbe) == logits,
                "{name}: watched"
            );
            for span in spans {
                let mut own = Bits::default();
                let last = run(&model, &mut alone, &mut work, &[span], &mut own);
                assert!(last == logits[span.sequence..=span.sequence], "{name}, {span:?}: logits");
                for (site, rows) in own.0 {
                    assert!(seen.0[&site] == rows, "{name}, {span:?}: {site}");
                }
            }
        }
    }
}
