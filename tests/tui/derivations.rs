//! Explanations on a real model: from any number back to an embedding, with every key that is used on the way.

use llama_trace::backend::cpu::Cpu;
use llama_trace::checkpoint;
use llama_trace::config::Precision;
use llama_trace::model::Model;
use llama_trace::trace::Step;
use llama_trace::tui::app::Origin;
use llama_trace::tui::panel_state::Focus;
use llama_trace::tui::text;
use llama_trace::tui::user_event::{Event, KeyCode, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use llama_trace::tui::view::{Panels, derivation};

use crate::desk::Desk;

#[test]
fn enter_explains_the_number_beside_the_tensor_or_under_it() {
    for size in [(100, 30), (120, 40), (200, 60)] {
        let mut desk = Desk::at("p0/L1/qk[h=2,t=3,k=1]", size);
        desk.hides("where from ─");
        desk.key(KeyCode::Enter);
        let panels = Panels::new(&desk.app);
        let (tensor, derivation) = (panels.middle.unwrap(), panels.derivation.unwrap());
        assert!(tensor.intersection(derivation).is_empty(), "{size:?}");
        assert_eq!(desk.app.focus(), Focus::Derivation);
        desk.shows("token 3 ␣a → key 1 Once");
        desk.shows("z zoom  Tab panel  Esc close  ? help");
        desk.shows("recorded 47.01256 · together 47.01256");
        let value = desk.app.tensor().unwrap().get(&desk.app.index());
        assert_eq!(value.map(text::full).as_deref(), Some("47.01256"));
        desk.key(KeyCode::Esc).hides("together 47");
        assert_eq!(desk.app.focus(), Focus::Tensor);
    }
    // If there is no room for both the tensor and the explanation, Tab switches between them.
    for size in [(60, 16), (80, 24)] {
        let mut desk = Desk::at("p0/L1/qk[h=2,t=3,k=1]", size);
        desk.key(KeyCode::Enter).shows("together 47.01256");
        desk.key(KeyCode::Tab).hides("together 47");
    }
}

/// Returns whether the line of an operand is visible.
fn is_seen(desk: &Desk, operand: (usize, usize)) -> bool {
    let area = derivation::below(Panels::new(&desk.app).derivation.unwrap());
    let first = desk.app.derivation().unwrap().line;
    let line = derivation::line_of(&derivation::rows(&desk.app, area.width), operand).unwrap();
    (first..first + usize::from(area.height)).contains(&line)
}

#[test]
fn a_small_screen_shows_the_first_terms_and_the_chosen_term() {
    for size in [(80, 24), (100, 30), (120, 40)] {
        for address in [
            "p0/L1/qk[h=2,t=3,k=1]",
            "p0/L1/softmax[h=2,t=3,k=1]",
            "p0/L1/attn_heads[t=3,h=2,c=5]",
            "p0/L1/attn_norm[t=3,d=5]",
            "p0/L1/xq[t=3,h=2,c=5]",
            "p0/L1/xq_rope[t=3,h=2,c=4]",
            "p0/L1/ffn_silu[t=3,f=2]",
            "p0/logits[t=4,v=11]",
            "p0/probs[v=11]",
        ] {
            let mut desk = Desk::at(address, size);
            desk.key(KeyCode::Enter);
            let terms = desk.app.explanation().unwrap().unwrap().terms.len();
            for term in 0..terms.min(3) {
                assert!(is_seen(&desk, (term, 0)), "{address}: {term}\n{}", desk.screen());
            }
            assert!(is_seen(&desk, desk.app.chosen_operand().unwrap()), "{address}\n{}", desk.screen());
            // The heading mentions bars only if there are bars.
            let screen = desk.screen();
            let heading = screen.lines().position(|line| line.contains("largest first"));
            if let Some(heading) = heading {
                let terms = screen.lines().skip(heading + 1).collect::<Vec<_>>().join("\n");
                assert_eq!(screen.contains("█ adds"), terms.contains(" ██████████ "), "{screen}");
            }
        }
    }
}

/// If the name of an operand is too long, the indices that it shares with the explained number are left out. The
/// indices in which the operands differ stay.
#[test]
fn in_a_small_window_operands_are_still_distinguishable() {
    let mut desk = Desk::at("p0/L1/softmax[h=2,t=3,k=1]", (80, 24));
    desk.key(KeyCode::Enter).shows("masked_scores[…,k=2 ␣upon] ");
    desk.shows("masked_scores[…,k=1 Once] ");
    let mut desk = Desk::at("p0/L1/softmax[h=2,t=3,k=1]", (200, 60));
    desk.key(KeyCode::Enter).shows("masked_scores[h=2,t=3 ␣a,k=2 ␣upon] ");
    // A text that does not fit in any form continues on the next line.
    let mut desk = Desk::at("p0/L1/qk[h=2,t=3,k=1]", (80, 24));
    desk.key(KeyCode::Enter).shows("the terms, largest first; cumulative %");
    desk.shows("of all |terms|");
    desk.go("p0/rope_cos[t=3,i=1]");
    desk.shows("frequency of the pair,");
    desk.shows("radians per position");
    // A token's text that could be read as a part of the address is in quotes.
    let mut desk = Desk::at("p1/L1/softmax[h=2,t=0,k=5]", (200, 60));
    desk.key(KeyCode::Enter).shows("k=5 \",\"]");
}

/// In q8 a term has three factors. If they do not fit next to the term, they are shown below it, with all digits.
#[test]
fn factors_without_room_beside_their_term_are_below_it() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/golden/gqa");
    let checkpoint = checkpoint::open(folder.as_ref()).unwrap();
    for size in [(60, 16), (80, 24), (120, 40)] {
        let backend = Cpu::default().with_precision(Precision::Q8 { group: 32 });
        let model = Model::load(&checkpoint, backend).unwrap();
        let mut desk = Desk::on(model, vec![1, 5, 9, 3, 7], None, "p0/L0/xq[t=2,h=1,c=3]", size);
        desk.key(KeyCode::Enter).key(KeyCode::PageDown);
        let screen = desk.screen();
        let factors: Vec<&str> =
            screen.lines().filter(|line| line.matches(" × ").count() == 2 && line.contains("0.0")).collect();
        assert!(factors.len() > 1, "{size:?}\n{screen}");
        assert!(factors.iter().all(|line| !line.contains('…')), "{size:?}\n{screen}");
    }
}

