//! Filtering: which cells are looked for.

use super::app::App;
use super::filter::Filter;

impl App {
    /// The filter, where it is of the step that is shown.
    pub fn filter(&self) -> Option<Filter> {
        self.filter.filter(|filter| filter.step == self.place.step)
    }

    /// Whether a filter leaves `value` out.
    pub fn leaves_out(&self, value: f64) -> bool {
        self.filter().is_some_and(|filter| !filter.takes(value))
    }
}

/// Takes the value under the cursor for the one to look for; where that is done already, looks for none.
pub(super) fn toggle(app: &mut App) -> bool {
    if app.filter().is_some() {
        app.filter = None;
        app.say("all cells are shown again", false);
        return false;
    }
    let like = app.tensor().and_then(|tensor| tensor.get(&app.index()));
    match like.filter(|_| app.view().shows_numbers()) {
        Some(like) => {
            app.filter = Some(Filter { step: app.place.step, like });
            true
        }
        None => {
            app.say(
                "= looks for cells like one among a stage's values; in this view there is none to look for",
                false,
            );
            false
        }
    }
}
