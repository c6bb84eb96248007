//! A warp: 32 lanes. Lanes that have reached the same instruction run it together.

use std::collections::{HashMap, VecDeque};

use super::operations::{Compute, LANES, Lanes};
use super::program::{
    Atom, Entry, FIRST_SHARED, Index, Instruction, LOCAL, Operand, SHARED, Shuffle, Space, What,
};
use super::tensor::{Tile, multiply, multiply_bytes, multiply_group};

/// The state that the warps of a block share.
pub(super) struct Block<'a> {
    pub(super) entry: &'a Entry,
    /// Indexed by axis: the numbers of threads per block, the block's index, and the number of blocks.
    pub(super) threads: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) blocks: [u32; 3],
    pub(super) parameters: &'a [u8],
    pub(super) shared: Vec<u8>,
    /// The mbarriers, by address.
    pub(super) arrivals: HashMap<u64, Arrivals>,
    /// Returns whether these bytes of the device's memory are allocated: the address, and the number of bytes.
    pub(super) known: &'a dyn Fn(u64, usize) -> bool,
}

/// An asynchronous copy of sixteen bytes: the destination in shared memory, the source, and the number of bytes to
/// read. The remaining bytes become zeros.
type Underway = (u64, u64, usize);

/// An mbarrier: the number of arrivals of a phase, and the pending copies (destination, source, number of bytes).
pub(super) struct Arrivals {
    lanes: u32,
    left: u32,
    /// Completed phases.
    done: u64,
    expected: u64,
    copies: Vec<(u64, u64, usize)>,
}

/// A pending product: the tile, the descriptors of both factors, whether it adds to the old sums, and the registers of
/// the sums.
struct Product<'a> {
    tile: Tile,
    descriptors: [u64; 2],
    adds: bool,
    sums: &'a [Operand],
}

/// Why a warp stopped.
#[derive(Debug, PartialEq)]
pub(super) enum Stopped {
    AtBarrier,
    Ended,
}

pub(super) struct Warp<'a> {
    entry: &'a Entry,
    /// The warp's number in the block.
    number: usize,
    registers: Vec<Lanes>,
    carry: Lanes,
    at: [usize; LANES],
    /// Lanes that have not ended. The next two fields are subsets of these: lanes that wait for other lanes of the
    /// warp, and lanes at the block's barrier.
    alive: u32,
    waiting: u32,
    at_barrier: u32,
    local: Vec<Vec<u8>>,
    /// For each lane, the copies that are not yet in a group, and the pending groups of copies.
    begun: Vec<Vec<Underway>>,
    groups: Vec<VecDeque<Vec<Underway>>>,
    products: Vec<Product<'a>>,
    product_groups: VecDeque<Vec<Product<'a>>>,
}

fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| mask >> lane & 1 == 1)
}

impl<'a> Warp<'a> {
    pub(super) fn new(entry: &'a Entry, number: usize, threads: usize) -> Self {
        let count = threads.min(LANES);
        Self {
            entry,
            number,
            // Uninitialised registers hold a value that is NaN as a float, and not a valid address.
            registers: vec![[0xffff_ffff_ffff_ff01; LANES]; entry.widths.len()],
            carry: [0; LANES],
            at: [0; LANES],
            alive: if count == LANES { u32::MAX } else { (1 << count) - 1 },
            waiting: 0,
            at_barrier: 0,
            local: vec![vec![0xff; entry.local]; LANES],
            begun: vec![Vec::new(); LANES],
            groups: vec![VecDeque::new(); LANES],
            products: Vec::new(),
            product_groups: VecDeque::new(),
        }
    }

    /// Continues after the barrier, which all other warps have reached.
    pub(super) fn pass_barrier(&mut self) {
        for lane in lanes(self.at_barrier) {
            self.at[lane] += 1;
        }
        self.at_barrier = 0;
    }