#[test]
fn terms_that_are_not_applied_have_a_heading() {
    let mut desk = Desk::at("p0/L1/softmax[h=2,t=3,k=1]", (200, 60));
    desk.key(KeyCode::Enter);
    let screen = desk.screen();
    let line = |text: &str| screen.lines().position(|line| line.contains(text)).unwrap();
    let heading = line("the others in that sum, each with its exponential");
    assert!(line("sum of all exponentials ") < heading && heading < line("k=2 ␣upon]"), "{screen}");
    desk.go("p0/L1/qk[h=2,t=3,k=3]");
    desk.shows("both tokens are at one position, 0 radians apart");
    desk.hides("pair 0, 0");
}

#[test]
fn enter_scrolls_to_the_chosen_operand_before_it_opens_it() {
    let mut desk = Desk::at("p0/L1/qk[h=2,t=3,k=1]", (80, 24));
    desk.key(KeyCode::Enter).key(KeyCode::PageDown).key(KeyCode::PageDown);
    assert!(!is_seen(&desk, (0, 0)), "{}", desk.screen());
    desk.key(KeyCode::Enter);
    assert_eq!(desk.address(), "p0/L1/qk[h=2,t=3,k=1]");
    assert!(is_seen(&desk, (0, 0)), "{}", desk.screen());
    desk.shows("Enter again goes to it");
    desk.key(KeyCode::Enter);
    assert_eq!(desk.address(), "p0/L1/xq_rope[t=3,h=2,c=9]");
}

#[test]
fn the_title_names_the_trace() {
    let mut desk = Desk::at("p0/L1/qk[h=2,t=3,k=1]", (80, 24));
    desk.hides("r.trace");
    desk.app = desk.app.with_origin(Origin { file: Some("r.trace".into()), drawing: None });
    desk.shows(" r.trace · ");
}

