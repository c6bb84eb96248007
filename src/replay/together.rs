//! A trace with its model beside it: what the trace has is the trace's, and what it has not the model computes again,
//! over the same tokens.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use super::live::{Live, Start};
use super::serve::Member;
use super::store::Store;
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::generate::Sampler;
use crate::model::Model;
use crate::record::read::Pass;
use crate::tokenizer::Tokenizer;
use crate::trace::{Answer, Fork, Outline, Query, Run, Site, Source, Status};

/// Begins the model's run.
type Begin = Box<dyn Fn() -> Result<Live>>;

/// Both of them.
pub(super) struct Together {
    trace: Live,
    model: Option<Live>,
    begin: Begin,
    /// What the trace was asked for and has not.
    lacking: HashSet<Site>,
}

/// What runs: the model, which sequence, what draws, and what gives tokens their texts.
type Asked<B> = (Arc<Model<B>>, Member, Sampler, Option<Arc<dyn Tokenizer>>);

impl Together {
    /// The model runs over the tokens of `passes` once something is asked for that `trace` has not.
    pub(super) fn new<B: Backend + 'static>(
        trace: Live,
        run: Asked<B>,
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
        Self { trace, model: None, begin: Box::new(begin), lacking: HashSet::new() }
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
        // A pass that was not run yet is on its way.
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
}

fn pass(query: &Query) -> Option<usize> {
    query.site().map(|site| site.pass)
}

impl Source for Together {
    fn outline(&self) -> &Outline {
        self.trace.outline()
    }

    fn ask(&mut self, query: &Query) -> Poll<Result<Answer>> {
        let lacks = query.site().is_some_and(|site| self.lacking.contains(&site));
        if matches!(query, Query::Lens(_)) || lacks {
            return self.compute(query);
        }
        match self.trace.ask(query) {
            // The trace has not all that this takes.
            Poll::Ready(Err(Error::Usage(_))) => {
                self.lacking.extend(query.site());
                self.compute(query)
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

    fn poll(&mut self) -> Result<bool> {
        let mut news = self.trace.poll()?;
        if let Some(model) = &mut self.model {
            // Where its first pass fails, who asks is told; the trace can be looked at still.
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
