//! The key-value pairs of a GGUF file. Values are borrowed from the file. The type of a value is checked when it is
//! read.

use std::collections::BTreeMap;

use super::reader::Reader;
use crate::files::{brief, printable};
use llama_trace_core::error::{Error, Result};

/// The maximum number of keys, so that tiny keys cannot take many times the file's size in memory. Real files have
/// about 40.
const MAX_KEYS: u64 = 1 << 16;

/// The key-value pairs of one file.
#[derive(Debug)]
pub(crate) struct Metadata<'a> {
    place: &'a str,
    values: BTreeMap<&'a str, Value<'a>>,
}

/// One value.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Value<'a> {
    Whole(i128),
    Number(f64),
    Flag(bool),
    Text(&'a [u8]),
    List(List<'a>),
}

impl Value<'_> {
    /// The value, if it is an integer from 0 to 2³¹ − 1.
    fn size(&self) -> Option<usize> {
        match self {
            Self::Whole(number) => {
                i32::try_from(*number).ok().and_then(|number| usize::try_from(number).ok())
            }
            _ => None,
        }
    }
}

/// An array: `count` consecutive elements in `bytes`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct List<'a> {
    kind: Kind,
    count: usize,
    bytes: &'a [u8],
}

/// The types of values: `gguf_metadata_value_type` in the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    List,
    U64,
    I64,
    F64,
}

impl Kind {
    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        use Kind::*;
        const ALL: [Kind; 13] = [U8, I8, U16, I16, U32, I32, F32, Bool, Text, List, U64, I64, F64];
        let number = reader.u32("a value's type")?;
        ALL.get(number as usize).copied().ok_or_else(|| {
            reader.wrong("a value of the metadata has an unknown type", "a type from 0 to 12", number)
        })
    }

    /// The size of a value in bytes. `None` if the value contains its own length.
    fn size(self) -> Option<u64> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::Text | Self::List => None,
        }
    }

    /// The number or flag in `bytes`, whose length is [`Kind::size`].
    fn scalar<'a>(self, bytes: &[u8]) -> Value<'a> {
        // The bytes as the low bytes of a u64. Each type takes as many of them as it is wide.
        let word = bytes.iter().rev().fold(0_u64, |word, &byte| word << 8 | u64::from(byte));
        match self {
            Self::Bool => Value::Flag(word != 0),
            Self::I8 => Value::Whole((word as i8).into()),
            Self::I16 => Value::Whole((word as i16).into()),
            Self::I32 => Value::Whole((word as i32).into()),
            Self::I64 => Value::Whole((word as i64).into()),
            Self::F32 => Value::Number(f32::from_bits(word as u32).into()),
            Self::F64 => Value::Number(f64::from_bits(word)),
            _ => Value::Whole(word.into()),
        }
    }
}

impl<'a> Metadata<'a> {
    /// Reads `count` pairs.
    ///
    /// # Errors
    /// Returns [`Error::Model`] if a pair reaches past the end of the file, has an unknown type, or repeats a key.
    pub(crate) fn read(reader: &mut Reader<'a>, count: u64, place: &'a str) -> Result<Self> {
        if count > MAX_KEYS {
            let expected = format!("at most {MAX_KEYS} keys");
            return Err(reader.wrong(
                "the GGUF file has more metadata than any model needs",
                &expected,
                count,
            ));
        }
        let mut values = BTreeMap::new();
        for _ in 0..count {
            let key = reader.name("a key of the metadata")?;
            let kind = Kind::read(reader)?;
            let value = read_value(reader, kind)?;
            if values.insert(key, value).is_some() {
                return Err(reader.wrong(
                    "the GGUF file has a key twice",
                    "every key once",
                    format!("`{}`", printable(key)),
                ));
            }
        }
        Ok(Self { place, values })
    }

    /// Removes `key` and returns whether it was present.
    pub(crate) fn remove(&mut self, key: &str) -> bool {
        self.values.remove(key).is_some()
    }

    /// The keys with this `prefix`, without the prefix, and their values.
    pub(crate) fn under(&self, prefix: &str) -> impl Iterator<Item = (&'a str, serde_json::Value)> {
        self.values.iter().filter_map(move |(key, value)| Some((key.strip_prefix(prefix)?, json(value))))
    }

