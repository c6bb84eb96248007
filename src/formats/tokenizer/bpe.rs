//! Byte-pair encoding (Sennrich, Haddow and Birch, 2016), the loop that every such tokenizer shares: of all
//! neighbours that may be merged, those that come first in order are, again and again until none may.
//!
//! A queue holds every possible merge, so that a text of n symbols takes n·log n steps and not n².

use std::collections::BinaryHeap;

/// One merge, as it was made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step<S, P> {
    /// Place of the left symbol among those that there were at first; what the two become is there.
    pub(super) left: usize,
    /// Place of the right symbol, which is gone.
    pub(super) right: usize,
    /// What the two become.
    pub(super) symbol: S,
    /// Where the merge stood in the order.
    pub(super) priority: P,
}

/// Merges neighbouring `symbols`, the greatest priority first and, of equal ones, the leftmost. `join` says
/// what two neighbours become, where they may be merged; `watch` sees each merge that is made.
pub(super) fn merge<S: Copy + PartialEq, P: Copy + Ord>(
    symbols: Vec<S>,
    mut join: impl FnMut(S, S) -> Option<(P, S)>,
    mut watch: impl FnMut(Step<S, P>),
) -> Vec<S> {
    let mut chain = Chain::new(symbols);
    let mut queue = BinaryHeap::new();
    let mut offer = |chain: &Chain<S>, queue: &mut BinaryHeap<Candidate<S, P>>, left: usize| {
        let Some(right) = chain.next(left) else { return };
        let parts = (chain.symbols[left], chain.symbols[right]);
        if let Some((priority, symbol)) = join(parts.0, parts.1) {
            queue.push(Candidate { parts, step: Step { left, right, symbol, priority } });
        }
    };
    for left in 0..chain.symbols.len() {
        offer(&chain, &mut queue, left);
    }
    while let Some(Candidate { parts, step }) = queue.pop() {
        let Step { left, right, .. } = step;
        // Stale where one of the two was merged with another neighbour in the meantime.
        if !chain.alive(left)
            || chain.next(left) != Some(right)
            || (chain.symbols[left], chain.symbols[right]) != parts
        {
            continue;
        }
        chain.join(left, right, step.symbol);
        watch(step);
        if let Some(before) = chain.previous(left) {
            offer(&chain, &mut queue, before);
        }
        offer(&chain, &mut queue, left);
    }
    chain.into_symbols()
}

/// A merge that was possible when it was queued.
struct Candidate<S, P> {
    /// What the two were.
    parts: (S, S),
    step: Step<S, P>,
}

impl<S, P: Ord> Ord for Candidate<S, P> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let (a, b) = (&self.step, &other.step);
        a.priority.cmp(&b.priority).then_with(|| b.left.cmp(&a.left))
    }
}

impl<S, P: Ord> PartialOrd for Candidate<S, P> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<S, P: Ord> PartialEq for Candidate<S, P> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<S, P: Ord> Eq for Candidate<S, P> {}

/// Symbols as a doubly linked list in one piece of memory: joining two is O(1), and places keep the order
/// of the text.
struct Chain<S> {
    symbols: Vec<S>,
    /// Place of the neighbour on each side; the number of places for none. A dead place points to itself.
    before: Vec<usize>,
    after: Vec<usize>,
}

impl<S: Copy> Chain<S> {
    fn new(symbols: Vec<S>) -> Self {
        let length = symbols.len();
        let before = (0..length).map(|place| place.checked_sub(1).unwrap_or(length)).collect();
        Self { symbols, before, after: (1..=length).collect() }
    }

    fn alive(&self, place: usize) -> bool {
        self.after[place] != place
    }

    fn next(&self, place: usize) -> Option<usize> {
        Some(self.after[place]).filter(|&place| place < self.symbols.len())
    }

    fn previous(&self, place: usize) -> Option<usize> {
        Some(self.before[place]).filter(|&place| place < self.symbols.len())
    }

    fn join(&mut self, left: usize, right: usize, symbol: S) {
        self.symbols[left] = symbol;
        self.after[left] = self.after[right];
        if let Some(next) = self.next(left) {
            self.before[next] = left;
        }
        self.after[right] = right;
    }

    fn into_symbols(self) -> Vec<S> {
        (0..self.symbols.len()).filter(|&place| self.alive(place)).map(|place| self.symbols[place]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cmp::Reverse;

    /// Two symbols become the sum of their numbers, which is allowed by a table; the rank is its place there.
    fn join(table: &[u32]) -> impl Fn(u32, u32) -> Option<(Reverse<usize>, u32)> {
        let table = table.to_vec();
        move |a, b| table.iter().position(|&sum| sum == a + b).map(|rank| (Reverse(rank), a + b))
    }

    #[test]
    fn the_first_in_order_is_merged_first_then_the_leftmost() {
        assert_eq!(merge(vec![1, 2, 1], join(&[3]), |_| ()), [3, 1]);
        assert_eq!(merge(vec![1, 2, 4], join(&[6, 3]), |_| ()), [1, 6]);
        assert_eq!(merge(vec![1, 2, 4], join(&[6, 3, 7]), |_| ()), [7]);
        assert_eq!(merge(Vec::new(), join(&[3]), |_| ()), [0; 0]);
    }

    proptest! {
        #[test]
        fn merging_gives_what_the_slow_loop_gives(table in prop::collection::vec(2_u32..12, 0..8), mut symbols in prop::collection::vec(1_u32..4, 0..24)) {
            let mut watched: Vec<Option<u32>> = symbols.iter().copied().map(Some).collect();
            let found = merge(symbols.clone(), join(&table), |step| {
                watched[step.left] = Some(step.symbol);
                watched[step.right] = None;
            });
            let join = join(&table);
            while let Some((_, Reverse(at), sum)) = (1..symbols.len())
                .filter_map(|at| join(symbols[at - 1], symbols[at]).map(|(rank, sum)| (rank, Reverse(at), sum)))
                .max()
            {
                symbols[at - 1] = sum;
                symbols.remove(at);
            }
            prop_assert_eq!(&found, &symbols);
            prop_assert_eq!(watched.into_iter().flatten().collect::<Vec<_>>(), symbols);
        }
    }
}
