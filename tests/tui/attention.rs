//! The display of attention: the cell at which a tensor opens, the map of all heads, bars, and the rows of earlier
//! passes.

use llama_trace::tui::app::App;
use llama_trace::tui::theme::Depth;
use llama_trace::tui::user_event::{Event, KeyCode, KeyEvent, KeyModifiers};

use crate::desk::Desk;
use crate::shown::{is, read_text, real};
use crate::stage::Stage;
use crate::synthetic::wide;

/// The attention matrix of the chosen head, (query, key).
fn matrix(app: &App) -> Vec<Vec<f64>> {
    let (tensor, index, shape) = (app.tensor().unwrap(), app.index(), app.shape());
    let row = |t: usize| (0..shape[2]).map(|k| real(tensor.get(&[index[0], t, k]).unwrap())).collect();
    (0..shape[1]).map(row).collect()
}

#[test]
fn attention_opens_at_the_largest_key_and_the_cell_stays_at_other_heads_and_layers() {
    let mut stage = Stage::at("softmax");
    let [head, query, key] = stage.app.index()[..] else { panic!("three axes") };
    let row = &matrix(&stage.app)[query];
    assert_eq!((head, query), (2, 11), "the last query");
    let largest = row.iter().copied().fold(0.0, f64::max);
    assert_eq!(row[key], largest, "{row:?}");
    assert_ne!(key, 0, "the first key would be no news");
    for keys in ["]", "N", "[", "P", "p", "n"] {
        stage.keys(keys);
        assert_eq!(stage.app.index()[1..], [query, key], "after {keys}");
    }
    // A key that the user has chosen stays chosen.
    let mut stage = Stage::at("cache_k");
    stage.keys("jj/softmax").key(KeyCode::Enter);
    assert_eq!(stage.app.index()[2], 2);
    let mut stage = Stage::at("xq");
    stage.keys("/softmax[k=0]").key(KeyCode::Enter);
    assert_eq!(stage.app.index()[2], 0);
    // If a query was chosen before, the cursor goes to the key with the largest value of this query.
    let mut stage = Stage::at("xq");
    stage.keys("kkk/softmax").key(KeyCode::Enter);
    let row = &matrix(&stage.app)[8];
    assert_eq!(stage.app.index()[1], 8);
    assert_eq!(row[stage.app.index()[2]], row.iter().copied().fold(0.0, f64::max));
}

#[test]
fn an_address_without_a_key_never_opens_a_masked_key() {
    let mut stage = Stage::at("softmax");
    stage.keys("/softmax[t=11,k=9]").key(KeyCode::Enter);
    for at in ["softmax[t=3]", "L2/masked_scores[t=5]", "qk[t=2,h=1]", "L0/scores[t=7]"] {
        stage.keys("/softmax[t=11,k=9]").key(KeyCode::Enter);
        stage.keys(&format!("/{at}")).key(KeyCode::Enter);
        let [_, query, key] = stage.app.index()[..] else { panic!("three axes") };
        let seen = &matrix(&stage.app)[query][..=query];
        assert!(at.contains(&format!("t={query}")) && key <= query, "{at}: {query} {key}");
        assert_eq!(seen[key], seen.iter().copied().fold(f64::NEG_INFINITY, f64::max), "{at}: {seen:?}");
    }
    // A visible key stays chosen, and so does a key that the address names.
    for (at, key) in [("softmax[t=10]", 9), ("softmax[t=3,k=7]", 7)] {
        stage.keys("/softmax[t=11,k=9]").key(KeyCode::Enter);
        stage.keys(&format!("/{at}")).key(KeyCode::Enter);
        assert_eq!(stage.app.index()[2], key, "{at}");
    }
    // Alt-← returns to a cell even if its key is masked.
    stage.keys("/ffn_up").key(KeyCode::Enter);
    stage.event(Event::Key(KeyEvent::new(KeyCode::Left, KeyModifiers::ALT)));
    assert_eq!(stage.app.index()[1..], [3, 7]);
}

