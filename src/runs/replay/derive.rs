//! Stages that are computed from others without weights, by the operations of [`llama_trace_core::ops`] in the order of
//! the pass and in its arithmetic. Derived frames equal recorded ones bit for bit.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use ndarray::{ArrayD, IxDyn};

use llama_trace_core::config::{Arithmetic, Precision};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::ops;
use llama_trace_core::ops::attention::{kv_head, mask, scale_by, softmax_visible};
use llama_trace_core::ops::elementwise::{add, add_scaled, cap, mul};
use llama_trace_core::ops::round;
use llama_trace_core::stop::Stop;
use llama_trace_core::trace::stage::{Input, Op, Section, StageInfo};
use llama_trace_core::trace::{Frame, FrameData, PassDims, Site, Sizes, Stage, Values};
use llama_trace_engine::backend::{Backend, Operation};

/// Whether `stage` can be computed from other stages without weights.
pub fn is_derivable(stage: Stage) -> bool {
    stage.info().derived_from.is_some()
}

/// Whether `stage` can be computed from kept stages of this and earlier passes, if necessary with the sampler settings.
/// A trace need not keep such a stage.
pub fn follows(stage: Stage) -> bool {
    let is_of_sampler = stage.info().section == Section::Sampler && stage != Stage::Sampled;
    is_derivable(stage) || is_of_sampler || matches!(stage, Stage::CacheK | Stage::CacheV)
}

/// Whether to derive `stage` of a run on `backend`. It must be derivable, and the functions of
/// [`llama_trace_core::ops`] must give the bits of the backend in its arithmetic.
pub fn is_derived(backend: &dyn Backend, stage: Stage) -> bool {
    let StageInfo { op, derived_from: Some(_), .. } = stage.info() else { return false };
    let operation = match op {
        Op::Quantize => Operation::Prepare,
        Op::QueryKey | Op::Scale | Op::Cap | Op::AddMask | Op::Softmax | Op::Mix => Operation::Attention,
        Op::Silu => Operation::Silu,
        Op::Mul => Operation::Mul,
        Op::Add => Operation::Add,
        // The other operations copy values or build the mask, so all backends give the same bits.
        _ => return true,
    };
    backend.bit_exact(operation)
}

/// Rows of a stage: a row is everything along the last axis, numbered over all other axes.
#[derive(Clone, Debug)]
pub struct Rows {
    frame: Arc<Frame>,
    /// The number of the frame's first row.
    first: usize,
}

impl Rows {
    /// All rows of a stage.
    pub fn whole(frame: Arc<Frame>) -> Self {
        Self { frame, first: 0 }
    }

    /// The rows of `frame`, which begins with row `first` of its stage.
    pub fn part(frame: Arc<Frame>, first: usize) -> Self {
        Self { frame, first }
    }

    /// The values of `rows` of a float32 stage.
    pub(crate) fn floats(&self, rows: Range<usize>) -> &[f32] {
        let width = self.frame.shape().last().copied().unwrap_or(1);
        &values(&self.frame)[(rows.start - self.first) * width..(rows.end - self.first) * width]
    }

    /// The values of `rows`.
    pub(crate) fn values(&self, rows: Range<usize>) -> Values<'_> {
        let width = self.frame.shape().last().copied().unwrap_or(1);
        self.frame.values().slice((rows.start - self.first) * width..(rows.end - self.first) * width)
    }
}

/// The frame of `site`, whose stage [`is_derivable`]. `input` returns the frames that it depends on, and may itself
/// derive them. The input of a layer is requested under the site that holds it: the embedding or the output of the
/// previous layer.
///
/// # Errors
/// The errors of `input`, and [`Error::Interrupted`] if `stop` was set.
pub fn derive(
    site: Site,
    sizes: &Sizes,
    (precision, arithmetic): (Precision, Arithmetic),
    dims: PassDims,
    stop: &Stop,
    input: &mut dyn FnMut(Site) -> Result<Arc<Frame>>,
) -> Result<Frame> {
    let mut inputs: HashMap<Site, Arc<Frame>> = HashMap::new();
    let mut whole = |site: Site, _: Range<usize>| {
        if let Some(frame) = inputs.get(&site) {
            return Ok(Rows::whole(Arc::clone(frame)));
        }
        let frame = input(site)?;
        inputs.insert(site, Arc::clone(&frame));
        Ok(Rows::whole(frame))
    };
    let rows = sizes.rows(site.stage.axes(), dims);
    let frame = derive_rows(site, 0..rows, sizes, (precision, arithmetic), dims, stop, &mut whole)?;
    Ok(shaped(frame, &sizes.shape(site.stage.axes(), dims)))
}

