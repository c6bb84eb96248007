//! A cache of frames within one memory budget. The inputs of some layers are kept permanently, other frames until the
//! memory is needed. An evicted frame is computed again on demand.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use llama_trace_core::trace::{Block, Fork, Frame, Region, Run, Site};

/// Divisor of the budget for the largest frame or block. This leaves room for the frames on the screen, the frames
/// being summarised and the inputs of a derivation, all at the same time.
const FRAME: usize = 16;
/// Divisor of the budget for the permanently kept layer inputs. With all inputs kept, any stage takes the time of one
/// layer.
const INPUTS: usize = 2;
/// Divisor of the budget for additional frames of one layer run.
const EXTRA: usize = 4;
/// Divisor of the budget for KV cache rows of other branches, which are stored outside the cache.
const BRANCHES: usize = 4;

/// The frames of a live run.
#[derive(Debug)]
pub(super) struct Store {
    budget: usize,
    kept: HashMap<Site, Arc<Frame>>,
    cached: HashMap<Site, Vec<Cached>>,
    /// The start of the branches of each sequence; shared passes are stored once.
    forks: HashMap<(usize, Run), Fork>,
    /// Evicted frames that are still in use, with their size.
    evicted: Vec<(Weak<Frame>, usize)>,
    /// Bytes of frames under construction.
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
            evicted: Vec::new(),
            reserved: 0,
            here: 0,
            most: 0,
            clock: 0,
        }
    }

    /// The limit of all frames together, in bytes.
    pub(super) fn budget(&self) -> usize {
        self.budget
    }

    /// The size limit of a frame in bytes. A larger stage is computed in blocks.
    pub(super) fn largest(&self) -> usize {
        self.budget / FRAME
    }

    /// The limit of the permanently kept layer inputs together, in bytes.
    pub(super) fn inputs(&self) -> usize {
        self.budget / INPUTS
    }

    /// The limit of additional frames of a layer run, in bytes.
    pub(super) fn extra(&self) -> usize {
        self.budget / EXTRA
    }

    /// The limit of KV cache rows outside the cache, in bytes.
    pub(super) fn branches(&self) -> usize {
        self.budget / BRANCHES
    }

    /// Registers `run` of a sequence as a branch.
    pub(super) fn part(&mut self, sequence: usize, run: Run, fork: Fork) {
        self.forks.insert((sequence, run), fork);
    }

    /// The site that stores the value of `site`. A pass that a branch shares belongs to the run it branches from.
    pub(super) fn own(&self, mut site: Site) -> Site {
        while let Some(fork) = self.forks.get(&(site.sequence, site.run)).filter(|fork| fork.shares(site)) {
            site.run = fork.of;
        }
        site
    }

    /// The largest number of bytes that were held at once.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// A block of `site` that contains `region`, if there is one.
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

    /// The whole frame of `site`, if it is stored.
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

    /// Makes room for `bytes` of frames under construction. The bytes count towards the budget until
    /// [`Store::release`]. The caller releases the bytes of each frame that it stores meanwhile.
    pub(super) fn reserve(&mut self, bytes: usize) {
        self.reserved += bytes;
        self.evicted.retain(|(frame, _)| frame.strong_count() > 0);
        while self.held() > self.budget {
            // Evicting a frame that is in use frees nothing.
            let all = self.cached.iter().flat_map(|(site, all)| all.iter().map(move |one| (site, one)));
            let oldest = all
                .min_by_key(|(_, one)| (Arc::strong_count(&one.block.frame) > 1, one.used))
                .map(|(site, one)| (*site, one.used));
            let Some((site, used)) = oldest else { break };
            self.evict(site, |one| one.used == used);
        }
        self.most = self.most.max(self.held());
    }

    /// Releases `bytes` of a reservation.
    pub(super) fn release(&mut self, bytes: usize) {
        self.reserved -= bytes;
    }

    /// Keeps `frame` permanently; other frames are computed from it.
    pub(super) fn keep(&mut self, frame: Frame) {
        self.reserve(frame.bytes());
        self.reserved -= frame.bytes();
        self.here += frame.bytes();
        self.kept.insert(self.own(frame.site), Arc::new(frame));
    }

    /// Keeps `block` while there is room. The least recently used blocks are evicted first.
    pub(super) fn cache(&mut self, block: Block) {
        let (site, bytes) = (self.own(block.frame.site), block.frame.bytes());
        self.reserve(bytes);
        self.reserved -= bytes;
        self.here += bytes;
        self.clock += 1;
        // Smaller blocks inside the new one are no longer needed.
        self.evict(site, |old| block.region.covers(&old.block.region));
        self.cached.entry(site).or_default().push(Cached { block, used: self.clock });
    }

    fn evict(&mut self, site: Site, goes: impl Fn(&Cached) -> bool) {
        let Some(all) = self.cached.get_mut(&site) else { return };
        for gone in all.extract_if(.., |one| goes(one)) {
            let bytes = gone.block.frame.bytes();
            self.here -= bytes;
            if Arc::strong_count(&gone.block.frame) > 1 {
                self.evicted.push((Arc::downgrade(&gone.block.frame), bytes));
            }
        }
        if all.is_empty() {
            self.cached.remove(&site);
        }
    }

    fn held(&self) -> usize {
        let evicted = self.evicted.iter().filter(|(frame, _)| frame.strong_count() > 0);
        self.here + self.reserved + evicted.map(|(_, bytes)| bytes).sum::<usize>()
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