#[test]
fn attention_opens_with_the_diagonal_visible() {
    let mut stage = Stage::sized("softmax", (60, 16), Depth::True);
    let layout = stage.app.layout().unwrap();
    if layout.visible_columns(&stage.app).len() < layout.columns {
        assert!(layout.visible_columns(&stage.app).contains(&11), "{}", stage.screen());
    }
    stage.keys("2");
    let layout = stage.app.layout().unwrap();
    assert!(layout.visible_columns(&stage.app).contains(&stage.app.index()[2]));
}

#[test]
fn the_map_of_heads_shows_attention_one_token_back_and_enter_opens_a_head() {
    let mut stage = Stage::sized("softmax", (120, 40), Depth::None);
    let (mut backs, mut most) = (Vec::new(), Vec::new());
    for layer in 0..3 {
        for head in 0..4 {
            stage.keys(&format!("/L{layer}/softmax[h={head}]")).key(KeyCode::Enter);
            let matrix = matrix(&stage.app);
            let mean = |of: &dyn Fn(usize) -> f64| {
                (1..matrix.len()).map(of).sum::<f64>() / (matrix.len() - 1) as f64
            };
            let back = mean(&|t| matrix[t][t - 1]);
            let all = [('P', back), ('F', mean(&|t| matrix[t][0])), ('S', mean(&|t| matrix[t][t]))];
            let (letter, share) = all.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
            most.push((format!("{letter} {share:.2}"), layer, head));
            backs.push((back, layer, head));
        }
    }
    stage.choose("layers");
    stage.shows("softmax[h, t, p − 1]");
    stage.shows(" over the 11 queries");
    let layout = stage.app.layout().unwrap();
    let buffer = stage.buffer();
    layout.each_cell(&stage.app, |layer, head, x, y| {
        let (x, y) = (layout.area.x + x, layout.area.y + y);
        let told: String = (x..x + layout.cell - 1).map(|x| buffer[(x, y)].symbol()).collect();
        let (largest, ..) = most.iter().find(|(_, l, h)| (*l, *h) == (layer, head)).unwrap();
        assert_eq!(told.trim(), largest, "L{layer} h{head}\n{}", stage.screen());
    });
    backs.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (back, layer, head) = backs[0];
    stage.shows(&format!("P previous token L{layer} h{head} {back:.2}"));
    stage.keys("/L0/softmax[h=0,t=7,k=3]").key(KeyCode::Enter);
    stage.keys("jl");
    assert_eq!((stage.app.place().layer, stage.app.index()[0]), (Some(1), 1));
    stage.key(KeyCode::Enter);
    assert_eq!(stage.app.view().name(), "heatmap");
    assert_eq!(stage.app.place().address(&stage.app.index()), "p0/L1/softmax[h=1,t=7,k=3]");
}

#[test]
fn the_map_finds_the_built_in_models_head_that_looks_one_token_back() {
    let mut desk = Desk::at("L0/softmax", (120, 40));
    let mut best = (0.0, 0, 0);
    for layer in 0..4 {
        for head in 0..4 {
            desk.go(&format!("L{layer}/softmax[h={head}]"));
            let matrix = matrix(&desk.app);
            let back = (1..5).map(|t| matrix[t][t - 1]).sum::<f64>() / 4.0;
            if back > best.0 {
                best = (back, layer, head);
            }
        }
    }
    desk.keys("6");
    assert_eq!(desk.app.view().name(), "layers");
    desk.shows(&format!("P previous token L{} h{} {:.2}", best.1, best.2, best.0));
    // In a decode pass, the view `layers` has only one query.
    desk.go("p1/L0/softmax");
    desk.keys("6").shows("for the one query");
}

/// The scores of a head for a repeated token, from the softmax on the screen.
fn of_repeats(matrix: &[Vec<f64>], tokens: &[&str]) -> (f64, f64) {
    let earlier = |t: usize| (0..t).filter(|&s| tokens[s] == tokens[t]).collect::<Vec<_>>();
    let rows: Vec<usize> = (0..tokens.len()).filter(|&t| !earlier(t).is_empty()).collect();
    let mean = |next: usize| {
        let weights = rows.iter().map(|&t| earlier(t).into_iter().map(|s| matrix[t][s + next]).sum::<f64>());
        weights.sum::<f64>() / rows.len() as f64
    };
    (mean(1), mean(0))
}

