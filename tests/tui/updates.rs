//! The changes that each action makes.

use llama_trace::trace::{End, Site, Stage as Name, Step};
use llama_trace::tui::app::Shown;
use llama_trace::tui::export::draw_into;
use llama_trace::tui::input::Mode;
use llama_trace::tui::open::open;
use llama_trace::tui::panel_state::Focus;
use llama_trace::tui::place::Place;
use llama_trace::tui::theme::Depth;
use llama_trace::tui::update::Effect;
use llama_trace::tui::user_event::{
    Event, KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};
use llama_trace::tui::{NewRun, OpenAt};

use crate::stage::Stage;
use crate::synthetic::Synthetic;

fn begin() -> Stage {
    Stage::new(Synthetic::new(), (80, 24), Depth::True)
}

#[test]
fn next_walks_through_every_step_and_previous_back() {
    let mut stage = begin();
    let count = stage.app.walk().len();
    let mut names = vec![stage.app.place().path()];
    for _ in 1..count {
        stage.keys("n");
        names.push(stage.app.place().path());
    }
    assert_eq!(names[..3], ["p0/tokens", "p0/embedding", "p0/rope_cos"]);
    assert!(names.contains(&"p0/L2/keys_t".to_owned()), "views are steps");
    assert_eq!(names.last().unwrap(), "p0/sampled");
    stage.keys("n");
    assert_eq!((stage.name(), stage.message()), ("sampled", "this was the last step; t runs the next token"));
    for (ended, said) in
        [(End::Text, "b on a line of probs continues with that token"), (End::Full, "is full")]
    {
        stage.source.outline.ended = Some(ended);
        stage.sync();
        for key in ["n", "."] {
            stage.keys(key);
            let message = stage.message();
            assert!(message.contains(said) && !message.contains("t runs"), "{message}");
        }
    }
    for name in names.iter().rev().skip(1) {
        stage.keys("p");
        assert_eq!(&stage.app.place().path(), name);
    }
    stage.keys("p");
    assert_eq!(stage.message(), "this is the first step");
}

/// `R` lets n and p pass over the reshapes, and the last line says so.
#[test]
fn reshapes_are_skipped_on_request() {
    let mut stage = begin();
    let place = |stage: &Stage| stage.app.place().path();
    stage.keys("R").shows("n p step, no reshapes");
    assert!(stage.message().starts_with("n and p skip reshapes"), "{}", stage.message());
    let walk = stage.app.walk();
    let stages: Vec<String> = (0..walk.len())
        .map(|number| walk.at(number))
        .filter(|place| matches!(place.step, Step::Stage(_)))
        .map(Place::path)
        .collect();
    assert!(walk.len() > stages.len() + 15, "three layers have reshapes");
    for path in &stages[1..] {
        assert_eq!(&place(stage.keys("n")), path);
    }
    for path in stages.iter().rev().skip(1) {
        assert_eq!(&place(stage.keys("p")), path);
    }
    assert_eq!(stage.keys("p").message(), "this is the first step");
    // From a reshape, n goes to the next stage. The outline still goes to every step.
    stage.keys("/L1/xq_heads").key(KeyCode::Enter);
    assert_eq!(place(stage.keys("n")), "p0/L1/xk");
    stage.key(KeyCode::BackTab);
    stage.key(KeyCode::Down);
    assert_eq!(place(&stage), "p0/L1/xk_heads");
    // Another press of `R` ends it.
    stage.keys("R").shows("n p step  ");
    assert_eq!(place(stage.keys("pp")), "p0/L1/xq_heads");
}

#[test]
fn layers_keep_the_step() {
    let mut stage = Stage::at("ffn_up");
    assert_eq!(stage.keys("N").app.place().path(), "p0/L2/ffn_up");
    assert_eq!(stage.keys("N").message(), "layer 2 is the last layer");
    assert_eq!(stage.keys("PP").app.place().path(), "p0/L0/ffn_up");
    assert_eq!(stage.keys("gN").app.place().path(), "p0/L0/attn_norm");
    assert_eq!(stage.keys("GP").app.place().path(), "p0/L2/ffn_residual");
}

