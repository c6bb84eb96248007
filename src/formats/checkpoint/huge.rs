//! Weights in huge pages.

use std::collections::HashMap;
use std::sync::Arc;

use super::Checkpoint;
use crate::files::{Given, Huge};
use llama_trace_core::error::Result;
use llama_trace_core::tensor::{Bytes, Held, Tensor};

impl Checkpoint {
    /// Copies all tensors into huge pages. A part of a file that several tensors share is copied once. Returns the kind
    /// of memory that the system gave.
    ///
    /// # Errors
    /// An error if there is not enough memory; `Interrupted` if the process was asked to stop; `Usage` if the system is
    /// not Linux.
    pub fn copy_to_huge_pages(&mut self) -> Result<Given> {
        let mut parts: Vec<&mut Bytes> = self.tensors.values_mut().flat_map(Tensor::parts_mut).collect();
        let mut number_of = HashMap::new();
        let mut distinct: Vec<&[u8]> = Vec::new();
        for part in &parts {
            number_of.entry(part.place()).or_insert_with(|| {
                distinct.push(part);
                distinct.len() - 1
            });
        }
        let (copy, ranges, given) = Huge::copy(&distinct)?;
        let copy = Arc::new(copy);
        for part in &mut parts {
            let range = ranges[number_of[&part.place()]].clone();
            **part = Bytes::Held(Arc::clone(&copy) as Arc<dyn Held>, range);
        }
        Ok(given)
    }
}
