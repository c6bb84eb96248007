//! Emulates instructions one at a time in the handler of the signal that they raise. Source for the encodings and the
//! operations: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, mem, ptr};

/// The environment variable that is set in the process with the emulation.
pub(in crate::backend::cpu::kernel) const WANTED: &str = "LLAMA_TRACE_TEST_EMULATES";

/// The numbers of emulated AMX and AVX-VNNI instructions.
pub(in crate::backend::cpu::kernel) static DONE: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// See [`super::on`].
pub(super) fn on() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    *ON.get_or_init(|| {
        let wanted = env::var_os(WANTED).is_some() && is_x86_feature_detected!("avx2");
        if wanted {
            // SAFETY: the handler has the signature for SA_SIGINFO. All other fields of the structure may be zeros.
            unsafe {
                let mut action: libc::sigaction = mem::zeroed();
                action.sa_sigaction = handler as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO;
                assert_eq!(libc::sigaction(libc::SIGILL, &raw const action, ptr::null_mut()), 0);
            }
        }
        wanted
    })
}

/// The eight tiles of a thread: for each, the number of rows, the number of bytes per row, and the rows, 64 bytes
/// apart.
struct Tiles {
    rows: [usize; 8],
    bytes: [usize; 8],
    values: [[u8; 1024]; 8],
}

thread_local! {
    static TILES: UnsafeCell<Tiles> =
        const { UnsafeCell::new(Tiles { rows: [0; 8], bytes: [0; 8], values: [[0; 1024]; 8] }) };
}

/// Emulates the instruction that raised the signal, and continues after this instruction.
unsafe extern "C" fn handler(_signal: i32, _information: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the system passes the state of the interrupted thread to a handler of this kind.
    let state = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext };
    let code = state.gregs[libc::REG_RIP as usize] as *const u8;
    // SAFETY: the instruction is in memory, and emulated instructions have at least five bytes. Reading five bytes
    // would be wrong only for a shorter instruction at the end of the program's last page; our code has no such
    // instruction that raises this signal.
    let Some(length) = (unsafe { carry_out(code, state) }) else {
        // SAFETY: the instruction runs again, and then the signal ends the process.
        unsafe { libc::signal(libc::SIGILL, libc::SIG_DFL) };
        return;
    };
    state.gregs[libc::REG_RIP as usize] += length as i64;
}

