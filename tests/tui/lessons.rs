//! Lessons in the viewer: scenes, questions, hidden values, and the way back.

use llama_trace::picture::Paper;
use llama_trace::trace::{Run, Source};
use llama_trace::tui::app::App;
use llama_trace::tui::palette::Palette;
use llama_trace::tui::runs::{NewRun, Runs};
use llama_trace::tui::theme::{Depth, Theme};
use llama_trace::tui::user_event::KeyCode;
use llama_trace::tui::{Answered, OpenLesson, effects, lesson_search};
use llama_trace_core::chapters::{Chapter, Chapters};
use llama_trace_core::error::Result;
use llama_trace_core::lesson::Lesson;
use ratatui::buffer::Cell;
use ratatui::style::{Color, Modifier};

use crate::sequences::Program;
use crate::stage::Stage;
use crate::synthetic::Synthetic;

/// Four scenes: a key, a number, a choice, and no question. The third and fourth have a run of their own.
const TEXT: &str = "\
# A lesson of the tests
<!-- prompt: One -->

<!-- scene: p0/L1/softmax[h=2,t=5] -->

Words of the first scene.

<!-- ask: key
answer: k=p0/L1/softmax[h=2,t=5].argmax
hint: k=0 | Key 0 is the first token.
hint: * | Look along row 5.
-->
Which key has the largest weight?

<details><summary>Answer</summary>

The explanation of the key.

</details>

<!-- scene: p0/L0/xq[t=3,h=1,c=2]
view: numbers
hold: t
strip: surprise
scale: tensor
-->

Words of the second scene.

<!-- ask: number
answer: p0/L0/xq[t=3,h=1,c=2]
-->
Which number is at channel 2?

<details><summary>Answer</summary>

The explanation of the number.

</details>

<!-- scene: p0/logits
prompt: Two
edit: L0/h1 off
view: largest
-->

Words of the third scene.

<!-- ask: choice
answer: 2
hint: 1 | Not the first.
-->
Which choice?

1. the first choice
2. the second choice

<details><summary>Answer</summary>

The explanation of the choice.

</details>

<!-- scene: p0/L1/xq -->

Words of the fourth scene.
";

const LESSONS: Chapters = Chapters(&[Chapter { slug: "lesson", text: TEXT }]);

fn begin(run: Run, new: NewRun) -> Result<Vec<Box<dyn Source>>> {
    let NewRun::Scene(setting) = new else { panic!("a scene") };
    let mut source = Synthetic::new();
    source.outline.run = run;
    source.outline.card.edits = setting.edits.clone();
    for _ in 1..setting.passes {
        source.advance()?;
        source.poll()?;
    }
    Ok(vec![Box::new(source)])
}

fn program(size: (u16, u16)) -> Program {
    themed(size, Theme::new(Depth::None), None)
}

fn themed(size: (u16, u16), theme: Theme, tour: Option<Chapter>) -> Program {
    let mut program = Program::alone(size);
    program.runs = Runs::new(Box::new(Synthetic::new())).with_starter(Box::new(begin));
    let outline = Synthetic::new().outline;
    program.stage.app = App::new(outline, theme, size).with_chapters(LESSONS).with_other_runs(tour, None);
    program
}

const TOUR: Chapter = Chapter { slug: "tour", text: "# The tour\n\n<!-- scene: p0/L0/xq -->\n\nHere.\n" };

/// Opens a lesson at a scene, from 0.
fn open(program: &mut Program, text: &str, scene: usize) {
    let lesson = Lesson::parse("lesson", text).unwrap();
    let open = OpenLesson { lesson, scene, ..OpenLesson::default() };
    effects::open_lesson(&mut program.stage.app, &mut program.runs, open);
    // Any key takes in what has come meanwhile.
    program.keys("r");
}

/// The key with the largest weight, and a wrong key that is not 0.
fn keys() -> (usize, usize) {
    let mut stage = Stage::sized("softmax", (120, 40), Depth::None);
    stage.keys("/L1/softmax[h=2,t=5,k=0]").key(KeyCode::Enter);
    let tensor = stage.app.tensor().unwrap();
    let weight = |k: usize| tensor.get(&[2, 5, k]).unwrap().real();
    let best = (0..6).max_by(|&a, &b| weight(a).total_cmp(&weight(b))).unwrap();
    (best, (1..6).find(|&key| key != best).unwrap())
}

