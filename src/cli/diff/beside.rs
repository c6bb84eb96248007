//! `diff A B --tui`: the two runs side by side, at the first stage that differs.

use crate::chapters::CHAPTERS;
use std::path::Path;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::super::traced::Traced;
use super::super::{CpuArgs, ModelArgs};
use super::judged::verdict;
use llama_trace_core::error::Result;
use llama_trace_core::trace::{Answer, Block, Fork, Frame, Outline, Query, Run, Source, Status};
use llama_trace_judge::diff::Report;
use llama_trace_runs::replay::DEFAULT_MEMORY;
use llama_trace_tui as tui;
use llama_trace_tui::{Runs, Verdict};

/// The run number of the judged run.
const B: Run = Run(1);

/// Shows the runs at these paths with the result in `report`.
pub(super) fn show(model: &ModelArgs, cpu: &CpuArgs, [a, b]: [&Path; 2], report: &Report) -> Result<()> {
    let names = [a, b].map(|path| path.display().to_string());
    let verdict = verdict(report, [&names[0], &names[1]]);
    let memory = DEFAULT_MEMORY / 2;
    let a = Traced::open(a, model, cpu, memory)?.source(Run::ITSELF, 0)?;
    // A stage that B does not have would be computed with A's model and shown as B's. So B is opened without a model.
    let b = Traced::open_judged(b, B, model, cpu, memory)?.source(Run::ITSELF, 0)?;
    let passes = a.outline().passes.len();
    show_runs([a, b], passes, verdict)
}

/// Shows `verdict` on two runs with `passes` passes.
pub(super) fn show_runs([a, b]: [Box<dyn Source>; 2], passes: usize, verdict: Verdict) -> Result<()> {
    let open = tui::OpenAt { passes, ..tui::OpenAt::default() };
    let b = Beside::new(b);
    let setting = tui::Setting { verdict: Some(verdict), chapters: CHAPTERS, ..tui::Setting::default() };
    tui::run(Runs::side_by_side(a, Box::new(b)), &open, setting)
}

/// A run that is shown under another run number than its own.
struct Beside {
    source: Box<dyn Source>,
    outline: Outline,
}

impl Beside {
    fn new(source: Box<dyn Source>) -> Self {
        let outline = Outline { run: B, ..source.outline().clone() };
        Self { source, outline }
    }
}

impl Source for Beside {
    fn outline(&self) -> &Outline {
        &self.outline
    }

    fn ask(&mut self, query: &Query) -> Poll<Result<Answer>> {
        self.source.ask(&query.of_run(Run::ITSELF)).map_ok(|answer| match answer {
            Answer::Block(Block { frame, region, shape }) => {
                let mut frame: Frame = Arc::unwrap_or_clone(frame);
                frame.site.run = B;
                Answer::Block(Block { frame: Arc::new(frame), region, shape })
            }
            Answer::Explanation(explanation) => Answer::Explanation(Box::new(explanation.seen_from(B))),
            other => other,
        })
    }

    fn cancel(&mut self, query: &Query) {
        self.source.cancel(&query.of_run(Run::ITSELF));
    }

    fn stop(&mut self) {
        self.source.stop();
    }

    fn advance(&mut self) -> Result<()> {
        self.source.advance()
    }

    fn branch(&mut self, run: Run, fork: Fork) -> Result<Box<dyn Source>> {
        // A recorded source returns an error here.
        self.source.branch(run, fork)
    }

    fn poll(&mut self) -> Result<bool> {
        let news = self.source.poll()?;
        if self.outline.passes.len() != self.source.outline().passes.len() || news {
            self.outline = Outline { run: B, ..self.source.outline().clone() };
        }
        Ok(news)
    }

    fn wait(&mut self, most: Duration) {
        self.source.wait(most);
    }

    fn status(&self) -> Status {
        self.source.status()
    }

    fn token_text(&self, id: u32) -> String {
        self.source.token_text(id)
    }
}
