//! Two heads, tokens, layers, passes or steps of one run side by side, with their difference.

use llama_trace::trace::frame::Number;
use llama_trace::tui::text;
use llama_trace::tui::theme::Depth;
use llama_trace::tui::user_event::KeyCode;

use crate::shown::real;
use crate::stage::Stage;

/// Returns the value at an address. Goes to the address and back.
fn at(stage: &mut Stage, address: &str) -> f64 {
    let here = stage.app.place().address(&stage.app.index());
    stage.keys("/").keys(address).key(KeyCode::Enter);
    let value = real(stage.app.tensor().unwrap().get(&stage.app.index()).unwrap());
    stage.keys("/").keys(&here).key(KeyCode::Enter);
    value
}

#[track_caller]
fn differs(stage: &mut Stage, name: &str, there: &str) {
    let here = real(stage.app.tensor().unwrap().get(&stage.app.index()).unwrap());
    // Reads the screen first, because `at` moves both cursors to the address and back.
    let screen = stage.screen();
    let there = at(stage, there);
    let difference = text::full_in(Number::F32((here - there) as f32), 12);
    let line = format!("{name} · here − there = {difference}");
    assert!(screen.contains(&line), "no `{line}` in\n{screen}");
}

#[test]
fn c_compares_with_the_head_the_layer_or_the_pass_that_was_shown_before() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut stage = Stage::sized("xq", size, Depth::None);
        stage.keys("c");
        assert!(stage.message().starts_with("there is nothing to compare with yet"), "{}", stage.message());
        stage.keys("/L1/xq[t=4,h=2,c=3]").key(KeyCode::Enter);
        stage.keys("]c").shows("p0/L1/xq[t=4,h=2,c=3]");
        stage.shows("c Esc close");
        stage.shows("p0/L1/xq[t=4,h=3,c=3]");
        differs(&mut stage, "h=2", "L1/xq[t=4,h=2,c=3]");
        // The compared cursor keeps the index that was named (head 2). All its other indices follow the cursor.
        stage.keys("jl");
        differs(&mut stage, "h=2", "L1/xq[t=5,h=2,c=4]");
        stage.keys("c");
        assert!(!stage.screen().contains("here − there"), "c ends it\n{}", stage.screen());
        stage.keys("Nc");
        differs(&mut stage, "L1", "L1/xq[t=5,h=3,c=4]");
    }
    let mut stage = Stage::sized("xq", (120, 40), Depth::None);
    stage.keys("t").wait();
    stage.keys("c");
    assert_eq!(stage.app.place().pass, 1);
    // The cursor is at token 0, the only token of this pass. It is compared with token 0 of the previous pass.
    stage.shows("p0 · here − there = ");
    differs(&mut stage, "p0", "p0/L1/xq[t=0,h=2,c=0]");
}

#[test]
fn the_go_to_line_says_what_to_compare_with() {
    let mut stage = Stage::sized("xq_rope", (120, 40), Depth::None);
    stage.keys("/[t=4,h=2,c=3]").key(KeyCode::Enter);
    for (asked, name, there) in [
        ("compare t=1", "t=1", "L1/xq_rope[t=1,h=2,c=3]"),
        ("compare [h=0]", "h=0", "L1/xq_rope[t=4,h=0,c=3]"),
        ("compare L0", "L0", "L0/xq_rope[t=4,h=2,c=3]"),
        ("compare L2/xq[t=7]", "L2 xq t=7", "L2/xq[t=7,h=2,c=3]"),
        ("compare xq", "xq", "L1/xq[t=4,h=2,c=3]"),
    ] {
        stage.keys("/").keys(asked).key(KeyCode::Enter);
        // The difference on the screen must be the one between the values at the two places.
        let difference = |stage: &Stage| {
            let screen = stage.screen();
            screen.split_once(&format!("{name} · here − there = ")).map(|(_, rest)| rest.to_owned())
        };
        assert!(difference(&stage).is_some(), "{asked}\n{}", stage.screen());
        let shown = difference(&stage).unwrap();
        stage.keys("c");
        let here = real(stage.app.tensor().unwrap().get(&stage.app.index()).unwrap());
        let there = at(&mut stage, there);
        let told = text::full_in(Number::F32((here - there) as f32), 12);
        assert!(shown.starts_with(&told), "{asked}: {told} and {shown}");
    }
    for (asked, wrong) in [
        ("compare", "type what to compare with"),
        ("compare h=9", "head 9 is past the last"),
        ("compare softmax", "different axes"),
        ("compare s3", "to compare with another sequence or run"),
    ] {
        stage.keys("/").keys(asked).key(KeyCode::Enter);
        assert!(stage.message().contains(wrong), "{asked}: {}", stage.message());
        stage.key(KeyCode::Esc);
    }
}