#[track_caller]
fn lacks(program: &Program, text: &str) {
    let screen = program.stage.screen();
    assert!(!screen.contains(text), "`{text}` is on the screen:\n{screen}");
}

#[test]
fn a_question_hides_its_values_until_it_is_answered() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut program = program(size);
        program.keys("/L2/xv\rC\r");
        program.stage.shows("scene 1 of 4 · question");
        program.stage.shows("Words of the first scene.");
        program.stage.shows("Which key has the largest");
        assert_eq!(program.stage.app.outline().run, Run(1), "the lesson has a run of its own");
        let address = program.stage.app.place().path();
        assert_eq!(address, "r1:p0/L1/softmax");
        // The values are hidden in every view, in the footer and in a copy; so are the next token and the explanation.
        lacks(&program, "The explanation");
        program.stage.shows("→ ?");
        for view in ["1", "2", "3", "4"] {
            program.keys(view);
            let tensor = program.stage.app.tensor().unwrap();
            assert!((0..6).all(|key| tensor.get(&[2, 5, key]).is_none()), "{view}");
            lacks(&program, "0.0");
        }
        program.keys("1");
        program.stage.shows("= ?");
        for key in ["#", "*", "="] {
            program.keys(key);
            assert!(program.stage.message().contains("hidden until"), "{key}: {}", program.stage.message());
        }
        // A wrong answer gets its hint, and another try.
        let (best, wrong) = keys();
        program.keys("/L1/softmax[h=2,t=5,k=0]\r\r");
        program.stage.shows("Key 0 is the first");
        program.keys(&format!("/L1/softmax[h=2,t=5,k={wrong}]\r\r"));
        program.stage.shows("Look along row 5.");
        lacks(&program, "The explanation");
        program.keys(&format!("/L1/softmax[h=2,t=5,k={best}]\r\r"));
        program.stage.shows("✓ Right.");
        program.stage.shows("The explanation of the key.");
        lacks(&program, "= ?");
        let value = program.stage.app.tensor().unwrap().get(&program.stage.app.index());
        assert!(value.is_some(), "the values are shown again");
        let progress = program.stage.app.take_progress().unwrap();
        assert_eq!(progress.answers[0], (Answered::Right, 2));
    }
}

#[test]
fn space_and_backspace_are_enough() {
    for size in [(80, 24), (120, 40)] {
        let mut program = program(size);
        program.keys("C\r");
        // Without the facts about its heads, this is another model than the one of the chapters.
        program.stage.shows("This lesson was written for");
        // The first Space says how to answer, the second shows the answer, the third goes on.
        program.keys(" ");
        program.stage.shows("Space shows the");
        lacks(&program, "The explanation");
        program.keys(" ");
        program.stage.shows("The explanation of the key.");
        program.keys(" ");
        program.stage.shows("scene 2 of 4");
        assert_eq!(program.stage.app.view().name(), "numbers");
        program.stage.shows("token 3 of 0-");
        program.keys("  ");
        program.stage.shows("The explanation of the number.");
        program.keys(" ");
        program.stage.shows("scene 3 of 4");
        assert_eq!(program.stage.app.outline().run, Run(2), "another prompt is another run");
        program.stage.shows("with L0/h1 off");
        program.keys("1");
        program.stage.shows("Not the first.");
        program.keys("2");
        program.stage.shows("✓ Right.");
        program.keys(" ");
        program.stage.shows("Words of the fourth");
        lacks(&program, "question");
        program.keys(" ");
        assert!(
            program.stage.message().starts_with("this was the last scene; 1 of 3"),
            "{}",
            program.stage.message()
        );
        assert!(program.stage.app.take_progress().unwrap().finished);
        // Back to the first scene. Answered questions stay answered, and the runs are used again.
        for scene in ["scene 3 of 4", "scene 2 of 4", "scene 1 of 4"] {
            program.keys("\u{8}");
            program.stage.shows(scene);
        }
        assert_eq!(program.stage.app.outline().run, Run(1));
        program.stage.shows("The explanation of the key.");
        program.keys("\u{8}");
        assert_eq!(program.stage.message(), "this is the first scene");
    }
}

