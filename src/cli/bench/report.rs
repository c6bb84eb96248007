//! The figures of a benchmark, as a table or as JSON.

use std::io::{Result, Write};
use std::time::Duration;

use serde_json::{Value, json};

use llama_trace_core::trace::Stage;
use llama_trace_engine::backend::Limits;

/// All measurements.
pub(super) struct Report {
    pub(super) model: String,
    pub(super) kernel: &'static str,
    pub(super) precision: &'static str,
    pub(super) threads: usize,
    /// The device's limits.
    pub(super) limits: Limits,
    /// Whether the weights fit into a cache. The speed of reading them then says nothing about the memory.
    pub(super) in_cache: bool,
    /// The most memory that the process held while the model ran, in bytes.
    pub(super) peak_memory: Option<u64>,
    pub(super) load: Duration,
    /// Time to load the tokenizer, if there is one.
    pub(super) tokenizer: Option<Duration>,
    pub(super) first_token: Duration,
    /// One entry for each number of cached tokens.
    pub(super) decode: Vec<Decode>,
    pub(super) prefill: Vec<Prefill>,
    pub(super) stages: Vec<StageTimes>,
    pub(super) recording: Option<Recording>,
    pub(super) layer: Option<Layer>,
    pub(super) heatmap: Option<Heatmap>,
    /// Batches of texts. The first batch has one text.
    pub(super) batches: Vec<Batched>,
    pub(super) tuning: Option<Tuning>,
}

/// The speed of each kernel.
pub(super) struct Tuning {
    pub(super) processor: Option<String>,
    /// Tokens of the prompts.
    pub(super) prompt: usize,
    pub(super) kernels: Vec<Tuned>,
    /// The line of the processor table that would make the fastest kernel the default here.
    pub(super) line: Option<String>,
}

/// Tokens per second of one kernel.
pub(super) struct Tuned {
    pub(super) kernel: &'static str,
    /// The kernel's order of reading weights, if it is not the default.
    pub(super) reading: Option<String>,
    pub(super) prefill: Spread,
    pub(super) decode: Spread,
}

/// Texts that were generated together.
pub(super) struct Batched {
    /// Number of texts.
    pub(super) size: usize,
    /// Number of texts that fit into memory together.
    pub(super) together: usize,
    /// Tokens sampled per second, including the passes over the prompts.
    pub(super) rate: f64,
    /// `rate` divided by the rate of one text alone.
    pub(super) ratio: f64,
    /// Tokens sampled per second in the decode passes, without the passes over the prompts.
    pub(super) decode: Spread,
}

/// Median and extremes of several measurements.
pub(super) struct Spread {
    pub(super) median: f64,
    min: f64,
    max: f64,
}

/// Time of one stage in all layers.
pub(super) struct StageTimes {
    pub(super) stage: Stage,
    /// In a prefill of the first prompt length.
    pub(super) prefill: Duration,
    /// In the decode pass after that prefill.
    pub(super) decode: Duration,
}

/// Decode passes: tokens per second, and the bytes that the passes read.
pub(super) struct Decode {
    /// Cached tokens before the first of these passes.
    pub(super) cached: usize,
    pub(super) rates: Spread,
    /// Weights and cache read, in 10⁹ bytes per second.
    pub(super) gbs: f64,
    /// Bytes of the weights and bytes of the cache that the last pass reads.
    pub(super) bytes: [usize; 2],
    /// Seconds to sample a token from the last pass: at temperature 0, and at temperature 1 with [`TOP_P`]. None if the
    /// device samples within the pass.
    pub(super) sampling: Option<[Spread; 2]>,
}

/// The top-p in the sampling times.
pub(super) const TOP_P: f32 = 0.9;

/// Prefill passes of one length.
pub(super) struct Prefill {
    pub(super) tokens: usize,
    /// Time of the warm-up pass.
    pub(super) first: Duration,
    pub(super) rates: Spread,
    pub(super) gflops: f64,
}

