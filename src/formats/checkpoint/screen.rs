//! The screening of a configuration: no field is skipped silently. Each is looked up in the table ([`super::fields`]).
//! A field that could change the numbers and is not supported is refused, unless the user chooses to ignore it.

use serde_json::{Map, Value};

use super::class::Class;
use super::fields::{self, Null, Rule, Source};
use crate::files::{brief, printable};
use llama_trace_core::error::{Error, Result};

/// Deviations from the contents of the files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// Configuration fields that were treated as absent at the user's request.
    pub ignored: Vec<String>,
    /// Unused fields: unknown fields whose names do not suggest that they change numbers, and fields that have no
    /// effect because of other fields.
    pub unknown: Vec<String>,
    /// Tensors that neither this program nor the reference reads.
    pub unread: Vec<String>,
    /// Tensors that the index of shards lists but no shard has.
    pub absent: Vec<String>,
    /// Tensors that are in two shards.
    pub twice: Vec<String>,
    /// Float64 tensors, which are rounded to float32.
    pub rounded: Vec<String>,
    /// The model's class in config.json, if it is not a language model.
    pub class: Option<Class>,
    /// The `model_type` of a model that also reads images, if only its text model is opened.
    pub text_model_of: Option<String>,
}

impl Notes {
    /// One line for each kind of note, for standard error and for `info`.
    pub fn lines(&self) -> Vec<String> {
        let kinds = [
            (&self.ignored, "configuration ignored by --ignore-config"),
            (&self.unknown, "configuration that nothing reads"),
            (&self.unread, "tensors that nothing reads"),
            (&self.absent, "tensors that the index lists but no shard has"),
            (&self.twice, "tensors that are in several shards, read from the last"),
            (&self.rounded, "tensors of float64, rounded to float32"),
        ];
        let some = kinds.into_iter().filter(|(names, _)| !names.is_empty());
        let lines = some.map(|(names, what)| format!("{what}: {}", few(names)));
        let class = self
            .class
            .iter()
            .map(|class| format!("the model was saved as {class}; logits here are those of the next token"));
        let text_model = self.text_model_of.iter().map(|kind| {
            format!("the model also reads images ({}); only its text model is opened", printable(kind))
        });
        text_model.chain(class).chain(lines).collect()
    }
}

/// The first few names from a file, and the number of the others.
fn few(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<_> = names.iter().take(SHOWN).map(|name| format!("`{}`", printable(name))).collect();
    match names.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// The screening of one configuration.
#[derive(Debug)]
pub(super) struct Screen<'a> {
    /// The file, for messages.
    place: &'a str,
    /// The fields to ignore, with the names that the error messages use.
    ignore: &'a [String],
    pub(super) notes: Notes,
}

impl<'a> Screen<'a> {
    pub(super) fn new(place: &'a str, ignore: &'a [String]) -> Self {
        Self { place, ignore, notes: Notes::default() }
    }

    /// Removes the fields to ignore from `object`: `name`, or `outer.name` for a field of an inner object.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] if there is no such field.
    pub(super) fn take_out(&mut self, object: &mut Map<String, Value>) -> Result<()> {
        for name in self.ignore {
            if !remove(object, name) {
                let names = || object.iter().flat_map(|(name, value)| with_inner(name, value));
                return Err(self.no_such_field(name, names()));
            }
            self.notes.ignored.push(name.clone());
        }
        Ok(())
    }

    /// The error for a field to ignore that does not exist. `names` are the existing fields.
    pub(super) fn no_such_field(&self, name: &str, names: impl Iterator<Item = String>) -> Error {
        let likeness = |other: &str| {
            let inner = other.split_once('.').map_or(other, |(_, inner)| inner);
            strsim::jaro_winkler(name, other).max(strsim::jaro_winkler(name, inner))
        };
        let mut near: Vec<_> =
            names.map(|other| (likeness(&other), other)).filter(|near| near.0 > 0.8).collect();
        near.sort_by(|a, b| b.0.total_cmp(&a.0));
        let near: Vec<_> = near.iter().take(3).map(|(_, name)| format!("`{}`", printable(name))).collect();
        let next = match near[..] {
            [] => "leave --ignore-config out, or name a field of the file".into(),
            _ => format!("did you mean {}?", near.join(" or ")),
        };
        Error::usage("--ignore-config names a field that the model's configuration does not have")
            .at(self.place)
            .expected("a field of the configuration, as messages name it")
            .found(format!("`{}`", printable(name)))
            .next(next)
    }

