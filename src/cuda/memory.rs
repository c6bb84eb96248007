//! The device's memory: what is made returns an error instead of ending the process, and what is dropped is given back.

use std::ops::Range;
use std::sync::Arc;

use super::driver::Address;
use super::queue::Queue;
use llama_trace_core::error::Result;

/// Bytes on the device, which belong to whoever holds them.
pub(super) struct Memory {
    queue: Arc<Queue>,
    /// None where there are no bytes.
    at: Option<Address>,
    bytes: usize,
}

impl Memory {
    /// `bytes` bytes with anything in them.
    pub(super) fn new(queue: &Arc<Queue>, bytes: usize) -> Result<Self> {
        // Copies into shared memory take 16 bytes at a time, the last of them too.
        let whole = bytes.checked_next_multiple_of(16).unwrap_or(bytes);
        let at = if bytes == 0 { None } else { Some(queue.device().allocate(whole)?) };
        Ok(Self { queue: Arc::clone(queue), at, bytes })
    }

    /// `bytes` zeros.
    pub(super) fn zeros(queue: &Arc<Queue>, bytes: usize) -> Result<Self> {
        let memory = Self::new(queue, bytes)?;
        if let Some(at) = memory.at {
            queue.ask(|device| device.clear(at, bytes))?;
        }
        Ok(memory)
    }

    /// These bytes.
    pub(super) fn of(queue: &Arc<Queue>, bytes: &[u8]) -> Result<Self> {
        let memory = Self::new(queue, bytes.len())?;
        memory.write(0, bytes)?;
        Ok(memory)
    }

    /// Where it begins; null where there are no bytes.
    pub(super) fn at(&self) -> Address {
        self.at.unwrap_or(0)
    }

    /// How many bytes these are.
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

    /// Copies `from` of another memory to byte `to` on.
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
            // What waits may use it. Where the device is lost, so is the memory.
            self.queue.ask_anyway(|device| device.free(at));
        }
    }
}

/// Memory of the processor that kernels write to as to the device's.
pub(super) struct Pinned {
    queue: Arc<Queue>,
    at: Address,
    bytes: usize,
}

impl Pinned {
    /// `bytes` bytes with anything in them.
    pub(super) fn new(queue: &Arc<Queue>, bytes: usize) -> Result<Self> {
        Ok(Self { at: queue.device().pin(bytes)?, queue: Arc::clone(queue), bytes })
    }

    /// Where byte `first` is, for the device.
    pub(super) fn at(&self, first: usize) -> Address {
        self.at + first as u64
    }

    /// How many bytes these are.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of it, at a moment when no kernel writes there.
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
        // What waits may write there.
        self.queue.ask_anyway(|device| device.unpin(self.at));
    }
}

/// Activations, float32. An input that a product reads shares the memory.
pub struct Buffer {
    pub(super) memory: Arc<Memory>,
}

impl Buffer {
    /// `count` zeros.
    pub(super) fn new(queue: &Arc<Queue>, count: usize) -> Result<Self> {
        let bytes = count.saturating_mul(size_of::<f32>());
        Ok(Self { memory: Arc::new(Memory::zeros(queue, bytes)?) })
    }

    /// What is in this memory.
    pub(super) fn over(memory: Memory) -> Self {
        Self { memory: Arc::new(memory) }
    }

    /// Where value `first` is.
    pub(super) fn at(&self, first: usize) -> Address {
        debug_assert!(first * size_of::<f32>() <= self.memory.bytes(), "a buffer is not left");
        self.memory.at() + (first * size_of::<f32>()) as u64
    }

    /// Checks that it has `count` values.
    pub(super) fn holds(&self, count: usize) {
        assert!(count * size_of::<f32>() <= self.memory.bytes(), "a buffer has as many values as are used");
    }
}

/// A weight vector, float32.
pub struct Vector {
    pub(super) memory: Memory,
}

impl Vector {
    /// How many values it has.
    pub(super) fn len(&self) -> usize {
        self.memory.bytes() / size_of::<f32>()
    }

    /// Where it is.
    pub(super) fn at(&self) -> Address {
        self.memory.at()
    }
}

/// Memory that grows where more is wanted, and is written anew each time.
#[derive(Default)]
pub(super) struct Growing {
    memory: Option<Arc<Memory>>,
}

impl Growing {
    /// Room for `bytes` bytes; zeros where `cleared` and it is new.
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

    /// What it is.
    pub(super) fn memory(&self) -> Option<&Arc<Memory>> {
        self.memory.as_ref()
    }
}
