//! `llama-trace bench`: how fast a model runs here, beside the limits of this machine, measured in the same
//! run.

mod batch;
mod record;
mod report;
mod tune;

use std::collections::HashMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use self::report::{Decode, Prefill, Report, Spread, StageTimes, TOP_P};
use super::choose::{Asks, Command};
use super::device::Device;
use super::input;
use super::{BenchArgs, BenchFormat, Weights};
use crate::backend::Backend;
use crate::checkpoint::{Checkpoint, Dtype, Tensor, random};
use crate::config::{ModelConfig, Precision};
use crate::error::{Error, Result};
use crate::generate::{Sampler, Sampling, Session};
use crate::model::{Model, forward};
use crate::trace::{Clock, NoProbe, Site, Stage};

/// Times that a prefill of each length is run, after one to warm up.
const PREFILLS: usize = 3;

/// Times that a token is drawn.
const DRAWS: usize = 20;

/// A model smaller than this may stay in a cache, and then its speed says nothing about the memory's.
const CACHE_SIZED: usize = 128 << 20;

impl Command for &BenchArgs {
    fn asks(&self) -> Asks<'_> {
        Asks { cpu: &self.cpu, model: &self.model, context: None, runs: true }
    }

    fn run<D: Device>(self) -> Result<()> {
        bench::<D>(self)
    }
}

fn bench<D: Device>(args: &BenchArgs) -> Result<()> {
    let (checkpoint, model, load, tokenizer) = match &args.shape {
        Some(name) => {
            // Random weights are made, not loaded.
            let mut checkpoint = random::checkpoint(name, args.weights.into())?;
            input::copy_to_huge_pages(&mut checkpoint, &args.cpu)?;
            let started = Instant::now();
            let precision = input::precision(&args.model, &checkpoint);
            let device = D::start(&args.cpu, precision)?;
            device.check_room(&checkpoint, None)?;
            let model = Model::load(&checkpoint, device)?;
            (checkpoint, model, started.elapsed(), None)
        }
        None => {
            let opened = input::open::<D>(&args.model, &args.cpu)?;
            let tokenizer = opened.tokenizer.map(|_| opened.tokenizer_time);
            (opened.checkpoint, opened.model?, opened.model_time, tokenizer)
        }
    };
    input::on_a_computing_thread(|| measure(args, &checkpoint, &model, load, tokenizer))
}

