//! Addresses: the go-to line accepts every address that the screen prints.

use llama_trace::trace::Run;
use llama_trace::tui::effects::open_run;
use llama_trace::tui::events::action_of;
use llama_trace::tui::input::Mode;
use llama_trace::tui::runs::Runs;
use llama_trace::tui::theme::Depth;
use llama_trace::tui::update::{Effect, update};
use llama_trace::tui::user_event::{Event, KeyCode, KeyEvent, KeyModifiers};

use crate::stage::Stage;
use crate::synthetic::Synthetic;

/// A run with every stage and view, and two passes.
fn begin() -> Stage {
    let mut stage = Stage::new(Synthetic::with_switches(), (120, 40), Depth::None);
    stage.keys("t").wait();
    stage
}

fn go(stage: &mut Stage, text: &str) {
    stage.keys("/").keys(text);
    stage.key(KeyCode::Enter);
}

/// The address under the cursor, as the screen prints it.
fn here(stage: &Stage) -> String {
    let address = stage.app.place().address(&stage.app.index());
    stage.shows(&address);
    address
}

#[test]
fn every_address_on_the_screen_leads_back_to_where_it_was() {
    let mut stage = begin();
    for pass in 0..2 {
        go(&mut stage, &format!("p{pass}"));
        stage.keys("g");
        let count = stage.app.walk().len();
        for step in 0..count {
            // Moves to the middle of the tensor, each time in another head.
            for key in ["jjl", "]", "lj"].iter().take(1 + step % 3) {
                stage.keys(key);
            }
            let (address, place, index) = (here(&stage), stage.app.place(), stage.app.index());
            // Typed at another place, the address leads to the same cell.
            for from in ["p0/tokens[t=0]", "p1/L2/ffn_up[f=47]", "p0/L0/softmax[h=0,t=0,k=0]"] {
                go(&mut stage, from);
                go(&mut stage, &address);
                assert_eq!(stage.message(), "", "{address}");
                assert_eq!((stage.app.place(), stage.app.index()), (place, index.clone()), "{address}");
            }
            if stage.app.walk().number(place) + 1 < count {
                stage.keys("n");
            }
        }
        assert_eq!(stage.app.place().path(), format!("p{pass}/sampled"));
    }
}

#[test]
fn omitted_parts_of_an_address_are_the_current_ones() {
    let mut stage = begin();
    go(&mut stage, "p0/L1/xq_rope[t=4,h=2,c=3]");
    go(&mut stage, "/L2/xq_rope[h=0,t=7]");
    assert_eq!(here(&stage), "p0/L2/xq_rope[t=7,h=0,c=3]");
    go(&mut stage, "keys_t[k=1]");
    assert_eq!(here(&stage), "p0/L2/keys_t[h=0,c=3,k=1]");
    go(&mut stage, "[h=3]");
    assert_eq!(here(&stage), "p0/L2/keys_t[h=3,c=3,k=1]");
    go(&mut stage, "p1");
    assert_eq!(here(&stage), "p1/L2/keys_t[h=3,c=3,k=1]");
    go(&mut stage, "p0/L0/softmax[q=5]");
    assert_eq!(here(&stage), "p0/L0/softmax[h=3,t=5,k=1]");
    go(&mut stage, "r0:s0/p1/L2/xq[h=1,c=2]");
    assert_eq!(here(&stage), "p1/L2/xq[t=0,h=1,c=2]");
}

/// The go-to line accepts a place as the title and the outline write it.
#[test]
fn the_words_of_the_title_lead_to_its_place() {
    let mut stage = begin();
    go(&mut stage, "p0/L0/xq");
    for (words, path) in [
        ("layer 2", "p0/L2/xq"),
        ("layer 1 of 0-2", "p0/L1/xq"),
        ("pass 1 (decode) · layer 2 of 0-2", "p1/L2/xq"),
        ("/pass 0 layer 1 softmax", "p0/L1/softmax"),
        ("sequence 0 of 0-0 · pass 1", "p1/L1/softmax"),
    ] {
        go(&mut stage, words);
        assert_eq!((stage.app.place().path(), stage.message()), (path.to_owned(), ""), "{words}");
    }
    let steps = stage.app.walk().len();
    go(&mut stage, &format!("step 2 of {steps}"));
    assert_eq!(stage.app.place().path(), "p1/embedding");
    for (words, message) in [
        ("layer 3", "there is no layer 3: 0 to 2"),
        ("layer 0 L0", "`L0` is a second layer: give only one, before the stage, as in L1/softmax"),
        ("layer x", "there is no stage `layer x`; Tab completes, Esc closes"),
        ("layer 1 zzzzzz", "there is no stage `zzzzzz`; Tab completes, Esc closes"),
    ] {
        go(&mut stage, words);
        assert_eq!(stage.message(), message, "{words}");
        stage.key(KeyCode::Esc);
    }
}

