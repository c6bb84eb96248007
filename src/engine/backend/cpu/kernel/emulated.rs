//! Instructions that the processor at hand lacks, so that the kernels that need them are tested there too: AVX-VNNI where
//! it has AVX2, AMX where it has AVX-512 with VNNI, which that kernel's other loops are. Only in a process of its own,
//! which runs the tests of the kernels once more: elsewhere such an instruction is a fault, and nothing is slower than need
//! be.

#[cfg(all(test, target_os = "linux"))]
pub(super) mod by_hand;

/// Whether this process carries them out by hand: in no program, and in no other test.
pub(super) fn on() -> bool {
    #[cfg(all(test, target_os = "linux"))]
    return by_hand::on();
    #[cfg(not(all(test, target_os = "linux")))]
    false
}
