//! A stopped pass: its unfinished results are not visible, and it can be run again.

use std::cell::Cell;
use std::collections::HashMap;
use std::ops::Range;

use llama_trace::backend::Backend;
use llama_trace::backend::cpu::Cpu;
use llama_trace::config::Precision;
use llama_trace::error::Error;
use llama_trace::generate::Session;
use llama_trace::model::Model;
use llama_trace::stop::Stop;
use llama_trace::trace::{Frame, Probe, Recorder, Select, Site, Stage, Values};

use super::{assert_same, model_in, record, sampler};

/// Requests a stop when the `left`-th stage is requested, and lets `inner` record the rest.
struct Asks<P> {
    inner: P,
    stop: Stop,
    left: Cell<usize>,
    /// The number of values that were recorded after the stop request.
    late: usize,
}

impl<P: Probe> Probe for Asks<P> {
    fn enabled(&self) -> bool {
        true
    }

    fn wants(&self, site: Site) -> bool {
        self.left.set(self.left.get().saturating_sub(1));
        if self.left.get() == 0 {
            self.stop.ask();
        }
        self.inner.wants(site)
    }

    fn record(&mut self, site: Site, rows: Range<usize>, values: Values<'_>) {
        // The pass is complete when the sampler's stages come.
        let late = self.stop.asked() && site.stage < Stage::Probs;
        self.late += if late { values.len() } else { 0 };
        self.inner.record(site, rows, values);
    }
}

const PROMPT: [u32; 5] = [1, 5, 9, 3, 7];

#[test]
fn a_stopped_pass_shows_nothing_unfinished_and_runs_again_with_the_same_bits() {
    for precision in [Precision::F32, Precision::Bf16, Precision::Q8 { group: 32 }] {
        let stop = Stop::default();
        let model = model_in("gqa", Cpu::default().with_precision(precision).with_stop(stop.clone()));
        let (whole, passes) = record(&model, &PROMPT);
        let select = Select::all();
        let (mut at, mut ended) = (1, false);
        while !ended {
            let mut session = Session::new(&model, sampler()).unwrap();
            let mut ids = PROMPT.to_vec();
            // The prefill and a decode pass are stopped at the same stage, and then run.
            for dims in &passes[..2] {
                let mut seen = HashMap::new();
                let inner = Recorder::new(model.sizes(), *dims, &select, |frame: Frame| {
                    seen.insert(frame.site, frame);
                });
                let mut probe = Asks { inner, stop: stop.clone(), left: Cell::new(at), late: 0 };
                let stopped = session.run(&ids, &mut probe);
                assert_eq!(probe.late, 0, "stage {at} in {precision:?}");
                drop(probe);
                for (site, frame) in &seen {
                    assert_same(frame, &whole[site]);
                }
                ended = stopped.is_ok();
                if !ended {
                    assert!(matches!(stopped, Err(Error::Interrupted(_))));
                    assert_eq!(session.next_pass(ids.len()), *dims, "stage {at} in {precision:?}");
                    stop.clear();
                    ids = vec![run_again(&mut session, &ids, &whole)];
                } else {
                    break;
                }
            }
            stop.clear();
            at += 1;
        }
        assert!(at > 50, "{at} stages");
    }
}

/// Runs the stopped pass, and compares every frame of it.
fn run_again(session: &mut Session<'_>, ids: &[u32], whole: &HashMap<Site, Frame>) -> u32 {
    let (dims, sizes, select) = (session.next_pass(ids.len()), session.model.sizes(), Select::all());
    let mut count = 0;
    let drawn = session.run(
        ids,
        &mut Recorder::new(sizes, dims, &select, |frame| {
            assert_same(&frame, &whole[&frame.site]);
            count += 1;
        }),
    );
    assert_eq!(count, Site::all(&sizes, dims).len());
    drawn.unwrap()
}

#[test]
fn weights_are_not_quantised_after_a_request_to_stop() {
    let checkpoint = llama_trace::checkpoint::open(&super::common::fixture("golden/gqa")).unwrap();
    let cpu = Cpu::default().with_precision(Precision::Q8 { group: 32 });
    cpu.stop().ask();
    assert!(matches!(Model::load(&checkpoint, cpu), Err(Error::Interrupted(_))));
}
