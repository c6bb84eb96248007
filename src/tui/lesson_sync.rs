//! Brings a scene to the screen once its run and its values are there, and judges answers.

use std::task::Poll;

use llama_trace_core::lesson::{
    self, CompareSetting, Evaluation, Kind, Place as Written, ScreenSetting, Unfinished,
};
use llama_trace_core::trace::{Address, Answer, Outline, PassDims, Query, Region, Run, Site, Sizes, Source};

use super::app::App;
use super::comparison_keys;
use super::display::{Display, Scale};
use super::goto;
use super::hidden::Hidden;
use super::lesson_keys;
use super::lesson_state::{Answered, Arrival};
use super::lesson_values::{LessonValues, RunWorld};
use super::panel_state::{Focus, PanelState};
use super::runs::Runs;
use super::screen_option::{DEFAULT, ScreenOption};
use super::screen_settings;
use super::strip_values::StripValues;

/// Maximum number of rounds of questions before the screen is drawn.
const ROUNDS: usize = 4;

impl App {
    /// Hides what the open question of the scene asks for, or shows it again.
    pub(super) fn hide(&mut self) {
        let Some(lesson) = &self.lesson else {
            self.hidden = None;
            return;
        };
        let hides = lesson.open_question().is_some_and(|question| question.hides_cells);
        self.hidden = hides.then(|| Hidden {
            all: lesson.values.reads.is_none() || lesson.place.is_none(),
            sites: lesson
                .values
                .reads
                .iter()
                .flatten()
                .copied()
                .chain(lesson.place.map(plain_site))
                .collect(),
        });
        if self.hidden.is_some() {
            // Values that are there already are dropped, so that they are asked for again later.
            self.answers.drop_values();
            if let Some(other) = &mut self.other {
                other.answers.drop_values();
            }
        }
    }

    /// Returns whether the source has nothing to do for the screen.
    pub(super) fn awaits_nothing(&self) -> bool {
        self.progress.status == llama_trace_core::trace::Status::Idle && !self.is_opening()
    }

    /// Returns whether a lesson is shown to a class.
    pub(super) fn presents(&self) -> bool {
        self.lesson.as_ref().is_some_and(|lesson| lesson.presents)
    }

    /// Returns whether an open question asks for a shape.
    pub(super) fn hides_shapes(&self) -> bool {
        let open = self.lesson.as_ref().and_then(|lesson| lesson.open_question());
        open.is_some_and(|question| question.kind == Kind::Shape)
    }

    /// Returns whether the next token must not be shown.
    pub(super) fn hides_next(&self) -> bool {
        self.lesson.as_ref().is_some_and(|lesson| lesson.open_question().is_some())
    }

    /// Brings the scene of the lesson to the screen, and judges answers. True if that changes the screen.
    pub(super) fn sync_lesson(&mut self, runs: &mut Runs) -> bool {
        let mut changed = false;
        for _ in 0..ROUNDS {
            let Some(lesson) = &mut self.lesson else { return changed };
            if let Arrival::Failed(_) = lesson.arrival {
                return changed;
            }
            let run = lesson.run;
            let came = lesson.values.ask(runs, run);
            if let Err(wrong) = came {
                self.fail_scene(wrong);
                return true;
            }
            if !self.advance_lesson(runs, run) {
                return changed;
            }
            changed = true;
        }
        changed
    }

    /// Makes one step of the scene; false if values are awaited or nothing is left to do.
    fn advance_lesson(&mut self, runs: &mut Runs, run: Run) -> bool {
        let Some(lesson) = &self.lesson else { return false };
        let passes = lesson.run_setting().passes;
        let outlines: Vec<Outline> = runs
            .outlines()
            .into_iter()
            .filter(|outline| outline.run == run && outline.fork.is_none())
            .collect();
        let done = |outline: &Outline| {
            outline.recorded
                || outline.ended.is_some()
                || outline.passes.get(passes.max(1) - 1).is_some_and(|pass| pass.sampled.is_some())
        };
        if lesson.values.waits() || outlines.is_empty() || !outlines.iter().all(done) {
            return false;
        }
        let facts = self.facts;
        let source: &dyn Source = runs.of(run, 0);
        let texts = |id| source.token_text(id);
        let world = RunWorld { outlines: &outlines, values: &lesson.values, texts: &texts, facts };
        if lesson.arrival == Arrival::Waits {
            let screen = lesson.screen();
            let address = Written::parse(&screen.at).map_err(Unfinished::Wrong);
            match address.and_then(|written| Evaluation::new(&world).address(&written)) {
                Ok(address) => self.arrive(&screen, &address),
                Err(unfinished) => self.lack(unfinished),
            }
            return true;
        }
        let Some((scene, question)) =
            lesson.scene().and_then(|scene| Some((scene, scene.question.as_ref()?)))
        else {
            return false;
        };
        if lesson.values.reads.is_none() {
            match lesson::solution(scene, question, &world) {
                Ok(solution) => {
                    if let Some(lesson) = &mut self.lesson {
                        lesson.values.reads = Some(solution.reads);
                    }
                    self.hide();
                    self.settle();
                }
                Err(unfinished) => self.lack(unfinished),
            }
            return true;
        }
        if let (Some(given), Answered::Open) = (&lesson.given, lesson.answered()) {
            match lesson::judge(scene, question, given, &world) {
                Ok(verdict) => {
                    if let Some(lesson) = &mut self.lesson {
                        lesson.given = None;
                    }
                    lesson_keys::take_verdict(self, &verdict);
                    self.settle();
                }
                Err(unfinished) => self.lack(unfinished),
            }
            return true;
        }
        false
    }

