//! A trace with its model. Values of the trace are read; others are computed by the model over the same tokens.

use std::collections::HashSet;
use std::mem::{Discriminant, discriminant};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use super::live::{Live, Start};
use super::serve::Member;
use super::store::Store;
use crate::record::Kept;
use crate::record::read::Pass;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::block::index_of;
use llama_trace_core::trace::explanation::{ExplanationAt, From};
use llama_trace_core::trace::frame::Number;
use llama_trace_core::trace::{
    Address, Answer, Fork, FrameData, Outline, Query, Region, Run, Site, Source, Stage, Status, Step, Subject,
};
use llama_trace_engine::generate::Sampler;
use llama_trace_engine::model::Model;
use llama_trace_formats::tokenizer::Tokenizer;

/// The largest relative distance ‖run − recorded‖ / ‖recorded‖ at which an answer may use both the model's run and the
/// trace. It is larger than the rounding of any precision, and smaller than the effect of a mistake.
const NEAR: f64 = 0.05;

/// Starts the model's run.
type Begin = Box<dyn Fn() -> Result<Live>>;

/// A trace and its model.
pub(super) struct Together {
    trace: Live,
    kept: Arc<dyn Kept>,
    model: Option<Live>,
    begin: Begin,
    /// Queries that the trace could not answer, by kind and site. A value may be in the trace while some of its
    /// operands are not.
    unanswered: HashSet<(Discriminant<Query>, Site)>,
}

/// The parameters of the model's run: the model, the sequence, the sampler and the tokenizer.
type Asked = (Arc<Model>, Member, Sampler, Option<Arc<dyn Tokenizer>>);

impl Together {
    /// A trace with its model. The model runs over the tokens of `passes` from the first query on that `trace` cannot
    /// answer.
    pub(super) fn new(
        (trace, kept): (Live, Arc<dyn Kept>),
        run: Asked,
        passes: &[Pass],
        memory: usize,
    ) -> Self {
        let (model, member, sampler, tokenizer) = run;
        let start = Start {
            ids: passes.first().map(|pass| pass.tokens.clone()).unwrap_or_default(),
            draws: passes.len(),
            sampler,
            tokenizer,
            eos: Vec::new(),
            memory,
            context: passes.last().map(|pass| pass.dims.keys() + 1),
        };
        let forced: Vec<u32> = passes.iter().filter_map(|pass| pass.sampled).collect();
        let begin = move || {
            let store = Arc::new(Mutex::new(Store::new(memory)));
            Live::start_as(member.clone(), store, Arc::clone(&model), start.clone(), forced.clone())
        };
        Self { trace, kept, model: None, begin: Box::new(begin), unanswered: HashSet::new() }
    }

    /// The model's answer.
    fn compute(&mut self, query: &Query) -> Poll<Result<Answer>> {
        if self.model.is_none() {
            match (self.begin)() {
                Ok(model) => self.model = Some(model),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        let Some(model) = &mut self.model else { return Poll::Pending };
        // The model's run has not reached this pass yet.
        if pass(query)
            .is_some_and(|pass| model.outline().passes.get(pass).is_none_or(|it| it.sampled.is_none()))
        {
            return match model.status() {
                Status::Working(_) => Poll::Pending,
                Status::Idle => match model.advance() {
                    Ok(()) => Poll::Pending,
                    Err(error) => Poll::Ready(Err(error)),
                },
            };
        }
        model.ask(query)
    }

    /// The model's answer to a query for which the trace lacks operands. An explained number that the trace has is
    /// shown with its recorded value, even if the model's value differs.
    fn instead(&mut self, query: &Query) -> Poll<Result<Answer>> {
        match self.strange(query) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return Poll::Pending,
        }
        let recorded = match query {
            Query::Explanation(at) => match self.recorded(at) {
                Poll::Ready(recorded) => Some((recorded, self.kept.tells(at.site))),
                Poll::Pending => return Poll::Pending,
            },
            _ => None,
        };
        let (trace, asked) = (Arc::clone(&self.kept), query.site());
        self.compute(query).map_ok(|answer| match (answer, recorded) {
            (Answer::Explanation(mut explanation), Some((recorded, kept))) => {
                explanation.recorded = kept;
                if let Some(recorded) = recorded.filter(|value| value.to_bits() != explanation.value.to_bits()) {
                    explanation.notes.push(format!(
                        "The model's own run has {} here. The operands of that run are shown, because the trace does not have all of them.",
                        explanation.value as f32
                    ));
                    explanation.value = recorded;
                }
                let other = explanation.terms.iter().flat_map(|term| &term.operands).find_map(|operand| {
                    let From::Stage(address) = &operand.from else { return None };
                    let recorded = number(&*trace, asked?, address)?;
                    (recorded.to_bits() != (operand.value as f32).to_bits()).then_some((address, recorded))
                });
                if let Some((address, recorded)) = other {
                    explanation.notes.push(format!(
                        "The operands are those of the model's own run over the trace's tokens: the trace has {recorded} at {address}."
                    ));
                }
                Answer::Explanation(explanation)
            }
            (answer, _) => answer,
        })
    }

    /// An error if the answer to `query` must not use values of the model, because they differ too much from the
    /// recorded values of the same tokens. This is checked only for queries about the prediction; other answers show
    /// both values.
    fn strange(&mut self, query: &Query) -> Poll<Result<()>> {
        let sizes = self.trace.outline().card.sizes();
        let last = Site {
            layer: sizes.layers.checked_sub(1),
            ..query.site().unwrap_or(Site::once(0, Stage::Logits))
        };
        let last = last.other(Stage::FfnResidual);
        let (of, takes, sites) = match query {
            Query::Lens(at) => {
                let layer = at.site.layer.unwrap_or(0);
                let takes = format!("ffn_residual of layer {layer} and of the last layer");
                (
                    "the lens",
                    takes,
                    [at.site, last, Site { layer: None, ..last.other(Stage::Logits) }]
                        .map(|site| (site, at.tokens.clone())),
                )
            }
            Query::Attribution(at) => {
                let of_layers =
                    "attn_heads, attn_output, attn_residual, ffn_down and ffn_residual of every layer";
                let takes = format!("embedding, and {of_layers}");
                (
                    "the attribution",
                    takes,
                    [last, at.site, at.site].map(|site| (site, at.token..at.token + 1)),
                )
            }
            _ => return Poll::Ready(Ok(())),
        };
        for (site, tokens) in sites {
            let Ok(Some(FrameData::F32(recorded))) = self.kept.rows(site, tokens.clone()) else {
                continue;
            };
            let width = if site.stage == Stage::Logits { sizes.vocab } else { sizes.dim };
            let own = match self.compute(&Query::Block(site, Region(vec![tokens.clone(), 0..width]))) {
                Poll::Ready(Ok(Answer::Block(own))) => own,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(_)) => continue,
                Poll::Pending => return Poll::Pending,
            };
            let (mut apart, mut size) = (0.0, 0.0);
            for (row, recorded) in tokens.zip(recorded.rows()) {
                for (column, recorded) in recorded.iter().enumerate() {
                    let own = own.get(&[row, column]).map_or(f64::NAN, Number::real);
                    apart += (own - f64::from(*recorded)).powi(2);
                    size += f64::from(*recorded).powi(2);
                }
            }
            // NaN counts as too far.
            if apart.is_nan() || apart.sqrt() > NEAR * size.sqrt() {
                return Poll::Ready(Err(Error::usage(format!(
                    "{site} differs between the trace and the model's run over the same tokens, and the trace does not have all values that {of} needs: the \
                     result would be that of the model's run"
                ))
                .expected(takes)
                .next("record these stages; `llama-trace diff` says where the trace and the model differ")));
            }
        }
        Poll::Ready(Ok(()))
    }

