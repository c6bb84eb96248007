//! A fingerprint that distinguishes a model from similar ones.

use std::fmt::Write;

use super::Model;
use llama_trace_core::error::Result;
use llama_trace_core::trace::{PassDims, Run, Weight, WeightRows};
use llama_trace_formats::files::Sha256;

/// The number of rows of each weight that are hashed, at equal distances.
const ROWS: usize = 8;

/// SHA-256 hashes in hexadecimal, of the configuration and of a sample of the weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// The hash of the configuration as JSON.
    pub config: String,
    /// The hash of sampled rows of every weight of every layer, as float32. It does not depend on the file format.
    pub weights: String,
}

impl Model {
    /// Computes the fingerprint of this model. It covers every weight, with up to 8 rows of each. Further training,
    /// another quantisation or pruned weights change it. A change of single rows may go unnoticed.
    ///
    /// # Errors
    /// Returns an error if the weights cannot be read from the device.
    pub fn fingerprint(&self) -> Result<Fingerprint> {
        let card = self.card();
        let mut config = Sha256::default();
        config.update(&serde_json::to_vec(&card.config).unwrap_or_default());
        let mut weights = Sha256::default();
        let nothing = PassDims::default();
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
        Ok(Fingerprint { config: hex(config.finish()), weights: hex(weights.finish()) })
    }
}

fn hex(digest: [u8; 32]) -> String {
    digest.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