#[test]
fn terms_are_named_once_and_have_their_tokens_bars_and_shares() {
    let mut desk = Desk::at("p0/L1/qk[h=2,t=3,k=1]", (200, 60));
    desk.key(KeyCode::Enter);
    desk.shows("xq_rope[t=3 ␣a,h=2,c] × keys[k=1 Once,h=2,c]");
    desk.shows("15.763332 ██████████  27 %  c=9     2.4996138 ×    6.3063073");
    desk.shows("-3.4153893 ░░");
    desk.shows("content: both tokens at one position");
    desk.shows("pair 0, 2.0000 radians apart");
    desk.key(KeyCode::BackTab);
    assert_eq!(desk.app.focus(), Focus::Tensor);
    desk.go("p0/L1/attn_heads[t=3,h=2,c=5]");
    desk.shows("softmax[h=2,t=3 ␣a,k] × values[h=2,c=5,k]");
    desk.shows("k=1 Once");
    // Every factor is shown at every width. Two axes with the same index are written together: `d,i=81`.
    for size in [(80, 24), (160, 50), (200, 60)] {
        let mut desk = Desk::at("p0/L1/xv[t=3,g=1,c=9]", size);
        desk.key(KeyCode::Enter).key(KeyCode::Down).key(KeyCode::Down);
        desk.shows("d,i=81 ");
        desk.shows(" 1.406709 ×   -0.1796875");
    }
    // In a sum of different kinds of terms, each term has its own name.
    desk.go("p0/L1/attn_residual[t=3,d=5]");
    desk.shows("L0/ffn_residual[t=3 ␣a,d=5]");
}

#[test]
fn enter_leads_from_a_logit_to_the_embedding_and_backspace_back() {
    let mut desk = Desk::at("p1/logits[t=0,v=11]", (120, 40));
    desk.key(KeyCode::Enter);
    let mut way = vec![desk.address()];
    while desk.app.derivation().unwrap().weight.is_none() {
        desk.key(KeyCode::Enter);
        assert!(way.len() < 60, "{way:?}");
        if desk.app.derivation().unwrap().weight.is_none() {
            way.push(desk.address());
            desk.shows(&format!("› {}", desk.address()));
        }
    }
    assert!(way.last().unwrap().contains("/embedding["), "{way:?}");
    let id = desk.app.token(0).unwrap().id;
    desk.shows(&format!("› tok_embeddings[v={id},d="));
    desk.key(KeyCode::PageUp).key(KeyCode::PageUp).key(KeyCode::PageUp).shows("Weights are learned");
    desk.shows(&format!("│ id {id} {}", text::visible(&desk.app.token(0).unwrap().text)));
    desk.key(KeyCode::Enter);
    assert!(desk.app.message().unwrap().text.contains("Backspace goes back"));
    desk.key(KeyCode::Backspace);
    while let Some(address) = way.pop() {
        assert_eq!(desk.address(), address);
        desk.shows("recorded ");
        desk.key(KeyCode::Backspace);
    }
    assert!(desk.app.derivation().is_none(), "the last one closes it");
    let before = desk.app.place();
    desk.key(KeyCode::Backspace);
    assert_ne!(desk.app.place(), before, "without a derivation it is a step back");
}

#[test]
fn an_operand_is_chosen_by_arrows_or_clicks_and_stays_chosen() {
    let mut desk = Desk::at("p0/L1/qk[h=2,t=3,k=1]", (120, 40));
    desk.key(KeyCode::Enter).key(KeyCode::Down).key(KeyCode::Down).key(KeyCode::Right).key(KeyCode::Enter);
    assert_eq!(desk.address(), "p0/L1/keys[k=1,h=2,c=24]");
    desk.key(KeyCode::Backspace);
    assert_eq!((desk.address(), desk.app.chosen_operand()), ("p0/L1/qk[h=2,t=3,k=1]".into(), Some((2, 1))));
    // A first click chooses a term, and a second click goes to it.
    let screen = desk.screen();
    let (y, line) = screen.lines().enumerate().find(|(_, line)| line.contains("c=9 ")).unwrap();
    let x = line.chars().take_while(|c| *c != '×').count() + 4;
    let (column, row) = (u16::try_from(x).unwrap(), u16::try_from(y).unwrap());
    let kind = MouseEventKind::Down(MouseButton::Left);
    let click = Event::Mouse(MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE });
    desk.event(click.clone());
    assert_eq!(desk.app.chosen_operand(), Some((0, 1)));
    desk.event(click);
    assert_eq!(desk.address(), "p0/L1/keys[k=1,h=2,c=9]");
    // Another cell has another derivation, in which no term is chosen yet.
    desk.key(KeyCode::Tab).key(KeyCode::Tab).key(KeyCode::Tab);
    assert_eq!(desk.app.focus(), Focus::Tensor);
    desk.key(KeyCode::Left);
    desk.shows("recorded ");
    assert_eq!(desk.app.derivation().unwrap().chosen, None);
}

