//! The model inside the program.

use super::Checkpoint;
use crate::error::{Error, Result};

/// Opens the built-in model.
pub(super) fn open() -> Result<Checkpoint> {
    Err(Error::model("this build has no built-in model yet").next("give a model with --model"))
}
