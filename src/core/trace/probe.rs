//! The probe: how the one forward pass is observed.
//!
//! `forward` of the engine asks [`Probe::wants`] before it copies or materialises anything, so a pass
//! that nobody watches does no work for being watchable.

use std::ops::Range;

use super::site::Site;

/// Values of some rows of a stage, in the stage's own layout.
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
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::I64(values) => values.len(),
            Self::I8(values) => values.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Each of them as a float64; ids are small enough.
    pub fn numbers(self) -> impl ExactSizeIterator<Item = f64> + Clone + use<'a> {
        (0..self.len()).map(move |i| match self {
            Self::F32(values) => f64::from(values[i]),
            Self::I64(values) => values[i] as f64,
            Self::I8(values) => f64::from(values[i]),
        })
    }

    /// Those in `range`.
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
    /// False for an observer that never wants anything: it is asked once for each place of a pass, and then nothing more.
    fn enabled(&self) -> bool;

    /// Whether the values of `site` should be recorded. For a stage with an operation of its own the
    /// question comes right after the operation, before its values are copied.
    fn wants(&self, site: Site) -> bool;

    /// Takes some rows of `site`, which was wanted. A row is everything along the last axis; rows are
    /// numbered over all the axes before it, row-major. Each row comes once.
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

/// The observer of the fast run: nobody.
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
