//! AMX, the tile registers of Intel's server processors since Sapphire Rapids: eight tiles of 16 rows of 64 bytes,
//! and an instruction that adds to 16 × 16 sums the products of 32 bfloat16 values each (Intel 64 and IA-32
//! Architectures Software Developer's Manual, volume 1, chapter 18). Stable Rust has no intrinsics for it, so it is
//! written in assembly.
#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, __m512i, _xgetbv};
use std::marker::PhantomData;
use std::sync::OnceLock;

use super::bf16_tiles::{Next, Sums, TWO_TILES};
use super::{emulated, vectors};

/// Whether there are bfloat16 tiles. They are emulated only where the processor has the vectors that are used beside them.
pub(super) fn available() -> bool {
    let [_, _, vnni] = vectors::vectors();
    in_the_processor() || emulated::on() && vnni
}

/// Whether the processor has them, and the system lets this process use them.
pub(super) fn in_the_processor() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| processor_has_tiles() && system_saves_tiles() && ask_for_tiles())
}

/// Whether they multiply int8 too: `cpuid` leaf 7, EDX bit 25 (AMX-INT8).
pub(super) fn multiplies_int8() -> bool {
    static MULTIPLIES: OnceLock<bool> = OnceLock::new();
    *MULTIPLIES.get_or_init(|| match in_the_processor() {
        true => __cpuid_count(7, 0).edx & (1 << 25) != 0,
        false => emulated::on(),
    })
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
        Self::with([(16, 64); 8])
    }

    /// Four tiles of sums, and two pairs: 16 tokens of `run` values, and as many of 16 weight rows, four neighbours a
    /// row. Only where [`multiplies_int8`].
    pub(super) fn for_int8(run: usize) -> Self {
        assert!(multiplies_int8() && (run == 16 || run == 32));
        let (x, w) = ((16, run as u16), (run as u8 / 4, 64));
        Self::with([(16, 64), (16, 64), (16, 64), (16, 64), x, w, x, w])
    }

    /// Tiles of so many rows of so many bytes.
    fn with(tiles: [(u8, u16); 8]) -> Self {
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
        for (i, (rows, bytes)) in tiles.into_iter().enumerate() {
            (configuration.rows[i], configuration.row_bytes[i]) = (rows, bytes);
        }
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

/// See [`super::bf16_unit::Unit`]. Only while the thread's tiles are [`Configured`].
///
/// The weights stay in the first-level cache from one call to the next. The activations are loaded by TILELOADDT1, which
/// leaves them in the second: they would push the weights out of the first.
pub(super) fn sums(weights: &[u16], x: &[u16], parts: usize, next: Next, sums: &mut Sums) {
    let steps = weights.len() / TWO_TILES;
    assert!(steps > 0 && parts > 0 && x.len() == parts * weights.len());
    // SAFETY: a load reads 16 rows of 64 bytes, 1 KB; two follow one another in each step of `weights`, which is
    // read from the beginning for every part, and of `x`, which has as many steps for each part, as was just
    // checked. The stores write 4 KB, all of `sums`. Asking for a line reads nothing, wherever it is. Tiles 0 to 7
    // are named as overwritten.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "3:",
            "tileloadd tmm4, [{w} + {side}]",
            "tileloaddt1 tmm6, [{x} + {side}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{w} + {side} + 1024]",
            "tdpbf16ps tmm1, tmm5, tmm6",
            "tileloaddt1 tmm7, [{x} + {side} + 1024]",
            "tdpbf16ps tmm2, tmm4, tmm7",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "mov {line}, {next}",
            "mov {left}, {rows}",
            "test {left}, {left}",
            "jz 5f",
            "4:",
            "prefetcht1 [{line}]",
            "add {line}, {row}",
            "dec {left}",
            "jnz 4b",
            "5:",
            "add {next}, 64",
            "add {w}, 2048",
            "add {x}, 2048",
            "cmp {w}, {end}",
            "jne 3b",
            "sub {w}, {size}",
            "xor {rows:e}, {rows:e}",
            "dec {parts}",
            "jnz 2b",
            "tilestored [{sums} + {side}], tmm0",
            "tilestored [{sums} + {side} + 1024], tmm1",
            "tilestored [{sums} + {side} + 2048], tmm2",
            "tilestored [{sums} + {side} + 3072], tmm3",
            w = inout(reg) weights.as_ptr() => _,
            end = in(reg) weights.as_ptr().add(steps * TWO_TILES),
            size = in(reg) steps * 2 * TWO_TILES,
            x = inout(reg) x.as_ptr() => _,
            sums = in(reg) sums.0.as_mut_ptr(),
            side = in(reg) 64_usize,
            parts = inout(reg) parts => _,
            next = inout(reg) next.first => _,
            rows = inout(reg) next.rows => _,
            row = in(reg) next.stride,
            line = out(reg) _,
            left = out(reg) _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// Tiles of whole sums that are made at once.
pub(super) const AT_ONCE: usize = 4;

/// A tile of whole sums: (token, weight row).
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
pub(super) struct Whole(pub(super) [i32; 16 * 16]);

/// sums = the products of neighbouring groups: of 32 values of 16 tokens (group, token, 32) with those of 16 weight
/// rows (group, four neighbours, row), a tile for each group, or for each of its `halves`. Only while the thread's tiles
/// are [`Configured`] for it.
#[inline(always)]
pub(super) fn int8(x: &[i8], w: &[__m512i], halves: bool, sums: &mut [Whole; AT_ONCE]) {
    /// Bytes of a group of 16 tokens or rows.
    const GROUP: usize = 16 * 32;
    let groups = if halves { AT_ONCE / 2 } else { AT_ONCE };
    assert!(x.len() >= groups * GROUP && size_of_val(w) >= groups * GROUP);
    // Where a tile's values begin, in bytes.
    let x = |i: usize| x.as_ptr().wrapping_add(if halves { i / 2 * GROUP + i % 2 * 16 } else { i * GROUP });
    let w = |i: usize| w.as_ptr().wrapping_byte_add(if halves { i * GROUP / 2 } else { i * GROUP });
    // SAFETY: a load of `x` reads the values of one run of each token of a group, one of `w` those of one run of a group;
    // the groups were just checked to be there. The stores write 1 KB each, all of `sums`. Tiles 0 to 7 are named as overwritten.
    unsafe {
        asm!(
            "tileloadd tmm4, [{x0} + {x_stride}]",
            "tileloadd tmm5, [{w0} + {stride}]",
            "tilezero tmm0",
            "tdpbssd tmm0, tmm4, tmm5",
            "tileloadd tmm6, [{x1} + {x_stride}]",
            "tileloadd tmm7, [{w1} + {stride}]",
            "tilezero tmm1",
            "tdpbssd tmm1, tmm6, tmm7",
            "tileloadd tmm4, [{x2} + {x_stride}]",
            "tileloadd tmm5, [{w2} + {stride}]",
            "tilezero tmm2",
            "tdpbssd tmm2, tmm4, tmm5",
            "tileloadd tmm6, [{x3} + {x_stride}]",
            "tileloadd tmm7, [{w3} + {stride}]",
            "tilezero tmm3",
            "tdpbssd tmm3, tmm6, tmm7",
            "tilestored [{sums} + {stride}], tmm0",
            "tilestored [{sums} + {stride} + 1024], tmm1",
            "tilestored [{sums} + {stride} + 2048], tmm2",
            "tilestored [{sums} + {stride} + 3072], tmm3",
            x0 = in(reg) x(0),
            x1 = in(reg) x(1),
            x2 = in(reg) x(2),
            x3 = in(reg) x(3),
            w0 = in(reg) w(0),
            w1 = in(reg) w(1),
            w2 = in(reg) w(2),
            w3 = in(reg) w(3),
            x_stride = in(reg) 32_usize,
            stride = in(reg) 64_usize,
            sums = in(reg) sums.as_mut_ptr(),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// Multiplies and adds tiles of zeros, of bfloat16 or of INT8 values: four tiles, `rounds` times. The second only where
/// [`multiplies_int8`].
pub(super) fn multiply<const INT8: bool>(rounds: usize) -> f32 {
    /// The instructions of a round, and what counts them.
    macro_rules! rounds {
        ($multiply:literal) => {
            // SAFETY: the tiles are configured and hold zeros since; no memory is touched. There is at least one round.
            unsafe {
                asm!(
                    "2:",
                    concat!($multiply, " tmm0, tmm4, tmm6"),
                    concat!($multiply, " tmm1, tmm5, tmm6"),
                    concat!($multiply, " tmm2, tmm4, tmm7"),
                    concat!($multiply, " tmm3, tmm5, tmm7"),
                    "dec {rounds}",
                    "jnz 2b",
                    rounds = inout(reg) rounds.max(1) => _,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    options(nostack, nomem),
                )
            }
        };
    }
    let _configured = Configured::new();
    if INT8 {
        assert!(multiplies_int8(), "the processor has the instruction");
        rounds!("tdpbssd");
    } else {
        rounds!("tdpbf16ps");
    }
    0.0
}
