//! Going to the largest value, back and forward, and to marks; enlarged panels; and the search in the help.

use std::fs;

use llama_trace::trace::frame::Number;
use llama_trace::trace::{Axis, PassDims, Query, Region, Source};
use llama_trace::tui::effects::save_marks;
use llama_trace::tui::input::Mode;
use llama_trace::tui::marks::Marks;
use llama_trace::tui::panel_state::Focus;
use llama_trace::tui::theme::Depth;
use llama_trace::tui::update::Effect;
use llama_trace::tui::user_event::{Event, KeyCode, KeyEvent, KeyModifiers};
use llama_trace::tui::view::Panels;
use llama_trace::tui::view::views::fitting;

use crate::stage::Stage;
use crate::synthetic::Synthetic;

/// All values of the current stage with their indices, whatever the screen shows.
fn values(stage: &mut Stage) -> Vec<(Vec<usize>, f64)> {
    let place = stage.app.place();
    let whole = stage.app.outline().card.sizes().shape(place.step.stage().axes(), stage.app.dims());
    let query = Query::Block(place.site(), Region::whole(&whole));
    let std::task::Poll::Ready(Ok(llama_trace::trace::Answer::Block(block))) = stage.source.ask(&query)
    else {
        panic!("{query} is not there")
    };
    let count = whole.iter().product();
    let index = |at: usize| {
        let mut rest = at;
        let mut index: Vec<usize> = whole.iter().rev().map(|n| (rest % n, rest /= n).0).collect();
        index.reverse();
        index
    };
    let real = |number| match number {
        Number::F32(value) => f64::from(value),
        Number::I64(value) => value as f64,
    };
    (0..count).map(|at| (index(at), real(block.get(&index(at)).unwrap()))).collect()
}

fn alt(stage: &mut Stage, code: KeyCode) -> Effect {
    stage.event(Event::Key(KeyEvent::new(code, KeyModifiers::ALT)))
}

#[test]
fn star_goes_to_the_largest_of_the_row_and_hash_to_that_of_the_tensor() {
    for (step, keys) in
        [("xq", ""), ("softmax", ""), ("masked_scores", "a"), ("queries_t", ""), ("attn_merged", "")]
    {
        let mut stage = Stage::at(step);
        stage.keys(keys).keys("jj*");
        let (cut, here) = (stage.app.cut(), stage.app.index());
        let along = cut.columns.unwrap();
        let tensor = stage.app.shape();
        let at = |stage: &Stage, index: &[usize]| {
            let step = stage.app.place().step;
            let whole = stage.app.outline().card.sizes().shape(step.stage().axes(), stage.app.dims());
            step.index_in_stage(index, &whole)
        };
        let all = values(&mut stage);
        let value = |index: &[usize]| all.iter().find(|(other, _)| other == index).unwrap().1;
        let largest = (0..tensor[along])
            .map(|column| {
                let mut index = here.clone();
                index[along] = column;
                value(&at(&stage, &index))
            })
            .fold(f64::NEG_INFINITY, f64::max);
        assert_eq!(value(&at(&stage, &here)), largest, "{step}: {here:?}");
        stage.keys("#");
        let most = all.iter().map(|(_, value)| *value).fold(f64::NEG_INFINITY, f64::max);
        assert_eq!(value(&at(&stage, &stage.app.index())), most, "{step}");
    }
    // NaN is not the largest value.
    let mut stage = Stage::at("ffn_up");
    stage.keys("kkkkkkkkkkkkkkk*");
    assert!(stage.app.index() != [0, 3], "{:?}", stage.app.index());
}

/// If a tensor arrives in blocks, all blocks are searched, including those that arrive late.
#[test]
fn the_largest_value_is_found_in_blocks_and_in_late_blocks() {
    let mut source = Synthetic::new();
    source.outlier = Some(4000.0);
    source.largest = 16;
    let mut stage = Stage::new(source, (80, 24), Depth::True);
    stage.keys("/L1/ffn_hidden[t=3,f=0]").key(KeyCode::Enter);
    stage.keys("#");
    stage.wait();
    assert_eq!(stage.app.index(), [0, 5]);
    let mut stage = Stage::at("logits");
    stage.keys("jjj#");
    assert_eq!(stage.app.index()[1], stage.app.ranked(0).unwrap() as usize, "the first of its row");
}

#[test]
fn history_counts_the_steps_of_one_walk_as_one_place() {
    let mut stage = Stage::at("softmax");
    stage.keys("jl");
    let (path, index) = (stage.app.place().path(), stage.app.index());
    stage.keys("nnn").keys("/L0/xq").key(KeyCode::Enter);
    stage.keys("G");
    alt(&mut stage, KeyCode::Left);
    assert_eq!(stage.app.place().path(), "p0/L0/xq");
    alt(&mut stage, KeyCode::Left);
    assert_eq!(stage.name(), "attn_merged", "three steps on");
    alt(&mut stage, KeyCode::Left);
    assert_eq!((stage.app.place().path(), stage.app.index()), (path, index), "the cell too");
    alt(&mut stage, KeyCode::Left);
    stage.shows("there is nothing before this place");
    for _ in 0..3 {
        alt(&mut stage, KeyCode::Right);
    }
    assert_eq!(stage.name(), "sampled");
    alt(&mut stage, KeyCode::Right);
    stage.shows("there is nothing after this place");
}

