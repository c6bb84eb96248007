//! `llama-trace bench`: the speed of a model compared with the limits of this machine. Both are measured in one run.

mod batch;
mod patch;
mod record;
mod report;
#[cfg(test)]
mod tests;
mod tune;

use std::collections::HashMap;
use std::hint::black_box;
use std::io::Write;
use std::time::{Duration, Instant};

use self::report::{Decode, Prefill, Report, Spread, StageTimes, TOP_P};
use super::device::{Device, Room};
use super::edited;
use super::{BenchArgs, BenchFormat, DeviceName};
use super::{input, output};
use llama_trace_core::config::{ModelConfig, Precision};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::tensor::{Dtype, Tensor};
use llama_trace_core::trace::{Clock, NoProbe, Probe, Site, Stage};
use llama_trace_engine::backend::Limits;
use llama_trace_engine::generate::{Sampler, Sampling, Session};
use llama_trace_engine::model::{Model, pass};
use llama_trace_formats::checkpoint::{Checkpoint, random};

/// Repetitions of each prefill, after one warm-up.
const PREFILLS: usize = 3;

/// Repetitions of sampling a token.
const DRAWS: usize = 20;

/// A model with fewer bytes may stay in a cache. Its speed then says nothing about the memory.
const CACHE_SIZED: usize = 128 << 20;

/// Tokens of a pass that fills the KV cache.
const AT_ONCE: usize = 2048;

/// Tokens to draw without `--gen`.
const DECODED: usize = 64;

/// Cached tokens on a processor, without `--cached`.
const CACHED: usize = 8;

impl BenchArgs {
    /// The number of tokens to draw.
    fn draws(&self) -> usize {
        self.r#gen.unwrap_or(DECODED)
    }

    /// The longest context that the options ask for, in tokens.
    fn longest(&self) -> Option<usize> {
        let cached = self.cached.iter().map(|cached| cached.saturating_add(self.draws()));
        cached.chain(self.prompt_tokens.iter().copied()).chain(self.patch).max()
    }
}

/// Runs the command.
pub(super) fn run(args: &BenchArgs) -> Result<()> {
    let room = Room { context: args.longest(), beside: 0 };
    let (checkpoint, (model, device), load, tokenizer) = match &args.shape {
        Some(name) => {
            // Random weights are generated. If the device has its own memory, they are generated there.
            let mut checkpoint = random::checkpoint(name, args.weights)?;
            let precision = input::precision(&args.model, &checkpoint);
            let device = Device::choose(&args.cpu, &checkpoint, precision, room)?;
            let name = device.name();
            if name == DeviceName::Cpu {
                random::make(&checkpoint)?;
            }
            input::copy_to_huge_pages(&mut checkpoint, &args.cpu)?;
            let started = Instant::now();
            let model = device.load(&checkpoint)?;
            (checkpoint, (model, name), started.elapsed(), None)
        }
        None => {
            let opened = edited::open(&args.model, &args.cpu, room)?;
            let tokenizer = opened.tokenizer.map(|_| opened.tokenizer_time);
            (opened.checkpoint, opened.model?, opened.model_time, tokenizer)
        }
    };
    let plan = Plan::of(args, device == DeviceName::Cpu, &model.config)?;
    let report = input::on_a_computing_thread(|| {
        let mut report = measure(&plan, &checkpoint, &model)?;
        (report.load, report.tokenizer) = (load, tokenizer);
        // The limits are measured after the peak memory is read, because measuring them takes more memory than a small
        // model.
        report.peak_memory = report::peak_memory();
        report.limits = limits(args, &checkpoint, &model)?;
        Result::Ok(report)
    })?;
    match args.format {
        BenchFormat::Table => report.table(&mut output::Lines::text()),
        BenchFormat::Json => writeln!(output::Lines::json(), "{}", report.json()),
    }
    .map_err(|error| Error::output("the report cannot be written").at("standard output").found(error))
}

/// The measurements of a run.
struct Plan {
    /// Lengths of prompts.
    prompts: Vec<usize>,
    /// Cached tokens before decoding.
    cached: Vec<usize>,
    /// Number of decoded tokens.
    draws: usize,
    batch: Vec<usize>,
    stages: bool,
    /// Whether to measure the cost of recording a prefill.
    record: bool,
    /// Whether to measure the cost of recording one layer of a decode pass.
    record_layer: bool,
    /// Tokens of a causal heatmap.
    patch: Option<usize>,
    tune: bool,
}

