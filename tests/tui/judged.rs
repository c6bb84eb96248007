//! Two judged runs side by side: the tracer opens at the first difference, and shows the result of `diff`.

use std::sync::Arc;
use std::task::Poll;

use llama_trace::cli::verdict;
use llama_trace::diff::{self, About, Found, Pass, Report, Traced};
use llama_trace::error::Result;
use llama_trace::trace::frame::Number;
use llama_trace::trace::{Answer, Query, Region, Run, Site, Source};
use llama_trace::tui::effects::open_run;
use llama_trace::tui::events::action_of;
use llama_trace::tui::runs::Runs;
use llama_trace::tui::text;
use llama_trace::tui::theme::Depth;
use llama_trace::tui::update::{Effect, update};
use llama_trace::tui::user_event::{Event, KeyCode, KeyEvent, KeyModifiers};

use crate::pictures::{SIZES, colours, compare};
use crate::stage::Stage;
use crate::synthetic::Synthetic;

/// The judged run. From layer 1 on, its scores and the stages after them differ.
fn judged() -> Synthetic {
    let mut source = Synthetic::new();
    (source.outline.run, source.factor) = (Run(1), 1.5);
    source
}

/// A synthetic source as an input of `diff`.
struct Given(Synthetic, About);

impl Given {
    fn new(source: Synthetic) -> Self {
        let outline = source.outline().clone();
        let passes = outline.passes.iter().map(|pass| Pass { dims: pass.dims, tokens: pass.tokens.clone() });
        let about = About {
            name: "synthetic".into(),
            precision: Some(outline.card.precision),
            card: Some(outline.card.clone()),
            settings: serde_json::Map::new(),
            cache: None,
            fingerprint: None,
            sampling: None,
            prompt: None,
            passes: passes.collect(),
            layers: None,
            nowhere: std::collections::BTreeMap::new(),
            unsure: std::collections::BTreeMap::new(),
        };
        Self(source, about)
    }
}

impl Traced for Given {
    fn about(&self) -> &About {
        &self.1
    }

    fn stage(&mut self, site: Site) -> Result<Found> {
        let site = Site { run: self.0.outline().run, ..site };
        match self.0.ask(&Query::Block(site, Region(Vec::new()))) {
            Poll::Ready(Ok(Answer::Block(block))) => Ok(Found::Frame(Arc::clone(&block.frame))),
            _ => Ok(Found::Missing),
        }
    }
}

fn report() -> Report {
    diff::compare(&mut Given::new(Synthetic::new()), &mut Given::new(judged()), &|_| ()).unwrap()
}

/// The viewer of both runs, and the place under each cursor.
struct Pair {
    stage: Stage,
    runs: Runs,
}

impl Pair {
    fn new(size: (u16, u16), depth: Depth, report: &Report) -> Self {
        let runs = Runs::side_by_side(Box::new(Synthetic::new()), Box::new(judged()));
        let mut stage = Stage::new(Synthetic::new(), size, depth);
        stage.app.judge(verdict(report, ["reference", "port"]));
        let mut pair = Self { stage, runs };
        pair.keys("");
        pair
    }

    fn keys(&mut self, keys: &str) -> &mut Self {
        self.sync();
        for key in keys.chars() {
            let code = match key {
                '\r' => KeyCode::Enter,
                '\u{1b}' => KeyCode::Esc,
                key => KeyCode::Char(key),
            };
            let event = Event::Key(KeyEvent::new(code, KeyModifiers::NONE));
            let action = action_of(&self.stage.app, event).unwrap();
            if let Effect::Open(run, address) = update(&mut self.stage.app, action) {
                open_run(&mut self.stage.app, &mut self.runs, run, &address);
            }
            self.sync();
        }
        self
    }

    fn sync(&mut self) {
        self.stage.app.sync(self.runs.source());
        self.stage.app.sync_compared(self.runs.before());
        // The viewer is synchronised twice, as in the event loop, because the first answers may lead to further
        // questions.
        self.stage.app.sync(self.runs.source());
        self.stage.app.sync_compared(self.runs.before());
    }

    fn address(&self) -> String {
        self.stage.app.place().address(&self.stage.app.index())
    }

    fn value(&self) -> f64 {
        match self.stage.app.tensor().unwrap().get(&self.stage.app.index()).unwrap() {
            Number::F32(value) => f64::from(value),
            Number::I64(value) => value as f64,
        }
    }
}

