//! Stages on their way to whoever looks on: kernels pack them into memory of the pass, in the order of the device's work, and
//! one copy brings those of a layer here while the device goes on with the next. Nobody waits before the pass is over or the
//! memory is full.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Cuda;
use super::driver::{Address, Arguments, Event};
use super::kernels::Kernel;
use super::memory::{Memory, Pinned};
use llama_trace_core::error::Result;
use llama_trace_engine::backend::Fetched;

/// Bytes of the memory: a decode pass of the largest models has room for the stages of several layers. In tests so little
/// that it is full within a prompt.
const BYTES: usize = if cfg!(test) { 64 << 10 } else { 32 << 20 };

/// What the place of each stage is divisible by.
pub(super) const ALIGNED: usize = 256;

/// The memory of one pass, which is there from the first stage on that somebody wants.
#[derive(Default)]
pub(super) struct Fetching(Mutex<Places>);

#[derive(Default)]
struct Places {
    /// Where kernels write, and where the processor reads.
    memory: Option<(Arc<Memory>, Arc<Pinned>)>,
    used: usize,
    /// Bytes from the first on that are here, or on their way here.
    brought: usize,
    /// When those are here that are on their way.
    coming: Option<Event>,
}

impl Fetching {
    fn places(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place for `bytes` bytes that the next launch writes; none where there is no room.
pub(super) fn place(cuda: &Cuda, memory: &Fetching, bytes: usize) -> Result<Option<(Fetched, Address)>> {
    let mut places = memory.places();
    let first = places.used.next_multiple_of(ALIGNED);
    if bytes > BYTES - first.min(BYTES) {
        return Ok(None);
    }
    if places.memory.is_none() {
        // Where none is to be had, stages are read one by one.
        let packed = Memory::new(&cuda.queue, BYTES).ok().map(Arc::new);
        places.memory = packed.zip(Pinned::new(&cuda.queue, BYTES).ok().map(Arc::new));
    }
    let Some(at) = places.memory.as_ref().map(|(packed, _)| packed.at()) else { return Ok(None) };
    places.used = first + bytes;
    Ok(Some((Fetched(first..first + bytes), at + first as u64)))
}

/// Begins to copy float32 values of `from`; none where there is no room.
pub(super) fn copy(
    cuda: &Cuda,
    from: &Memory,
    range: Range<usize>,
    memory: &Fetching,
) -> Result<Option<Fetched>> {
    assert!(range.end * 4 <= from.bytes(), "nothing is read beyond the memory");
    let Some((fetched, out)) = place(cuda, memory, range.len() * 4)? else { return Ok(None) };
    let kernel = Kernel { file: "elementwise", name: "copy", weight: None };
    let first = from.at() + (range.start * 4) as u64;
    let arguments = Arguments::new().address(first).long(range.len()).address(out);
    cuda.kernels.launch_apart(kernel, (range.len().div_ceil(512).max(1), 1), 128, 0, arguments)?;
    Ok(Some(fetched))
}

/// Has what was packed so far be brought here, by one copy.
pub(super) fn bring(cuda: &Cuda, memory: &Fetching) -> Result<()> {
    let mut places = memory.places();
    let Places { memory: Some((packed, pinned)), used, brought, .. } = &*places else { return Ok(()) };
    if brought == used {
        return Ok(());
    }
    let (from, to, bytes) = (packed.at() + *brought as u64, pinned.at(*brought), used - brought);
    let coming = cuda.queue.ask(|device| device.bring(from, to, bytes))?;
    places.brought = places.used;
    // What was asked for before comes before.
    if let Some(before) = places.coming.replace(coming) {
        cuda.queue.device().release(before);
    }
    Ok(())
}

/// Shows what was fetched, once it is here.
pub(super) fn show(
    cuda: &Cuda,
    fetched: &Fetched,
    memory: &Fetching,
    see: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    bring(cuda, memory)?;
    let pinned = {
        let mut places = memory.places();
        if let Some(coming) = places.coming.take() {
            let reached = cuda.queue.reach(coming, &cuda.stop);
            cuda.queue.device().release(coming);
            reached?;
        }
        places.memory.as_ref().map(|(_, pinned)| Arc::clone(pinned))
    };
    see(pinned.as_ref().map_or(&[], |pinned| pinned.see(fetched.0.clone())))
}

/// Discards what was fetched. Copies of it that were begun come before those of what is packed next.
pub(super) fn clear(memory: &Fetching) {
    let mut places = memory.places();
    (places.used, places.brought) = (0, 0);
}