#[test]
fn the_map_names_the_induction_head_and_defines_its_score_at_every_size() {
    const TEXT: &str = "The fox kite lake hat drum fox kite lake";
    let tokens: Vec<&str> = std::iter::once("").chain(TEXT.split(' ')).collect();
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut desk = Desk::reading(TEXT, "L1/softmax[h=0]", size);
        desk.choose("layers");
        let screen = desk.screen();
        let line = |name: &str| {
            let line = screen.lines().find_map(|line| Some(line[line.find(name)?..].to_owned()));
            line.unwrap_or_else(|| panic!("no {name}\n{screen}"))
        };
        assert!(line("I induction  ").contains("L1 h0 0."), "{screen}");
        assert!(line("D duplicate  ").contains(" h"), "{screen}");
        // The legend says what each letter of the map means.
        let meant = ["I after it", "I after equal", "D earlier equal tokens · I tokens after these"];
        assert!(meant.iter().any(|form| screen.contains(form)), "{screen}");
        // The map shows the head that copies by its letter.
        assert!(screen.contains("I 0.") || screen.contains("I.") || screen.contains("I1.0"), "{screen}");
    }
    // The numbers are those of the softmax.
    let mut desk = Desk::reading(TEXT, "L1/softmax[h=0]", (200, 60));
    let (induction, duplicate) = of_repeats(&matrix(&desk.app), &tokens);
    assert!(induction > 0.5 && duplicate < 0.1, "{induction} {duplicate}");
    desk.choose("layers");
    desk.shows(&format!("I induction      L1 h0 {induction:.2}"));
    desk.shows("I, D: over 3 queries");
}

#[test]
fn a_text_without_a_repeated_token_has_no_induction_score() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut desk = Desk::at("L0/softmax", size);
        desk.choose("layers");
        let screen = desk.screen();
        for name in ["I induction      ", "D duplicate      "] {
            assert!(screen.contains(&format!("{name}no repeated token in this text")), "{screen}");
        }
        desk.go("p1/L0/softmax");
        desk.choose("layers").shows("this token is new in the text");
    }
}

#[test]
fn heads_that_share_a_kv_head_stand_side_by_side_under_one_line() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut stage = Stage::sized("softmax", size, Depth::None);
        stage.choose("heads");
        let screen = stage.screen();
        assert_eq!(screen.matches("kv 0 ─").count(), 1, "{screen}");
        assert_eq!(screen.matches("kv 1 ─").count(), 1, "{screen}");
        let layout = stage.app.layout().unwrap();
        assert!(layout.columns.is_multiple_of(2) || layout.columns == 1, "{layout:?}");
    }
}

#[test]
fn bars_are_those_of_the_query_under_the_cursor() {
    for name in ["qk", "scores", "masked_scores", "softmax"] {
        let mut stage = Stage::sized(name, (120, 40), Depth::None);
        stage.choose("bars");
        for query in [11, 10, 3] {
            while stage.app.index()[1] > query {
                stage.key(KeyCode::Left);
            }
            let row = matrix(&stage.app)[query].clone();
            let lines = stage.body();
            for (key, value) in row.iter().enumerate() {
                let numbers = read_text(&lines[key + 1]);
                assert_eq!(numbers[0], key.to_string(), "{}", stage.screen());
                let told = if value.is_finite() {
                    is(numbers.last().unwrap(), *value, false)
                } else {
                    lines[key + 1].contains("-inf")
                };
                assert!(told, "{name} {query} {key}: {value}\n{}", stage.screen());
            }
            stage.shows(&format!("query {query} of 0-11"));
        }
    }
}

