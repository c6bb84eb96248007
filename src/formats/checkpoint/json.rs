//! A JSON object of a model's hyperparameters, with fields read by name and type.

use serde_json::{Map, Value};

use crate::files::{brief, printable, read_json};
use llama_trace_core::error::{Error, Result};

/// Parses the text of a file as a JSON object.
pub(super) fn parse_object(text: &str, place: &str) -> Result<Map<String, Value>> {
    read_json(text).map_err(|error| {
        Error::model("the file is not a JSON object")
            .at(place)
            .expected("JSON with the model's hyperparameters")
            .found(printable(&error.to_string()))
            .next("fetch the file again")
    })
}

/// A JSON object with fields read by name and type. Null counts as absent; [`super::screen`] has refused it in fields
/// that do not allow it.
pub(super) struct Fields<'a> {
    pub(super) object: &'a Map<String, Value>,
    /// The file, for messages.
    pub(super) place: &'a str,
    /// The prefix of field names in messages, with the dot; empty for the file's own object.
    pub(super) prefix: &'a str,
}

impl<'a> Fields<'a> {
    pub(super) fn wrong(&self, name: &str, expected: &str, found: String) -> Error {
        Error::model(format!("this program cannot use the value of `{}{name}`", self.prefix))
            .at(self.place)
            .expected(expected)
            .found(found)
            .next("compare the file with the published one")
    }

    pub(super) fn get(&self, name: &str) -> Option<&'a Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    fn typed<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.wrong(name, expected, brief(value)))
    }

    /// An integer from 0 to 2³¹ − 1, the limit for every size of a model.
    pub(super) fn size(&self, name: &str) -> Result<Option<usize>> {
        self.typed(name, "a whole number below 2147483648", |value| {
            value.as_u64().filter(|&size| size <= i32::MAX as u64).map(|size| size as usize)
        })
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<f32>> {
        self.typed(name, "a number", |value| value.as_f64().map(|number| number as f32))
    }

    /// A number with the precision of the file, for values that are computed from it.
    pub(super) fn number64(&self, name: &str) -> Result<Option<f64>> {
        self.typed(name, "a number", Value::as_f64)
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<&'a str>> {
        self.typed(name, "a string", Value::as_str)
    }

    pub(super) fn object(&self, name: &str) -> Result<Option<&'a Map<String, Value>>> {
        self.typed(name, "an object", Value::as_object)
    }

    /// A boolean; false if it is absent.
    pub(super) fn flag(&self, name: &str) -> Result<bool> {
        Ok(self.typed(name, "true or false", Value::as_bool)?.unwrap_or(false))
    }

    pub(super) fn required_size(&self, name: &str) -> Result<usize> {
        self.size(name)?.ok_or_else(|| self.wrong(name, "a whole number", self.nothing(name)))
    }

    pub(super) fn required_number(&self, name: &str) -> Result<f32> {
        self.number(name)?.ok_or_else(|| self.wrong(name, "a number", self.nothing(name)))
    }

    /// A description of a missing value.
    fn nothing(&self, name: &str) -> String {
        if self.object.contains_key(name) { "null" } else { "no such field" }.into()
    }
}
