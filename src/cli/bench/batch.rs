//! Generation speed of several texts in one batch, compared with one text alone.

use std::time::{Duration, Instant};

use super::prompt;
use super::report::{Batched, Spread};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::NoProbe;
use llama_trace_engine::generate::{Batch, Prompts, Sampler, Sampling};
use llama_trace_engine::model::Model;

/// Times one text alone, then a batch for each number in `sizes`. Prompts have `tokens` tokens, and `draws` tokens are
/// sampled after each.
pub(super) fn measure(
    model: &Model,
    sizes: &[usize],
    (tokens, draws): (usize, usize),
) -> Result<Vec<Batched>> {
    if sizes.contains(&0) || draws == 0 {
        return Err(Error::usage("a batch of this size cannot be timed")
            .expected("--batch 1 or more, and --gen 1 or more")
            .found(format!("--batch {sizes:?}, --gen {draws}"))
            .next("give other sizes"));
    }
    let mut all: Vec<Batched> = Vec::new();
    for &size in [1].iter().chain(sizes.iter().filter(|&&size| size != 1)) {
        let (rate, decode, together) = time(model, size, tokens, draws, model.backend.free_memory())?;
        let ratio = rate / all.first().map_or(rate, |alone| alone.rate);
        all.push(Batched { size, together, rate, ratio, decode });
    }
    Ok(all)
}

/// Tokens sampled per second, with and without the passes over the prompts. Also the number of texts that fit into
/// `memory` together.
pub(super) fn time(
    model: &Model,
    size: usize,
    tokens: usize,
    draws: usize,
    memory: Option<usize>,
) -> Result<(f64, Spread, usize)> {
    // The prompts differ, as users' prompts do.
    let ids = prompt(&model.config, tokens);
    let shifted = |by: usize| ids.iter().map(move |id| ((*id as usize + by) % model.config.vocab) as u32);
    let ids = (0..size).map(|by| shifted(by).collect()).collect();
    let prompts = Prompts { ids, ends: Vec::new(), draws, context: None, chunk: None, memory };
    let mut batch = Batch::new(model, Sampler::new(Sampling::default())?, prompts, |_| None)?;
    let (mut drawn, mut rates, started) = (0, Vec::new(), Instant::now());
    let (mut whole, mut together) = (Duration::ZERO, 0);
    while batch.ready()? {
        together = together.max(batch.reads().count());
        let decodes = batch.reads().all(|read| read.dims.start > 0);
        let pass = Instant::now();
        let count = batch.pass(&mut NoProbe)?.len();
        drawn += count;
        rates.extend(decodes.then(|| count as f64 / pass.elapsed().as_secs_f64()));
        whole = started.elapsed();
    }
    Ok((drawn as f64 / whole.as_secs_f64(), Spread::of(rates.into_iter()), together))
}
