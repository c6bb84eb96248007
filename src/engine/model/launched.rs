//! A pass that was launched ahead, before its token ids were known.

use crate::backend::{Draw, Span};

/// A pass that was launched before its token ids were known; by now they are known.
pub(super) struct Launched {
    pub(super) steps: Vec<Step>,
}

/// The work of a pass for one sequence: a span of one token, the token's id, and how the next token is sampled.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Step {
    pub(super) span: Span,
    pub(super) id: u32,
    pub(super) draw: Draw,
}

impl Launched {
    /// Returns the index of each of `spans` in this pass. Returns `None` if this pass does not have all of these spans,
    /// with these ids and draws.
    pub(super) fn places(&self, spans: &[Span], (ids, draws): (&[u32], &[Draw])) -> Option<Vec<usize>> {
        if ids.len() != spans.len() {
            return None;
        }
        let step = |((&span, &id), &draw)| Step { span, id, draw };
        let mut steps = spans.iter().zip(ids).zip(draws).map(step);
        steps.try_fold(Vec::new(), |mut places, step| {
            places.push(self.steps.iter().position(|launched| *launched == step)?);
            Some(places)
        })
    }
}
