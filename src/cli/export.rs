//! `llama-trace export`: every chosen stage of every chosen pass as a `.npy` file, and a manifest.
//!
//! All files are written into a temporary folder and moved into place at the end ([`llama_trace_ending::replace`]). A run
//! that fails or is interrupted leaves nothing behind.

mod files;
mod heatmap;
mod traced;

use std::io;

use self::files::Files;
use super::edited;
use super::input::{Run, say_full};
use super::output;
use super::progress::Progress;
use super::{ExportArgs, RunArgs};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::manifest::{Drawing, pass_of, sequence_of};
use llama_trace_core::trace::{Manifest, PassDims, Select, Site, Sizes};
use llama_trace_ending::folder::Folder;
use llama_trace_ending::replace::{Target, stopped};
use llama_trace_engine::generate::Ended;
use llama_trace_picture::Format;

/// Runs the command.
pub(super) fn run(args: &ExportArgs) -> Result<()> {
    output::check_path(&args.out)?;
    args.format.picture().map(Format::built).transpose()?;
    match &args.trace.trace {
        Some(trace) => traced::export(args, trace),
        None => export(args),
    }
}

fn export(args: &ExportArgs) -> Result<()> {
    let target = Target::check(&args.out, args.force, Manifest::file_names)?;
    let wanted = args.run.tokens.unwrap_or(1);
    let run = Run::open(&args.run)?.in_chunks(args.chunk)?;
    let most = run.most_passes(wanted);
    let run = edited::edit(run, &args.run, wanted, most)?;
    if wanted == 0 {
        return Err(Error::usage("there is nothing to export")
            .expected("-n 1 or more: the pass over the prompt samples the first token")
            .found("-n 0")
            .next("give another -n, or leave it out"));
    }
    let (sizes, mut batch) = (run.model.sizes(), run.batch(wanted)?);
    let select = args.select.select(&run, &batch, wanted, false)?;
    let prompts = run.prompts.iter().map(|prompt| prompt.text.clone()).collect();
    let mut manifest = Manifest::new(run.model.card(), prompts, Some(drawing(&args.run)));
    manifest.cache = Some(run.model.backend.cache_dtype().name().to_owned());
    let sites = |number, pass| run.sites(number, pass, &batch);
    let mut files = begin(args, target, manifest, sizes, &select, sites, run.passes(wanted))?;
    let mut full = Vec::new();
    while batch.ready()? {
        let reads: Vec<_> = batch.reads().map(|read| (read.sequence, read.dims, read.ids.to_vec())).collect();
        let texts = |ids: &[u32]| ids.iter().map(|&id| run.label(id).text).collect();
        files.begin(reads.iter().map(|(sequence, dims, ids)| (*sequence, *dims, texts(ids))));
        let drawn = batch.pass(&mut files);
        stopped()?;
        let drawn = drawn?;
        files.check()?;
        for ((sequence, dims, ids), drawn) in reads.iter().zip(drawn) {
            let tokens = ids.iter().map(|&id| run.label(id)).collect();
            let label = (!drawn.given).then(|| run.label(drawn.id));
            files.manifest.pass(*sequence, *dims, tokens, label);
            full.extend((drawn.ended == Some(Ended::Full)).then_some(*sequence));
        }
    }
    say_full(&run, &full);
    run.say_edits()?;
    if batch.not_a_number() {
        super::tell(super::NOT_A_NUMBER);
    }
    files.finish()
}

/// Prints which of the chosen stages are not drawn. These are the stages of token ids, because ids are not quantities.
fn drawable(args: &ExportArgs, select: &Select) -> Result<()> {
    let Some(steps) = select.named().filter(|_| args.format.picture().is_some()) else { return Ok(()) };
    let ids: Vec<_> = steps.iter().filter(|step| step.stage().is_ids()).map(|step| step.name()).collect();
    let what = match ids[..] {
        [] => return Ok(()),
        [one] => format!("{one} has token ids, not quantities, and gets no picture"),
        _ => format!("{} have token ids, not quantities, and get no picture", ids.join(" and ")),
    };
    if ids.len() == steps.len() {
        return Err(Error::usage(what)
            .expected("a stage of quantities, such as xq or softmax")
            .next("--format npy writes ids too"));
    }
    super::tell(format_args!("{what}; --format npy writes them."));
    Ok(())
}

/// How the tokens of a run are sampled.
pub(super) fn drawing(args: &RunArgs) -> Drawing {
    args.sampling.drawing(args.stream.unwrap_or(0))
}

/// The files of an export to `target`, before the first one is written. The files are those of the sites in `passes`
/// that `select` chooses. `sites` returns the sites that a pass can have, given the number of its sequence and its own
/// number.
///
/// # Errors
/// [`Error::Output`] if something is in the way of a file, and [`Error::Usage`] if no chosen stage can be drawn.
fn begin<'a>(
    args: &ExportArgs,
    target: Target,
    mut manifest: Manifest,
    sizes: Sizes,
    select: &'a Select,
    sites: impl Fn(usize, usize) -> Vec<Site>,
    passes: impl Iterator<Item = PassDims>,
) -> Result<Files<'a>> {
    drawable(args, select)?;
    manifest.suffix = args.format.suffix();
    target.check_free(|folder| {
        let mut names = Vec::new();
        for (sequence, pass) in passes_in(folder)? {
            let number = sequence.unwrap_or(0);
            // A single sequence has no folder of its own.
            if sequence.is_some() != manifest.prompts.is_empty() && number < manifest.prompts.len().max(1) {
                let chosen = sites(number, pass).into_iter().filter(|&site| select.contains(site));
                names.extend(chosen.map(|site| manifest.file_name(site)));
            }
        }
        Ok(names)
    })?;
    let chosen =
        |dims: PassDims| Site::all(&sizes, dims).into_iter().filter(|&site| select.contains(site)).count();
    let bar = Progress::new(passes.map(chosen).sum(), "stages");
    Files::new(target, manifest, sizes, select, bar, args.format.picture())
}

/// The passes that have a folder in `folder`, each with its sequence if there are several.
fn passes_in(folder: &Folder) -> io::Result<Vec<(Option<usize>, usize)>> {
    let mut passes = Vec::new();
    for name in folder.names()? {
        let sequence = sequence_of(&name);
        passes.extend(pass_of(&name).map(|pass| (None, pass)));
        if sequence.is_some() {
            // A file with the name of a sequence's folder is in the way of the sequence's first pass.
            passes.push((sequence, 0));
            let inner = folder.enter(&name).ok().flatten().map_or(Ok(Vec::new()), |inner| inner.names())?;
            passes.extend(inner.iter().filter_map(|name| Some((sequence, pass_of(name)?))));
        }
    }
    Ok(passes)
}