    /// Takes in what an evaluation lacks.
    fn lack(&mut self, unfinished: Unfinished) {
        let Some(lesson) = &mut self.lesson else { return };
        let Err(wrong) = lesson.values.lacks(unfinished) else { return };
        if lesson.given.take().is_some() {
            lesson.reply = Some(wrong);
        } else {
            self.fail_scene(wrong);
        }
    }

    /// The scene cannot be shown. Its words stay.
    pub(super) fn fail_scene(&mut self, reason: String) {
        if let Some(lesson) = &mut self.lesson {
            lesson.arrival = Arrival::Failed(reason);
        }
        self.hidden = None;
        self.settle();
    }

    /// Shows the screen of the scene.
    fn arrive(&mut self, screen: &ScreenSetting, address: &Address) {
        match apply(self, screen, address) {
            Ok(()) => {
                let place = self.place;
                if let Some(lesson) = &mut self.lesson {
                    (lesson.arrival, lesson.place) = (Arrival::There, Some(place));
                }
                self.hide();
                self.settle();
            }
            Err(wrong) => self.fail_scene(wrong),
        }
    }
}

/// The stage of a place, in any run.
fn plain_site(place: super::place::Place) -> Site {
    Site { run: Run::ITSELF, ..place.site() }
}

/// Goes to the address and sets the whole screen. Inherited settings that do not fit the step fall back.
fn apply(app: &mut App, screen: &ScreenSetting, address: &Address) -> Result<(), String> {
    let presents = app.lesson.as_ref().is_some_and(|lesson| lesson.presents);
    comparison_keys::end(app);
    app.sampler.end();
    app.derivation = None;
    app.search.set_filter(None);
    (app.strip, app.display) =
        (StripValues::default(), Display { units: app.display.units, ..Display::default() });
    app.panels = PanelState { size: app.panels.size, ..PanelState::new((0, 0)) };
    // The words need the columns of the outline.
    app.panels.outline_folded = true;
    let spot = goto::find(app, &Address { run: None, sequence: None, ..address.clone() })?;
    app.cursor.selected = super::slice::Selected::new(&app.outline.card.sizes());
    let last = app.outline.passes.get(spot.place.pass).map_or(0, |pass| pass.dims.tokens.saturating_sub(1));
    app.cursor.selected.set(llama_trace_core::trace::Axis::Token, last);
    app.cursor.keeps_key = false;
    goto::go(app, &spot);
    let selected = app.cursor.selected;
    if let Some(panels) = &screen.panels {
        screen_settings::set(app, ScreenOption::Panels, &panels.join(" "))?;
        if !presents {
            app.panels.notes_folded = false;
        }
    }
    if let Some(view) = &screen.view
        && let Err(wrong) = screen_settings::set(app, ScreenOption::View, &view.value)
        && !view.inherited
    {
        return Err(wrong);
    }
    app.display.turn = 0;
    if let Some(hold) = &screen.hold
        && let Err(wrong) = screen_settings::set(app, ScreenOption::Hold, &hold.value.to_string())
        && !hold.inherited
    {
        return Err(wrong);
    }
    if address.index.iter().any(|(letter, _)| "tq".contains(*letter)) {
        app.cursor.selected = selected;
    }
    match &screen.compare {
        None => {}
        Some(CompareSetting::Plain) => screen_settings::set(app, ScreenOption::Compare, "plain")?,
        Some(CompareSetting::Place(place)) => screen_settings::set(app, ScreenOption::Compare, place)?,
    }
    if let Some(trial) = &screen.trial {
        screen_settings::set(app, ScreenOption::Try, &trial.join(" "))?;
    }
    let strip = screen.strip.as_deref().unwrap_or(DEFAULT);
    screen_settings::set(app, ScreenOption::Strip, strip)?;
    match &screen.scale {
        Some(scale) => screen_settings::set(app, ScreenOption::Scale, scale)?,
        None => app.display.scale = Scale::Slice,
    }
    app.panels.focus = if app.panels.zoomed { app.panels.focus } else { Focus::Tensor };
    Ok(())
}

impl LessonValues {
    /// Asks the sources of `run` for the awaited values. Returns whether some have come.
    ///
    /// # Errors
    /// The reason why a value cannot be had.
    pub(super) fn ask(&mut self, runs: &mut Runs, run: Run) -> Result<bool, String> {
        let mut came = false;
        for site in self.awaited.clone() {
            let source = runs.of(run, site.sequence);
            let (sizes, dims) = (source.outline().card.sizes(), dims_of(source, site.pass));
            let Some(region) = dims.map(|dims| whole(&sizes, dims, site)) else {
                return Err(format!("there is no pass {}", site.pass));
            };
            match source.ask(&Query::Block(Site { run, ..site }, region)) {
                Poll::Pending => continue,
                Poll::Ready(Ok(Answer::Block(block))) if block.is_whole() => {
                    self.frames.insert(site, block.frame);
                    came = true;
                }
                Poll::Ready(Ok(_)) => return Err(format!("{site} is too large to be read whole")),
                Poll::Ready(Err(error)) => return Err(error.to_string()),
            }
            self.awaited.remove(&site);
        }
        Ok(came)
    }
}

fn dims_of(source: &dyn Source, pass: usize) -> Option<PassDims> {
    source.outline().passes.get(pass).map(|pass| pass.dims)
}

fn whole(sizes: &Sizes, dims: PassDims, site: Site) -> Region {
    Region::whole(&sizes.shape(site.stage.axes(), dims))
}
