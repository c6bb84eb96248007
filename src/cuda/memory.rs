//! The device's memory. A failed allocation returns an error instead of ending the process. Dropped memory is freed.

use std::ops::Range;
use std::sync::Arc;

use super::queue::Queue;
use llama_trace_core::error::Result;
use llama_trace_engine::backend;
use llama_trace_kernels::driver::Address;

/// Bytes on the device, owned by this value.
pub(super) struct Memory {
    queue: Arc<Queue>,
    /// `None` for zero bytes.
    at: Option<Address>,
    bytes: usize,
}

impl Memory {
    /// Allocates `bytes` bytes, uninitialised.
    pub(super) fn new(queue: &Arc<Queue>, bytes: usize) -> Result<Self> {
        // Kernels copy 16 bytes at a time into shared memory. The last copy must not reach beyond the allocation.
        let whole = bytes.checked_next_multiple_of(16).unwrap_or(bytes);
        let at = if bytes == 0 { None } else { Some(queue.device().allocate(whole)?) };
        Ok(Self { queue: Arc::clone(queue), at, bytes })
    }

    /// Allocates `bytes` zeros.
    pub(super) fn zeros(queue: &Arc<Queue>, bytes: usize) -> Result<Self> {
        let memory = Self::new(queue, bytes)?;
        if let Some(at) = memory.at {
            queue.ask(|device| device.clear(at, bytes))?;
        }
        Ok(memory)
    }

    /// Allocates a copy of these bytes.
    pub(super) fn of(queue: &Arc<Queue>, bytes: &[u8]) -> Result<Self> {
        let memory = Self::new(queue, bytes.len())?;
        memory.write(0, bytes)?;
        Ok(memory)
    }

    /// The address; null for zero bytes.
    pub(super) fn at(&self) -> Address {
        self.at.unwrap_or(0)
    }

    /// The size in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes `bytes` from byte `first` on.
    pub(super) fn write(&self, first: usize, bytes: &[u8]) -> Result<()> {
        assert!(first + bytes.len() <= self.bytes, "nothing is written beyond the memory");
        match self.at {
            Some(at) if !bytes.is_empty() => self.queue.ask(|device| device.write(bytes, at + first as u64)),
            _ => Ok(()),
        }
    }

    /// Reads from byte `first` on.
    pub(super) fn read(&self, first: usize, bytes: &mut [u8]) -> Result<()> {
        assert!(first + bytes.len() <= self.bytes, "nothing is read beyond the memory");
        match self.at {
            Some(at) if !bytes.is_empty() => self.queue.ask(|device| device.read(at + first as u64, bytes)),
            _ => Ok(()),
        }
    }

    /// Copies the range `from` of another memory to byte `to` on.
    pub(super) fn take(&self, other: &Self, from: Range<usize>, to: usize) -> Result<()> {
        assert!(
            from.end <= other.bytes && to + from.len() <= self.bytes,
            "nothing is copied beyond the memory"
        );
        if from.is_empty() {
            return Ok(());
        }
        let (source, target) = (other.at() + from.start as u64, self.at() + to as u64);
        self.queue.ask(|device| device.copy(source, target, from.len()))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(at) = self.at {
            // Launches in the queue may use the memory, so they are sent first. If the device is lost, so is the
            // memory.
            self.queue.ask_anyway(|device| device.free(at));
        }
    }
}

/// Pinned host memory. Kernels write to it as they write to the device's memory.
pub(super) struct Pinned {
    queue: Arc<Queue>,
    at: Address,
    bytes: usize,
}

impl Pinned {
    /// Allocates `bytes` bytes, uninitialised.
    pub(super) fn new(queue: &Arc<Queue>, bytes: usize) -> Result<Self> {
        Ok(Self { at: queue.device().pin(bytes)?, queue: Arc::clone(queue), bytes })
    }

    /// The device's address of byte `first`.
    pub(super) fn at(&self, first: usize) -> Address {
        self.at + first as u64
    }

    /// The size in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns bytes of the memory. No kernel may write there meanwhile.
    pub(super) fn see(&self, range: Range<usize>) -> &[u8] {
        assert!(range.end <= self.bytes, "nothing is read beyond the memory");
        match range.is_empty() {
            true => &[],
            false => self.queue.device().pinned(self.at(range.start), range.len()),
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // Launches in the queue may write there, so they are sent first.
        self.queue.ask_anyway(|device| device.unpin(self.at));
    }
}

/// Activations, float32. The input of a product shares the memory.
pub struct Buffer {
    pub(super) memory: Arc<Memory>,
}

impl Buffer {
    /// Allocates `count` zeros.
    pub(super) fn new(queue: &Arc<Queue>, count: usize) -> Result<Self> {
        let bytes = count.saturating_mul(size_of::<f32>());
        Ok(Self { memory: Arc::new(Memory::zeros(queue, bytes)?) })
    }

    /// A buffer over this memory.
    pub(super) fn over(memory: Memory) -> Self {
        Self { memory: Arc::new(memory) }
    }

    /// The address of value `first`.
    pub(super) fn at(&self, first: usize) -> Address {
        debug_assert!(first * size_of::<f32>() <= self.memory.bytes(), "the address is in the buffer");
        self.memory.at() + (first * size_of::<f32>()) as u64
    }

    /// Checks that the buffer has at least `count` values.
    pub(super) fn holds(&self, count: usize) {
        assert!(count * size_of::<f32>() <= self.memory.bytes(), "the buffer has at least {count} values");
    }
}

/// Returns the device's buffer behind a handle.
pub(super) fn own(buffer: &backend::Buffer) -> &Buffer {
    buffer.downcast()
}

/// A weight vector, float32.
pub struct Vector {
    pub(super) memory: Memory,
}

impl Vector {
    /// The number of values.
    pub(super) fn len(&self) -> usize {
        self.memory.bytes() / size_of::<f32>()
    }

    /// The address.
    pub(super) fn at(&self) -> Address {
        self.memory.at()
    }
}

/// Memory that grows on demand. Its contents are not kept.
#[derive(Default)]
pub(super) struct Growing {
    memory: Option<Arc<Memory>>,
}

impl Growing {
    /// Returns the address of at least `bytes` bytes. New memory is zeroed if `cleared`.
    pub(super) fn room(&mut self, queue: &Arc<Queue>, bytes: usize, cleared: bool) -> Result<Address> {
        match &self.memory {
            Some(memory) if memory.bytes() >= bytes => {}
            _ => {
                let make = if cleared { Memory::zeros } else { Memory::new };
                self.memory = Some(Arc::new(make(queue, bytes)?));
            }
        }
        Ok(self.memory.as_ref().map_or(0, |memory| memory.at()))
    }

    /// The memory; `None` before the first use.
    pub(super) fn memory(&self) -> Option<&Arc<Memory>> {
        self.memory.as_ref()
    }
}