#[test]
fn in_decode_passes_the_rows_of_earlier_passes_are_above() {
    let mut stage = Stage::sized("softmax", (200, 60), Depth::None);
    stage.keys("2");
    let before = matrix(&stage.app);
    stage.keys("t").wait();
    let first = matrix(&stage.app)[0].clone();
    stage.keys("t").wait();
    assert_eq!(stage.app.place().pass, 2);
    let own = matrix(&stage.app)[0].clone();
    let layout = stage.app.layout().unwrap();
    assert_eq!((layout.rows, layout.columns, layout.cursor.0), (14, 14, 13));
    let all: Vec<Vec<f64>> = before.into_iter().chain([first, own]).collect();
    let buffer = stage.buffer();
    let mut seen = 0;
    layout.each_cell(&stage.app, |row, column, x, y| {
        let (x, y) = (layout.area.x + x, layout.area.y + y);
        let told: String = (x..x + layout.cell - 1).map(|x| buffer[(x, y)].symbol()).collect();
        match all[row].get(column) {
            Some(&value) => {
                assert!(is(told.trim(), value, false), "{row} {column}: {told} of {value}");
                seen += 1;
            }
            None => assert_eq!(told.trim(), "", "{row} did not see {column}"),
        }
    });
    assert!(seen > 14, "more than the pass's own row\n{}", stage.screen());
    // The key `k` goes up to the row of the previous pass, and so to that pass.
    stage.keys("1k");
    assert_eq!((stage.app.place().pass, stage.app.index()[1]), (1, 0));
    stage.keys("k");
    assert_eq!((stage.app.place().pass, stage.app.index()[1]), (0, 11));
    stage.keys("..");
    assert_eq!(stage.app.place().pass, 2);
}

/// In the panels of all heads too, earlier rows stay where they were, and each pass adds one row.
#[test]
fn in_decode_passes_each_head_has_the_rows_of_earlier_passes() {
    let panel = |stage: &Stage, head: usize| {
        let (layout, buffer) = (stage.app.layout().unwrap(), stage.buffer());
        let mut lines = Vec::new();
        layout.each_cell(&stage.app, |row, column, x, y| {
            if row * layout.columns + column == head {
                let (x, y) = (layout.area.x + x, layout.area.y + y);
                lines = (y + 1..y + layout.tall - 1)
                    .map(|y| (x..x + layout.cell - 2).map(|x| buffer[(x, y)].symbol()).collect::<String>())
                    .collect();
            }
        });
        lines
    };
    let mut stage = Stage::sized("softmax", (200, 60), Depth::None);
    stage.choose("heads");
    let before: Vec<_> = (0..4).map(|head| panel(&stage, head)).collect();
    assert!(before.iter().all(|lines: &Vec<String>| lines.len() == 12), "{}", stage.screen());
    stage.keys("t").wait().keys("t").wait();
    assert_eq!((stage.app.place().pass, stage.app.view().name()), (2, "heads"));
    let tensor = stage.app.tensor().unwrap();
    for (head, before) in before.iter().enumerate() {
        let now = panel(&stage, head);
        assert_eq!(now.len(), 14, "{}", stage.screen());
        for (row, line) in before.iter().enumerate() {
            // In an old row, the two new columns are empty: they belong to keys that came later.
            assert_eq!(
                *line,
                now[row].chars().take(24).collect::<String>(),
                "head {head}\n{}",
                stage.screen()
            );
            assert_eq!(now[row].chars().skip(24).collect::<String>().trim(), "", "{}", stage.screen());
        }
        for key in 0..14 {
            let value = real(tensor.get(&[head, 0, key]).unwrap());
            let shade = ['░', '▒', '▓', '█'][((value * 4.0).ceil() as usize).clamp(1, 4) - 1];
            assert_eq!(now[13].chars().nth(2 * key), Some(shade), "head {head}, key {key}: {value}");
        }
    }
}

/// On a large screen, the panels of the heads and the overview use more than a quarter of the area.
#[test]
fn heads_and_the_overview_are_larger_if_there_is_room() {
    for depth in [Depth::None, Depth::True] {
        for (view, size, tall) in
            [("heads", (80, 24), false), ("heads", (200, 60), true), ("overview", (200, 60), true)]
        {
            let mut stage = Stage::sized("softmax", size, depth);
            stage.choose(view);
            let layout = stage.app.layout().unwrap();
            let used = f64::from(u32::from(layout.cell) * u32::from(layout.tall))
                * (layout.rows * layout.columns) as f64;
            let all = f64::from(u32::from(layout.area.width) * u32::from(layout.area.height));
            assert!(!tall || used > all / 4.0, "{view} at {size:?}: {used} of {all}\n{}", stage.screen());
        }
    }
}