    /// Checks that ignoring `name`, the field `field` of `sources`, has an effect.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] if the field never changes anything, or if it is required.
    pub(super) fn check_ignored(&self, sources: &[Source], name: &str, field: &str) -> Result<()> {
        let (expected, found) = match fields::find(sources, field).map(|found| found.rule) {
            Some(Rule::Harmless) => {
                ("a field that changes what the model computes", "a field that does not change it")
            }
            Some(Rule::Storage) => {
                ("a field that is not required", "a field that says how the weights are stored")
            }
            _ => return Ok(()),
        };
        Err(Error::usage(format!("`{}` cannot be ignored", printable(name)))
            .at(self.place)
            .expected(expected)
            .found(found)
            .next("leave --ignore-config out for this field"))
    }

    /// Looks up all `fields` in the rows of `sources`. `prefix` comes before their names in messages.
    ///
    /// # Errors
    /// Returns [`Error::Model`] with the first unsupported field that would change the numbers.
    pub(super) fn fields<'v>(
        &mut self,
        sources: &[Source],
        prefix: &str,
        fields: impl Iterator<Item = (&'v str, &'v Value)>,
    ) -> Result<()> {
        for (name, value) in fields {
            let full = || format!("{prefix}{name}");
            let Some(treatment) = fields::find(sources, name) else {
                if fields::is_neutral(value, &[]) {
                    continue;
                }
                // Every field among RoPE's parameters concerns RoPE.
                if fields::speaks_of_numbers(name) || sources == [Source::Rope] {
                    let expected = "no unknown field that may change what the model computes";
                    return Err(self.refused(&full(), expected, value));
                }
                self.notes.unknown.push(full());
                continue;
            };
            if value.is_null() && treatment.null == Null::Fails {
                let expected = "a value; null does not stand for the default";
                return Err(self.refused(&full(), expected, value));
            }
            match treatment.rule {
                Rule::Obeyed | Rule::Harmless => {}
                Rule::Refused(neutral) if fields::is_neutral(value, neutral) => {}
                Rule::Refused(_) => {
                    return Err(self.refused(&full(), &fields::expected(treatment, name), value));
                }
                Rule::Storage if value.is_null() => {}
                Rule::Storage => return Err(self.stored_otherwise(&full(), value)),
            }
        }
        Ok(())
    }

    /// The error for a field that an expert user may choose to ignore.
    pub(super) fn refused(&self, name: &str, expected: &str, value: &Value) -> Error {
        let name = printable(name);
        Error::model(format!("this program cannot use the value of `{name}`"))
            .at(self.place)
            .expected(expected)
            .found(brief(value))
            .next(format!(
                "use another model, or if you know that it changes nothing: --ignore-config {name}"
            ))
    }

    fn stored_otherwise(&self, name: &str, value: &Value) -> Error {
        let method = value.get("quant_method").map_or("without a quant_method".into(), brief);
        Error::model(format!("this program cannot use the value of `{}`", printable(name)))
            .at(self.place)
            .expected("absent: weights are read as F32, F16 or BF16")
            .found(format!("a quantized model, {method}"))
            .next("use the unquantized model, or a GGUF file of it")
    }
}

/// Removes the field `name`, which may be in an inner object: `outer.name`. Returns whether there was one.
fn remove(object: &mut Map<String, Value>, name: &str) -> bool {
    let inner = |object: &mut Map<String, Value>| {
        let (outer, inner) = name.split_once('.')?;
        object.get_mut(outer)?.as_object_mut().map(|object| remove(object, inner))
    };
    object.shift_remove(name).is_some() || inner(object) == Some(true)
}

/// A field's name, and the names of the fields inside it.
fn with_inner(name: &str, value: &Value) -> Vec<String> {
    let inner = value.as_object().into_iter().flatten();
    let inner = inner.flat_map(|(inner, value)| with_inner(&format!("{name}.{inner}"), value));
    [name.to_owned()].into_iter().chain(inner).collect()
}
