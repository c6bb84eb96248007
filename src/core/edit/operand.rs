//! The operand of an edit, with the values that it reads.

use std::borrow::Cow;
use std::ops::Range;

use ndarray::ArrayD;

use super::Source;
use crate::error::{Error, Result};
use crate::trace::{Address, Axis, Frame, FrameData, PassDims, Site, Sizes, Stage, Step};

/// The values of a stage that an edit sees.
#[derive(Clone, Copy)]
pub(super) struct Seen<'a> {
    pub(super) sizes: &'a Sizes,
    pub(super) site: Site,
    pub(super) dims: PassDims,
    pub(super) held: &'a Range<usize>,
}

impl Seen<'_> {
    /// The length of an axis of the values.
    pub(super) fn length(&self, axis: Axis) -> usize {
        match axis {
            Axis::Token => self.held.len(),
            axis => self.sizes.axis(axis, self.dims),
        }
    }

    /// For each cell, the mean of the stage over the tokens, at the cell's other indices.
    pub(super) fn means(&self, values: &[f32]) -> Vec<f32> {
        let axes = self.site.stage.axes();
        let Some(token) = axes.iter().position(|&axis| axis == Axis::Token) else { return values.to_vec() };
        let tokens = self.held.len();
        let inner: usize = axes[token + 1..].iter().map(|&axis| self.length(axis)).product();
        let mut means = vec![0.0; values.len()];
        for (from, to) in values.chunks_exact(tokens * inner).zip(means.chunks_exact_mut(tokens * inner)) {
            for i in 0..inner {
                let sum: f64 = (0..tokens).map(|t| f64::from(from[t * inner + i])).sum();
                let mean = (sum / tokens as f64) as f32;
                (0..tokens).for_each(|t| to[t * inner + i] = mean);
            }
        }
        means
    }
}

/// An operand whose values are known.
pub(super) enum Resolved<'a> {
    Number(f32),
    /// A value for each cell of the stage.
    Same(&'a [f32]),
    OfTokens(Vec<f32>),
    /// A value for each cell of a token.
    OfToken(Cow<'a, [f32]>, &'a Seen<'a>),
    /// The values of an array, and the number of values after which they repeat.
    Array(Vec<f32>),
    Cells(f32, Cells<'a>, Option<(f32, Cells<'a>)>),
}

impl Resolved<'_> {
    /// The values of `array` for all selected cells of the pass, whose shape is `cells`. Its shape is that of the cells,
    /// or its values are those of the last axis, or it has one value.
    pub(super) fn array(array: &ArrayD<f32>, cells: &[usize]) -> Result<Self> {
        let long = |shape: &[usize]| shape.iter().copied().filter(|&length| length != 1).collect::<Vec<_>>();
        let fits = long(array.shape()) == long(cells)
            || array.len() == 1
            || array.ndim() == 1 && cells.last() == Some(&array.len());
        if !fits {
            return Err(Error::usage("the array does not have the shape of the edited cells")
                .expected(format!("the shape {cells:?}, or the values of its last axis"))
                .found(format!("{:?}", array.shape()))
                .next("give an array of this shape, or name other cells"));
        }
        Ok(Self::Array(array.iter().copied().collect()))
    }

    /// The operand for cell number `cell` of the edit in this pass, which is value `at` of the stage and has this index.
    pub(super) fn of(&self, cell: usize, at: usize, index: &[usize]) -> Result<f32> {
        Ok(match self {
            Self::Number(number) => *number,
            Self::Same(values) => values[at],
            Self::OfTokens(values) => values[at],
            Self::OfToken(values, stage) => {
                let axes = stage.site.stage.axes();
                let of_token = axes.iter().zip(index).filter(|(axis, _)| **axis != Axis::Token);
                values[of_token.fold(0, |at, (&axis, index)| at * stage.length(axis) + index)]
            }
            Self::Array(values) => values[cell % values.len()],
            Self::Cells(factor, first, second) => {
                let sum = match second {
                    Some((sign, second)) => first.of(index)? + sign * second.of(index)?,
                    None => first.of(index)?,
                };
                factor * sum
            }
        })
    }
}

/// The cells of a source.
pub(super) struct Cells<'a> {
    frame: &'a Frame,
    array: &'a ArrayD<f32>,
    /// For each axis of the source, its index or the axis of the edited stage that has the index.
    axes: Vec<std::result::Result<usize, usize>>,
    /// Whether the source names a token, but no pass.
    any_pass: bool,
}

impl<'a> Cells<'a> {
    pub(super) fn new(source: &Source, frame: &'a Frame, edited: Stage) -> Result<Self> {
        let FrameData::F32(array) = &frame.data else {
            return Err(Error::usage(format!("{} holds integers", frame.site)));
        };
        let axis = |axis: &Axis| {
            let fits = |letter: char| letter == axis.index() || letter == 'q' && *axis == Axis::Token;
            match source.address.index.iter().find(|(letter, _)| fits(*letter)) {
                Some(&(_, index)) => Ok(Ok(index)),
                None => (edited.axes().iter().position(|other| other == axis))
                    .map(Err)
                    .ok_or_else(|| Error::usage(format!("{} needs an index {}", frame.site, axis.index()))),
            }
        };
        let axes = frame.axes.iter().map(axis).collect::<Result<_>>()?;
        let names_token = source.address.index.iter().any(|(letter, _)| matches!(letter, 't' | 'q'));
        Ok(Self { frame, array, axes, any_pass: names_token && source.address.pass.is_none() })
    }

    /// The value that the cell with this index reads.
    pub(super) fn of(&self, index: &[usize]) -> Result<f32> {
        let at: Vec<usize> = (self.axes.iter())
            .map(|axis| match *axis {
                Ok(index) => index,
                Err(axis) => index[axis],
            })
            .collect();
        self.array.get(&at[..]).copied().ok_or_else(|| {
            let address = Address::of(self.frame.site, Step::Stage(self.frame.site.stage), &at);
            let next = if self.any_pass && self.frame.site.pass > 0 {
                "each pass reads the same pass of the other run; name the pass in the source too, as in \"happy\":p0/[t=1], or in the place, as in p0/L1/attn_output"
            } else {
                "tokens are aligned by their index from the start; name t in the source, or fewer cells in the place"
            };
            Error::usage(format!("the other run has no {address}"))
                .expected(format!("an index within {:?}", self.array.shape()))
                .next(next)
        })
    }
}