/// Emulates the instruction at `code` and returns its length in bytes.
///
/// # Safety
/// The instruction must be the next one of the thread with this state.
unsafe fn carry_out(code: *const u8, state: &mut libc::mcontext_t) -> Option<usize> {
    // SAFETY: the caller guarantees the instruction. The state is read at the offsets of the system's definition. The
    // loads and stores are those of the instruction. No other code of this thread runs meanwhile, so the tiles are
    // borrowed only once.
    unsafe {
        let [escape, map, fields, operation, operands] = code.cast::<[u8; 5]>().read_unaligned();
        // A three-byte VEX prefix, map 0F38, without W.
        if escape != 0xc4 || map & 0x1f != 2 || fields & 0x80 != 0 {
            return None;
        }
        let (wide, prefix) = (fields & 4 != 0, fields & 3);
        let second = usize::from(!(fields >> 3) & 15);
        let upper = |bit: u8| usize::from(map & bit == 0) * 8;
        let first = usize::from(operands >> 3 & 7) + upper(0x80);
        let third = usize::from(operands & 7) + upper(0x20);
        let registers_only = operands >> 6 == 3;
        let tiles = TILES.with(|tiles| &mut *tiles.get());
        match (operation, prefix, wide, registers_only) {
            // VPDPBUSD ymm, ymm, ymm.
            (0x50, 1, true, true) => {
                DONE[1].fetch_add(1, Ordering::Relaxed);
                let (unsigned, signed) = (Ymm(second).read(state), Ymm(third).read(state));
                let mut sums = Ymm(first).read(state);
                for (i, sum) in sums.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                    let products = (4 * i..4 * i + 4)
                        .map(|i| i32::from(unsigned[i]) * i32::from(signed[i].cast_signed()));
                    *sum = i32::from_le_bytes(*sum).wrapping_add(products.sum()).to_le_bytes();
                }
                Ymm(first).write(state, sums);
                return Some(5);
            }
            // LDTILECFG m512 and TILERELEASE.
            (0x49, 0, false, _) => {
                *tiles = Tiles { rows: [0; 8], bytes: [0; 8], values: [[0; 1024]; 8] };
                if registers_only {
                    return Some(5);
                }
                let memory = Memory::of(code, state)?;
                let configuration = memory.address.cast::<[u8; 64]>().read_unaligned();
                assert_eq!(configuration[..2], [1, 0], "palette 1, from the first row");
                for tile in 0..8 {
                    tiles.rows[tile] = usize::from(configuration[48 + tile]);
                    tiles.bytes[tile] = usize::from(u16::from_le_bytes([
                        configuration[16 + 2 * tile],
                        configuration[17 + 2 * tile],
                    ]));
                    assert!(
                        tiles.rows[tile] <= 16
                            && tiles.bytes[tile] <= 64
                            && tiles.bytes[tile].is_multiple_of(4)
                    );
                }
                return Some(memory.length);
            }
            // TILEZERO tmm.
            (0x49, 3, false, true) => tiles.values[first] = [0; 1024],
            // TILELOADDT1 and TILELOADD tmm, sibmem, and TILESTORED sibmem, tmm.
            (0x4b, 1..=3, false, false) => {
                DONE[0].fetch_add(1, Ordering::Relaxed);
                let memory = Memory::of(code, state)?;
                let tile = &mut tiles.values[first];
                let stores = prefix == 2;
                if !stores {
                    *tile = [0; 1024];
                }
                for (row, values) in tile.chunks_exact_mut(64).enumerate().take(tiles.rows[first]) {
                    let (address, count) =
                        (memory.address.wrapping_add(row * memory.index), tiles.bytes[first]);
                    match stores {
                        false => ptr::copy_nonoverlapping(address, values.as_mut_ptr(), count),
                        true => ptr::copy_nonoverlapping(values.as_ptr(), address, count),
                    }
                }
                return Some(memory.length);
            }
            // TDPBF16PS and TDPBSSD tmm, tmm, tmm.
            (0x5c, 2, false, true) => tiles.multiply(first, third, second, pairs_of_bf16),
            (0x5e, 3, false, true) => tiles.multiply(first, third, second, fours_of_int8),
            _ => return None,
        }
        DONE[0].fetch_add(1, Ordering::Relaxed);
        Some(5)
    }
}

/// Four bytes of a row of activations, and four bytes of a column of weights.
type Step = [[u8; 4]; 2];

impl Tiles {
    /// Updates every element (four bytes) of tile `sums` with `add`, which receives the element, and its row of `x` and
    /// column of `w`.
    fn multiply(&mut self, sums: usize, x: usize, w: usize, add: impl Fn([u8; 4], &[Step]) -> [u8; 4]) {
        assert!(self.rows[sums] == self.rows[x] && self.bytes[sums] == self.bytes[w]);
        assert!(self.bytes[x] / 4 == self.rows[w] && sums != x && sums != w && x != w);
        let mut steps = [Step::default(); 16];
        let steps = &mut steps[..self.rows[w]];
        for row in 0..self.rows[sums] {
            for column in 0..self.bytes[sums] / 4 {
                for (k, step) in steps.iter_mut().enumerate() {
                    *step = [self.four(x, row, k), self.four(w, k, column)];
                }
                let sum = add(self.four(sums, row, column), steps);
                self.values[sums].as_chunks_mut::<4>().0[16 * row + column] = sum;
            }
        }
    }

    fn four(&self, tile: usize, row: usize, column: usize) -> [u8; 4] {
        self.values[tile].as_chunks::<4>().0[16 * row + column]
    }
}

/// Computes the sum of the even products and the sum of the odd ones. Adds the two sums to each other, and then to
/// `sum`.
fn pairs_of_bf16(sum: [u8; 4], steps: &[Step]) -> [u8; 4] {
    let [even, odd] = steps.iter().fold([0.0_f32; 2], |[even, odd], step| {
        let [x, w] =
            step.map(|[a, b, c, d]| [[a, b], [c, d]].map(|bytes| half::bf16::from_le_bytes(bytes).to_f32()));
        [x[0].mul_add(w[0], even), x[1].mul_add(w[1], odd)]
    });
    (f32::from_le_bytes(sum) + (even + odd)).to_le_bytes()
}

