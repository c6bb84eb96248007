//! A layer and a pass as diagrams: every box can be reached, opened and highlighted. Work in progress is shown and can
//! be stopped.

use std::collections::BTreeSet;

use llama_trace::trace::{Site, Stage as TraceStage};
use llama_trace::tui::theme::Depth;
use llama_trace::tui::update::Effect;
use llama_trace::tui::user_event::KeyCode;

use crate::stage::Stage;
use crate::synthetic::Synthetic;

fn view<'a>(stage: &'a mut Stage, name: &str) -> &'a mut Stage {
    stage.choose(name);
    stage
}

/// Walks through all boxes, row by row. Returns the stages, and the layers that are drawn as one box.
fn walked(stage: &mut Stage) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let row = |stage: &Stage| stage.app.layout().unwrap().cursor.0;
    loop {
        // The input of the layer, which belongs to the previous layer, is to the left of the first stage. So the walk
        // does not go left there.
        let first = stage.app.view().name() == "flow" && row(stage) == 0;
        for key in if first { "llll" } else { "hhhllll" }.chars() {
            let folded = stage.app.view().name() == "pass" && stage.app.place().layer.is_some();
            let layer = stage.app.place().layer.filter(|_| folded);
            seen.insert(layer.map_or(stage.name().to_owned(), |layer| format!("layer {layer}")));
            assert_eq!(row(stage), row(stage.keys(&key.to_string())), "{} leaves its row", stage.name());
        }
        let before = row(stage);
        stage.keys("j");
        if row(stage) == before {
            return seen;
        }
        assert_eq!(row(stage), before + 1);
    }
}

/// In a diagram that does not fit on the screen, the boxes before and after the current box are visible too.
#[test]
fn the_neighbours_of_the_current_box_are_visible() {
    for size in [(80, 24), (120, 40)] {
        let mut stage = Stage::sized("attn_norm", size, Depth::None);
        view(&mut stage, "flow");
        let mut scrolled = 0;
        for key in "jjjjjjjjjjjjjjjjkkkkkkkkkkkkkkk".chars() {
            stage.keys(&key.to_string());
            let layout = stage.app.layout().unwrap();
            let (seen, at) = (layout.visible_rows(&stage.app), layout.cursor.0);
            assert!(seen.contains(&at.saturating_sub(1)), "{seen:?} {at}\n{}", stage.screen());
            assert!(seen.contains(&(at + 1).min(layout.rows - 1)), "{seen:?} {at}\n{}", stage.screen());
            scrolled += usize::from(seen.start > 0);
        }
        assert!(scrolled > 0 || size.1 > 24, "{size:?}");
    }
}

/// Marks show that a diagram goes on above or below the screen. The text below the diagram is about the current box.
#[test]
fn a_diagram_says_where_it_goes_on() {
    let (up, down) = ("▲", "▼");
    let mut stage = Stage::sized("attn_norm", (80, 24), Depth::None);
    let shown = view(&mut stage, "flow").screen();
    assert!(shown.contains(down) && !shown.contains(up), "{shown}");
    stage.keys("/ffn_residual");
    stage.key(KeyCode::Enter);
    let shown = view(&mut stage, "flow").screen();
    assert!(shown.contains(up) && !shown.contains(down), "{shown}");
    view(&mut stage, "flow").shows("ffn_residual reads attn_residual, ffn_down");
    stage.keys("/ffn_norm");
    stage.key(KeyCode::Enter);
    view(&mut stage, "flow").shows("ffn_norm reads attn_residual, ffn_norm.weight");
    // A diagram that fits on the screen has neither mark.
    let mut stage = Stage::sized("attn_norm", (200, 200), Depth::None);
    let shown = view(&mut stage, "flow").screen();
    assert!(!shown.contains(up) && !shown.contains(down), "{shown}");
}