/// Reshapes `frame`, which has all values of a stage, to `shape`.
pub(crate) fn shaped(frame: Frame, shape: &[usize]) -> Frame {
    fn to<T>(array: ArrayD<T>, shape: &[usize]) -> ArrayD<T> {
        array.into_shape_with_order(shape).unwrap_or_else(|_| unreachable!("the frame has all rows"))
    }
    let data = match frame.data {
        FrameData::F32(array) => FrameData::F32(to(array, shape)),
        FrameData::I64(array) => FrameData::I64(to(array, shape)),
        FrameData::I8(array) => FrameData::I8(to(array, shape)),
    };
    Frame { data, ..frame }
}

/// Rows of `site`, whose stage [`is_derivable`], as a frame (rows, width). `input` returns at least the rows that they
/// depend on.
///
/// # Errors
/// The errors of [`derive()`].
pub fn derive_rows(
    site: Site,
    rows: Range<usize>,
    sizes: &Sizes,
    (precision, arithmetic): (Precision, Arithmetic),
    dims: PassDims,
    stop: &Stop,
    input: &mut dyn FnMut(Site, Range<usize>) -> Result<Rows>,
) -> Result<Frame> {
    let StageInfo { op, derived_from: Some(from), .. } = site.stage.info() else {
        unreachable!("{} needs weights", site.stage)
    };
    if *op == Op::Quantize {
        return quantize(site, rows, sizes, dims, stop, input);
    }
    let source = |number: usize| match from[number].in_layer(sizes, dims, site.layer) {
        Input::Stage(stage) => site.other(stage),
        Input::LayerInput => site.layer_input(),
        Input::Positions => unreachable!("positions are not a stage"),
    };
    let all = |site: Site| 0..sizes.rows(site.stage.axes(), dims);
    let Sizes { heads, kv_heads, head_dim: c, .. } = *sizes;
    let (tokens, stride) = (dims.tokens, kv_heads * c);
    let width = sizes.axis(site.stage.axes()[site.stage.axes().len() - 1], dims);
    let mut out = vec![0.0; rows.len() * width];
    // The keys visible to row t. For a stage outside the layers, these are the keys visible in the layers with a
    // window.
    let sees = sizes.sees(site.layer);
    let seen = |t: usize| sees.keys(dims.start + t);
    let each = |out: &mut [f32], row: &mut dyn FnMut(usize, &mut [f32]) -> Result<()>| {
        for (i, out) in rows.clone().zip(out.chunks_exact_mut(width)) {
            stop.check()?;
            row(i, out)?;
        }
        Ok(())
    };
    match op {
        Op::Mask => each(&mut out, &mut |t, row| {
            mask(row, seen(t));
            Ok(())
        })?,
        Op::RepeatKv => {
            let cache = input(source(0), all(source(0)))?;
            let cache = cache.floats(all(source(0)));
            each(&mut out, &mut |i, out| {
                let from = i / heads * stride + kv_head(i % heads, heads, kv_heads) * c;
                out.copy_from_slice(&cache[from..from + c]);
                Ok(())
            })?;
        }
        Op::QueryKey => {
            let (queries, cache) = (input(source(0), all(source(0)))?, input(source(1), all(source(1)))?);
            let (queries, cache) = (queries.floats(all(source(0))), cache.floats(all(source(1))));
            each(&mut out, &mut |i, row| {
                let (head, t) = (i / tokens, i % tokens);
                let query = &queries[(t * heads + head) * c..][..c];
                arithmetic.qk(query, &cache[kv_head(head, heads, kv_heads) * c..], stride, row);
                Ok(())
            })?;
        }
        Op::Scale | Op::Cap | Op::AddMask | Op::Softmax => {
            out.copy_from_slice(input(source(0), rows.clone())?.floats(rows.clone()));
            if *op == Op::Scale {
                scale_by(&mut out, c, sizes.score_scale);
            } else if *op == Op::Cap {
                let at = if site.layer.is_some() { sizes.score_cap } else { sizes.logit_cap };
                cap(at.unwrap_or(f32::INFINITY), precision, &mut out);
            } else {
                each(&mut out, &mut |i, row| {
                    match op {
                        Op::AddMask => mask(row, seen(i % tokens)),
                        _ => softmax_visible(arithmetic, row, seen(i % tokens)),
                    }
                    Ok(())
                })?;
            }
        }
        Op::Mix => {
            let cache = input(source(1), all(source(1)))?;
            let cache = cache.floats(all(source(1)));
            each(&mut out, &mut |i, out| {
                let (t, head) = (i / heads, i % heads);
                let (seen, first) = (seen(t), kv_head(head, heads, kv_heads) * c);
                let row = head * tokens + t;
                let weights = input(source(0), row..row + 1)?;
                let weights = &weights.floats(row..row + 1)[seen.clone()];
                arithmetic.mix(weights, &cache[seen.start * stride + first..], stride, out);
                Ok(())
            })?;
        }
        Op::Silu => {
            let gate = input(source(0), rows.clone())?;
            arithmetic.silu_all(gate.floats(rows.clone()), &mut out);
        }
        Op::Mul | Op::Add => {
            let (a, b) = (input(source(0), rows.clone())?, input(source(1), rows.clone())?);
            let (a, b) = (a.floats(rows.clone()), b.floats(rows.clone()));
            match op {
                Op::Mul => mul(a, b, &mut out),
                _ if sizes.residual == 1.0 => add(a, b, &mut out),
                _ => add_scaled(a, b, sizes.residual, precision, &mut out),
            }
        }
        _ => unreachable!("{} is not derived from {} stages", site.stage, from.len()),
    }
    // Every one of these stages rounds its result. Stages that only copy have rounded values already.
    round::row(precision, &mut out);
    Ok(frame(site, &[rows.len(), width], out, FrameData::F32))
}

