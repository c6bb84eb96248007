//! The export of a run that was recorded.

use std::fs;
use std::path::Path;

use super::files::{COMPUTED, DERIVED, Files};
use crate::cli::device::Device;
use crate::cli::progress::Progress;
use crate::cli::traced::{Traced, show};
use crate::cli::{ExportArgs, tell};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::{Manifest, Outline, PassOutline, Run, Select, Site, Sizes};
use llama_trace_ending::replace::{Target, interrupted};
use llama_trace_runs::replay::DEFAULT_MEMORY;

/// Writes every chosen stage that the trace has or that follows from what it has. Each sequence counts its own passes.
pub(super) fn export<D: Device>(args: &ExportArgs, path: &Path) -> Result<()> {
    apart(path, &args.out)?;
    let target = Target::check(&args.out, args.force, Manifest::file_names)?;
    let traced = Traced::<D>::open(path, &args.run.model, &args.run.cpu, DEFAULT_MEMORY)?;
    let (kept, several) = (&traced.kept, traced.sequences() > 1);
    let sizes = kept.card().sizes();
    let outlines: Vec<Outline> = (0..traced.sequences())
        .map(|sequence| Ok(traced.source(Run::ITSELF, sequence)?.outline().clone()))
        .collect::<Result<_>>()?;
    let Some(longest) = outlines.iter().max_by_key(|outline| outline.passes.len()) else { return Ok(()) };
    let select = args.select.select_of(longest, false)?;
    super::drawable(args, &select)?;
    let prompts = (0..traced.sequences()).map(|sequence| kept.prompt(sequence)).collect();
    let mut manifest = Manifest::new(kept.card().clone(), prompts, kept.sampling());
    manifest.cache = kept.cache().map(|dtype| dtype.name().to_owned());
    manifest.suffix = args.format.suffix();
    super::check_free(&target, |sequence, number| {
        let outline = outlines.get(sequence.unwrap_or(0)).filter(|_| several == sequence.is_some());
        let pass = outline.and_then(|outline| outline.passes.get(number));
        let sites = outline.zip(pass).map(|(outline, pass)| chosen(outline, pass, &sizes, &select));
        sites.into_iter().flatten().map(|site| manifest.file_name(site)).collect()
    })?;
    let count = outlines
        .iter()
        .flat_map(|outline| outline.passes.iter().map(move |pass| (outline, pass)))
        .map(|(outline, pass)| chosen(outline, pass, &sizes, &select).len());
    let bar = Progress::new(count.sum(), "stages");
    let (mut files, mut lacking) =
        (Files::new(target.begin()?, manifest, sizes, &select, bar).draw(args.format.picture()), Vec::new());
    let mut follows = traced.follows();
    for outline in &outlines {
        let mut source = traced.source(Run::ITSELF, outline.sequence)?;
        for pass in &outline.passes {
            let texts = pass.tokens.iter().map(|token| token.text.clone()).collect();
            files.begin([(outline.sequence, pass.dims, texts)].into_iter());
            for site in chosen(outline, pass, &sizes, &select) {
                let shape = sizes.shape(site.stage.axes(), pass.dims);
                files.made = match () {
                    () if kept.holds(site) => None,
                    () if follows.has(site) => Some(DERIVED),
                    () => Some(COMPUTED),
                };
                match show(&mut *source, site, &shape, &mut files) {
                    Ok(()) => {}
                    // What was asked for by its name is missed.
                    Err(error @ Error::Usage(_)) if args.select.stage.is_some() => return Err(error),
                    Err(Error::Usage(_)) => lacking.push(site),
                    Err(Error::Interrupted(_)) => return Err(interrupted()),
                    Err(error) => return Err(error),
                }
                files.check()?;
            }
            files.manifest.pass(outline.sequence, pass.dims, pass.tokens.clone(), pass.sampled.clone());
        }
    }
    traced.say_branches();
    if let [first, ..] = &lacking[..] {
        match lacking.len() {
            1 => tell(format_args!("{first} is not there; with --model it is computed again")),
            count => tell(format_args!(
                "{count} stages are not there, as {first}; with --model they are computed again"
            )),
        }
    }
    files.finish(target)
}

/// Checks that what is written does not take the place of what it is made of.
fn apart(path: &Path, out: &Path) -> Result<()> {
    let place = |path: &Path| fs::canonicalize(path).ok();
    match (place(path), place(out)) {
        (Some(from), Some(to)) if from.is_dir() && from.starts_with(&to) => {
            Err(Error::usage("the export would take the place of the folder that it is made of")
                .at(format!("--out {}", out.display()))
                .expected("another folder than that of --trace, and none that holds it")
                .next("choose another --out"))
        }
        _ => Ok(()),
    }
}

/// The sites that are chosen of a pass.
fn chosen(outline: &Outline, pass: &PassOutline, sizes: &Sizes, select: &Select) -> Vec<Site> {
    let sites =
        Site::all(sizes, pass.dims).into_iter().map(|site| Site { sequence: outline.sequence, ..site });
    sites.filter(|&site| select.contains(site)).collect()
}