    /// Runs until all lanes have ended or are at a barrier. The lanes at the lowest instruction run first. So divergent
    /// lanes reconverge.
    pub(super) fn run(&mut self, block: &mut Block) -> Stopped {
        loop {
            let able = self.alive & !self.waiting & !self.at_barrier;
            if able == 0 {
                assert!(self.waiting == 0, "lanes {:#x} wait for others that do not come", self.waiting);
                return if self.alive == 0 { Stopped::Ended } else { Stopped::AtBarrier };
            }
            let at = lanes(able).map(|lane| self.at[lane]).min().unwrap_or_default();
            let together =
                lanes(able).filter(|lane| self.at[*lane] == at).fold(0, |mask, lane| mask | 1 << lane);
            let next = lanes(able & !together).map(|lane| self.at[lane]).min().unwrap_or(usize::MAX);
            self.run_together(block, together, at, next);
        }
    }

    /// Runs the lanes in `mask` from instruction `at` on, until they diverge, wait, or reach instruction `next`, where
    /// other lanes are.
    fn run_together(&mut self, block: &mut Block, mut mask: u32, mut at: usize, next: usize) {
        let entry = self.entry;
        loop {
            let instruction = &entry.code[at];
            let active = match instruction.guard {
                Some((register, wanted)) => {
                    let values = &self.registers[register];
                    lanes(mask).filter(|lane| values[*lane] == wanted).fold(0, |mask, lane| mask | 1 << lane)
                }
                None => mask,
            };
            match &instruction.what {
                What::Branch(to) if active != 0 => {
                    if active != mask {
                        lanes(mask).for_each(|lane| self.at[lane] = at + 1);
                        lanes(active).for_each(|lane| self.at[lane] = *to);
                        return;
                    }
                    at = *to;
                }
                What::End if active != 0 => {
                    self.alive &= !active;
                    lanes(mask).for_each(|lane| self.at[lane] = at + 1);
                    return;
                }
                What::Barrier if active != 0 => {
                    assert_eq!(active, mask, "a barrier that only some lanes reach: {}", instruction.text);
                    lanes(mask).for_each(|lane| self.at[lane] = at);
                    self.at_barrier |= mask;
                    return;
                }
                What::Branch(_) | What::End | What::Barrier => at += 1,
                _ => {
                    if let Some(wanted) = self.wanted(instruction, active) {
                        let others = active & !wanted;
                        assert!(
                            others == 0,
                            "lanes {others:#x} take part, but the mask does not name them: {}",
                            instruction.text
                        );
                        // The lanes that wait at this instruction already.
                        let here = lanes(self.waiting).filter(|lane| self.at[*lane] == at);
                        let together = here.fold(active, |mask, lane| mask | 1 << lane);
                        if wanted & self.alive & !together != 0 {
                            lanes(mask).for_each(|lane| self.at[lane] = at);
                            self.waiting |= active;
                            // Lanes whose guard is false continue after the instruction.
                            lanes(mask & !active).for_each(|lane| self.at[lane] = at + 1);
                            return;
                        }
                        self.waiting &= !together;
                        mask |= together;
                        self.step(block, instruction, together);
                    } else if active != 0 {
                        self.step(block, instruction, active);
                    }
                    at += 1;
                }
            }
            if at >= next {
                break;
            }
        }
        lanes(mask).for_each(|lane| self.at[lane] = at);
    }

    /// Returns the lanes that an instruction synchronises; `None` if each lane runs on its own.
    fn wanted(&self, instruction: &Instruction, active: u32) -> Option<u32> {
        match instruction.what {
            What::Shuffle(_) | What::Ballot | What::Meet if active != 0 => {
                let mask = instruction.operands.last().copied();
                let lane = active.trailing_zeros() as usize;
                mask.map(|mask| self.get(mask, lane, None) as u32)
            }
            What::LoadMatrices { .. }
            | What::Multiply { .. }
            | What::MultiplyBytes { .. }
            | What::BeginProduct(_)
            | What::CloseProducts
            | What::WaitForProducts
                if active != 0 =>
            {
                assert_eq!(self.alive, u32::MAX, "not all lanes of the warp are alive: {}", instruction.text);
                Some(u32::MAX)
            }
            _ => None,
        }
    }