#[test]
fn the_go_to_line_opens_a_lesson_by_its_name() {
    let mut program = program((120, 40));
    program.keys("/learn lesson\r");
    program.stage.shows("scene 1 of 4");
    program.keys("\u{1b}/learn 77\r");
    program.stage.shows("there is no lesson `77`");
    program.keys("\u{1b}/learn tests\r");
    program.stage.shows("scene 1 of 4");
    program.keys("\u{1b}/learn zebra\r");
    program.stage.shows("there is no lesson `zebra`");
    lacks(&program, "scene 1 of");
}

#[test]
fn numbers_are_typed_and_a_wrong_form_is_no_try() {
    let mut program = program((120, 40));
    program.keys("C\r   ");
    program.stage.shows("scene 2 of 4 · question");
    program.keys("\r");
    program.stage.shows("your answer: ");
    program.keys("many\r");
    program.stage.shows("type a number");
    program.keys("\r12345\r");
    program.stage.shows("Not this one.");
    let value = {
        let mut stage = Stage::sized("xq", (120, 40), Depth::None);
        stage.keys("/L0/xq[t=3,h=1,c=2]").key(KeyCode::Enter);
        stage.app.tensor().unwrap().get(&stage.app.index()).unwrap().real()
    };
    program.keys(&format!("\r{value:.2}\r"));
    program.stage.shows("✓ Right.");
    assert_eq!(program.stage.app.take_progress().unwrap().answers[1], (Answered::Right, 1));
}

#[test]
fn the_user_may_wander_off_and_esc_returns_to_the_place_before() {
    let mut program = program((120, 40));
    program.keys("/L2/xv[t=4,g=1,c=1]\r");
    let before = program.here();
    program.keys("C\r/L2/ffn_up\r");
    assert_eq!(program.stage.app.place().path(), "r1:p0/L2/ffn_up");
    program.keys("\u{8}");
    assert_eq!(program.stage.app.place().path(), "r1:p0/L1/softmax", "Backspace returns to the scene");
    program.keys("  N ");
    program.stage.shows("scene 2 of 4");
    program.keys("\u{1b}");
    assert_eq!(program.here(), before);
    lacks(&program, "scene 2 of");
    program.stage.shows("notes");
    // The lesson continues where it was left.
    program.keys("C\r");
    program.stage.shows("scene 2 of 4");
}

#[test]
fn a_presentation_has_few_keys_and_asks_before_it_ends() {
    let mut program = program((120, 40));
    let lesson = Lesson::parse("lesson", TEXT).unwrap();
    let open = OpenLesson { lesson, presents: true, ..OpenLesson::default() };
    effects::open_lesson(&mut program.stage.app, &mut program.runs, open);
    program.keys("v");
    assert!(program.stage.message().starts_with("Space: next"), "{}", program.stage.message());
    lacks(&program, "outline");
    // The class answers aloud: no key gives an answer.
    program.stage.shows("Space shows the answer.");
    lacks(&program, "Enter");
    program.keys("x");
    program.stage.shows("The explanation of the key.");
    assert_eq!(program.stage.app.take_progress(), None, "the answers are the class's");
    program.keys(" ");
    program.stage.shows("scene 2 of 4");
    program.keys("q");
    assert_eq!(program.stage.message(), "q again quits the presentation");
}

#[test]
fn a_scene_that_cannot_be_shown_says_why_and_the_walk_goes_on() {
    let mut program = program((120, 40));
    let text = "# A\n\n<!-- scene: p0/L9/xq -->\n\nWords.\n\n<!-- ask: choice\nanswer: 1\n-->\nWhich?\n\n1. This\n2. That\n\n<details><summary>Answer</summary>\n\nThis.\n\n</details>\n\n<!-- scene: p0/L{induction}/xq -->\n\nMore.\n\n<!-- scene: p0/L0/xq -->\n\nLast.\n";
    let lesson = Lesson::parse("lesson", text).unwrap();
    let open = OpenLesson { lesson, ..OpenLesson::default() };
    effects::open_lesson(&mut program.stage.app, &mut program.runs, open);
    program.keys("r");
    program.stage.shows("This scene cannot be shown:");
    program.stage.shows("Words.");
    // Nothing is asked about a screen that is not there.
    for text in ["question", "Which?", "reveal"] {
        lacks(&program, text);
    }
    program.keys("1x");
    lacks(&program, "This.");
    program.keys(" ");
    program.stage.shows("heads.json");
    program.keys(" ");
    program.stage.shows("scene 3 of 3");
    lacks(&program, "cannot be shown");
}