#[test]
fn enter_explains_the_number_and_esc_brings_the_comparison_back() {
    let mut stage = Stage::sized("xq", (120, 40), Depth::None);
    stage.keys("]c").shows("here − there");
    stage.key(KeyCode::Enter);
    stage.shows("where from");
    assert!(!stage.screen().contains("here − there"), "{}", stage.screen());
    stage.key(KeyCode::Esc);
    stage.shows("here − there");
    assert!(!stage.screen().contains("where from"));
    stage.key(KeyCode::Esc);
    assert!(!stage.screen().contains("here − there"), "{}", stage.screen());
}

/// Equal values have equal colours: the two panels have one colour scale, unless their quantities differ.
#[test]
fn compared_tensors_have_one_colour_scale() {
    for (size, depth) in [((80, 24), Depth::None), ((120, 40), Depth::None), ((120, 40), Depth::True)] {
        let mut stage = Stage::sized("xq", size, depth);
        stage.keys("/L1/xq[t=4,h=2,c=3]").key(KeyCode::Enter);
        let own = stage.app.span().unwrap();
        stage.keys("/compare L2").key(KeyCode::Enter);
        let both = stage.app.span().unwrap();
        assert!(both.high > own.high, "the other layer has larger values: {both:?}");
        let screen = stage.screen();
        let high = text::real(both.high);
        let said = format!("{high} · both");
        // In a small window, the legend is shown once for both panels.
        let times = if size.1 < 40 { 1 } else { 2 };
        assert_eq!(screen.matches(&said).count(), times, "{said}\n{screen}");
        stage.keys("s");
        let said = format!("{} · both", text::real(stage.app.span().unwrap().high));
        assert_eq!(stage.screen().matches(&said).count(), times);
        stage.keys("sssc");
        assert_eq!(stage.app.span(), Some(own), "alone it has its own again");
        // The line to the left of the panels reaches down to the last line.
        stage.keys("/compare L2").key(KeyCode::Enter);
        let screen = stage.screen();
        let lines: Vec<&str> = screen.lines().collect();
        assert!(lines[usize::from(size.1) - 2].contains('│'), "{screen}");
    }
}

#[test]
fn nothing_is_compared_with_itself() {
    let mut stage = Stage::sized("xq", (120, 40), Depth::None);
    for asked in ["compare h=2", "compare L1", "compare xq", "compare p0/L1/xq[h=2]"] {
        stage.keys("/").keys(asked).shows("Enter compares it with the place on the screen");
        stage.key(KeyCode::Enter);
        assert!(
            stage.message().ends_with("is the place on the screen: name another place"),
            "{}",
            stage.message()
        );
        stage.key(KeyCode::Esc);
        assert!(!stage.screen().contains("here − there"));
    }
}