#[test]
fn the_head_is_kept_from_step_to_step_and_key_heads_follow_it() {
    let mut stage = Stage::at("xq");
    stage.shows("head 2 of 0-3 (kv head 1)");
    stage.keys("/xk");
    stage.key(KeyCode::Enter);
    stage.shows("kv head 1 of 0-1 (of heads 2-3)");
    stage.keys("[").shows("kv head 0 of 0-1 (of heads 0-1)");
    stage.keys("[").shows("kv head 0 of 0-1");
    stage.keys("/softmax");
    stage.key(KeyCode::Enter);
    stage.shows("head 0 of 0-3 (kv head 0)");
    stage.keys("]]]]]]").shows("head 3 of 0-3 (kv head 1)");
    stage.keys("/tokens");
    stage.key(KeyCode::Enter);
    assert_eq!(stage.keys("]").message(), "tokens has no heads to choose from");
}

#[test]
fn the_same_number_stays_under_the_cursor_through_a_view() {
    let mut stage = Stage::at("attn_heads");
    stage.keys("lllk");
    assert_eq!(stage.app.index(), [10, 2, 3]);
    assert_eq!(stage.keys("n").name(), "attn_merged");
    assert_eq!(stage.app.index(), [10, 2 * 8 + 3]);
    let address = "p0/L1/attn_merged[t=10,m=19] = ";
    stage.shows(address);
    stage.keys("l").keys("p");
    assert_eq!(stage.app.index(), [10, 2, 4]);
}

#[test]
fn the_viewer_goes_to_the_next_token_when_it_arrives() {
    let mut stage = Stage::at("masked_scores");
    assert_eq!(stage.key(KeyCode::Char('t')), Effect::Advance);
    assert_eq!(stage.app.place().pass, 0);
    stage.shows("computing layer 1");
    stage.wait();
    assert_eq!(stage.app.place().path(), "p1/L1/softmax", "a single token has no mask");
    stage.shows("pass 1 (decode)");
    stage.shows("␣word20 → ␣word21 is next");
    assert_eq!(stage.keys(",").app.place().path(), "p0/L1/softmax");
    assert_eq!(stage.keys(".").app.place().path(), "p1/L1/softmax");
    stage.keys("t").wait().keys("t").wait().keys("t");
    assert_eq!(stage.message(), "the context is full\n  expected: at most 64 tokens");
    stage.shows("the context is full");
}

#[test]
fn a_pass_that_does_not_arrive_is_reported() {
    let mut stage = Stage::at("softmax");
    stage.source.loses_passes = true;
    stage.keys("t");
    assert_eq!(stage.message(), "the next token did not arrive; t tries again, and shows the reason");
    stage.source.loses_passes = false;
    assert_eq!(stage.keys("t").wait().app.place().path(), "p1/L1/softmax");
    assert_eq!(stage.message(), "");
}

#[test]
fn pending_and_failed_stages_are_shown_as_such() {
    let mut stage = begin();
    let (pending, failing) = (Site::layer(0, 0, Name::Xq), Site::layer(0, 0, Name::Xv));
    stage.source.pending.insert(pending);
    stage.source.failing.insert(failing);
    stage.keys("/xq");
    stage.key(KeyCode::Enter);
    assert!(matches!(stage.app.shown(), Shown::Pending));
    stage.shows("computing layer 1 …");
    stage.keys("jl]2").wait().shows("p0/L0/xq[t=11,h=1,c=1] = ");
    stage.keys("/xv");
    stage.key(KeyCode::Enter);
    stage.shows("the layer cannot be read");
    stage.shows("fetch the file again");
    stage.keys("n").shows("xv_heads (reshape)");
}

