//! What a way to show a step's values tells of itself.

use std::fmt;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use llama_trace_core::trace::{Address, Part, Query, Region, Status, Step};

use super::super::app::App;
use super::super::fit::Piece;
use super::super::place::Place;
use super::super::tensor::region_in_stage;
use super::foot;
use super::layout::Layout;

/// A way to show a step's values. Everything that is true of all of them — moving, paging, the mouse, what is asked of
/// the source again — is written once, over what is told here.
pub trait View: fmt::Debug + Sync {
    /// Its name.
    fn name(&self) -> &'static str;

    /// Three lines: what it shows, and what to look for.
    fn hint(&self) -> [&'static str; 3];

    /// Whether it can show `step`.
    fn fits(&self, step: Step) -> bool;

    /// Whether it shows more than the slice that is held, so that one scale must do for all.
    fn spans_all(&self) -> bool {
        false
    }

    /// Whether it is a grid in which no cell need have the cursor.
    fn spans_grid(&self) -> bool {
        false
    }

    /// Where its cells are in `body`.
    fn layout(&self, app: &App, body: Rect) -> Layout;

    /// The index of the step's value that is in a cell; none while that is not known.
    fn index(&self, app: &App, cell: (usize, usize)) -> Option<Vec<usize>>;

    /// Puts the cursor on a cell.
    fn select(&self, app: &mut App, cell: (usize, usize)) {
        if let Some(index) = self.index(app, cell) {
            for (&axis, index) in app.place().step.axes().iter().zip(index) {
                app.selected.set(axis, index);
            }
        }
    }

    /// Puts the cursor where this view has it from what is known now.
    fn settle(&self, _: &mut App) {}

    /// What it must know to draw these cells, the values themselves first.
    fn questions(&self, app: &App, layout: &Layout) -> Vec<Query> {
        let site = app.place().site();
        vec![
            Query::Block(site, seen(app, layout)),
            Query::Spread(Part::whole(site)),
            Query::Spread(app.part()),
        ]
    }

    /// Ids of the vocabulary whose texts it shows beside those of its cells.
    fn ids(&self, _: &App, _: &Layout) -> Vec<u32> {
        Vec::new()
    }

    /// Why it has nothing to show, where what it asked for beside the values cannot be had.
    fn failed(&self, _: &App) -> Option<String> {
        None
    }

    /// Whether its cells are the step's numbers, which can be taken apart.
    fn shows_numbers(&self) -> bool {
        true
    }

    /// Keys that do something else in it than elsewhere, with a word each, for the last line.
    fn keys(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// Where Enter goes from the cell under the cursor; none where that takes the value there apart.
    fn jump(&self, _: &App) -> Option<Address> {
        None
    }

    /// Chooses the next of its own settings, or the one before; false where it has none.
    fn choose(&self, _: &mut App, _: isize) -> bool {
        false
    }

    /// Changes the setting that is chosen; false where it has none.
    fn change(&self, _: &mut App, _: isize) -> bool {
        false
    }

    /// Where Enter goes from the cell under the cursor, and in which view that is looked at; none where it does neither.
    fn opened(&self, _: &App) -> Option<(Place, &'static str)> {
        None
    }

    /// Whether it tells of other stages too, and is drawn where the step's own values are not there.
    fn stands_alone(&self) -> bool {
        false
    }

    /// Which cells are on the screen, in words.
    fn caption(&self, app: &App, layout: &Layout) -> Vec<Piece>;

    /// Draws the lines below the cells: what the marks and colours mean, statistics, and the value under the cursor.
    fn foot(&self, app: &App, foot: Rect, buf: &mut Buffer) {
        foot::draw(app, foot, buf);
    }

    /// Draws what the marks and colours mean, in the first line of `foot`.
    fn legend(&self, app: &App, foot: Rect, buf: &mut Buffer);

    /// Draws the cells and their labels.
    fn render(&self, app: &App, layout: &Layout, buf: &mut Buffer);
}

/// What is being computed for a view that is drawn meanwhile.
pub(crate) fn under_way(app: &App) -> Option<Piece> {
    let Status::Working(what) = &app.status else { return None };
    let forms = [format!(" · {what}; Esc stops it"), format!(" · {what}"), " …".to_owned()];
    app.waits().then(|| Piece::forms(forms, app.theme.key()))
}

/// The indices, in the axes of the stage, of the values in the cells that are on the screen.
pub(crate) fn seen(app: &App, layout: &Layout) -> Region {
    let index = app.index();
    let mut needed: Vec<_> = index.iter().map(|&index| index..index + 1).collect();
    let cut = app.cut();
    for (axis, seen) in
        [(Some(cut.rows), layout.visible_rows(app)), (cut.columns, layout.visible_columns(app))]
    {
        // Before it has settled, the cursor may be elsewhere.
        if let Some(axis) = axis.filter(|&axis| seen.contains(&index[axis])) {
            needed[axis] = seen;
        }
    }
    in_stage(app, Region(needed))
}

/// `region` of the current step in the axes of its stage.
pub(crate) fn in_stage(app: &App, region: Region) -> Region {
    let step = app.place().step;
    let whole = app.outline().card.sizes().shape(step.stage().axes(), app.dims());
    region_in_stage(step, region, &whole).within(&whole)
}
