//! Checks that a screen is not ambiguous: an index and its range, a position in the text, and the meaning of a mark.

use std::collections::BTreeSet;

use llama_trace::backend::cpu::Cpu;
use llama_trace::model::Model;
use llama_trace::tui::theme::Depth;
use llama_trace::tui::user_event::KeyCode;

use crate::desk::Desk;
use crate::stage::Stage;
use crate::synthetic::Synthetic;

/// Switches to the view of this name.
fn view(desk: &mut Desk, name: &str) {
    desk.choose(name);
}

/// A run of this many tokens, without texts.
fn long(tokens: u32, address: &str, size: (u16, u16)) -> Desk {
    let model = Model::load(&llama_trace::builtin::open().unwrap(), Cpu::default()).unwrap();
    Desk::on(model, (1..=tokens).collect(), None, address, size)
}

/// The caption: the line below the stage's name.
fn caption(stage: &Stage) -> String {
    stage.screen().lines().nth(4).unwrap().to_owned()
}

/// An index that is counted from 0 is never followed by "of" and a count. For example, "3 of 4" for the last of 4
/// indices would look as if one more index followed.
#[test]
fn an_index_is_shown_with_its_range() {
    let mut seen = BTreeSet::new();
    let names = ["head", "token", "query", "key", "layer", "sequence", "pass", "dim", "pair"];
    for size in [(80, 24), (200, 60)] {
        let mut stage = Stage::new(Synthetic::with_switches(), size, Depth::None);
        // The notes contain other numbers.
        stage.keys("F");
        for number in 0..stage.app.walk().len() {
            let place = stage.app.walk().at(number);
            if place.layer.is_some_and(|layer| layer != 1) {
                continue;
            }
            stage.keys(&format!("/{}", place.path())).key(KeyCode::Enter);
            for keys in ["2", "a", "3", "4", "5", "a", "6", "7", "8"] {
                let screen = stage.keys(keys).screen();
                let words: Vec<&str> = screen.split_whitespace().collect();
                for four in words.windows(4).filter(|four| names.contains(&four[0]) && four[2] == "of") {
                    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
                    if number(four[1]) && four[3].starts_with(|c: char| c.is_ascii_digit()) {
                        assert!(four[3].starts_with("0-"), "{four:?}\n{screen}");
                        seen.insert(four[0].to_owned());
                    }
                }
            }
        }
    }
    let all = ["head", "layer", "query", "token"].map(str::to_owned);
    assert!(all.iter().all(|name| seen.contains(name)), "{seen:?}");
}

/// A row of a decode pass is row 0 of its pass, and it has a position among all tokens. The screen shows both numbers
/// or neither of them.
#[test]
fn a_row_of_a_decode_pass_has_its_index_and_its_position() {
    let mut desk = Desk::at("p1/L1/softmax[h=0,t=0,k=2]", (120, 40));
    desk.shows("position ↓");
    desk.shows("p1/L1/softmax[h=0,t=0,k=2] = ");
    desk.shows(" (position 5) → key ␣upon");
    for name in ["numbers", "bars", "heads", "overview"] {
        view(&mut desk, name);
        desk.shows("(position 5)");
    }
    view(&mut desk, "bars");
    desk.shows("query 0 (position 5)");
    desk.hides("query 0 of");
    for (address, name) in [
        ("p1/L1/xq[t=0,h=1,c=3]", "heatmap"),
        ("p1/L1/xq_rope[t=0,h=1,c=3]", "rope"),
        ("p1/L1/ffn_hidden[t=0,f=3]", "neurons"),
        ("p1/L1/attn_residual[t=0,d=3]", "residual"),
        ("p1/final_norm[t=0,d=3]", "heatmap"),
        ("p1/tokens[t=0]", "list"),
        ("p1/tokens[t=0]", "tokens"),
    ] {
        desk.go(address);
        view(&mut desk, name);
        desk.shows("(position 5)");
    }
    for (address, told) in
        [("p1/L1/attn_residual[t=0,d=3]", "residual"), ("p1/L1/ffn_up[t=0,f=3]", "neurons")]
    {
        desk.go(address);
        view(&mut desk, told);
        desk.shows("token 0 (position 5) ");
    }
    desk.go("p1/L1/xq[t=0,h=1,c=3]");
    view(&mut desk, "heatmap");
    desk.keys("aa").shows("token 0 (position 5)");
    desk.key(KeyCode::Enter).shows("token 0 (position 5) ");
    // In the first pass the two are equal.
    desk.go("p0/L1/softmax[h=0,t=3,k=2]");
    desk.hides("position");
}

/// If a character stands for several values, the caption says how many.
#[test]
fn a_small_map_says_how_many_values_a_character_shows() {
    let mut stage = Stage::sized("softmax", (80, 24), Depth::None);
    stage.keys("3");
    assert!(caption(&stage).contains("↓ token, 2 per cell"), "{}", stage.screen());
    let mut stage = Stage::sized("softmax", (200, 60), Depth::None);
    stage.keys("3");
    assert!(!caption(&stage).contains(" per cell"), "{}", stage.screen());

    for (size, each, columns) in [((120, 40), 2, 16), ((230, 60), 1, 32)] {
        let mut desk = Desk::at("p0/L1/cache_k[k=0,g=0,c=0]", size);
        view(&mut desk, "cache");
        let screen = desk.screen();
        let caption = screen.lines().nth(4).unwrap().split('│').nth(1).unwrap();
        let told =
            caption.split_once("→ head dim, ").map_or("1", |(_, told)| told.split(' ').next().unwrap());
        assert_eq!(told, each.to_string(), "{screen}");
        let row = screen.lines().find(|line| line.contains("2048 ") && line.contains("p0+")).unwrap();
        let marks = row.split("2048 ").nth(1).unwrap().split(['│', ' ']).next().unwrap();
        assert_eq!(marks.chars().count(), columns, "{row}");
    }
}

