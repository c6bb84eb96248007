//! The KV cache: every key (turned by RoPE) and value that was computed, layer by layer, so that a decode
//! pass computes one row and reads the rest.

use crate::backend::Backend;
use crate::config::ModelConfig;

/// Keys and values of all layers for the positions 0 .. [`KvCache::len`].
pub struct KvCache<B: Backend> {
    /// For each layer the keys (capacity, G, C) and the values (capacity, G, C).
    layers: Vec<(B::Cache, B::Cache)>,
    capacity: usize,
    len: usize,
    width: usize,
}

impl<B: Backend> KvCache<B> {
    /// An empty cache for a model of this configuration. It takes memory as it is used.
    pub fn new(config: &ModelConfig, backend: &B) -> Self {
        let layer = |_| (backend.new_cache(), backend.new_cache());
        Self { layers: (0..config.layers).map(layer).collect(), capacity: 0, len: 0, width: config.kv_dim() }
    }

    /// Number of positions that are cached.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is cached yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets the positions from `len` on. What they held is written over by what comes next.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Says that the positions below `len` are written now.
    pub(super) fn set_len(&mut self, len: usize) {
        debug_assert!(len <= self.capacity);
        self.len = len;
    }

    /// Makes room for `positions`, at least doubling, so that growing costs a constant for each position.
    pub(super) fn reserve(&mut self, positions: usize, backend: &B) {
        if positions <= self.capacity {
            return;
        }
        let capacity = positions.max(2 * self.capacity);
        for (keys, values) in &mut self.layers {
            backend.grow_cache(keys, capacity * self.width);
            backend.grow_cache(values, capacity * self.width);
        }
        self.capacity = capacity;
    }

    /// The keys and the values of a layer, each (capacity, G, C).
    pub(super) fn layer(&mut self, layer: usize) -> &mut (B::Cache, B::Cache) {
        &mut self.layers[layer]
    }
}