    fn get(&self, operand: Operand, lane: usize, block: Option<&Block>) -> u64 {
        match (operand, block) {
            (Operand::Register(register), _) => self.registers[register][lane],
            (Operand::Value(value), _) => value,
            (Operand::Of(index, axis), Some(block)) => u64::from(match index {
                Index::Threads => block.threads[axis],
                Index::Block => block.block[axis],
                Index::Blocks => block.blocks[axis],
                Index::Thread => {
                    let (x, y) = (block.threads[0], block.threads[1]);
                    let thread = (self.number * LANES + lane) as u32;
                    [thread % x, thread / x % y, thread / x / y][axis]
                }
            }),
            (operand, _) => panic!("no value: {operand:?}"),
        }
    }

    /// Returns the values of an operand.
    fn all(&self, operand: Operand, block: &Block) -> Lanes {
        match operand {
            Operand::Register(register) => self.registers[register],
            operand => std::array::from_fn(|lane| self.get(operand, lane, Some(block))),
        }
    }

    fn set(&mut self, operand: Operand, mask: u32, values: &Lanes) {
        let Operand::Register(register) = operand else { panic!("no register: {operand:?}") };
        let kept = u64::MAX >> (64 - self.entry.widths[register]);
        let register = &mut self.registers[register];
        if mask == u32::MAX {
            *register = values.map(|value| value & kept);
        } else {
            lanes(mask).for_each(|lane| register[lane] = values[lane] & kept);
        }
    }

    /// Returns the width of a register in bits.
    fn width(&self, operand: Operand) -> u32 {
        match operand {
            Operand::Register(register) => self.entry.widths[register],
            operand => panic!("no register: {operand:?}"),
        }
    }

    /// Returns the checked address of `bytes` bytes that a lane reads or writes.
    fn place(
        &mut self,
        block: &mut Block,
        space: Space,
        operand: Operand,
        lane: usize,
        bytes: usize,
    ) -> *mut u8 {
        let Operand::At(base, offset) = operand else { panic!("no address: {operand:?}") };
        let at = base.map_or(0, |register| self.registers[register][lane]).wrapping_add(offset);
        self.memory(block, space, at, lane, bytes)
    }

    fn memory(&mut self, block: &mut Block, space: Space, at: u64, lane: usize, bytes: usize) -> *mut u8 {
        assert!(at.is_multiple_of(bytes as u64), "{bytes} bytes at the unaligned address {at:#x}");
        let (space, at) = match space {
            Space::Any if at >= SHARED => (Space::Shared, at - SHARED),
            Space::Any if at >= LOCAL => (Space::Local, at - LOCAL),
            space => (space, at),
        };
        let inside = |memory: &[u8], first: u64| {
            let first = at.checked_sub(first).map(|first| first as usize);
            first.filter(|first| first.saturating_add(bytes) <= memory.len())
        };
        let nobody = || -> ! { panic!("{bytes} bytes at {at:#x} of {space:?}, which are not allocated") };
        match space {
            Space::Shared => match inside(&block.shared, FIRST_SHARED) {
                Some(first) => block.shared[first..].as_mut_ptr(),
                None => nobody(),
            },
            Space::Local => match inside(&self.local[lane], 0) {
                Some(first) => self.local[lane][first..].as_mut_ptr(),
                None => nobody(),
            },
            Space::Parameter => match inside(block.parameters, 0) {
                Some(first) => block.parameters[first..].as_ptr().cast_mut(),
                None => nobody(),
            },
            Space::Global | Space::Any if (block.known)(at, bytes) => at as *mut u8,
            Space::Global | Space::Any => nobody(),
        }
    }

