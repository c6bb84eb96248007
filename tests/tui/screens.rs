//! The content of the screen, at several sizes, with and without colours.

use llama_trace::trace::stage::Section;
use llama_trace::trace::{Axis, Step};
use llama_trace::tui::OpenAt;
use llama_trace::tui::open::open;
use llama_trace::tui::theme::Depth;
use llama_trace::tui::user_event::{Event, KeyCode};
use llama_trace::tui::view::notes;
use ratatui::style::{Color, Modifier};

use crate::stage::Stage;
use crate::synthetic::Synthetic;

const SIZES: [(u16, u16); 4] = [(60, 16), (80, 24), (120, 40), (200, 60)];

#[test]
fn the_title_says_which_field_of_the_configuration_was_ignored() {
    for size in SIZES.into_iter().filter(|(width, _)| *width >= 80) {
        let title =
            |source| Stage::new(source, size, Depth::True).screen().lines().next().unwrap().to_owned();
        assert!(title(Synthetic::ignoring("is_causal")).starts_with(" without is_c"), "{size:?}");
        assert!(!title(Synthetic::new()).contains("without"), "{size:?}");
    }
    let wide = Stage::new(Synthetic::ignoring("is_causal"), (120, 40), Depth::True);
    assert!(wide.screen().starts_with(" without is_causal · synthetic-3x4"));
}

