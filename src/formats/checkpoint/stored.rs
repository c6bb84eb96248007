//! Weights that a family stores together or in parts. Each weight becomes a tensor of its own, without copying where its
//! values are consecutive in the file.

use super::contents::Contents;
use super::family::Stored;
use super::gather;
use super::names::{LayerWeight as L, Naming, Weight};
use crate::files::printable;
use llama_trace_core::config::{ModelConfig, QkWidth};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::tensor::{Dtype, Tensor};

/// Gives each weight its own tensor in `contents`.
///
/// # Errors
/// Returns [`Error::Model`] if a tensor does not have the shape that the configuration requires, or if a weight is
/// stored twice.
pub(super) fn separate(
    contents: &mut Contents,
    stored: &[Stored],
    naming: Naming,
    config: &ModelConfig,
    place: &str,
) -> Result<()> {
    let mut separation = Separation { contents, naming, config, place };
    let each_head = config.qk_norm && config.qk_norm_form.width == QkWidth::EachHead;
    if stored.is_empty() && !each_head {
        return Ok(());
    }
    for layer in 0..config.layers {
        for form in stored {
            match *form {
                Stored::Fused(name, weights) => separation.split(layer, name, weights)?,
                Stored::Joined(weight, names) => {
                    let names: Vec<_> = names.iter().map(|name| naming.in_layer(layer, name)).collect();
                    separation.join(layer, weight, &names)?;
                }
                Stored::PerHead(weight, name) => {
                    let heads = weight_of(layer, weight).shape(config)[0] / config.head_dim;
                    let name = |head: usize| naming.in_layer(layer, &name.replace("{}", &head.to_string()));
                    // Most models have no such tensors.
                    if separation.contents.tensors.contains_key(&name(0)) {
                        separation.join(layer, weight, &(0..heads).map(name).collect::<Vec<_>>())?;
                    }
                }
                Stored::Constant(name, value) => separation.constant(&naming.in_layer(layer, name), value)?,
            }
        }
        if each_head {
            [L::QNorm, L::KNorm].into_iter().for_each(|weight| separation.flatten(layer, weight));
        }
    }
    Ok(())
}

fn weight_of(layer: usize, weight: L) -> Weight {
    Weight::Layer(layer, weight)
}

struct Separation<'a> {
    contents: &'a mut Contents,
    naming: Naming,
    config: &'a ModelConfig,
    place: &'a str,
}