    fn step(&mut self, block: &mut Block, instruction: &'a Instruction, mask: u32) {
        let operands = &instruction.operands;
        match instruction.what {
            What::Compute(compute) => self.compute(block, compute, operands, mask),
            What::Move => self.copy_registers(block, operands, mask),
            What::Insert => {
                let [a, b, first, count] = [1, 2, 3, 4].map(|i| self.all(operands[i], block));
                let values = std::array::from_fn(|lane| {
                    let (first, count) = (first[lane] & 0xff, count[lane] & 0xff);
                    let bits = if count >= 64 { u64::MAX } else { (1 << count) - 1 };
                    let bits = bits.checked_shl(first as u32).unwrap_or(0);
                    b[lane] & !bits | a[lane].checked_shl(first as u32).unwrap_or(0) & bits
                });
                self.set(operands[0], mask, &values);
            }
            What::Load { space, bytes, signed } => {
                let (to, from) = operands.split_at(operands.len() - 1);
                let mut values = vec![[0; LANES]; to.len()];
                for lane in lanes(mask) {
                    let place = self.place(block, space, from[0], lane, bytes * to.len());
                    for (i, values) in values.iter_mut().enumerate() {
                        // SAFETY: `place` has checked that these bytes are allocated.
                        let value = unsafe { read(place.add(i * bytes), bytes) };
                        let above = 64 - 8 * bytes as u32;
                        let value_signed = ((value << above).cast_signed() >> above).cast_unsigned();
                        values[lane] = if signed { value_signed } else { value };
                    }
                }
                to.iter().zip(&values).for_each(|(to, values)| self.set(*to, mask, values));
            }
            What::Store { space, bytes } => {
                let values: Vec<Lanes> = operands[1..].iter().map(|from| self.all(*from, block)).collect();
                for lane in lanes(mask) {
                    let place = self.place(block, space, operands[0], lane, bytes * values.len());
                    for (i, values) in values.iter().enumerate() {
                        // SAFETY: `place` has checked that these bytes are allocated.
                        unsafe { write(place.add(i * bytes), bytes, values[lane]) };
                    }
                }
            }
            What::Atom { space, bytes, what } => {
                let with = self.all(operands[2], block);
                let mut before = [0; LANES];
                for lane in lanes(mask) {
                    let place = self.place(block, space, operands[1], lane, bytes);
                    // SAFETY: `place` has checked that these bytes are allocated, and no other thread of the CPU runs
                    // kernels on them.
                    let found = unsafe { read(place, bytes) };
                    let after = match what {
                        Atom::Add => found.wrapping_add(with[lane]),
                        Atom::Min => found.min(with[lane]),
                        Atom::Max => found.max(with[lane]),
                        Atom::Increase if found >= with[lane] => 0,
                        Atom::Increase => found + 1,
                    };
                    // SAFETY: as above.
                    unsafe { write(place, bytes, after) };
                    before[lane] = found;
                }
                self.set(operands[0], mask, &before);
            }
            What::Shuffle(how) => self.shuffle(block, how, operands, mask),
            What::Ballot => {
                let which = self.all(operands[1], block);
                let ballot =
                    lanes(mask).filter(|lane| which[*lane] != 0).fold(0, |all, lane| all | 1 << lane);
                self.set(operands[0], mask, &[ballot; LANES]);
            }
            What::LoadMatrices { transposed } => {
                // Lane i has the address of row i mod 8 of matrix i / 8.
                let rows: Vec<[u16; 8]> = (0..LANES)
                    .map(|lane| {
                        let place = self.place(block, Space::Shared, operands[4], lane, 16);
                        // SAFETY: `place` has checked 16 bytes.
                        unsafe { place.cast::<[u16; 8]>().read_unaligned() }
                    })
                    .collect();
                for matrix in 0..4 {
                    let values = std::array::from_fn(|lane| {
                        let pair = [0, 1].map(|i| match (lane / 4, lane % 4 * 2 + i) {
                            (row, column) if transposed => rows[matrix * 8 + column][row],
                            (row, column) => rows[matrix * 8 + row][column],
                        });
                        u64::from(pair[0]) | u64::from(pair[1]) << 16
                    });
                    self.set(operands[matrix], mask, &values);
                }
            }
            What::Multiply { float16 } => {
                let all: Vec<Lanes> = operands[4..].iter().map(|from| self.all(*from, block)).collect();
                let sums = multiply(
                    float16,
                    &[all[0], all[1], all[2], all[3]],
                    &[all[4], all[5]],
                    &[all[6], all[7], all[8], all[9]],
                );
                operands[..4].iter().zip(&sums).for_each(|(to, sums)| self.set(*to, mask, sums));
            }
            What::MultiplyBytes { halves } => {
                let all: Vec<Lanes> = operands[4..].iter().map(|from| self.all(*from, block)).collect();
                let (a, rest) = all.split_at(2 * halves);
                let (b, added) = rest.split_at(halves);
                let sums = multiply_bytes(a, b, added);
                operands[..4].iter().zip(&sums).for_each(|(to, sums)| self.set(*to, mask, sums));
            }
            What::BeginCopy => {
                for lane in lanes(mask) {
                    let to = self.place(block, Space::Shared, operands[0], lane, 16) as u64;
                    let bytes = operands.get(3).map_or(16, |bytes| self.get(*bytes, lane, Some(block)));
                    let bytes = bytes as u32 as usize;
                    assert!(bytes <= 16, "more than 16 bytes ({bytes}) are copied: {}", instruction.text);
                    let Operand::At(base, offset) = operands[1] else { panic!("no address: {operands:?}") };
                    let mut byte = |i: usize| {
                        let at = Operand::At(base, offset.wrapping_add(i as u64));
                        self.place(block, Space::Global, at, lane, 1) as u64
                    };
                    let from = if bytes == 0 { 0 } else { byte(0) };
                    for i in 1..bytes {
                        byte(i);
                    }
                    assert!(
                        from.is_multiple_of(16),
                        "an address that is not a multiple of 16: {}",
                        instruction.text
                    );
                    self.begun[lane].push((to, from, bytes));
                }
            }
            What::CloseCopies => lanes(mask).for_each(|lane| {
                let begun = std::mem::take(&mut self.begun[lane]);
                self.groups[lane].push_back(begun);
            }),
            What::WaitForCopies => {
                let left = self.get(operands[0], 0, Some(block)) as usize;
                for lane in lanes(mask) {
                    while self.groups[lane].len() > left {
                        for (to, from, bytes) in self.groups[lane].pop_front().unwrap_or_default() {
                            // SAFETY: `place` has checked 16 bytes at the destination and `bytes` bytes at the source.
                            // Shared memory does not move.
                            unsafe {
                                std::ptr::write_bytes(to as *mut u8, 0, 16);
                                std::ptr::copy(from as *const u8, to as *mut u8, bytes);
                            }
                        }
                    }
                }
            }
            What::BeginArrivals => {
                for lane in lanes(mask) {
                    let at = self.place(block, Space::Shared, operands[0], lane, 8) as u64;
                    let lanes = self.get(operands[1], lane, Some(block)) as u32;
                    let new = Arrivals { lanes, left: lanes, done: 0, expected: 0, copies: Vec::new() };
                    assert!(
                        block.arrivals.insert(at, new).is_none(),
                        "initialized a second time: {}",
                        instruction.text
                    );
                }
            }
            What::Arrive => {
                for lane in lanes(mask) {
                    let at = self.place(block, Space::Shared, operands[1], lane, 8) as u64;
                    let bytes = self.get(operands[2], lane, Some(block)) as u32;
                    let arrivals = block.arrivals.get_mut(&at).expect("arrivals that were begun");
                    assert!(
                        arrivals.left < arrivals.lanes || arrivals.copies.is_empty(),
                        "new copies before a lane has waited for the earlier ones: {}",
                        instruction.text
                    );
                    arrivals.expected += u64::from(bytes);
                    arrivals.left -= 1;
                    if arrivals.left == 0 {
                        arrivals.left = arrivals.lanes;
                        arrivals.done += 1;
                    }
                }
            }
            What::CopyPiece => {
                for lane in lanes(mask) {
                    let bytes = self.get(operands[2], lane, Some(block)) as u32 as usize;
                    assert!(
                        bytes > 0 && bytes.is_multiple_of(16),
                        "the size is not a multiple of 16 bytes: {}",
                        instruction.text
                    );
                    // Checks all bytes of the copy, 16 at a time.
                    let [to, from] =
                        [(Space::Shared, operands[0]), (Space::Global, operands[1])].map(|place| {
                            let (space, Operand::At(base, offset)) = place else {
                                panic!("no address: {operands:?}")
                            };
                            let mut at = |i: usize| {
                                let at = Operand::At(base, offset.wrapping_add(i as u64));
                                self.place(block, space, at, lane, 16) as u64
                            };
                            (16..bytes).step_by(16).for_each(|i| _ = at(i));
                            at(0)
                        });
                    let at = self.place(block, Space::Shared, operands[3], lane, 8) as u64;
                    let arrivals = block.arrivals.get_mut(&at).expect("arrivals that were begun");
                    arrivals.copies.push((to, from, bytes));
                }
            }
            What::TryWait => {
                for lane in lanes(mask) {
                    let at = self.place(block, Space::Shared, operands[1], lane, 8) as u64;
                    let parity = self.get(operands[2], lane, Some(block)) & 1;
                    let arrivals = block.arrivals.get_mut(&at).expect("arrivals that were begun");
                    // All copies were started before this wait, because a block barrier lies between them.
                    let is_done = arrivals.done > 0 && (arrivals.done - 1) & 1 == parity;
                    assert!(is_done, "a wait without a copy: {}", instruction.text);
                    let copied: usize = arrivals.copies.iter().map(|(_, _, bytes)| bytes).sum();
                    assert!(arrivals.copies.is_empty() || copied as u64 == arrivals.expected);
                    for (to, from, bytes) in arrivals.copies.drain(..) {
                        // SAFETY: `place` has checked `bytes` bytes at both addresses. Shared memory does not move.
                        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
                    }
                    arrivals.expected = 0;
                }
                self.set(operands[0], mask, &[1; LANES]);
            }
            What::BeginProduct(tile) => {
                let (sums, rest) = operands.split_at(tile.outputs / 2);
                let uniform = |operand: Operand| {
                    let all = self.all(operand, block);
                    assert_eq!(all, [all[0]; LANES], "the lanes have different values: {}", instruction.text);
                    all[0]
                };
                let [a, b, adds] = [0, 1, 2].map(|i| uniform(rest[i]));
                let plain = [3, 4, 5, 6].map(|i| uniform(rest[i]));
                assert_eq!(plain, [1, 1, 0, 0], "a negated or transposed operand: {}", instruction.text);
                self.products.push(Product { tile, descriptors: [a, b], adds: adds != 0, sums });
            }
            What::CloseProducts => self.product_groups.push_back(std::mem::take(&mut self.products)),
            What::WaitForProducts => {
                let left = self.get(operands[0], 0, Some(block)) as usize;
                while self.product_groups.len() > left {
                    for product in self.product_groups.pop_front().unwrap_or_default() {
                        self.multiply_group(block, &product);
                    }
                }
            }
            What::Meet | What::Nothing => {}
            What::Branch(_) | What::End | What::Barrier => unreachable!("it has been done"),
        }
    }