    /// The error for an invalid value of `key`.
    pub(crate) fn wrong(&self, key: &str, expected: &str, found: impl std::fmt::Display) -> Error {
        Error::model(format!("`{key}` of the GGUF file is not valid"))
            .at(self.place)
            .expected(expected)
            .found(found)
            .next("fetch the file again, or use another version of the model")
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&Value<'a>) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.wrong(key, expected, describe(value)))
    }

    /// An integer from 0 to 2³¹ − 1, the limit for every size of a model.
    pub(crate) fn size(&self, key: &str) -> Result<Option<usize>> {
        self.typed(key, "a whole number below 2147483648", Value::size)
    }

    /// [`Metadata::size`] of a key that may instead hold an array with one size for each of `layers` layers. All sizes
    /// must be equal.
    pub(crate) fn size_of_layers(&self, key: &str, layers: usize) -> Result<Option<usize>> {
        let Some(Value::List(list)) = self.values.get(key) else { return self.size(key) };
        let sizes: Option<Vec<usize>> = list.kind.size().and_then(|width| {
            let values = list.bytes.chunks_exact(width as usize).take(layers);
            values.map(|bytes| list.kind.scalar(bytes).size()).collect()
        });
        let alike = |sizes: &[usize]| list.count == layers && sizes.iter().all(|size| *size == sizes[0]);
        match sizes.filter(|sizes| alike(sizes)).and_then(|sizes| sizes.first().copied()) {
            Some(size) => Ok(Some(size)),
            None => {
                let expected =
                    format!("a whole number, or a list with the same number for each of {layers} layers");
                let found = brief(&json(&Value::List(*list)));
                Err(self
                    .wrong(key, &expected, found)
                    .next("use another model: layers of different sizes are not supported"))
            }
        }
    }

    /// An array with one flag or whole number for each of `layers` layers: whether it is not 0. `None` if the key is
    /// absent or holds no array.
    pub(crate) fn flags_of_layers(&self, key: &str, layers: usize) -> Result<Option<Vec<bool>>> {
        let Some(Value::List(list)) = self.values.get(key) else { return Ok(None) };
        let is_set = |value: &Value<'_>| match value {
            Value::Flag(flag) => Some(*flag),
            Value::Whole(number) => Some(*number != 0),
            _ => None,
        };
        let flags: Option<Vec<bool>> = list.kind.size().and_then(|width| {
            let values = list.bytes.chunks_exact(width as usize);
            values.map(|bytes| is_set(&list.kind.scalar(bytes))).collect()
        });
        flags.filter(|flags| flags.len() == layers).map(Some).ok_or_else(|| {
            let expected = format!("true or false for each of {layers} layers");
            self.wrong(key, &expected, brief(&json(&Value::List(*list))))
        })
    }

    /// [`Metadata::size`] of a required key.
    pub(crate) fn required_size(&self, key: &str) -> Result<usize> {
        self.size(key)?.ok_or_else(|| self.wrong(key, "a whole number", "no such key"))
    }

    /// A token id. Also `None` for 2³² − 1, which some writers use for "no token".
    pub(crate) fn id(&self, key: &str) -> Result<Option<u32>> {
        let id = self.typed(key, "a token id", |value| match value {
            Value::Whole(-1) => Some(u32::MAX),
            Value::Whole(number) => u32::try_from(*number).ok(),
            _ => None,
        })?;
        Ok(id.filter(|&id| id != u32::MAX))
    }

    /// A number as float32.
    pub(crate) fn number(&self, key: &str) -> Result<Option<f32>> {
        self.typed(key, "a number", |value| match value {
            Value::Number(number) => Some(*number as f32),
            Value::Whole(number) => Some(*number as f32),
            _ => None,
        })
    }

    /// A boolean.
    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "true or false", |value| match value {
            Value::Flag(flag) => Some(*flag),
            _ => None,
        })
    }

    /// A string.
    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        self.typed(key, "a text", |value| match value {
            Value::Text(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        })
    }

    /// An array of strings.
    pub(crate) fn texts(&self, key: &str) -> Result<Option<List<'a>>> {
        self.list(key, "an array of strings", &[Kind::Text])
    }

    /// An array of float32.
    pub(crate) fn floats(&self, key: &str) -> Result<Option<List<'a>>> {
        self.list(key, "an array of float32", &[Kind::F32])
    }

    /// An array of int32 or uint32.
    pub(crate) fn wholes(&self, key: &str) -> Result<Option<List<'a>>> {
        self.list(key, "an array of int32", &[Kind::I32, Kind::U32])
    }

    fn list(&self, key: &str, expected: &str, kinds: &[Kind]) -> Result<Option<List<'a>>> {
        self.typed(key, expected, |value| match value {
            Value::List(list) if kinds.contains(&list.kind) => Some(*list),
            _ => None,
        })
    }
}

