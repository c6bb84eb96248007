//! Mistakes of whole tensors. Each row of a table has the stages, the form as text, and a function that computes the
//! wrong values from the operands.

use ndarray::{ArrayD, ArrayView1, Axis, Dimension, IxDyn};

use super::Mistake;
use llama_trace_core::config::ModelConfig;
use llama_trace_core::explain::Rules;
use llama_trace_core::trace::{Op, PassDims, Sampling, Site, Sizes, Stage};

/// A tensor of operands or results.
pub(in crate::diff) type Array = ArrayD<f64>;

/// Computes the wrong values of a stage; `None` if the mistake is not possible with these sizes.
pub(super) type Wrong = fn(&Operands) -> Option<Array>;

/// The operands of a stage as whole tensors.
pub(in crate::diff) struct Operands {
    /// The stage.
    pub(super) site: Site,
    /// The pass.
    pub(super) dims: PassDims,
    /// The shape of the results.
    pub(super) shape: Vec<usize>,
    /// The model.
    pub(super) config: ModelConfig,
    pub(super) sizes: Sizes,
    /// The options of the draw.
    pub(super) sampling: Sampling,
    /// The random number of the draw.
    pub(super) random: f64,
    /// The text up to the end of the pass.
    pub(super) text: Vec<usize>,
    /// The stage's inputs, in the order of [`Rules::sources`].
    pub(in crate::diff) inputs: Vec<Array>,
    /// The stage's weights: the matrix or the norm, then the bias.
    pub(super) weights: Vec<Array>,
}

impl Operands {
    /// The operands of `site` without inputs.
    pub(in crate::diff) fn new(
        site: Site,
        dims: PassDims,
        shape: Vec<usize>,
        rules: &Rules,
        weights: Vec<Array>,
    ) -> Self {
        let text = rules.text().iter().take(dims.keys()).map(|id| *id as usize).collect();
        Self {
            site,
            dims,
            shape,
            config: rules.card().config.clone(),
            sizes: *rules.sizes(),
            sampling: rules.sampling(),
            random: rules.random(site.pass).unwrap_or(0.0),
            text,
            inputs: Vec::new(),
            weights,
        }
    }

    /// An input; `None` if the stage has fewer.
    pub(super) fn input(&self, i: usize) -> Option<&Array> {
        self.inputs.get(i)
    }

    /// The first input.
    pub(super) fn x(&self) -> Option<&Array> {
        self.input(0)
    }

    /// The first weight.
    pub(super) fn w(&self) -> Option<&Array> {
        self.weights.first()
    }

    /// ε of the norms.
    pub(super) fn eps(&self) -> f64 {
        self.config.norm_eps.into()
    }

    /// The values in the stage's shape; `None` if their number differs.
    pub(super) fn shaped(&self, values: &Array) -> Option<Array> {
        reshaped(values, &self.shape)
    }

    /// A result with a function of the index of each cell.
    pub(super) fn cells(&self, value: impl Fn(&[usize]) -> f64) -> Array {
        Array::from_shape_fn(IxDyn(&self.shape), |at| value(at.slice()))
    }
}

/// The stages of a row.
pub(super) enum Of {
    /// All stages of an operation.
    Op(Op),
    /// These stages.
    Stages(&'static [Stage]),
}

/// A row of a table: the mistake's name, its form as text, its stages, and its function.
pub(super) struct Row(pub(super) &'static str, pub(super) &'static str, pub(super) Of, pub(super) Wrong);

/// Adds the rows of a table.
pub(super) fn add(table: &'static [Row], all: &mut Vec<Mistake>) {
    for Row(name, form, of, wrong) in table {
        let touches = match of {
            Of::Op(op) => op.stages(),
            Of::Stages(stages) => stages,
        };
        all.push(Mistake::whole(name, *form, touches, wrong));
    }
}

/// The values in another shape, row-major; `None` if their number differs.
pub(super) fn reshaped(values: &Array, shape: &[usize]) -> Option<Array> {
    Array::from_shape_vec(IxDyn(shape), values.iter().copied().collect()).ok()
}

/// Reduces an axis, or all axes for `None`. The reduced axes stay, with length 1.
pub(super) fn reduced(x: &Array, axis: Option<usize>, value: impl Fn(ArrayView1<'_, f64>) -> f64) -> Array {
    match axis {
        Some(axis) => x.map_axis(Axis(axis), value).insert_axis(Axis(axis)),
        None => {
            let all: Vec<f64> = x.iter().copied().collect();
            Array::from_elem(IxDyn(&vec![1; x.ndim()]), value(ArrayView1::from(&all)))
        }
    }
}

/// The number of the last axis.
pub(super) fn last(x: &Array) -> usize {
    x.ndim().saturating_sub(1)
}

/// The mean of the squares along an axis.
pub(super) fn mean_square(x: &Array, axis: Option<usize>) -> Array {
    reduced(x, axis, |row| row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64)
}

/// Softmax along an axis, or over all values.
pub(super) fn softmax(x: &Array, axis: Option<usize>) -> Array {
    let most = reduced(x, axis, |row| row.fold(f64::NEG_INFINITY, |a, b| a.max(*b)));
    let powers = (x - &most).mapv(f64::exp);
    let sum = reduced(&powers, axis, |row| row.sum());
    powers / &sum
}

/// The product x · wᵀ of a tensor of rows with a matrix of outputs × inputs, with the shape rows × outputs.
pub(super) fn product(x: &Array, w: &Array) -> Option<Array> {
    let inputs = *w.shape().last()?;
    let rows = x.len().checked_div(inputs)?;
    let x = reshaped(x, &[rows, inputs])?.into_dimensionality::<ndarray::Ix2>().ok()?;
    let w = w.view().into_dimensionality::<ndarray::Ix2>().ok()?;
    Some(x.dot(&w.t()).into_dyn())
}

/// The tensor with its rows along an axis in reverse.
pub(super) fn reversed(x: &Array, axis: usize) -> Array {
    let mut x = x.clone();
    x.invert_axis(Axis(axis));
    x.as_standard_layout().into_owned()
}

/// SiLU.
pub(super) fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}
