//! Fuzzes reading a trace: the header with the description of the run, the tables and the values.
#![no_main]

use std::sync::{Arc, LazyLock};
use std::task::Poll;
use std::thread;

use libfuzzer_sys::fuzz_target;
use llama_trace::record::Trace;
use llama_trace::replay::{LEAST_MEMORY, Recorded};
use llama_trace::trace::{Region, Run, Site, source};
use llama_trace_fuzz::Folder;

static FOLDER: LazyLock<Folder> = LazyLock::new(Folder::default);

/// Maximum number of stages that are read in a pass. It is enough for all stages of a small model.
const SITES: usize = 80;

fuzz_target!(|bytes: &[u8]| {
    FOLDER.put("a.trace", bytes);
    let Ok(trace) = Trace::open(&FOLDER.path("a.trace")) else { return };
    let trace = Arc::new(trace);
    let sizes = trace.about().card.sizes();
    let _ = (trace.label(0), trace.label(u32::MAX), trace.prompt(0), trace.is_exact());
    let recorded = Recorded::new(Arc::<Trace>::clone(&trace), None, None, LEAST_MEMORY);
    let itself = (0..trace.sequences().min(2)).map(|sequence| (Run::ITSELF, sequence));
    let branches = (1..).map(Run).zip(trace.branches().iter().map(|branch| branch.sequence)).take(2);
    for (run, sequence) in itself.chain(branches) {
        let Ok(mut source) = recorded.open(run, sequence) else { continue };
        for pass in trace.passes(run, sequence).iter().rev().take(2) {
            for site in Site::all(&sizes, pass.dims).into_iter().take(SITES) {
                let site = Site { run, sequence, ..site };
                let _ = (trace.stats(site), trace.digests(site), trace.why_not(site));
                let shape = sizes.shape(site.stage.axes(), pass.dims);
                let first = Region(shape.iter().map(|&length| 0..length.min(1)).collect());
                // Any answer is correct, but the answer must arrive.
                while let Poll::Pending = source::block(&mut *source, site, &first) {
                    let _ = source.poll();
                    thread::yield_now();
                }
            }
        }
    }
});
