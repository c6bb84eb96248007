//! The input of a pass: one span of tokens for each sequence.

use std::ops::Range;

/// The tokens of one sequence that a pass reads. They follow the cached tokens. A pass's buffers hold the rows of all
/// spans, in the order of the spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Number of the sequence.
    pub sequence: usize,
    /// The number of cached tokens of the sequence. It is also the position of the span's first token.
    pub start: usize,
    /// T: the number of tokens that this pass reads of the sequence, at least one.
    pub tokens: usize,
}

impl Span {
    /// K = start + T: the number of keys that the span's last token sees.
    pub fn keys(self) -> usize {
        self.start + self.tokens
    }
}

/// The rows of a pass that an operation reads. They also determine the order of summation of its products.
///
/// A kernel may sum in another order if it reads many tokens at once. The order depends only on the number of tokens of
/// the row's own span. It does not depend on the other sequences of the pass or on the number of rows that the probe
/// wants. So a sequence gets the same bits in a batch and alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PassRows {
    /// All rows, each in the order of its span.
    All,
    /// Some rows of one span, in the order of this span.
    Of {
        /// Number of the span in the pass.
        span: usize,
        /// Tokens of the span.
        rows: Range<usize>,
    },
    /// The last row of each span, summed in the order of a pass of one token. A pass without a probe computes only the
    /// logits of these rows, and a probe must not change them.
    Last,
}

impl PassRows {
    /// Returns the number of these rows in a pass over `spans`.
    pub fn count(&self, spans: &[Span]) -> usize {
        match self {
            Self::All => spans.iter().map(|span| span.tokens).sum(),
            Self::Of { rows, .. } => rows.len(),
            Self::Last => spans.len(),
        }
    }

    /// Returns the rows grouped by order of summation: the number of rows, and the number of tokens that determines
    /// their order.
    pub fn orders<'a>(&'a self, spans: &'a [Span]) -> impl Iterator<Item = (usize, usize)> + Clone + 'a {
        let all = matches!(self, Self::All).then_some(spans).into_iter().flatten();
        let other = match self {
            Self::All => None,
            Self::Of { span, rows } => Some((rows.len(), spans[*span].tokens)),
            Self::Last => Some((spans.len(), 1)),
        };
        all.map(|span| (span.tokens, span.tokens)).chain(other)
    }

    /// Returns the rows as ranges of the rows of the whole pass.
    pub fn ranges<'a>(&'a self, spans: &'a [Span]) -> impl Iterator<Item = Range<usize>> + 'a {
        let firsts = spans.iter().scan(0, |next, span| {
            let first = *next;
            *next += span.tokens;
            Some(first)
        });
        let each = firsts.zip(spans).enumerate();
        each.filter_map(move |(i, (first, span))| match self {
            Self::All => Some(first..first + span.tokens),
            Self::Of { span, rows } => (*span == i).then(|| first + rows.start..first + rows.end),
            Self::Last => Some(first + span.tokens - 1..first + span.tokens),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_in_the_pass_with_the_order_of_their_span() {
        let spans = [(0, 0, 3), (4, 9, 1), (2, 5, 20)];
        let spans = spans.map(|(sequence, start, tokens)| Span { sequence, start, tokens });
        let of = |rows: PassRows| {
            let ranges: Vec<_> = rows.ranges(&spans).map(|range| (range.start, range.end)).collect();
            (rows.count(&spans), ranges, rows.orders(&spans).collect::<Vec<_>>())
        };
        assert_eq!(of(PassRows::All), (24, vec![(0, 3), (3, 4), (4, 24)], vec![(3, 3), (1, 1), (20, 20)]));
        assert_eq!(of(PassRows::Of { span: 2, rows: 4..6 }), (2, vec![(8, 10)], vec![(2, 20)]));
        assert_eq!(of(PassRows::Last), (3, vec![(2, 3), (3, 4), (23, 24)], vec![(3, 1)]));
    }
}
