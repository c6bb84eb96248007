//! The keys of one architecture in a GGUF file.

use crate::checkpoint::family::{Architecture, Fallback, Means};
use crate::files::gguf::Metadata;
use llama_trace_core::error::Result;

/// The keys of one architecture.
pub(super) struct Keys<'a, 'm> {
    pub metadata: &'a Metadata<'m>,
    pub architecture: &'static Architecture,
}

impl Keys<'_, '_> {
    /// The key with the architecture's name.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture.name)
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<f32>> {
        self.metadata.number(&self.key(name))
    }

    pub(super) fn size(&self, name: &str) -> Result<Option<usize>> {
        self.metadata.size(&self.key(name))
    }

    /// Whether the architecture reads this key.
    pub(super) fn reads(&self, name: &str) -> bool {
        self.architecture.keys.contains(&name)
    }

    /// A number of a key that only some architectures read. As in llama.cpp, 0 stands for no number.
    pub(super) fn optional(&self, name: &str) -> Result<Option<f32>> {
        match self.reads(name) {
            true => Ok(self.number(name)?.filter(|&number| number != 0.0)),
            false => Ok(None),
        }
    }

    /// A soft cap, whose default is that of the family.
    pub(super) fn cap(&self, name: &str, means: Means) -> Result<Option<f32>> {
        if !self.reads(name) {
            return Ok(None);
        }
        let default = self.architecture.family.field(means).and_then(|field| match field.default {
            Fallback::Number(number) => Some(number as f32),
            _ => None,
        });
        Ok(self.number(name)?.or(default).filter(|&cap| cap != 0.0))
    }
}