/// Runs the model, and reports how long what took.
fn measure(
    args: &BenchArgs,
    checkpoint: &Checkpoint,
    model: &Model<impl Backend>,
    load: Duration,
    tokenizer: Option<Duration>,
) -> Result<()> {
    let (backend, precision) = (&model.backend, model.backend.precision());
    let lengths = || args.prompt_tokens.iter().chain([&args.cached]).copied();
    if args.prompt_tokens.is_empty() || lengths().any(|length| length == 0 || length > model.config.context) {
        return Err(Error::usage("a prompt of this length cannot be run")
            .expected(format!("lengths from 1 to {}, the model's context", model.config.context))
            .found(format!("--prompt-tokens {:?}, --cached {}", args.prompt_tokens, args.cached))
            .next("give other lengths"));
    }
    let bytes = bytes_read(checkpoint, precision);
    let mut report = Report {
        model: checkpoint.name.clone(),
        kernel: backend.kernel_name(),
        precision: precision.name(),
        multiplied: String::new(),
        threads: rayon::current_num_threads(),
        read_bandwidth: 0.0,
        memory: "",
        matmul: 0.0,
        peak_memory: None,
        in_cache: bytes < CACHE_SIZED,
        load,
        tokenizer,
        first_token: Duration::ZERO,
        decode: None,
        prefill: Vec::new(),
        stages: Vec::new(),
        recording: None,
        batches: Vec::new(),
        tuning: None,
    };
    for &tokens in &args.prompt_tokens {
        let prefill = time_prefill(model, tokens)?;
        if report.prefill.is_empty() {
            report.first_token = prefill.first;
        }
        report.prefill.push(prefill);
    }
    if args.r#gen > 0 {
        report.decode = Some(time_decode(model, args.cached, args.r#gen, bytes)?);
    }
    if !args.batch.is_empty() {
        report.batches = batch::measure(model, &args.batch, (args.cached, args.r#gen))?;
    }
    if args.stages {
        report.stages = time_stages(model, args.prompt_tokens[0], args.cached)?;
    }
    if args.record {
        report.recording = Some(record::measure(model, &prompt(&model.config, args.prompt_tokens[0]))?);
    }
    if args.tune {
        let decode = (args.cached, args.r#gen);
        report.tuning = Some(tune::measure(checkpoint, model, args.prompt_tokens[0], decode)?);
    }
    // The limits come last: measuring them takes more memory than a small model does.
    report.peak_memory = report::peak_memory();
    // Random weights, those that were quantised when the model was loaded, and copies are not the file's.
    let quantised = precision.group().is_some() && checkpoint.group().is_none();
    let mapped: Vec<&[u8]> = match args.shape.is_some() || quantised || args.cpu.huge_pages {
        true => Vec::new(),
        false => checkpoint.tensors().map(|(_, tensor)| &**tensor.bytes()).collect(),
    };
    let limits = backend.limits(matrices(checkpoint), &mapped)?;
    (report.read_bandwidth, report.memory) = (limits.read_bandwidth, limits.memory);
    (report.matmul, report.multiplied) = (limits.multiply_rate, limits.multiplied);
    match args.format {
        BenchFormat::Table => report.print_table(),
        BenchFormat::Json => report.print_json(),
    }
    .map_err(|error| Error::output("the report cannot be written").at("standard output").found(error))
}

impl From<Weights> for Dtype {
    fn from(weights: Weights) -> Self {
        match weights {
            Weights::F32 => Self::F32,
            Weights::F16 => Self::F16,
            Weights::Bf16 => Self::BF16,
            Weights::Q8 => Self::I8,
        }
    }
}

/// The number type that most values of the checkpoint's matrices have.
fn matrices(checkpoint: &Checkpoint) -> Dtype {
    let matrices =
        || checkpoint.tensors().map(|(_, tensor)| tensor).filter(|tensor| tensor.shape().len() == 2);
    let count = |dtype: &Dtype| -> usize {
        matrices().filter(|tensor| tensor.dtype() == *dtype).map(Tensor::count).sum()
    };
    Dtype::ALL.into_iter().max_by_key(count).unwrap_or(Dtype::F32)
}

/// Bytes of weights that a decode pass reads: all but the embedding table, of which it reads one row,
/// unless the table is the output head too.
fn bytes_read(checkpoint: &Checkpoint, precision: Precision) -> usize {
    let size = |tensor: &Tensor| match precision {
        // Quantised when it was loaded.
        Precision::Q8 { group }
            if tensor.scales().is_none() && !tensor.dtype().is_blocks() && tensor.shape().len() == 2 =>
        {
            tensor.count() + 4 * tensor.count().div_ceil(group)
        }
        _ => tensor.size(),
    };
    let all: usize = checkpoint.tensors().map(|(_, tensor)| size(tensor)).sum();
    let ModelConfig { vocab, dim, tied, .. } = checkpoint.config;
    let table = checkpoint.tensor(crate::checkpoint::Weight::Embedding, &[vocab, dim]);
    let table = table.map_or(0, size);
    if tied { all } else { all - table }
}

/// Multiply-adds of the matrix products for one token: every weight but the table once, and the head
/// once a pass.
fn multiplications(config: &ModelConfig, tokens: usize) -> f64 {
    let (d, q, kv, f) = (config.dim, config.q_dim(), config.kv_dim(), config.ffn_dim);
    let layer = d * q * 2 + d * kv * 2 + 3 * d * f;
    (config.layers * layer) as f64 * tokens as f64 + (config.vocab * d) as f64
}

/// Ids for a prompt of `tokens` tokens, spread over the vocabulary.
fn prompt(config: &ModelConfig, tokens: usize) -> Vec<u32> {
    (0..tokens).map(|t| (t * 7919 % config.vocab) as u32).collect()
}

fn session<B: Backend>(model: &Model<B>, tokens: usize) -> Result<Session<'_, B>> {
    Session::with_capacity(model, Sampler::new(Sampling::default())?, tokens)
}

/// Runs `ids`: the token that is drawn, and how long it took by the backend's clock.
fn timed(session: &mut Session<'_, impl Backend>, ids: &[u32]) -> Result<(u32, Duration)> {
    let backend = &session.model.backend;
    let started = backend.mark();
    let drawn = session.run(ids, &mut NoProbe)?;
    let ended = backend.mark();
    backend.sync()?;
    Ok((drawn, backend.between(&started, &ended)))
}

fn time_prefill(model: &Model<impl Backend>, tokens: usize) -> Result<Prefill> {
    let ids = prompt(&model.config, tokens);
    let mut times = Vec::new();
    for _ in 0..=PREFILLS {
        times.push(timed(&mut session(model, tokens)?, &ids)?.1);
    }
    let first = times.remove(0);
    let rate = |time: &Duration| tokens as f64 / time.as_secs_f64();
    let rates = Spread::of(times.iter().map(rate));
    let flops = 2.0 * multiplications(&model.config, tokens) / tokens as f64 * rates.median;
    Ok(Prefill { tokens, first, rates, gflops: flops / 1e9 })
}

fn time_decode(model: &Model<impl Backend>, cached: usize, tokens: usize, bytes: usize) -> Result<Decode> {
    let mut session = session(model, cached.saturating_add(tokens))?;
    let mut id = session.run(&prompt(&model.config, cached), &mut NoProbe)?;
    let mut rates = Vec::new();
    for _ in 0..tokens.min(session.room()) {
        let (drawn, time) = timed(&mut session, &[id])?;
        rates.push(1.0 / time.as_secs_f64());
        id = drawn;
    }
    let rates = Spread::of(rates.into_iter());
    let drawing = |sampling| {
        let mut sampler = Sampler::new(sampling)?;
        let mut times = Vec::new();
        forward::last_logits(model, &session.work, 0, |logits| {
            for _ in 0..DRAWS {
                let started = Instant::now();
                black_box(sampler.sample(logits, 0, 0, &mut NoProbe));
                times.push(started.elapsed().as_secs_f64());
            }
            Ok(())
        })?;
        Result::Ok(Spread::of(times.into_iter()))
    };
    let greedy = drawing(Sampling::default())?;
    let top_p = drawing(Sampling { temperature: 1.0, top_p: TOP_P, ..Sampling::default() })?;
    Ok(Decode { gbs: rates.median * bytes as f64 / 1e9, rates, greedy, top_p })
}

/// Time of each stage over all layers: in a prefill of `tokens` tokens, and in a decode pass over `cached` ones.
fn time_stages<B: Backend>(model: &Model<B>, tokens: usize, cached: usize) -> Result<Vec<StageTimes>> {
    let clocked = |session: &mut Session<'_, B>, ids: &[u32]| {
        let backend = &model.backend;
        let mut clock = Clock::new(NoProbe, || backend.mark());
        session.run(ids, &mut clock)?;
        Result::Ok(clock.into_times(|from, to| backend.between(from, to)))
    };
    let prefill = clocked(&mut session(model, tokens)?, &prompt(&model.config, tokens))?;
    let mut session = session(model, cached.saturating_add(1))?;
    let id = session.run(&prompt(&model.config, cached), &mut NoProbe)?;
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