#[test]
fn the_error_about_a_wrong_part_lists_what_exists() {
    let mut stage = begin();
    go(&mut stage, "p0/L1/xq_rope");
    for (text, message) in [
        ("L1/xq_rope[k=0]", "xq_rope has no axis `k`: its letters are t (token), h (head), c (head_dim)"),
        ("L1/xq_rope[h=4]", "head 4 is past the last: 0 to 3"),
        ("L1/xq_rope[h=0,t=12]", "token 12 is past the last: 0 to 11"),
        ("L1/xq_rope[h=x]", "`h=x`: `x` is not a whole number, 0 or larger"),
        ("L1/xq_rope[h=0", "`[h=0` has no `]` at its end"),
        ("L3/xq_rope[h=0]", "there is no layer 3: 0 to 2"),
        ("p2/L0/xq_rope[h=0]", "there is no pass 2: 0 to 1 so far"),
        ("L0/logits[v=3]", "logits is outside the layers: its address is p0/logits"),
        ("L0/sofmax[h=3]", "there is no stage `sofmax`; did you mean softmax?"),
        ("7", "there is no layer 7: 0 to 2; a plain number is a layer: type step 7 for the step"),
        ("h4", "there is no head 4: 0 to 3"),
        ("//L3", "there is no layer 3: 0 to 2"),
        ("L0/qqqqqqqq", "there is no stage `qqqqqqqq`; Tab completes, Esc closes"),
        ("mine:L0/xq", "there is no run mine: r0 is the only one"),
        ("s1/L0/xq", "there is no sequence 1: 0 is the only one"),
        (
            "wq",
            "wq is a weight: name one of its numbers (L0/wq[o=0,i=0]) to see its row; the stage xq reads it",
        ),
        ("L1/wq[o=5,i=32]", "dim 32 is past the last: 0 to 31"),
        ("L3/wq[o=5]", "there is no layer 3: 0 to 2"),
        ("L1/tok_embeddings[v=3]", "tok_embeddings is outside the layers: leave the layer out"),
        ("b1[o=0]", "this model has no weight b1"),
    ] {
        go(&mut stage, text);
        assert_eq!(stage.message(), message, "{text}");
        stage.key(KeyCode::Esc);
        assert_eq!(stage.app.place().path(), "p0/L1/xq_rope");
    }
    let steps = stage.app.walk().len();
    for number in [0, steps + 1] {
        go(&mut stage, &format!("step {number}"));
        assert_eq!(stage.message(), format!("there is no step {number}: 1 to {steps}"));
        stage.key(KeyCode::Esc);
    }
    go(&mut stage, "ffn_residual");
    go(&mut stage, "h2");
    assert_eq!(stage.message(), "ffn_residual has no heads; name a stage with heads, as in softmax h2");
    stage.key(KeyCode::Esc);
    go(&mut stage, "p1/L1/xq_rope[t=12]");
    let told =
        "token 12 is past the last: 0 is the only one; t counts the rows of pass 1, where position 12 is t=0";
    assert_eq!(stage.message(), told);
    stage.key(KeyCode::Esc);
    // While brackets are open, the line lists the letters of the axes.
    stage.keys("/L1/keys_t[").shows("letters: h head, c head dim, k key");
}

/// A program with two runs. The second run has one pass.
#[test]
fn another_run_is_opened_by_its_address() {
    let other = |run| {
        let mut source = Synthetic::with_switches();
        source.outline.run = Run(run);
        source.factor = 2.0;
        source
    };
    let mut stage = begin();
    let mut runs = Runs::new(Box::new(other(0)));
    go(&mut stage, "p1/L2/xq[h=3,c=1]");
    let value = |stage: &Stage| stage.app.tensor().unwrap().get(&stage.app.index());
    let before = value(&stage);
    let ask = |stage: &mut Stage, runs: &mut Runs, text: &str| {
        // Does not use the methods of `Stage`, because it has only the source of the first run.
        let mut press = |code| {
            let event = Event::Key(KeyEvent::new(code, KeyModifiers::NONE));
            let action = action_of(&stage.app, event).unwrap();
            update(&mut stage.app, action)
        };
        press(KeyCode::Char('/'));
        text.chars().for_each(|c| drop(press(KeyCode::Char(c))));
        let Effect::Open(run, address) = press(KeyCode::Enter) else { panic!("{text}") };
        open_run(&mut stage.app, runs, run, &address);
        stage.app.sync(runs.source());
    };
    ask(&mut stage, &mut runs, "r1:");
    assert_eq!(stage.message(), "there is no run r1: r0 is the only one");
    assert_eq!(stage.app.place().path(), "p1/L2/xq");
    runs.add(Box::new(other(1)));
    ask(&mut stage, &mut runs, "r2:L0");
    assert_eq!(stage.message(), "there is no run r2: the runs are r0, r1");
    ask(&mut stage, &mut runs, "r1:");
    assert_eq!(here(&stage), "r1:p0/L2/xq[t=11,h=3,c=1]", "the second run has only one pass");
    assert_ne!(value(&stage), before);
    stage.shows("r1:p0/L2/xq[t=11,h=3,c=1] = ");
    ask(&mut stage, &mut runs, "r0:p0/L1/softmax[h=2]");
    assert_eq!(here(&stage), "p0/L1/softmax[h=2,t=11,k=7]", "the last query's largest key");
    // An error about an address in another run describes that run.
    ask(&mut stage, &mut runs, "r1:p3");
    assert_eq!(stage.message(), "there is no pass 3: 0 to 0 so far");
}

