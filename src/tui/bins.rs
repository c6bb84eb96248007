//! Cache of the histogram's bins.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use llama_trace_core::trace::{Part, Step};

/// A bin that is not empty.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bin {
    pub(super) number: usize,
    /// Number of values.
    pub(super) count: usize,
    /// Row and column of the first value in the bin.
    pub(super) first: (usize, usize),
}

/// The bins that were counted last. One drawing of the screen asks for them many times, and counting a large tensor
/// each time would take too long.
#[derive(Debug, Default)]
pub(super) struct BinCache(pub(super) RefCell<Option<(BinKey, Rc<[Bin]>)>>);

/// Key of the cache: everything that the bins depend on. The values themselves need no key, because they never change.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BinKey {
    pub(super) step: Step,
    pub(super) part: Part,
    pub(super) rows: Range<usize>,
    pub(super) down: usize,
    pub(super) count: usize,
    pub(super) span: (f64, f64),
}