#[test]
fn a_frame_is_requested_once() {
    let mut stage = Stage::at("xq");
    let asked = stage.source.asked;
    stage.keys("hjkl[]23as");
    assert_eq!(stage.source.asked, asked);
    stage.keys("n");
    assert_eq!((stage.name(), stage.source.asked), ("xq_heads", asked), "a view shares its source's values");
}

#[test]
fn the_cursor_stays_inside() {
    let mut stage = Stage::at("ffn_up");
    for _ in 0..100 {
        stage.key(KeyCode::PageDown);
        stage.key(KeyCode::Right);
    }
    assert_eq!(stage.app.index(), [11, 47]);
    stage.key(KeyCode::Home);
    for _ in 0..100 {
        stage.key(KeyCode::Up);
    }
    assert_eq!((stage.app.index(), stage.app.offset()), (vec![0, 0], (0, 0)));
    stage.keys("L");
    let column = stage.app.index()[1];
    assert!(column > 10, "{column}");
    stage.keys("$");
    assert_eq!(stage.app.index(), [0, 47]);
}

#[test]
fn the_largest_values_are_first_and_the_cursor_moves_by_rank() {
    let mut stage = Stage::at("probs");
    let first = stage.app.ranked(0).unwrap();
    let second = stage.app.ranked(1).unwrap();
    assert_eq!(stage.app.index(), [first as usize]);
    stage.keys("j");
    assert_eq!(stage.app.index(), [second as usize]);
    stage.keys("$");
    assert_eq!(stage.app.index(), [stage.app.ranked(63).unwrap() as usize]);
    stage.keys("1");
    stage.shows("vocab text");
}

#[test]
fn the_go_to_line_opens_an_address() {
    let mut stage = begin();
    stage.keys("/p0/L2/softmax[h=3,q=5,k=1]");
    stage.key(KeyCode::Enter);
    assert_eq!(stage.app.place().path(), "p0/L2/softmax");
    assert_eq!(stage.app.index(), [3, 5, 1]);
    stage.shows("p0/L2/softmax[h=3,t=5,k=1] = ");
    stage.keys("/p0/L2/softmax[h=4,q=5,k=1]");
    stage.key(KeyCode::Enter);
    assert_eq!(stage.message(), "head 4 is past the last: 0 to 3");
}

#[test]
fn go_to_reads_parts_of_a_path_and_completes() {
    let go = |text: &str| {
        let mut stage = Stage::at("xq");
        stage.keys("t").wait().keys(",");
        stage.keys(":").keys(text);
        stage.key(KeyCode::Enter);
        (stage.app.place().path(), stage.message().to_owned())
    };
    let there = |path: &str| (path.to_owned(), String::new());
    assert_eq!(go("L2"), there("p0/L2/xq"));
    assert_eq!(go("2/softmax"), there("p0/L2/softmax"));
    assert_eq!(go("p1"), there("p1/L1/xq"));
    assert_eq!(go("p1/l0/scores"), there("p1/L0/scores"));
    assert_eq!(go("logits"), there("p0/logits"));
    assert_eq!(go("soft"), there("p0/L1/softmax"));
    assert_eq!(go("0/fdwn"), there("p0/L0/ffn_down"));
    assert_eq!(go("L3").1, "there is no layer 3: 0 to 2");
    assert_eq!(go("p9").1, "there is no pass 9: 0 to 1 so far");
    assert_eq!(go("p1/mask").1, "pass 1 has no mask: it reads 1 token, and nothing is hidden from it");
    assert_eq!(go("zzz").1, "there is no stage `zzz`; Tab completes, Esc closes");
    assert_eq!(go("[").1, "`[` has no `]` at its end");
}