impl Plan {
    /// The measurements that the options ask for. The defaults of the other options suit the device, and are limited by
    /// the model's context.
    fn of(args: &BenchArgs, on_processor: bool, config: &ModelConfig) -> Result<Self> {
        let draws = args.draws();
        let given = args.prompt_tokens.iter().chain(&args.cached);
        if let Some(wrong) = given.copied().find(|&length| length == 0 || length > config.context) {
            return Err(Error::usage("a length in --prompt-tokens or --cached cannot be run")
                .expected(format!("lengths from 1 to {}, the model's context", config.context))
                .found(wrong)
                .next("give other lengths"));
        }
        // The default numbers are limited by the context, but those of the options are not changed.
        let before = args.cached.iter().copied().max().unwrap_or(CACHED);
        if let Some(many) =
            args.r#gen.filter(|&many| many > 0 && before.saturating_add(many) > config.context)
        {
            return Err(Error::usage("the model's context has no room for the tokens of --gen")
                .expected(format!(
                    "at most {}: the context of {} tokens without {before} cached tokens",
                    config.context.saturating_sub(before),
                    config.context
                ))
                .found(format!("--gen {many}"))
                .next("give a smaller --gen or --cached"));
        }
        patch::check(args.patch, config.context)?;
        let or = |given: &[usize], default: &[usize], most: usize| {
            if !given.is_empty() {
                return given.to_vec();
            }
            let mut lengths: Vec<usize> = default.iter().map(|length| *length.min(&most.max(1))).collect();
            lengths.dedup();
            lengths
        };
        let (prompts, cached, batch): (&[usize], &[usize], &[usize]) =
            if on_processor { (&[128, 512], &[CACHED], &[]) } else { (&[2048], &[128, 32_768], &[16]) };
        Ok(Self {
            prompts: or(&args.prompt_tokens, prompts, config.context),
            cached: or(&args.cached, cached, config.context.saturating_sub(draws)),
            draws,
            batch: if draws == 0 { args.batch.clone() } else { or(&args.batch, batch, usize::MAX) },
            stages: args.stages,
            record: args.record,
            record_layer: args.record || !on_processor,
            patch: args.patch,
            tune: args.tune,
        })
    }
}

/// Runs the model and measures its parts.
fn measure(plan: &Plan, checkpoint: &Checkpoint, model: &Model) -> Result<Report> {
    let (backend, precision) = (&model.backend, model.backend.precision());
    let weights = bytes_read(checkpoint, precision);
    let mut report = Report {
        model: checkpoint.name.clone(),
        kernel: backend.kernel_name(),
        precision: precision.name(),
        threads: rayon::current_num_threads(),
        limits: Limits::default(),
        peak_memory: None,
        in_cache: weights < CACHE_SIZED,
        load: Duration::ZERO,
        tokenizer: None,
        first_token: Duration::ZERO,
        decode: Vec::new(),
        prefill: Vec::new(),
        stages: Vec::new(),
        recording: None,
        layer: None,
        heatmap: None,
        batches: Vec::new(),
        tuning: None,
    };
    for &tokens in &plan.prompts {
        let prefill = time_prefill(model, tokens)?;
        if report.prefill.is_empty() {
            report.first_token = prefill.first;
        }
        report.prefill.push(prefill);
    }
    if plan.draws > 0 {
        let decodes = plan.cached.iter().map(|&cached| time_decode(model, cached, plan.draws, weights));
        report.decode = decodes.collect::<Result<_>>()?;
    }
    let (prompt_tokens, cached) = (plan.prompts[0], plan.cached[0]);
    if !plan.batch.is_empty() {
        report.batches = batch::measure(model, &plan.batch, (cached, plan.draws))?;
    }
    if plan.stages {
        report.stages = time_stages(model, prompt_tokens, cached)?;
    }
    if plan.record {
        report.recording = Some(record::measure(model, &prompt(&model.config, prompt_tokens))?);
    }
    if plan.record_layer {
        report.layer = record::measure_layer(model, cached)?;
    }
    if let Some(tokens) = plan.patch {
        report.heatmap = Some(patch::measure(model, tokens)?);
    }
    if plan.tune {
        report.tuning = Some(tune::measure(checkpoint, model, prompt_tokens, (cached, plan.draws))?);
    }
    Ok(report)
}

