//! Read-back of the drawn tokens. Kernels write them into pinned memory, one slot for each pass, so one pass can follow
//! another before its tokens are read.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::memory::Pinned;
use super::queue::Queue;
use super::{Cuda, Mark};
use llama_trace_core::error::Result;
use llama_trace_engine::backend::Drawn;
use llama_trace_kernels::driver::Address;

/// Bytes of a `struct Drawn` of the kernels.
pub(super) const DRAWN: usize = 8;

/// Maximum number of passes in flight: one pass, and the next pass, which is launched before the tokens of the first
/// are known.
const UNDER_WAY: usize = 2;

/// Drawn tokens in flight, one slot for each pass.
#[derive(Default)]
pub(super) struct TokenReadback(Mutex<Places>);

#[derive(Default)]
struct Places {
    /// [`UNDER_WAY`] slots.
    memory: Option<Arc<Pinned>>,
    /// The slot that is written next.
    next: usize,
    /// The slots that were not read yet: the event of their end, their first byte, and their size in bytes.
    under_way: VecDeque<(Mark, usize, usize)>,
}

impl TokenReadback {
    fn places(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Discards the tokens in flight, and makes slots of `bytes` bytes.
    pub(super) fn begin(&self, queue: &Arc<Queue>, bytes: usize) -> Result<()> {
        let mut places = self.places();
        places.under_way.clear();
        if bytes > 0 && places.memory.as_ref().is_none_or(|memory| memory.bytes() < bytes * UNDER_WAY) {
            places.memory = Some(Arc::new(Pinned::new(queue, bytes * UNDER_WAY)?));
        }
        Ok(())
    }

    /// Returns the slot for the next draw: its first byte, and its address.
    pub(super) fn place(&self) -> (usize, Address) {
        let places = self.places();
        let Some(memory) = &places.memory else { return (0, 0) };
        let first = places.next * (memory.bytes() / UNDER_WAY);
        (first, memory.at(first))
    }

    /// Records that queued kernels write `bytes` bytes to the slot at byte `first`.
    pub(super) fn asked(&self, cuda: &Cuda, first: usize, bytes: usize) -> Result<()> {
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

    /// Waits for the oldest unread slot, and returns its tokens; none if there is no such slot.
    pub(super) fn first(&self, cuda: &Cuda) -> Result<Vec<Drawn>> {
        let (first, memory) = {
            let mut places = self.places();
            (places.under_way.pop_front(), places.memory.clone())
        };
        let (Some((there, first, bytes)), Some(memory)) = (first, memory) else { return Ok(Vec::new()) };
        if let Some(event) = there.event {
            cuda.queue.reach(event, &cuda.stop)?;
        }
        Ok(drawn_of(memory.see(first..first + bytes)))
    }
}

/// Parses drawn tokens. `bytes` may be unaligned, as on the device that only lists kernels.
fn drawn_of(bytes: &[u8]) -> Vec<Drawn> {
    let all = bytes.as_chunks::<DRAWN>().0.iter();
    all.map(|drawn| {
        let [id, not]: [u32; DRAWN / 4] = bytemuck::pod_read_unaligned(drawn);
        Drawn { id, not_a_number: not != 0 }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_drawn_is_read_from_any_address() {
        let bytes = [9_u32, 7, 0, 8, 1].map(u32::to_ne_bytes).concat();
        for beyond in 0..4 {
            let moved = [&vec![0; beyond], &bytes[4..]].concat();
            let drawn = drawn_of(&moved[beyond..]);
            let found: Vec<_> = drawn.iter().map(|drawn| (drawn.id, drawn.not_a_number)).collect();
            assert_eq!(found, [(7, false), (8, true)]);
        }
        assert_eq!(drawn_of(&[]).len(), 0);
    }
}