#[test]
fn the_tracer_opens_at_the_largest_error_with_both_values() {
    let report = report();
    let first = report.first.clone().unwrap();
    for size in SIZES {
        let mut pair = Pair::new(size, Depth::True, &report);
        assert_eq!(pair.address(), first.address);
        let (a, difference) = (pair.value(), pair.stage.app.compared().unwrap().2.unwrap());
        let b = first.theirs.as_f64().unwrap();
        assert!((a - first.ours.as_f64().unwrap()).abs() < 1e-9 && (a - b - difference).abs() < 1e-6);
        let message = pair.stage.message().to_owned();
        for part in [format!("1 of {}", report.differences.len()), first.address.clone(), text::real(a - b)] {
            assert!(message.contains(&part), "{part}: {message}");
        }
        // Any key closes the message. Both panels are there, with A − B.
        pair.keys("h");
        pair.keys("l");
        for part in ["A · tensor", "B · A − B = "] {
            pair.stage.shows(part);
        }
        pair.keys("d").stage.shows(": A − B (B)");
        pair.keys("d");
        // If the tracer goes to B, A becomes the second panel.
        pair.keys("/r1:\r");
        pair.stage.shows("B · tensor");
        pair.stage.shows("A · B − A = ");
    }
}

#[test]
fn the_key_goes_through_all_differences_in_a_circle() {
    let report = report();
    assert!(report.differences.len() > 3, "{:?}", report.first);
    let mut pair = Pair::new((120, 40), Depth::True, &report);
    for difference in report.differences.iter().skip(1).chain([&report.differences[0]]) {
        pair.keys("D");
        assert_eq!(pair.address(), difference.address);
        assert!(pair.stage.message().contains(&difference.address), "{}", pair.stage.message());
    }
    // A message says that no run was judged, or that no stage differs.
    let mut alone = Stage::at("xq");
    alone.keys("D");
    assert!(alone.message().starts_with("no runs are compared here"), "{}", alone.message());
    let pair = Pair::new((80, 24), Depth::True, &Report::default());
    assert!(pair.stage.message().starts_with("The same"), "{}", pair.stage.message());
}

#[test]
fn the_notes_have_the_verdict_and_the_growth_of_the_error_by_layer() {
    let report = report();
    // On a tall screen, the lines are below the two panels. On a smaller screen, they are in the place of the notes.
    let mut tall = Pair::new((200, 60), Depth::True, &report);
    tall.keys("h").stage.shows("worst stage");
    let mut pair = Pair::new((120, 40), Depth::True, &report);
    pair.keys("h");
    assert!(!pair.stage.screen().contains("worst stage"));
    pair.keys("i");
    for part in ["A against B", "reference", "port", "worst stage", "‖B − A‖ / ‖A‖"] {
        pair.stage.shows(part);
    }
    for growth in report.growth() {
        let row = pair.stage.screen();
        let place = growth.place();
        let line = row.lines().find(|line| line.contains(&place)).unwrap_or_else(|| panic!("{place}\n{row}"));
        assert!(growth.ffn_residual.is_none_or(|apart| line.contains(&text::real(apart))), "{line}");
        assert!(line.contains(growth.site.stage.name()) && line.contains('≠') == growth.differs, "{line}");
    }
}

#[test]
fn a_pass_that_one_run_lacks_is_compared_with_none() {
    let mut pair = Pair::new((120, 40), Depth::True, &report());
    pair.runs.source().advance().unwrap();
    while pair.runs.source().outline().passes.len() < 2 {
        pair.runs.source().poll().unwrap();
    }
    pair.keys("/p1/L1/xq\r");
    assert!(pair.address().starts_with("p1/L1/xq["), "{}", pair.address());
    pair.stage.shows("B · no value at this index");
    pair.stage.shows("pass 1 does not exist; this is r1:p0/L1/xq");
    pair.keys("/p0\r");
    pair.stage.shows("B · A − B = ");
}

#[test]
fn a_number_is_explained_in_both_runs() {
    let report = report();
    for size in SIZES {
        let mut pair = Pair::new(size, Depth::True, &report);
        pair.keys("\r");
        // The synthetic runs have no weights. Each panel says this.
        let screen = pair.stage.screen();
        assert_eq!(screen.matches("This number cannot be explained").count(), 2, "{size:?}\n{screen}");
        pair.keys("\u{1b}");
        assert!(!pair.stage.screen().contains("cannot be taken apart"), "{size:?}\n{}", pair.stage.screen());
    }
}

#[test]
fn judged_runs_are_drawn_at_every_size_and_with_fewer_colours() {
    let report = report();
    for (width, height) in SIZES {
        for (name, keys) in
            [("judged", ""), ("judged-beside", "h"), ("judged-table", "i"), ("judged-why", "\r")]
        {
            let mut pair = Pair::new((width, height), Depth::True, &report);
            compare(&format!("{name}-{width}x{height}"), pair.keys(keys).stage.screen().trim_end());
        }
        let pair = Pair::new((width, height), Depth::None, &report);
        compare(&format!("judged-no-colour-{width}x{height}"), pair.stage.screen().trim_end());
    }
    let mut pair = Pair::new((80, 24), Depth::Ansi, &report);
    pair.keys("h");
    compare("judged-16-colours", &format!("{}\n\n{}", pair.stage.screen().trim_end(), colours(&pair.stage)));
}
