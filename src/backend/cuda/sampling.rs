//! Drawing a token on the device: what crosses to the host is its id.

use super::Cuda;
use super::driver::{Address, Arguments};
use super::kernels::Kernel;
use super::memory::{Buffer, Memory};
use crate::backend::{Draw, Drawn};
use crate::error::Result;

/// Blocks that look at a part of the logits each.
const BLOCKS: usize = 64;

/// What a draw needs beside the logits, in one memory.
pub(super) struct Place {
    memory: Memory,
    probs: Memory,
}

/// Where things are in the memory, in bytes: the random number, what was drawn, whether some logit is not
/// a number, a counter, then a value and an id for
/// each block.
const RANDOM: usize = 0;
const DRAWN: usize = 8;
const NOT_A_NUMBER: usize = 12;
const COUNTER: usize = 16;
const VALUES: usize = 32;
const IDS: usize = VALUES + BLOCKS * 4;
const END: usize = IDS + BLOCKS * 4;

impl Place {
    /// Room to draw from `vocab` logits.
    pub(super) fn new(cuda: &Cuda, vocab: usize) -> Result<Self> {
        let memory = Memory::zeros(&cuda.queue, END)?;
        Ok(Self { memory, probs: Memory::new(&cuda.queue, vocab * 4)? })
    }

    /// Whether there is room for `vocab` logits.
    pub(super) fn has_room(&self, vocab: usize) -> bool {
        self.probs.bytes() >= vocab * 4
    }

    fn at(&self, byte: usize) -> Address {
        self.memory.at() + byte as u64
    }

    /// Draws from the `vocab` logits from value `first` on.
    pub(super) fn draw(
        &self,
        cuda: &Cuda,
        logits: &Buffer,
        first: usize,
        vocab: usize,
        draw: Draw,
    ) -> Result<Drawn> {
        let Draw { temperature, top_k, top_p, random } = draw;
        logits.holds(first + vocab);
        let launch = |name, grid, block, arguments| {
            cuda.kernels.launch(Kernel { file: "sample", name, weight: None }, (grid, 1), block, 0, arguments)
        };
        let logits = Arguments::new().address(logits.at(first)).int(vocab);
        let arguments = logits.address(self.at(NOT_A_NUMBER));
        launch("not_a_number", BLOCKS, 256, arguments)?;
        if temperature == 0.0 {
            let arguments = logits.address(self.at(VALUES)).address(self.at(IDS)).address(self.at(COUNTER));
            launch("argmax", BLOCKS, 256, arguments.address(self.at(DRAWN)))?;
        } else {
            self.memory.write(RANDOM, &random.to_le_bytes())?;
            let logits = logits.float(temperature);
            launch("sample_max", BLOCKS, 256, logits.address(self.at(VALUES)))?;
            let arguments = logits.address(self.at(VALUES)).int(BLOCKS).address(self.probs.at());
            launch("sample_exp", vocab.div_ceil(256), 256, arguments)?;
            let probs = Arguments::new().address(self.probs.at()).int(vocab);
            launch("sample_sum", 1, 512, probs)?;
            // Of no limit the kernel knows by 0.
            let arguments = probs.int(top_k.min(vocab)).float(top_p).address(self.at(RANDOM));
            launch("sample_draw", 1, 1024, arguments.address(self.at(DRAWN)))?;
        }
        let mut drawn = [0_u32; 2];
        self.memory.read(DRAWN, bytemuck::cast_slice_mut(&mut drawn))?;
        let [id, not_a_number] = drawn;
        if not_a_number != 0 {
            self.memory.write(NOT_A_NUMBER, &[0; 4])?;
        }
        Ok(Drawn { id, not_a_number: not_a_number != 0 })
    }
}
