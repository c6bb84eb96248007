//! Instructions that the processor at hand lacks, AMX and AVX-VNNI, so that every unit's bits are tested on every machine
//! with AVX2. Only in a process of its own, which runs the tests of the kernels once more: elsewhere such an instruction is
//! a fault, and nothing is slower than need be.

#[cfg(all(test, target_os = "linux"))]
pub(super) mod by_hand;

/// Whether this process carries them out by hand: in no program, and in no other test.
pub(super) fn on() -> bool {
    #[cfg(all(test, target_os = "linux"))]
    return by_hand::on();
    #[cfg(not(all(test, target_os = "linux")))]
    false
}