/// Measures the device's limits.
fn limits(args: &BenchArgs, checkpoint: &Checkpoint, model: &Model) -> Result<Limits> {
    // Random weights, copies, and weights quantised at loading are not in the mapped file.
    let quantised = model.backend.precision().group().is_some() && checkpoint.group().is_none();
    let mapped: Vec<&[u8]> = match args.shape.is_some() || quantised || args.cpu.huge_pages {
        true => Vec::new(),
        false => checkpoint.tensors().map(|(_, tensor)| &**tensor.bytes()).collect(),
    };
    // A model that fits into a cache reads little from memory, so the memory's speed says nothing about it.
    let in_cache = bytes_read(checkpoint, model.backend.precision()) < CACHE_SIZED;
    model.backend.limits(matrices(checkpoint), &mapped, if in_cache { CACHE_SIZED } else { usize::MAX })
}

/// The number type of most values of the checkpoint's matrices.
fn matrices(checkpoint: &Checkpoint) -> Dtype {
    let matrices =
        || checkpoint.tensors().map(|(_, tensor)| tensor).filter(|tensor| tensor.shape().len() == 2);
    let count = |dtype: &Dtype| -> usize {
        matrices().filter(|tensor| tensor.dtype() == *dtype).map(Tensor::count).sum()
    };
    Dtype::ALL.into_iter().max_by_key(count).unwrap_or(Dtype::F32)
}

/// Bytes of weights that a decode pass reads: all weights except the embedding table, of which it reads one row. A tied
/// table is also the output head, so it is read whole.
fn bytes_read(checkpoint: &Checkpoint, precision: Precision) -> usize {
    let size = |tensor: &Tensor| match precision {
        // Quantised at loading.
        Precision::Q8 { group }
            if tensor.scales().is_none() && !tensor.dtype().is_blocks() && tensor.shape().len() == 2 =>
        {
            tensor.count() + 4 * tensor.count().div_ceil(group)
        }
        _ => tensor.size(),
    };
    let all: usize = checkpoint.tensors().map(|(_, tensor)| size(tensor)).sum();
    let ModelConfig { vocab, dim, tied, .. } = checkpoint.config;
    let table = checkpoint.tensor(llama_trace_formats::checkpoint::Weight::Embedding, &[vocab, dim]);
    let table = table.map_or(0, size);
    if tied { all } else { all - table }
}

/// Multiply-adds of the matrix products: every weight of the layers for each token, and the output head once.
fn multiplications(config: &ModelConfig, tokens: usize) -> f64 {
    let (d, q, kv, f) = (config.dim, config.q_dim(), config.kv_dim(), config.ffn_dim);
    let layer = d * q * 2 + d * kv * 2 + 3 * d * f;
    (config.layers * layer) as f64 * tokens as f64 + (config.vocab * d) as f64
}

/// Ids for a prompt of `tokens` tokens, spread over the vocabulary.
fn prompt(config: &ModelConfig, tokens: usize) -> Vec<u32> {
    (0..tokens).map(|t| (t * 7919 % config.vocab) as u32).collect()
}

fn session(model: &Model, tokens: usize) -> Result<Session<'_>> {
    Session::with_capacity(model, Sampler::new(Sampling::default())?, tokens)
}

/// Runs `ids`. Returns the sampled token, and the time by the backend's clock.
fn timed(session: &mut Session<'_>, ids: &[u32], probe: &mut dyn Probe) -> Result<(u32, Duration)> {
    let started = session.model.backend.mark();
    let drawn = session.run(ids, probe)?;
    let backend = &session.model.backend;
    let ended = backend.mark();
    backend.sync()?;
    Ok((drawn, backend.between(&started, &ended)))
}

fn time_prefill(model: &Model, tokens: usize) -> Result<Prefill> {
    let ids = prompt(&model.config, tokens);
    let (mut times, mut session) = (Vec::new(), session(model, tokens)?);
    for _ in 0..=PREFILLS {
        // Later runs use the buffers of the first run again, as a chat does.
        session.rewind(0);
        times.push(timed(&mut session, &ids, &mut NoProbe)?.1);
    }
    let first = times.remove(0);
    let rate = |time: &Duration| tokens as f64 / time.as_secs_f64();
    let rates = Spread::of(times.iter().map(rate));
    let flops = 2.0 * multiplications(&model.config, tokens) / tokens as f64 * rates.median;
    Ok(Prefill { tokens, first, rates, gflops: flops / 1e9 })
}