#[test]
fn completions_are_chosen_with_arrows_and_taken_with_tab() {
    let mut stage = begin();
    stage.keys("/L1/at");
    stage.key(KeyCode::Down);
    stage.key(KeyCode::Down);
    stage.key(KeyCode::Tab);
    let Mode::Goto(line) = stage.app.mode() else { panic!("the line is open") };
    assert_eq!(line.text, "L1/attn_heads");
    stage.event(Event::Paste("\u{7}xyz\n".into()));
    let Mode::Goto(line) = stage.app.mode() else { panic!("the line is open") };
    assert_eq!(line.text, "L1/attn_headsxyz");
    stage.key(KeyCode::Esc);
    assert_eq!((stage.app.mode(), stage.name()), (&Mode::Walk, "tokens"));
}

#[test]
fn a_pasted_prompt_is_used_unchanged_or_refused() {
    let mut stage = begin();
    let pasted = |stage: &mut Stage, text: &str| {
        stage.event(Event::Paste(text.into()));
        let Mode::Goto(line) = stage.app.mode() else { panic!("the line is open") };
        (line.text.clone(), stage.app.message().map(|message| message.text.clone()))
    };
    // In a paste, a terminal ends each line with `\r`, the character of the Enter key.
    stage.keys("/prompt ");
    let long: String = (0..100).map(|i| format!("w{i}\tx\ny ")).collect();
    let (text, message) = pasted(&mut stage, &format!("{}\r", long.replace('\n', "\r")));
    assert_eq!((&*text, message), (&*format!("prompt {long}"), None));
    let screen = stage.screen();
    assert!(screen.contains("w99\\tx\\ny"), "{screen}");
    let (same, message) = pasted(&mut stage, &"x".repeat(70_000));
    assert_eq!(same, text);
    let message = message.unwrap();
    assert!(message.contains("at most 65536") && message.contains("--prompt-file"), "{message}");
    assert_eq!(stage.key(KeyCode::Enter), Effect::Begin(NewRun::Prompt(long)));

    // An address has only one line.
    stage.keys("/");
    assert_eq!(pasted(&mut stage, "p0/L1\r\n").0, "p0/L1");
    assert!(pasted(&mut stage, &"x".repeat(300)).1.unwrap().contains("at most 200"));
    stage.key(KeyCode::Esc);
    // In the help, a paste is a text to search.
    stage.keys("?");
    stage.event(Event::Paste("softmax\r".into()));
    assert!(matches!(stage.app.mode(), Mode::Help(_, wanted) if wanted == "softmax"));
}

#[test]
fn enter_on_an_empty_line_changes_nothing() {
    let mut stage = begin();
    stage.keys("/L1/attn_norm").key(KeyCode::Enter);
    for typed in ["", " ", "   "] {
        stage.keys("/").keys(typed);
        assert_eq!(stage.key(KeyCode::Enter), Effect::None);
        assert_eq!((stage.app.mode(), stage.name()), (&Mode::Walk, "attn_norm"), "{typed:?}");
        assert_eq!(stage.app.place().layer, Some(1), "{typed:?}");
    }
    // If a line of the list was chosen, Enter goes to its place.
    stage.keys("/");
    stage.key(KeyCode::Down);
    stage.key(KeyCode::Enter);
    assert_eq!(stage.name(), "tokens");
}

#[test]
fn q_quits_except_in_the_go_to_line_and_the_help() {
    let mut stage = begin();
    assert_eq!(stage.key(KeyCode::Char('q')), Effect::Quit);
    stage.keys("/");
    assert_eq!(stage.key(KeyCode::Char('q')), Effect::None);
    let ctrl_c = Event::Key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
    assert_eq!(stage.event(ctrl_c), Effect::Quit);
    stage.key(KeyCode::Esc);
    stage.keys("?");
    assert_eq!(stage.key(KeyCode::Char('q')), Effect::None);
    assert!(matches!(stage.app.mode(), Mode::Help(_, wanted) if wanted == "q"));
}

