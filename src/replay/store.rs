//! Frames in memory, within a budget: some are kept for good, the others until the room is needed.

use std::collections::HashMap;
use std::sync::Arc;

use crate::trace::{Frame, FrameData, Site};

/// Bytes of frames that can be made again and are kept all the same.
const BUDGET: usize = 512 << 20;

/// The frames of a live run.
#[derive(Debug, Default)]
pub(super) struct Store {
    kept: HashMap<Site, Arc<Frame>>,
    cached: HashMap<Site, (Arc<Frame>, u64)>,
    cached_bytes: usize,
    clock: u64,
}

impl Store {
    /// The frame of `site`, if it is here.
    pub(super) fn get(&mut self, site: Site) -> Option<Arc<Frame>> {
        self.clock += 1;
        if let Some(frame) = self.kept.get(&site) {
            return Some(Arc::clone(frame));
        }
        let (frame, used) = self.cached.get_mut(&site)?;
        *used = self.clock;
        Some(Arc::clone(frame))
    }

    /// Keeps `frame` for good: others are made from it.
    pub(super) fn keep(&mut self, frame: Frame) {
        self.kept.insert(frame.site, Arc::new(frame));
    }

    /// Keeps `frame` while there is room; the frames used longest ago go first, never this one.
    pub(super) fn cache(&mut self, frame: Frame) -> Arc<Frame> {
        self.clock += 1;
        let frame = Arc::new(frame);
        self.cached_bytes += bytes(&frame);
        if let Some((old, _)) = self.cached.insert(frame.site, (Arc::clone(&frame), self.clock)) {
            self.cached_bytes -= bytes(&old);
        }
        while self.cached_bytes > BUDGET && self.cached.len() > 1 {
            let oldest = self.cached.iter().min_by_key(|(_, (_, used))| *used).map(|(site, _)| *site);
            if let Some((old, _)) = oldest.and_then(|site| self.cached.remove(&site)) {
                self.cached_bytes -= bytes(&old);
            }
        }
        frame
    }
}

fn bytes(frame: &Frame) -> usize {
    match &frame.data {
        FrameData::F32(array) => array.len() * 4,
        FrameData::I64(array) => array.len() * 8,
        FrameData::I8(array) => array.len(),
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{ArrayD, IxDyn};

    use super::*;
    use crate::trace::Stage;

    #[test]
    fn the_frame_used_longest_ago_makes_room() {
        let frame = |layer| {
            let data = FrameData::F32(ArrayD::zeros(IxDyn(&[BUDGET / 8])));
            Frame { site: Site::layer(0, layer, Stage::Qk), axes: &[], data }
        };
        let mut store = Store::default();
        let site = |layer| Site::layer(0, layer, Stage::Qk);
        store.cache(frame(0));
        store.cache(frame(1));
        assert!(store.get(site(0)).is_some());
        store.cache(frame(2));
        assert!(store.get(site(1)).is_none(), "1 was used before 0");
        assert!(store.get(site(0)).is_some() && store.get(site(2)).is_some());
    }
}