fn fours_of_int8(sum: [u8; 4], steps: &[Step]) -> [u8; 4] {
    let product = |[x, w]: &Step| -> i32 {
        (0..4).map(|i| i32::from(x[i].cast_signed()) * i32::from(w[i].cast_signed())).sum()
    };
    i32::from_le_bytes(sum).wrapping_add(steps.iter().map(product).sum()).to_le_bytes()
}

/// A 256-bit vector register in the state that the system saved. Its lower half is in the SSE area, and its upper half
/// is in the AVX area (XSAVE, volume 1, chapter 13).
struct Ymm(usize);

impl Ymm {
    /// Returns pointers to the two halves. If the system did not store the upper halves because they are zero, they are
    /// set to zero first.
    unsafe fn halves(&self, state: &mut libc::mcontext_t) -> [*mut [u8; 16]; 2] {
        // SAFETY: a processor with AVX2 saves at least 832 bytes, with the halves and the flags at these offsets.
        unsafe {
            let saved = state.fpregs.cast::<u8>();
            let stored = saved.add(512).cast::<u64>();
            if *stored & 4 == 0 {
                ptr::write_bytes(saved.add(576), 0, 256);
            }
            *stored |= 6;
            [saved.add(160 + 16 * self.0).cast(), saved.add(576 + 16 * self.0).cast()]
        }
    }

    unsafe fn read(&self, state: &mut libc::mcontext_t) -> [u8; 32] {
        let mut bytes = [0; 32];
        // SAFETY: as for `halves`.
        unsafe {
            let [lower, upper] = self.halves(state);
            bytes[..16].copy_from_slice(&*lower);
            bytes[16..].copy_from_slice(&*upper);
        }
        bytes
    }

    unsafe fn write(&self, state: &mut libc::mcontext_t, bytes: [u8; 32]) {
        // SAFETY: as for `halves`.
        unsafe {
            let [lower, upper] = self.halves(state);
            (*lower).copy_from_slice(&bytes[..16]);
            (*upper).copy_from_slice(&bytes[16..]);
        }
    }
}

/// The memory operand of an instruction of five bytes or more.
struct Memory {
    /// The address without the index.
    address: *mut u8,
    /// The value of the index register, in bytes.
    index: usize,
    /// The length of the instruction.
    length: usize,
}

impl Memory {
    /// Returns the operand of the instruction at `code`. `None` if the address is relative to the instruction pointer.
    unsafe fn of(code: *const u8, state: &libc::mcontext_t) -> Option<Self> {
        const REGISTERS: [i32; 16] = [
            libc::REG_RAX,
            libc::REG_RCX,
            libc::REG_RDX,
            libc::REG_RBX,
            libc::REG_RSP,
            libc::REG_RBP,
            libc::REG_RSI,
            libc::REG_RDI,
            libc::REG_R8,
            libc::REG_R9,
            libc::REG_R10,
            libc::REG_R11,
            libc::REG_R12,
            libc::REG_R13,
            libc::REG_R14,
            libc::REG_R15,
        ];
        let register = |number: u8, map_bit: u8, map: u8| {
            let number = usize::from(number & 7) + usize::from(map & map_bit == 0) * 8;
            state.gregs[REGISTERS[number] as usize] as usize
        };
        // SAFETY: these bytes belong to the instruction: its own fields give its length.
        unsafe {
            let (map, operands) = (*code.add(1), *code.add(4));
            let (mode, mut length) = (operands >> 6, 5);
            let mut base = operands & 7;
            let mut index = 0;
            if base == 4 {
                let scaled = *code.add(5);
                length += 1;
                base = scaled & 7;
                if scaled >> 3 & 7 != 4 || map & 0x40 == 0 {
                    index = register(scaled >> 3, 0x40, map) << (scaled >> 6);
                }
            }
            if mode == 0 && base == 5 {
                return None;
            }
            let displacement = match mode {
                0 => 0,
                1 => isize::from(code.add(length).cast::<i8>().read()),
                _ => code.add(length).cast::<i32>().read_unaligned() as isize,
            };
            length += [0, 1, 4, 0][usize::from(mode)];
            let address = register(base, 0x20, map).wrapping_add_signed(displacement) as *mut u8;
            Some(Self { address, index, length })
        }
    }
}
