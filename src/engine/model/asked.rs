//! What is known of a pass that was asked for ahead of its turn.

use crate::backend::{Draw, Span};

/// A pass that was asked for before it was known what it reads; now it is.
pub(super) struct Asked {
    pub(super) steps: Vec<Step>,
}

/// What a pass does for a sequence: the span, of one token, which token that is, and how the one after it is drawn.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Step {
    pub(super) span: Span,
    pub(super) id: u32,
    pub(super) draw: Draw,
}

impl Asked {
    /// Where in it a pass over `spans` is, span by span; none where it was another one.
    pub(super) fn places(&self, spans: &[Span], (ids, draws): (&[u32], &[Draw])) -> Option<Vec<usize>> {
        if ids.len() != spans.len() {
            return None;
        }
        let step = |((&span, &id), &draw)| Step { span, id, draw };
        let mut steps = spans.iter().zip(ids).zip(draws).map(step);
        steps.try_fold(Vec::new(), |mut places, step| {
            places.push(self.steps.iter().position(|asked| *asked == step)?);
            Some(places)
        })
    }
}
