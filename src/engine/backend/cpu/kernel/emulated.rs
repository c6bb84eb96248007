//! Emulation of instructions that this processor does not have, to test their kernels too. AVX-VNNI is emulated on
//! processors with AVX2. AMX is emulated on processors with AVX-512 and VNNI, because the other loops of its kernel use
//! these. The emulation runs only in a separate process, which runs the kernels' tests once more. In other processes,
//! such an instruction remains a fault.

#[cfg(all(test, target_os = "linux"))]
pub(super) mod by_hand;

/// Whether this process emulates instructions. The program and other tests do not.
pub(super) fn on() -> bool {
    #[cfg(all(test, target_os = "linux"))]
    return by_hand::on();
    #[cfg(not(all(test, target_os = "linux")))]
    false
}
