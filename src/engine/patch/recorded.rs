//! The stages of a run that patches read.

use std::collections::HashMap;
use std::ops::Range;

use crate::backend::Span;
use crate::model::{Activations, KvCache, Model, pass};
use llama_trace_core::error::Result;
use llama_trace_core::trace::{Probe, Site, Stage, Values};

/// Stages of a run, and its last logits.
#[derive(Default)]
pub(super) struct Recorded {
    /// The rows of all tokens, by layer and stage.
    stages: HashMap<(Option<usize>, Stage), Vec<f32>>,
    tokens: usize,
    /// The logits after the last token.
    pub(super) logits: Vec<f32>,
}

impl Recorded {
    /// Runs `prompts` of equal length together, and keeps what patches of `stages` read.
    pub(super) fn run(
        model: &Model,
        caches: &mut [KvCache],
        work: &mut Activations,
        prompts: &[&[u32]],
        stages: &[Stage],
    ) -> Result<Vec<Self>> {
        let kept = kept(stages);
        let spans = prompts.iter().enumerate();
        let spans: Vec<Span> =
            spans.map(|(sequence, prompt)| Span { sequence, start: 0, tokens: prompt.len() }).collect();
        let run = |prompt: &&[u32]| Self { tokens: prompt.len(), ..Self::default() };
        let mut keeping = Keeping { kept, runs: prompts.iter().map(run).collect() };
        let mut caches: Vec<&mut KvCache> = caches.iter_mut().collect();
        pass::forward(model, &mut caches, work, 0, &spans, &prompts.concat(), &mut keeping)?;
        let mut runs = keeping.runs;
        for (span, run) in runs.iter_mut().enumerate() {
            pass::last_logits(model, work, span, |logits| {
                run.logits.extend_from_slice(logits);
                Ok(())
            })?;
        }
        Ok(runs)
    }

    /// Rows of `stage`, which was kept.
    pub(super) fn rows(&self, layer: Option<usize>, stage: Stage, tokens: Range<usize>) -> &[f32] {
        let Some(rows) = self.stages.get(&(layer, stage)) else {
            unreachable!("{} of {layer:?} was not kept", stage.name())
        };
        let width = rows.len() / self.tokens;
        &rows[tokens.start * width..tokens.end * width]
    }
}

/// The stages that patches of `stages` read.
pub(super) fn kept(stages: &[Stage]) -> Vec<Stage> {
    // The inputs of the layers are read for every place.
    let mut kept = vec![Stage::Embedding, Stage::FfnResidual];
    kept.extend(stages.iter().filter(|stage| ![Stage::Embedding, Stage::FfnResidual].contains(stage)));
    if stages.iter().any(|stage| matches!(stage, Stage::FfnDown | Stage::FfnHidden | Stage::FfnAct)) {
        kept.push(Stage::AttnResidual);
    }
    kept
}

/// The input of `layer`; of the head if `layer` is the number of layers.
pub(super) fn input_of(layer: usize) -> (Option<usize>, Stage) {
    layer.checked_sub(1).map_or((None, Stage::Embedding), |before| (Some(before), Stage::FfnResidual))
}

/// A probe that keeps stages of each sequence.
struct Keeping {
    kept: Vec<Stage>,
    runs: Vec<Recorded>,
}

impl Probe for Keeping {
    fn enabled(&self) -> bool {
        true
    }

    fn wants(&self, site: Site) -> bool {
        self.kept.contains(&site.stage)
    }

    fn record(&mut self, site: Site, _: Range<usize>, values: Values<'_>) {
        if let (Values::F32(values), Some(run)) = (values, self.runs.get_mut(site.sequence)) {
            run.stages.entry((site.layer, site.stage)).or_default().extend_from_slice(values);
        }
    }
}
