//! `log --trace`: the log of a recorded run.

use std::cell::RefCell;
use std::collections::HashSet;
use std::path::Path;

use super::{Chosen, Has, Printed, Summaries, Summarizing, Summary};
use crate::cli::traced::{Traced, chosen};
use crate::cli::{LogArgs, tell};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::{PassOutline, Run, Select, Site, Source, TokenLabel};
use llama_trace_runs::begin::wait::show;
use llama_trace_runs::replay::DEFAULT_MEMORY;

/// The damaged stages, and the error of the first of them.
#[derive(Default)]
struct Damaged {
    sites: HashSet<Site>,
    first: Option<Error>,
}

/// Prints the passes of each sequence, one sequence after the other.
pub(super) fn log(args: &LogArgs, path: &Path) -> Result<()> {
    let traced = Traced::open(path, &args.run.model, &args.run.cpu, DEFAULT_MEMORY)?;
    let (mut out, mut absent) = (Printed::new(args.format), Vec::new());
    let follows = RefCell::new(traced.follows());
    let damaged = RefCell::new(Damaged::default());
    let is_damaged = |site: Site| damaged.borrow().sites.contains(&site);
    let has = |site: Site| match () {
        () if is_damaged(site) && traced.kept.holds(site) => Has::Damaged,
        () if is_damaged(site) => Has::FollowsFromDamaged,
        () if traced.kept.holds(site) => Has::Values,
        () if follows.borrow_mut().has(site) => Has::Follows,
        () if traced.kept.stats(site).is_some() => Has::Statistics,
        () => Has::Nothing,
    };
    for sequence in 0..traced.sequences() {
        let mut source = traced.source(Run::ITSELF, sequence)?;
        let outline = source.outline().clone();
        let select = args.select.select_of(&outline, true)?;
        for pass in outline.passes.iter().filter(|pass| select.has_pass(pass.dims.pass)) {
            let mut summaries = Summaries::new();
            if args.values {
                let left_out = (&mut absent, &mut *damaged.borrow_mut());
                summaries = summarize(&traced, &mut *source, pass, &select, left_out)?;
            }
            let chosen = Chosen {
                card: &outline.card,
                label: &|id| TokenLabel { id, text: source.token_text(id) },
                several: outline.sequences > 1,
                sequence,
                dims: pass.dims,
                select: &select,
                times: None,
                has: &has,
                summaries: &summaries,
            };
            let ids: Vec<u32> = pass.tokens.iter().map(|token| token.id).collect();
            if !out.print(&chosen, &ids, pass.sampled.as_ref().map(|drawn| drawn.id))? {
                return Ok(());
            }
        }
    }
    traced.say_branches();
    // The log marks each damaged stage in its line. This error comes last and replaces the note below. Its exit code is
    // for scripts.
    if let Some(error) = damaged.take().first {
        return Err(error);
    }
    if let [first, ..] = &absent[..] {
        match absent.len() {
            1 => tell(format_args!("{first} has no values in this trace.")),
            count => tell(format_args!("{count} stages have no values in this trace, {first} among them.")),
        }
    }
    Ok(())
}

/// The summaries of the chosen stages of a pass. A stage without values gets its recorded statistics. If it has none,
/// it is added to `absent`. A damaged stage is added to `damaged`.
fn summarize(
    traced: &Traced,
    source: &mut dyn Source,
    pass: &PassOutline,
    select: &Select,
    (absent, damaged): (&mut Vec<Site>, &mut Damaged),
) -> Result<Summaries> {
    let (sizes, sequence) = (source.outline().card.sizes(), source.outline().sequence);
    let mut summarizing = Summarizing { select, summaries: Summaries::new() };
    for site in chosen(sequence, pass, &sizes, select) {
        let shape = sizes.shape(site.stage.axes(), pass.dims);
        match show(source, site, &shape, &mut summarizing) {
            Ok(()) => {}
            Err(Error::Usage(_)) => {
                let kept = traced.kept.stats(site);
                let whole = site.stage.is_ids() || site.stage.is_int8();
                if kept.is_some() {
                    summarizing.summaries.insert(site, Summary { kept, whole, ..Summary::default() });
                } else {
                    absent.push(site);
                }
            }
            Err(error @ Error::Model(_)) => {
                // The first parts of the stage may have been undamaged, so there is a summary to remove.
                summarizing.summaries.remove(&site);
                damaged.sites.insert(site);
                damaged.first.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(summarizing.summaries)
}