impl Separation<'_> {
    fn wrong(&self, name: &str, what: &str, expected: String, found: String) -> Error {
        Error::model(format!("tensor `{}` {what}", printable(name)))
            .at(self.place)
            .expected(expected)
            .found(found)
            .next("check that the configuration and the weights belong to the same model")
    }

    fn insert(&mut self, layer: usize, weight: L, tensor: Tensor) -> Result<()> {
        let name = self.naming.name(weight_of(layer, weight));
        let is_unreadable = self.contents.unreadable.contains_key(&name);
        if is_unreadable || self.contents.tensors.insert(name.clone(), tensor).is_some() {
            let expected = "the weight once: alone, or in one tensor with others".into();
            return Err(self.wrong(&name, "is in the model twice", expected, "both".into()));
        }
        Ok(())
    }

    /// Splits the rows of one tensor among `weights`.
    fn split(&mut self, layer: usize, name: &str, weights: &[L]) -> Result<()> {
        let full = self.naming.in_layer(layer, name);
        if let Some(dtype) = self.contents.unreadable.remove(&full) {
            let names = weights.iter().map(|&weight| self.naming.name(weight_of(layer, weight)));
            self.contents.unreadable.extend(names.map(|name| (name, dtype.clone())));
        }
        let Some(tensor) = self.contents.tensors.remove(&full) else { return Ok(()) };
        let shapes: Vec<_> =
            weights.iter().map(|&weight| weight_of(layer, weight).shape(self.config)).collect();
        let mut expected = shapes[0].clone();
        expected[0] = shapes.iter().map(|shape| shape[0]).sum();
        if tensor.shape() != expected {
            let what = "has the wrong shape";
            let expected =
                format!("{expected:?}, as the configuration says: {} weights together", weights.len());
            return Err(self.wrong(&full, what, expected, format!("{:?}", tensor.shape())));
        }
        let row = tensor.bytes().len() / expected[0];
        let mut start = 0;
        for (&weight, shape) in weights.iter().zip(shapes) {
            let end = start + shape[0] * row;
            let part = tensor.bytes().slice(start..end);
            let part = part.and_then(|bytes| Tensor::new(tensor.dtype(), shape, bytes));
            let Some(part) = part else {
                let found = format!("{} {:?}", tensor.dtype(), tensor.shape());
                return Err(self.wrong(&full, "cannot be split", "rows of whole blocks".into(), found));
            };
            self.insert(layer, weight, part)?;
            start = end;
        }
        Ok(())
    }

    /// Joins the tensors `names` to one weight. Does nothing if none of them exists.
    fn join(&mut self, layer: usize, weight: L, names: &[String]) -> Result<()> {
        let parts: Vec<_> = names.iter().map(|name| self.contents.tensors.remove(name)).collect();
        if parts.iter().all(Option::is_none) {
            return Ok(());
        }
        let size: usize = weight_of(layer, weight).shape(self.config)[0] / names.len();
        let mut whole = Vec::new();
        for (part, name) in parts.into_iter().zip(names) {
            let Some(part) = part else {
                let expected = format!("{} tensors, one for each part of a weight", names.len());
                return Err(self.wrong(name, "is not in the model", expected, "some of them".into()));
            };
            let same = whole.first().is_none_or(|first: &Tensor| first.dtype() == part.dtype());
            if part.count() != size || !same {
                let expected = format!("{size} values of the same number type as in the other parts");
                let found = format!("{} {:?}", part.dtype(), part.shape());
                return Err(self.wrong(name, "has the wrong shape", expected, found));
            }
            whole.extend(Tensor::new(part.dtype(), vec![size], part.bytes().clone()));
        }
        match gather::join(&whole, 0) {
            Some(tensor) => self.insert(layer, weight, tensor),
            None => Ok(()),
        }
    }

    /// Removes a tensor that must have one value.
    fn constant(&mut self, name: &str, value: f32) -> Result<()> {
        let Some(tensor) = self.contents.tensors.remove(name) else { return Ok(()) };
        let found = scalar(&tensor);
        if found.is_none_or(|found| (found - value).abs() > value.abs() / 64.0) {
            let found = found.map_or_else(|| format!("{:?}", tensor.shape()), |found| found.to_string());
            return Err(self.wrong(name, "has an unsupported value", value.to_string(), found));
        }
        Ok(())
    }

    /// Drops the axis of the heads.
    fn flatten(&mut self, layer: usize, weight: L) {
        let (name, shape) = {
            let weight = weight_of(layer, weight);
            (self.naming.name(weight), weight.shape(self.config))
        };
        let Some(tensor) = self.contents.tensors.get_mut(&name) else { return };
        if *tensor.shape() == [shape[0] / self.config.head_dim, self.config.head_dim]
            && let Some(flat) = Tensor::new(tensor.dtype(), shape, tensor.bytes().clone())
        {
            *tensor = flat;
        }
    }
}

/// The value of a tensor that has only one.
fn scalar(tensor: &Tensor) -> Option<f32> {
    let bytes: &[u8] = tensor.bytes();
    match (tensor.dtype(), bytes) {
        (Dtype::F32, &[a, b, c, d]) => Some(f32::from_le_bytes([a, b, c, d])),
        (Dtype::BF16, &[a, b]) => Some(f32::from_le_bytes([0, 0, a, b])),
        _ => None,
    }
}
