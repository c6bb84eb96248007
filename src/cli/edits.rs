//! `--edit`, `--edits` and `--without`: reads the edits, and reports what they changed.

use std::path::Path;

use super::prompt::{self, Prompt};
use super::{ModelArgs, tell};
use llama_trace_core::config::{Arithmetic, Precision};
use llama_trace_core::edit::{Changed, Edit, Edits};
use llama_trace_core::error::{Error, Result, shortened};
use llama_trace_core::trace::{ModelCard, NoProbe};
use llama_trace_engine::generate::{Sampler, Sampling, Session};
use llama_trace_engine::model::{Model, pass};
use llama_trace_formats::checkpoint::Checkpoint;
use llama_trace_formats::files::printable;
use llama_trace_formats::tokenizer::Tokenizer;

/// The maximum number of edits. Each stage of a pass looks at all of them.
const MOST: usize = 1 << 16;

/// The edits that the options give: `--without`, then the file, then `--edit`.
pub(super) fn list(args: &ModelArgs) -> Result<Vec<Edit>> {
    let mut list = args.without.clone();
    if let Some(file) = &args.edits {
        let before = list.len();
        for (number, line) in read_edits(file)?.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let edit = Edit::parse(line).map_err(|expected| {
                Error::usage("a line is not an edit")
                    .at(format!("{}, line {}", printable(&file.display().to_string()), number + 1))
                    .expected(shortened(&expected))
                    .found(shortened(&printable(line)))
                    .next("see `llama-trace help edits`")
            })?;
            list.push(edit);
        }
        if list.len() == before {
            return Err(Error::usage("the file of --edits has no edit")
                .in_file(file)
                .expected("one edit a line, as in L0/attn_heads[h=2] = 0")
                .next("see `llama-trace help edits`"));
        }
    }
    list.extend(args.edit.iter().cloned());
    if list.len() > MOST {
        return Err(Error::usage("there are too many edits")
            .expected(format!("at most {MOST}"))
            .found(list.len().to_string())
            .next("change several cells in one edit: a place can have ranges and lists, as in L0-2/ffn_hidden[f=3,7]"));
    }
    Ok(list)
}

/// The text of the file of `--edits`.
fn read_edits(file: &Path) -> Result<String> {
    prompt::read_text_of(file, "the file of --edits").map_err(|error| match error {
        Error::Prompt(report) => Error::Usage(report),
        other => other,
    })
}

/// Checks that the model has the layers and the cells that the edits name, and lists the parts that are switched off.
pub(super) fn check(args: &ModelArgs, checkpoint: &Checkpoint, precision: Precision) -> Result<()> {
    let list = list(args)?;
    let card = ModelCard {
        name: checkpoint.name.clone(),
        ignored: Vec::new(),
        without: Vec::new(),
        edits: Vec::new(),
        config: checkpoint.config.clone(),
        precision,
        arithmetic: Arithmetic::Fused,
        backend: "cpu".into(),
    };
    Edits::new(list).in_model(&card.sizes()).check(&card, &[])?;
    let off: Vec<_> =
        args.without.iter().filter_map(Edit::switched_off).map(|part| format!("`{part}`")).collect();
    if !off.is_empty() {
        tell(format_args!("warning: switched off by --without: {}", off.join(", ")));
    }
    Ok(())
}

/// Prints a line for each edit: how many cells it changed in the runs so far, and one of them before and after.
pub(super) fn lines(edits: &Edits) {
    for (edit, changed) in edits.list().iter().zip(edits.changes()) {
        let edit = shortened(&edit.text);
        match changed {
            None => tell(format_args!(
                "warning: the edit `{edit}` found no cell in this run, so it changed nothing"
            )),
            Some(Changed { cells, changed: 0, .. }) => {
                let had = if cells == 1 {
                    "its cell had this value".into()
                } else {
                    format!("its {cells} cells had these values")
                };
                tell(format_args!("warning: the edit `{edit}` changed nothing: {had} already"));
            }
            Some(Changed { cells, changed, first: (address, before, after) }) => {
                let one = if changed == 1 { "cell" } else { "cells" };
                let of = if changed == cells { String::new() } else { format!(" of {cells}") };
                tell(format_args!(
                    "edit `{edit}`: {changed}{of} {one} changed, {address} from {before} to {after}"
                ));
            }
        }
    }
}

/// Prints a line for each edit of `model`: how many cells it changed, and one of them before and after. A last line says
/// how far the edits moved the logits after `prompt`, which is read in passes over at most `chunk` tokens.
pub(super) fn report(
    model: &Model,
    tokenizer: Option<&dyn Tokenizer>,
    prompt: Option<&Prompt>,
    chunk: Option<usize>,
) -> Result<()> {
    if model.edits.is_empty() {
        return Ok(());
    }
    lines(&model.edits);
    let Some(prompt) = prompt else { return Ok(()) };
    let chunk = chunk.unwrap_or(prompt.ids.len()).max(1);
    let [plain, edited] = [model.with_edits(Edits::default()), model.clone()];
    let (plain, edited) =
        (last_logits(&plain, &prompt.ids, chunk)?, last_logits(&edited, &prompt.ids, chunk)?);
    let square =
        |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let moved = square(&mut plain.iter().zip(&edited).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    let whole = square(&mut plain.iter().map(|&value| f64::from(value)));
    let first = |logits: &[f32]| {
        let best = (0..logits.len()).reduce(|best, id| if logits[id] > logits[best] { id } else { best });
        let id = best.unwrap_or(0) as u32;
        tokenizer.map_or_else(|| format!("#{id}"), |tokenizer| format!("\"{}\"", tokenizer.label(id)))
    };
    let (was, is) = (first(&plain), first(&edited));
    let same = if was == is {
        format!("the most likely token stays {was}")
    } else {
        format!("the most likely token changes from {was} to {is}")
    };
    tell(format_args!(
        "the edits moved the logits after the prompt by {:.3} % (relative L2); {same}",
        100.0 * moved / whole
    ));
    Ok(())
}

/// The logits after a prompt, which is read in passes over at most `chunk` tokens.
fn last_logits(model: &Model, ids: &[u32], chunk: usize) -> Result<Vec<f32>> {
    let mut session = Session::with_capacity(model, Sampler::new(Sampling::GREEDY)?, ids.len())?;
    for ids in ids.chunks(chunk) {
        session.read(ids, &mut NoProbe)?;
    }
    let mut logits = Vec::new();
    pass::last_logits(model, &session.work, 0, |row| {
        logits.extend_from_slice(row);
        Ok(())
    })?;
    Ok(logits)
}
