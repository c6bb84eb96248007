//! The trait of the views, [`View`].

use std::fmt;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use llama_trace_core::trace::{Address, Part, Query, Region, Status, Step};

use super::super::app::App;
use super::super::fit::Piece;
use super::super::place::Place;
use super::super::tensor::region_in_stage;
use super::layout::Layout;
use super::tensor_foot;

/// A way to show a step's values. Everything that the views have in common — moving, paging, the mouse, repeated
/// questions to the source — is written once and uses these methods.
pub trait View: fmt::Debug + Sync {
    /// The name of the view.
    fn name(&self) -> &'static str;

    /// Three lines of help: what the view shows, and what to look for.
    fn hint(&self) -> [&'static str; 3];

    /// Returns whether the view can show `step`.
    fn fits(&self, step: Step) -> bool;

    /// Returns whether the view shows more than the held slice, so that its colours span the whole tensor.
    fn spans_all(&self) -> bool {
        false
    }

    /// Returns whether the view is a grid, which can be drawn without a cursor.
    fn is_grid(&self) -> bool {
        false
    }

    /// The layout of the cells in `body`.
    fn layout(&self, app: &App, body: Rect) -> Layout;

    /// The index of the value in a cell; none until it is known.
    fn index(&self, app: &App, cell: (usize, usize)) -> Option<Vec<usize>>;

    /// Puts the cursor on a cell.
    fn select(&self, app: &mut App, cell: (usize, usize)) {
        if let Some(index) = self.index(app, cell) {
            for (&axis, index) in app.place().step.axes().iter().zip(index) {
                app.cursor.selected.set(axis, index);
            }
        }
    }

    /// Updates the cursor after new answers.
    fn settle(&self, _: &mut App) {}

    /// The questions for the cells on the screen; those for the values come first.
    fn questions(&self, app: &App, layout: &Layout) -> Vec<Query> {
        let site = app.place().site();
        vec![
            Query::Block(site, visible_region(app, layout)),
            Query::Spread(Part::whole(site)),
            Query::Spread(app.part()),
        ]
    }

    /// Ids of the vocabulary whose texts are shown, except those of the cells.
    fn ids(&self, _: &App, _: &Layout) -> Vec<u32> {
        Vec::new()
    }

    /// The reason why a question of this view failed. The question for the step's values is not included.
    fn failure(&self, _: &App) -> Option<String> {
        None
    }

    /// Returns whether the cells are the step's values, which have a derivation.
    fn shows_numbers(&self) -> bool {
        true
    }

    /// Keys with another meaning in this view, and a word for each in the footer.
    fn keys(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// The address that Enter goes to from the cell under the cursor; none if Enter opens the derivation.
    fn enter_address(&self, _: &App) -> Option<Address> {
        None
    }

    /// Chooses the next setting of the view (`by` 1) or the previous one (-1); false if it has none.
    fn choose_setting(&self, _: &mut App, _: isize) -> bool {
        false
    }

    /// Changes the chosen setting; false if the view has no settings.
    fn change_setting(&self, _: &mut App, _: isize) -> bool {
        false
    }

    /// The place and the view that Enter opens from the cell under the cursor; none if Enter opens none.
    fn enter_place(&self, _: &App) -> Option<(Place, &'static str)> {
        None
    }

    /// Returns whether the view is drawn without the step's own values, because it shows other stages too.
    fn needs_no_values(&self) -> bool {
        false
    }

    /// The cells on the screen, as text for the line above them.
    fn caption(&self, app: &App, layout: &Layout) -> Vec<Piece>;

    /// Draws the lines below the cells: legend, statistics, and the value under the cursor.
    fn foot(&self, app: &App, foot: Rect, buf: &mut Buffer) {
        tensor_foot::draw(app, foot, buf);
    }

    /// Draws the legend of marks and colours in the first line of `foot`.
    fn legend(&self, app: &App, foot: Rect, buf: &mut Buffer);

    /// Draws the cells and their labels.
    fn render(&self, app: &App, layout: &Layout, buf: &mut Buffer);
}

/// The note on a computation under way, for a view that is drawn while it runs.
pub(crate) fn progress_note(app: &App) -> Option<Piece> {
    let Status::Working(what) = &app.progress.status else { return None };
    let forms = [format!(" · {what}; Esc stops it"), format!(" · {what}"), " …".to_owned()];
    app.waits().then(|| Piece::forms(forms, app.theme.key()))
}

/// The region of the cells on the screen, in the axes of the stage.
pub(crate) fn visible_region(app: &App, layout: &Layout) -> Region {
    let index = app.index();
    let mut needed: Vec<_> = index.iter().map(|&index| index..index + 1).collect();
    let cut = app.cut();
    for (axis, seen) in
        [(Some(cut.rows), layout.visible_rows(app)), (cut.columns, layout.visible_columns(app))]
    {
        // The cursor can be out of sight for a moment, until the scroll position follows it.
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
