//! The view of the cache: its present size, its growth, and how many more tokens fit.

use llama_trace::tui::theme::Depth;
use llama_trace::tui::user_event::Event;

use crate::desk::Desk;
use crate::shown::read_text;
use crate::stage::Stage;

/// The future size of the cache for several numbers of tokens, with a bar for each.
#[test]
fn the_growth_of_the_cache_is_drawn_if_there_is_room() {
    let mut stage = Stage::sized("cache_k", (200, 60), Depth::None);
    stage.choose("cache");
    let (lines, token) = (stage.body(), 384);
    let from = lines.iter().position(|line| line.contains("█ size of the cache")).unwrap();
    let mut counts = Vec::new();
    for line in lines[from + 1..].iter().take_while(|line| !line.trim().is_empty()) {
        let numbers = read_text(line);
        let count: usize = numbers[0].parse().unwrap();
        assert_eq!(numbers[1], (count * token).to_string(), "{line}");
        // Two query heads share a kv head. The bar shows in `░` how much longer it would be without sharing: twice as
        // long.
        let (taken, more) = (line.matches('█').count(), line.matches('░').count());
        assert!(taken.abs_diff(more) <= 1, "{line}");
        counts.push(count);
    }
    assert_eq!(counts, [12, 13, 14, 15, 16, 17, 18, 19, 20, 50], "up to the room for 64");
    let stage_small = &mut Stage::sized("cache_k", (80, 24), Depth::None);
    stage_small.choose("cache");
    assert!(!stage_small.screen().contains("█ size of the cache"));
}

#[test]
fn the_cache_view_shows_present_and_future_bytes() {
    // In a small window the text is shorter.
    let mut stage = Stage::sized("cache_k", (80, 24), Depth::None);
    stage.choose("cache");
    for told in [
        "384 bytes a token",
        "= 4608 bytes; this pass: +4608",
        "room for 64 tokens: 52 tokens, 19968 bytes left",
    ] {
        stage.shows(told);
    }
    let mut stage = Stage::sized("cache_k", (200, 60), Depth::None);
    stage.choose("cache");
    // Keys and values, 3 layers, 2 kv heads of 8 numbers in float32.
    let token = 2 * 3 * 2 * 8 * 4;
    stage.shows(&format!("{token} bytes a token"));
    stage.shows(&format!("12 tokens · {token} = {} bytes", 12 * token));
    stage.shows(&format!("this pass added 12 · {token} = {}", 12 * token));
    stage.shows(&format!("13 tokens {}", 13 * token));
    stage.shows(&format!("room for 64 tokens, {} bytes", 64 * token));
    stage.shows(&format!("52 tokens, {} bytes left", 52 * token));
    stage.shows(&format!("one layer: {} bytes a token", token / 3));
    stage.shows(&format!("otherwise {} bytes a token, 2 times as much", 2 * token));
    let row = |stage: &Stage, key: usize| {
        let lines = stage.body();
        let found = lines
            .iter()
            .find(|line| read_text(line).first() == Some(&key.to_string()) && line.contains(" p"));
        found.cloned().unwrap_or_else(|| panic!("no row {key} in\n{}", stage.screen()))
    };
    assert!(row(&stage, 3).contains("p0+") && read_text(&row(&stage, 3)).contains(&(4 * token).to_string()));
    stage.keys("t").wait();
    assert!(row(&stage, 12).contains("p1+"), "{}", stage.screen());
    assert!(row(&stage, 11).contains("p0 "), "pass 0 wrote this row, not the current pass");
    stage
        .shows(&format!("13 tokens · {token} = {} bytes; this pass added 1 · {token} = {token}", 13 * token));
    // The built-in model, after 20 tokens.
    let mut desk = Desk::at("cache_k", (120, 40));
    desk.keys("6").shows("2048 bytes a token");
}

/// At every width, each number in the view of the cache follows from the sizes.
#[test]
fn every_number_of_the_cache_view_is_complete_and_correct() {
    let token = 2 * 3 * 2 * 8 * 4_usize;
    let mut known: Vec<usize> =
        vec![2, 3, 8, 4, token, token / 3, 2 * token, 12, 64, 52, 64 * token, 52 * token];
    known.extend((1..=18).flat_map(|count| [count, count * token]));
    known.extend([12 * token / 3]);
    let known: Vec<String> = known.iter().map(ToString::to_string).collect();
    let mut stage = Stage::sized("cache_v", (200, 60), Depth::None);
    stage.choose("cache");
    for width in 60..=200 {
        stage.event(Event::Resize(width, 16 + width % 40));
        let header = usize::from(stage.app.layout().unwrap().header);
        for line in &stage.body()[..header - 1] {
            for number in read_text(line) {
                assert!(known.contains(&number), "{number} in `{line}` at {width}\n{}", stage.screen());
            }
        }
    }
}
