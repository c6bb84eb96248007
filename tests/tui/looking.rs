//! Cells with an equal value, panels that fold, playback, dragging, and the list of chapters.

use llama_trace::chapters::CHAPTERS;
use llama_trace::trace::frame::Number;
use llama_trace::tui::action::Action;
use llama_trace::tui::input::Mode;
use llama_trace::tui::panel_state::Focus;
use llama_trace::tui::theme::Depth;
use llama_trace::tui::update::{Effect, update};
use llama_trace::tui::user_event::{
    Event, KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};
use llama_trace::tui::view::{Panels, notes};

use crate::desk::Desk;
use crate::stage::Stage;
use crate::synthetic::Synthetic;

fn value(stage: &Stage) -> f32 {
    match stage.app.tensor().unwrap().get(&stage.app.index()).unwrap() {
        Number::F32(value) => value,
        Number::I64(id) => panic!("{id} is an id"),
    }
}

/// All values of the stage in its own order, in every view.
fn all(stage: &Stage) -> Vec<f32> {
    let tensor = stage.app.tensor().unwrap();
    let frame = tensor.frame();
    frame.values().numbers().map(|value| value as f32).collect()
}

#[test]
fn the_filter_counts_its_cells_and_keys_walk_through_them() {
    for (step, start) in
        [("xq", "jjl"), ("softmax", "jjj"), ("keys_t", "jll"), ("attn_merged", "l"), ("masked_scores", "")]
    {
        let mut stage = Stage::at(step);
        stage.keys(start);
        let own = value(&stage);
        let like = |value: f32| match own {
            0.0 => value == 0.0,
            own if own < 0.0 => value <= own,
            own => value >= own,
        };
        let values = all(&stage);
        let count = values.iter().filter(|value| like(**value)).count();
        stage.keys("=");
        let told = stage.message().to_owned();
        assert!(
            told.starts_with(&format!("{count} of {} cells of {step} are ", values.len())),
            "{step}: {told}"
        );
        let (place, index) = (stage.app.place(), stage.app.index());
        let mut seen = Vec::new();
        for _ in 0..count {
            stage.keys("+");
            assert!(like(value(&stage)), "{step}: {} is not like {own}", value(&stage));
            assert!(
                stage.message().contains(&format!(" of the {count} cells of {step}")),
                "{}",
                stage.message()
            );
            seen.push(stage.app.index());
        }
        assert_eq!((stage.app.place(), stage.app.index()), (place, index), "{step}: once round");
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), count, "{step}: each once");
        stage.keys("+");
        let next = stage.app.index();
        stage.keys("-+");
        assert_eq!(stage.app.index(), next, "{step}: back and forth");
        stage.keys("=").shows("all cells are shown again");
        assert!(stage.app.filter().is_none());
    }
    let mut stage = Stage::at("xq");
    stage.keys("+").shows("= finds cells like the one under the cursor");
}

/// Cells are also found if the stage arrives in blocks, and if values arrive late.
#[test]
fn the_filter_finds_cells_in_blocks() {
    let mut source = Synthetic::new();
    source.outlier = Some(4000.0);
    source.largest = 16;
    let mut stage = Stage::new(source, (80, 24), Depth::True);
    stage.keys("/L1/ffn_hidden[t=0,f=5]").key(KeyCode::Enter);
    stage.wait().keys("=");
    stage.wait().shows("1 of 576 cells of ffn_hidden are 4000 or more");
    stage.keys("/L1/ffn_hidden[t=7,f=1]").key(KeyCode::Enter);
    stage.keys("+").wait();
    assert_eq!(stage.app.index(), [0, 5]);
}

#[test]
fn cells_outside_the_filter_are_dimmed_and_the_rule_is_shown() {
    for (size, depth) in [((80, 24), Depth::None), ((120, 40), Depth::True)] {
        let mut stage = Stage::sized("softmax", size, depth);
        stage.keys("*");
        let before = stage.screen();
        stage.keys("=").key(KeyCode::Down);
        let filtered = stage.screen();
        assert_ne!(before, filtered);
        stage.shows(" or more ");
        // The filter applies only to its own step. After going back to this step, the cells are marked again.
        stage.keys("n");
        assert!(!stage.screen().contains(" or more "));
        stage.keys("p").shows(" or more ");
    }
}

