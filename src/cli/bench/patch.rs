//! The cost of a causal heatmap (`llama-trace patch`), in forward passes over the same tokens.

use std::time::Instant;

use super::report::{Heatmap, Spread};
use super::{PREFILLS, prompt, session, timed};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::NoProbe;
use llama_trace_engine::model::Model;
use llama_trace_engine::patch::{PatchMap, Patcher, Place};

/// The maps whose places are patched.
const MAPS: [PatchMap; 3] = [PatchMap::Residual, PatchMap::Attn, PatchMap::Ffn];

/// Patches every place of a prompt of `tokens` tokens, from another prompt. Times plain passes over the prompt before
/// the map and after it.
pub(super) fn measure(model: &Model, tokens: usize) -> Result<Heatmap> {
    let vocab = model.config.vocab;
    let clean = prompt(&model.config, tokens);
    let corrupted: Vec<u32> = clean.iter().map(|&id| ((id as usize + 1) % vocab) as u32).collect();
    let sizes = model.sizes();
    let places: Vec<Place> = MAPS.iter().flat_map(|map| map.places(&sizes, tokens)).collect();

    let mut passes = pass_times(model, &corrupted)?;
    let started = Instant::now();
    let stages = MAPS.map(PatchMap::stage);
    let mut patcher = Patcher::new(model, &corrupted, Some(&clean), &stages)?;
    patcher.run(&places, &mut |_, _| Ok(()))?;
    let whole = started.elapsed();
    passes.extend(pass_times(model, &corrupted)?);
    let pass = Spread::of(passes.into_iter());
    Ok(Heatmap { tokens, places: places.len(), whole, pass, counted: patcher.passes() })
}

/// Seconds of passes over `ids`, after a warm-up.
fn pass_times(model: &Model, ids: &[u32]) -> Result<Vec<f64>> {
    let mut session = session(model, ids.len())?;
    let mut times = Vec::new();
    for _ in 0..=PREFILLS {
        session.rewind(0);
        times.push(timed(&mut session, ids, &mut NoProbe)?.1.as_secs_f64());
    }
    times.remove(0);
    Ok(times)
}

/// Checks the length that `--patch` asks for.
pub(super) fn check(tokens: Option<usize>, context: usize) -> Result<()> {
    match tokens {
        Some(tokens) if tokens == 0 || tokens > context => {
            Err(Error::usage("a heatmap of this length cannot be run")
                .expected(format!("--patch from 1 to {context}, the model's context"))
                .found(tokens)
                .next("give another length"))
        }
        _ => Ok(()),
    }
}
