//! The contents of checkpoint files of any format.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use crate::files::printable;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::tensor::Tensor;

/// The contents of a checkpoint's files.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// Tensors by name.
    pub(super) tensors: BTreeMap<String, Tensor>,
    /// Tensors with an unsupported dtype: name and dtype.
    pub(super) unreadable: BTreeMap<String, String>,
    /// Names of tensors that are stored in float64 and read as float32.
    pub(super) rounded: BTreeSet<String>,
}

impl Contents {
    /// The same contents with every name passed through `rename`.
    ///
    /// # Errors
    /// Returns [`Error::Model`] if two different tensors get the same name.
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
                        .found(format!("another one, named `{}`", printable(&name)))
                        .next("save the model again with only one of the two"));
                }
            }
        }
        all.unreadable = self.unreadable.into_iter().map(|(name, dtype)| (rename(&name), dtype)).collect();
        Ok(all)
    }
}
