//! The precision of a run, derived from the bits of its values.

use ndarray::ArrayD;

use super::{Fits, Way, is_residual};
use crate::capture::npy;
use crate::diff::Found;
use llama_trace_core::trace::{FrameData, PassDims, Site, Stage};

/// The precision that the bits of a run's values show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::suggest) enum Bits {
    /// float32: a stage that every 16-bit run rounds is not rounded, or no stage is rounded.
    All,
    /// Every stage is rounded to this 16-bit type.
    Sixteen(&'static str),
    /// Every stage except the logits is rounded to this type.
    ButLogits(&'static str),
    /// Only the residual stream is rounded to this type.
    Alone(&'static str),
    /// These stages are rounded to this type, and the folder has no stage that every 16-bit run rounds.
    Some(&'static str, Vec<Stage>),
}

impl Fits<'_> {
    /// The precision that the bits of the `found` stages show.
    pub(in crate::suggest) fn bits(&self, found: &[&Way<'_>]) -> Bits {
        let of = |says: fn(Stage) -> bool| found.iter().copied().filter(move |one| says(one.stage));
        let rounded: Vec<_> = of(is_rounded).filter_map(|one| self.sixteen(one)).collect();
        let logits = of(|stage| stage == Stage::Logits).find_map(|one| self.sixteen(one));
        match (name(&rounded), logits) {
            // Logits are often converted to float32 after the run, so they count only if no other stage shows the
            // precision.
            (None, logits) if rounded.is_empty() => match logits.and_then(|logits| name(&[logits])) {
                Some(name) => Bits::Sixteen(name),
                None => self.some_rounded(found),
            },
            (None, _) => Bits::All,
            // A rounded stage besides the residual stream means that all stages are rounded.
            (Some(name), None | Some([false, false]))
                if of(is_rounded).all(|one| is_residual(one.stage))
                    && found.iter().any(|one| self.is_rounded_alone(one, name)) =>
            {
                Bits::Alone(name)
            }
            (Some(name), Some([false, false])) => Bits::ButLogits(name),
            (Some(name), _) => Bits::Sixteen(name),
        }
    }

    /// For a folder without a stage that every 16-bit run rounds: the rounded stages among those that some 16-bit runs
    /// round. A stage that is rounded in the reference too, such as embeddings of a bfloat16 table, does not count.
    fn some_rounded(&self, found: &[&Way<'_>]) -> Bits {
        let is_of_both = |way: &Way<'_>, kinds: [bool; 2]| {
            let of_a = way.places.iter().filter_map(|(site, _)| match &self.frames.get(site)?.data {
                FrameData::F32(values) => Some(kinds_of(values)),
                _ => None,
            });
            let of_a = of_a.reduce(both).unwrap_or_default();
            kinds.iter().zip(of_a).any(|(own, of_a)| *own && of_a)
        };
        let shown: Vec<(Stage, [bool; 2])> = found
            .iter()
            .filter(|way| may_be_rounded(way.stage))
            .filter_map(|way| {
                let kinds = self.sixteen(way).filter(|kinds| kinds.contains(&true))?;
                (!is_of_both(way, kinds)).then_some((way.stage, kinds))
            })
            .collect();
        let kinds: Vec<[bool; 2]> = shown.iter().map(|(_, kinds)| *kinds).collect();
        let stages = shown.into_iter().map(|(stage, _)| stage).collect();
        name(&kinds).map_or(Bits::All, |name| Bits::Some(name, stages))
    }

    /// Returns whether every value is a bfloat16, and whether every value is a float16; `None` without a file.
    fn sixteen(&self, way: &Way<'_>) -> Option<[bool; 2]> {
        let read = way.places.iter().filter_map(|(site, _)| self.file(&way.pattern.name, *site));
        read.map(|values| kinds_of(&values)).reduce(both)
    }

    /// Returns whether only the residual stream was rounded, judged at its first place. Then it is hardly further from
    /// the reference than the rounded reference is. If all results are rounded, it is more than twice as far.
    fn is_rounded_alone(&self, way: &Way<'_>, name: &str) -> bool {
        /// The largest ratio of the two distances. A layer rounds the stream twice.
        const ONCE_OR_TWICE: f64 = 1.75;
        let first = way.places.first().filter(|(site, _)| is_residual(way.stage) && site.layer == Some(0));
        let Some((site, apart)) = first else { return false };
        let Some(FrameData::F32(values)) = self.frames.get(site).map(|frame| &frame.data) else {
            return false;
        };
        let square = |x: f32| f64::from(x).powi(2);
        let rounded = |x: f32| match name {
            "f16" => half::f16::from_f32(x).to_f32(),
            _ => half::bf16::from_f32(x).to_f32(),
        };
        let off: f64 = values.iter().map(|&x| square(rounded(x) - x)).sum();
        let norm: f64 = values.iter().map(|&x| square(x)).sum();
        apart.error <= ONCE_OR_TWICE * (off / norm).sqrt()
    }

    /// Returns whether the folder has int8 inputs of products: a file of the shape of such a stage, in which each row
    /// reaches ±127, as rows scaled by their largest value do.
    pub(in crate::suggest) fn reads_int8(&self) -> bool {
        self.names.int8.iter().any(|name| {
            let site = Site::once(0, Stage::AttnNormQ8);
            let Found::Frame(frame) = npy::read(&self.folder.join(name), site) else { return false };
            let FrameData::I8(values) = &frame.data else { return false };
            let own = |dims: &PassDims, stage: Stage| {
                let [before, after] = self.padded.around;
                let shape = self.sizes.shape(stage.axes(), *dims);
                let width = shape.iter().skip(1).product::<usize>();
                (values.len() == (dims.tokens + before + after) * width).then_some(width)
            };
            let stages = Stage::ALL.iter().copied().filter(|stage| stage.is_int8());
            let width = stages.flat_map(|stage| self.passes.iter().map(move |dims| (dims, stage)));
            let Some(width) = width.filter_map(|(dims, stage)| own(dims, stage)).find(|&width| width > 0)
            else {
                return false;
            };
            let values: Vec<i8> = values.iter().copied().collect();
            values.chunks(width).all(|row| row.iter().any(|x| x.unsigned_abs() >= 127))
        })
    }
}

/// Returns whether every value is a bfloat16, and whether every value is a float16.
fn kinds_of(values: &ArrayD<f32>) -> [bool; 2] {
    let bf16 = values.iter().all(|&x| half::bf16::from_f32(x).to_f32() == x);
    [bf16, values.iter().all(|&x| half::f16::from_f32(x).to_f32() == x)]
}

fn both(a: [bool; 2], b: [bool; 2]) -> [bool; 2] {
    [a[0] && b[0], a[1] && b[1]]
}

/// The 16-bit type that all these values fit.
fn name(kinds: &[[bool; 2]]) -> Option<&'static str> {
    match kinds.iter().copied().reduce(both)? {
        [true, _] => Some("bf16"),
        [_, true] => Some("f16"),
        _ => None,
    }
}

/// Returns whether some 16-bit runs round this stage, and others compute it in float32.
fn may_be_rounded(stage: Stage) -> bool {
    stage.is_rope_table()
        || matches!(
            stage,
            Stage::Embedding | Stage::Qk | Stage::Scores | Stage::MaskedScores | Stage::Softmax
        )
}

/// Returns whether every 16-bit run rounds this stage, and no float32 run does. Embeddings have the bits of their
/// table, RoPE's angles and probabilities are often float32, and a cache may have its own type.
fn is_rounded(stage: Stage) -> bool {
    matches!(
        stage.first_of_name(),
        Stage::AttnNorm
            | Stage::Xq
            | Stage::Xk
            | Stage::Xv
            | Stage::XqNorm
            | Stage::XkNorm
            | Stage::XqRope
            | Stage::XkRope
            | Stage::AttnHeads
            | Stage::AttnOutput
            | Stage::AttnResidual
            | Stage::FfnNorm
            | Stage::FfnGate
            | Stage::FfnSilu
            | Stage::FfnUp
            | Stage::FfnHidden
            | Stage::FfnDown
            | Stage::FfnResidual
            | Stage::FinalNorm
    )
}
