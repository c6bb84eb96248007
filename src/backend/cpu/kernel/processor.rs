//! The kernel that each kind of processor runs unless told otherwise: what `llama-trace bench --tune` found fastest there.
//! Nothing is timed when a model is run, so that the same command gives the same bits twice.

use std::fmt;

/// A kind of processor, as it names itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Processor {
    vendor: String,
    family: u32,
    model: u32,
}

/// Vendor, family, model, and the kernel that is fastest there: each line as `bench --tune` prints it. On processors that
/// are not here, it is the first of [`super::Kernel::available`].
const FASTEST: &[(&str, u32, u32, &str)] = &[
    ("AuthenticAMD", 25, 1, "avx2"),
    ("AuthenticAMD", 25, 17, "avx512bf16"),
    ("GenuineIntel", 6, 167, "amx"),
];

impl Processor {
    /// This one, where it tells.
    pub(crate) fn here() -> Option<Self> {
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

    /// The processor whose `cpuid` leaf 1 begins with `signature` (Intel 64 and IA-32 Architectures Software Developer's
    /// Manual, volume 2A, CPUID).
    fn of(vendor: String, signature: u32) -> Self {
        let field = |from: u32, bits: u32| (signature >> from) & ((1 << bits) - 1);
        let (family, model) = (field(8, 4), field(4, 4));
        Self {
            vendor,
            family: if family == 15 { family + field(20, 8) } else { family },
            model: if family == 6 || family == 15 { field(16, 4) << 4 | model } else { model },
        }
    }

    /// The kernel that was found fastest on this kind, where one was measured.
    pub(super) fn fastest(&self) -> Option<&'static str> {
        let kind = (self.vendor.as_str(), self.family, self.model);
        FASTEST.iter().find(|row| (row.0, row.1, row.2) == kind).map(|row| row.3)
    }

    /// The line of the table that makes `kernel` the one that runs on this kind of processor.
    pub(crate) fn line(&self, kernel: &str) -> String {
        format!("(\"{}\", {}, {}, \"{kernel}\")", self.vendor, self.family, self.model)
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
            assert_eq!((processor.fastest(), processor.line(row.3)), (Some(row.3), format!("{row:?}")));
        }
        assert!(Kernel::available().iter().all(|kernel| KERNELS.contains(&kernel.name())));
    }

    #[test]
    fn what_runs_is_what_was_found_fastest_or_else_the_first_that_there_is() {
        let available = Kernel::available();
        let found = Processor::here().and_then(|processor| processor.fastest());
        let expected = available.iter().find(|kernel| Some(kernel.name()) == found).unwrap_or(&available[0]);
        assert_eq!(Kernel::default(), *expected);
        let unknown = Processor { vendor: "none".into(), family: 1, model: 1 };
        assert_eq!(unknown.fastest(), None);
    }
}
