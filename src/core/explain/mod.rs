//! The rules of the forward pass. [`Rules`] gives the operands of each cell of each stage, in every precision: cells,
//! weight rows and constants. [`Folder`] evaluates a rule in float64.
//!
//! ```text
//! Rules ──of(site)──▶ SiteRules ──cell(at)──▶ Rule { fold, rounded } ──Folder::fold(rule, held)──▶ Exact
//! ```
//!
//! A rule is data and holds no number of the run. It names its operands ([`Cell`], [`Line`]); the caller supplies their
//! values. Nothing here runs a model or uses a device.

mod attribution;
mod fold;
mod frequency;
mod rule;
mod site;
mod stream;
mod terms;
mod token;
mod units;

pub use attribution::attribute;
pub use fold::{Exact, Folder, Held, Numbers};
pub use frequency::Frequency;
pub use rule::{Cell, Fold, Line, Place, Rule};
pub use site::{Rules, SiteRules};
pub use stream::added;
pub use terms::{Operands, explain};
pub use units::{strongest, writings};
