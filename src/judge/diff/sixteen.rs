//! Detects 16-bit caches by their values.

use llama_trace_core::config::CacheDtype;
use llama_trace_core::trace::{Frame, Site, Stage, Values};

/// The 16-bit number type of a cache, if all its values fit one.
pub(super) fn dtype(frame: &Frame) -> Option<CacheDtype> {
    if !matches!(frame.site.stage, Stage::CacheK | Stage::CacheV) {
        return None;
    }
    let mut bits = Bits::default();
    bits.see(frame.values());
    bits.dtype()
}

/// Collects whether all values seen so far fit bfloat16, and whether they fit float16.
pub(super) struct Bits {
    bf16: bool,
    f16: bool,
    any: bool,
}

impl Default for Bits {
    fn default() -> Self {
        Self { bf16: true, f16: true, any: false }
    }
}

impl Bits {
    pub(super) fn see(&mut self, values: Values<'_>) {
        let Values::F32(values) = values else { return };
        self.any |= !values.is_empty();
        self.bf16 = self.bf16 && values.iter().all(|&x| half::bf16::from_f32(x).to_f32() == x);
        self.f16 = self.f16 && values.iter().all(|&x| half::f16::from_f32(x).to_f32() == x);
    }

    /// The type that all values fit.
    pub(super) fn dtype(&self) -> Option<CacheDtype> {
        match (self.any, self.bf16, self.f16) {
            (true, true, _) => Some(CacheDtype::Bf16),
            (true, false, true) => Some(CacheDtype::F16),
            _ => None,
        }
    }
}

/// The note on a cache of B that differs and has fewer bits than declared.
pub(super) fn note(site: Site, dtype: CacheDtype) -> String {
    let name = dtype.name();
    format!(
        "B's {site} has only {name} values (each fits into {name}): if B's cache is {name}, \
         capture.toml should say cache = \"{name}\""
    )
}