impl<'a> List<'a> {
    /// The number of elements.
    pub(crate) fn len(self) -> usize {
        self.count
    }

    /// The size in bytes of all elements in the file.
    pub(crate) fn size(self) -> usize {
        self.bytes.len()
    }

    /// The elements of [`Metadata::texts`].
    pub(crate) fn texts(self) -> impl Iterator<Item = &'a [u8]> {
        let mut rest = self.bytes;
        (0..self.count).map_while(move |_| {
            let (length, after) = rest.split_first_chunk()?;
            let (text, after) = after.split_at_checked(u64::from_le_bytes(*length) as usize)?;
            rest = after;
            Some(text)
        })
    }

    /// The elements of [`Metadata::floats`].
    pub(crate) fn floats(self) -> impl Iterator<Item = f32> {
        self.bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes))
    }

    /// The elements of [`Metadata::wholes`].
    pub(crate) fn wholes(self) -> impl Iterator<Item = i32> {
        self.bytes.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes))
    }
}

/// A value of type `kind`. For an array, only its position is stored, after its length was checked.
fn read_value<'a>(reader: &mut Reader<'a>, kind: Kind) -> Result<Value<'a>> {
    match kind {
        Kind::Text => Ok(Value::Text(reader.string("a value of the metadata")?)),
        Kind::List => read_list(reader).map(Value::List),
        scalar => {
            let bytes = reader.bytes(scalar.size().unwrap_or(0), "a value of the metadata")?;
            Ok(scalar.scalar(bytes))
        }
    }
}

fn read_list<'a>(reader: &mut Reader<'a>) -> Result<List<'a>> {
    let kind = Kind::read(reader)?;
    let count = reader.u64("an array's length")?;
    let inside = |reader: &Reader<'_>, size: u64| {
        let fits = count.checked_mul(size).filter(|&bytes| bytes <= reader.left() as u64);
        fits.ok_or_else(|| {
            let expected = format!("an array inside the {} bytes that are left", reader.left());
            reader.wrong(
                "an array of the metadata reaches past the end of the file",
                &expected,
                format!("{count} elements"),
            )
        })
    };
    let bytes = match (kind, kind.size()) {
        (_, Some(size)) => {
            let bytes = inside(reader, size)?;
            reader.bytes(bytes, "an array")?
        }
        (Kind::Text, _) => {
            // Each string takes at least the 8 bytes of its length. Each is checked to be inside the file before the
            // next one.
            inside(reader, 8)?;
            let mut end = reader.clone();
            for _ in 0..count {
                end.string("a string of an array")?;
            }
            reader.bytes((end.at() - reader.at()) as u64, "an array")?
        }
        _ => {
            return Err(reader.wrong(
                "the metadata has an array of arrays",
                "arrays of numbers or strings",
                "arrays as elements",
            ));
        }
    };
    // The count is at most the number of bytes, so it fits.
    Ok(List { kind, count: count as usize, bytes })
}

/// A value as JSON. Long arrays are replaced by a description.
fn json(value: &Value<'_>) -> serde_json::Value {
    const LONG: usize = 1024;
    match value {
        // An integer outside the range of i64 becomes a string. No valid size or count is so large.
        Value::Whole(number) => i64::try_from(*number).map_or_else(|_| number.to_string().into(), Into::into),
        Value::Number(number) => (*number).into(),
        Value::Flag(flag) => (*flag).into(),
        Value::Text(bytes) => String::from_utf8_lossy(bytes).into(),
        Value::List(list) => match list.kind.size() {
            Some(size) if list.count <= LONG => {
                let values = list.bytes.chunks_exact(size as usize);
                values.map(|bytes| json(&list.kind.scalar(bytes))).collect()
            }
            _ => describe(value).into(),
        },
    }
}

/// A short description of a value.
fn describe(value: &Value<'_>) -> String {
    match value {
        Value::Whole(number) => number.to_string(),
        Value::Number(number) => number.to_string(),
        Value::Flag(flag) => flag.to_string(),
        Value::Text(bytes) => format!("\"{}\"", printable(&String::from_utf8_lossy(bytes))),
        Value::List(list) => format!("an array of {} {:?}", list.count, list.kind),
    }
}
