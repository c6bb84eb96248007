//! The list of views, which the key `v` opens.

use llama_trace::tui::input::Mode;
use llama_trace::tui::theme::Depth;
use llama_trace::tui::update::Effect;
use llama_trace::tui::user_event::KeyCode;
use llama_trace::tui::view::views::{VIEWS, fitting};

use crate::stage::Stage;

/// The line of the screen that has the view of this name, and its row.
fn line(stage: &Stage, name: &str) -> Option<(u16, String)> {
    let screen = stage.screen();
    let has = |line: &&str| line.starts_with('│') && line.split_whitespace().any(|word| word == name);
    let row = screen.lines().position(|line| has(&line))?;
    Some((row as u16, screen.lines().nth(row)?.to_owned()))
}

fn view(stage: &Stage) -> &'static str {
    stage.app.view().name()
}

#[test]
fn the_list_has_the_views_of_the_step_with_numbers_and_the_steps_of_all_others() {
    for size in [(60, 16), (80, 24), (120, 40), (200, 60)] {
        for step in ["tokens", "xq_rope", "cache_k", "softmax", "ffn_hidden", "logits", "sampled"] {
            let mut stage = Stage::sized(step, size, Depth::None);
            let before = view(&stage);
            stage.keys("v");
            assert_eq!(view(&stage), before, "the list alone changes nothing");
            for (number, view) in (1..).zip(fitting(stage.step())) {
                let mark = if view.name() == before { '▸' } else { ' ' };
                stage.shows(&format!("│ {mark}{number}  {}", view.name()));
            }
            stage.shows("Esc back");
            let mut missing = 0;
            for other in VIEWS.iter().filter(|view| !view.fits(stage.step())) {
                match line(&stage, other.name()) {
                    // The line has a step that the view can show.
                    Some((_, line)) => assert!(
                        (0..stage.app.walk().len())
                            .map(|at| stage.app.walk().at(at).step)
                            .any(|step| other.fits(step) && line.contains(step.name())),
                        "{line}"
                    ),
                    None => missing += 1,
                }
            }
            // A list that is cut says how many views are missing.
            let told = [format!("… and {missing} more"), format!("and {missing} views of other steps")];
            let screen = stage.screen();
            assert!(missing == 0 || told.iter().any(|told| screen.contains(told)), "{screen}");
            assert!(size.1 < 40 || missing == 0, "{step} at {size:?}: {}", stage.screen());
        }
    }
}

#[test]
fn keys_and_clicks_choose_a_view_in_the_list() {
    let mut stage = Stage::sized("softmax", (120, 40), Depth::None);
    // A number chooses, and closes the list.
    assert_eq!(view(stage.keys("v6")), "layers");
    assert_eq!(stage.app.mode(), &Mode::Walk);
    // `v` and the arrows show the views one after another, and Enter keeps the view.
    assert_eq!(view(stage.keys("vv")), "bars");
    stage.key(KeyCode::Down);
    assert_eq!(view(&stage), "flow");
    assert_eq!(view(stage.keys("vv")), "heatmap", "after the last view comes the first");
    stage.key(KeyCode::Up);
    assert_eq!(view(&stage), "pass");
    stage.key(KeyCode::Enter);
    assert_eq!((view(&stage), stage.app.mode()), ("pass", &Mode::Walk));
    // Esc and q go back to the view before.
    for close in [KeyCode::Esc, KeyCode::Char('q')] {
        stage.keys("1vvvv");
        assert_eq!((view(&stage), stage.key(close)), ("overview", Effect::None));
        assert_eq!((view(&stage), stage.app.mode()), ("heatmap", &Mode::Walk));
    }
    // Any other key closes the list and does its work.
    assert_eq!(stage.keys("vvn").name(), "values_t");
    assert_eq!((view(&stage), stage.app.mode()), ("numbers", &Mode::Walk));
    // A number without a view names the views.
    stage.keys("v9").shows("the views of values_t: 1 heatmap, 2 numbers");
    assert!(matches!(stage.app.mode(), Mode::Views(_)));
    stage.key(KeyCode::Esc);

    stage.keys("p1v");
    let (row, _) = line(&stage, "overview").unwrap();
    stage.click(6, row);
    assert_eq!((view(&stage), stage.app.mode()), ("overview", &Mode::Walk));
    stage.keys("v");
    let (row, _) = line(&stage, "cache").unwrap();
    stage.click(6, row);
    assert!(matches!(stage.app.mode(), Mode::Views(_)), "this step has no view cache");
    stage.click(100, 30);
    assert_eq!((view(&stage), stage.app.mode()), ("overview", &Mode::Walk));
}

/// The list belongs to the step, so a place that the viewer goes to while it is open has its own list.
#[test]
fn the_list_follows_the_step() {
    let mut stage = Stage::sized("xq", (120, 40), Depth::None);
    stage.keys("/logits").key(KeyCode::Enter);
    stage.keys("t").keys("v").shows("views of logits");
    stage.wait();
    stage.shows("views of logits");
    stage.key(KeyCode::Esc);
    assert_eq!(view(&stage), "largest");
}
