//! Drawing tokens on the device, as a part of the pass: what crosses to the host is their ids.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::driver::{Address, Arguments};
use super::kernels::Kernel;
use super::memory::{Buffer, Memory, Pinned};
use super::pass::{DRAWN, Pass};
use super::queue::Queue;
use super::{Cuda, Mark};
use crate::backend::{Draw, Drawn};
use crate::error::Result;

/// Blocks that look at a part of a row of logits each.
const BLOCKS: usize = 64;

/// Rows that are drawn from at once, at most.
const ROWS: usize = 16;

/// Bytes of a `struct Largest` of the kernels.
const LARGEST: usize = 16;

/// What draws need beside the logits.
pub(super) struct Place {
    /// What each block found: (rows, blocks).
    parts: Memory,
    /// One for each row, which the kernel leaves at 0.
    counters: Memory,
    /// (rows, V)
    probs: Memory,
}

impl Place {
    /// Room to draw from `rows` rows of `vocab` logits, or from as many as are drawn from at once.
    pub(super) fn new(cuda: &Cuda, rows: usize, vocab: usize) -> Result<Self> {
        Ok(Self {
            parts: Memory::new(&cuda.queue, ROWS * BLOCKS * LARGEST)?,
            counters: Memory::zeros(&cuda.queue, ROWS * 4)?,
            probs: Memory::new(&cuda.queue, rows.min(ROWS) * vocab * 4)?,
        })
    }

    /// Whether there is as much room.
    pub(super) fn has_room(&self, rows: usize, vocab: usize) -> bool {
        self.probs.bytes() >= rows.min(ROWS) * vocab * 4
    }

    /// Has a token be drawn from each row of logits (spans, V), as `pass` says.
    pub(super) fn draw(&self, cuda: &Cuda, logits: &Buffer, vocab: usize, pass: &Pass) -> Result<()> {
        logits.holds(pass.draws().len() * vocab);
        let alike = |a: &Draw, b: &Draw| Draw { random: 0.0, ..*a } == Draw { random: 0.0, ..*b };
        let mut first = 0;
        let (place, shown) = pass.coming.place();
        for draws in pass.draws().chunk_by(alike).flat_map(|alike| alike.chunks(ROWS)) {
            self.draw_alike(cuda, logits, vocab, pass, (first, draws), shown)?;
            first += draws.len();
        }
        // An id each, and whether a logit is not a number.
        pass.coming.asked(cuda, place, pass.draws().len() * DRAWN)
    }

    /// The draws from number `first` on, which differ in nothing but the random number; the place of what all draws draw is at
    /// `shown`.
    fn draw_alike(
        &self,
        cuda: &Cuda,
        logits: &Buffer,
        vocab: usize,
        pass: &Pass,
        (first, draws): (usize, &[Draw]),
        shown: Address,
    ) -> Result<()> {
        let rows = draws.len();
        let Draw { temperature, top_k, top_p, .. } = draws[0];
        let launch = |name, blocks, block, arguments| {
            let kernel = Kernel { file: "sample", name, weight: None };
            cuda.kernels.launch(kernel, (blocks, rows), block, 0, arguments)
        };
        let (parts, drawn) = (self.parts.at(), [pass.drawn(first), shown + (first * DRAWN) as u64]);
        let to_drawn = |arguments: Arguments| drawn.into_iter().fold(arguments, Arguments::address);
        let logits = Arguments::new().address(logits.at(first * vocab)).int(vocab);
        if temperature == 0.0 {
            let arguments = logits.address(parts).address(self.counters.at());
            return launch("argmax", BLOCKS, 256, to_drawn(arguments));
        }
        let logits = logits.float(temperature).address(parts);
        launch("sample_max", BLOCKS, 256, logits)?;
        launch("sample_exp", vocab.div_ceil(256), 256, logits.int(BLOCKS).address(self.probs.at()))?;
        let probs = Arguments::new().address(self.probs.at()).int(vocab);
        launch("sample_sum", 1, 512, probs)?;
        // Of no limit the kernel knows by 0.
        let arguments = probs.int(top_k.min(vocab)).float(top_p).address(pass.random(first));
        launch("sample_draw", 1, 1024, to_drawn(arguments.address(parts).int(BLOCKS)))
    }
}

/// Passes whose tokens may be on their way here at a time: one, and that which followed it before they were known.
const UNDER_WAY: usize = 2;

/// What was drawn and is on its way here: of each pass its tokens, in a place of their own.
#[derive(Default)]
pub(super) struct Coming(Mutex<Places>);

#[derive(Default)]
struct Places {
    /// [`UNDER_WAY`] places.
    memory: Option<Arc<Pinned>>,
    /// The place that is written next.
    next: usize,
    /// Of those that nobody has asked for: when they are there, the first of their bytes, and how many there are.
    under_way: VecDeque<(Mark, usize, usize)>,
}

impl Coming {
    fn places(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what is under way, and makes room for `bytes` bytes of each pass.
    pub(super) fn begin(&self, queue: &Arc<Queue>, bytes: usize) -> Result<()> {
        let mut places = self.places();
        places.under_way.clear();
        if bytes > 0 && places.memory.as_ref().is_none_or(|memory| memory.bytes() < bytes * UNDER_WAY) {
            places.memory = Some(Arc::new(Pinned::new(queue, bytes * UNDER_WAY)?));
        }
        Ok(())
    }

    /// Where the kernels write what they draw next: the first byte of the place, and its address.
    fn place(&self) -> (usize, Address) {
        let places = self.places();
        let Some(memory) = &places.memory else { return (0, 0) };
        let first = places.next * (memory.bytes() / UNDER_WAY);
        (first, memory.at(first))
    }

    /// The kernels have been asked to write `bytes` bytes there.
    fn asked(&self, cuda: &Cuda, first: usize, bytes: usize) -> Result<()> {
        let there =
            Mark { event: Some(cuda.queue.ask(|device| device.mark())?), queue: Arc::clone(&cuda.queue) };
        let mut places = self.places();
        places.next = (places.next + 1) % UNDER_WAY;
        if places.under_way.len() == UNDER_WAY {
            places.under_way.pop_front();
        }
        places.under_way.push_back((there, first, bytes));
        Ok(())
    }
}

/// What was drawn in the first of the passes whose tokens nobody has asked for, once it is.
pub(super) fn drawn(cuda: &Cuda, pass: &Pass) -> Result<Vec<Drawn>> {
    let (first, memory) = {
        let mut places = pass.coming.places();
        (places.under_way.pop_front(), places.memory.clone())
    };
    let (Some((there, first, bytes)), Some(memory)) = (first, memory) else { return Ok(Vec::new()) };
    if let Some(event) = there.event {
        cuda.queue.reach(event, &cuda.stop)?;
    }
    let words: &[[u32; DRAWN / 4]] = bytemuck::cast_slice(memory.see(first..first + bytes));
    Ok(words.iter().map(|[id, not]| Drawn { id: *id, not_a_number: *not != 0 }).collect())
}