#[test]
fn the_trail_shows_the_path_of_enter_and_restarts_after_other_moves() {
    for moves in ["]", "n", "N", ".", "/xv⏎", "m a/xv⏎'a"] {
        let mut desk = Desk::at("p0/L1/qk[h=2,t=3,k=1]", (120, 40));
        desk.key(KeyCode::Enter).key(KeyCode::Enter);
        let there = desk.address();
        desk.shows(&format!("p0/L1/qk[h=2,t=3,k=1] › {there}"));
        for c in moves.chars().filter(|c| *c != ' ') {
            desk.key(if c == '⏎' { KeyCode::Enter } else { KeyCode::Char(c) });
        }
        let back = moves.contains('\'');
        assert_eq!(desk.address() == there, back, "{moves}");
        desk.shows("recorded ");
        desk.hides(" › ");
        desk.key(KeyCode::Backspace);
        assert!(desk.app.derivation().is_none(), "{moves}: nothing led here");
    }
}

#[test]
fn a_rotation_and_a_gate_are_drawn() {
    let mut desk = Desk::at("p0/L1/xq_rope[t=3,h=2,c=4]", (200, 60));
    desk.key(KeyCode::Enter).shows("rotated by position 3 ×");
    desk.shows("0.3000 radians, becomes (0.9378232, -0.11606577)");
    desk.shows("○ before (0.8616, -0.3880)  ● after (0.9378, -0.1161)");
    desk.shows("turned by 17.2°");
    desk.go("p0/L1/ffn_silu[t=3,f=2]");
    desk.shows("● gate -1.9740 → -0.2408");
}

#[test]
fn a_nucleus_says_what_it_keeps_and_what_it_removes() {
    let mut desk = Desk::at("p0/nucleus[v=11]", (200, 60));
    desk.key(KeyCode::Enter).shows("1024 tokens are possible; top-k 20 and top-p 0.9 keep 1 and remove");
    desk.shows("total");
    desk.shows("This token is number 1 of the kept ones;");
    desk.go("p0/nucleus[v=7]");
    desk.shows("This token cannot be sampled: top-");
}

/// A token's probability may be 0 only because e^x is too small for float32. The view then does not say that top-k or
/// top-p cut the token.
#[test]
fn the_sampler_marks_tokens_whose_probability_is_0_without_a_cut() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut desk = Desk::at("p0/probs", size);
        desk.choose("sampler");
        // Sets temperature 0.1, no top-k limit, and top-p 1.
        for (knob, right, times) in [("", false, 7), ("]", true, 8), ("]", true, 4)] {
            desk.keys(knob);
            for _ in 0..times {
                desk.key(if right { KeyCode::Right } else { KeyCode::Left });
            }
        }
        assert!(desk.app.message().unwrap().text.contains("top-p = 1 is the largest value"));
        let at = desk.app.draw_at(desk.app.sampler_trial().setting());
        let draw = desk.app.answers().get(&at).unwrap().unwrap().clone();
        let above = draw.tokens.iter().filter(|token| token.prob > 0.0).count();
        assert!(draw.setting.top_k == 0 && above < draw.vocab && above < 8, "{above}");
        desk.key(KeyCode::Down);
        desk.shows(&format!("below: prob 0 in float32; above: {above} tokens, sum 1 "));
        desk.shows(&format!("→ {above} above 0"));
        desk.hides("top-k cuts");
        let screen = desk.screen();
        let first = draw.tokens[above].id.to_string();
        let row = screen.lines().find(|line| line.contains(&format!(" {first} "))).unwrap();
        // The row says once that the token is cut: by the run's own top-k, and not by the tried settings.
        assert_eq!(row.matches("cut").count(), 1, "{screen}");
        // If top-k cuts tokens that could be sampled otherwise, the view says that top-k cuts them.
        desk.keys("[");
        for _ in 0..13 {
            desk.key(KeyCode::Left);
        }
        desk.shows("top-k cuts here: 1 kept");
    }
}