    fn multiply_group(&mut self, block: &mut Block, product: &Product) {
        let Product { tile, descriptors, adds, sums: registers } = product;
        let mut sums: Vec<Lanes> = registers.iter().map(|register| self.all(*register, block)).collect();
        let shared = &block.shared;
        let read = |at: u64| {
            let first = (at - FIRST_SHARED) as usize;
            u16::from_le_bytes([shared[first], shared[first + 1]])
        };
        multiply_group(*tile, self.number % 4, *descriptors, *adds, &mut sums, read);
        registers.iter().zip(&sums).for_each(|(to, sums)| self.set(*to, u32::MAX, sums));
    }

    fn compute(&mut self, block: &Block, compute: Compute, operands: &[Operand], mask: u32) {
        let all = |i: usize| self.all(operands[i], block);
        let mut values = [0; LANES];
        match compute {
            Compute::One(f) => {
                let a = all(1);
                lanes(mask).for_each(|lane| values[lane] = f(a[lane]));
            }
            Compute::Two(f) => {
                let (a, b) = (all(1), all(2));
                lanes(mask).for_each(|lane| values[lane] = f(a[lane], b[lane]));
            }
            Compute::Three(f) => {
                let (a, b, c) = (all(1), all(2), all(3));
                lanes(mask).for_each(|lane| values[lane] = f(a[lane], b[lane], c[lane]));
            }
            Compute::Carried { of, reads, writes } => {
                let (a, b) = (all(1), all(2));
                let c = if operands.len() > 3 { all(3) } else { [0; LANES] };
                let narrow = |value: u64| value & 0xffff_ffff;
                for lane in lanes(mask) {
                    let carry = if reads { self.carry[lane] } else { 0 };
                    values[lane] = of(narrow(a[lane]), narrow(b[lane]), narrow(c[lane]), carry);
                    if writes {
                        self.carry[lane] = values[lane] >> 32 & 1;
                    }
                }
            }
        }
        self.set(operands[0], mask, &values);
    }

