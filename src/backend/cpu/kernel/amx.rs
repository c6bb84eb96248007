//! AMX, the tile registers of Intel's server processors since Sapphire Rapids: eight tiles of 16 rows of 64 bytes,
//! and an instruction that adds to 16 × 16 sums the products of 32 bfloat16 values each (Intel 64 and IA-32
//! Architectures Software Developer's Manual, volume 1, chapter 18). Stable Rust has no intrinsics for it, so it is
//! written in assembly.
#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _mm512_loadu_ps, _mm512_storeu_ps, _xgetbv};
use std::marker::PhantomData;
use std::sync::OnceLock;

use super::avx512;
use super::bf16_tiles::{SIDE, TWO_TILES};

/// Whether the processor has bfloat16 tiles, and the system lets this process use them.
pub(super) fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| processor_has_tiles() && system_saves_tiles() && ask_for_tiles())
}

/// What `cpuid` says: leaf 7, EDX bits 22 (AMX-BF16) and 24 (AMX-TILE).
fn processor_has_tiles() -> bool {
    let features = (1 << 22) | (1 << 24);
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & features == features
}

/// Whether the system keeps tiles when it switches from one thread to another: XCR0 bits 17 and 18.
fn system_saves_tiles() -> bool {
    #[target_feature(enable = "xsave")]
    fn enabled() -> u64 {
        // SAFETY: the caller has seen OSXSAVE, without which this instruction does not exist.
        unsafe { _xgetbv(0) }
    }
    let osxsave = __cpuid(1).ecx & (1 << 27) != 0;
    // SAFETY: OSXSAVE says that the processor has XSAVE and that the system has switched it on.
    osxsave && (unsafe { enabled() } >> 17) & 3 == 3
}

/// Asks Linux for the tiles, which it gives to no process that has not asked: for all its threads, for good.
#[cfg(target_os = "linux")]
fn ask_for_tiles() -> bool {
    const ARCH_PRCTL: usize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XFEATURE_XTILEDATA: usize = 18;
    let result: isize;
    // SAFETY: the system call takes two numbers and touches no memory of ours; a kernel that does not know it
    // returns an error. It overwrites rcx and r11, as every system call does.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

/// Other systems are not asked: the tiles stay unused there.
#[cfg(not(target_os = "linux"))]
fn ask_for_tiles() -> bool {
    false
}

/// A thread with its tiles configured. The system saves and restores them from then on, so they are given back
/// when this is dropped.
pub(super) struct Configured(PhantomData<*const ()>);

impl Configured {
    /// Eight tiles of 16 rows of 64 bytes. Only where [`available`].
    pub(super) fn new() -> Self {
        #[repr(C, align(64))]
        struct Configuration {
            palette: u8,
            start_row: u8,
            reserved: [u8; 14],
            row_bytes: [u16; 16],
            rows: [u8; 16],
        }
        let mut configuration =
            Configuration { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        configuration.row_bytes[..8].fill(64);
        configuration.rows[..8].fill(16);
        assert!(available(), "tiles are used where the processor has them");
        // SAFETY: the processor has tiles, as was just checked, and the 64 bytes are a valid configuration of them.
        // No tile holds anything yet that the compiler knows of.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const configuration, options(nostack, readonly)) };
        Self(PhantomData)
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        // SAFETY: the tiles were configured by `new`, on this thread, which a type without Send does not leave.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// See [`super::bf16_gemm::Unit`]. Only while the thread's tiles are [`Configured`].
pub(super) fn sums(weights: &[u16], x: &[u16], parts: usize, sums: &mut [f32; 4 * SIDE * SIDE]) {
    let steps = weights.len() / TWO_TILES;
    assert!(steps > 0 && parts > 0 && x.len() == parts * weights.len());
    // SAFETY: a load reads 16 rows of 64 bytes, 1 KB; two follow one another in each step of `weights`, which is
    // read from the beginning for every part, and of `x`, which has as many steps for each part, as was just
    // checked. The stores write 4 KB, all of `sums`. Tiles 0 to 7 are named as overwritten.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "mov {w}, {weights}",
            "mov {step}, {steps}",
            "3:",
            "tileloadd tmm4, [{w} + {stride}]",
            "tileloadd tmm6, [{x} + {stride}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{w} + {stride} + 1024]",
            "tdpbf16ps tmm1, tmm5, tmm6",
            "tileloadd tmm7, [{x} + {stride} + 1024]",
            "tdpbf16ps tmm2, tmm4, tmm7",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {w}, 2048",
            "add {x}, 2048",
            "dec {step}",
            "jnz 3b",
            "dec {parts}",
            "jnz 2b",
            "tilestored [{sums} + {stride}], tmm0",
            "tilestored [{sums} + {stride} + 1024], tmm1",
            "tilestored [{sums} + {stride} + 2048], tmm2",
            "tilestored [{sums} + {stride} + 3072], tmm3",
            weights = in(reg) weights.as_ptr(),
            x = inout(reg) x.as_ptr() => _,
            sums = in(reg) sums.as_mut_ptr(),
            stride = in(reg) 64_usize,
            steps = in(reg) steps,
            parts = inout(reg) parts => _,
            w = out(reg) _,
            step = out(reg) _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
    // A tile of sums has a weight row in a row; what is asked for has a token in a row.
    for tile in sums.as_chunks_mut::<{ SIDE * SIDE }>().0 {
        // SAFETY: every processor with AMX has AVX-512.
        unsafe { turn(tile) };
    }
}

/// Makes columns of the rows of a tile of sums.
#[target_feature(enable = "avx512f")]
fn turn(tile: &mut [f32; SIDE * SIDE]) {
    let rows = tile.as_mut_ptr();
    // SAFETY: each vector is one of the 16 rows of 16 values.
    unsafe {
        let columns = avx512::transpose(std::array::from_fn(|i| _mm512_loadu_ps(rows.add(i * SIDE))));
        for (i, column) in columns.into_iter().enumerate() {
            _mm512_storeu_ps(rows.add(i * SIDE), column);
        }
    }
}

/// Multiplies and adds tiles of zeros: four tiles, `rounds` times.
pub(super) fn multiply(rounds: usize) -> f32 {
    let _configured = Configured::new();
    // SAFETY: the tiles are configured and hold zeros since; no memory is touched. There is at least one round.
    unsafe {
        asm!(
            "2:",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm5, tmm6",
            "tdpbf16ps tmm2, tmm4, tmm7",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "dec {rounds}",
            "jnz 2b",
            rounds = inout(reg) rounds.max(1) => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            options(nostack, nomem),
        );
    }
    0.0
}