/// In a small window, lines that both panels share are shown once, so that more rows are left for the values.
#[test]
fn panels_one_above_the_other_keep_rows_for_their_values() {
    for (size, least) in [((80, 18), 2), ((80, 24), 5)] {
        for depth in [Depth::None, Depth::True] {
            let mut stage = Stage::sized("xq", size, depth);
            stage.keys("/L1/xq[t=4,h=2,c=3]").key(KeyCode::Enter);
            stage.keys("/compare h=1").key(KeyCode::Enter);
            let rows = stage.app.layout().unwrap().visible_rows(&stage.app);
            assert!(rows.len() >= least, "{rows:?}\n{}", stage.screen());
            let screen = stage.screen();
            for row in rows {
                let label = format!("│ {row:>2} ");
                assert_eq!(screen.matches(&label).count(), 2, "{label}\n{screen}");
            }
            for told in
                ["xq · head 2 of 0-3", "xq · head 1 of 0-3", "xq[t=4,h=2,c=3] = ", "xq[t=4,h=1,c=3] = "]
            {
                assert_eq!(screen.matches(told).count(), 1, "{told}\n{screen}");
            }
        }
    }
}

/// The texts of tokens next to the compared number are either complete or left out.
#[test]
fn in_a_small_window_tokens_beside_the_number_are_not_truncated() {
    let mut stage = Stage::sized("softmax", (80, 24), Depth::None);
    stage.keys("]c");
    let screen = stage.screen();
    let lines: Vec<&str> = screen.lines().filter(|line| line.contains("] = ")).collect();
    assert!(lines.len() == 2 && lines.iter().all(|line| !line.contains('…')), "{screen}");
    let mut stage = Stage::sized("softmax", (100, 24), Depth::None);
    stage.keys("]c").shows(" · query ␣Lily → key ");
}

/// Each cell of the difference has the first value minus the second value.
#[test]
fn the_difference_of_two_is_shown_cell_by_cell() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut stage = Stage::sized("xq", size, Depth::None);
        stage.keys("d");
        assert!(stage.message().contains("press c, then d"), "{}", stage.message());
        stage.keys("/L1/xq[t=4,h=2,c=3]").key(KeyCode::Enter);
        stage.keys("2/compare h=1").key(KeyCode::Enter);
        stage.shows("d difference");
        stage.keys("d").shows("xq: here − there (h=1)");
        stage.shows("d both");
        let seen = stage.app.layout().unwrap();
        let (rows, columns) = (seen.visible_rows(&stage.app), seen.visible_columns(&stage.app));
        let first = Number::F32(difference(&stage, rows.start, columns.start) as f32);
        stage.shows(&text::full_in(first, usize::from(seen.cell) - 1));
        // The colour scale ends at the largest visible difference.
        let mut largest: f64 = 0.0;
        for row in rows.clone() {
            for column in columns.clone() {
                largest = largest.max(difference(&stage, row, column).abs());
            }
        }
        let high = text::real(f64::from(largest as f32));
        stage.shows(&format!("{high} · these cells"));
        stage.keys("d");
        assert!(!stage.screen().contains("these cells"), "{}", stage.screen());
        // The next comparison begins without the difference.
        stage.keys("d").key(KeyCode::Esc);
        stage.keys("/compare h=1").key(KeyCode::Enter);
        assert!(!stage.screen().contains("these cells"), "{}", stage.screen());
    }
}

/// The difference in a cell of xq: head 2 minus head 1.
fn difference(stage: &Stage, row: usize, column: usize) -> f64 {
    let (tensor, shape) = (stage.app.tensor().unwrap(), stage.app.shape());
    let values: Vec<f64> = tensor.frame().values().numbers().collect();
    let value = |head: usize| values[(row * shape[1] + head) * shape[2] + column];
    value(2) - value(1)
}

/// A cell that is masked in both tensors counts as equal.
#[test]
fn cells_that_both_mask_are_equal() {
    let mut stage = Stage::sized("masked_scores", (120, 40), Depth::None);
    stage.keys("/L1/masked_scores[h=2,t=2,k=8]").key(KeyCode::Enter);
    stage.keys("/compare h=1").key(KeyCode::Enter);
    stage.keys("d").shows("h=1 · here − there = 0");
    stage.shows("-inf − (-inf) = 0");
    stage.shows("equal in ");
    // From a view without matrix cells, the key switches to the heatmap.
    stage.choose("histogram");
    stage.keys("d");
    assert!(!stage.screen().contains("these cells"));
    stage.keys("d").shows("these cells");
    assert_eq!(stage.app.view().name(), "heatmap");
}
