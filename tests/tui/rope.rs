//! The view of RoPE: a pair before and after its rotation, and its angle.

use llama_trace::trace::{Axis, Step};
use llama_trace::tui::app::App;
use llama_trace::tui::theme::Depth;
use llama_trace::tui::user_event::KeyCode;

use crate::desk::Desk;
use crate::shown::{is, read_text, real};
use crate::stage::Stage;

/// The value under the cursor.
fn value(app: &App) -> f64 {
    real(app.tensor().unwrap().get(&app.index()).unwrap())
}

#[test]
fn rope_rotates_a_pair_by_its_position_times_theta() {
    let mut desk = Desk::at("L1/xq_rope[t=4,h=1,c=3]", (120, 40));
    desk.keys("6");
    assert_eq!(desk.app.view().name(), "rope");
    let shown = desk.screen();
    // The view has the model's pairing: its two components are those that the explanation rotates together.
    let line = shown.lines().find(|line| line.contains(" at position 4: ")).unwrap();
    let (pair, of) = line.split_once("pair ").unwrap().1.split_once(" at position 4: ").unwrap();
    let angle: f64 = read_text(of)[0].parse().unwrap();
    desk.go(&format!("rope_cos[t=4,i={pair}]"));
    let cos = value(&desk.app);
    desk.go(&format!("rope_sin[t=4,i={pair}]"));
    let sin = value(&desk.app);
    assert!((sin.atan2(cos) - angle).abs() < 1e-3, "{angle}");
    desk.go(&format!("rope_cos[t=1,i={pair}]"));
    let one = value(&desk.app);
    desk.go(&format!("rope_sin[t=1,i={pair}]"));
    let theta = value(&desk.app).atan2(one);
    assert!((4.0 * theta - angle).abs() < 1e-3, "position times θ");
    let line = shown.lines().find(|line| line.contains("θ_i = ") && line.contains("·θ_i")).unwrap();
    let numbers = read_text(line.split_once("θ_i = ").unwrap().1);
    assert!(is(&numbers[0], theta, false), "{line}");
    assert!(numbers.iter().any(|number| is(number, 4.0 * theta, false)), "{line}");
    // At this position the fastest pair has turned by more than half a circle, so the angle is shown as a negative one.
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut desk = Desk::at("L1/xq_rope[t=4,h=1,c=0]", size);
        desk.keys("6");
        desk.shows("pair 0 at position 4: ");
        desk.shows("-2.2832 rad = -130.82°");
        desk.shows("4·θ_i = 4.0000 = -2.2832 + 1·2π");
    }
}

/// The values before and after the rotation are those in the trace, for each component and with both pairings.
#[test]
fn rope_shows_the_recorded_pair_before_and_after() {
    let mut stage = Stage::sized("xq_rope", (200, 60), Depth::None);
    stage.choose("rope");
    for _ in 0..3 {
        stage.keys("lk");
        let index = stage.app.index();
        let pair = stage.app.layout().unwrap().cursor.1;
        assert_eq!(index[2], 2 * pair, "neighbours");
        stage.shows(&format!("c {},{}", index[2], index[2] + 1));
        let after = stage.app.tensor().unwrap();
        let after = [0, 1].map(|i| real(after.get(&[index[0], index[1], index[2] + i]).unwrap()));
        let lines = stage.body();
        let line = lines.iter().find(|line| line.contains("● xq_rope (")).unwrap();
        let shown = read_text(line.split_once("● xq_rope (").unwrap().1);
        assert!(is(&shown[0], after[0], false) && is(&shown[1], after[1], false), "{line}");
        let before = read_text(line.split_once("○ xq (").unwrap().1);
        stage.keys("/xq").key(KeyCode::Enter);
        assert_eq!(stage.app.view().name(), "rope", "the view stays");
        let here = stage.app.tensor().unwrap();
        let here = [0, 1].map(|i| real(here.get(&[index[0], index[1], index[2] + i]).unwrap()));
        assert!(is(&before[0], here[0], false) && is(&before[1], here[1], false), "{line}");
        stage.keys("/xq_rope").key(KeyCode::Enter);
    }
    assert_eq!(stage.app.place().step, Step::from_name("xq_rope").unwrap());
    assert!(stage.app.place().step.axes().contains(&Axis::HeadDim));
}

/// The curves have a label for each axis, and a legend for their marks. Each angle is at its height.
#[test]
fn the_curves_have_named_axes_and_marks() {
    for (size, positions, marks) in [
        ((120, 40), "position 0-4 →", "a dot: a position, ● the cursor's"),
        ((200, 60), "position 0 to 4 →", "each dot is the angle at a position, ● at the cursor's position"),
    ] {
        let mut desk = Desk::at("L1/xq_rope[t=4,h=1,c=3]", size);
        desk.keys("6");
        let screen = desk.screen();
        assert_eq!(screen.matches(positions).count(), 3, "{screen}");
        desk.shows(marks);
        desk.shows("after 180°");
        let lines: Vec<Vec<char>> = screen.lines().map(|line| line.chars().collect()).collect();
        let row = |words: &str| screen.lines().position(|line| line.contains(words)).unwrap();
        let heading = row("fastest: pair 0");
        assert!(screen.lines().nth(heading).unwrap().contains(" angle "), "{screen}");
        let at = |angle: &str| {
            let mut rows = (heading..lines.len()).filter(|&y| {
                let line: String = lines[y].iter().collect();
                line.split([' ', '│']).any(|word| word == angle)
            });
            rows.next().unwrap()
        };
        let (high, zero, low) = (at("180°"), at("0°"), at("-180°"));
        assert!(high < zero && zero < low && zero - high == low - zero, "{screen}");
        // The fastest pair rotates by one radian per token: at position 4 by 229°, which is −131°.
        let column = |word: &str| {
            let line: String = lines[heading].iter().collect();
            line[..line.find(word).unwrap()].chars().count()
        };
        let (from, to) = (column("fastest: "), column("cursor: "));
        let mut curve = lines[high..=low].iter().map(|line| &line[from..to.min(line.len())]);
        let dot = curve.position(|line| line.contains(&'●')).unwrap();
        assert_eq!(dot, ((180.0 + 131.0) / 360.0 * (low - high) as f64).round() as usize, "{screen}");
    }
}