#[test]
fn digits_answer_and_never_change_the_view() {
    let mut program = program((120, 40));
    open(&mut program, TEXT, 2);
    let view = program.stage.app.view().name();
    program.keys("2");
    program.stage.shows("✓ Right.");
    program.keys("1");
    assert_eq!(program.stage.app.view().name(), view);
    assert!(program.stage.message().starts_with("the question is answered"), "{}", program.stage.message());
    // The first digit of a number opens the line of the answer.
    open(&mut program, TEXT, 1);
    program.keys("4");
    program.stage.shows("your answer: 4");
    program.keys("2\r");
    program.stage.shows("Not this one.");
}

#[test]
fn help_and_footer_say_what_the_keys_do_in_a_lesson() {
    let mut program = program((80, 24));
    for scene in 0..4 {
        open(&mut program, TEXT, scene);
        for entry in ["Space next", "Backspace back", "Esc leave", "? help", "q quit"] {
            program.stage.shows(entry);
        }
    }
    program.stage.shows("/ go to");
    program.keys("?");
    program.stage.shows("This lesson");
    program.stage.shows("the next page of the words, then the next scene");
    lacks(&program, "n, Space");
    program.keys("Backspace");
    program.stage.shows("the scene before");
    lacks(&program, "where you pressed Enter");
}

#[test]
fn a_lesson_that_goes_on_says_so_and_one_that_begins_at_a_wanted_scene_does_not() {
    for resumes in [true, false] {
        let mut program = program((80, 24));
        let lesson = Lesson::parse("lesson", TEXT).unwrap();
        let open = OpenLesson { lesson, scene: 2, resumes, ..OpenLesson::default() };
        effects::open_lesson(&mut program.stage.app, &mut program.runs, open);
        assert_eq!(program.stage.screen().contains("the lesson goes on at scene 3"), resumes);
    }
}

#[test]
fn the_list_of_chapters_begins_with_the_tour() {
    let mut program = themed((80, 24), Theme::new(Depth::None), Some(TOUR));
    program.keys("C");
    program.stage.shows("The tour");
    program.stage.shows("A lesson of the tests");
    program.keys("g\r");
    program.stage.shows("scene 1 of 1");
}

#[test]
fn a_question_about_a_shape_hides_the_lengths() {
    let text = "# A\n\n<!-- scene: p0/L1/softmax[h=2,t=5] -->\n\n<!-- ask: shape\nanswer: p0/L1/softmax.shape\n-->\nWhich shape?\n\n<details><summary>Answer</summary>\n\nThis.\n\n</details>\n";
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut program = program(size);
        open(&mut program, text, 0);
        lacks(&program, "head 4");
        lacks(&program, "4 × 12");
        program.stage.shows("head × token × key");
        program.keys("\r(4,12,12)\r");
        program.stage.shows("✓ Right.");
        lacks(&program, "head × token × key");
    }
}

/// In a decode pass, the rows of earlier passes are above the asked row.
#[test]
fn an_answer_from_another_pass_or_another_stage_is_no_try() {
    let text = "# A\n<!-- passes: 2 -->\n\n<!-- scene: p1/L1/softmax[h=2,t=0,k=0] -->\n\n<!-- ask: key\nanswer: k=p1/L1/softmax[h=2,t=0].argmax\n-->\nWhich key?\n\n<details><summary>Answer</summary>\n\nThis.\n\n</details>\n";
    let mut program = program((120, 40));
    open(&mut program, text, 0);
    program.stage.shows("Which key?");
    program.keys("k\r");
    program.stage.shows("This is p0/L1/softmax. The question is");
    program.keys("\u{8}/L0/softmax\r\r");
    program.stage.shows("This is p1/L0/softmax. The question is");
    assert_eq!(program.stage.app.take_progress().unwrap().answers[0], (Answered::Open, 0));
    // Back at the scene, every key of the row can be chosen, and one of them is right.
    program.keys("\u{8}");
    let right = (0..13).any(|key| {
        program.keys(&format!("/p1/L1/softmax[h=2,t=0,k={key}]\r\r"));
        program.stage.screen().contains("✓ Right.")
    });
    assert!(right, "{}", program.stage.screen());
}

