//! The screens as pictures: text, and for some screens the colours as letters. The whole screens are compared, except
//! for the notes, whose text has other tests. A changed picture fails. `INSTA_UPDATE=always cargo test --test tui`
//! draws them again.

use std::collections::BTreeMap;

use llama_trace::picture::Paper;
use llama_trace::tui::palette::Palette;
use llama_trace::tui::theme::{Depth, Theme};
use llama_trace::tui::user_event::KeyCode;
use llama_trace::tui::view::Panels;
use llama_trace::tui::view::tensor::LOOK_FOR;
use ratatui::style::{Color, Modifier};

use crate::stage::{Stage, text_of};
use crate::synthetic::Synthetic;

pub(crate) const SIZES: [(u16, u16); 4] = [(80, 24), LIGHT, (120, 40), (200, 60)];
/// The size with a light background.
const LIGHT: (u16, u16) = (100, 30);

#[track_caller]
pub(crate) fn compare(name: &str, picture: &str) {
    let mut settings = insta::Settings::new();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, picture));
}

/// The screen up to the notes, without empty lines at the end.
fn text(stage: &Stage) -> String {
    let mut buffer = stage.buffer();
    let area = buffer.area;
    if let Some(notes) = Panels::new(&stage.app).notes.filter(|notes| notes.x > 30) {
        for y in 0..area.height {
            for x in notes.x..area.width {
                buffer[(x, y)].reset();
            }
        }
    }
    text_of(&buffer).trim_end().to_owned()
}

/// A letter for each combination of colours and style on the screen, with a legend. A dot for the default style.
pub(crate) fn colours(stage: &Stage) -> String {
    let buffer = stage.buffer();
    let mut looks: BTreeMap<String, char> = BTreeMap::new();
    let mut picture = String::new();
    for y in 0..buffer.area.height {
        let line: String = (0..buffer.area.width)
            .map(|x| {
                let cell = &buffer[(x, y)];
                if (cell.fg, cell.bg, cell.modifier) == (Color::Reset, Color::Reset, Modifier::empty()) {
                    return '.';
                }
                let look = format!("{} on {} {:?}", cell.fg, cell.bg, cell.modifier);
                let next = char::from_u32('a' as u32 + looks.len() as u32).unwrap();
                *looks.entry(look).or_insert(next)
            })
            .collect();
        picture += line.trim_end_matches('.');
        picture.push('\n');
    }
    for (look, letter) in looks {
        picture += &format!("{letter} {look}\n");
    }
    picture
}

/// The pictures: a view, a step that it shows, and the keys that open it.
const VIEWS: [(&str, &str, &str); 35] = [
    ("list", "tokens", ""),
    ("ranked", "logits", ""),
    ("nucleus", "nucleus", ""),
    ("heatmap", "softmax", ""),
    ("heatmap-signed", "xq", ""),
    ("numbers", "masked_scores", "2"),
    ("heads", "softmax", "3"),
    ("heads-signed", "xq", "3"),
    ("overview", "ffn_hidden", "3"),
    ("histogram", "scores", "5"),
    ("sampler", "probs", "@sampler"),
    ("flow", "xq_rope", "@flow"),
    ("flow-end", "ffn_residual", "@flow"),
    ("pass", "xq_rope", "@pass"),
    ("pass-end", "sampled", "@pass"),
    ("residual", "attn_residual", "@residual"),
    ("neurons", "ffn_hidden", "@neurons"),
    ("sampler-tried", "logits", "@sampler→→→]]←←←←jjj"),
    ("tokens", "tokens", "@tokens"),
    ("strip-surprise", "softmax", "T"),
    ("strip-attention", "softmax", "TT"),
    ("layers", "softmax", "6"),
    ("bars", "softmax", "7"),
    ("bars-signed", "scores", "7"),
    ("cache", "cache_k", "6"),
    ("rope", "xq_rope", "6"),
    ("rope-table", "rope_cos", "5"),
    ("help-found", "softmax", "?mark"),
    ("notes", "softmax", "i"),
    ("help", "softmax", "?"),
    ("go-to", "softmax", "/so"),
    ("go-to-synonym", "xq", "/induction"),
    ("help-synonym", "softmax", "?gqa"),
    ("neurons-by-effect", "ffn_hidden", "@neurons]"),
    ("view-list", "softmax", "v"),
];

/// Types `keys`. `@` and a name switch to that view.
fn typed<'a>(stage: &'a mut Stage, keys: &str) -> &'a mut Stage {
    let Some(keys) = keys.strip_prefix('@') else { return stage.keys(keys) };
    let (view, keys) = keys.split_at(keys.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(keys.len()));
    stage.choose(view);
    stage.keys(keys)
}

