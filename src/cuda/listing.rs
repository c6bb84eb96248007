//! A device that does nothing and lists the kernels that are loaded. One pass of a model on it gives the list of
//! kernels to compile for a real device.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use llama_trace_core::error::Result;
use llama_trace_kernels::driver::{About, Address, Driver, Event, Function, Graph, Launch, Room};
use llama_trace_kernels::sources::Module;

/// The kernels that a device has loaded: module and name of each, without repetitions.
#[derive(Clone, Debug, Default)]
pub struct KernelList(pub(super) Arc<Mutex<Vec<(Module, String)>>>);

impl KernelList {
    /// Returns the kernels that were listed so far.
    pub(super) fn kernels(&self) -> Vec<(Module, String)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the names of the kernels, each with the defines of its module.
    #[cfg(any(test, feature = "testing"))]
    pub fn names(&self) -> std::collections::BTreeSet<String> {
        let name = |(module, name): (Module, String)| [&[name], &module.defines[..]].concat().join(" ");
        self.kernels().into_iter().map(name).collect()
    }

    /// Returns the number of kernels that were listed so far.
    pub fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub(super) fn add(&self, module: &Module, name: &str) {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kernel = (module.clone(), name.to_owned());
        if !list.contains(&kernel) {
            list.push(kernel);
        }
    }
}

/// The contents of pinned memory. Every drawn token is token 0.
static ZEROS: [u8; 1 << 12] = [0; 1 << 12];

/// The alignment of each allocation in bytes.
const ALIGNED: usize = 256;

/// The device that lists kernels.
pub(super) struct Listing {
    about: About,
    warpgroups: bool,
    splits: bool,
    streams: bool,
    next: AtomicU64,
    list: KernelList,
}

impl Listing {
    /// Returns a device with the properties of `device`.
    pub(super) fn of(device: &dyn Driver) -> Self {
        let (about, warpgroups) = (device.about().clone(), device.has_warpgroups());
        let splits = device.splits_attention();
        let streams = device.streams();
        let next = AtomicU64::new(ALIGNED as u64);
        Self { about, warpgroups, splits, streams, next, list: KernelList::default() }
    }

    pub(super) fn list(&self) -> KernelList {
        self.list.clone()
    }
}

impl Driver for Listing {
    fn about(&self) -> &About {
        &self.about
    }

    fn room(&self) -> Result<Room> {
        Ok(Room { free: usize::MAX / 2, total: usize::MAX / 2 })
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        Ok(self.next.fetch_add(bytes.next_multiple_of(ALIGNED) as u64, Ordering::Relaxed))
    }

    fn free(&self, _: Address) {}

    fn clear(&self, _: Address, _: usize) -> Result<()> {
        Ok(())
    }

    fn write(&self, _: &[u8], _: Address) -> Result<()> {
        Ok(())
    }

    fn read(&self, _: Address, to: &mut [u8]) -> Result<()> {
        to.fill(0);
        Ok(())
    }

    fn pin(&self, bytes: usize) -> Result<Address> {
        self.allocate(bytes)
    }

    fn unpin(&self, _: Address) {}

    fn pinned(&self, _: Address, bytes: usize) -> &[u8] {
        ZEROS.get(..bytes).unwrap_or_default()
    }

    fn bring(&self, _: Address, _: Address, _: usize) -> Result<Event> {
        Ok(Event(0))
    }

    fn copy(&self, _: Address, _: Address, _: usize) -> Result<()> {
        Ok(())
    }

    fn function(&self, module: &Module, name: &str) -> Result<Function> {
        self.list.add(module, name);
        Ok(Function(self.next.fetch_add(1, Ordering::Relaxed)))
    }

    fn launch(&self, _: &[Launch]) -> Result<()> {
        Ok(())
    }

    fn capture(&self, _: &[Launch]) -> Result<Graph> {
        Ok(Graph(0))
    }

    fn launch_graph(&self, _: Graph) -> Result<()> {
        Ok(())
    }

    fn destroy_graph(&self, _: Graph) {}

    fn has_warpgroups(&self) -> bool {
        self.warpgroups
    }

    fn splits_attention(&self) -> bool {
        self.splits
    }

    fn streams(&self) -> bool {
        self.streams
    }

    fn mark(&self) -> Result<Event> {
        Ok(Event(0))
    }

    fn reached(&self, _: Event) -> Result<bool> {
        Ok(true)
    }

    fn between(&self, _: Event, _: Event) -> Duration {
        Duration::ZERO
    }

    fn release(&self, _: Event) {}
}
