//! Loads kernels with their defines, and launches them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::fusable::Fusable;
use super::queue::Queue;
use llama_trace_core::config::{CacheDtype, Precision};
use llama_trace_core::error::Result;
use llama_trace_core::tensor::Dtype;
use llama_trace_kernels::driver::{Arguments, Function, Launch};
use llama_trace_kernels::sources::Module;

/// A kernel: its file, its name there, and the number type of the weights that it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Kernel {
    pub(super) file: &'static str,
    pub(super) name: &'static str,
    pub(super) weight: Option<Dtype>,
}

/// The kernels of a device in one precision.
pub(super) struct Kernels {
    queue: Arc<Queue>,
    precision: Precision,
    cache: CacheDtype,
    found: Mutex<HashMap<Kernel, Function>>,
}

impl Kernels {
    pub(super) fn new(queue: &Arc<Queue>, precision: Precision, cache: CacheDtype) -> Self {
        Self { queue: Arc::clone(queue), precision, cache, found: Mutex::default() }
    }

    /// Queues a launch of `kernel` over `grid` blocks of `block` threads, with `shared` bytes of dynamic shared memory
    /// for each block.
    pub(super) fn launch(
        &self,
        kernel: Kernel,
        grid: (usize, usize),
        block: u32,
        shared: usize,
        arguments: Arguments,
    ) -> Result<()> {
        self.launch_fusable(kernel, grid, block, shared, arguments, Fusable::No)
    }

    /// [`Self::launch`] for a kernel that a later operation may replace, or that it may give more work.
    pub(super) fn launch_fusable(
        &self,
        kernel: Kernel,
        (x, y): (usize, usize),
        block: u32,
        shared: usize,
        arguments: Arguments,
        fusable: Fusable,
    ) -> Result<()> {
        if x == 0 || y == 0 {
            return Ok(());
        }
        self.queue.launch(self.made(kernel, (x, y), block, shared, arguments)?, fusable)
    }

    /// [`Self::launch`] for a kernel whose weights are written by an earlier launch.
    pub(super) fn launch_late(
        &self,
        kernel: Kernel,
        grid: (usize, usize),
        block: u32,
        shared: usize,
        arguments: Arguments,
    ) -> Result<()> {
        let launch = self.made(kernel, grid, block, shared, arguments)?;
        self.queue.launch(Launch { late: true, ..launch }, Fusable::No)
    }

    /// [`Self::launch`] for recording, which differs from pass to pass.
    pub(super) fn launch_apart(
        &self,
        kernel: Kernel,
        grid: (usize, usize),
        block: u32,
        shared: usize,
        arguments: Arguments,
    ) -> Result<()> {
        let launch = self.made(kernel, grid, block, shared, arguments)?;
        self.queue.launch(Launch { apart: true, ..launch }, Fusable::No)
    }

    /// [`Self::launch`] for one span of a batch. The first `words` words of the arguments describe the span
    /// ([`Arguments::first_of`]). Launches for several spans are joined. None of these launches may read values that
    /// another of them writes.
    pub(super) fn launch_together(
        &self,
        kernel: Kernel,
        grid: (usize, usize),
        block: u32,
        words: usize,
        arguments: Arguments,
    ) -> Result<()> {
        self.queue.launch_together(self.made(kernel, grid, block, 0, arguments)?, words)
    }

    fn made(
        &self,
        kernel: Kernel,
        (x, y): (usize, usize),
        block: u32,
        shared: usize,
        arguments: Arguments,
    ) -> Result<Launch> {
        let function = self.function(kernel)?;
        let grid = [x, y, 1].map(|size| u32::try_from(size).unwrap_or(u32::MAX));
        let (block, shared) = ([block, 1, 1], shared as u32);
        Ok(Launch { function, grid, block, shared, arguments, apart: false, late: false })
    }

    fn function(&self, kernel: Kernel) -> Result<Function> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = found.get(&kernel) {
            return Ok(*function);
        }
        let module = Module::new(kernel.file, kernel.weight, self.precision, self.cache);
        let function = self.queue.device().function(&module, kernel.name)?;
        found.insert(kernel, function);
        Ok(function)
    }
}
