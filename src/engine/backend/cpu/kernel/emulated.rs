//! Emulation of instructions that this processor lacks, so that their kernels are tested on it too. AVX-VNNI is
//! emulated on processors with AVX2. AMX is emulated on processors with AVX-512 and VNNI, which the other loops of its
//! kernel use. The emulation runs only in a separate process, which runs the kernels' tests once more. In other
//! processes such an instruction stays a fault, and nothing is slowed down.

#[cfg(all(test, target_os = "linux"))]
pub(super) mod by_hand;

/// Whether this process emulates instructions. Programs and other tests do not.
pub(super) fn on() -> bool {
    #[cfg(all(test, target_os = "linux"))]
    return by_hand::on();
    #[cfg(not(all(test, target_os = "linux")))]
    false
}
