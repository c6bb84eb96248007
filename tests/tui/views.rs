//! Rules for every view: the places of its cells, the movements of the cursor, and the values that it requests.

use llama_trace::backend::cpu::Cpu;
use llama_trace::model::Model;
use llama_trace::trace::{Address, Query, Step};
use llama_trace::tui::OpenAt;
use llama_trace::tui::open::open;
use llama_trace::tui::theme::Depth;
use llama_trace::tui::user_event::KeyCode;
use llama_trace::tui::view::tensor::LOOK_FOR;
use llama_trace::tui::view::views::{VIEWS, fitting};

use crate::desk::Desk;
use crate::stage::Stage;
use crate::synthetic::Synthetic;

const SIZES: [(u16, u16); 4] = [(60, 16), (80, 24), (120, 40), (200, 60)];

/// Calls `check` at every step in every view that fits it, on screens of several sizes.
fn everywhere(check: impl Fn(&mut Stage, &str)) {
    for size in SIZES {
        let mut stage = Stage::new(Synthetic::with_switches(), size, Depth::True);
        for number in 0..stage.app.walk().len() {
            let place = stage.app.walk().at(number);
            let step = place.step;
            for view in fitting(step) {
                // Returns to the place for each view, because a view may lead to another layer.
                let at = OpenAt { at: Some(Address::parse(&place.path()).unwrap()), ..OpenAt::default() };
                open(&mut stage.app, &at).unwrap();
                stage.sync();
                stage.choose(view.name());
                check(&mut stage, &format!("{} as {} at {size:?}", step.name(), view.name()));
            }
        }
    }
}

#[test]
fn every_step_has_a_view_and_every_view_a_step_and_a_hint() {
    let mut stage = Stage::new(Synthetic::with_switches(), (120, 40), Depth::True);
    let steps: Vec<Step> =
        (0..stage.app.walk().len()).map(|number| stage.app.walk().at(number).step).collect();
    for step in &steps {
        assert!(fitting(*step).next().is_some(), "{}", step.name());
    }
    let mut help = String::new();
    stage.keys("?");
    for _ in 0..200 {
        help += &stage.screen();
        stage.key(KeyCode::Down);
    }
    for (i, view) in VIEWS.iter().enumerate() {
        assert!(steps.iter().any(|&step| view.fits(step)), "{}", view.name());
        assert!(VIEWS[..i].iter().all(|other| other.name() != view.name()));
        for line in view.hint() {
            let words = line.split(' ').take(4).collect::<Vec<_>>().join(" ");
            assert!(help.contains(&words), "`{words}` is not in the help");
        }
    }
}

/// If there is room below a view, its whole hint is there, and nowhere else.
#[test]
fn the_hint_is_below_the_values_if_there_is_room() {
    let mut shown = 0;
    for size in SIZES {
        let mut stage = Stage::sized("softmax", size, Depth::None);
        for number in 1..=9 {
            let screen = stage.keys(&number.to_string()).screen();
            let words: Vec<&str> = stage.app.view().hint().iter().flat_map(|line| line.split(' ')).collect();
            if let Some((_, below)) = screen.split_once(LOOK_FOR) {
                let told = words.iter().filter(|word| below.contains(**word)).count();
                assert_eq!(told, words.len(), "{}\n{screen}", stage.app.view().name());
                shown += 1;
            }
        }
        assert!(size.1 > 24 || shown == 0, "{}", stage.screen());
    }
    assert!(shown > 6, "{shown}");
}

/// Returns whether a view is a diagram, whose cells are boxes or empty. Diagrams have separate tests.
fn is_diagram(stage: &Stage) -> bool {
    ["flow", "pass"].contains(&stage.app.view().name())
}

#[test]
fn a_click_on_a_cell_selects_what_the_cell_shows() {
    everywhere(|stage, what| {
        if is_diagram(stage) {
            return;
        }
        let layout = stage.app.layout().unwrap();
        let mut cells = Vec::new();
        layout.each_cell(&stage.app, |row, column, x, y| {
            cells.push(((row, column), layout.area.x + x, layout.area.y + y));
        });
        assert!(!cells.is_empty(), "{what}");
        let corners = [0, cells.len() / 2, cells.len() - 1];
        for (cell, x, y) in corners.map(|at| cells[at]) {
            assert_eq!(layout.cell_at(&stage.app, x, y), Some(cell), "{what}");
            let index = stage.app.view().index(&stage.app, cell);
            stage.click(x, y);
            if let Some(index) = index {
                assert_eq!(stage.app.index(), index, "{what}");
            }
            assert_eq!(stage.app.layout().unwrap().cursor, cell, "{what}");
        }
        assert_eq!(layout.cell_at(&stage.app, layout.area.x, layout.area.y), None, "{what}: a label");
    });
}

#[test]
fn moving_goes_to_the_next_cell_and_stops_at_the_last() {
    everywhere(|stage, what| {
        for (key, down, right) in
            [('j', 1_isize, 0_isize), ('k', -1, 0), ('l', 0, 1), ('h', 0, -1), ('$', 0, 999), ('0', 0, -999)]
        {
            // The units of another token are in another order.
            if is_diagram(stage) || stage.app.view().name() == "neurons" && right != 0 {
                continue;
            }
            let layout = stage.app.layout().unwrap();
            // In a list, the keys for the first and last column go to the ends of the list.
            let (down, right) =
                if layout.columns == 1 && right.abs() > 1 { (right, 0) } else { (down, right) };
            let expected = layout.moved(down, right);
            stage.keys(&key.to_string());
            let after = stage.app.layout().unwrap();
            assert_eq!(after.cursor, expected, "{what} after {key}");
            assert!(after.visible_rows(&stage.app).contains(&expected.0), "{what}: the cursor is seen");
            assert!(after.visible_columns(&stage.app).contains(&expected.1), "{what}: the cursor is seen");
        }
    });
}

#[test]
fn a_view_requests_the_values_of_all_its_cells() {
    everywhere(|stage, what| {
        let (app, layout) = (&stage.app, stage.app.layout().unwrap());
        let queries = app.view().questions(app, &layout);
        let own = app.place().site();
        let blocks = queries.iter().filter(|query| matches!(query, Query::Block(site, _) if *site == own));
        assert_eq!(blocks.count(), 1, "{what}");
        let tensor = app.tensor().unwrap();
        layout.each_cell(app, |row, column, _, _| {
            // The cells of some views are not values of the step.
            let index = app.view().index(app, (row, column));
            let known = index.as_ref().is_none_or(|index| tensor.get(index).is_some());
            assert!(known || ["lens", "layers"].contains(&app.view().name()), "{what}: {index:?}");
        });
    });
}

#[test]
fn the_cache_view_uses_the_singular_for_one_remaining_token() {
    let model = Model::load(&llama_trace::builtin::open().unwrap(), Cpu::default()).unwrap();
    // The context is 64 tokens, so there is room for one more.
    let mut desk = Desk::on(model, vec![1; 63], None, "p0/L0/cache_k[k=0,g=0,c=0]", (200, 60));
    desk.choose("cache");
    desk.shows("room for 64 tokens");
    desk.shows(": 1 token, ");
}
