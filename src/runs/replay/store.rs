//! Frames in memory, all of them within one budget: the inputs of some layers are kept for good, everything
//! else until the room is needed. A frame that was let go is made again when somebody asks for it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use llama_trace_core::trace::{Block, Fork, Frame, Region, Run, Site};

/// Shares of the budget. A frame or a block of one has at most this part of it: then what is on the screen, what is
/// summed up meanwhile and what one frame is derived from have room side by side.
const FRAME: usize = 16;
/// What the inputs of layers that are kept for good may take together: with all of them any stage takes the time of its
/// layer.
const INPUTS: usize = 2;
/// What one run of a layer may keep besides what was asked for.
const BY_THE_WAY: usize = 4;
/// What the rows of the KV cache may take that are another branch's, and lie beside it.
const BRANCHES: usize = 4;

/// The frames of a live run.
#[derive(Debug)]
pub(super) struct Store {
    budget: usize,
    kept: HashMap<Site, Arc<Frame>>,
    cached: HashMap<Site, Vec<Cached>>,
    /// Where the branches of each sequence part: what is before is held once.
    forks: HashMap<(usize, Run), Fork>,
    /// Frames that somebody still looks at, though they are not here any more.
    abroad: Vec<(Weak<Frame>, usize)>,
    /// Bytes of frames that are being put together.
    reserved: usize,
    /// Bytes in `kept` and `cached`.
    here: usize,
    most: usize,
    clock: u64,
}

#[derive(Debug)]
struct Cached {
    block: Block,
    used: u64,
}

impl Store {
    /// A store for `budget` bytes.
    pub(super) fn new(budget: usize) -> Self {
        Self {
            budget,
            kept: HashMap::new(),
            cached: HashMap::new(),
            forks: HashMap::new(),
            abroad: Vec::new(),
            reserved: 0,
            here: 0,
            most: 0,
            clock: 0,
        }
    }

    /// The most bytes that a frame may have; a larger stage is made in blocks.
    pub(super) fn largest(&self) -> usize {
        self.budget / FRAME
    }

    /// The most bytes that the inputs of layers that are kept for good may have together.
    pub(super) fn inputs(&self) -> usize {
        self.budget / INPUTS
    }

    /// The most bytes that a run of a layer may keep besides what was asked for.
    pub(super) fn by_the_way(&self) -> usize {
        self.budget / BY_THE_WAY
    }

    /// The most bytes that rows of the KV cache may take that lie beside it.
    pub(super) fn branches(&self) -> usize {
        self.budget / BRANCHES
    }

    /// Says that `run` of a sequence is a branch.
    pub(super) fn part(&mut self, sequence: usize, run: Run, fork: Fork) {
        self.forks.insert((sequence, run), fork);
    }

    /// The site whose value that of `site` is: that of the run that a branch parts from, where both have it.
    pub(super) fn own(&self, mut site: Site) -> Site {
        while let Some(fork) = self.forks.get(&(site.sequence, site.run)).filter(|fork| fork.shares(site)) {
            site.run = fork.of;
        }
        site
    }

    /// The most bytes that were ever held at the same time.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// A block of `site` that has what is in `region`, if there is one.
    pub(super) fn get(&mut self, site: Site, region: &Region) -> Option<Block> {
        let site = self.own(site);
        if let Some(frame) = self.kept.get(&site) {
            return Some(Block::whole(Arc::clone(frame)));
        }
        self.clock += 1;
        let cached = self.cached.get_mut(&site)?.iter_mut().find(|one| one.block.region.covers(region))?;
        cached.used = self.clock;
        Some(cached.block.clone())
    }

    /// The whole frame of `site`, if it is here.
    pub(super) fn whole(&mut self, site: Site) -> Option<Arc<Frame>> {
        let site = self.own(site);
        if let Some(frame) = self.kept.get(&site) {
            return Some(Arc::clone(frame));
        }
        self.clock += 1;
        let cached = self.cached.get_mut(&site)?.iter_mut().find(|one| one.block.is_whole())?;
        cached.used = self.clock;
        Some(Arc::clone(&cached.block.frame))
    }