#[test]
fn folded_outline_and_notes_give_their_room_to_the_tensor() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut stage = Stage::sized("softmax", size, Depth::True);
        let (before, whole) = (stage.screen(), Panels::new(&stage.app));
        stage.keys("f");
        let panels = Panels::new(&stage.app);
        assert!(
            panels.outline.is_none() && panels.middle.unwrap().width > whole.middle.unwrap().width,
            "{size:?}"
        );
        stage.keys("F");
        let panels = Panels::new(&stage.app);
        assert!(panels.notes.is_none() && panels.middle.unwrap().width == size.0, "{size:?}");
        if size.0 == 80 {
            // In a window of this size the notes are hidden anyway. A message says how to show them.
            assert!(stage.message().contains("i shows them"), "{}", stage.message());
        }
        // Moving to a folded panel unfolds it.
        stage.keys("i");
        assert!(Panels::new(&stage.app).notes.is_some());
        stage.keys("ifF").key(KeyCode::Esc);
        assert_eq!(stage.screen(), before);
    }
}

#[test]
fn play_goes_on_until_its_end_or_any_other_key() {
    let mut stage = Stage::at("xq");
    stage.keys("N");
    stage.keys("P").keys("A").shows("layer by layer, one every 2 s");
    stage.keys("+").shows("one every 1 s");
    stage.keys("--").shows("one every 4 s");
    assert_eq!(stage.app.place().layer, Some(1));
    update(&mut stage.app, Action::PlayOn);
    stage.sync();
    assert_eq!((stage.app.place().layer, stage.message()), (Some(0), ""));
    // The playback goes towards layer 0 and ends there.
    update(&mut stage.app, Action::PlayOn);
    assert_eq!(stage.app.place().layer, Some(0));
    stage.shows("layer 0 is the first layer");
    update(&mut stage.app, Action::PlayOn);
    assert_eq!(stage.app.place().layer, Some(0));
    // Any other key only stops the playback, even a key that would go to the next step or quit.
    for key in ["n", " ", "x", "/", "q", "j"] {
        let (place, at) = (stage.keys("nA").app.place(), stage.app.index());
        stage.keys(key).shows("stopped");
        assert_eq!((stage.app.place(), stage.app.index()), (place, at), "{key}");
    }
    let place = stage.app.place();
    update(&mut stage.app, Action::PlayOn);
    assert_eq!(stage.app.place(), place);
    stage.keys("A").shows("step by step");
    stage.keys("A").shows("stopped");
}

#[test]
fn dragged_content_moves_with_the_pointer() {
    let mouse =
        |kind, column, row| Event::Mouse(MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE });
    let mut stage = Stage::sized("softmax", (80, 24), Depth::True);
    let middle = Panels::new(&stage.app).middle.unwrap();
    let (x, y) = (middle.x + 20, middle.y + 9);
    stage.event(mouse(MouseEventKind::Down(MouseButton::Left), x, y));
    let before = stage.app.index();
    stage.event(mouse(MouseEventKind::Drag(MouseButton::Left), x, y - 2));
    assert_eq!(stage.app.index()[1], before[1] + 2, "up by two lines shows two more below");
    stage.event(mouse(MouseEventKind::Drag(MouseButton::Left), x, y));
    assert_eq!(stage.app.index(), before);
    // A cell is several columns wide. If a drag is shorter than a cell, its columns are added to the next drag.
    let cell = stage.app.layout().unwrap().cell;
    for column in 1..=2 * cell {
        stage.event(mouse(MouseEventKind::Drag(MouseButton::Left), x - column, y));
    }
    assert_eq!(stage.app.index()[2], before[2] + 2);
}