#[test]
fn without_colour_no_cell_has_one() {
    for stage in [Stage::sized("xq", (200, 24), Depth::None), Stage::sized("probs", (120, 40), Depth::None)] {
        let buffer = stage.buffer();
        assert!(buffer.content.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
    }
}

#[test]
fn a_small_terminal_shows_the_needed_size() {
    let stage = Stage::sized("softmax", (59, 15), Depth::True);
    let screen = stage.screen();
    assert_eq!(screen.trim(), "terminal too small: needs at least 60x16, is 59x15; q quits");
    for size in [(1, 1), (0, 0), (0, 5), (5, 0), (3, 2), (200, 1), (1, 100)] {
        let mut stage = Stage::sized("softmax", size, Depth::True);
        stage.screen();
        stage.keys("?").screen();
        stage.keys("q/").screen();
        stage.keys("zz");
        stage.key(KeyCode::Enter);
        stage.screen();
    }
}

#[test]
fn resizing_keeps_the_cursor_visible() {
    let mut stage = Stage::sized("ffn_up", (200, 60), Depth::True);
    stage.keys("$");
    for (width, height) in SIZES.into_iter().rev() {
        stage.event(Event::Resize(width, height));
        stage.shows("p0/L1/ffn_up[t=11,f=47] = ");
        stage.shows("11 ␣Lily");
        stage.shows("47");
    }
    stage.event(Event::Resize(10, 3));
    stage.shows("too small:");
    stage.event(Event::Resize(80, 24));
    stage.shows("p0/L1/ffn_up[t=11,f=47] = ");
}

/// The notes say that the values are whole numbers, what one step is, and what g is.
#[test]
fn int8_values_and_scales_say_what_they_are() {
    let mut stage = Stage::new(Synthetic::with_switches(), (160, 60), Depth::True);
    for (name, texts) in [
        ("attn_norm_q8", ["steps of its scale", "min -12", "= 5 values that share a scale"]),
        ("attn_heads_scale", ["size of a step", "heads side by side", "H·C/g=7"]),
        ("xq", ["wq int8", "group of 5 ends", "continue in the next row"]),
    ] {
        open(&mut stage.app, &OpenAt { stage: Some(name.into()), ..OpenAt::default() }).unwrap();
        stage.sync();
        // Draws the notes on a screen so wide that no line is wrapped.
        let notes =
            notes::lines(&stage.app, 400).iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        let shown = stage.screen() + &notes;
        for text in texts {
            assert!(shown.contains(text), "{name}: no `{text}` in\n{shown}");
        }
    }
}

#[test]
fn every_step_is_drawn_in_every_view_and_with_all_colours() {
    for depth in [Depth::None, Depth::Ansi, Depth::Indexed, Depth::True] {
        let mut stage = Stage::new(Synthetic::with_switches(), (80, 24), depth);
        for section in [Section::Start, Section::Layer, Section::End, Section::Sampler] {
            let (sizes, dims) = (stage.app.outline().card.sizes(), stage.app.dims());
            for step in Step::in_section(section).filter(|step| step.stage().present(&sizes, dims)) {
                open(&mut stage.app, &OpenAt { stage: Some(step.name().into()), ..OpenAt::default() })
                    .unwrap();
                stage.sync();
                for view in ["2", "3", "4"] {
                    // The address under the cursor is shown in every view.
                    stage.shows(&stage.app.place().address(&stage.app.index()));
                    stage.keys(view).screen();
                    stage.keys("as").screen();
                }
            }
        }
    }
}

#[test]
fn stages_of_some_families_are_shown_only_for_these() {
    let at = |name: &str| {
        let mut stage = Stage::new(Synthetic::with_switches(), (200, 60), Depth::None);
        open(&mut stage.app, &OpenAt { stage: Some(name.into()), ..OpenAt::default() }).unwrap();
        stage.sync();
        stage
    };
    at("xq_rope").shows("xq_norm (T=12");
    at("xk_norm").shows("k_norm (C=8");
    at("mask").shows("k > 0 + t − 5");
    Stage::sized("xq_rope", (200, 60), Depth::None).shows("xq (T=12");

    let mut without = Stage::new(Synthetic::new(), (120, 40), Depth::None);
    let norm = OpenAt { stage: Some("xq_norm".into()), ..OpenAt::default() };
    assert!(open(&mut without.app, &norm).unwrap_err().to_string().contains("the model has no xq_norm"));
    without.keys("/xq_norm");
    without.key(KeyCode::Enter);
    without.shows("the model has no xq_norm: it does not normalise queries and keys");
}

#[test]
fn masked_values_and_nan_look_different() {
    let mut stage = Stage::at("masked_scores");
    stage.keys("kkkkkkkkkkk$");
    stage.shows("-∞ -inf");
    stage.shows("p0/L1/masked_scores[h=2,t=0,k=11] = -inf");
    stage.shows("query <s> → key ␣Lily");
    stage.shows("-inf×26"); // one head has 4 of them, but the statistics are of the whole tensor
    let stage = Stage::at("ffn_up");
    stage.shows("?? NaN");
    stage.shows("NaN×1");
}

#[test]
fn colours_diverge_around_zero_and_probabilities_are_viridis() {
    // The cell at the first visible row and column of a matrix, below the header and after the labels.
    let color = |stage: &Stage, letter: &str| {
        let screen = stage.screen();
        let row = screen.lines().position(|line| line.contains(letter)).unwrap() as u16;
        stage.buffer()[(26 + 13, row)].bg
    };
    let mask = Stage::at("mask");
    assert_eq!(color(&mask, " 3 ␣a"), Color::Rgb(247, 247, 247), "0 is white");
    let mut softmax = Stage::at("softmax");
    for _ in 0..11 {
        softmax.key(KeyCode::Up);
    }
    assert_eq!(color(&softmax, " 0 <s>"), Color::Rgb(253, 231, 37), "all attention on the first token");
    let indexed = Stage::sized("mask", (80, 24), Depth::Indexed);
    assert_eq!(color(&indexed, " 3 ␣a"), Color::Indexed(231));
}

#[test]
fn the_current_token_is_lit() {
    let mut stage = Stage::at("softmax");
    stage.keys("kkkk");
    let buffer = stage.buffer();
    let lit: String = (0..80)
        .map(|x| &buffer[(x, 1)])
        .filter(|cell| cell.modifier.contains(Modifier::REVERSED))
        .map(ratatui::buffer::Cell::symbol)
        .collect();
    assert_eq!(lit, "␣girl");
}

#[test]
fn colours_span_a_head_or_the_tensor_or_three_deviations() {
    let mut stage = Stage::at("xq");
    stage.shows("this head");
    stage.keys("s").shows("all values");
    stage.keys("s").shows("all (within 3 std)");
    assert_eq!(stage.app.view().name(), "heatmap");
    // The first press of `s` changes the scale even if no axis is fixed.
    let mut stage = Stage::at("ffn_up");
    stage.keys("s").shows("3 std");
}

#[test]
fn the_footer_says_what_the_brackets_choose() {
    for (step, keys, word) in [
        ("tokens", "", ""),
        ("ffn_residual", "", ""),
        ("softmax", "", "head"),
        ("logits", "", "which token"),
        ("softmax", "a", "which token"),
        ("softmax", "aa", "key"),
        ("attn_merged", "", "head"),
    ] {
        let mut stage = Stage::sized(step, (200, 60), Depth::True);
        let screen = stage.keys(keys).screen();
        let footer = screen.lines().last().unwrap();
        let told = footer.split_once("] [ ").map_or("", |(_, after)| after.split("  ").next().unwrap());
        assert_eq!(told, word, "{step} {keys}: {footer}");
    }
}

/// Without colours, small pictures have special characters for values. The screen explains them.
#[test]
fn without_colours_small_pictures_say_what_their_characters_mean() {
    for depth in [Depth::None, Depth::Ansi] {
        for (step, view, told) in [
            ("cache_k", "cache", " ≣ ≡ = - · ░ ▒ ▓ █  "),
            ("xq", "flow", "░▒▓█ above 0, -=≡≣ below"),
            ("xq", "pass", "░▒▓█ above 0, -=≡≣ below"),
        ] {
            for size in [(80, 24), (120, 40)] {
                let mut stage = Stage::sized(step, size, depth);
                stage.choose(view);
                stage.shows(told);
            }
        }
    }
}

#[test]
fn the_notes_have_the_sizes_of_the_model() {
    let mut stage = Stage::sized("xq", (200, 60), Depth::True);
    for text in [
        "xq[t, h, c] = Σ_d attn_norm[t, d] · wq[h·8 + c, d]",
        "(32",
        "in attn_norm (T=12 token, D=32 dim)",
        "weight wq (H·C=32 head·head_dim, D=32 dim)",
        "out xq (T=12 token, H=4 head, C=8 head dim)",
        "one vector of 8 for",
        "Hugging Face self_attn.q_proj",
        "llama.cpp Qcur-L (before RoPE)",
    ] {
        stage.shows(text);
    }
    stage.keys("/xq_rope");
    stage.key(KeyCode::Enter);
    stage.shows("pairs neighbours (2i, 2i + 1)");
    stage.keys("/1/attn_norm");
    stage.key(KeyCode::Enter);
    stage.shows("in x = layer 0's ffn_residual (T=12 token, D=32 dim)");
    stage.keys("/tokens");
    stage.key(KeyCode::Enter);
    stage.shows("A model computes; it cannot read.");
}

#[test]
fn narrow_screens_show_the_notes_instead_and_scroll_them() {
    let mut stage = Stage::sized("softmax", (80, 16), Depth::True);
    stage.key(KeyCode::Tab);
    stage.shows("softmax[h, t, k] = e^(s[k] − max s)");
    stage.shows("▼");
    for _ in 0..50 {
        stage.key(KeyCode::PageDown);
    }
    stage.shows("▲");
    assert!(!stage.screen().contains("softmax[h, t, k] ="));
    stage.keys("n");
    assert!(!stage.screen().contains('▲'), "at another step, the notes are scrolled to their beginning");
}

#[test]
fn only_visible_values_are_labelled() {
    let stage = Stage::at("logits");
    assert!(stage.app.outline().card.sizes().axis(Axis::Vocab, stage.app.dims()) > 20);
    assert_eq!(stage.app.vocabulary_ids().len(), 13);
}
