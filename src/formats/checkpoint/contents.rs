//! What the files of a checkpoint hold, whatever they are.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use crate::files::printable;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::tensor::Tensor;

/// What the files of a checkpoint hold.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// Tensors by name.
    pub(super) tensors: BTreeMap<String, Tensor>,
    /// Tensors of a dtype that is not read here: name and dtype.
    pub(super) unreadable: BTreeMap<String, String>,
    /// Names of the tensors that are stored in float64 and read as float32.
    pub(super) rounded: BTreeSet<String>,
}

impl Contents {
    /// The same with every name passed through `rename`.
    ///
    /// # Errors
    /// [`Error::Model`] where two tensors that differ get one name.
    pub(super) fn renamed(self, rename: impl Fn(&str) -> String, place: &str) -> Result<Self> {
        let mut all =
            Self { rounded: self.rounded.iter().map(|name| rename(name)).collect(), ..Self::default() };
        for (name, tensor) in self.tensors {
            match all.tensors.entry(rename(&name)) {
                Entry::Vacant(entry) => drop(entry.insert(tensor)),
                Entry::Occupied(entry) if entry.get().equal(&tensor) => {}
                Entry::Occupied(entry) => {
                    return Err(Error::model("the model has two tensors for one weight")
                        .at(place)
                        .expected(format!("one tensor `{}`", printable(entry.key())))
                        .found(format!("another under the name `{}`", printable(&name)))
                        .next("save the model again with one of the two"));
                }
            }
        }
        all.unreadable = self.unreadable.into_iter().map(|(name, dtype)| (rename(&name), dtype)).collect();
        Ok(all)
    }
}
