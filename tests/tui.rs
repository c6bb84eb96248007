//! The viewer without a terminal: updates by actions, screens on a test backend, and random input.

#![allow(clippy::unwrap_used)] // a test that fails may stop with a panic

#[path = "tui/addresses.rs"]
mod addresses;
#[path = "tui/attention.rs"]
mod attention;
#[path = "tui/cache.rs"]
mod cache;
#[path = "tui/comparing.rs"]
mod comparing;
#[path = "tui/derivations.rs"]
mod derivations;
#[path = "tui/desk.rs"]
mod desk;
#[path = "tui/edits.rs"]
mod edits;
#[path = "tui/families.rs"]
mod families;
#[path = "tui/figures.rs"]
mod figures;
#[path = "tui/flow.rs"]
mod flow;
#[path = "tui/judged.rs"]
mod judged;
#[path = "tui/lens.rs"]
mod lens;
#[path = "tui/lessons.rs"]
mod lessons;
#[path = "tui/looking.rs"]
mod looking;
#[path = "tui/moving.rs"]
mod moving;
#[path = "tui/numbers.rs"]
mod numbers;
#[path = "tui/opening.rs"]
mod opening;
#[path = "tui/patch.rs"]
mod patch;
#[path = "tui/pictures.rs"]
mod pictures;
#[path = "tui/random.rs"]
mod random;
#[path = "tui/readable.rs"]
mod readable;
#[path = "tui/rope.rs"]
mod rope;
#[path = "tui/screens.rs"]
mod screens;
#[path = "tui/sequences.rs"]
mod sequences;
#[path = "tui/shown.rs"]
mod shown;
#[path = "tui/stage.rs"]
mod stage;
#[path = "tui/synthetic.rs"]
mod synthetic;
#[path = "tui/typing.rs"]
mod typing;
#[path = "tui/updates.rs"]
mod updates;
#[path = "tui/view_list.rs"]
mod view_list;
#[path = "tui/views.rs"]
mod views;
#[path = "tui/walk.rs"]
mod walk;
