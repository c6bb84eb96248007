//! Runs the scenes of a lesson: in the tracer, or without a terminal.

use std::cell::RefCell;
use std::rc::Rc;

use super::super::{step, tell};
use super::args::LearnArgs;
use super::find::Source;
use super::progress::Progress;
use crate::builtin;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::lesson::Lesson;
use llama_trace_core::stop;
use llama_trace_picture::Paper;
use llama_trace_tui as tui;
use llama_trace_tui::lesson_screens::LessonScreens;
use llama_trace_tui::theme::{Depth, Theme};
use llama_trace_tui::{Facts, OpenLesson, StoreProgress};

/// Opens the lesson in the tracer.
pub(super) fn open(args: &LearnArgs, source: &Source, lesson: Lesson) -> Result<()> {
    let count = lesson.scenes.len();
    // A class must not see the answers that its teacher has found or looked up before.
    let progress = Progress::open(args.no_progress || args.present);
    let known = progress.of(source, count);
    let scene = match args.from {
        Some(from) if from > count => {
            return Err(Error::usage(format!("the lesson has no scene {from}"))
                .at("--from")
                .expected(format!("a number from 1 to {count}")));
        }
        Some(from) => from - 1,
        None => known.resumes(&lesson),
    };
    // The first run is the one of the scene, so that no other run is computed first.
    let run = args.run(&lesson.scenes.get(scene).map(|scene| scene.run.clone()).unwrap_or_default());
    let (presents, resumes) = (args.present, args.from.is_none());
    let open = OpenLesson { answers: known.answers(), lesson, scene, presents, resumes };
    let failed = Rc::default();
    let stores = stores(progress, source.clone(), Rc::clone(&failed));
    let shown = step::learn(&run, &args.memory, &args.colours, open, Some(stores));
    // The screen of the lesson soon covers the message about it.
    if let Some(error) = failed.take() {
        tell(format_args!("warning: the progress was not stored: {error}"));
    }
    shown
}

/// Stores the progress of lessons: of the opened one under the name of its file, of others under their own names.
/// `failed` receives the error.
fn stores(mut progress: Progress, source: Source, failed: Rc<RefCell<Option<Error>>>) -> StoreProgress {
    StoreProgress(Box::new(move |reached| {
        let key = if reached.slug == source.slug { &source.key } else { &reached.slug };
        let stored = progress.store(key, reached);
        if let Err(error) = &stored {
            failed.replace(Some(error.clone()));
        }
        stored
    }))
}

/// The runs of the lesson, of which the first is started.
fn begin(args: &LearnArgs, lesson: &Lesson) -> Result<(tui::Runs, tui::OpenAt)> {
    let first = lesson.scenes.first().map(|scene| scene.run.clone()).unwrap_or_default();
    let (runs, open, _) = step::begin(&args.run(&first), &LearnArgs::place(), &args.memory)?;
    Ok((runs, open))
}

/// Facts about the heads of the model, if it is the built-in one.
pub(super) fn facts(args: &LearnArgs) -> Option<Facts> {
    args.is_built_in().then_some(builtin::fact as Facts)
}

/// A lesson whose scenes are shown one after the other, without a terminal.
pub(super) struct Walk {
    pub(super) screens: LessonScreens,
    pub(super) runs: tui::Runs,
}

impl Walk {
    /// Begins a walk on a light screen of this size.
    pub(super) fn begin(args: &LearnArgs, lesson: &Lesson, size: (u16, u16)) -> Result<Self> {
        let (mut runs, _) = begin(args, lesson)?;
        let theme = Theme::new(Depth::True).with(args.colours.palette(), Paper::Light);
        let screens = LessonScreens::new(&mut runs, lesson.clone(), theme, size, facts(args));
        Ok(Self { screens, runs })
    }

    /// Brings a scene to the screen. Returns the reason if it cannot be shown.
    pub(super) fn show(&mut self, at: usize) -> Result<std::result::Result<(), String>> {
        self.screens.show(&mut self.runs, at, &mut stop::check)
    }
}