/// Draws a view at this size and with this number of colours. At 100x30 the background is light.
fn picture(step: &str, keys: &str, size: (u16, u16), depth: Depth) -> Stage {
    let paper = if size == LIGHT { Paper::Light } else { Paper::Dark };
    let mut stage = Stage::on(step, size, Theme::new(depth).with(Palette::default(), paper));
    typed(&mut stage, keys);
    stage
}

#[test]
fn every_view_at_every_size() {
    for size in SIZES {
        for (view, step, keys) in VIEWS {
            let stage = picture(step, keys, size, Depth::True);
            compare(&format!("{view}-{}x{}", size.0, size.1), &text(&stage));
        }
    }
    compare("heatmap-60x16", &text(&Stage::sized("softmax", (60, 16), Depth::True)));
    compare("sampled-80x24", &text(&Stage::at("sampled")));
}

/// At the two smaller sizes, the pictures also have the colours as letters, on a dark and on a light background.
#[test]
fn every_view_with_sixteen_colours_at_every_size() {
    for size in SIZES {
        for (view, step, keys) in VIEWS {
            let stage = picture(step, keys, size, Depth::Ansi);
            let letters = if size <= LIGHT { format!("\n\n{}", colours(&stage)) } else { String::new() };
            let name = format!("{view}-16-colours-{}x{}", size.0, size.1);
            compare(&name, &format!("{}{letters}", text(&stage)));
        }
    }
}

#[test]
fn every_view_without_colour_at_every_size() {
    for size in SIZES {
        let others = [("masked_scores", "masked_scores", ""), ("xq", "xq", "")];
        for (view, step, keys) in VIEWS.into_iter().chain(others) {
            let stage = picture(step, keys, size, Depth::None);
            compare(&format!("{view}-no-colour-{}x{}", size.0, size.1), &text(&stage));
        }
    }
}

/// On a light background, no text has a colour that is unreadable there.
#[test]
fn on_a_light_background_no_text_is_bright() {
    for (view, step, keys) in VIEWS {
        for depth in [Depth::Ansi, Depth::Indexed, Depth::True] {
            let stage = picture(step, keys, LIGHT, depth);
            for cell in &stage.buffer().content {
                let bright = matches!(
                    cell.fg,
                    Color::Yellow
                        | Color::LightYellow
                        | Color::Cyan
                        | Color::LightCyan
                        | Color::White
                        | Color::Gray
                );
                let reversed = cell.modifier.contains(Modifier::REVERSED);
                let unseen = bright && cell.bg == Color::Reset && !reversed && cell.symbol() != " ";
                assert!(!unseen, "`{}` in {view}, {depth:?}\n{}", cell.symbol(), stage.screen());
            }
        }
    }
}

/// With any number of colours, the cursor differs from every possible value. It has brackets, or, in a coloured cell
/// with a number, the number is reversed.
#[test]
fn the_cursor_differs_from_every_value() {
    for depth in [Depth::None, Depth::Ansi, Depth::Indexed, Depth::True] {
        for (step, width) in [
            ("softmax", 60),
            ("softmax", 80),
            ("masked_scores", 80),
            ("xq", 80),
            ("xq", 160),
            ("rope_cos", 200),
        ] {
            let mut stage = Stage::sized(step, (width, 24), depth);
            stage.keys("kk");
            let buffer = stage.buffer();
            let grid = stage.app.layout().unwrap();
            let (area, coloured) = (grid.area, depth > Depth::Ansi);
            grid.each_cell(&stage.app, |row, column, x, y| {
                let cell: String =
                    (0..grid.cell).map(|i| buffer[(area.x + x + i, area.y + y)].symbol()).collect();
                let reversed = (0..grid.cell)
                    .any(|i| buffer[(area.x + x + i, area.y + y)].modifier.contains(Modifier::REVERSED));
                let (brackets, number) = (cell.contains('[') && cell.ends_with(']'), grid.cell >= 5);
                let expected = match ((row, column) == grid.cursor, coloured && number) {
                    (false, _) => !brackets && !reversed,
                    (true, false) => brackets && !reversed,
                    (true, true) => reversed && cell.contains(|c: char| c.is_ascii_digit()),
                };
                assert!(expected, "`{cell}` at {row}, {column} of {step}, {depth:?}\n{}", stage.screen());
            });
        }
    }
}

