//! The KV cache: every key (after RoPE) and value that was computed, layer by layer. A decode pass computes one new row
//! and reads the rest.
//!
//! Each sequence has its own cache. A sequence that ends therefore leaves the batch and frees its memory while the
//! others continue.

use std::ops::Range;

use crate::backend::{Backend, Cache};
use llama_trace_core::config::{CacheDtype, ModelConfig};
use llama_trace_core::error::{Error, Result};

/// Keys and values of all layers for the positions 0 .. [`KvCache::len`] of one sequence.
pub struct KvCache {
    /// For each layer the keys (capacity, G, C) and the values (capacity, G, C).
    layers: Vec<(Cache, Cache)>,
    capacity: usize,
    len: usize,
}

/// The cache contents of one position: for each layer its keys (G, C) and its values (G, C), as they were written.
pub struct CacheRow(Vec<(Cache, Cache)>);

/// A cache for a text of unknown length takes at most the free memory divided by this number. The rest is for the
/// buffers of a pass and for recordings.
const SHARE: usize = 2;

impl KvCache {
    /// Creates an empty cache with room for `tokens` tokens of a model with this configuration.
    ///
    /// # Errors
    /// Returns [`Error::Prompt`] with the number of bytes needed if there is not enough memory.
    pub fn with_capacity(config: &ModelConfig, backend: &dyn Backend, tokens: usize) -> Result<Self> {
        let count = tokens.saturating_mul(config.kv_dim());
        let layer = |_| Ok((backend.new_cache(count)?, backend.new_cache(count)?));
        let layers = (0..config.layers).map(layer).collect::<Result<_>>().map_err(|error: Error| {
            if error.says_next() {
                return error;
            }
            error
                .at(format!("the KV cache for {tokens} tokens"))
                .expected(format!("room for {} bytes", bytes(config, backend.cache_dtype(), tokens)))
                .next("use a shorter prompt, generate fewer tokens (-n), or end other programs")
        })?;
        Ok(Self { layers, capacity: tokens, len: 0 })
    }

    /// Creates an empty cache for a text of unknown length. Its capacity is the model's context, or less if the free
    /// memory is too small for that.
    ///
    /// # Errors
    /// The errors of [`KvCache::with_capacity`], if there is not even room for one token.
    pub fn as_long_as_fits(config: &ModelConfig, backend: &dyn Backend) -> Result<Self> {
        let mut tokens = Self::part_of_free(config, backend, 1);
        loop {
            match Self::with_capacity(config, backend, tokens) {
                // The system may count free memory differently, so this can fail. Then try half as many tokens.
                Err(_) if tokens > 1 => tokens /= 2,
                other => return other,
            }
        }
    }

    /// How many tokens each of `caches` caches may hold if all grow until the free memory is used: at most the model's
    /// context, at least one.
    pub fn part_of_free(config: &ModelConfig, backend: &dyn Backend, caches: usize) -> usize {
        let token = bytes(config, backend.cache_dtype(), 1).max(1);
        let free = backend.free_memory().map_or(usize::MAX, |bytes| bytes / SHARE / token);
        config.context.min(free / caches.max(1)).max(1)
    }

    /// The number of cached positions.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is cached yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The maximum number of positions.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Removes the positions from `len` on. The next pass overwrites their contents.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Marks the positions below `len` as written.
    pub(super) fn set_len(&mut self, len: usize) {
        self.len = len;
    }

    /// Copies the contents of `positions`, one row for each position.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    pub fn rows(
        &self,
        config: &ModelConfig,
        backend: &dyn Backend,
        positions: Range<usize>,
    ) -> Result<Vec<CacheRow>> {
        let width = config.kv_dim();
        let row = |position: usize| {
            let range = position * width..(position + 1) * width;
            let layer = |(keys, values): &(Cache, Cache)| {
                Ok((backend.take_cache(keys, range.clone())?, backend.take_cache(values, range.clone())?))
            };
            Ok(CacheRow(self.layers.iter().map(layer).collect::<Result<_>>()?))
        };
        positions.map(row).collect()
    }

    /// Writes `rows` to the positions from `from` on and ends the cache after them.
    ///
    /// # Errors
    /// Returns an error if the backend fails.
    pub fn put(
        &mut self,
        config: &ModelConfig,
        backend: &dyn Backend,
        from: usize,
        rows: &[CacheRow],
    ) -> Result<()> {
        let width = config.kv_dim();
        for (position, CacheRow(row)) in (from..).zip(rows) {
            for ((keys, values), (of_keys, of_values)) in self.layers.iter_mut().zip(row) {
                backend.put_cache(of_keys, position * width, keys)?;
                backend.put_cache(of_values, position * width, values)?;
            }
        }
        self.len = from + rows.len();
        Ok(())
    }

    /// Copies `positions` of `from`, bit for bit, and ends the cache after them.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    pub fn copy(
        &mut self,
        config: &ModelConfig,
        backend: &dyn Backend,
        from: &Self,
        positions: Range<usize>,
    ) -> Result<()> {
        let width = config.kv_dim();
        let values = positions.start * width..positions.end * width;
        for ((keys, values_of), (from_keys, from_values)) in self.layers.iter_mut().zip(&from.layers) {
            for (to, from) in [(keys, from_keys), (values_of, from_values)] {
                backend.put_cache(&backend.take_cache(from, values.clone())?, values.start, to)?;
            }
        }
        self.len = positions.end;
        Ok(())
    }

    /// Calls [`check`] with the capacity of this cache.
    ///
    /// # Errors
    /// Returns [`Error::Prompt`] if the positions below `len` do not fit.
    pub fn check(&self, len: usize) -> Result<()> {
        check(len, self.capacity)
    }

    /// The keys and the values of a layer, each (capacity, G, C).
    pub(super) fn layer(&mut self, layer: usize) -> &mut (Cache, Cache) {
        &mut self.layers[layer]
    }
}

/// Checks that the positions below `len` fit into a cache of `capacity` positions.
///
/// # Errors
/// Returns [`Error::Prompt`] if they do not.
pub fn check(len: usize, capacity: usize) -> Result<()> {
    if len <= capacity {
        return Ok(());
    }
    Err(Error::prompt("the KV cache is full")
        .expected(format!("at most {capacity} tokens, the size of the cache"))
        .found(format!("{len} tokens"))
        .next(
            "use a shorter prompt, generate fewer tokens, or give a larger --context if the model allows it",
        ))
}

/// The size in bytes of a cache for `tokens` tokens of a model with this configuration.
pub fn bytes(config: &ModelConfig, dtype: CacheDtype, tokens: usize) -> usize {
    [2, config.layers, config.kv_dim(), dtype.bytes()].into_iter().fold(tokens, usize::saturating_mul)
}
