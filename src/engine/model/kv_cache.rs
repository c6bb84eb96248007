//! The KV cache: every key (turned by RoPE) and value that was computed, layer by layer, so that a decode
//! pass computes one row and reads the rest.
//!
//! A cache belongs to one sequence. Several in a batch have one each, so that a sequence that ends leaves and gives
//! its memory back while the others go on.

use std::ops::Range;

use crate::backend::Backend;
use llama_trace_core::config::{CacheDtype, ModelConfig};
use llama_trace_core::error::{Error, Result};

/// Keys and values of all layers for the positions 0 .. [`KvCache::len`] of one sequence.
pub struct KvCache<B: Backend> {
    /// For each layer the keys (capacity, G, C) and the values (capacity, G, C).
    layers: Vec<(B::Cache, B::Cache)>,
    capacity: usize,
    len: usize,
}

/// What one position of a cache holds: the keys and the values of each layer, (G, C) each, as they were written.
pub struct CacheRow<B: Backend>(Vec<(B::Cache, B::Cache)>);

/// The part of the free memory that a cache may take whose text may grow as long as it will: the buffers of a pass
/// and what is recorded need room beside it.
const SHARE: usize = 2;

impl<B: Backend> KvCache<B> {
    /// An empty cache with room for `tokens` tokens of a model of this configuration.
    ///
    /// # Errors
    /// [`Error::Prompt`] where there is no memory for it, with the bytes that all of it takes.
    pub fn with_capacity(config: &ModelConfig, backend: &B, tokens: usize) -> Result<Self> {
        let count = tokens.saturating_mul(config.kv_dim());
        let layer = |_| Ok((backend.new_cache(count)?, backend.new_cache(count)?));
        let layers = (0..config.layers).map(layer).collect::<Result<_>>().map_err(|error: Error| {
            if error.says_next() {
                return error;
            }
            error
                .at(format!("the KV cache for {tokens} tokens"))
                .expected(format!("room for {} bytes", bytes(config, backend.cache_dtype(), tokens)))
                .next("use a shorter prompt, draw fewer tokens (-n), or end other programs")
        })?;
        Ok(Self { layers, capacity: tokens, len: 0 })
    }

    /// An empty cache for a text of which nobody knows how long it gets: with room for the model's context, or for
    /// as much of it as memory is free.
    ///
    /// # Errors
    /// As [`KvCache::with_capacity`]'s, where there is not even room for one token.
    pub fn as_long_as_fits(config: &ModelConfig, backend: &B) -> Result<Self> {
        let mut tokens = Self::part_of_free(config, backend, 1);
        loop {
            match Self::with_capacity(config, backend, tokens) {
                // The system may count in another way.
                Err(_) if tokens > 1 => tokens /= 2,
                other => return other,
            }
        }
    }

    /// How many tokens each of `caches` caches may hold, where all may grow as long as memory is free: the model's
    /// context at most, and at least one.
    pub fn part_of_free(config: &ModelConfig, backend: &B, caches: usize) -> usize {
        let token = bytes(config, backend.cache_dtype(), 1).max(1);
        let free = backend.free_memory().map_or(usize::MAX, |bytes| bytes / SHARE / token);
        config.context.min(free / caches.max(1)).max(1)
    }

    /// Number of positions that are cached.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is cached yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many positions there is room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Forgets the positions from `len` on. What they held is written over by what comes next.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Says that the positions below `len` are written now.
    pub(super) fn set_len(&mut self, len: usize) {
        self.len = len;
    }

    /// A copy of what `positions` hold of a model of this configuration, one by one.
    ///
    /// # Errors
    /// Where there is no memory for it.
    pub fn rows(
        &self,
        config: &ModelConfig,
        backend: &B,
        positions: Range<usize>,
    ) -> Result<Vec<CacheRow<B>>> {
        let width = config.kv_dim();
        let row = |position: usize| {
            let range = position * width..(position + 1) * width;
            let layer = |(keys, values): &(B::Cache, B::Cache)| {
                Ok((backend.take_cache(keys, range.clone())?, backend.take_cache(values, range.clone())?))
            };
            Ok(CacheRow(self.layers.iter().map(layer).collect::<Result<_>>()?))
        };
        positions.map(row).collect()
    }

    /// Has the positions from `from` on hold `rows`, and nothing follow those.
    ///
    /// # Errors
    /// Where the backend fails.
    pub fn put(
        &mut self,
        config: &ModelConfig,
        backend: &B,
        from: usize,
        rows: &[CacheRow<B>],
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

    /// [`check`] of its room.
    ///
    /// # Errors
    /// [`Error::Prompt`] where there is none for the positions below `len`.
    pub fn check(&self, len: usize) -> Result<()> {
        check(len, self.capacity)
    }

    /// The keys and the values of a layer, each (capacity, G, C).
    pub(super) fn layer(&mut self, layer: usize) -> &mut (B::Cache, B::Cache) {
        &mut self.layers[layer]
    }
}

/// Checks that the positions below `len` have room in a cache for `capacity` of them.
///
/// # Errors
/// [`Error::Prompt`] where they have not.
pub fn check(len: usize, capacity: usize) -> Result<()> {
    if len <= capacity {
        return Ok(());
    }
    Err(Error::prompt("the KV cache is full")
        .expected(format!("at most {capacity} tokens, for which it was made"))
        .found(format!("{len} tokens"))
        .next("use a shorter prompt, draw fewer tokens, or give more with --context where the model has it"))
}

/// Bytes that the cache of a model of this configuration takes for `tokens` tokens.
pub fn bytes(config: &ModelConfig, dtype: CacheDtype, tokens: usize) -> usize {
    [2, config.layers, config.kv_dim(), dtype.bytes()].into_iter().fold(tokens, usize::saturating_mul)
}