/// Seconds of a prefill that records stages, for three selections of stages.
pub(super) struct Recording {
    pub(super) tokens: usize,
    /// Every row of the logits. Recording the logits makes the pass compute all rows.
    pub(super) logits: Spread,
    /// Every stage that cannot be derived from others.
    pub(super) kept: Spread,
    /// Every stage.
    pub(super) all: Spread,
}

/// Seconds of a decode pass: a plain one, and one that records every stage of one layer.
pub(super) struct Layer {
    pub(super) cached: usize,
    pub(super) layer: usize,
    /// The number of recorded stages.
    pub(super) stages: usize,
    pub(super) plain: Spread,
    pub(super) recorded: Spread,
}

impl Layer {
    fn ratio(&self) -> f64 {
        self.recorded.median / self.plain.median
    }
}

/// A causal heatmap: each place of a prompt is patched.
pub(super) struct Heatmap {
    /// Tokens of the prompt.
    pub(super) tokens: usize,
    pub(super) places: usize,
    /// The time of the map, with the two runs that it compares.
    pub(super) whole: Duration,
    /// Seconds of a plain pass over the prompt.
    pub(super) pass: Spread,
    /// The matrix products of the map, as a number of plain passes.
    pub(super) counted: f64,
}

impl Heatmap {
    /// The number of places for which the cost is given.
    const PLACES: f64 = 16.0;

    /// Plain passes that take the time of 16 places.
    fn passes(&self) -> f64 {
        self.whole.as_secs_f64() / self.pass.median / self.places as f64 * Self::PLACES
    }

    /// Plain passes that have the matrix products of 16 places.
    fn counted(&self) -> f64 {
        self.counted / self.places as f64 * Self::PLACES
    }
}

impl Spread {
    pub(super) fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        Self { median: at(values.len() / 2), min: at(0), max: at(values.len().wrapping_sub(1)) }
    }
}

