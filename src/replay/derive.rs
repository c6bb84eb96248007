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
use crate::trace::stage::Rule;
use crate::trace::{Frame, FrameData, PassDims, Site, Sizes, Stage};

/// Whether `stage` follows from other stages without weights.
pub fn is_derivable(stage: Stage) -> bool {
    stage.info().rule.is_some()
}

/// Whether `stage` of a run on `backend` is to be derived: it can be, and the functions of [`crate::ops`] give the
/// bits that the backend computed.
pub fn is_derived<B: Backend>(backend: &B, stage: Stage) -> bool {
    let operation = match stage.info().rule {
        None => return false,
        Some(Rule::Copied) => return true,
        Some(Rule::Attention) => Operation::Attention,
        Some(Rule::Silu) => Operation::Silu,
        Some(Rule::Mul) => Operation::Mul,
        Some(Rule::Add) => Operation::Add,
        Some(Rule::Quantized) => Operation::Prepare,
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
    let Sizes { heads, kv_heads, head_dim: c, .. } = *sizes;
    let (tokens, keys) = (dims.tokens, dims.keys());
    let stride = kv_heads * c;
    let shape = sizes.shape(site.stage.axes(), dims);
    if let Some(stage) = quantized_from(site.stage) {
        return quantize(site, sizes, &shape, &*input(site.other(stage))?, stop);
    }
    let mut out = vec![0.0; shape.iter().product()];
    // The keys that row t sees; outside the layers, in those with a window.
    let window = site.layer.map_or(sizes.window, |layer| sizes.window_of(layer));
    let seen = |t: usize| visible(dims.start + t, window);
    let mut here = |stage| input(site.other(stage));
    match site.stage {
        Stage::Mask => {
            for (t, row) in out.chunks_exact_mut(keys).enumerate() {
                stop.check()?;
                mask(row, seen(t));
            }
        }
        Stage::Keys | Stage::Values => {
            let cache = if site.stage == Stage::Keys { Stage::CacheK } else { Stage::CacheV };
            let cache = here(cache)?;
            for (i, out) in out.chunks_exact_mut(c).enumerate() {
                stop.check()?;
                let from = i / heads * stride + kv_head(i % heads, heads, kv_heads) * c;
                out.copy_from_slice(&values(&cache)[from..from + c]);
            }
        }
        Stage::Qk => {
            let (queries, cache) = (here(Stage::XqRope)?, here(Stage::CacheK)?);
            for (i, row) in out.chunks_exact_mut(keys).enumerate() {
                stop.check()?;
                let (head, t) = (i / tokens, i % tokens);
                let query = &values(&queries)[(t * heads + head) * c..][..c];
                qk(query, &values(&cache)[kv_head(head, heads, kv_heads) * c..], stride, row);
            }
        }
        Stage::Scores => {
            out.copy_from_slice(values(&*here(Stage::Qk)?));
            scale(&mut out, c);
        }
        Stage::MaskedScores => {
            out.copy_from_slice(values(&*here(Stage::Scores)?));
            for (i, row) in out.chunks_exact_mut(keys).enumerate() {
                stop.check()?;
                mask(row, seen(i % tokens));
            }
        }
        Stage::Softmax => {
            out.copy_from_slice(values(&*here(Stage::Scores)?));
            for (i, row) in out.chunks_exact_mut(keys).enumerate() {
                stop.check()?;
                softmax_visible(row, seen(i % tokens));
            }
        }
        Stage::AttnHeads => {
            let (weights, cache) = (here(Stage::Softmax)?, here(Stage::CacheV)?);
            for (i, out) in out.chunks_exact_mut(c).enumerate() {
                stop.check()?;
                let (t, head) = (i / heads, i % heads);
                let (seen, first) = (seen(t), kv_head(head, heads, kv_heads) * c);
                let row = &values(&weights)[(head * tokens + t) * keys..][seen.clone()];
                mix(row, &values(&cache)[seen.start * stride + first..], stride, out);
            }
        }
        Stage::AttnResidual => {
            let (x, output) = (input(layer_input(site))?, input(site.other(Stage::AttnOutput))?);
            add(values(&x), values(&output), &mut out);
        }
        Stage::FfnSilu => {
            let gate = here(Stage::FfnGate)?;
            for (out, gate) in out.iter_mut().zip(values(&gate)) {
                *out = silu(*gate);
            }
        }
        Stage::FfnHidden => mul(values(&*here(Stage::FfnSilu)?), values(&*here(Stage::FfnUp)?), &mut out),
        Stage::FfnResidual => {
            add(values(&*here(Stage::AttnResidual)?), values(&*here(Stage::FfnDown)?), &mut out);
        }
        _ => unreachable!("{} needs weights", site.stage),
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

/// The stage whose int8 values or scales `stage` is.
fn quantized_from(stage: Stage) -> Option<Stage> {
    use Stage as S;
    match stage {
        S::AttnNormQ8 | S::AttnNormScale => Some(S::AttnNorm),
        S::AttnHeadsQ8 | S::AttnHeadsScale => Some(S::AttnHeads),
        S::FfnNormQ8 | S::FfnNormScale => Some(S::FfnNorm),
        S::FfnHiddenQ8 | S::FfnHiddenScale => Some(S::FfnHidden),
        S::FinalNormQ8 | S::FinalNormScale => Some(S::FinalNorm),
        _ => None,
    }
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

/// The site that holds what enters the layer of `site`.
pub fn layer_input(site: Site) -> Site {
    match site.layer {
        Some(layer) if layer > 0 => Site::layer(site.pass, layer - 1, Stage::FfnResidual),
        _ => Site::once(site.pass, Stage::Embedding),
    }
}

/// The numbers of a float32 frame, row-major.
pub(super) fn values(frame: &Frame) -> &[f32] {
    match &frame.data {
        FrameData::F32(array) => array.as_slice().unwrap_or_default(),
        FrameData::I64(_) | FrameData::I8(_) => &[],
    }
}
