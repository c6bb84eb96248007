//! The map of patching: its numbers, its keys, the way to a place and back, and the command that opens it.

use llama_trace::config::Precision;
use llama_trace::trace::{Run, Source, TokenLabel};
use llama_trace::tui::patch_state::CleanPrompt;
use llama_trace::tui::runs::{NewRun, Runs};
use llama_trace::tui::theme::Depth;
use llama_trace::tui::update::Effect;
use llama_trace::tui::user_event::KeyCode;
use llama_trace_core::error::{Error, Result};

use crate::desk::Desk;
use crate::pictures::compare;
use crate::sequences::Program;
use crate::stage::Stage;
use crate::synthetic::{self, Synthetic};

const CLEAN: &str = "The fox kite lake hat drum fox kite lake";
const CORRUPTED: &str = "The fox kite lake bed drum fox kite lake";
const SIZES: [(u16, u16); 3] = [(80, 24), (120, 40), (200, 60)];

fn desk(size: (u16, u16)) -> Desk {
    Desk::patching(CLEAN, CORRUPTED, size, Depth::None)
}

/// The numbers in the row of a map.
fn row(desk: &Desk, name: &str) -> Vec<i64> {
    let screen = desk.screen();
    // The outline is in front of the tensor.
    let tensor = screen.lines().filter_map(|line| line.split('│').nth(1));
    let line = { tensor }.find_map(|line| line.split_once(&format!("{name} ")));
    let (_, cells) = line.unwrap_or_else(|| panic!("{name}:\n{screen}"));
    cells.split_whitespace().map_while(|cell| cell.trim_end_matches('◂').parse().ok()).collect()
}

/// The numbers are those of `llama-trace patch` in chapter 32.
#[test]
fn the_map_has_the_numbers_of_the_command() {
    let mut desk = desk((120, 40));
    assert_eq!(desk.app.place().path(), "p0/logits");
    assert_eq!(desk.app.view().name(), "patch");
    assert_eq!(row(&desk, "embedding"), [0, 0, 0, 0, 0, 100, 0, 0, 0, 0]);
    assert_eq!(row(&desk, "layer 0"), [0, 0, 0, 0, 0, 108, 5, 0, 0, 11]);
    assert_eq!(row(&desk, "layer 1"), [0, 0, 0, 0, 0, 1, 4, 0, 0, 103]);
    assert_eq!(row(&desk, "layer 3"), [0, 0, 0, 0, 0, 0, 0, 0, 0, 100]);
    desk.keys("[");
    assert_eq!(row(&desk, "layer 0"), [5, 107, 1, 5]);
    assert_eq!(row(&desk, "layer 1"), [109, 0, 1, 4]);
    desk.shows("patch of heads · ↓ layer · → head · logit-diff");
}

#[test]
fn the_cursor_names_the_place_and_the_values_and_enter_goes_there_and_back() {
    let mut desk = desk((120, 40));
    desk.key(KeyCode::Down);
    for _ in 0..5 {
        desk.key(KeyCode::Right);
    }
    desk.shows("108 % = logit of ␣hat − logit of ␣on: ");
    desk.shows("without the patch ");
    desk.shows("p0/L0/ffn_residual[t=5] · token ␣bed, clean ␣hat");
    desk.key(KeyCode::Enter);
    assert!(desk.address().starts_with("p0/L0/ffn_residual[t=5,"), "{}", desk.address());
    // Moving within the place keeps the way back. A derivation is closed first.
    desk.key(KeyCode::Right).key(KeyCode::Enter);
    assert!(desk.app.derivation().is_some());
    desk.key(KeyCode::Backspace);
    assert!(desk.address().starts_with("p0/L0/ffn_residual[t=5,"), "{}", desk.address());
    desk.key(KeyCode::Backspace);
    assert_eq!((desk.app.place().path(), desk.app.view().name()), ("p0/logits".into(), "patch"));
    desk.shows("p0/L0/ffn_residual[t=5] · token ␣bed");
    // Another step ends the way back: Backspace is then the previous step.
    desk.key(KeyCode::Enter).keys("n").key(KeyCode::Backspace);
    assert_eq!(desk.app.place().path(), "p0/L0/ffn_residual");
    desk.key(KeyCode::Backspace);
    assert_eq!(desk.app.place().path(), "p0/L0/ffn_down");
}

#[test]
fn keys_choose_the_part_and_the_metric() {
    let mut desk = desk((120, 40));
    for part in ["attn", "ffn", "heads", "residual"] {
        desk.keys("]").shows(&format!("patch of {part} · "));
    }
    desk.keys("s").shows("· prob");
    desk.shows("probability of ␣hat: ");
    assert_eq!(row(&desk, "embedding"), [0, 0, 0, 0, 0, 100, 0, 0, 0, 0]);
    desk.keys("s").shows("· kl");
    desk.shows("KL(clean run ‖ run): ");
    desk.keys("s").shows("· logit-diff");
    // The places of a head are all tokens.
    desk.keys("[").shows("p0/L0/attn_heads[h=0] · all tokens");
    desk.key(KeyCode::Down).key(KeyCode::Enter);
    assert!(
        desk.address().contains("/L1/attn_heads[") && desk.address().contains(",h=0,"),
        "{}",
        desk.address()
    );
}

