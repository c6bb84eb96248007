//! AMX, the tile registers of Intel's server processors since Sapphire Rapids: eight tiles of 16 rows of 64 bytes. One
//! instruction updates 16 × 16 sums and adds 32 products of bfloat16 values to each (Intel 64 and IA-32 Architectures
//! Software Developer's Manual, volume 1, chapter 18). Stable Rust has no intrinsics for it, so this module uses
//! assembly.
#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, __m512i, _xgetbv};
use std::marker::PhantomData;
use std::sync::OnceLock;

use super::bf16_tiles::{Next, Sums, TWO_TILES};
use super::{emulated, vectors};

/// Whether bfloat16 tiles are available. They are emulated in tests, but only if the processor has the vector
/// instructions that are used together with tiles.
pub(super) fn available() -> bool {
    let [_, _, vnni] = vectors::vectors();
    in_the_processor() || emulated::on() && vnni
}

/// Whether the processor has tiles and the system lets this process use them.
pub(super) fn in_the_processor() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| processor_has_tiles() && system_saves_tiles() && ask_for_tiles())
}

/// Whether the tiles also multiply int8: `cpuid` leaf 7, EDX bit 25 (AMX-INT8).
pub(super) fn multiplies_int8() -> bool {
    static MULTIPLIES: OnceLock<bool> = OnceLock::new();
    *MULTIPLIES.get_or_init(|| match in_the_processor() {
        true => __cpuid_count(7, 0).edx & (1 << 25) != 0,
        false => emulated::on(),
    })
}

/// Whether `cpuid` reports tiles: leaf 7, EDX bits 22 (AMX-BF16) and 24 (AMX-TILE).
fn processor_has_tiles() -> bool {
    let features = (1 << 22) | (1 << 24);
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & features == features
}

/// Whether the system saves tiles when it switches threads: XCR0 bits 17 and 18.
fn system_saves_tiles() -> bool {
    #[target_feature(enable = "xsave")]
    fn enabled() -> u64 {
        // SAFETY: every processor with OSXSAVE has this instruction, and the caller has checked OSXSAVE.
        unsafe { _xgetbv(0) }
    }
    let osxsave = __cpuid(1).ecx & (1 << 27) != 0;
    // SAFETY: OSXSAVE means that the processor has XSAVE and that the system has enabled it.
    osxsave && (unsafe { enabled() } >> 17) & 3 == 3
}

/// Requests the tiles from Linux, which gives them only to processes that ask. The permission is permanent and holds
/// for all threads.
#[cfg(target_os = "linux")]
fn ask_for_tiles() -> bool {
    const ARCH_PRCTL: usize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XFEATURE_XTILEDATA: usize = 18;
    let result: isize;
    // SAFETY: the system call takes two numbers and touches no memory of ours. A kernel that does not know this call
    // returns an error. Like every system call, it overwrites rcx and r11.
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

/// On other systems, the tiles are not requested and not used.
#[cfg(not(target_os = "linux"))]
fn ask_for_tiles() -> bool {
    false
}

/// A thread whose tiles are configured. Dropping this value releases the tiles, so that the system need not save and
/// restore them any more.
pub(super) struct Configured(PhantomData<*const ()>);

impl Configured {
    /// Configures eight tiles of 16 rows of 64 bytes. Call only if [`available`].
    pub(super) fn new() -> Self {
        Self::with([(16, 64); 8])
    }

    /// Configures four tiles of sums, and two pairs of operand tiles. The first tile of a pair has 16 rows: `run`
    /// values of each of 16 tokens. The second has `run` values of each of 16 weight rows; each row of this tile has
    /// four adjacent values of every weight row. Call only if [`multiplies_int8`].
    pub(super) fn for_int8(run: usize) -> Self {
        assert!(multiplies_int8() && (run == 16 || run == 32));
        let (x, w) = ((16, run as u16), (run as u8 / 4, 64));
        Self::with([(16, 64), (16, 64), (16, 64), (16, 64), x, w, x, w])
    }

    /// Configures tiles with these numbers of rows and of bytes per row.
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
        assert!(available(), "tiles are used only if the processor has them");
        // SAFETY: the assertion checks that the processor has tiles, and the 64 bytes are a valid configuration of
        // them. The compiler does not keep values in tiles.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const configuration, options(nostack, readonly)) };
        Self(PhantomData)
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        // SAFETY: `new` configured the tiles on this thread. The type is not Send, so it does not leave the thread.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// See [`super::bf16_unit::Unit`]. Call only while the thread's tiles are [`Configured`].
///
/// The weights stay in the L1 cache from one call to the next. TILELOADDT1 loads the activations without keeping them
/// in L1, where they would replace the weights.
pub(super) fn sums(weights: &[u16], x: &[u16], parts: usize, next: Next, sums: &mut Sums) {
    let steps = weights.len() / TWO_TILES;
    assert!(steps > 0 && parts > 0 && x.len() == parts * weights.len());
    // SAFETY: a load reads 16 rows of 64 bytes, 1 KB. Each step of `weights` and of `x` has two loads, one after the
    // other. `weights` is read from the beginning for every part. `x` has the same number of steps for each part; the
    // assertion checks this. The stores write 4 KB, all of `sums`. A prefetch reads nothing, so any address is allowed.
    // Tiles 0 to 7 are declared as overwritten.
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

/// The number of tiles of integer sums that are computed at once.
pub(super) const AT_ONCE: usize = 4;

/// A tile of integer sums: (token, weight row).
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
pub(super) struct Whole(pub(super) [i32; 16 * 16]);

/// Computes the products of adjacent groups: 32 values of each of 16 tokens (group, token, 32) with 32 values of each
/// of 16 weight rows (group, four neighbours, row). There is one tile of `sums` for each group, or for each half of a
/// group if `halves`. Call only while the thread's tiles are configured for this ([`Configured::for_int8`]).
#[inline(always)]
pub(super) fn int8(x: &[i8], w: &[__m512i], halves: bool, sums: &mut [Whole; AT_ONCE]) {
    /// The bytes of a group of 16 tokens or rows.
    const GROUP: usize = 16 * 32;
    let groups = if halves { AT_ONCE / 2 } else { AT_ONCE };
    assert!(x.len() >= groups * GROUP && size_of_val(w) >= groups * GROUP);
    // The address of a tile's first byte.
    let x = |i: usize| x.as_ptr().wrapping_add(if halves { i / 2 * GROUP + i % 2 * 16 } else { i * GROUP });
    let w = |i: usize| w.as_ptr().wrapping_byte_add(if halves { i * GROUP / 2 } else { i * GROUP });
    // SAFETY: a load of `x` reads one run of a group for each token. A load of `w` reads one run of a group for each
    // weight row. The assertion checks that the groups are there. The stores write 1 KB each, all of `sums`. Tiles 0 to
    // 7 are declared as overwritten.
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

/// Multiplies tiles of zeros, and adds the products to four tiles of sums, `rounds` times. The values are int8 if INT8,
/// otherwise bfloat16. INT8 only if [`multiplies_int8`].
pub(super) fn multiply<const INT8: bool>(rounds: usize) -> f32 {
    /// A loop of `rounds` rounds, with the instruction `$multiply`.
    macro_rules! rounds {
        ($multiply:literal) => {
            // SAFETY: the tiles were configured, which set them to zero. No memory is accessed. There is at least one
            // round.
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
