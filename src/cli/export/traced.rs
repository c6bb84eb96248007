//! `export --trace`: the export of a recorded run.

use std::fs;
use std::path::Path;

use super::files::{COMPUTED, DERIVED};
use crate::cli::traced::{Traced, chosen};
use crate::cli::{ExportArgs, tell};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::{Manifest, Outline, Run};
use llama_trace_ending::replace::{Target, interrupted};
use llama_trace_runs::begin::wait::show;
use llama_trace_runs::replay::DEFAULT_MEMORY;

/// Writes every chosen stage that the trace has, or that can be derived or computed from it. Each sequence counts its
/// passes from 0.
pub(super) fn export(args: &ExportArgs, path: &Path) -> Result<()> {
    check_not_source(path, &args.out)?;
    let target = Target::check(&args.out, args.force, Manifest::file_names)?;
    let traced = Traced::open(path, &args.run.model, &args.run.cpu, DEFAULT_MEMORY)?;
    let kept = &traced.kept;
    let sizes = kept.card().sizes();
    let outlines: Vec<Outline> = (0..traced.sequences())
        .map(|sequence| Ok(traced.source(Run::ITSELF, sequence)?.outline().clone()))
        .collect::<Result<_>>()?;
    let Some(longest) = outlines.iter().max_by_key(|outline| outline.passes.len()) else { return Ok(()) };
    let select = args.select.select_of(longest, false)?;
    let prompts = (0..traced.sequences()).map(|sequence| kept.prompt(sequence)).collect();
    let mut manifest = Manifest::new(kept.card().clone(), prompts, kept.sampling());
    manifest.cache = kept.cache().map(|dtype| dtype.name().to_owned());
    let sites = |number: usize, pass: usize| {
        let pass = outlines.get(number).and_then(|outline| outline.passes.get(pass));
        pass.map_or_else(Vec::new, |pass| chosen(number, pass, &sizes, &select))
    };
    let passes = outlines.iter().flat_map(|outline| outline.passes.iter().map(|pass| pass.dims));
    let mut files = super::begin(args, target, manifest, sizes, &select, sites, passes)?;
    let mut absent = Vec::new();
    let mut follows = traced.follows();
    for outline in &outlines {
        let mut source = traced.source(Run::ITSELF, outline.sequence)?;
        for pass in &outline.passes {
            let texts = pass.tokens.iter().map(|token| token.text.clone()).collect();
            files.begin([(outline.sequence, pass.dims, texts)].into_iter());
            for site in chosen(outline.sequence, pass, &sizes, &select) {
                let shape = sizes.shape(site.stage.axes(), pass.dims);
                files.made = match () {
                    () if kept.holds(site) => None,
                    () if follows.has(site) => Some(DERIVED),
                    () => Some(COMPUTED),
                };
                match show(&mut *source, site, &shape, &mut files) {
                    Ok(()) => {}
                    // If the user named the stages, each of them must be there.
                    Err(error @ Error::Usage(_)) if args.select.stage.is_some() => return Err(error),
                    Err(Error::Usage(_)) => absent.push(site),
                    Err(Error::Interrupted(_)) => return Err(interrupted()),
                    Err(error) => return Err(error),
                }
                files.check()?;
            }
            files.manifest.pass(outline.sequence, pass.dims, pass.tokens.clone(), pass.sampled.clone());
        }
    }
    traced.say_branches();
    if let [first, ..] = &absent[..] {
        match absent.len() {
            1 => tell(format_args!("{first} is not in the trace; give --model to compute it again")),
            count => tell(format_args!(
                "{count} stages are not in the trace, {first} among them; give --model to compute them again"
            )),
        }
    }
    files.finish()
}

/// Checks that the export does not replace the folder that it reads from.
fn check_not_source(path: &Path, out: &Path) -> Result<()> {
    let place = |path: &Path| fs::canonicalize(path).ok();
    match (place(path), place(out)) {
        (Some(from), Some(to)) if from.is_dir() && from.starts_with(&to) => {
            Err(Error::usage("the export would replace the folder that it reads from")
                .at(format!("--out {}", out.display()))
                .expected("a folder that is not the --trace folder and does not contain it")
                .next("choose another --out"))
        }
        _ => Ok(()),
    }
}