#[test]
fn a_mark_leads_back_to_its_place() {
    let mut stage = Stage::at("softmax");
    stage.keys("'").shows("no place is marked yet");
    stage.keys("jlm");
    assert_eq!(stage.app.mode(), &Mode::Mark);
    let (path, index) = (stage.app.place().path(), stage.app.index());
    assert_eq!(stage.key(KeyCode::Char('a')), Effect::SaveMarks);
    stage.keys("Gm!").shows("a mark is a letter or a digit");
    stage.keys("'").shows("which mark? a p0/L1/softmax[h=2,t=");
    stage.keys("x").shows("there is no mark x");
    stage.keys("'a");
    assert_eq!((stage.app.place().path(), stage.app.index()), (path, index));
    stage.keys("'").key(KeyCode::Esc);
    assert_eq!(stage.app.mode(), &Mode::Walk);
}

#[test]
fn the_note_of_a_mark_stays_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("marks");
    let mut stage = Stage::at("softmax");
    let cell = stage.app.place().address(&stage.app.index());
    let text = format!("# lesson\na {cell} who looks back?\n");
    fs::write(&path, &text).unwrap();
    stage.app = stage.app.with_marks(Marks::open(&path).unwrap());
    assert_eq!(stage.keys("m").key(KeyCode::Char('a')), Effect::SaveMarks);
    save_marks(&mut stage.app);
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    stage.keys("'a").shows("who looks back?");
    // If the mark is set at another cell, its note does not move along. A message says where the note went.
    let other = stage.keys("l").app.place().address(&stage.app.index());
    stage.keys("ma");
    save_marks(&mut stage.app);
    assert_eq!(
        stage.message(),
        format!("a was moved from {cell} to {other}; the old note is now a comment in the file")
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), text.replace("a p0", "# a p0") + &format!("a {other}\n"));
    stage.keys("'a");
    assert_eq!(stage.app.place().address(&stage.app.index()), other);
}

#[test]
fn a_panel_fills_the_screen_and_shrinks_again() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut stage = Stage::sized("softmax", size, Depth::True);
        let before = stage.screen();
        for focus in [Focus::Tensor, Focus::Notes, Focus::Outline] {
            stage.keys("z");
            let panels = Panels::new(&stage.app);
            let there: Vec<_> = [panels.middle, panels.notes, panels.outline].into_iter().flatten().collect();
            assert_eq!(there.len(), 1, "{focus:?}");
            assert_eq!(there[0].width, size.0);
            stage.keys("z").key(KeyCode::Tab);
        }
        assert_eq!(stage.screen(), before);
    }
}

#[test]
fn the_address_and_the_value_are_copied() {
    let mut stage = Stage::at("softmax");
    let Effect::Copy(text) = stage.key(KeyCode::Char('y')) else { panic!("nothing is copied") };
    stage.shows(&text);
    assert!(text.starts_with("p0/L1/softmax[h=2,t=11,k="), "{text}");
}

#[test]
fn the_help_screen_finds_what_is_typed() {
    let mut stage = Stage::at("softmax");
    stage.keys("?").shows("Walking through the pass");
    stage.keys("npy").shows("export this stage");
    assert!(!stage.screen().contains("next step"), "{}", stage.screen());
    stage.keys("zzz").shows("nothing matches");
    for _ in 0..3 {
        stage.key(KeyCode::Backspace);
    }
    stage.shows("export this stage");
    stage.shows("Esc ? close");
    stage.key(KeyCode::Esc);
    assert_eq!(stage.app.mode(), &Mode::Walk);
    // Every letter is text for the search, and not a command.
    for word in ["query", "quit", "qk", "next"] {
        let before = stage.app.place();
        stage.keys("?");
        for c in word.chars() {
            assert_eq!(stage.key(KeyCode::Char(c)), Effect::None, "{word}");
        }
        assert!(matches!(stage.app.mode(), Mode::Help(_, wanted) if wanted == word), "{word}");
        stage.keys("?");
        assert_eq!((stage.app.mode(), stage.app.place()), (&Mode::Walk, before), "{word}");
    }
}

#[test]
fn digits_choose_the_views_in_their_order() {
    let mut stage = Stage::at("softmax");
    let names: Vec<&str> = fitting(stage.step()).map(llama_trace::tui::view::kind::View::name).collect();
    assert_eq!(names[..7], ["heatmap", "numbers", "heads", "overview", "histogram", "layers", "bars"]);
    for (digit, name) in ('1'..='9').zip(&names) {
        stage.key(KeyCode::Char(digit));
        assert_eq!(stage.app.view().name(), *name);
    }
    stage.keys("1v");
    for name in names.iter().skip(1).chain([&"heatmap"]) {
        stage.keys("v");
        assert_eq!(stage.app.view().name(), *name);
    }
    stage.key(KeyCode::Enter);
    stage.keys("/tokens").key(KeyCode::Enter);
    stage.keys("9").shows("the views of tokens: 1 list, 2 ");
}