    /// Makes room for `bytes` that are about to be put together. They count until they are given back with
    /// [`Store::release`], and what is put into the store meanwhile should be taken off them.
    pub(super) fn reserve(&mut self, bytes: usize) {
        self.reserved += bytes;
        self.abroad.retain(|(frame, _)| frame.strong_count() > 0);
        while self.held() > self.budget {
            // Letting go of what somebody looks at frees nothing.
            let all = self.cached.iter().flat_map(|(site, all)| all.iter().map(move |one| (site, one)));
            let oldest = all
                .min_by_key(|(_, one)| (Arc::strong_count(&one.block.frame) > 1, one.used))
                .map(|(site, one)| (*site, one.used));
            let Some((site, used)) = oldest else { break };
            self.evict(site, |one| one.used == used);
        }
        self.most = self.most.max(self.held());
    }

    /// Gives back `bytes` that were reserved.
    pub(super) fn release(&mut self, bytes: usize) {
        self.reserved -= bytes;
    }

    /// Keeps `frame` for good: others are made from it.
    pub(super) fn keep(&mut self, frame: Frame) {
        self.reserve(frame.bytes());
        self.reserved -= frame.bytes();
        self.here += frame.bytes();
        self.kept.insert(self.own(frame.site), Arc::new(frame));
    }

    /// Keeps `block` while there is room; what was used longest ago goes first.
    pub(super) fn cache(&mut self, block: Block) {
        let (site, bytes) = (self.own(block.frame.site), block.frame.bytes());
        self.reserve(bytes);
        self.reserved -= bytes;
        self.here += bytes;
        self.clock += 1;
        // What the new block has too is not needed twice.
        self.evict(site, |old| block.region.covers(&old.block.region));
        self.cached.entry(site).or_default().push(Cached { block, used: self.clock });
    }

    fn evict(&mut self, site: Site, goes: impl Fn(&Cached) -> bool) {
        let Some(all) = self.cached.get_mut(&site) else { return };
        for gone in all.extract_if(.., |one| goes(one)) {
            let bytes = gone.block.frame.bytes();
            self.here -= bytes;
            if Arc::strong_count(&gone.block.frame) > 1 {
                self.abroad.push((Arc::downgrade(&gone.block.frame), bytes));
            }
        }
        if all.is_empty() {
            self.cached.remove(&site);
        }
    }

    fn held(&self) -> usize {
        let abroad = self.abroad.iter().filter(|(frame, _)| frame.strong_count() > 0);
        self.here + self.reserved + abroad.map(|(_, bytes)| bytes).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{ArrayD, IxDyn};

    use super::*;
    use llama_trace_core::trace::{FrameData, Stage};

    const BUDGET: usize = 1 << 10;

    fn site(layer: usize) -> Site {
        Site::layer(0, layer, Stage::Qk)
    }

    fn frame(layer: usize) -> Frame {
        let data = FrameData::F32(ArrayD::zeros(IxDyn(&[BUDGET / 8])));
        Frame { site: site(layer), axes: &[], data }
    }

    fn cache(store: &mut Store, layer: usize) {
        store.cache(Block::whole(Arc::new(frame(layer))));
    }

    #[test]
    fn the_frame_used_longest_ago_makes_room() {
        let mut store = Store::new(BUDGET);
        cache(&mut store, 0);
        cache(&mut store, 1);
        assert!(store.whole(site(0)).is_some());
        cache(&mut store, 2);
        assert!(store.whole(site(1)).is_none(), "1 was used before 0");
        assert!(store.whole(site(0)).is_some() && store.whole(site(2)).is_some());
        assert_eq!(store.most(), BUDGET);
    }

    #[test]
    fn what_somebody_looks_at_counts_until_nobody_does() {
        let mut store = Store::new(BUDGET);
        cache(&mut store, 0);
        let looked_at = store.whole(site(0));
        cache(&mut store, 1);
        cache(&mut store, 2);
        assert!(store.whole(site(1)).is_none() && store.whole(site(0)).is_some(), "0 would free nothing");
        store.reserve(BUDGET / 2);
        assert!(store.whole(site(2)).is_none());
        store.release(BUDGET / 2);
        assert_eq!(store.held(), BUDGET / 2);
        drop(looked_at);
        store.keep(frame(3));
        cache(&mut store, 4);
        assert!(store.whole(site(0)).is_none() && store.whole(site(3)).is_some());
        assert_eq!((store.held(), store.most()), (BUDGET, BUDGET));
    }
}
