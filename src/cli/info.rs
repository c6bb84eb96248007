//! `llama-trace info`: the contents of a checkpoint, and the size of a trace of it.

mod switches;

use std::collections::HashSet;
use std::io::{ErrorKind, Write};

use super::device;
use super::edits;
use super::input::{self, Look};
use super::memory::{self, size};
use super::{ModelArgs, output, threads, vocabulary};
use llama_trace_core::config::{LayerSet, ModelConfig, Precision, RopeScaling};
use llama_trace_core::edit::Edit;
use llama_trace_core::error::{self, Error, Result};
use llama_trace_core::trace::{PassDims, Site, Sizes};
use llama_trace_engine::model::{buffer_bytes, kv_cache};
use llama_trace_formats::checkpoint::{Checkpoint, Format};
use llama_trace_formats::files::printable;
use llama_trace_runs::replay::DEFAULT_MEMORY;

pub(super) fn run(args: &ModelArgs) -> Result<()> {
    // Reading a vocabulary uses the compute threads.
    threads::start(None)?;
    let look = input::open_to_look(args)?;
    let precision = input::precision(args, &look.checkpoint);
    let edits = edits::list(args)?;
    match print(&mut output::Lines::text(), &look, precision, &edits) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Error::output("the information cannot be written").at("standard output").found(error))
        }
        _ => Ok(()),
    }
}

fn print(out: &mut impl Write, look: &Look, precision: Precision, edits: &[Edit]) -> std::io::Result<()> {
    let Look { checkpoint, tokenizer: found, unread, sparse } = look;
    let config = &checkpoint.config;
    let path = match (sparse, &checkpoint.path) {
        (Some(_), _) => "not fetched".into(),
        (None, Some(path)) => error::printable(&path.display().to_string()).into_owned(),
        (None, None) => "part of the program".into(),
    };
    writeln!(out, "model       {} ({}; {path})", printable(&checkpoint.name), checkpoint.format)?;
    let tokenizer = match (found, unread) {
        (Some(tokenizer), _) => format!("{} tokens", tokenizer.vocab_size()),
        (None, Some(_)) => {
            "cannot be read: give prompts as --ids, or another tokenizer as --tokenizer".into()
        }
        (None, None) => "none: give prompts as --ids".into(),
    };
    writeln!(out, "tokenizer   {tokenizer}; text ends at {}", ids(&checkpoint.eos))?;
    let arithmetic = match precision {
        Precision::F32 => "every stage in float32, the weights as they are stored".into(),
        Precision::Bf16 => "sums in float32, every stage's result rounded to bfloat16".into(),
        Precision::Q8 { group } if checkpoint.tensors().any(|(_, tensor)| tensor.dtype().is_blocks()) => {
            format!(
                "products of int8 activations, with a scale for every {group} values, and the file's blocks"
            )
        }
        Precision::Q8 { group } => format!("products in int8, a scale for every {group} values"),
    };
    writeln!(out, "precision   {}: {arithmetic}", precision.name())?;
    edits.iter().try_for_each(|edit| writeln!(out, "edit        {edit}"))?;

    for line in checkpoint.notes.lines() {
        writeln!(out, "warning     {line}")?;
    }
    if let Some(error) = unread {
        let words: Vec<String> = error.to_string().lines().map(|line| line.trim().to_owned()).collect();
        writeln!(out, "warning     {}", words.join("; "))?;
    }
    for line in found.iter().flat_map(|tokenizer| vocabulary::remarks(checkpoint, &**tokenizer)) {
        writeln!(out, "note        {}", error::printable(&line))?;
    }

    writeln!(out, "\nconfiguration")?;
    let tied = if config.tied { "yes: the output head is the embedding table" } else { "no" };
    let heads_note = match config.group_size() {
        1 => "multi-head attention".into(),
        group => format!("grouped-query attention: {group} query heads to one key/value head"),
    };
    let window = match (config.window, config.window_layers) {
        (None, _) => ("no".into(), "every token sees all keys before it".into()),
        (Some(window), LayerSet::From(0)) => {
            (window.to_string(), "keys that a token sees, in every layer".into())
        }
        (Some(window), layers) => (window.to_string(), format!("keys that a token sees, in {layers}")),
    };
    let rows = [
        ("layers", config.layers.to_string(), "transformer blocks".into()),
        ("D", config.dim.to_string(), "model width: the residual stream".into()),
        ("H", config.heads.to_string(), "query heads".into()),
        ("G", config.kv_heads.to_string(), heads_note),
        ("C", config.head_dim.to_string(), "head width".into()),
        ("F", config.ffn_dim.to_string(), "feed-forward width".into()),
        ("V", config.vocab.to_string(), "vocabulary".into()),
        ("context", config.context.to_string(), context_note(checkpoint).into()),
        ("ε", format!("{:?}", config.norm_eps), "of the norms".into()),
        ("θ", config.rope_theta.to_string(), "of RoPE".into()),
        ("scaling", config.rope_scaling.to_string(), scaling_note(checkpoint).into()),
        ("pairing", config.pairing.name().into(), "components that RoPE rotates together".into()),
        ("tied", tied.into(), String::new()),
        ("biases", biases(config), String::new()),
        ("window", window.0, window.1),
        ("q/k norm", if config.qk_norm { "yes" } else { "no" }.into(), String::new()),
    ];
    for (name, value, note) in rows.into_iter().chain(switches::rows(config)) {
        writeln!(out, "  {name:<9} {value:<12} {note}")?;
    }

    writeln!(out, "\ntensors")?;
    let named = || checkpoint.tensors().map(|(name, tensor)| (printable(name), tensor));
    let width = named().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let (mut parameters, mut bytes) = (0, 0);
    let mut counted = HashSet::new();
    for (name, tensor) in named() {
        writeln!(out, "  {name:<width$}  {:<4}  {:?}", tensor.dtype(), tensor.shape())?;
        // Two names may belong to one tensor: the tied embedding and head.
        if counted.insert(tensor.bytes().place()) {
            parameters += tensor.count();
            bytes += tensor.size();
        }
    }
    writeln!(out, "  {} parameters, {}", grouped(parameters), size(bytes))?;

    let cache = |tokens| size(kv_cache::bytes(config, precision.cache_dtype(), tokens));
    writeln!(out, "\nKV cache    {} a token, {} for the whole context", cache(1), cache(config.context))?;
    if cfg!(feature = "cuda") {
        let [whole, least] =
            [Some(config.context), None].map(|context| device::needs(checkpoint, precision, context));
        writeln!(out, "GPU         {} (--device cuda)", whole.told())?;
        if least.context < whole.context {
            writeln!(out, "            {} with a context of {} tokens", size(least.total()), least.context)?;
        }
    }
    let tokens = config.context.min(1024);
    writeln!(
        out,
        "tracer      at most {} of stage values (--memory), in addition to the weights, the KV cache and the buffers of a pass \
         ({} for a prompt of {tokens} tokens)",
        memory::written(DEFAULT_MEMORY),
        size(buffer_bytes(config, tokens, 1))
    )?;
    for tokens in [8, 128, 1024].into_iter().filter(|&tokens| tokens <= config.context) {
        writeln!(
            out,
            "full trace  {} for a prompt of {tokens} tokens",
            size(trace_bytes(config, precision, tokens))
        )?;
    }
    Ok(())
}