#[test]
fn a_presentation_is_large_and_light() {
    let theme = Theme::new(Depth::True).with(Palette::default(), Paper::Light);
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut program = themed(size, theme, None);
        let text = "# A\n\n<!-- scene: p0/L0/attn_norm[t=3]\nview: heatmap\n-->\n\nWords.\n";
        let lesson = Lesson::parse("lesson", text).unwrap();
        let open = OpenLesson { lesson, presents: true, ..OpenLesson::default() };
        effects::open_lesson(&mut program.stage.app, &mut program.runs, open);
        program.keys("r");
        let buffer = program.stage.buffer();
        // The cell after a wide character is empty.
        let is_plain = |cell: &&Cell| cell.bg == Color::Reset || cell.fg == Color::Reset;
        let plain = buffer.content.iter().filter(is_plain).count();
        assert!(plain < 10, "{plain}");
        // Fewer columns, each with its number in bold; rows are higher if there is room.
        let layout = program.stage.app.layout().unwrap();
        assert!(layout.cell >= 9, "{layout:?}");
        assert_eq!(layout.tall > 1, size.1 > 24, "{layout:?}");
        let mut numbers = 0;
        layout.each_cell(&program.stage.app, |_, _, x, y| {
            let (x, y) = (layout.area.x + x, layout.area.y + y);
            for x in x..x + layout.cell {
                let cell = &buffer[(x, y)];
                if cell.symbol().bytes().all(|byte| byte.is_ascii_digit()) {
                    assert!(cell.modifier.contains(Modifier::BOLD), "{x} {y}");
                    numbers += 1;
                }
            }
        });
        assert!(numbers > 20, "{numbers}");
    }
}

#[test]
fn all_columns_of_the_neurons_fit_beside_the_words() {
    let text = "# A\n\n<!-- scene: p0/L1/ffn_hidden[t=3]\nview: neurons\n-->\n\nWords.\n";
    for presents in [false, true] {
        let mut program = program((80, 24));
        let lesson = Lesson::parse("lesson", text).unwrap();
        let open = OpenLesson { lesson, presents, ..OpenLesson::default() };
        effects::open_lesson(&mut program.stage.app, &mut program.runs, open);
        program.keys("r");
        let screen = program.stage.screen();
        let heading = screen.lines().find(|line| line.contains(" silu ")).unwrap().split('│').next();
        assert!(heading.unwrap().trim_end().ends_with("hidden"), "{screen}");
    }
}

#[test]
fn a_narrow_screen_shows_the_words_under_the_tensor() {
    for (size, presents) in [((66, 24), false), ((66, 24), true), ((60, 16), false), ((71, 30), true)] {
        let mut program = program(size);
        let lesson = Lesson::parse("lesson", TEXT).unwrap();
        let open = OpenLesson { lesson, presents, ..OpenLesson::default() };
        effects::open_lesson(&mut program.stage.app, &mut program.runs, open);
        program.keys("r");
        program.stage.shows(if size.1 < 20 { "A lesson of the tests" } else { "Words of the first scene." });
        program.stage.shows("tensor · ");
        // The words on the whole screen, and back.
        program.keys("i");
        program.stage.shows("Which key has the largest weight?");
        lacks(&program, "tensor · ");
        program.keys("i");
        program.stage.shows("tensor · ");
        // No scene is left before its words and its question have been shown.
        for _ in 0..8 {
            if program.stage.screen().contains("The explanation of the key.") {
                break;
            }
            lacks(&program, "scene 2 of 4");
            program.keys(" ");
        }
        program.stage.shows("The explanation of the key.");
    }
}

#[test]
fn the_tokens_of_a_hidden_value_are_shown_whole() {
    for size in [(80, 24), (100, 30), (120, 40)] {
        let mut program = program(size);
        program.keys("C\r");
        let screen = program.stage.screen();
        let line = screen.lines().find(|line| line.contains(" query ")).unwrap();
        let foot = line.split('│').next().unwrap();
        assert!(foot.contains(" → key ") && !foot.contains('…'), "{screen}");
    }
}

