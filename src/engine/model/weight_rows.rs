//! Reads rows of a model's weights, for viewers of a running model.

use super::{Linear, Model, Norm};
use crate::backend::{Matrix, SeeGroups, Vector};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::{PassDims, Run, Weight, WeightRows};

/// A weight in the form that the backend stores.
enum Held<'a> {
    Matrix(&'a Matrix),
    Vector(&'a Vector),
}

impl Model {
    /// Returns rows of a weight, widened to float32 from the number type of the file.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] if the model has no such weight, layer or row.
    pub fn rows(&self, at: &WeightRows) -> Result<Vec<f32>> {
        let mut values = Vec::new();
        let mut keep = |seen: &[f32]| {
            values.extend_from_slice(seen);
            Ok(())
        };
        match self.checked(at)? {
            Held::Matrix(matrix) => self.backend.read_rows(matrix, at.rows.clone(), &mut keep)?,
            Held::Vector(vector) => self.backend.read_vector(vector, &mut keep)?,
        }
        Ok(values)
    }

    /// Calls `see` with rows of a matrix as the int8 values that are multiplied. In other precisions it does not call
    /// `see`.
    ///
    /// # Errors
    /// The errors of [`Model::rows`] and those of `see`.
    pub fn int8_rows(&self, at: &WeightRows, see: SeeGroups<'_>) -> Result<()> {
        match self.checked(at)? {
            Held::Matrix(matrix) => self.backend.read_int8_rows(matrix, at.rows.clone(), see),
            Held::Vector(_) => Ok(()),
        }
    }

    /// The backend's matrix of this name, if the model has it.
    pub fn matrix(&self, layer: Option<usize>, weight: Weight) -> Option<&Matrix> {
        match self.held(&WeightRows { run: Run::ITSELF, layer, weight, rows: 0..0 })? {
            Held::Matrix(matrix) => Some(matrix),
            Held::Vector(_) => None,
        }
    }

    /// The backend's vector of this name, if the model has it.
    pub fn vector(&self, layer: Option<usize>, weight: Weight) -> Option<&Vector> {
        match self.held(&WeightRows { run: Run::ITSELF, layer, weight, rows: 0..0 })? {
            Held::Vector(vector) => Some(vector),
            Held::Matrix(_) => None,
        }
    }

    /// The weight, checked to exist and to have the rows.
    fn checked<'a>(&'a self, at: &WeightRows) -> Result<Held<'a>> {
        let weight = at.weight;
        let held = self.held(at).filter(|_| weight.present(&self.card()));
        let held = held.ok_or_else(|| Error::usage(format!("this model has no weight {at}")))?;
        let count = match weight.axes() {
            [outputs, _] => self.sizes().axis(*outputs, PassDims::default()),
            _ => 1,
        };
        if at.rows.end > count {
            let last = count - 1;
            return Err(Error::usage(format!("{at} has no row {}", at.rows.end - 1))
                .expected(format!("a row from 0 to {last}")));
        }
        Ok(held)
    }

    fn held<'a>(&'a self, at: &WeightRows) -> Option<Held<'a>> {
        let weights = &self.weights;
        if !at.weight.in_layer() {
            return match (at.weight.name(), at.layer) {
                ("tok_embeddings", None) => Some(Held::Matrix(&weights.embedding)),
                ("norm", None) => Some(Held::Vector(&weights.final_norm.weight)),
                ("norm_bias", None) => weights.final_norm.bias.as_ref().map(Held::Vector),
                ("output", None) => Some(Held::Matrix(weights.head())),
                _ => None,
            };
        }
        let layer = weights.layers.get(at.layer?)?;
        let matrix = |linear: &'a Linear| Some(Held::Matrix(&linear.matrix));
        let norm = |norm: &'a Option<Norm>| norm.as_ref().map(|norm| Held::Vector(&norm.weight));
        let norm_bias =
            |norm: &'a Option<Norm>| norm.as_ref().and_then(|norm| norm.bias.as_ref().map(Held::Vector));
        let bias = |linear: &'a Linear| linear.bias.as_ref().map(Held::Vector);
        match at.weight.name() {
            "attention_norm" => norm(&layer.attn_norm),
            "attention_norm_bias" => norm_bias(&layer.attn_norm),
            "attention_post_norm" => norm(&layer.post_attn_norm),
            "ffn_norm" => norm(&layer.ffn_norm),
            "ffn_norm_bias" => norm_bias(&layer.ffn_norm),
            "ffn_post_norm" => norm(&layer.post_ffn_norm),
            "q_norm" => norm(&layer.q_norm),
            "k_norm" => norm(&layer.k_norm),
            "xielu" => layer.xielu.as_ref().map(Held::Vector),
            "wq" => matrix(&layer.wq),
            "wk" => matrix(&layer.wk),
            "wv" => matrix(&layer.wv),
            "wo" => matrix(&layer.wo),
            "w1" => matrix(layer.w1.as_ref()?),
            "w2" => matrix(&layer.w2),
            "w3" => matrix(&layer.w3),
            "bq" => bias(&layer.wq),
            "bk" => bias(&layer.wk),
            "bv" => bias(&layer.wv),
            "bo" => bias(&layer.wo),
            "b1" => bias(layer.w1.as_ref()?),
            "b2" => bias(&layer.w2),
            "b3" => bias(&layer.w3),
            _ => None,
        }
    }
}