/// The source of the RoPE scaling parameters.
fn scaling_note(checkpoint: &Checkpoint) -> &'static str {
    match (checkpoint.format, &checkpoint.config.rope_scaling) {
        // params.json usually says only that scaling is used. Then the factor is 8, as in Meta's code, unless
        // --rope-factor sets another one.
        (Format::Meta { .. }, RopeScaling::Llama3 { factor, .. }) if *factor == 8.0 => {
            "of RoPE frequencies, as in Meta's code; Hugging Face's converter uses 32 for Llama 3.2 (--rope-factor 32)"
        }
        _ => "of RoPE frequencies",
    }
}

fn context_note(checkpoint: &Checkpoint) -> &'static str {
    match checkpoint.format {
        Format::Meta { .. } => "tokens; inferred from the kind of model if params.json does not have it",
        _ => "tokens",
    }
}

fn ids(ids: &[u32]) -> String {
    if ids.is_empty() {
        return "no token (the checkpoint names none)".into();
    }
    ids.iter().map(|id| format!("#{id}")).collect::<Vec<_>>().join(" or ")
}

fn biases(config: &ModelConfig) -> String {
    let all = [
        ("q k v", config.qkv_bias),
        ("attention output", config.output_bias),
        ("feed-forward", config.mlp_bias),
    ];
    let some: Vec<_> = all.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect();
    if some.is_empty() { "none".into() } else { some.join(", ") }
}

/// Bytes of all stages of a prefill of `tokens` tokens.
fn trace_bytes(config: &ModelConfig, precision: Precision, tokens: usize) -> usize {
    // All layers have the same stages, so the size of one layer is multiplied. The file may claim any number
    // of layers, so they are not enumerated.
    let sizes = Sizes { layers: 1, ..Sizes::new(config, precision) };
    let dims = PassDims { pass: 0, start: 0, tokens, ..PassDims::default() };
    let bytes = |site: Site| {
        let width = site.stage.value_bytes();
        let shape = sizes.shape(site.stage.axes(), dims);
        let copies = if site.layer.is_some() { config.layers } else { 1 };
        shape.iter().fold(width * copies, |product: usize, &size| product.saturating_mul(size))
    };
    Site::all(&sizes, dims).into_iter().map(bytes).fold(0, usize::saturating_add)
}

/// A number with separated thousands.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let parts: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    parts.join(",")
}
