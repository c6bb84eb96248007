//! Sampling on the device, as a part of the pass. Only the drawn token ids go to the host.

use super::Cuda;
use super::kernels::Kernel;
use super::memory::{Buffer, Memory};
use super::pass::Pass;
use super::token_readback::DRAWN;
use llama_trace_core::error::Result;
use llama_trace_engine::backend::Draw;
use llama_trace_kernels::driver::{Address, Arguments};

/// Number of thread blocks for each row of logits.
const BLOCKS: usize = 64;

/// Maximum number of rows of one launch.
const ROWS: usize = 16;

/// Bytes of the kernels' `struct Largest` and `struct Sum`.
const LARGEST: usize = 16;
const SUM: usize = 16;

/// Number of bins, into which tokens are sorted by the leading digits of their rank: `BINS` of the kernels.
const BINS: usize = 1024;

/// Scratch memory of the draws.
pub(super) struct Place {
    /// The result of each block: (rows, blocks).
    parts: Memory,
    /// A counter for each row. The kernel leaves it at 0.
    counters: Memory,
    /// The probabilities: (rows, V).
    probs: Memory,
    /// The sum of each row's exponentials: (rows).
    totals: Memory,
    /// The bins of each row: (rows, bins).
    bins: Memory,
    /// The ids of likely tokens: up to (rows, V).
    ids: Memory,
}

impl Place {
    /// Allocates memory for draws from `rows` rows of `vocab` logits, but for at most the rows of one launch.
    pub(super) fn new(cuda: &Cuda, rows: usize, vocab: usize) -> Result<Self> {
        let of_tokens = rows.min(ROWS) * vocab * 4;
        Ok(Self {
            parts: Memory::new(&cuda.queue, ROWS * BLOCKS * LARGEST)?,
            counters: Memory::zeros(&cuda.queue, ROWS * 4)?,
            probs: Memory::new(&cuda.queue, of_tokens)?,
            totals: Memory::new(&cuda.queue, ROWS * 4)?,
            bins: Memory::new(&cuda.queue, ROWS * BINS * SUM)?,
            ids: Memory::new(&cuda.queue, of_tokens)?,
        })
    }

    /// Whether there is enough room.
    pub(super) fn has_room(&self, rows: usize, vocab: usize) -> bool {
        self.probs.bytes() >= rows.min(ROWS) * vocab * 4
    }

    /// Draws a token from each row of logits (spans, V) with the draws of `pass`.
    pub(super) fn draw(&self, cuda: &Cuda, logits: &Buffer, vocab: usize, pass: &Pass) -> Result<()> {
        logits.holds(pass.draws().len() * vocab);
        let alike = |a: &Draw, b: &Draw| Draw { random: 0.0, ..*a } == Draw { random: 0.0, ..*b };
        let mut first = 0;
        let (place, shown) = pass.token_readback.place();
        for draws in pass.draws().chunk_by(alike).flat_map(|alike| alike.chunks(ROWS)) {
            self.draw_alike(cuda, logits, vocab, pass, (first, draws), shown)?;
            first += draws.len();
        }
        // Each result is the token's id, and whether a logit is NaN.
        pass.token_readback.asked(cuda, place, pass.draws().len() * DRAWN)
    }

    /// Queues `draws`, which differ only in their random numbers; the first is number `first` of the pass. The results
    /// also go to the pinned memory at `shown`.
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
        let (all, totals, bins) = (self.probs.at(), self.totals.at(), self.bins.at());
        let logits = logits.float(temperature).address(parts);
        launch("sample_max", BLOCKS, 256, logits.address(bins))?;
        launch("sample_exp", vocab.div_ceil(256), 256, logits.int(BLOCKS).address(all))?;
        let probs = Arguments::new().address(all).int(vocab);
        launch("sample_sum", 1, 512, probs.address(totals))?;
        launch("sample_divide", BLOCKS, 1024, probs.address(totals).address(bins))?;
        // The kernel takes 0 as no limit.
        let limits = probs.address(bins).address(self.ids.at()).int(top_k.min(vocab)).float(top_p);
        let arguments = limits.address(pass.random(first)).address(parts).int(BLOCKS);
        launch("sample_draw", 1, 1024, to_drawn(arguments))
    }
}
