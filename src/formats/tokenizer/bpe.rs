//! Byte-pair encoding (Sennrich, Haddow and Birch, 2016): the loop that all BPE tokenizers share. Of all adjacent pairs
//! that may be merged, the pair with the highest priority is merged, until no pair is left.
//!
//! A queue holds all possible merges, so a text of n symbols takes n·log n steps, not n².

use std::collections::BinaryHeap;

/// One executed merge.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step<S, P> {
    /// The position of the left symbol among the initial symbols. The merged symbol takes this position.
    pub(super) left: usize,
    /// The position of the right symbol, which is removed.
    pub(super) right: usize,
    /// The merged symbol.
    pub(super) symbol: S,
    /// The priority of the merge.
    pub(super) priority: P,
}

/// Merges adjacent `symbols`: the highest priority first, and of equal priorities the leftmost pair. `join` returns the
/// priority and the merged symbol of a pair, if it may be merged. `watch` receives each executed merge.
///
/// There are fewer than 2³² symbols. A text may have millions of them, and positions of four bytes take half the memory
/// of positions of eight.
pub(super) fn merge<S: Copy, P: Copy + Ord>(
    symbols: Vec<S>,
    mut join: impl FnMut(S, S) -> Option<(P, S)>,
    mut watch: impl FnMut(Step<S, P>),
) -> Vec<S> {
    let mut chain = Chain::new(symbols);
    // The queue never has more entries than there were pairs at the beginning: each merge removes a pair, and stale
    // entries are dropped when the queue is full.
    let mut queue = BinaryHeap::with_capacity(chain.symbols.len());
    let mut offer = |chain: &Chain<S>, queue: &mut BinaryHeap<Candidate<S, P>>, left: usize| {
        let Some(right) = chain.next(left) else { return };
        if let Some((priority, symbol)) = join(chain.symbols[left], chain.symbols[right]) {
            if queue.len() == queue.capacity() {
                queue.retain(|candidate| chain.pair(candidate).is_some());
            }
            queue.push(Candidate { left: left as u32, end: chain.after[right], symbol, priority });
        }
    };
    for left in 0..chain.symbols.len() {
        offer(&chain, &mut queue, left);
    }
    while let Some(candidate) = queue.pop() {
        let Some((left, right)) = chain.pair(&candidate) else { continue };
        let Candidate { symbol, priority, .. } = candidate;
        chain.join(left, right, symbol);
        watch(Step { left, right, symbol, priority });
        if let Some(before) = chain.previous(left) {
            offer(&chain, &mut queue, before);
        }
        offer(&chain, &mut queue, left);
    }
    drop(queue);
    chain.into_symbols()
}

/// A merge that was possible when it was queued.
struct Candidate<S, P> {
    /// The position of the left symbol.
    left: u32,
    /// The position after the right symbol.
    end: u32,
    symbol: S,
    priority: P,
}

impl<S, P: Ord> Ord for Candidate<S, P> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.priority.cmp(&other.priority).then_with(|| other.left.cmp(&self.left))
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

/// Symbols as a doubly linked list in contiguous memory. Merging two is O(1), and positions keep the order of the text.
struct Chain<S> {
    symbols: Vec<S>,
    /// The position of the neighbour on each side, or the number of positions if there is none. A removed position
    /// points to itself.
    before: Vec<u32>,
    after: Vec<u32>,
}

impl<S: Copy> Chain<S> {
    fn new(symbols: Vec<S>) -> Self {
        let length = symbols.len() as u32;
        let before = (0..length).map(|place| place.checked_sub(1).unwrap_or(length)).collect();
        Self { symbols, before, after: (1..=length).collect() }
    }

    fn alive(&self, place: usize) -> bool {
        self.after[place] as usize != place
    }

    fn next(&self, place: usize) -> Option<usize> {
        Some(self.after[place] as usize).filter(|&place| place < self.symbols.len())
    }

    fn previous(&self, place: usize) -> Option<usize> {
        Some(self.before[place] as usize).filter(|&place| place < self.symbols.len())
    }

    /// The two symbols of a merge. `None` if the merge is stale: one of the two symbols has since been merged with
    /// another neighbour, which changed its end.
    fn pair<P>(&self, candidate: &Candidate<S, P>) -> Option<(usize, usize)> {
        let left = candidate.left as usize;
        let right =
            self.next(left).filter(|&right| self.alive(left) && self.after[right] == candidate.end)?;
        Some((left, right))
    }

    fn join(&mut self, left: usize, right: usize, symbol: S) {
        self.symbols[left] = symbol;
        self.after[left] = self.after[right];
        if let Some(next) = self.next(left) {
            self.before[next] = left as u32;
        }
        self.after[right] = right as u32;
    }

    fn into_symbols(self) -> Vec<S> {
        let Self { mut symbols, after, .. } = self;
        let mut places = after.iter().zip(0..);
        symbols.retain(|_| places.next().is_some_and(|(after, place)| *after != place));
        symbols
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cmp::Reverse;

    /// Two symbols become their sum, if the sum is in the table. The rank is its position there.
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