#[test]
fn the_box_of_a_layer_says_what_the_layer_reads() {
    let mut stage = Stage::sized("xq_heads", (120, 40), Depth::None);
    view(&mut stage, "pass").shows("layer 1 reads layer 0, rope_cos, rope_sin, mask");
    stage.shows("Enter open the box");
    view(&mut stage, "flow").shows("xq reads attn_norm, wq");
    for size in [(80, 24), (120, 40)] {
        let mut stage = Stage::sized("probs", size, Depth::None);
        view(&mut stage, "sampler");
        let screen = stage.screen();
        let footer = screen.lines().last().unwrap();
        for entry in ["[ ] setting", "← → change", "Enter pick", "b branch", "? help", "q quit"] {
            assert!(footer.contains(entry), "{entry} in `{footer}`");
        }
    }
}

#[test]
fn arrows_reach_every_box_of_a_layer_and_of_the_pass() {
    for source in [Synthetic::new, Synthetic::with_switches] {
        for pass in [0, 1] {
            let mut stage = Stage::new(source(), (80, 24), Depth::None);
            if pass == 1 {
                stage.keys("t").wait();
            }
            let (sizes, dims) = (stage.app.outline().card.sizes(), stage.app.dims());
            assert_eq!(dims.pass, pass);
            let all = |in_layer: bool| {
                let all = TraceStage::ALL.iter();
                all.filter(move |stage| stage.present(&sizes, dims) && stage.in_layer() == in_layer)
                    .map(|stage| stage.name().to_owned())
            };
            stage.keys("/L1/attn_norm").key(KeyCode::Enter);
            assert_eq!(walked(view(&mut stage, "flow")), all(true).collect(), "the layer of pass {pass}");
            stage.keys("/tokens").key(KeyCode::Enter);
            let layers = (0..sizes.layers).map(|layer| format!("layer {layer}"));
            assert_eq!(walked(view(&mut stage, "pass")), all(false).chain(layers).collect(), "pass {pass}");
        }
    }
}

#[test]
fn enter_opens_a_box_and_goes_into_a_layer() {
    let mut stage = Stage::at("xq_rope");
    view(&mut stage, "flow").key(KeyCode::Enter);
    assert_eq!((stage.name(), stage.app.view().name()), ("xq_rope", "heatmap"));
    // Goes from the diagram of the layer to that of the pass, and from there into another layer.
    view(&mut stage, "pass").keys("j").key(KeyCode::Enter);
    assert_eq!(
        (stage.name(), stage.app.place().layer, stage.app.view().name()),
        ("attn_norm", Some(2), "flow")
    );
    // To the left of the first box is the input of the layer, which belongs to the previous layer.
    stage.keys("h");
    assert_eq!(
        (stage.name(), stage.app.place().layer, stage.app.view().name()),
        ("ffn_residual", Some(1), "flow")
    );
    // Stages outside the layers are opened in the same way from the diagram of the pass.
    stage.keys("/logits").key(KeyCode::Enter);
    view(&mut stage, "pass").keys("k");
    assert_eq!((stage.name(), stage.app.view().name()), ("final_norm", "pass"));
    stage.keys("j").key(KeyCode::Enter);
    assert_eq!((stage.name(), stage.app.view().name()), ("logits", "largest"));
}

#[test]
fn the_inputs_and_outputs_of_the_current_box_have_marks_of_their_own() {
    for depth in [Depth::None, Depth::Ansi, Depth::Indexed, Depth::True] {
        let mut stage = Stage::sized("softmax", (200, 60), depth);
        view(&mut stage, "flow");
        let screen = stage.screen();
        for (mark, names) in [('▸', vec!["softmax"]), ('●', vec!["masked_scores"]), ('○', vec!["attn_heads"])]
        {
            let marked: Vec<&str> = TraceStage::ALL
                .iter()
                .map(|stage| stage.name())
                .filter(|name| {
                    let wanted = format!("{mark}{name}");
                    screen.match_indices(&wanted).any(|(at, _)| {
                        let after = screen[at + wanted.len()..].chars().next();
                        after.is_none_or(|c| !c.is_alphanumeric() && c != '_')
                    })
                })
                .collect();
            assert_eq!(marked, names, "{mark}\n{screen}");
        }
        stage.shows("softmax reads masked_scores");
        // Connected boxes have heavy edges, the others have light edges.
        assert!(screen.contains('┃') && screen.contains('│'), "{screen}");
        stage.keys("/attn_norm").key(KeyCode::Enter);
        stage.shows("attn_norm reads L0/ffn_residual, attention_norm");
    }
}

