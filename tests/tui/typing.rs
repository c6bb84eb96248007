//! Typed text: keys that delete, and words that have another name here.

use std::collections::BTreeSet;

use llama_trace::trace::Step;
use llama_trace::tui::action::BINDINGS;
use llama_trace::tui::input::Mode;
use llama_trace::tui::synonyms::SYNONYMS;
use llama_trace::tui::theme::Depth;
use llama_trace::tui::user_event::{Event, KeyCode, KeyEvent, KeyModifiers};
use llama_trace::tui::view::views::VIEWS;

use crate::stage::Stage;
use crate::synthetic::Synthetic;

fn ctrl(stage: &mut Stage, c: char) {
    stage.event(Event::Key(KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL)));
}

/// The text of the open input line.
fn typed(stage: &Stage) -> &str {
    match stage.app.mode() {
        Mode::Goto(line) => &line.text,
        Mode::Help(_, wanted) => wanted,
        mode => panic!("{mode:?}"),
    }
}

#[test]
fn ctrl_w_deletes_a_word_and_ctrl_u_the_line() {
    for open in ["/", "?"] {
        let mut stage = Stage::at("softmax");
        stage.keys(open).keys("soft upon h2 ");
        for left in ["soft upon ", "soft ", "", ""] {
            ctrl(&mut stage, 'w');
            assert_eq!(typed(&stage), left, "{open}");
        }
        stage.keys("one two");
        ctrl(&mut stage, 'u');
        assert_eq!(typed(&stage), "", "{open}");
        // Ctrl-U in an empty line leaves it open.
        ctrl(&mut stage, 'u');
        stage.keys("e\u{301}x");
        ctrl(&mut stage, 'h');
        assert_eq!(typed(&stage), "e\u{301}", "{open}");
        stage.key(KeyCode::Backspace);
        assert_eq!(typed(&stage), "", "{open}: a letter and its accent are one character");
    }
    // Text that is deleted is no longer chosen, and no longer filters.
    let mut stage = Stage::at("softmax");
    stage.keys("?zzz").shows("nothing matches");
    ctrl(&mut stage, 'u');
    assert!(!stage.screen().contains("nothing matches"), "{}", stage.screen());
}

#[test]
fn every_word_of_the_synonyms_finds_something() {
    assert!(SYNONYMS.len() >= 40, "{}", SYNONYMS.len());
    let mut seen = BTreeSet::new();
    let commands = ["compare", "prompt", "without"];
    for row in SYNONYMS {
        for word in row.words {
            assert!(seen.insert(word), "{word} has two rows");
            assert_eq!(*word, word.to_lowercase());
            assert!(Step::from_name(word).is_none(), "{word} is the name of a step");
        }
        for name in row.finds {
            let key = BINDINGS.iter().any(|binding| binding.keys.iter().any(|key| key.label() == *name));
            let view = VIEWS.iter().any(|view| view.name() == *name);
            assert!(Step::from_name(name).is_some() || view || key || commands.contains(name), "{name}");
        }
    }
    // In the go-to line, the first completion is the first name of the row. A row of keys has a note instead.
    let mut stage = Stage::new(Synthetic::with_switches(), (80, 24), Depth::None);
    for row in SYNONYMS {
        for word in row.words {
            stage.keys("/");
            stage.event(Event::Paste((*word).to_owned()));
            let Mode::Goto(line) = stage.app.mode() else { panic!("the line is open") };
            let completions = line.completions(&stage.app);
            match row.finds[0] {
                key if BINDINGS.iter().any(|binding| binding.keys[0].label() == key) => {
                    assert!(completions.is_empty(), "{word}: {completions:?}");
                }
                name => assert_eq!(completions[0].text.trim_end(), name, "{word}: {completions:?}"),
            }
            stage.key(KeyCode::Esc);
        }
    }
    stage.keys("/bookmark").shows("m and a letter marks a place");
}

#[test]
fn words_of_a_student_go_to_the_right_place() {
    let go = |text: &str| {
        let mut stage = Stage::sized("xq", (120, 40), Depth::None);
        stage.keys("/").keys(text);
        stage.key(KeyCode::Enter);
        (stage.app.place().path(), stage.app.view().name(), stage.message().to_owned())
    };
    let there = |path: &str, view: &'static str| (path.to_owned(), view, String::new());
    assert_eq!(go("rms"), there("p0/L1/attn_norm", "heatmap"));
    assert_eq!(go("Memory"), there("p0/L1/cache_k", "cache"));
    assert_eq!(go("kv cache"), there("p0/L1/cache_k", "cache"));
    assert_eq!(go("gqa"), there("p0/L1/keys", "heatmap"));
    assert_eq!(go("induc"), there("p0/L1/softmax", "layers"), "the beginning of a word is enough");
    assert_eq!(go("2/mlp"), there("p0/L2/ffn_gate", "heatmap"));
    // The name of a view shows it: at this step if it has the view, or else at one that has it.
    assert_eq!(go("rope"), there("p0/L1/xq", "rope"));
    assert_eq!(go("sampler"), there("p0/logits", "sampler"));
    assert_eq!(go("Layers"), there("p0/L1/softmax", "layers"));
    // A command needs a text after it, so Enter completes it.
    let mut stage = Stage::sized("xq", (120, 40), Depth::None);
    stage.keys("/off").shows("switches a part of the model off");
    stage.key(KeyCode::Enter);
    assert_eq!(typed(&stage), "without ");
    stage.shows("this prompt without a part of the model");
    stage.key(KeyCode::Esc);
    // The help explains the word, and shows the keys and views that it means.
    for (word, texts) in [
        ("rms", &["attn_norm, ffn_norm, final_norm"][..]),
        ("memory", &["cache, cache_k, cache_v", "The rows of the cache"]),
        ("off", &["/without L0/h2", "switches a part of the model off"]),
        ("gqa", &["keys, values, xk, xv"]),
        ("induction", &["layers, softmax", "All heads of all layers"]),
        ("screenshot", &["draw this screen into an .svg file"]),
    ] {
        stage.keys("?").keys(word);
        for text in texts {
            stage.shows(text);
        }
        stage.key(KeyCode::Esc);
    }
}
