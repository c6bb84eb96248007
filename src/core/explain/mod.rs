//! Where a number comes from: the rule by which each cell of each stage follows from other cells, from rows of weights
//! and from constants, in every precision ([`Rules`]), and what a rule gives in float64 ([`Folder`]).
//!
//! ```text
//! Rules ──of(site)──▶ SiteRules ──cell(at)──▶ Rule { fold, rounded } ──Folder::fold(rule, held)──▶ Exact
//! ```
//!
//! A rule is data and holds no number of the run: it names its operands ([`Cell`], [`Line`]), and whoever has them
//! folds them. Nothing here runs a model or knows a device.

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