#[test]
fn the_addresses_in_the_help_are_those_on_the_screen() {
    let mut stage = Stage::at("softmax");
    go(&mut stage, "p0/L1/softmax[h=2,t=5,k=1]");
    let address = here(&stage);
    stage.keys("?softmax").shows(&address);
}

/// Returns the suggestions of the go-to line for a text: each line, and the description next to it.
fn offered(stage: &mut Stage, typed: &str) -> Vec<(String, String)> {
    stage.keys("/").keys(typed);
    let Mode::Goto(line) = stage.app.mode() else { panic!("the line is open") };
    let found = line.completions(&stage.app).into_iter().map(|found| (found.text, found.what)).collect();
    stage.key(KeyCode::Esc);
    found
}

#[test]
fn heads_and_tokens_are_found_by_letters_and_words_narrow_each_other() {
    let mut stage = begin();
    go(&mut stage, "p0/L1/softmax");
    let first = |stage: &mut Stage, typed: &str| offered(stage, typed).first().cloned().unwrap_or_default();
    let own = |text: &str, what: &str| (text.to_owned(), what.to_owned());
    assert_eq!(first(&mut stage, "h2"), own("softmax[h=2]", ""));
    assert_eq!(first(&mut stage, "upon"), own("softmax[t=2]", "␣upon"));
    assert_eq!(first(&mut stage, "LILY"), own("softmax[t=11]", "␣Lily"));
    assert_eq!(first(&mut stage, "小"), own("softmax[t=6]", "␣小さな"));
    assert_eq!(first(&mut stage, "xq lily h3"), own("xq[h=3,t=11]", "␣Lily"));
    assert_eq!(first(&mut stage, "lily xq l2"), own("L2/xq[t=11]", "␣Lily"));
    assert_eq!(first(&mut stage, "l2 soft h1"), own("L2/softmax[h=1]", ""));
    assert_eq!(first(&mut stage, "p1 logits"), own("p1/logits", ""));
    assert_eq!(first(&mut stage, "L2/gate upo"), own("L2/ffn_gate[t=2]", "␣upon"));
    for nothing in ["h9", "xq h4", "l3 xq", "zzz upon", "p7 xq", "logits h0", "xq up on lily"] {
        assert_eq!(offered(&mut stage, nothing), [], "{nothing}");
    }
    // A stage's own name comes before tokens that contain it.
    assert_eq!(first(&mut stage, "softmax"), own("softmax", ""));
    // If the current stage has no token axis, the token leads to the first stage that has one.
    go(&mut stage, "probs");
    go(&mut stage, "upon");
    assert_eq!((stage.message(), stage.app.place().path()), ("", "p0/tokens".into()));
    assert_eq!(stage.app.index(), [2]);
    // Every suggestion leads to a place, and the screen there shows its words.
    go(&mut stage, "p0/L1/softmax");
    for typed in ["", "a", "l", "on", "h0", "q upon", "l1 n time", "s t", "p1 x"] {
        for (text, what) in offered(&mut stage, typed) {
            // The user types a text, a value or a part of the model after this word. No lesson can be run here.
            if text.ends_with(' ') || text == "learn" {
                continue;
            }
            go(&mut stage, &text);
            let absent = stage.message().contains("has no mask");
            assert!(stage.message().is_empty() || absent, "{typed}: {text} {what}: {}", stage.message());
            stage.key(KeyCode::Esc);
            go(&mut stage, "p0/L1/softmax");
        }
    }
    stage.keys("/soft upon");
    stage.shows("softmax[t=2]  ␣upon");
}
