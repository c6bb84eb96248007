//! The probe: the observer of the forward pass.
//!
//! `forward` of the engine calls [`Probe::wants`] before it copies or materialises anything. A pass without an observer
//! does no extra work.

use std::ops::Range;

use super::site::Site;

/// Values of some rows of a stage, in the stage's layout.
#[derive(Clone, Copy, Debug)]
pub enum Values<'a> {
    /// float32, most stages.
    F32(&'a [f32]),
    /// int64: token ids.
    I64(&'a [i64]),
    /// int8: quantised activations.
    I8(&'a [i8]),
}

impl<'a> Values<'a> {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::I64(values) => values.len(),
            Self::I8(values) => values.len(),
        }
    }

    /// Returns whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The values as float64. Ids are small enough to be exact.
    pub fn numbers(self) -> impl ExactSizeIterator<Item = f64> + Clone + use<'a> {
        (0..self.len()).map(move |i| match self {
            Self::F32(values) => f64::from(values[i]),
            Self::I64(values) => values[i] as f64,
            Self::I8(values) => f64::from(values[i]),
        })
    }

    /// The values in `range`.
    #[must_use]
    pub fn slice(self, range: Range<usize>) -> Values<'a> {
        match self {
            Self::F32(values) => Self::F32(&values[range]),
            Self::I64(values) => Self::I64(&values[range]),
            Self::I8(values) => Self::I8(&values[range]),
        }
    }
}

/// An observer of a forward pass.
pub trait Probe {
    /// False for an observer that wants nothing. At each point of the pass where values can be observed, only this
    /// method is then called.
    fn enabled(&self) -> bool;

    /// Returns whether to record the values of `site`. For a stage with its own operation, the call comes right after
    /// the operation, before its values are copied.
    fn wants(&self, site: Site) -> bool;

    /// Receives some rows of `site`, after [`Probe::wants`] returned true. A row is everything along the last axis;
    /// rows are numbered over all other axes, row-major. Each row comes once.
    fn record(&mut self, site: Site, rows: Range<usize>, values: Values<'_>);
}

impl<P: Probe> Probe for &mut P {
    fn enabled(&self) -> bool {
        (**self).enabled()
    }

    fn wants(&self, site: Site) -> bool {
        (**self).wants(site)
    }

    fn record(&mut self, site: Site, rows: Range<usize>, values: Values<'_>) {
        (**self).record(site, rows, values);
    }
}

/// The observer of the fast run: it wants nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProbe;

impl Probe for NoProbe {
    fn enabled(&self) -> bool {
        false
    }

    fn wants(&self, _: Site) -> bool {
        false
    }

    fn record(&mut self, _: Site, _: Range<usize>, _: Values<'_>) {}
}