/// Bytes of keys and values that a decode pass reads, if its token sees `keys` keys including its own.
fn cache_read(model: &Model, keys: usize) -> usize {
    let (config, sizes) = (&model.config, model.sizes());
    let seen = |layer| sizes.sees(Some(layer)).length().map_or(keys, |window| keys.min(window));
    (0..config.layers).map(seen).sum::<usize>() * 2 * config.kv_dim() * model.backend.cache_dtype().bytes()
}

/// A session with `cached` tokens in its cache and room for `more`, and the token that was sampled after them.
fn filled(model: &Model, cached: usize, more: usize) -> Result<(Session<'_>, u32)> {
    let mut session = session(model, cached.saturating_add(more))?;
    let ids = prompt(&model.config, cached);
    let last = ids.len() - (ids.len() - 1) % AT_ONCE - 1;
    for ids in ids[..last].chunks(AT_ONCE) {
        session.read(ids, &mut NoProbe)?;
    }
    let id = session.run(&ids[last..], &mut NoProbe)?;
    Ok((session, id))
}

fn time_decode(model: &Model, cached: usize, tokens: usize, weights: usize) -> Result<Decode> {
    let (mut session, id) = filled(model, cached, tokens)?;
    let (mut rates, mut read) = (Vec::new(), Vec::new());
    let tokens = tokens.min(session.room());
    session.begin(vec![id], &[], tokens)?;
    for _ in 0..tokens {
        // The time from one token to the next, as a reader of the text sees it.
        let started = Instant::now();
        session.pass(&mut NoProbe)?;
        let time = started.elapsed();
        rates.push(1.0 / time.as_secs_f64());
        read.push((weights + cache_read(model, session.ran().len())) as f64 / time.as_secs_f64());
    }
    let sampling = if model.backend.draws() {
        None
    } else {
        let top_p = Sampling { temperature: 1.0, top_p: TOP_P, ..Sampling::default() };
        Some([time_draws(&session, Sampling::default())?, time_draws(&session, top_p)?])
    };
    Ok(Decode {
        cached,
        rates: Spread::of(rates.into_iter()),
        gbs: Spread::of(read.into_iter()).median / 1e9,
        bytes: [weights, cache_read(model, session.ran().len())],
        sampling,
    })
}

/// Time for the sampler to choose one token from the logits of the last pass.
fn time_draws(session: &Session<'_>, sampling: Sampling) -> Result<Spread> {
    let (mut sampler, mut times) = (Sampler::new(sampling)?, Vec::new());
    pass::last_logits(&session.model, &session.work, 0, |logits| {
        for _ in 0..DRAWS {
            let started = Instant::now();
            black_box(sampler.sample(logits, &[], (0, 0), &mut NoProbe));
            times.push(started.elapsed().as_secs_f64());
        }
        Ok(())
    })?;
    Ok(Spread::of(times.into_iter()))
}

/// Time of each stage, summed over all layers: in a prefill of `tokens` tokens, and in a decode pass with `cached`
/// tokens.
fn time_stages(model: &Model, tokens: usize, cached: usize) -> Result<Vec<StageTimes>> {
    let clocked = |session: &mut Session<'_>, ids: &[u32]| {
        let backend = &model.backend;
        let mut clock = Clock::new(NoProbe, || backend.mark());
        session.run(ids, &mut clock)?;
        Result::Ok(clock.into_times(|from, to| backend.between(from, to)))
    };
    let prefill = clocked(&mut session(model, tokens)?, &prompt(&model.config, tokens))?;
    let (mut session, id) = filled(model, cached, 1)?;
    let decode = if session.room() > 0 { clocked(&mut session, &[id])? } else { HashMap::new() };
    let total = |times: &HashMap<Site, Duration>, stage: Stage| {
        times.iter().filter(|(site, _)| site.stage == stage).map(|(_, time)| *time).sum()
    };
    let times = Stage::ALL.iter().map(|&stage| StageTimes {
        stage,
        prefill: total(&prefill, stage),
        decode: total(&decode, stage),
    });
    Ok(times.filter(|times| !times.prefill.is_zero() || !times.decode.is_zero()).collect())
}
