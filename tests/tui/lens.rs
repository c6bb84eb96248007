//! The model's answer after each layer, and each head's contribution to the answer, as views of a real model.

use llama_trace::tui::user_event::KeyCode;

use llama_trace::tui::theme::Depth;

use crate::desk::Desk;
use crate::stage::Stage;
use crate::synthetic::Synthetic;

#[test]
fn the_lens_shows_the_prediction_of_each_layer() {
    let mut desk = Desk::at("p0/L2/ffn_residual[t=4,d=0]", (120, 36));
    desk.keys("3");
    assert_eq!(desk.app.view().name(), "lens");
    desk.shows("layer 2 ");
    desk.shows("after layer 2, token 4 ␣time");
    desk.shows(" 1. ␣time          0.4828");
    desk.shows(" 2. ,              0.3759");
    desk.shows("the last layer answers \",\": rank 2 here, 0.3759");
    desk.shows("this answer leads from layer 3 on");
    desk.key(KeyCode::Down);
    assert_eq!(desk.app.place().layer, Some(3), "the arrow key goes to the next layer");
    desk.shows("the last layer answers \",\": rank 1 here, 0.9999");
    desk.key(KeyCode::Left).shows("after layer 3, token 3 ␣a");
    // On a screen with few rows, the cells are still shown.
    let mut low = Desk::at("p0/L2/ffn_residual[t=4,d=0]", (60, 16));
    low.keys("3").shows("layer 2");
}

#[test]
fn attribution_splits_an_answer_and_enter_opens_a_part() {
    let mut desk = Desk::at("p0/logits[t=4,v=11]", (120, 36));
    desk.choose("attribution");
    desk.shows("logit of , − logit of ␣day = 9.4921");
    desk.shows("L3/ffn       6.7363 ████████████████████████");
    desk.shows("L1/h0       -1.3976 ░░░░░");
    desk.shows("all parts sum to 9.4921");
    desk.shows("embedding added -0.0785");
    desk.key(KeyCode::Down).key(KeyCode::Down).key(KeyCode::Right).shows("L1/h1 added -0.1171");
    desk.key(KeyCode::Enter);
    assert!(desk.address().starts_with("p0/L1/attn_heads[t=4,h=1,"), "{}", desk.address());
    // In the view `largest`, the user chooses another rival token.
    desk.go("p0/logits[t=4,v=11]");
    desk.choose("largest");
    desk.key(KeyCode::Home).key(KeyCode::Down).key(KeyCode::Down);
    let third = desk.screen().lines().find(|line| line.contains("   3 ")).unwrap().to_owned();
    desk.choose("attribution");
    let text = third.split_whitespace().skip_while(|word| *word != "3").nth(2).unwrap();
    desk.shows(&format!("logit of , − logit of {text} = "));
}

#[test]
fn the_strongest_units_come_first_with_the_tokens_that_they_raise_and_lower() {
    let mut desk = Desk::at("p0/L1/ffn_hidden[t=4,f=0]", (120, 36));
    desk.choose("neurons");
    desk.shows("unit 319, rank 1 of 384 by |hidden|");
    desk.shows("1.4586 ␣present");
    desk.shows("-1.1315 ␣ne");
    assert_eq!(desk.address(), "p0/L1/ffn_hidden[t=4,f=319]");
    desk.key(KeyCode::Down).shows("unit 332, rank 2 of 384 by |hidden|");
    // The next stage shows the same unit, and Enter explains its number.
    desk.keys("ppp").key(KeyCode::Enter).shows("p0/L1/ffn_gate[t=4,f=332]");
    desk.shows("ffn_gate[t, f] = Σ_d ffn_norm[t, d] · w1[f, d]");
}

