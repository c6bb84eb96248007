//! Values counted by size, as a histogram shows them.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use llama_trace_core::trace::{Part, Step};

/// A bin that is not empty: its number, how many values it has, and where the first of them is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bin {
    pub(super) number: usize,
    pub(super) count: usize,
    pub(super) first: (usize, usize),
}

/// What was counted last: one screen asks for it many times, and there are more values than can be counted as often.
#[derive(Debug, Default)]
pub struct Counted(pub(super) RefCell<Option<(Asked, Rc<[Bin]>)>>);

/// What bins follow from: the values of a part never change.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Asked {
    pub(super) step: Step,
    pub(super) part: Part,
    pub(super) rows: Range<usize>,
    pub(super) down: usize,
    pub(super) count: usize,
    pub(super) span: (f64, f64),
}
