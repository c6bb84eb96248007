//! A run with made-up values, for tests.

use std::collections::HashMap;

use ndarray::{ArrayD, IxDyn};

use super::evaluate::World;
use crate::trace::{Frame, FrameData, ModelCard, PassDims, Site, Stage};

/// A run of two passes: 4 tokens, then one.
pub(super) struct Fake {
    card: ModelCard,
    pub(super) frames: HashMap<Site, Frame>,
}

impl Fake {
    /// The values of each stage are 0, 1, 2, … in an order that is not sorted.
    pub(super) fn new() -> Self {
        let mut fake = Self { card: ModelCard::small(|_| {}), frames: HashMap::new() };
        for site in [
            Site::layer(0, 1, Stage::Softmax),
            Site::once(0, Stage::Logits),
            Site::once(0, Stage::Tokens),
            Site::once(1, Stage::Tokens),
        ] {
            fake.add(site);
        }
        fake
    }

    fn add(&mut self, site: Site) {
        let Some(dims) = self.dims(0, site.pass) else { return };
        let shape = self.card.sizes().shape(site.stage.axes(), dims);
        let count: usize = shape.iter().product();
        let order = |at: usize| (at * 7 + 3) % count;
        let data = match site.stage.is_ids() {
            true => {
                let ids = (0..count).map(|at| order(at) as i64).collect();
                FrameData::I64(ArrayD::from_shape_vec(IxDyn(&shape), ids).unwrap())
            }
            false => {
                let values = (0..count).map(|at| order(at) as f32).collect();
                FrameData::F32(ArrayD::from_shape_vec(IxDyn(&shape), values).unwrap())
            }
        };
        self.frames.insert(site, Frame { site, axes: site.stage.axes(), data });
    }
}

impl World for Fake {
    fn card(&self) -> &ModelCard {
        &self.card
    }

    fn dims(&self, sequence: usize, pass: usize) -> Option<PassDims> {
        let (start, tokens) = match pass {
            0 => (0, 4),
            1 => (4, 1),
            _ => return None,
        };
        (sequence == 0).then_some(PassDims { pass, start, tokens, ..PassDims::default() })
    }

    fn frame(&self, site: Site) -> Option<&Frame> {
        self.frames.get(&site)
    }

    fn token_text(&self, id: u32) -> String {
        format!("<{id}>")
    }

    fn fact(&self, path: &str) -> Option<f64> {
        match path {
            "induction/layer" | "induction/head" => Some(1.0),
            "induction/score" => Some(0.96),
            _ => None,
        }
    }
}
