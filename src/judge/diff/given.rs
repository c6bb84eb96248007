//! The inputs to try a mistake on: the frames of a run, or those of its first tokens only.

use std::sync::Arc;

use ndarray::{ArrayD, ArrayView, IxDyn, Slice};

use super::bench::{Bench, Frames, Otherwise};
use crate::check::{Nothing, ReadWeights};
use llama_trace_core::config::CacheDtype;
use llama_trace_core::explain::Rules;
use llama_trace_core::trace::{Axis, Frame, FrameData, ModelCard, PassDims, Sampling, Site, Sizes, Stage};

/// The passes so far and the available frames.
pub(super) struct Given {
    passes: Vec<PassDims>,
    run: Frames,
    both: Frames,
    kept: Frames,
    reference: Frames,
}

impl Given {
    /// The frames of `of`, whose rules have these passes.
    pub(super) fn all(of: &Bench<'_>, passes: &[PassDims]) -> Self {
        let [run, both, kept, reference] = [of.run, of.both, of.kept, of.reference].map(Frames::clone);
        Self { passes: passes.to_vec(), run, both, kept, reference }
    }

    /// The frames of the first tokens of the pass of `site`. Later tokens do not affect them unless the mistake looks
    /// ahead. `None` if the pass has fewer than 4 · `tokens` tokens, or the stage has no token axis.
    pub(super) fn first(&self, tokens: usize, site: Site, sizes: &Sizes) -> Option<Self> {
        let dims = *self.passes.iter().find(|dims| dims.pass == site.pass)?;
        if dims.tokens < 4 * tokens || !site.stage.axes().contains(&Axis::Token) {
            return None;
        }
        let few = PassDims { tokens, ..dims };
        let passes = self.passes.iter().map(|one| if one.pass == site.pass { few } else { *one }).collect();
        let shortened = |frames: &Frames| -> Option<Frames> {
            let short = |(site, frame): (&Site, &Arc<Frame>)| match site.pass == few.pass {
                true => Some((*site, Arc::new(shortened(frame, sizes, [dims, few])?))),
                false => Some((*site, Arc::clone(frame))),
            };
            frames.iter().map(short).collect()
        };
        let [run, both, kept, reference] =
            [&self.run, &self.both, &self.kept, &self.reference].map(shortened);
        Some(Self { passes, run: run?, both: both?, kept: kept?, reference: reference? })
    }

    /// The frame of the run at `site`.
    pub(super) fn found(&self, site: Site) -> Option<&Frame> {
        self.run.get(&site).map(AsRef::as_ref)
    }

    /// The rules of the model `card` for these passes.
    pub(super) fn rules(&self, card: &ModelCard, sampling: Sampling) -> Rules {
        let mut rules = Rules::new(card.clone(), CacheDtype::F32, sampling);
        for dims in &self.passes {
            rules.push(*dims, None);
            let ids = self.run.get(&Site::once(dims.pass, Stage::Tokens));
            rules.read(ids.into_iter().flat_map(|ids| ids.values().numbers()).map(|id| id as u32));
        }
        rules
    }

    /// A bench that computes stages from these frames.
    pub(super) fn bench<'a>(&'a self, model: &'a dyn ReadWeights, rules: &'a Rules) -> Bench<'a> {
        let Self { run, both, kept, reference, .. } = self;
        let (otherwise, made) = (Otherwise::default(), Frames::new());
        Bench { model, rules, change: &Nothing, otherwise, run, both, kept, reference, made }
    }
}

/// The part of a frame that a shorter pass has; `None` if the frame does not have the stage's shape.
fn shortened(frame: &Frame, sizes: &Sizes, dims: [PassDims; 2]) -> Option<Frame> {
    let axes = frame.site.stage.axes();
    let [whole, short] = dims.map(|dims| sizes.shape(axes, dims));
    let data = match &frame.data {
        FrameData::F32(values) => FrameData::F32(start_of(values, &whole, &short)?),
        FrameData::I64(values) => FrameData::I64(start_of(values, &whole, &short)?),
        FrameData::I8(values) => FrameData::I8(start_of(values, &whole, &short)?),
    };
    Some(Frame { site: frame.site, axes, data })
}

/// The part of values in the shape `whole` that is in the shape `short`.
fn start_of<T: Copy>(values: &ArrayD<T>, whole: &[usize], short: &[usize]) -> Option<ArrayD<T>> {
    let values = ArrayView::from_shape(IxDyn(whole), values.as_slice()?).ok()?;
    let start = values.slice_each_axis(|axis| Slice::from(..short[axis.axis.index()].min(axis.len)));
    ArrayD::from_shape_vec(start.raw_dim(), start.iter().copied().collect()).ok()
}