/// A text of the same tokens has no effect, and a run without a clean one says how to give it.
#[test]
fn a_map_without_effects_says_what_to_do() {
    for size in SIZES {
        let desk = Desk::patching(CORRUPTED, CORRUPTED, size, Depth::None);
        desk.shows("same value in both");
        let mut stage = Stage::sized("logits", size, Depth::None);
        stage.choose("patch");
        stage.shows("/patch and a text of");
        stage.keys("]s");
        stage.key(KeyCode::Enter);
        assert!(stage.message().starts_with("this view shows no numbers"), "{}", stage.message());
    }
}

#[test]
fn the_screens() {
    for size in SIZES {
        let mut desk = desk(size);
        desk.key(KeyCode::Down);
        for _ in 0..5 {
            desk.key(KeyCode::Right);
        }
        compare(&format!("patch-{}x{}", size.0, size.1), &desk.screen());
        desk.keys("[");
        compare(&format!("patch-heads-{}x{}", size.0, size.1), &desk.screen());
    }
}

/// With colours, a cell that brings the clean answer back differs from one without an effect. The numbers are the same.
#[test]
fn colours_and_numbers_say_the_same() {
    let plain = desk((120, 40));
    for depth in [Depth::Ansi, Depth::Indexed, Depth::True] {
        let desk = Desk::patching(CLEAN, CORRUPTED, (120, 40), depth);
        assert_eq!(row(&desk, "layer 0"), row(&plain, "layer 0"), "{depth:?}");
        let (layout, buffer) = (desk.app.layout().unwrap(), desk.buffer());
        let mut looks = Vec::new();
        layout.each_cell(&desk.app, |row, column, x, y| {
            if row == 1 && [3, 5].contains(&column) {
                let cell = &buffer[(layout.area.x + x, layout.area.y + y)];
                looks.push((cell.fg, cell.bg));
            }
        });
        assert!(looks.len() == 2 && looks[0] != looks[1], "{depth:?}: {looks:?}");
    }
}

#[test]
fn the_command_names_a_text_or_an_open_run() {
    let typed = |line: &str| {
        let mut stage = Stage::sized("softmax", (120, 40), Depth::None);
        stage.keys(line);
        let effect = stage.key(KeyCode::Enter);
        (effect, stage)
    };
    let text = |text: &str| Effect::Patch(CleanPrompt::Text(text.into()));
    assert_eq!(typed("/patch A fox / and a crow").0, text("A fox / and a crow"));
    assert_eq!(typed("/patch r1").0, Effect::Patch(CleanPrompt::Run(Run(1), 0)));
    assert_eq!(typed("/patch s2").0, Effect::Patch(CleanPrompt::Run(Run(0), 2)));
    let (effect, stage) = typed("/patch");
    assert_eq!((effect, stage.app.view().name()), (Effect::None, "patch"));
    // The words of the method find it in the go-to line and in the help.
    for word in ["causal", "causes", "patching"] {
        let mut stage = Stage::sized("softmax", (120, 40), Depth::None);
        stage.keys("/").keys(word).shows("which places carry the answer");
        let mut stage = Stage::sized("softmax", (120, 40), Depth::None);
        stage.keys("?").keys(word).shows("which places carry the answer");
    }
}

/// A run as the program starts it: each word of the text is a token.
fn begin(run: Run, new: NewRun) -> Result<Vec<Box<dyn Source>>> {
    let NewRun::Prompt(text) = new else { panic!("not a text") };
    if text == "nothing" {
        return Err(Error::prompt("the prompt is empty"));
    }
    let tokens = text.split(' ').zip(40..).map(|(word, id)| TokenLabel { id, text: word.to_owned() });
    let mut source = Synthetic::with(synthetic::config(), Precision::F32, tokens.collect());
    source.outline.run = run;
    Ok(vec![Box::new(source)])
}

#[test]
fn a_text_begins_the_clean_run_and_the_shown_run_stays() {
    let mut program = Program::alone((120, 40));
    program.keys("/patch a b\r");
    assert!(program.stage.message().contains("--model"), "{}", program.stage.message());
    program.runs = Runs::new(Box::new(Synthetic::new())).with_starter(Box::new(begin));
    program.keys("/patch nothing\r");
    assert_eq!(program.stage.message(), "the prompt is empty");
    program.keys("/patch r0\r");
    assert!(program.stage.message().starts_with("r0 is this run itself"), "{}", program.stage.message());
    program.keys("/patch r7\r");
    assert!(program.stage.message().starts_with("r7 is not open (runs: r0)"), "{}", program.stage.message());
    // Other lengths are listed, and the run that was begun for them is closed.
    program.keys("/patch a b\r");
    assert!(
        program.stage.message().contains("Clean: 2 tokens, a│b. This run: 12 tokens, "),
        "{}",
        program.stage.message()
    );
    assert_eq!(program.runs.all().collect::<Vec<_>>(), [Run(0)]);
    program.keys("/patch a b c d e f g h i j k l\r");
    assert!(
        program.stage.message().starts_with("the clean run is r2: c compares"),
        "{}",
        program.stage.message()
    );
    assert_eq!(program.stage.app.outline().run, Run(0));
    assert_eq!(program.stage.app.view().name(), "patch");
    // The same text is the same run.
    program.keys("/L1/xq\r/patch a b c d e f g h i j k l\r");
    assert_eq!(program.runs.all().count(), 2);
    assert_eq!(program.stage.app.view().name(), "patch");
    // The clean run is a run like others: its own map has this one as its clean run.
    program.keys("/r2:\r/patch r0\r");
    assert!(program.stage.message().starts_with("the clean run is r0"), "{}", program.stage.message());
}
