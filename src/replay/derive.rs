//! Stages that follow from others without any weight, computed with the operations of [`crate::ops`] in
//! the order in which the pass computes them: derived frames equal recorded ones bit for bit.

use std::sync::Arc;

use ndarray::{ArrayD, IxDyn};

use crate::backend::{Backend, Operation};
use crate::config::Precision;
use crate::error::{Error, Result};
use crate::ops;
use crate::ops::attention::{kv_head, mask, mix, qk, scale, softmax_visible, visible};
use crate::ops::elementwise::{add, mul};
use crate::ops::round;
use crate::ops::swiglu::silu;
use crate::stop::Stop;
use crate::trace::stage::{Derivation, Input, Rule};
use crate::trace::{Frame, FrameData, PassDims, Site, Sizes, Stage};

/// Whether `stage` follows from other stages without weights.
pub fn is_derivable(stage: Stage) -> bool {
    stage.info().derivation.is_some()
}

/// Whether `stage` of a run on `backend` is to be derived: it can be, and the functions of [`crate::ops`] give the
/// bits that the backend computed.
pub fn is_derived<B: Backend>(backend: &B, stage: Stage) -> bool {
    let Some(Derivation { rule, .. }) = stage.info().derivation else { return false };
    let operation = match rule {
        Rule::Copied => return true,
        Rule::Attention => Operation::Attention,
        Rule::Silu => Operation::Silu,
        Rule::Mul => Operation::Mul,
        Rule::Add => Operation::Add,
        Rule::Quantized => Operation::Prepare,
    };
    backend.keeps_order(operation)
}

/// The frame of `site`, whose stage [`is_derivable`]. `input` gives the frames that it follows from, and
/// may derive those in turn; what enters the layer is asked for under the site that holds it.
///
/// # Errors
/// Whatever `input` answers, and [`Error::Interrupted`] where `stop` was asked.
pub fn derive(
    site: Site,
    sizes: &Sizes,
    precision: Precision,
    dims: PassDims,
    stop: &Stop,
    input: &mut dyn FnMut(Site) -> Result<Arc<Frame>>,
) -> Result<Frame> {
    let Some(Derivation { rule, from }) = site.stage.info().derivation else {
        unreachable!("{} needs weights", site.stage)
    };
    let mut frames = Vec::new();
    for &from in from {
        frames.push(match from {
            Input::Stage(stage) => input(site.other(stage))?,
            Input::LayerInput => input(site.layer_input())?,
            Input::Positions => continue,
        });
    }
    let from: Vec<&[f32]> = frames.iter().map(|frame| values(frame)).collect();
    let Sizes { heads, kv_heads, head_dim: c, .. } = *sizes;
    let (tokens, keys) = (dims.tokens, dims.keys());
    let stride = kv_heads * c;
    let shape = sizes.shape(site.stage.axes(), dims);
    if rule == Rule::Quantized {
        return quantize(site, sizes, &shape, &frames[0], stop);
    }
    let mut out = vec![0.0; shape.iter().product()];
    // The keys that row t sees; outside the layers, in those with a window.
    let window = site.layer.map_or(sizes.window, |layer| sizes.window_of(layer));
    let seen = |t: usize| visible(dims.start + t, window);
    match (site.stage, &from[..]) {
        (Stage::Mask, []) => {
            for (t, row) in out.chunks_exact_mut(keys).enumerate() {
                stop.check()?;
                mask(row, seen(t));
            }
        }
        (Stage::Keys | Stage::Values, [cache]) => {
            for (i, out) in out.chunks_exact_mut(c).enumerate() {
                stop.check()?;
                let from = i / heads * stride + kv_head(i % heads, heads, kv_heads) * c;
                out.copy_from_slice(&cache[from..from + c]);
            }
        }
        (Stage::Qk, [queries, cache]) => {
            for (i, row) in out.chunks_exact_mut(keys).enumerate() {
                stop.check()?;
                let (head, t) = (i / tokens, i % tokens);
                let query = &queries[(t * heads + head) * c..][..c];
                qk(query, &cache[kv_head(head, heads, kv_heads) * c..], stride, row);
            }
        }
        (Stage::Scores, [qk]) => {
            out.copy_from_slice(qk);
            scale(&mut out, c);
        }
        (Stage::MaskedScores, [scores]) => {
            out.copy_from_slice(scores);
            for (i, row) in out.chunks_exact_mut(keys).enumerate() {
                stop.check()?;
                mask(row, seen(i % tokens));
            }
        }
        (Stage::Softmax, [scores]) => {
            out.copy_from_slice(scores);
            for (i, row) in out.chunks_exact_mut(keys).enumerate() {
                stop.check()?;
                softmax_visible(row, seen(i % tokens));
            }
        }
        (Stage::AttnHeads, [weights, cache]) => {
            for (i, out) in out.chunks_exact_mut(c).enumerate() {
                stop.check()?;
                let (t, head) = (i / heads, i % heads);
                let (seen, first) = (seen(t), kv_head(head, heads, kv_heads) * c);
                let row = &weights[(head * tokens + t) * keys..][seen.clone()];
                mix(row, &cache[seen.start * stride + first..], stride, out);
            }
        }
        (Stage::FfnSilu, [gate]) => {
            for (out, gate) in out.iter_mut().zip(*gate) {
                *out = silu(*gate);
            }
        }
        (Stage::FfnHidden, [silu, up]) => mul(silu, up, &mut out),
        (Stage::AttnResidual | Stage::FfnResidual, [x, added]) => add(x, added, &mut out),
        (stage, from) => unreachable!("{stage} is not derived from {} stages", from.len()),
    }
    // Every one of these stages is rounded when it is done; those that only copy are so already.
    round::row(precision, &mut out);
    Ok(frame(site, &shape, out, FrameData::F32))
}

fn frame<T>(site: Site, shape: &[usize], values: Vec<T>, data: fn(ArrayD<T>) -> FrameData) -> Frame {
    let array = ArrayD::from_shape_vec(IxDyn(shape), values)
        .unwrap_or_else(|_| unreachable!("the values were made for this shape"));
    Frame { site, axes: site.stage.axes(), data: data(array) }
}

/// The int8 values or the scales of `x`, one row of groups a token.
fn quantize(site: Site, sizes: &Sizes, shape: &[usize], x: &Frame, stop: &Stop) -> Result<Frame> {
    let Some(group) = sizes.group else {
        return Err(Error::usage(format!("there is no {site} in this run")));
    };
    let tokens = x.shape()[0];
    let width = values(x).len() / tokens;
    let groups = width.div_ceil(group);
    let (mut q8, mut scales) = (vec![0; tokens * width], vec![0.0; tokens * groups]);
    let rows = q8.chunks_exact_mut(width).zip(scales.chunks_exact_mut(groups));
    for (x, (q8, scales)) in values(x).chunks_exact(width).zip(rows) {
        stop.check()?;
        ops::quantize::quantize(x, group, q8, scales);
    }
    Ok(if site.stage.is_int8() {
        frame(site, shape, q8, FrameData::I8)
    } else {
        frame(site, shape, scales, FrameData::F32)
    })
}

/// The numbers of a float32 frame, row-major.
pub(crate) fn values(frame: &Frame) -> &[f32] {
    match &frame.data {
        FrameData::F32(array) => array.as_slice().unwrap_or_default(),
        FrameData::I64(_) | FrameData::I8(_) => &[],
    }
}