impl Report {
    pub(super) fn table(&self, out: &mut impl Write) -> Result<()> {
        writeln!(
            out,
            "model        {}, precision {}, {} threads, {} kernel",
            self.model, self.precision, self.threads, self.kernel
        )?;
        writeln!(
            out,
            "memory read  {:8.1} GB/s, the highest rate of a loop over {}",
            self.limits.read_bandwidth / 1e9,
            self.limits.memory
        )?;
        writeln!(
            out,
            "multiply     {:8.1} GFLOP/s in {}, the highest rate measured",
            self.limits.multiply_rate / 1e9,
            self.limits.multiplied
        )?;
        writeln!(out, "load         {:8.3} s", self.load.as_secs_f64())?;
        if let Some(time) = self.tokenizer {
            writeln!(
                out,
                "tokenizer    {:8.3} s, at the same time, on a separate thread",
                time.as_secs_f64()
            )?;
        }
        writeln!(out, "first token  {:8.3} s, cold", self.first_token.as_secs_f64())?;
        for Prefill { tokens, rates, gflops, .. } in &self.prefill {
            let share = 100.0 * gflops * 1e9 / self.limits.multiply_rate;
            writeln!(
                out,
                "prefill {tokens:<5}{:8.1} tokens/s ({:.1} to {:.1}), {gflops:.1} GFLOP/s, {share:.0} % of multiply",
                rates.median, rates.min, rates.max
            )?;
        }
        for Decode { cached, rates, gbs, sampling, .. } in &self.decode {
            let share = match self.share_of_bandwidth(*gbs) {
                Some(share) => format!("{:.0} % of memory read", 100.0 * share),
                None => "in cache".into(),
            };
            writeln!(
                out,
                "decode {cached:<6}{:8.1} tokens/s ({:.1} to {:.1}), {gbs:.2} GB/s of weights and cache, {share}",
                rates.median, rates.min, rates.max
            )?;
            let hows = ["temperature 0".into(), format!("top-p {TOP_P}")];
            for (how, time) in hows.into_iter().zip(sampling.iter().flatten()) {
                let (ms, share) = (1e3 * time.median, 100.0 * time.median * rates.median);
                writeln!(out, "sampling     {ms:8.3} ms at {how}, {share:.1} % of a decode pass")?;
            }
        }
        for batched in &self.batches {
            let Batched { size, together, rate, ratio, decode } = batched;
            let few = if together < size { format!("; {together} at a time") } else { String::new() };
            writeln!(
                out,
                "batch {size:<7}{rate:8.1} tokens/s including the prompts, {ratio:.2} × one text; {:.1} ({:.1} to {:.1}) after the prompts, {:.2} × one text{few}",
                decode.median,
                decode.min,
                decode.max,
                self.decode_ratio(batched)
            )?;
        }
        if let Some(bytes) = self.peak_memory {
            writeln!(out, "peak memory  {:8.1} MB", bytes as f64 / 1e6)?;
        }
        if let Some(Recording { tokens, logits, kept, all }) = &self.recording {
            let pass = |what: &str, spread: &Spread| {
                let ratio = spread.median / logits.median;
                format!("record {tokens:<6}{:8.3} s for {what}, {ratio:.2} × the logits alone", spread.median)
            };
            writeln!(out, "{}", pass("every row of the logits", logits))?;
            writeln!(out, "{}", pass("every stage that cannot be derived", kept))?;
            writeln!(out, "{}", pass("every stage", all))?;
        }
        if let Some(layer) = &self.layer {
            let Layer { cached, layer: number, stages, recorded, .. } = layer;
            writeln!(
                out,
                "record layer {:8.3} ms, {:.2} × a plain decode pass after {cached}: the {stages} stages of layer {number}",
                1e3 * recorded.median,
                layer.ratio()
            )?;
        }
        if let Some(heatmap) = &self.heatmap {
            let Heatmap { tokens, places, whole, pass, .. } = heatmap;
            writeln!(
                out,
                "patch {tokens:<7}{:8.3} s for {places} places; 16 places take {:.2} plain passes of {:.3} s ({:.3} to {:.3}), {:.2} by their products",
                whole.as_secs_f64(),
                heatmap.passes(),
                pass.median,
                pass.min,
                pass.max,
                heatmap.counted()
            )?;
        }
        if let Some(Tuning { processor, prompt, kernels, line }) = &self.tuning {
            let processor = processor.as_deref().unwrap_or("unknown");
            let prefill = format!("prefill {prompt}");
            writeln!(out, "\n  {:<12} {prefill:>12} {:>12}   tokens/s on {processor}", "kernel", "decode")?;
            for Tuned { kernel, reading, prefill, decode } in kernels {
                let reading =
                    reading.as_ref().map_or_else(String::new, |reading| format!("   rows {reading}"));
                writeln!(out, "  {kernel:<12} {:12.1} {:12.1}{reading}", prefill.median, decode.median)?;
            }
            if let Some(line) = line {
                writeln!(
                    out,
                    "  the line for the table in src/engine/backend/cpu/kernel/processor.rs: {line}"
                )?;
            }
        }
        if let (false, Some(prefill)) = (self.stages.is_empty(), self.prefill.first()) {
            writeln!(
                out,
                "\n  {:<16} {:>12} {:>12}",
                "µs, all layers",
                format!("prefill {}", prefill.tokens),
                "decode"
            )?;
        }
        for StageTimes { stage, prefill, decode } in &self.stages {
            let us = |time: &Duration| time.as_secs_f64() * 1e6;
            writeln!(out, "  {stage:<16} {:12.1} {:12.1}", us(prefill), us(decode))?;
        }
        Ok(())
    }

