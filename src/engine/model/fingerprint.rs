//! What tells a model from others that look like it.

use std::fmt::Write;

use ring::digest::{Context, Digest, SHA256};

use super::Model;
use crate::backend::Backend;
use llama_trace_core::error::Result;
use llama_trace_core::trace::{PassDims, Run, Weight, WeightRows};

/// Rows of a weight that are looked at, evenly apart.
const ROWS: usize = 8;

/// SHA-256 in hexadecimal: of the configuration, and of some of the weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// Of the configuration as JSON.
    pub config: String,
    /// Of rows of every weight of every layer, as float32: whichever file they came from.
    pub weights: String,
}

impl<B: Backend> Model<B> {
    /// What tells this model from others. Every weight is looked at, and up to 8 rows of each: a model that was trained
    /// further, quantised otherwise or cut otherwise has another, one in which single rows were changed may not.
    ///
    /// # Errors
    /// Where the weights cannot be read from the device.
    pub fn fingerprint(&self) -> Result<Fingerprint> {
        let card = self.card();
        let mut config = Context::new(&SHA256);
        config.update(&serde_json::to_vec(&card.config).unwrap_or_default());
        let mut weights = Context::new(&SHA256);
        let nothing = PassDims { pass: 0, start: 0, tokens: 0 };
        for weight in Weight::all().filter(|weight| weight.present(&card)) {
            let count = match weight.axes() {
                [outputs, _] => self.sizes().axis(*outputs, nothing),
                _ => 1,
            };
            let layers = if weight.in_layer() { self.config.layers } else { 1 };
            for layer in 0..layers {
                let layer = weight.in_layer().then_some(layer);
                for at in 0..ROWS.min(count) {
                    self.backend.stop().check()?;
                    let row = at * (count - 1) / (ROWS.min(count) - 1).max(1);
                    let values =
                        self.rows(&WeightRows { run: Run::ITSELF, layer, weight, rows: row..row + 1 })?;
                    weights.update(bytemuck::cast_slice(&values));
                }
            }
        }
        Ok(Fingerprint { config: hex(&config.finish()), weights: hex(&weights.finish()) })
    }
}

fn hex(digest: &Digest) -> String {
    digest.as_ref().iter().fold(String::new(), |mut text, byte| {
        // A string takes all that is written.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
