//! Read-back of recorded stages. Kernels pack the stages into the memory of the pass, in the order of the device's
//! work. One copy transfers the stages of a layer to the host, while the device computes the next layer. The host waits
//! only at the end of the pass, or if this memory is full.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Cuda;
use super::kernels::Kernel;
use super::memory::{Memory, Pinned};
use llama_trace_core::error::Result;
use llama_trace_engine::backend::Fetched;
use llama_trace_kernels::driver::{Address, Arguments, Event};

/// Bytes of a pass's memory for stages. In a decode pass, it has room for the stages of several layers of the largest
/// models. In tests it is so small that a prompt fills it.
const BYTES: usize = if cfg!(test) { 64 << 10 } else { 32 << 20 };

/// The alignment of each stage in bytes.
pub(super) const ALIGNED: usize = 256;

/// The memory of one pass for stages. It is allocated at the first recorded stage.
#[derive(Default)]
pub(super) struct StageReadback(Mutex<Places>);

#[derive(Default)]
struct Places {
    /// The memory that kernels write, and the pinned memory that the host reads.
    memory: Option<(Arc<Memory>, Arc<Pinned>)>,
    used: usize,
    /// The number of bytes, from the start on, that are on the host or in flight.
    brought: usize,
    /// The event of the last copy in flight.
    in_flight: Option<Event>,
}

impl StageReadback {
    fn places(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reserves `bytes` bytes that the next launch writes; `None` if there is no room.
pub(super) fn place(cuda: &Cuda, memory: &StageReadback, bytes: usize) -> Result<Option<(Fetched, Address)>> {
    let mut places = memory.places();
    let first = places.used.next_multiple_of(ALIGNED);
    if bytes > BYTES - first.min(BYTES) {
        return Ok(None);
    }
    if places.memory.is_none() {
        // If the allocation fails, there is no room, and stages are read one by one.
        let packed = Memory::new(&cuda.queue, BYTES).ok().map(Arc::new);
        places.memory = packed.zip(Pinned::new(&cuda.queue, BYTES).ok().map(Arc::new));
    }
    let Some(at) = places.memory.as_ref().map(|(packed, _)| packed.at()) else { return Ok(None) };
    places.used = first + bytes;
    Ok(Some((Fetched(first..first + bytes), at + first as u64)))
}

/// Starts to copy float32 values of `from`; `None` if there is no room.
pub(super) fn copy(
    cuda: &Cuda,
    from: &Memory,
    range: Range<usize>,
    memory: &StageReadback,
) -> Result<Option<Fetched>> {
    assert!(range.end * 4 <= from.bytes(), "nothing is read beyond the memory");
    let Some((fetched, out)) = place(cuda, memory, range.len() * 4)? else { return Ok(None) };
    let kernel = Kernel { file: "elementwise", name: "copy", weight: None };
    let first = from.at() + (range.start * 4) as u64;
    let arguments = Arguments::new().address(first).long(range.len()).address(out);
    cuda.kernels.launch_apart(kernel, (range.len().div_ceil(512).max(1), 1), 128, 0, arguments)?;
    Ok(Some(fetched))
}

/// Starts one copy to the host of everything that was packed since the last copy.
pub(super) fn bring(cuda: &Cuda, memory: &StageReadback) -> Result<()> {
    let mut places = memory.places();
    let Places { memory: Some((packed, pinned)), used, brought, .. } = &*places else { return Ok(()) };
    if brought == used {
        return Ok(());
    }
    let (from, to, bytes) = (packed.at() + *brought as u64, pinned.at(*brought), used - brought);
    let in_flight = cuda.queue.ask(|device| device.bring(from, to, bytes))?;
    places.brought = places.used;
    // Copies end in order, so only the last event is needed.
    if let Some(before) = places.in_flight.replace(in_flight) {
        cuda.queue.device().release(before);
    }
    Ok(())
}

/// Waits for the fetched bytes, and passes them to `see`.
pub(super) fn show(
    cuda: &Cuda,
    fetched: &Fetched,
    memory: &StageReadback,
    see: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    bring(cuda, memory)?;
    let pinned = {
        let mut places = memory.places();
        if let Some(in_flight) = places.in_flight.take() {
            let reached = cuda.queue.reach(in_flight, &cuda.stop);
            cuda.queue.device().release(in_flight);
            reached?;
        }
        places.memory.as_ref().map(|(_, pinned)| Arc::clone(pinned))
    };
    see(pinned.as_ref().map_or(&[], |pinned| pinned.see(fetched.0.clone())))
}

/// Discards the fetched stages and makes all memory free again. Copies in flight end before the copies of stages that
/// are packed later.
pub(super) fn clear(memory: &StageReadback) {
    let mut places = memory.places();
    (places.used, places.brought) = (0, 0);
}
