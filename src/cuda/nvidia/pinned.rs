//! Copies between host and device. They go through a pinned buffer with two halves: the device reads one half while the
//! other is filled. Large copies, such as weights, go through several such buffers in parallel, each with its own
//! thread. A single thread reads a mapped file at only a fraction of the bus's rate.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{MutexGuard, PoisonError};

use cudarc::driver::sys::{self, CUevent, CUstream};

use super::Nvidia;
use crate::probe_driver::check;
use llama_trace_core::error::Result;
use llama_trace_kernels::driver::Address;

/// Bytes of each half of a pinned buffer.
const HALF: usize = 4 << 20;

/// Number of pinned buffers for a large copy.
const PAIRS: usize = 8;

/// A pinned buffer in two halves, which the device reads and writes directly.
pub(super) struct Pinned {
    halves: [*mut u8; 2],
    /// For each half, the event after the device's last use of it.
    done: [CUevent; 2],
    next: usize,
}

impl Pinned {
    /// A buffer without memory.
    pub(super) const NONE: Self = Self { halves: [ptr::null_mut(); 2], done: [ptr::null_mut(); 2], next: 0 };

    /// Allocates pinned memory. If a step fails, the earlier allocations are freed when the device is closed.
    ///
    /// # Safety
    /// The device's context is current.
    pub(super) unsafe fn pin(&mut self) -> Result<()> {
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        for (half, done) in self.halves.iter_mut().zip(&mut self.done) {
            let mut memory: *mut c_void = ptr::null_mut();
            // SAFETY: each pointer is to a variable for a handle of its kind, and the context is current.
            unsafe {
                check(sys::cuMemAllocHost_v2(&raw mut memory, HALF), "pin memory for copies")?;
                *half = memory.cast();
                check(sys::cuEventCreate(done, flags), "create an event")?;
            }
        }
        Ok(())
    }

    /// Frees the memory and the events.
    ///
    /// # Safety
    /// The device's context is current, and no queued work uses the memory.
    pub(super) unsafe fn free(&mut self) {
        // SAFETY: guaranteed by the caller. Handles that were never created are null.
        unsafe {
            for memory in self.halves.into_iter().filter(|memory| !memory.is_null()) {
                sys::cuMemFreeHost(memory.cast());
            }
            for event in self.done.into_iter().filter(|event| !event.is_null()) {
                sys::cuEventDestroy_v2(event);
            }
        }
        *self = Self::NONE;
    }

    /// Copies `part`, at most a half, to the device through the next half. `part` may be changed after the call.
    ///
    /// # Safety
    /// The device's context is current, and `part.len()` bytes at `to` are allocated.
    unsafe fn write(&mut self, part: &[u8], to: Address, stream: CUstream) -> Result<()> {
        let half = self.next;
        self.next = 1 - half;
        // SAFETY: the half is large enough for the part. The device no longer uses its old contents after the event.
        // The caller guarantees the rest.
        unsafe {
            check(sys::cuEventSynchronize(self.done[half]), "copy")?;
            ptr::copy_nonoverlapping(part.as_ptr(), self.halves[half], part.len());
            let from = self.halves[half].cast_const().cast();
            check(sys::cuMemcpyHtoDAsync_v2(to, from, part.len(), stream), "copy to its memory")?;
            check(sys::cuEventRecord(self.done[half], stream), "copy")
        }
    }
}

// SAFETY: the memory belongs to the driver and not to a thread, and only the holder of `&mut` changes it.
unsafe impl Send for Pinned {}

impl Nvidia {
    fn pinned(&self) -> MutexGuard<'_, Pinned> {
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// [`Driver::write`](llama_trace_kernels::driver::Driver::write).
    pub(super) fn write_pinned(&self, from: &[u8], to: Address) -> Result<()> {
        self.enter()?;
        if from.len() > 2 * HALF {
            return self.write_side_by_side(from, to);
        }
        let mut pinned = self.pinned();
        for (i, part) in from.chunks(HALF).enumerate() {
            // SAFETY: the context is current, and the caller has allocated `from.len()` bytes at `to`.
            unsafe { pinned.write(part, to + (i * HALF) as u64, self.stream)? };
        }
        Ok(())
    }

    /// [`Driver::read`](llama_trace_kernels::driver::Driver::read).
    pub(super) fn read_pinned(&self, from: Address, to: &mut [u8]) -> Result<()> {
        self.enter()?;
        let mut pinned = self.pinned();
        let Pinned { halves, done, next, .. } = &mut *pinned;
        let ask = |half: usize, part: usize, bytes: usize| {
            // SAFETY: the half is large enough for the part. It is overwritten only after its last contents were read.
            // The caller has allocated `to.len()` bytes at `from`.
            unsafe {
                check(sys::cuEventSynchronize(done[half]), "copy")?;
                let at = from + (part * HALF) as u64;
                check(
                    sys::cuMemcpyDtoHAsync_v2(halves[half].cast(), at, bytes, self.stream),
                    "copy from its memory",
                )?;
                check(sys::cuEventRecord(done[half], self.stream), "copy")
            }
        };
        let parts = to.len().div_ceil(HALF);
        let length = |part: usize| HALF.min(to.len() - part * HALF);
        let lengths: Vec<_> = (0..parts).map(length).collect();
        if parts > 0 {
            ask(*next, 0, lengths[0])?;
        }
        for (part, to) in to.chunks_mut(HALF).enumerate() {
            let half = *next;
            *next = 1 - half;
            if part + 1 < parts {
                ask(*next, part + 1, lengths[part + 1])?;
            }
            // SAFETY: the device has written the part.
            unsafe {
                check(sys::cuEventSynchronize(done[half]), "finish its work")?;
                ptr::copy_nonoverlapping(halves[half].cast_const(), to.as_mut_ptr(), to.len());
            }
        }
        Ok(())
    }

    /// Copies many bytes to the device, through several pinned buffers in parallel.
    fn write_side_by_side(&self, from: &[u8], to: Address) -> Result<()> {
        let mut pairs = self.pairs.lock().unwrap_or_else(PoisonError::into_inner);
        while pairs.len() < PAIRS {
            pairs.push(Pinned::NONE);
            let last = pairs.len() - 1;
            // SAFETY: the caller has made the context current.
            unsafe { pairs[last].pin()? };
        }
        let next = AtomicUsize::new(0);
        let fill = |pair: &mut Pinned| {
            self.enter()?;
            loop {
                let first = next.fetch_add(HALF, Ordering::Relaxed);
                let Some(rest) = from.get(first..).filter(|rest| !rest.is_empty()) else { return Ok(()) };
                // SAFETY: the context is current, and the caller has allocated `from.len()` bytes at `to`.
                unsafe { pair.write(&rest[..HALF.min(rest.len())], to + first as u64, self.stream)? };
            }
        };
        std::thread::scope(|scope| {
            let (own, others) =
                pairs.split_first_mut().unwrap_or_else(|| unreachable!("`pairs` is not empty"));
            let fill = &fill;
            let begin = |pair| std::thread::Builder::new().spawn_scoped(scope, move || fill(pair)).ok();
            // If the system cannot start a thread, fewer threads copy.
            let threads: Vec<_> = others.iter_mut().filter_map(begin).collect();
            let done = fill(own);
            let joined = threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            joined.fold(done, Result::and)
        })
    }
}