#[test]
fn the_mouse_selects_what_it_hits() {
    let mut stage = Stage::at("softmax");
    let mouse =
        |kind, column, row| Event::Mouse(MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE });
    let click = MouseEventKind::Down(MouseButton::Left);
    let screen = stage.screen();
    let row = screen.lines().position(|line| line.contains(" 3 ␣a")).unwrap() as u16;
    // The cells begin after the labels: the panel begins at column 26, labels have 13 columns, a cell has 3.
    stage.event(mouse(click, 26 + 13 + 3 * 2, row));
    assert_eq!(stage.app.index(), [2, 3, 2], "{screen}");
    let row = screen.lines().position(|line| line.contains("ffn_norm")).unwrap() as u16;
    stage.event(mouse(click, 5, row));
    assert_eq!((stage.name(), stage.app.focus()), ("ffn_norm", Focus::Outline));
    stage.event(mouse(MouseEventKind::ScrollDown, 5, row));
    assert_eq!(stage.name(), "ffn_gate");
    stage.event(mouse(MouseEventKind::ScrollUp, 50, 10));
    assert_eq!(stage.app.index(), [0, 0]);
    let screen = stage.screen();
    let column =
        screen.lines().nth(1).unwrap().split("␣time").next().map_or(0, llama_trace::tui::text::width) as u16;
    stage.event(mouse(click, column + 1, 1));
    assert_eq!(stage.app.index(), [4, 0]);
}

#[test]
fn a_stage_is_exported_and_no_file_is_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let mut stage = Stage::at("keys_t");
    assert_eq!(stage.key(KeyCode::Char('e')), Effect::Export);
    stage.export(folder.path());
    stage.export(folder.path());
    assert!(
        stage.message().ends_with("p0_L1_keys-2.npy · (12, 4, 8) float32 · 1664 bytes"),
        "{}",
        stage.message()
    );
    let [first, second] =
        ["p0_L1_keys.npy", "p0_L1_keys-2.npy"].map(|name| std::fs::read(folder.path().join(name)).unwrap());
    assert_eq!(first, second);
    assert_eq!(first.len(), 128 + 12 * 4 * 8 * 4);
    stage.export(&folder.path().join("nowhere"));
    assert!(stage.message().starts_with("the stage cannot be exported"), "{}", stage.message());
}

#[test]
fn the_viewer_opens_at_the_requested_place_or_lists_what_exists() {
    let at = |stage: &str, layer, head, pass| OpenAt {
        pass,
        layer,
        stage: Some(stage.into()),
        head,
        ..OpenAt::default()
    };
    let refused = |place: &OpenAt| open(&mut begin().app, place).unwrap_err().to_string();
    let mut stage = begin();
    open(&mut stage.app, &at("softmax", Some(2), Some(3), None)).unwrap();
    stage.sync();
    assert_eq!((stage.app.place().path(), stage.app.index()[0]), ("p0/L2/softmax".into(), 3));
    open(&mut stage.app, &OpenAt { layer: Some(1), ..OpenAt::default() }).unwrap();
    assert_eq!(stage.app.place().path(), "p0/L1/attn_norm");
    open(&mut stage.app, &at("keys_t", None, None, None)).unwrap();
    assert_eq!(stage.app.place().path(), "p0/L0/keys_t");
    assert!(refused(&at("softmax", Some(3), None, None)).contains("a number from 0 to 2"));
    assert!(refused(&at("softmax", None, Some(4), None)).contains("a number from 0 to 3"));
    let pass = refused(&at("softmax", None, None, Some(1)));
    assert!(pass.contains("0, the only pass") && pass.contains("add -n 2,"), "{pass}");
    assert!(refused(&at("sofmax", None, None, None)).contains("did you mean `softmax`?"));
    stage.keys("t").wait();
    let error = open(&mut stage.app, &at("mask", None, None, Some(1))).unwrap_err();
    assert_eq!((error.exit_code(), error.to_string().contains("pass 1 has no mask")), (2, true));
}