    pub(super) fn json(&self) -> Value {
        let spread =
            |spread: &Spread| json!({ "median": spread.median, "min": spread.min, "max": spread.max });
        let prefill: Vec<Value> = (self.prefill.iter())
            .map(|prefill| {
                json!({
                    "tokens": prefill.tokens,
                    "tokens_per_s": prefill.rates.median,
                    "spread": spread(&prefill.rates),
                    "gflops": prefill.gflops,
                    "share_of_matmul": prefill.gflops * 1e9 / self.limits.multiply_rate,
                })
            })
            .collect();
        let decodes: Vec<Value> = (self.decode.iter())
            .map(|decode| {
                let [weights, cache] = decode.bytes;
                let [greedy, top_p] = [0, 1].map(|i| decode.sampling.as_ref().map(|times| spread(&times[i])));
                json!({
                    "cached": decode.cached,
                    "tokens_per_s": decode.rates.median,
                    "spread": spread(&decode.rates),
                    "weights_bytes": weights,
                    "cache_bytes": cache,
                    "gbs": decode.gbs,
                    "share_of_bandwidth": self.share_of_bandwidth(decode.gbs),
                    "sampling_greedy_s": greedy,
                    "sampling_top_p_s": top_p,
                })
            })
            .collect();
        let layer = self.layer.as_ref().map(|layer| {
            json!({
                "cached": layer.cached,
                "layer": layer.layer,
                "stages": layer.stages,
                "plain_s": spread(&layer.plain),
                "recorded_s": spread(&layer.recorded),
                "ratio": layer.ratio(),
            })
        });
        let stages: Vec<Value> = self
            .stages
            .iter()
            .map(|StageTimes { stage, prefill, decode }| {
                let us = |time: &Duration| time.as_secs_f64() * 1e6;
                json!({ "stage": stage.name(), "prefill_us": us(prefill), "decode_us": us(decode) })
            })
            .collect();
        let heatmap = self.heatmap.as_ref().map(|heatmap| {
            json!({
                "tokens": heatmap.tokens,
                "places": heatmap.places,
                "map_s": heatmap.whole.as_secs_f64(),
                "pass_s": spread(&heatmap.pass),
                "passes_per_16_places": heatmap.passes(),
                "counted_passes_per_16_places": heatmap.counted(),
            })
        });
        let recording = self.recording.as_ref().map(|Recording { tokens, logits, kept, all }| {
            json!({
                "tokens": tokens,
                "logits_s": spread(logits),
                "kept_s": spread(kept),
                "all_s": spread(all),
                "kept_ratio": kept.median / logits.median,
                "all_ratio": all.median / logits.median,
            })
        });
        let batches: Vec<Value> = (self.batches.iter())
            .map(|batched| {
                json!({
                    "sequences": batched.size,
                    "together": batched.together,
                    "tokens_per_s": batched.rate,
                    "ratio": batched.ratio,
                    "decode": spread(&batched.decode),
                    "decode_ratio": self.decode_ratio(batched),
                })
            })
            .collect();
        let tuning = self.tuning.as_ref().map(|tuning| {
            let kernels = tuning.kernels.iter().map(|tuned| {
                json!({
                    "kernel": tuned.kernel,
                    "reading": tuned.reading,
                    "prefill": spread(&tuned.prefill),
                    "decode": spread(&tuned.decode),
                })
            });
            json!({
                "processor": tuning.processor,
                "prompt": tuning.prompt,
                "kernels": kernels.collect::<Vec<_>>(),
                "line": tuning.line,
            })
        });
        json!({
            "model": self.model,
            "kernel": self.kernel,
            "precision": self.precision,
            "threads": self.threads,
            "read_bandwidth_gbs": self.limits.read_bandwidth / 1e9,
            "memory": self.limits.memory,
            "matmul_gflops": self.limits.multiply_rate / 1e9,
            "load_s": self.load.as_secs_f64(),
            "tokenizer_s": self.tokenizer.map(|time| time.as_secs_f64()),
            "first_token_s": self.first_token.as_secs_f64(),
            "decode": decodes.first(),
            "decodes": decodes,
            "prefill": prefill,
            "peak_memory_bytes": self.peak_memory,
            "stages": stages,
            "recording": recording,
            "layer": layer,
            "patch": heatmap,
            "batch": batches,
            "tuning": tuning,
        })
    }

    /// The tokens per second of a batch after its prompts, divided by the tokens per second of one text alone.
    fn decode_ratio(&self, batched: &Batched) -> f64 {
        self.batches.first().map_or(1.0, |alone| batched.decode.median / alone.decode.median)
    }

    /// The share of the memory's bandwidth; none if the weights stay in a cache.
    fn share_of_bandwidth(&self, gbs: f64) -> Option<f64> {
        (!self.in_cache).then_some(gbs * 1e9 / self.limits.read_bandwidth)
    }
}

/// The peak memory of this process, if the system reports it.
pub(super) fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}