#[test]
fn a_chapter_is_chosen_from_a_list_and_opens_at_its_stage() {
    let mut stage = Stage::sized("softmax", (120, 40), Depth::None);
    stage.keys("C").shows("┌ chapters ");
    let Mode::Chapters(at) = stage.app.mode() else { panic!("the list is open") };
    assert_eq!(CHAPTERS[*at].slug, "15-softmax", "the list opens at the chapter of the current stage");
    // q closes the list, and Ctrl-C ends the program.
    let ctrl_c = Event::Key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
    for list in ["", "B", "?", "/", "m"] {
        assert_eq!(stage.keys(list).event(ctrl_c.clone()), Effect::Quit, "{list}");
        stage.key(KeyCode::Esc);
    }
    assert_eq!(stage.keys("C").key(KeyCode::Char('q')), Effect::None);
    assert!(matches!(stage.app.mode(), Mode::Walk));
    stage.keys("C");
    let first = ["00-map-of-the-pass", "01-tokens", "02-embedding"];
    for (key, slug) in [KeyCode::Home, KeyCode::Down, KeyCode::Down].into_iter().zip(first) {
        stage.key(key);
        let Mode::Chapters(at) = stage.app.mode() else { panic!("the list is open") };
        assert_eq!(CHAPTERS[*at].slug, slug);
    }
    stage.key(KeyCode::Enter);
    assert_eq!((stage.name(), stage.app.focus()), ("embedding", Focus::Notes));
    stage.shows(&CHAPTERS[2].title()[..20]);
    // Each chapter leads to one of its stages, or a message says why not.
    for chapter in CHAPTERS.iter() {
        stage.key(KeyCode::Esc);
        stage.keys("g").keys("C").key(KeyCode::Home);
        for _ in CHAPTERS.iter().take_while(|other| other.slug != chapter.slug) {
            stage.key(KeyCode::Down);
        }
        stage.key(KeyCode::Enter);
        let there = chapter.steps().any(|step| step == stage.step()) && stage.app.focus() == Focus::Notes;
        let why = stage.message();
        assert!(
            there || why.contains("--precision") || why.contains("none of its stages"),
            "{}",
            chapter.slug
        );
    }
    stage.keys("C").key(KeyCode::Esc);
    assert_eq!(stage.app.mode(), &Mode::Walk);
    // If a decode pass does not have the stage of a chapter, the message says which pass has it.
    let decode = |stage: &mut Stage| {
        stage.keys("/p1/L0/softmax").key(KeyCode::Enter);
        assert_eq!(stage.app.place().pass, 1);
    };
    stage.keys("t");
    stage.wait();
    for slug in ["13-mask", "14-masked-scores"] {
        decode(&mut stage);
        stage.keys("C").key(KeyCode::Home);
        for _ in CHAPTERS.iter().take_while(|other| other.slug != slug) {
            stage.key(KeyCode::Down);
        }
        stage.key(KeyCode::Enter);
        let told = stage.message().to_owned();
        let path = told.split("none of its stages is in this pass; /").nth(1).expect(&told);
        let path = path.split(' ').next().unwrap();
        stage.keys("/").keys(path).key(KeyCode::Enter);
        assert_eq!(stage.app.place().pass, 0);
        stage.keys("C").key(KeyCode::Enter);
        assert_eq!((stage.app.focus(), stage.app.place().pass), (Focus::Notes, 0), "{slug}");
        stage.key(KeyCode::Esc);
    }
}

#[test]
fn answers_of_exercises_are_folded_until_the_user_opens_them() {
    for chapter in CHAPTERS.iter() {
        let answers = chapter.text.matches("<details>").count();
        assert_eq!(chapter.folded("x").matches("▸ **").count(), answers, "{}", chapter.slug);
        assert!(!chapter.folded("x").contains("</details>"));
    }
    let mut stage = Stage::sized("softmax", (120, 40), Depth::None);
    let text = |stage: &Stage| {
        notes::lines(&stage.app, 100).iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    let folded = text(&stage);
    assert!(folded.contains("▸ Answer (x shows it)"), "{folded}");
    stage.keys("x");
    let open = text(&stage);
    assert!(open.len() > folded.len() + 100 && !open.contains("▸ Answer"), "{open}");
    stage.keys("x");
    assert_eq!(text(&stage), folded);
}

#[test]
fn an_opened_answer_is_on_the_screen() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut stage = Stage::sized("softmax", size, Depth::None);
        if size.0 == 80 {
            stage.keys("x").shows("i shows the notes");
            stage.keys("xi");
        }
        stage.keys("x").shows("Answer");
        let lines = stage.screen().lines().count();
        let at = stage.screen().lines().position(|line| line.contains("│ Answer")).unwrap();
        assert!(lines - at > 6, "{}", stage.screen());
    }
}

/// The chapters mention the root mean square of the last token's row. The view shows this number below the row.
#[test]
fn the_root_mean_square_of_a_row_is_below_it() {
    for (address, root) in [
        ("L0/attn_residual[t=4,d=0]", "1.72"),
        ("L0/ffn_residual[t=4,d=9]", "3.51"),
        ("L0/ffn_down[t=4,d=0]", "2.50"),
    ] {
        let mut desk = Desk::at(address, (80, 24));
        let told = |desk: &Desk, of: &str| {
            let screen = desk.screen();
            let (_, told) = screen.split_once(&format!("RMS of the {of} √(Σ x²/128) ")).unwrap();
            format!("{:.2}", told.split_whitespace().next().unwrap().parse::<f64>().unwrap())
        };
        assert_eq!(told(&desk, "row"), root);
        assert_eq!(told(desk.keys("a"), "column"), root);
        assert_ne!(told(desk.keys("a").key(KeyCode::Up), "row"), root);
    }
    // A row of weights that sum to 1 is not a vector, and the part of one head is not the token's whole row.
    for address in ["L0/softmax[h=1,t=4]", "L0/xq[t=4,h=1]"] {
        Desk::at(address, (120, 40)).hides("RMS of");
    }
}
