//! The input of a pass, in the device's memory.

use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

use super::memory::Growing;
use super::queue::Queue;
use super::stage_readback::StageReadback;
use super::token_readback::{DRAWN, TokenReadback};
use llama_trace_core::error::Result;
use llama_trace_engine::backend::{Draw, Span};
use llama_trace_kernels::driver::Address;

/// The input of a pass, in this order: for each span (first row, start, T, K), int32 each; for each draw its random
/// number, float64; the ids of all rows, int32 each; the positions of all rows, int32 each. The drawn tokens are in
/// another buffer.
#[derive(Default)]
pub struct Pass {
    memory: Growing,
    at: Address,
    spans: Vec<Span>,
    rows: usize,
    draws: Vec<Draw>,
    drawn: Growing,
    drawn_at: Address,
    /// Whether the input tokens are the tokens that the last pass drew.
    follows: bool,
    /// Whether the device computes this pass's spans from those of the last pass.
    moves_on: bool,
    /// How many of the first two kernels of a pass were queued: 1, the embedding; 2, also the tables of RoPE.
    begun: AtomicU8,
    /// Read-back of the drawn tokens.
    pub(super) token_readback: TokenReadback,
    /// Read-back of recorded values.
    pub(super) stage_readback: StageReadback,
}

/// Bytes of a `struct Span` of the kernels.
const SPAN: usize = 16;

impl Pass {
    /// Begins a pass over `spans`.
    pub(super) fn begin(
        &mut self,
        queue: &Arc<Queue>,
        ids: &[u32],
        spans: &[Span],
        draws: &[Draw],
    ) -> Result<()> {
        assert!(draws.is_empty() || draws.len() == spans.len(), "one draw for each span, or no draws");
        let bytes = (draws.len() * DRAWN).next_power_of_two();
        self.drawn_at = self.drawn.room(queue, bytes, false)?;
        self.token_readback.begin(queue, if draws.is_empty() { 0 } else { bytes })?;
        (self.follows, self.moves_on) = (false, false);
        *self.begun.get_mut() = 0;
        self.set(ids, spans, draws);
        self.write(queue, ids)
    }

    /// Begins the following pass: the input of each span is the token that was drawn for it.
    pub(super) fn follow(&mut self, queue: &Arc<Queue>, spans: &[Span], draws: &[Draw]) -> Result<()> {
        let counts = (self.draws.len(), spans.len(), draws.len());
        assert!(
            counts.0 == counts.1 && counts.1 == counts.2,
            "the last pass and this pass draw one token for each span"
        );
        assert!(spans.iter().all(|span| span.tokens == 1), "one token was drawn for each span");
        let follow =
            |(span, last): (&Span, &Span)| span.start == last.keys() && span.sequence == last.sequence;
        assert!(spans.iter().zip(&self.spans).all(follow), "each span begins where the last one ended");
        // If the last pass read the same number of tokens, the memory layout stays, and only the random numbers are
        // written.
        (self.follows, self.moves_on) = (true, self.rows == spans.len());
        *self.begun.get_mut() = 0;
        // The device reads the drawn ids instead of these.
        let ids = vec![0; spans.len()];
        self.set(&ids, spans, draws);
        if !self.moves_on {
            return self.write(queue, &ids);
        }
        let randoms: Vec<f64> = draws.iter().map(|draw| draw.random).collect();
        match self.memory.memory() {
            Some(memory) if draws.iter().any(|draw| draw.temperature != 0.0) => {
                memory.write((self.random(0) - self.at) as usize, bytemuck::cast_slice(&randoms))
            }
            _ => Ok(()),
        }
    }

    /// Sets the spans and draws of the pass.
    fn set(&mut self, ids: &[u32], spans: &[Span], draws: &[Draw]) {
        self.spans.clear();
        self.spans.extend_from_slice(spans);
        self.draws.clear();
        self.draws.extend_from_slice(draws);
        self.rows = ids.len();
    }

    /// Writes the whole input to the device with one copy.
    fn write(&mut self, queue: &Arc<Queue>, ids: &[u32]) -> Result<()> {
        let Self { spans, draws, .. } = self;
        let mut words: Vec<u32> = Vec::with_capacity(spans.len() * 4 + draws.len() * 2 + ids.len() * 2);
        let mut first = 0;
        for span in &*spans {
            words.extend([first, span.start, span.tokens, span.keys()].map(|number| number as u32));
            first += span.tokens;
        }
        words.extend(draws.iter().flat_map(|draw| {
            let bits = draw.random.to_bits();
            [bits as u32, (bits >> 32) as u32]
        }));
        words.extend_from_slice(ids);
        words.extend(spans.iter().flat_map(|span| span.start..span.keys()).map(|position| position as u32));
        let bytes: &[u8] = bytemuck::cast_slice(&words);
        self.at = self.memory.room(queue, bytes.len().next_power_of_two(), false)?;
        match self.memory.memory() {
            Some(memory) => memory.write(0, bytes),
            None => Ok(()),
        }
    }

    /// Records that the embedding is queued.
    pub(super) fn embeds(&self) {
        self.begun.store(1, Relaxed);
    }

    /// Records that the tables of RoPE are queued after the embedding.
    pub(super) fn tabulates(&self) {
        let _ = self.begun.compare_exchange(1, 2, Relaxed, Relaxed);
    }

    /// Whether all earlier work and the embedding have completed when the next kernel starts. The embedding and the
    /// tables of RoPE wait for all earlier work, and only then let the next kernel start.
    pub(super) fn is_ahead(&self) -> bool {
        self.begun.load(Relaxed) == 2
    }

    pub(super) fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// R: the number of tokens of all spans.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// The address of the description of span number `span`. The descriptions of later spans follow.
    pub(super) fn span(&self, span: usize) -> Address {
        self.at + (span * SPAN) as u64
    }

    /// The draw after each span; empty if no token is drawn.
    pub(super) fn draws(&self) -> &[Draw] {
        &self.draws
    }

    /// The address of the random number of draw number `draw`; the numbers of later draws follow.
    pub(super) fn random(&self, draw: usize) -> Address {
        self.span(self.spans.len()) + (draw * size_of::<f64>()) as u64
    }

    /// The address of the result of draw number `draw`; the results of later draws follow.
    pub(super) fn drawn(&self, draw: usize) -> Address {
        self.drawn_at + (draw * DRAWN) as u64
    }

    /// The address of the ids that the pass reads, and the distance from one id to the next in int32 values.
    pub(super) fn ids(&self) -> (Address, usize) {
        if self.follows { (self.drawn_at, DRAWN / 4) } else { (self.given_ids(), 1) }
    }

    /// The addresses of the spans and the positions, if the device computes them from those of the last pass; otherwise
    /// null.
    pub(super) fn moves_on(&self) -> [Address; 2] {
        if self.moves_on { [self.at, self.positions()] } else { [0; 2] }
    }

    /// The address of the ids that were given when the pass began.
    fn given_ids(&self) -> Address {
        self.random(self.draws.len())
    }

    /// The address of the positions.
    pub(super) fn positions(&self) -> Address {
        self.given_ids() + (self.rows * 4) as u64
    }
}
