//! Keys of the views: the list of the views of a step, and the choice of a view by its number.

use super::action::Action;
use super::app::App;
use super::input::Mode;
use super::view::kind::View;
use super::view::view_list;
use super::view::views;

/// Opens the list of views.
pub(super) fn open(app: &mut App) {
    app.input.mode = Mode::Views(app.view().name());
}

/// Handles an action in the list of views. `before` is the view that was shown before the list was opened. An action
/// that does not belong to the list closes it, and is returned.
pub(super) fn press(app: &mut App, before: &'static str, action: &Action) -> Option<Action> {
    let passed_on = match *action {
        Action::Down | Action::Views => return turn(app, 1),
        Action::Up => return turn(app, -1),
        Action::Scroll { down, .. } => return turn(app, isize::from(down.signum())),
        // The list stays open.
        Action::Redraw | Action::Suspend => return Some(action.clone()),
        Action::Drag(..) => return None,
        Action::ChooseView(number) if !choose(app, number) => return None,
        Action::ChooseView(_) | Action::Explain => None,
        Action::Close | Action::Quit => {
            app.choose_view(before);
            None
        }
        Action::Click(x, y) => match view_list::click(app, x, y) {
            view_list::Clicked::View(name) => {
                app.choose_view(name);
                None
            }
            view_list::Clicked::Inside => return None,
            view_list::Clicked::Outside => None,
        },
        ref other => Some(other.clone()),
    };
    app.input.mode = Mode::Walk;
    passed_on
}

/// Shows the view that is `by` lines down in the list.
fn turn(app: &mut App, by: isize) -> Option<Action> {
    let names: Vec<_> = views::fitting(app.place.step).map(View::name).collect();
    let now = names.iter().position(|&name| name == app.view().name()).unwrap_or(0);
    app.choose_view(names[(now + names.len()).saturating_add_signed(by) % names.len()]);
    None
}

/// Chooses the view of the step with this number; false if there is none. The first view is number 1.
pub(super) fn choose(app: &mut App, number: u8) -> bool {
    let step = app.place.step;
    let names: Vec<_> = views::fitting(step).map(View::name).collect();
    if let Some(name) = names.get(usize::from(number).wrapping_sub(1)) {
        app.choose_view(name);
        return true;
    }
    let names: Vec<_> =
        (1..).zip(&names).map(|(number, name): (usize, _)| format!("{number} {name}")).collect();
    app.say(format!("the views of {}: {}", step.name(), names.join(", ")), false);
    false
}
