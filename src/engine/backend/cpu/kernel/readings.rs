//! The orders in which a kernel can read weights, and the line of the processor table that selects one.

use super::Kernel;
#[cfg(target_arch = "x86_64")]
use super::bf16_unit;
use super::processor::Processor;
#[cfg(target_arch = "x86_64")]
use super::processor::Reading;
use llama_trace_core::config::Precision;

impl Kernel {
    /// Returns the same kernel with each order in which it can read weights for products in `precision`. The results
    /// have the same bits with every order.
    pub(in crate::backend::cpu) fn readings(self, precision: Precision) -> Vec<Self> {
        #[cfg(target_arch = "x86_64")]
        if precision.group().is_none() && !self.isa.streams().is_empty() {
            use bf16_unit::Unit;
            let streams = self.isa.streams();
            let of_vectors =
                precision == Precision::Bf16 && matches!(self.bf16, Some(Unit::Avx512Bf16 { .. }));
            let places: &[bool] = if of_vectors { &[false, true] } else { &[self.reading.in_place] };
            let with = |streams: usize, in_place: bool| Self {
                reading: Reading { streams, in_place },
                bf16: self.bf16.map(|unit| if of_vectors { Unit::Avx512Bf16 { in_place } } else { unit }),
                ..self
            };
            let all =
                streams.iter().flat_map(|&streams| places.iter().map(move |&place| with(streams, place)));
            return all.collect();
        }
        let _ = precision;
        vec![self]
    }

    /// Returns the kind of this processor, and the line of the processor table that makes this kernel its default.
    pub(in crate::backend::cpu) fn table_line(self) -> Option<(String, String)> {
        let processor = Processor::here()?;
        Some((processor.to_string(), processor.line(self.name(), self.reading)))
    }

    /// Returns a description of how the kernel reads weights.
    pub(in crate::backend::cpu) fn reading(self) -> String {
        let copied = "";
        #[cfg(target_arch = "x86_64")]
        let copied = match self.bf16 {
            Some(bf16_unit::Unit::Avx512Bf16 { in_place: true }) => ", in place",
            Some(bf16_unit::Unit::Avx512Bf16 { in_place: false }) => ", copied",
            _ => copied,
        };
        format!("{} at once{copied}", self.reading.streams)
    }
}
