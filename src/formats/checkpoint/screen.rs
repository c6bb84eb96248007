//! Nothing of a configuration is left out in silence: each field is looked up in the table ([`super::fields`]), and
//! what could change the numbers and is not computed here is refused, unless the user says to ignore it.

use serde_json::{Map, Value};

use super::ablated::Ablated;
use super::class::Class;
use super::fields::{self, Null, Rule, Source};
use crate::files::{brief, printable};
use llama_trace_core::error::{Error, Result};

/// What was not taken as the files have it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// Fields of the configuration that were read as if they were not there, because the user said so.
    pub ignored: Vec<String>,
    /// Fields that nothing reads: not known here and not of names that speak of numbers, or of no use beside others.
    pub unknown: Vec<String>,
    /// Tensors that nothing reads, neither here nor in the reference.
    pub unread: Vec<String>,
    /// Tensors that the index of shards names and no shard has.
    pub absent: Vec<String>,
    /// Tensors that are in two shards.
    pub twice: Vec<String>,
    /// Tensors of float64, which are rounded to float32.
    pub rounded: Vec<String>,
    /// The class that config.json says the model is of, where it is no language model's.
    pub class: Option<Class>,
    /// Parts that are switched off, because the user said so.
    pub ablated: Vec<Ablated>,
}

impl Notes {
    /// Each kind of them in a line, for standard error and for `info`.
    pub fn lines(&self) -> Vec<String> {
        let off = self.ablated.iter().map(Ablated::to_string).collect();
        let kinds = [
            (&off, "switched off, as --without says"),
            (&self.ignored, "configuration ignored, as --ignore-config says"),
            (&self.unknown, "configuration that nothing reads"),
            (&self.unread, "tensors that nothing reads"),
            (&self.absent, "tensors that the index names and no shard has"),
            (&self.twice, "tensors that are in several shards, read from the last"),
            (&self.rounded, "tensors of float64, rounded to float32"),
        ];
        let some = kinds.into_iter().filter(|(names, _)| !names.is_empty());
        let lines = some.map(|(names, what)| format!("{what}: {}", few(names)));
        let class = self
            .class
            .iter()
            .map(|class| format!("the model was saved as {class}; logits here are those of the next token"));
        class.chain(lines).collect()
    }
}

/// Names from a file: the first few of them, and how many more there are.
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
    /// Fields that are to be ignored, as messages name them.
    ignore: &'a [String],
    pub(super) notes: Notes,
}

impl<'a> Screen<'a> {
    pub(super) fn new(place: &'a str, ignore: &'a [String]) -> Self {
        Self { place, ignore, notes: Notes::default() }
    }

    /// Takes the fields that are to be ignored out of `object`: `name`, or `outer.name` for one of an object in it.
    ///
    /// # Errors
    /// [`Error::Usage`] where there is no such field.
    pub(super) fn take_out(&mut self, object: &mut Map<String, Value>) -> Result<()> {
        for name in self.ignore {
            let inner = |object: &mut Map<String, Value>| {
                let (outer, inner) = name.split_once('.')?;
                object.get_mut(outer)?.as_object_mut()?.shift_remove(inner)
            };
            if object.shift_remove(name).is_none() && inner(object).is_none() {
                let names = || object.iter().flat_map(|(name, value)| with_inner(name, value));
                return Err(self.no_such_field(name, names()));
            }
            self.notes.ignored.push(name.clone());
        }
        Ok(())
    }

    /// The error for a field that is to be ignored and is not there; `names` are those that are.
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
        Error::usage("--ignore-config names a field that the model's configuration has not")
            .at(self.place)
            .expected("a field as a message about it names it")
            .found(format!("`{}`", printable(name)))
            .next(next)
    }

    /// Checks that ignoring `name` is of use: the field `field` of `sources`.
    ///
    /// # Errors
    /// [`Error::Usage`] where it changes nothing in any case, or cannot be done without.
    pub(super) fn check_ignored(&self, sources: &[Source], name: &str, field: &str) -> Result<()> {
        let (expected, found) = match fields::find(sources, field).map(|row| row.rule) {
            Some(Rule::Harmless) => ("a field that changes what the model computes", "one that does not"),
            Some(Rule::Storage) => {
                ("a field that can be done without", "one that says how the weights are stored")
            }
            _ => return Ok(()),
        };
        Err(Error::usage(format!("there is no use in ignoring `{}`", printable(name)))
            .at(self.place)
            .expected(expected)
            .found(found)
            .next("leave --ignore-config out for this field"))
    }

    /// Looks up every one of `fields`, which stand in `sources`; `prefix` stands before their names in messages.
    ///
    /// # Errors
    /// [`Error::Model`] naming the first that would change the numbers and is not computed here.
    pub(super) fn fields<'v>(
        &mut self,
        sources: &[Source],
        prefix: &str,
        fields: impl Iterator<Item = (&'v str, &'v Value)>,
    ) -> Result<()> {
        for (name, value) in fields {
            let full = || format!("{prefix}{name}");
            let Some(row) = fields::find(sources, name) else {
                if fields::is_neutral(value, &[]) {
                    continue;
                }
                // Whatever stands among RoPE's parameters speaks of RoPE.
                if fields::speaks_of_numbers(name) || sources == [Source::Rope] {
                    let expected = "no field that is not known here and may change what the model computes";
                    return Err(self.refused(&full(), expected, value));
                }
                self.notes.unknown.push(full());
                continue;
            };
            if value.is_null() && row.null == Null::Fails {
                let expected = "a value: null is none, and stands for no default";
                return Err(self.refused(&full(), expected, value));
            }
            match row.rule {
                Rule::Obeyed | Rule::Harmless => {}
                Rule::Refused(neutral) if fields::is_neutral(value, neutral) => {}
                Rule::Refused(_) => return Err(self.refused(&full(), &fields::expected(row, name), value)),
                Rule::Storage if value.is_null() => {}
                Rule::Storage => return Err(self.stored_otherwise(&full(), value)),
            }
        }
        Ok(())
    }

    /// The error for a field that may be ignored by who knows better.
    pub(super) fn refused(&self, name: &str, expected: &str, value: &Value) -> Error {
        let name = printable(name);
        Error::model(format!("`{name}` is not what this program can use"))
            .at(self.place)
            .expected(expected)
            .found(brief(value))
            .next(format!(
                "use another model, or if you know that it changes nothing: --ignore-config {name}"
            ))
    }

    fn stored_otherwise(&self, name: &str, value: &Value) -> Error {
        let method = value.get("quant_method").map_or("without a quant_method".into(), brief);
        Error::model(format!("`{}` is not what this program can use", printable(name)))
            .at(self.place)
            .expected("absent: weights are read as F32, F16 or BF16")
            .found(format!("a quantized model, {method}"))
            .next("use the model as it was before, or a GGUF file of it")
    }
}

/// A field's name, and those of the fields inside it.
fn with_inner(name: &str, value: &Value) -> Vec<String> {
    let inner = value.as_object().into_iter().flatten().map(|(inner, _)| format!("{name}.{inner}"));
    [name.to_owned()].into_iter().chain(inner).collect()
}