#[test]
fn the_go_to_line_opens_weights_by_address_and_steps_by_number() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut desk = Desk::at("p0/L2/softmax[h=2,t=3,k=1]", size);
        for (typed, named, place, about) in [
            ("/tok_embeddings[v=9,d=3]", "tok_embeddings[v=9,d=3]", "p0/embedding", " · id 9 "),
            ("/L1/wq[o=5,i=17]", "L1/wq[o=5,i=17]", "p0/L1/xq", " · learned"),
            ("/wo[o=5]", "L1/wo[o=5,i=0]", "p0/L1/attn_output", " · learned"),
            ("/ffn_norm.weight[d=7]", "L1/ffn_norm.weight[d=7]", "p0/L1/ffn_norm", " · learned"),
            ("/output_norm.weight[d=0]", "", "p0/L1/ffn_norm", ""),
        ] {
            desk.keys(typed).key(KeyCode::Enter);
            if named.is_empty() {
                assert!(desk.app.message().unwrap().failure, "{typed}");
                desk.key(KeyCode::Esc);
                continue;
            }
            assert!(desk.app.message().is_none(), "{:?}", desk.app.message());
            desk.shows(named);
            desk.shows(about);
            assert_eq!(desk.app.place().path(), place);
            let row = desk.app.derivation().unwrap().weight.clone().unwrap();
            assert!(desk.app.weight_values(&row).unwrap().is_ok());
            desk.key(KeyCode::Backspace);
            assert!(desk.app.derivation().is_none());
            assert_eq!(desk.app.place().path(), place);
        }
        desk.keys("/step 24").key(KeyCode::Enter);
        assert_eq!(desk.app.walk().number(desk.app.place()), 23);
        let first = desk.screen().lines().next().unwrap().to_owned();
        assert!(size.0 < 100 || first.contains("step 24 of "), "{first}");
    }
    // The program can also open at this address.
    let mut desk = Desk::at("L1/wq[o=5,i=17]", (120, 40));
    desk.shows("L1/wq[o=5,i=17] · learned");
    // Going to the next step ends the trail.
    desk.go("p0/L1/qk[h=2,t=3,k=1]");
    desk.key(KeyCode::Enter).key(KeyCode::Enter).shows(" › ");
    desk.keys("N");
    assert!(desk.app.message().unwrap().text.contains("Backspace cannot go further"));
}

/// Every number of every kind of stage has a derivation that gives the run's value, in every precision.
#[test]
fn every_step_has_a_derivation_that_gives_the_recorded_value() {
    for precision in [Precision::F32, Precision::Bf16, Precision::Q8 { group: 32 }] {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/golden/gqa");
        let checkpoint = checkpoint::open(folder.as_ref()).unwrap();
        let model = Model::load(&checkpoint, Cpu::default().with_precision(precision)).unwrap();
        let mut desk = Desk::on(model, vec![1, 5, 9, 3, 7], None, "p0/tokens[t=0]", (120, 40));
        desk.key(KeyCode::Enter);
        let steps = desk.app.walk().len();
        for pass in 0..2 {
            for number in 0..steps {
                let place = desk.app.walk().at(number);
                desk.go(&format!("p{pass}/{}", place.path().split_once('/').unwrap().1));
                let Some(Ok(explanation)) = desk.app.explanation() else { panic!("{}", desk.screen()) };
                let difference = explanation.difference().abs();
                assert!(difference <= 1e-5 * explanation.value.abs().max(1.0), "{explanation:?}");
                let shown = desk.app.tensor().unwrap().get(&desk.app.index());
                let value = match shown.unwrap() {
                    llama_trace::trace::frame::Number::F32(value) => f64::from(value),
                    llama_trace::trace::frame::Number::I64(value) => value as f64,
                };
                let same = value.to_bits() == explanation.value.to_bits() || value.is_nan();
                assert!(same, "{}: {value} and {}", desk.address(), explanation.value);
                desk.screen();
                if matches!(desk.app.place().step, Step::View(_)) {
                    continue;
                }
                desk.shows("recorded ");
            }
        }
    }
}