#[test]
fn the_panels_of_a_lesson_fit_side_by_side() {
    let sizes = [((66, 24), "66x24"), ((80, 24), "80x24"), ((120, 40), "120x40"), ((200, 60), "200x60")];
    for (size, name) in sizes {
        let mut program = program(size);
        program.keys("C\r");
        insta::assert_snapshot!(format!("lesson_question_{name}"), program.stage.screen());
        for (scene, shown) in [("scene 2 of 4", "numbers"), ("scene 3 of 4", "choice")] {
            // Fewer lines of the words take more presses.
            for _ in 0..8 {
                if program.stage.screen().contains(scene) {
                    break;
                }
                program.keys(" ");
            }
            insta::assert_snapshot!(format!("lesson_{shown}_{name}"), program.stage.screen());
        }
    }
}

/// A value in the options of the command line, in the go-to line, and in a scene.
#[test]
fn settings_of_the_screen_are_commands_with_completions_and_errors() {
    let mut program = program((120, 40));
    program.keys("/L1/softmax[h=2,t=5,k=1]\r");
    program.keys("/view num");
    program.stage.shows("view numbers");
    program.keys("\r");
    assert_eq!(program.stage.app.view().name(), "numbers");
    program.keys("/hold t\r");
    program.stage.shows("token 5 of 0-");
    program.keys("/hold default\r");
    program.stage.shows("head 2 of 0-");
    program.keys("/strip attention\r");
    program.stage.shows("L1 h2 t5");
    program.keys("/panels tensor\r");
    lacks(&program, "outline");
    program.keys("/panels outline tensor notes\r");
    program.stage.shows("outline");
    for (line, wrong) in [
        ("view sampler", "softmax has no view `sampler`; its views are heatmap"),
        ("view nothing", "`nothing` is not one of heatmap"),
        ("hold c", "softmax cannot fix the axis `c`; its axes are h (head)"),
        ("strip heat", "not one of tokens, surprise, attention"),
        ("scale big", "not one of slice, tensor"),
        ("panels outline notes", "name tensor too"),
        ("panels window", "`window` is not one of outline, tensor, notes"),
        ("try warmth 3", "`warmth` is not an option of the sampler"),
        ("compare plain", "this run has no edits"),
    ] {
        program.keys(&format!("/{line}\r"));
        assert!(program.stage.message().contains(wrong), "{line}: {}", program.stage.message());
        program.keys("\u{1b}");
    }
    program.keys("/compare h=1\r");
    program.stage.shows("h=1 · here − there");
    program.keys("/compare none\r");
    lacks(&program, "here − there");
    program.keys("/try temperature 1.5\r");
    assert_eq!(program.stage.app.sampler_trial().setting().unwrap().temperature, 1.5);
}

const NAMED: [Chapter; 5] = [
    Chapter { slug: "00-map", text: "# The map\n<!-- steps: tokens, sampled -->\n" },
    Chapter { slug: "10-gqa", text: "# Grouped-query attention\n<!-- steps: keys, values -->\n" },
    Chapter { slug: "25-probs", text: "# Probabilities and temperature\n<!-- steps: probs -->\n" },
    Chapter { slug: "27-sampled", text: "# Sampling: the next token\n<!-- steps: sampled -->\n" },
    Chapter { slug: "09-kv-cache", text: "# The KV cache\n<!-- steps: cache_k, cache_v -->\n" },
];

fn slugs(name: &str) -> Vec<&'static str> {
    let all: Vec<&Chapter> = NAMED.iter().collect();
    lesson_search::find(&all, name).into_iter().map(|chapter| chapter.slug).collect()
}

#[test]
fn a_lesson_is_found_by_its_number_its_name_its_title_and_a_synonym() {
    assert_eq!(slugs("10"), ["10-gqa"]);
    assert_eq!(slugs("kv-cache"), ["09-kv-cache"]);
    assert_eq!(slugs("mqa"), ["10-gqa"], "a synonym");
    assert_eq!(slugs("temperature"), ["25-probs"], "the title comes before synonyms");
    assert_eq!(slugs("Sampl"), ["27-sampled"]);
    assert_eq!(slugs("seed"), ["25-probs", "27-sampled"], "several");
    assert_eq!(slugs("past"), ["09-kv-cache"]);
    for none in ["", "x", "zzz", "99"] {
        assert_eq!(slugs(none), [""; 0], "{none}");
    }
}