/// `]` sorts by the effect on the predicted token's logit, and says which token that is.
#[test]
fn units_are_sorted_by_their_effect_on_the_predicted_token() {
    let mut desk = Desk::at("p0/L3/ffn_hidden[t=4,f=0]", (120, 36));
    desk.choose("neurons").hides("effect (v");
    desk.shows("] [ sort");
    desk.keys("]").shows("units by |effect| on ,");
    desk.shows("rank 1 of 384 by |effect|");
    desk.shows("+ − effect: hidden·Σ w2[d,f]·norm[d]·output[v,d]/rms");
    // The numbers in the column of the effects become smaller, whatever their signs.
    let screen = desk.screen();
    let at = screen.lines().position(|line| line.contains("hidden   effect")).unwrap();
    let heading = screen.lines().nth(at).unwrap();
    let (before, _) = heading.split_once("hidden   effect").unwrap();
    let end = before.chars().count() + "hidden   effect".len();
    let lines = screen.lines().skip(at + 1).map_while(|line| {
        let cell: String = line.chars().take(end).skip(end - 8).collect();
        cell.trim().parse::<f64>().ok()
    });
    let effects: Vec<f64> = lines.collect();
    assert!(effects.len() > 8, "{screen}");
    assert!(effects.windows(2).all(|two| two[0].abs() >= two[1].abs()), "{effects:?}");
    // The first unit raises the predicted token's logit by the number in its row.
    let first = effects[0];
    let below: Vec<&str> = screen.lines().skip_while(|line| !line.contains("rank 1 of")).collect();
    let row = below.iter().find(|line| line.split_whitespace().any(|word| word == ",")).unwrap();
    assert!(row.contains(&format!("{first:.4} ,")), "{first}\n{screen}");
    desk.keys("[").shows("by |hidden|");
    // On a narrow screen the effects take the place of the tokens.
    let mut narrow = Desk::at("p0/L3/ffn_hidden[t=4,f=0]", (80, 24));
    narrow.choose("neurons").keys("]").shows("hidden   effect");
    narrow.shows("by |effect|");
    narrow.shows("+ − effect");
}

/// If the source has no weights, as a trace without its model, the views that need weights show a complete message.
#[test]
fn views_that_need_weights_say_so_without_weights() {
    for (size, step, view) in [
        ((80, 24), "L1/ffn_residual", "lens"),
        ((120, 40), "L1/ffn_residual", "lens"),
        ((80, 24), "logits", "attribution"),
        ((200, 60), "logits", "attribution"),
    ] {
        let mut stage = Stage::new(Synthetic::new(), size, Depth::None);
        stage.keys("/").keys(step);
        stage.key(KeyCode::Enter);
        stage.choose(view);
        stage.wait();
        stage.shows("There are no values to show:");
        stage.shows("weights");
    }
    let mut stage = Stage::sized("ffn_up", (80, 24), Depth::None);
    stage.choose("neurons");
    stage.keys("]").shows("The units cannot be sorted by |effect|: it has no");
    stage.keys("]").shows("rank 1 of 48 by |hidden|");
}

/// These views open on the last token, even if another token was chosen at another step. The reason is that a pass
/// predicts the token after its last one.
#[test]
fn logits_attribution_and_units_open_on_the_last_token() {
    let last = |desk: &Desk, step: &str| {
        let address = desk.address();
        assert!(address.starts_with(&format!("p0/{step}[t=4,")), "{address}");
    };
    let view = |desk: &mut Desk, name: &str| {
        desk.choose(name);
    };
    let mut desk = Desk::at("p0/final_norm[t=1,d=0]", (120, 36));
    desk.keys("n");
    last(&desk, "logits");
    desk.shows("is next");
    let first = desk.screen().lines().find(|line| line.contains("  1 ")).unwrap().to_owned();
    assert!(
        first.contains(','),
        "the first token of the list is not the one that the strip calls next: {first}"
    );
    view(&mut desk, "attribution");
    desk.shows("logit of , −");
    // This holds for every way to get there, and each time.
    for keys in ["/logits", ":p0/logits"] {
        desk.go("p0/L2/attn_residual[t=2,d=3]");
        desk.keys(keys).key(KeyCode::Enter);
        last(&desk, "logits");
    }
    // A token that the user chose there stays chosen in every view.
    desk.go("p0/logits[t=2]");
    assert!(desk.address().starts_with("p0/logits[t=2,"), "{}", desk.address());
    view(&mut desk, "attribution");
    assert!(desk.address().starts_with("p0/logits[t=2,"), "{}", desk.address());
    desk.go("p0/L1/ffn_hidden[t=1,f=0]");
    view(&mut desk, "neurons");
    last(&desk, "L1/ffn_hidden");
    desk.key(KeyCode::Left);
    assert!(desk.address().starts_with("p0/L1/ffn_hidden[t=3,"), "{}", desk.address());
    desk.keys("p");
    assert!(desk.address().starts_with("p0/L1/ffn_up[t=3,"), "the same view goes on: {}", desk.address());
    desk.go("p0/L0/xq[t=0,h=0,c=0]");
    desk.keys("/ffn_gate").key(KeyCode::Enter);
    last(&desk, "L0/ffn_gate");
}