#[test]
fn a_diagram_names_the_tokens_and_the_head_of_its_boxes() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut stage = Stage::sized("attn_norm", size, Depth::None);
        stage.choose("flow");
        assert!(caption(&stage).contains("all tokens, head 2 "), "{}", caption(&stage));
        // At this step, the caption has the chosen head and its range.
        let mut stage = Stage::sized("xq", size, Depth::None);
        stage.choose("flow");
        assert!(caption(&stage).contains("head 2 of 0-3"), "{}", caption(&stage));
        assert!(caption(&stage).contains("all tokens"), "{}", caption(&stage));
    }
    // If the stage has very many values, only some rows are computed, and the caption says which.
    let mut desk = long(18, "p0/logits[t=17,v=3]", (120, 40));
    view(&mut desk, "pass");
    desk.shows("this box: token 16-17");
}

/// The overview shows the tokens of the rows if there is room next to the values. The tokens never take room from the
/// values.
#[test]
fn the_overview_shows_tokens_if_there_is_room() {
    let mut desk = Desk::at("p0/L1/softmax[h=0,t=4,k=4]", (120, 40));
    view(&mut desk, "overview");
    for row in ["1 Once ", "2 ␣upon ", "3 ␣a ", "4 ␣time "] {
        desk.shows(row);
    }
    // 384 columns fill a narrow screen.
    let mut desk = Desk::at("p0/L1/ffn_up[t=4,f=4]", (80, 24));
    view(&mut desk, "overview");
    let body = desk.screen().lines().skip(5).collect::<Vec<_>>().join("\n");
    assert!(!body.contains("2 ␣upon"), "{body}");
}

/// The legend of a heatmap explains the sign `…`, but only if a cell has this sign.
#[test]
fn the_legend_explains_numbers_without_room() {
    let mut seen = BTreeSet::new();
    for width in (60..200).step_by(2) {
        for depth in [Depth::None, Depth::True] {
            for step in ["softmax", "scores"] {
                let stage = Stage::sized(step, (width, 30), depth);
                let (layout, buffer) = (stage.app.layout().unwrap(), stage.buffer());
                let first = layout.area.x + layout.label;
                let mut cut = false;
                layout.each_cell(&stage.app, |_, _, x, y| {
                    let cells = layout.area.x + x..layout.area.x + x + layout.cell;
                    cut |= cells.clone().any(|x| buffer[(x, layout.area.y + y)].symbol() == "…");
                });
                assert!(first < width);
                assert_eq!(stage.screen().contains("… not 0"), cut, "{}", stage.screen());
                seen.insert(cut);
            }
        }
    }
    assert_eq!(seen.len(), 2, "the widths must include screens with and without the sign");
}

/// If the strip shows the attention of a query, it names the query.
#[test]
fn the_strip_names_the_query_of_its_attention() {
    let strip = |stage: &Stage| stage.screen().lines().nth(1).unwrap().to_owned();
    for (width, told) in [
        (200, "after each token, its weight for query L1 h2 t11: ░≥0.05"),
        (120, " attention L1 h2 t11 ░≥0.05"),
        (80, " L1 h2 t11 ░≥0.05"),
    ] {
        let mut stage = Stage::sized("softmax", (width, 40), Depth::None);
        stage.keys("TT");
        assert!(strip(&stage).contains(told), "{}", strip(&stage));
        assert!(stage.message().contains("each mark belongs to the token before it"), "{}", stage.message());
        stage.keys("]k");
        assert!(strip(&stage).contains("L1 h3 t10"), "{}", strip(&stage));
        stage.keys("/logits").key(KeyCode::Enter);
        assert!(strip(&stage).ends_with("attention: no layer here"), "{}", strip(&stage));
    }
    let mut stage = Stage::sized("softmax", (200, 40), Depth::None);
    stage.keys("T");
    assert!(strip(&stage).contains("after each token, its −log p: ░≥1"), "{}", strip(&stage));
    assert!(stage.message().contains("each mark belongs to the token before it"), "{}", stage.message());
}

/// If the user goes to another token, the list of units stays scrolled to the same line.
#[test]
fn the_list_of_units_keeps_its_scroll_position_at_another_token() {
    let mut desk = Desk::at("p0/L1/ffn_hidden[t=4,f=0]", (120, 40));
    view(&mut desk, "neurons");
    let first = |desk: &Desk| desk.app.layout().unwrap().visible_rows(&desk.app).start;
    for (keys, rank) in [("h", 0), ("h", 0), ("jjl", 2), ("h", 2), ("l", 2)] {
        desk.keys(keys);
        let layout = desk.app.layout().unwrap();
        assert_eq!((first(&desk), layout.cursor.0), (0, rank), "{keys}\n{}", desk.screen());
        let unit = desk.app.index()[1];
        desk.shows(&format!("unit {unit}, rank {} of 384 by |hidden|", rank + 1));
    }
    // A named unit stays chosen, whatever its rank is.
    desk.go("p0/L1/ffn_hidden[t=2,f=5]");
    assert_eq!(desk.app.index(), [2, 5]);
}
