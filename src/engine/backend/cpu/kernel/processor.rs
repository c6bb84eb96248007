//! The default kernel of each kind of processor: the one that `llama-trace bench --tune` found fastest there. Nothing
//! is timed when a model runs, so the same command always gives the same bits.

use std::fmt;
use std::sync::OnceLock;

/// A kind of processor, identified by `cpuid`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Processor {
    vendor: String,
    family: u32,
    model: u32,
}

/// The order in which weights are read. It changes the speed, but no bit of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    /// The maximum number of weight rows read side by side in products with one token. If one row is read at a time,
    /// the weights are prefetched in address order. If several rows are read, each part of the activations is loaded
    /// once for all of them.
    pub(super) streams: usize,
    /// Whether AVX512-BF16 multiplies weights in place, also with many tokens. Otherwise the weights are copied first,
    /// because rows at a distance of a power of two would share a few cache lines of a small L1 cache.
    pub(super) in_place: bool,
}

impl Reading {
    /// Returns the fastest order in the table for this processor.
    pub(super) fn here() -> Self {
        static HERE: OnceLock<Reading> = OnceLock::new();
        *HERE.get_or_init(|| {
            let found = Processor::here().and_then(|processor| processor.fastest());
            found.map(|(_, reading)| reading).unwrap_or_default()
        })
    }
}

impl Default for Reading {
    /// Returns the order with which the kernels were developed, on Intel's Cascade Lake.
    fn default() -> Self {
        Self { streams: 4, in_place: false }
    }
}

/// The table: vendor, family, model, the fastest kernel, and its [`Reading`]. `bench --tune` prints such a line. A
/// processor that is not in the table takes the values of its family, if they agree. Otherwise it takes the first of
/// [`super::Kernel::available`] and the default reading.
const FASTEST: &[(&str, u32, u32, &str, usize, bool)] = &[
    ("AuthenticAMD", 25, 1, "avx2", 4, false),
    ("AuthenticAMD", 25, 17, "avx512bf16", 8, false),
    ("AuthenticAMD", 26, 2, "avx512bf16", 1, true),
    ("GenuineIntel", 6, 167, "amx", 8, false),
];

impl Processor {
    /// Returns this machine's processor, if it can be identified.
    pub(super) fn here() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::__cpuid;
            let leaf = __cpuid(0);
            let name = [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes).concat();
            let vendor = String::from_utf8(name).ok()?;
            (leaf.eax >= 1).then(|| Self::of(vendor, __cpuid(1).eax))
        }
        #[cfg(not(target_arch = "x86_64"))]
        None
    }

    /// Returns the processor with this `signature` in `cpuid` leaf 1, EAX (Intel 64 and IA-32 Architectures Software
    /// Developer's Manual, volume 2A, CPUID).
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only kernels for x86-64 use it"))]
    fn of(vendor: String, signature: u32) -> Self {
        let field = |from: u32, bits: u32| (signature >> from) & ((1 << bits) - 1);
        let (family, model) = (field(8, 4), field(4, 4));
        Self {
            vendor,
            family: if family == 15 { family + field(20, 8) } else { family },
            model: if family == 6 || family == 15 { field(16, 4) << 4 | model } else { model },
        }
    }

    /// Returns the fastest measured kernel of this kind of processor and its reading order, if it was measured.
    pub(super) fn fastest(&self) -> Option<(&'static str, Reading)> {
        let mut family =
            FASTEST.iter().filter(|row| (row.0, row.1) == (self.vendor.as_str(), self.family)).peekable();
        let first = family.peek().map(|row| (row.3, row.4, row.5));
        let (mut alike, mut own) = (first, None);
        for row in family {
            let found = Some((row.3, row.4, row.5));
            own = own.or(found.filter(|_| row.2 == self.model));
            alike = alike.filter(|_| found == first);
        }
        own.or(alike).map(|(kernel, streams, in_place)| (kernel, Reading { streams, in_place }))
    }

    /// Returns the line of the table that makes `kernel` with this `reading` the default on this kind of processor.
    pub(super) fn line(&self, kernel: &str, reading: Reading) -> String {
        let (Self { vendor, family, model }, Reading { streams, in_place }) = (self, reading);
        format!("(\"{vendor}\", {family}, {model}, \"{kernel}\", {streams}, {in_place})")
    }
}

impl fmt::Display for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} family {} model {}", self.vendor, self.family, self.model)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Kernel;
    use super::*;

    #[test]
    fn a_signature_is_taken_apart() {
        let of = |signature| Processor::of("GenuineIntel".into(), signature).to_string();
        assert_eq!(of(0x000a_0671), "GenuineIntel family 6 model 167");
        assert_eq!(of(0x00a6_0f12), "GenuineIntel family 25 model 97");
        assert_eq!(of(0x0000_0543), "GenuineIntel family 5 model 4");
    }

    #[test]
    fn the_table_names_each_processor_once_and_kernels_that_there_are() {
        const KERNELS: [&str; 7] =
            ["amx", "avx512bf16", "avx512vnni", "avx512", "avxvnni", "avx2", "portable"];
        for (i, row) in FASTEST.iter().enumerate() {
            assert!(KERNELS.contains(&row.3), "{row:?}");
            assert!(FASTEST[..i].iter().all(|other| (other.0, other.1, other.2) != (row.0, row.1, row.2)));
            let processor = Processor { vendor: row.0.into(), family: row.1, model: row.2 };
            let reading = Reading { streams: row.4, in_place: row.5 };
            assert_eq!(processor.fastest(), Some((row.3, reading)));
            assert_eq!(processor.line(row.3, reading), format!("{row:?}"));
        }
        assert!(Kernel::available().iter().all(|kernel| KERNELS.contains(&kernel.name())));
    }

    #[test]
    fn what_runs_is_what_was_found_fastest_or_else_the_first_that_there_is() {
        let available = Kernel::available();
        let found = Processor::here().and_then(|processor| processor.fastest());
        let named = |kernel: &&Kernel| found.is_some_and(|(name, _)| kernel.name() == name);
        let expected = available.iter().find(named).unwrap_or(&available[0]);
        assert_eq!(Kernel::default(), *expected);
        let reading = found.map(|(_, reading)| reading).unwrap_or_default();
        assert!(available.iter().all(|kernel| kernel.reading == reading));
    }

    #[test]
    fn a_model_that_is_not_in_the_table_goes_by_its_family_where_that_agrees() {
        let of = |vendor: &str, family, model| Processor { vendor: vendor.into(), family, model }.fastest();
        assert_eq!(of("none", 1, 1), None);
        assert_eq!(of("AuthenticAMD", 26, 68), of("AuthenticAMD", 26, 2));
        assert_ne!(of("AuthenticAMD", 25, 1), of("AuthenticAMD", 25, 17));
        assert_eq!(of("AuthenticAMD", 25, 97), None);
    }
}