    /// Copies one register to another, packs several into one (the first into the lowest bits), or unpacks one into
    /// several.
    fn copy_registers(&mut self, block: &Block, operands: &[Operand], mask: u32) {
        let whole = self.width(operands[0]);
        let is_apart = operands.len() > 2
            && matches!(operands[1], Operand::Register(register) if self.entry.widths[register] == whole)
            && matches!(operands[operands.len() - 1], Operand::Register(from) if self.entry.widths[from] > whole);
        if is_apart {
            let (to, from) = operands.split_at(operands.len() - 1);
            let from = self.all(from[0], block);
            for (i, to) in to.iter().enumerate() {
                let part = from.map(|value| value >> (i as u32 * whole));
                self.set(*to, mask, &part);
            }
            return;
        }
        let from: Vec<Lanes> = operands[1..].iter().map(|from| self.all(*from, block)).collect();
        let each = whole / from.len() as u32;
        let kept = u64::MAX >> (64 - each);
        let joined = std::array::from_fn(|lane| {
            from.iter().enumerate().fold(0, |all, (i, from)| all | (from[lane] & kept) << (i as u32 * each))
        });
        self.set(operands[0], mask, &joined);
    }

    /// Runs a shuffle with the operands `d|p, a, b, c, mask` or `d, a, b, c, mask`.
    fn shuffle(&mut self, block: &Block, how: Shuffle, operands: &[Operand], mask: u32) {
        let rest = &operands[operands.len() - 4..];
        let [a, b, c] = [0, 1, 2].map(|i| self.all(rest[i], block));
        let (mut values, mut inside) = (a, [0; LANES]);
        for lane in lanes(mask) {
            let (by, segment) = ((b[lane] & 31) as i64, c[lane] >> 8 & 31);
            let clamp = (c[lane] & 31) as i64;
            let here = lane as i64;
            let segment = segment.cast_signed();
            let (first, last) = (here & segment, (here & segment) | (clamp & !segment));
            let from = match how {
                Shuffle::Up => here - by,
                Shuffle::Down => here + by,
                Shuffle::Butterfly => here ^ by,
                Shuffle::Index => first | (by & !segment),
            };
            let is_inside = if how == Shuffle::Up { from >= last } else { from <= last };
            if is_inside {
                assert!(
                    mask >> from & 1 == 1,
                    "lane {lane} reads a value of lane {from}, which does not take part"
                );
                values[lane] = a[from as usize];
            }
            inside[lane] = u64::from(is_inside);
        }
        self.set(operands[0], mask, &values);
        if operands.len() == 6 {
            self.set(operands[1], mask, &inside);
        }
    }
}

/// Reads `bytes` bytes as a number.
///
/// # Safety
/// `at` points to `bytes` readable bytes.
unsafe fn read(at: *const u8, bytes: usize) -> u64 {
    let mut all = [0; 8];
    // SAFETY: guaranteed by the caller.
    unsafe { std::ptr::copy_nonoverlapping(at, all.as_mut_ptr(), bytes) };
    u64::from_le_bytes(all)
}

/// Writes the low `bytes` bytes of a number.
///
/// # Safety
/// `at` points to `bytes` writable bytes.
unsafe fn write(at: *mut u8, bytes: usize, value: u64) {
    // SAFETY: guaranteed by the caller.
    unsafe { std::ptr::copy_nonoverlapping(value.to_le_bytes().as_ptr(), at, bytes) };
}
