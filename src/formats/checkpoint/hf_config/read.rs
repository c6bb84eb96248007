//! The fields of a config.json by their meaning in the model's family.

use serde_json::Value;

use super::super::family::{Fallback, Family, Field, Means};
use super::super::json::Fields;
use crate::files::printable;
use llama_trace_core::config::Activation;
use llama_trace_core::error::Result;

/// A config.json of a family.
pub(super) struct Reading<'a> {
    pub fields: Fields<'a>,
    pub family: &'static Family,
}

/// The state of a field.
enum State {
    /// The family has no such field, or null stands for "no value".
    None,
    /// The file has a value for this field.
    Given(&'static Field),
    /// The file has no value. The field has this default.
    Default(&'static Field),
}

impl Reading<'_> {
    /// The name of a field in messages and in `--ignore-config`.
    pub(super) fn full(&self, name: &str) -> String {
        format!("{}{name}", self.fields.prefix)
    }

    fn state(&self, means: Means) -> State {
        let Some(field) = self.family.field(means) else { return State::None };
        match self.fields.object.get(field.name) {
            None => State::Default(field),
            Some(Value::Null) => State::None,
            Some(_) => State::Given(field),
        }
    }

    /// The field's name in this family.
    pub(super) fn name(&self, means: Means) -> &'static str {
        self.family.field(means).map_or("", |field| field.name)
    }

    pub(super) fn size(&self, means: Means) -> Result<Option<usize>> {
        match self.state(means) {
            State::None => Ok(None),
            State::Given(field) => self.fields.size(field.name),
            State::Default(field) => match field.default {
                Fallback::Required => self.fields.required_size(field.name).map(Some),
                Fallback::Size(size) => Ok(Some(size)),
                _ => Ok(None),
            },
        }
    }

    /// A size without which there is no model.
    pub(super) fn required_size(&self, means: Means) -> Result<usize> {
        match self.size(means)? {
            Some(size) => Ok(size),
            None => self.fields.required_size(self.name(means)),
        }
    }

    pub(super) fn number64(&self, means: Means) -> Result<Option<f64>> {
        match self.state(means) {
            State::None => Ok(None),
            State::Given(field) => self.fields.number64(field.name),
            State::Default(Field { default: Fallback::Number(number), .. }) => Ok(Some(*number)),
            State::Default(Field { default: Fallback::Size(size), .. }) => Ok(Some(*size as f64)),
            State::Default(_) => Ok(None),
        }
    }

    pub(super) fn number(&self, means: Means) -> Result<Option<f32>> {
        Ok(self.number64(means)?.map(|number| number as f32))
    }

    /// A positive factor; 1 if the family has none.
    pub(super) fn factor(&self, means: Means) -> Result<f32> {
        Ok(self.number(means)?.unwrap_or(1.0))
    }

    /// A flag. `None` if the family has no such field.
    pub(super) fn flag(&self, means: Means) -> Result<Option<bool>> {
        match self.state(means) {
            State::None => Ok(self.family.field(means).map(|_| false)),
            State::Given(field) => self.fields.flag(field.name).map(Some),
            State::Default(Field { default: Fallback::Flag(flag), .. }) => Ok(Some(*flag)),
            State::Default(_) => Ok(Some(false)),
        }
    }

    /// Whether the family has this flag, and it is true.
    pub(super) fn is(&self, means: Means) -> Result<bool> {
        Ok(self.flag(means)? == Some(true))
    }

    pub(super) fn activation(&self) -> Result<Activation> {
        const NAMES: &[(&str, Activation)] = &[
            ("silu", Activation::Silu),
            ("swish", Activation::Silu),
            ("gelu", Activation::Gelu),
            ("gelu_python", Activation::Gelu),
            ("gelu_new", Activation::GeluTanh),
            ("gelu_pytorch_tanh", Activation::GeluTanh),
            ("relu2", Activation::Relu2),
            ("xielu", Activation::Xielu),
        ];
        let Some(field) = self.family.activation_field() else { return Ok(Activation::Silu) };
        let Some(name) = self.fields.text(field.name)? else { return Ok(self.family.default_activation()) };
        let found = NAMES.iter().find(|(known, _)| *known == name).map(|(_, activation)| *activation);
        match (found, field.means) {
            (Some(Activation::Gelu), Means::TanhActivation) => Ok(Activation::GeluTanh),
            (Some(Activation::Xielu), means) if means != Means::XieluActivation => {
                Err(self.unknown_activation(field.name, name, NAMES))
            }
            (Some(activation), _) => Ok(activation),
            (None, _) => Err(self.unknown_activation(field.name, name, NAMES)),
        }
    }

    fn unknown_activation(
        &self,
        field: &str,
        found: &str,
        known: &[(&str, Activation)],
    ) -> llama_trace_core::error::Error {
        let known: Vec<_> = known.iter().map(|(name, _)| format!("\"{name}\"")).collect();
        let next = format!(
            "use another model, or if you know that this value is wrong: --ignore-config {}",
            self.full(field)
        );
        let found = format!("\"{}\"", printable(found));
        self.fields.wrong(field, &format!("one of {}", known.join(", ")), found).next(next)
    }
}
