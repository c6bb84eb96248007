//! The list of branches.

use llama_trace_core::trace::{Outline, Run};

use super::edited;

/// A run in the list of branches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchRow {
    /// The run's number.
    pub run: Run,
    /// The sequence's number, and the number of sequences.
    pub sequence: (usize, usize),
    /// The parent run and the last common pass; none if the run is not a branch.
    pub parent: Option<(Run, usize)>,
    /// Whether the run is a branch or has branches.
    pub branched: bool,
    /// Whether the run continues with the same token as its parent.
    pub same_token: bool,
    /// The tokens before the first branching point; the prompt if there is none.
    pub before: Vec<String>,
    /// The tokens after the first branching point.
    pub after: Vec<String>,
    /// The edits of this run in words; empty if it has none.
    pub edits: String,
    /// Whether no sequence of the original run has its prompt.
    pub other_prompt: bool,
    /// Whether this run is shown.
    pub shown: bool,
}

/// The list of branches and the chosen row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BranchList {
    /// The rows.
    pub rows: Vec<BranchRow>,
    /// Number of the chosen row.
    pub chosen: usize,
}

impl BranchList {
    /// The list of the runs of `outlines`; the row of `shown` is chosen.
    pub fn new(outlines: &[Outline], shown: &Outline) -> Self {
        let here = (shown.run, shown.sequence);
        let rows: Vec<_> = outlines.iter().map(|outline| BranchRow::new(outline, outlines, here)).collect();
        let chosen = rows.iter().position(|row| row.shown).unwrap_or(0);
        Self { rows, chosen }
    }
}

impl BranchRow {
    fn new(outline: &Outline, all: &[Outline], here: (Run, usize)) -> Self {
        let same_sequence = |other: &&Outline| other.sequence == outline.sequence;
        let child = |other: &Outline| other.fork.filter(|fork| fork.of == outline.run).map(|fork| fork.pass);
        let first_child = all.iter().filter(same_sequence).filter_map(child).min();
        let fork_pass = outline.fork.map(|fork| fork.pass).or(first_child);
        let drawn = |outline: &Outline, pass: usize| Some(outline.passes.get(pass)?.sampled.as_ref()?.id);
        let same_token = outline.fork.is_some_and(|fork| {
            let parent = all.iter().find(|other| other.run == fork.of && other.sequence == outline.sequence);
            parent.and_then(|parent| drawn(parent, fork.pass)) == Some(fork.token)
        });
        // Without a branching point, the tokens before are the prompt, and the tokens after are the sampled ones.
        let last = fork_pass.unwrap_or(0);
        let passes = outline.passes.get(..=last).unwrap_or(&outline.passes);
        let before = passes.iter().flat_map(|pass| &pass.tokens).map(|token| token.text.clone());
        let after = outline.passes.iter().skip(last).filter_map(|pass| pass.sampled.as_ref());
        let originals = || all.iter().filter(|other| other.run == Run::ITSELF);
        Self {
            run: outline.run,
            sequence: (outline.sequence, outline.sequences),
            parent: outline.fork.map(|fork| (fork.of, fork.pass)),
            branched: fork_pass.is_some(),
            same_token,
            before: before.collect(),
            after: after.map(|token| token.text.clone()).collect(),
            edits: edited::name(&outline.card),
            other_prompt: !originals().any(|other| edited::same_prompt(other, outline)),
            shown: (outline.run, outline.sequence) == here,
        }
    }
}