#[test]
fn the_key_a_exchanges_axes_and_holds_each_axis() {
    let mut stage = Stage::at("xq");
    stage.shows("head 2 of 0-3 (kv head 1) · ↓ token · → head dim");
    stage.keys("a").shows("head dim 0 of 0-7 · ↓ token · → head");
    stage.keys("a").shows("token 11 of 0-11 ␣Lily · ↓ head · → head dim");
    stage.keys("]").shows("token 11 of 0-11 ␣Lily");
    stage.keys("[").shows("token 10 of 0-11 \\u{200d}");
    stage.keys("a").shows("head 2 of 0-3");
    stage.keys("/ffn_up");
    stage.key(KeyCode::Enter);
    stage.keys("a").shows("↓ hidden 0-");
    assert_eq!(stage.step(), Step::Stage(Name::FfnUp));
}

/// `S` draws the screen into a new file, and never replaces a file.
#[test]
fn the_screen_is_drawn_into_a_new_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut stage = Stage::at("softmax");
    assert_eq!(stage.keys("v").key(KeyCode::Char('S')), Effect::Draw);
    for name in ["p0_L1_softmax.svg", "p0_L1_softmax-2.svg"] {
        draw_into(&mut stage.app, &mut stage.source, folder.path());
        let drawn = std::fs::read_to_string(folder.path().join(name)).unwrap();
        let told = format!("{name} · a screen of 80x24 · {} bytes", drawn.len());
        assert!(stage.message().ends_with(&told), "{}", stage.message());
        assert!(drawn.contains("p0/L1/softmax[h=2") && drawn.ends_with("</svg>\n"));
        stage.key(KeyCode::Esc);
    }
    draw_into(&mut stage.app, &mut stage.source, &folder.path().join("none"));
    stage.shows("cannot be exported");
}

/// Every key that cannot do anything shows a message, which replaces an older message.
#[test]
fn a_key_that_does_nothing_says_so() {
    let mut stage = begin();
    for (code, said) in [
        (KeyCode::Char('p'), "this is the first step"),
        (KeyCode::Char('u'), "u counts draws in the sampler view: go to probs (/probs) and press v"),
        (KeyCode::F(5), "F5 does nothing here; ? lists the keys"),
        (KeyCode::Char('r'), "nothing was stopped: r computes again after a stop"),
    ] {
        stage.key(code);
        assert_eq!(stage.message(), said);
    }
    // While a list or the help is open, these keys change nothing.
    for opens in ["?", "C"] {
        stage.keys(opens).key(KeyCode::F(5));
        assert_ne!(stage.app.mode(), &Mode::Walk, "{opens}");
        stage.key(KeyCode::Esc);
    }
}

#[test]
fn a_hidden_view_does_not_change() {
    let mut stage = Stage::at("softmax");
    for opens in ["i", "\r"] {
        match opens {
            "\r" => {
                stage.key(KeyCode::Enter);
            }
            keys => {
                stage.keys(keys);
            }
        }
        let view = stage.app.view().name();
        for key in ["v", "3", "a", "s"] {
            stage.keys(key);
            assert!(stage.message().contains("acts on the tensor"), "{opens} {key}: {}", stage.message());
            assert_eq!(stage.app.view().name(), view);
        }
        stage.key(KeyCode::Esc);
        stage.keys("vv");
        assert_ne!(stage.app.view().name(), view);
        stage.key(KeyCode::Enter);
        stage.keys("1");
    }
    // The footer does not offer the keys of a hidden view either.
    stage.choose("layers");
    stage.shows("Enter show the head");
    stage.keys("i");
    assert!(!stage.screen().contains("Enter show the head"), "{}", stage.screen());
}

#[test]
fn the_go_to_box_says_what_enter_does_with_a_prompt() {
    let mut stage = begin();
    stage.keys("/prompt A fox").shows("Enter runs this text as a new run");
    stage.shows("another prompt");
}