fn frame<T>(site: Site, shape: &[usize], values: Vec<T>, data: fn(ArrayD<T>) -> FrameData) -> Frame {
    let array = ArrayD::from_shape_vec(IxDyn(shape), values)
        .unwrap_or_else(|_| unreachable!("the values were made for this shape"));
    Frame { site, axes: site.stage.axes(), data: data(array) }
}

/// Rows of int8 values, or of scales, which have one row of groups per token.
fn quantize(
    site: Site,
    rows: Range<usize>,
    sizes: &Sizes,
    dims: PassDims,
    stop: &Stop,
    input: &mut dyn FnMut(Site, Range<usize>) -> Result<Rows>,
) -> Result<Frame> {
    let x = site.inputs(sizes, dims).first().and_then(|input| site.input(*input, sizes));
    let (Some(group), Some(x_site)) = (sizes.group, x) else {
        return Err(Error::usage(format!("there is no {site} in this run")));
    };
    let of_token = |stage: Stage| sizes.rows(stage.axes(), dims) / dims.tokens;
    let (own, from) = (of_token(site.stage), of_token(x_site.stage));
    let tokens = rows.start / own..rows.end.div_ceil(own);
    let read = tokens.start * from..tokens.end * from;
    let x_rows = input(x_site, read.clone())?;
    let x = x_rows.floats(read);
    let width = x.len() / tokens.len();
    let groups = width.div_ceil(group);
    let (mut q8, mut scales) = (vec![0; tokens.len() * width], vec![0.0; tokens.len() * groups]);
    let each = q8.chunks_exact_mut(width).zip(scales.chunks_exact_mut(groups));
    for (x, (q8, scales)) in x.chunks_exact(width).zip(each) {
        stop.check()?;
        ops::quantize::quantize(x, group, q8, scales);
    }
    let cut = rows.start - tokens.start * own..rows.end - tokens.start * own;
    Ok(if site.stage.is_int8() {
        let width = width / own;
        let q8 = q8[cut.start * width..cut.end * width].to_vec();
        frame(site, &[rows.len(), width], q8, FrameData::I8)
    } else {
        let scales = scales[cut.start * groups..cut.end * groups].to_vec();
        frame(site, &[rows.len(), groups], scales, FrameData::F32)
    })
}

/// The values of a float32 frame, row-major; empty for integers.
pub fn values(frame: &Frame) -> &[f32] {
    match &frame.data {
        FrameData::F32(array) => array.as_slice().unwrap_or_default(),
        FrameData::I64(_) | FrameData::I8(_) => &[],
    }
}