/// A stage of 300 tokens and 512 keys, which does not fit on a screen of any size.
fn large() -> Synthetic {
    let mut source = Synthetic::new();
    let token = source.outline().passes[0].tokens[1].clone();
    let dims = PassDims { pass: 0, start: 0, tokens: 300, ..PassDims::default() };
    source.outline.passes[0].tokens = vec![token; 300];
    source.outline.passes[0].dims = dims;
    source
}

/// The heading of a grid of heads says how many values each mark stands for, and has no empty field.
#[test]
fn small_panels_of_heads_say_how_many_values_a_character_shows() {
    for (depth, each) in [(Depth::None, " per cell"), (Depth::True, " per half")] {
        let mut stage = Stage::new(large(), (80, 24), depth);
        stage.keys("/L1/softmax[h=2,t=9,k=0]").key(KeyCode::Enter);
        stage.choose("heads");
        let screen = stage.screen();
        let line = screen.lines().nth(4).unwrap();
        assert!(!line.contains("·  ·") && line.contains(each), "{screen}");
    }
}

/// Each cell of an overview shows the value furthest from 0 among its values, and the arrow keys move the cursor to
/// that value.
#[test]
fn an_overview_loses_no_extreme() {
    let mut source = large();
    source.outlier = Some(-4000.0);
    for size in [(80, 24), (120, 40)] {
        let mut stage = Stage::new(source, size, Depth::None);
        stage.keys("/L1/ffn_hidden[t=9,f=0]").key(KeyCode::Enter);
        stage.keys("3");
        assert_eq!(stage.app.view().name(), "overview");
        // The cell with the outlier at [0, 5] has the character of the values furthest below 0.
        assert!(stage.screen().contains('≣'), "{}", stage.screen());
        let layout = stage.app.layout().unwrap();
        assert!(layout.rows < 300);
        for _ in 0..layout.rows {
            stage.key(KeyCode::Up);
        }
        for _ in 0..layout.columns {
            stage.key(KeyCode::Left);
        }
        let mut met = false;
        for _ in 0..layout.columns {
            met |= stage.app.index() == [0, 5];
            stage.key(KeyCode::Right);
        }
        assert!(met, "no arrow leads to the outlier");
        source = stage.source;
    }
}

#[test]
fn a_histogram_counts_every_finite_value_once() {
    let mut stage = Stage::sized("masked_scores", (120, 40), Depth::True);
    stage.keys("5");
    assert_eq!(stage.app.view().name(), "histogram");
    let screen = stage.screen();
    let place = Panels::new(&stage.app).middle.unwrap();
    let counted: usize = screen
        .lines()
        .skip(usize::from(place.y))
        .filter_map(|line| {
            let line: String =
                line.chars().skip(usize::from(place.x)).take(usize::from(place.width)).collect();
            let line = line.replace('⋮', " ");
            let mut words = line.split_whitespace();
            words.next()?.parse::<f64>().ok()?;
            words.next()?.parse::<f64>().ok()?;
            words.next()?.parse::<usize>().ok()
        })
        .sum();
    let head = stage.app.index()[0];
    let all = values(&mut stage);
    let finite = all.iter().filter(|(index, value)| index[0] == head && value.is_finite()).count();
    assert_eq!(counted, finite, "{screen}");
    stage.shows("not finite: in no bin");
    // The cursor can reach every bin that is not empty.
    let rows = stage.app.layout().unwrap().rows;
    let mut bins = std::collections::BTreeSet::new();
    for _ in 0..rows {
        stage.key(KeyCode::Up);
    }
    for _ in 0..rows {
        bins.insert(stage.app.layout().unwrap().cursor.0);
        stage.key(KeyCode::Down);
    }
    assert_eq!(bins.len(), rows);
}

#[test]
fn every_head_has_a_panel_and_arrows_choose_one() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut stage = Stage::sized("softmax", size, Depth::True);
        stage.keys("3");
        let heads = stage.app.shape()[0];
        assert_eq!(stage.app.cut().held, Some(0));
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..heads {
            stage.key(KeyCode::Left);
            stage.key(KeyCode::Up);
        }
        let layout = stage.app.layout().unwrap();
        for row in 0..layout.rows {
            for _ in 0..layout.columns {
                seen.insert(stage.app.index()[0]);
                stage.key(KeyCode::Right);
            }
            for _ in 0..layout.columns {
                stage.key(KeyCode::Left);
            }
            stage.shows(&format!("{}", row * layout.columns));
            stage.key(KeyCode::Down);
        }
        assert_eq!(seen.len(), heads, "{layout:?}");
        // A click chooses a bin too.
        let area = layout.area;
        stage.click(area.x + layout.cell + 1, area.y + 1);
        assert_eq!(stage.app.index()[0], 1.min(layout.columns - 1));
        assert_eq!(stage.app.place().step.axes()[0], Axis::Head);
    }
}