/// A slice with many columns and few rows is split into bands, so that fewer columns share a cell of the screen. The
/// bands have all columns, and the cursor reaches all of them.
#[test]
fn a_wide_overview_is_split_into_bands() {
    for depth in [Depth::None, Depth::True] {
        let mut stage = Stage::new(wide(18, 200, 1.0), (200, 60), depth);
        stage.keys("/L1/ffn_hidden[t=0,f=0]").key(KeyCode::Enter);
        stage.choose("overview");
        let layout = stage.app.layout().unwrap();
        assert!(layout.band > 0 && layout.rows > layout.band, "{layout:?}\n{}", stage.screen());
        let each = 1408_usize.div_ceil(layout.columns * layout.rows / layout.band);
        assert!(3 * each < 2 * 1408_usize.div_ceil(97), "{each}\n{}", stage.screen());
        // The ranges above the bands are consecutive.
        let lines = stage.body();
        let ranges: Vec<(usize, usize)> = lines
            .iter()
            .filter_map(|line| line.split_once("hidden ")?.1.split(' ').next()?.split_once('-'))
            .map(|(first, last)| (first.parse().unwrap(), last.parse().unwrap()))
            .collect();
        assert_eq!(ranges.len(), layout.rows / layout.band, "{}", stage.screen());
        assert_eq!((ranges[0].0, ranges.last().unwrap().1), (0, 1407), "{ranges:?}");
        assert!(ranges.windows(2).all(|two| two[0].1 + 1 == two[1].0), "{ranges:?}");
        // From the last line of a band, the key Down leads to the first line of the next band.
        for _ in 0..layout.rows - 1 {
            let before = stage.app.layout().unwrap().cursor.0;
            stage.keys("j");
            let (cursor, index) = (stage.app.layout().unwrap().cursor, stage.app.index());
            assert_eq!(cursor.0, before + 1, "{}", stage.screen());
            let (first, last) = ranges[cursor.0 / layout.band];
            assert!((first..=last).contains(&index[1]), "{index:?} in {first}-{last}");
        }
        assert_eq!(
            stage.app.index()[1] / each,
            ranges.last().unwrap().0 / each,
            "the cursor is in the first cell of the last band"
        );
    }
}

/// If there is room, the bars of the other heads are below, each with its own values.
#[test]
fn bars_of_the_other_heads_are_below() {
    let mut stage = Stage::sized("scores", (200, 60), Depth::None);
    stage.choose("bars");
    let lines = stage.body();
    let (tensor, index) = (stage.app.tensor().unwrap(), stage.app.index());
    let mut seen = 0;
    for (y, line) in lines.iter().enumerate() {
        let Some(head) = line.strip_prefix("head ") else { continue };
        let head: usize = head.split(' ').next().unwrap().parse().unwrap();
        assert!(line.contains(&format!("(kv head {})", head / 2)), "{line}");
        for key in 0..12 {
            let numbers = read_text(&lines[y + 1 + key]);
            let value = real(tensor.get(&[head, index[1], key]).unwrap());
            assert_eq!(numbers[0], key.to_string(), "{}", stage.screen());
            assert!(
                is(numbers.last().unwrap(), value, false),
                "head {head} {key}: {value}\n{}",
                stage.screen()
            );
        }
        let (low, high) = (0..12)
            .flat_map(|t| (0..12).map(move |k| [head, t, k]))
            .map(|at| real(tensor.get(&at).unwrap_or_else(|| panic!("{at:?}"))))
            .fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
        let ends = read_text(line.split_once("bars from ").unwrap().1);
        assert!(is(&ends[0], low, false) && is(&ends[1], high, false), "{line}: {low} {high}");
        assert_ne!(head, index[0]);
        seen += 1;
    }
    assert!(seen >= 2, "{}", stage.screen());
}

/// The hint of the view `bars` mentions the other heads only if there is room for them.
#[test]
fn the_hint_of_bars_mentions_other_heads_only_if_they_have_room() {
    let mut stage = Stage::sized("softmax", (120, 30), Depth::None);
    stage.choose("bars");
    assert!(!stage.body().iter().any(|line| line.starts_with("head ")), "{}", stage.screen());
    let hint = stage.app.view().hint().concat();
    assert!(hint.contains("The other heads are below, if all their keys fit."), "{hint}");
}