#[test]
fn the_current_box_stays_visible_and_a_click_chooses_a_box() {
    for size in [(60, 16), (80, 24), (120, 40), (200, 60)] {
        for name in ["flow", "pass"] {
            let mut stage = Stage::new(Synthetic::with_switches(), size, Depth::None);
            stage.keys("/L0/attn_norm").key(KeyCode::Enter);
            view(&mut stage, name);
            for _ in 0..30 {
                let layout = stage.app.layout().unwrap();
                assert!(layout.visible_rows(&stage.app).contains(&layout.cursor.0));
                if stage.app.place().layer.is_some() && name == "flow" {
                    stage.shows(&format!("▸{}", &stage.name()[..6.min(stage.name().len())]));
                }
                stage.keys("j");
            }
            let layout = stage.app.layout().unwrap();
            let mut cells = Vec::new();
            layout.each_cell(&stage.app, |row, _, x, y| {
                cells.push((row, layout.area.x + x, layout.area.y + y));
            });
            let (row, x, y) = cells[0];
            stage.click(x + 2, y + 1);
            assert_eq!(stage.app.layout().unwrap().cursor.0, row);
        }
    }
}

/// During a computation the view shows it, keys are answered, and Esc stops it.
#[test]
fn running_work_is_shown_keys_still_work_and_esc_stops_it() {
    for (step, name) in
        [("L1/xq", "flow"), ("L1/xq", "pass"), ("L1/attn_residual", "residual"), ("L1/ffn_up", "neurons")]
    {
        let mut source = Synthetic::new();
        let late = [TraceStage::FfnResidual, TraceStage::FfnHidden, TraceStage::Xk];
        source.pending.extend(late.map(|stage| Site::layer(0, 1, stage)));
        let mut stage = Stage::new(source, (120, 40), Depth::None);
        stage.keys("/").keys(step);
        stage.key(KeyCode::Enter);
        view(&mut stage, name);
        stage.shows(" · computing layer 1");
        stage.shows("…");
        let before = stage.app.place();
        stage.keys("j");
        assert!(stage.app.place() != before || ["neurons"].contains(&name), "{name} is deaf");
        stage.keys("k");
        assert_eq!(stage.key(KeyCode::Esc), Effect::Stop, "{name}");
        stage.wait();
        assert!(!stage.screen().contains(" · computing"), "{name}\n{}", stage.screen());
    }
}

/// If the values of a stage are not available, its box shows the error, and the other stages keep their boxes.
#[test]
fn a_failed_stage_does_not_remove_the_diagram() {
    let mut source = Synthetic::new();
    source.failing.insert(Site::layer(0, 1, TraceStage::Xk));
    let mut stage = Stage::new(source, (120, 40), Depth::None);
    stage.keys("/L1/xk").key(KeyCode::Enter);
    stage.shows("There are no values to show");
    view(&mut stage, "flow").shows("none");
    stage.shows("xv");
}

/// Attention that is not available is not requested again and again.
#[test]
fn attention_that_failed_is_not_requested_again() {
    let mut source = Synthetic::new();
    source.failing.insert(Site::layer(0, 1, TraceStage::Softmax));
    let mut stage = Stage::new(source, (120, 40), Depth::None);
    stage.keys("/L1/softmax").key(KeyCode::Enter);
    stage.wait();
    stage.shows("There are no values to show");
    assert!(!stage.app.sync(&mut stage.source), "a failed stage must not be requested again");
}