    /// The recorded number; `None` if the trace lacks it.
    fn recorded(&mut self, at: &ExplanationAt) -> Poll<Option<f64>> {
        let outline = self.trace.outline();
        let Some(pass) = outline.passes.get(at.site.pass) else { return Poll::Ready(None) };
        let shape = outline.card.sizes().shape(at.site.stage.axes(), pass.dims);
        let index = index_of(&shape, at.at);
        let region = Region(index.iter().map(|&index| index..index + 1).collect());
        self.trace.ask(&Query::Block(at.site, region)).map(|answer| match answer {
            Ok(Answer::Block(block)) => block.get(&index).map(Number::real),
            _ => None,
        })
    }
}

/// The recorded number at `address`, a stage of the run of `site`; `None` if the trace lacks it.
fn number(kept: &dyn Kept, site: Site, address: &Address) -> Option<f32> {
    let Some(Subject::Step(Step::Stage(stage))) = address.subject else { return None };
    let there = Site { pass: address.pass?, layer: address.layer, stage, ..site };
    let shape = kept.card().sizes().shape(stage.axes(), kept.dims(there)?);
    let (column, outer) = address.index.split_last()?;
    let row = outer.iter().zip(&shape).fold(0, |row, ((_, index), length)| row * length + index);
    if !kept.holds(there) {
        return None;
    }
    match kept.rows(there, row..row + 1).ok()?? {
        FrameData::F32(values) => values.iter().nth(column.1).copied(),
        _ => None,
    }
}

fn pass(query: &Query) -> Option<usize> {
    query.site().map(|site| site.pass)
}

impl Source for Together {
    fn outline(&self) -> &Outline {
        self.trace.outline()
    }

    fn ask(&mut self, query: &Query) -> Poll<Result<Answer>> {
        let asked = query.site().map(|site| (discriminant(query), site));
        if asked.is_some_and(|asked| self.unanswered.contains(&asked)) {
            return self.instead(query);
        }
        match self.trace.ask(query) {
            // The trace lacks a part of the answer.
            Poll::Ready(Err(Error::Usage(_))) => {
                self.unanswered.extend(asked);
                self.instead(query)
            }
            other => other,
        }
    }

    fn cancel(&mut self, query: &Query) {
        self.trace.cancel(query);
        if let Some(model) = &mut self.model {
            model.cancel(query);
        }
    }

    fn stop(&mut self) {
        self.trace.stop();
        if let Some(model) = &mut self.model {
            model.stop();
        }
    }

    fn advance(&mut self) -> Result<()> {
        self.trace.advance()
    }

    fn branch(&mut self, run: Run, fork: Fork) -> Result<Box<dyn Source>> {
        self.trace.branch(run, fork)
    }

    fn wait(&mut self, most: Duration) {
        /// The polling interval for the other source while both compute.
        const BRIEF: Duration = Duration::from_millis(2);
        match &mut self.model {
            Some(model) if model.status() != Status::Idle => match self.trace.status() {
                Status::Idle => model.wait(most),
                Status::Working(_) => self.trace.wait(most.min(BRIEF)),
            },
            _ => self.trace.wait(most),
        }
    }

    fn poll(&mut self) -> Result<bool> {
        let mut news = self.trace.poll()?;
        if let Some(model) = &mut self.model {
            // If the first pass fails, the next query returns the error. The trace stays available.
            news |= model.poll().unwrap_or(true);
        }
        Ok(news)
    }

    fn status(&self) -> Status {
        match (self.trace.status(), &self.model) {
            (Status::Idle, Some(model)) => model.status(),
            (status, _) => status,
        }
    }

    fn token_text(&self, id: u32) -> String {
        self.trace.token_text(id)
    }
}
