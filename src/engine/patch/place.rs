//! The places of a run that can take their values from elsewhere.

use std::ops::Range;

use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::{Address, Sizes, Stage, Step, Subject};

/// Values of one stage: of a token or of all tokens, and of a head, of a neuron or of whole rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The stage.
    pub stage: Stage,
    /// The layer; `None` for the embedding.
    pub layer: Option<usize>,
    /// The token; `None` for all.
    pub token: Option<usize>,
    /// The head of `AttnHeads`, or the neuron of `FfnHidden`; `None` for whole rows.
    pub unit: Option<usize>,
}

impl Place {
    /// The cells of a row of the stage.
    pub(super) fn cells(&self, sizes: &Sizes) -> Range<usize> {
        match (self.stage, self.unit) {
            (Stage::AttnHeads, Some(head)) => head * sizes.head_dim..(head + 1) * sizes.head_dim,
            (_, Some(unit)) => unit..unit + 1,
            (Stage::AttnHeads, None) => 0..sizes.heads * sizes.head_dim,
            (Stage::FfnHidden, None) => 0..sizes.hidden,
            (_, None) => 0..sizes.dim,
        }
    }

    /// Its address in the first pass.
    pub fn address(&self) -> Address {
        let unit = if self.stage == Stage::AttnHeads { 'h' } else { 'f' };
        let index = [('t', self.token), (unit, self.unit)];
        Address {
            pass: Some(0),
            layer: self.layer,
            subject: Some(Subject::Step(Step::Stage(self.stage))),
            index: index.into_iter().filter_map(|(letter, index)| Some((letter, index?))).collect(),
            ..Address::default()
        }
    }
}

/// Checks that all prompts have the same number of tokens.
pub(super) fn check_lengths(prompts: &[&[u32]]) -> Result<()> {
    match prompts {
        [one, other] if one.len() != other.len() => {
            Err(Error::prompt("the two prompts do not have the same number of tokens")
                .expected("one token of the one prompt for each token of the other")
                .found(format!("{} and {} tokens", one.len(), other.len()))
                .next("change the words in which the prompts differ, so that they have equally many tokens"))
        }
        _ => Ok(()),
    }
}