/// One value that is a thousand times as large as the others does not change their colours. It is counted and marked.
#[test]
fn an_outlier_does_not_change_the_other_colours_and_is_counted() {
    for depth in [Depth::None, Depth::True] {
        let mut source = Synthetic::new();
        source.outlier = Some(4000.0);
        let mut stage = Stage::new(source, (120, 40), depth);
        stage.keys("/L1/ffn_hidden[t=0,f=0]");
        stage.key(KeyCode::Enter);
        stage.shows("≥");
        stage.shows(" · usual in all values  ▲▼ 1");
        let span = stage.app.span().unwrap();
        assert!(span.high < 4.0 && span.clipped == 1, "{span:?}");
        let screen = stage.screen();
        let (values, _) = screen.split_once(LOOK_FOR).unwrap_or((&screen, ""));
        assert_eq!(values.matches('▲').count(), 2, "the cell and the legend\n{}", stage.screen());
        stage.keys("s").shows("±3 std");
        stage.keys("s").shows("to the largest");
        assert_eq!(stage.app.span().unwrap().clipped, 0);
        stage.shows(" 4000 · to the largest");
    }
}

/// If no value is further than three deviations, the legend says so. Otherwise it does not.
#[test]
fn the_legend_says_whether_values_exceed_three_deviations() {
    let mut source = Synthetic::new();
    source.outlier = Some(40.0);
    let mut stage = Stage::new(source, (120, 40), Depth::True);
    stage.keys("/L1/ffn_hidden").key(KeyCode::Enter);
    stage.keys("s").shows("±3 std  ▲▼ 1 beyond");
    stage.keys("/L1/ffn_up").key(KeyCode::Enter);
    stage.shows("all (within 3 std)");
}

#[test]
fn a_mark_does_not_change_bars_and_values() {
    for width in 60..=200 {
        let stage = Stage::sized("logits", (width, 30), Depth::True);
        let screen = stage.screen();
        let bar = |rank: &str| {
            let row = screen.lines().find(|line| line.contains(rank)).unwrap();
            row.chars().filter(|c| "█▉▊▋▌▍▎▏".contains(*c)).count()
        };
        // The sampled token is the third in the list. The mark does not change its bar, which is not longer than the
        // second and not shorter than the fourth.
        assert!(screen.contains("20 ␣w") && screen.contains('←'), "{screen}");
        assert!((bar("   4   27")..=bar("   2   13")).contains(&bar("   3   20")), "{width}\n{screen}");
        assert!(screen.contains("2.9179"), "{width}\n{screen}");
    }
}

#[test]
fn a_nucleus_says_how_many_stay_and_folds_the_zeros() {
    let mut stage = Stage::at("nucleus");
    let stay = stage.app.kept().unwrap().clone();
    let all = stage.app.shape()[0];
    assert!(stay.positive > 2 && stay.positive < all);
    stage.shows(&format!("of {} stay; the other {} are 0", all, all - stay.positive));
    stage.shows("sum 1.0000");
    stage.keys("$");
    assert_eq!(stage.app.index(), [stage.app.ranked(stay.positive - 1).unwrap() as usize]);
    // Sorted by id, all tokens are listed, including those with probability 0.
    stage.keys("1").shows("vocab 64");
    stage.keys("$");
    stage.shows("p0/nucleus[v=63] = 0");
}

/// The notes are next to the tensor only if the tensor keeps 55 columns. Otherwise `i` switches between the two.
#[test]
fn the_notes_leave_enough_columns_for_the_tensor() {
    for width in 60..=200 {
        let mut stage = Stage::sized("softmax", (width, 30), Depth::True);
        let panels = Panels::new(&stage.app);
        let tensor = panels.middle.unwrap();
        match panels.notes {
            Some(_) => assert!(tensor.width >= 55, "{width}"),
            None => {
                stage.shows("i: notes");
                stage.keys("i").shows("softmax[h, t, k] = ");
                stage.shows("i: tensor");
                stage.keys("i").shows("head 2 of 0-3");
            }
        }
        assert!(tensor.width >= 55 || panels.notes.is_none());
    }
}

/// Each absent stage has its own reason.
#[test]
fn each_absent_stage_has_its_own_reason() {
    let mut stage = Stage::at("softmax");
    for (name, reason) in [
        ("attn_norm_q8", "this run has no attn_norm_q8: it computes in f32"),
        ("L0/ffn_hidden_scale", "this run has no ffn_hidden_scale: it computes in f32"),
        ("xk_norm", "the model has no xk_norm: it does not normalise queries and keys"),
    ] {
        stage.keys("/").keys(name);
        stage.key(KeyCode::Enter);
        assert!(stage.message().starts_with(reason), "{}", stage.message());
        stage.key(KeyCode::Esc);
    }
    stage.keys("t").wait();
    stage.keys("/masked_scores[k=0]");
    stage.key(KeyCode::Enter);
    let reason = "pass 1 has no masked_scores: it reads 1 token, and nothing is hidden from it";
    assert_eq!(stage.message(), reason);
}
