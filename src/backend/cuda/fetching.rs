//! Stages on their way to whoever looks on: kernels write them into pinned memory of the pass, in the order of the device's
//! work, and nobody waits before the pass is over or the memory is full.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Cuda;
use super::driver::{Address, Arguments};
use super::kernels::Kernel;
use super::memory::{Memory, Pinned};
use crate::backend::Fetched;
use crate::error::Result;

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
    memory: Option<Arc<Pinned>>,
    used: usize,
    /// Whether the device was waited for after the last launch that writes here.
    there: bool,
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
        places.memory = Pinned::new(&cuda.queue, BYTES).ok().map(Arc::new);
    }
    let Some(at) = places.memory.as_ref().map(|pinned| pinned.at(first)) else { return Ok(None) };
    (places.used, places.there) = (first + bytes, false);
    Ok(Some((Fetched(first..first + bytes), at)))
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
    cuda.kernels.launch(kernel, (range.len().div_ceil(512), 1), 128, 0, arguments)?;
    Ok(Some(fetched))
}

/// Shows what was fetched; the first time after a launch that writes here it waits for the device.
pub(super) fn show(
    cuda: &Cuda,
    fetched: &Fetched,
    memory: &Fetching,
    see: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let pinned = {
        let mut places = memory.places();
        if !places.there {
            cuda.queue.wait(&cuda.stop)?;
            places.there = true;
        }
        places.memory.clone()
    };
    see(pinned.as_ref().map_or(&[], |pinned| pinned.see(fetched.0.clone())))
}

/// Nobody wants any more what was fetched. What the device still has to write comes before what is written next.
pub(super) fn clear(memory: &Fetching) {
    memory.places().used = 0;
}