/// On a terminal with colours, two values share a character. If one of the two is below 0, the character has another
/// shape.
#[test]
fn values_below_0_have_another_shape_in_the_overview_and_in_the_heads() {
    for (view, step) in [("overview", "xq"), ("heads", "xq"), ("overview", "ffn_hidden")] {
        for depth in [Depth::Indexed, Depth::True] {
            let mut stage = Stage::sized(step, (120, 40), depth);
            stage.choose(view);
            let text = stage.body().concat();
            for shape in ["▀", "▘", "▖", "▚"] {
                assert!(text.contains(shape), "no {shape} in {view} of {step}\n{}", stage.screen());
            }
            stage.shows("chequered: below");
        }
    }
    // Values that sum to 1 have no sign.
    let mut stage = Stage::sized("softmax", (120, 40), Depth::True);
    stage.choose("heads");
    let text = stage.body().concat();
    assert!(!text.contains("chequered") && !text.contains('▚'), "{}", stage.screen());
}

#[test]
fn numbers_have_all_digits_where_columns_are_free() {
    let mut stage = Stage::sized("rope_cos", (200, 60), Depth::None);
    stage.keys("2");
    let (tensor, layout) = (stage.app.tensor().unwrap(), stage.app.layout().unwrap());
    assert!(layout.cell >= 14, "4 columns have room for more: {layout:?}");
    let buffer = stage.buffer();
    layout.each_cell(&stage.app, |row, column, x, y| {
        let (x, y) = (layout.area.x + x, layout.area.y + y);
        let told: String = (x..x + layout.cell - 1).map(|x| buffer[(x, y)].symbol()).collect();
        let number = tensor.get(&[row, column]).unwrap();
        assert_eq!(told.trim(), llama_trace::tui::text::full(number), "{row} {column}");
    });
}

#[test]
fn other_stages_over_the_vocabulary_open_with_the_largest_value() {
    let mut stage = Stage::at("nucleus");
    stage.choose("list");
    stage.keys("/probs").key(KeyCode::Enter);
    assert_eq!(stage.app.view().name(), "largest");
    stage.keys("/nucleus[v=9]").key(KeyCode::Enter);
    assert_eq!(stage.app.view().name(), "list", "an address names an id");
}

#[test]
fn the_shapes_in_the_outline_are_separated_from_the_names() {
    for width in 72..=200 {
        let stage = Stage::sized("softmax", (width, 40), Depth::None);
        for line in stage.screen().lines() {
            let Some((left, _)) = line.split_once('│') else { continue };
            if let Some(at) = left.find('(').filter(|at| left[*at..].contains(',')) {
                assert!(left[..at].ends_with(' ') && left.trim_end().ends_with(')'), "{width}: {left}");
            }
        }
    }
}

/// At every width, each number in the map of heads follows from the attention weights.
#[test]
fn every_number_of_the_map_of_heads_is_complete_and_correct() {
    let mut stage = Stage::sized("softmax", (200, 60), Depth::None);
    let mut shares = vec![];
    for layer in 0..3 {
        for head in 0..4 {
            stage.keys(&format!("/L{layer}/softmax[h={head}]")).key(KeyCode::Enter);
            let matrix = matrix(&stage.app);
            let mean = |of: &dyn Fn(usize) -> f64| (1..12).map(of).sum::<f64>() / 11.0;
            shares.extend([mean(&|t| matrix[t][t - 1]), mean(&|t| matrix[t][0]), mean(&|t| matrix[t][t])]);
        }
    }
    let shares: Vec<String> = shares.iter().map(|share| format!("{share:.2}")).collect();
    stage.choose("layers");
    for width in 60..=200 {
        stage.event(Event::Resize(width, 16 + width % 40));
        // Below these lines is the foot of the panel.
        let of_heads =
            ["layer", "P previous token", "I induction  ", "D duplicate", "F first token", "S token itself"];
        for line in stage.body().iter().filter(|line| of_heads.iter().any(|name| line.starts_with(name))) {
            for number in read_text(line).into_iter().filter(|number| number.contains('.')) {
                assert!(shares.contains(&number), "{number} in `{line}` at {width}\n{}", stage.screen());
            }
        }
    }
}
