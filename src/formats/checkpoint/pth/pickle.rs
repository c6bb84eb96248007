//! An interpreter for the pickles of PyTorch checkpoints. It can build tensors, dictionaries, lists and tuples, and
//! nothing else.
//!
//! A pickle is a program for a stack machine. It may call any Python function by name, so it must not be run. Here a
//! name is looked up in a list of the names that `torch.save` needs for a dictionary of tensors. Every other name is
//! rejected, whatever its use. Values are stored in tables and refer to each other by index. A pickle that contains
//! itself, or is nested a million levels deep, is therefore harmless. The operations are those of Python's
//! `pickletools`, protocols 2 to 5.

use std::collections::{BTreeMap, HashMap};

use super::super::gather::Strided;
use crate::files::printable;
use llama_trace_core::tensor::Dtype;

/// The parts of the error text for an invalid checkpoint.
#[derive(Debug)]
pub(super) struct Wrong {
    pub what: String,
    pub expected: String,
    pub found: String,
}

/// A tensor as the pickle describes it.
#[derive(Clone, Debug)]
pub(super) struct StoredTensor<'a> {
    pub storage: Storage<'a>,
    pub view: Strided,
}

/// The memory that one or more tensors are views of: an entry of the archive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Storage<'a> {
    pub kind: &'static Kind,
    /// The name of the entry below `data/`.
    pub key: &'a str,
    /// The number of values.
    pub count: usize,
}

/// A storage class in `torch`.
#[derive(Debug)]
pub(super) struct Kind {
    /// The class name without the suffix `Storage`.
    pub name: &'static str,
    /// The size of a value in bytes.
    pub size: usize,
    /// How its values are read as weights, if that is possible.
    pub read: Option<Read>,
}

/// The conversion of stored values to those of a tensor.
#[derive(Clone, Copy, Debug)]
pub(super) enum Read {
    /// Unchanged.
    As(Dtype),
    /// From float64, rounded to float32.
    Rounded,
}

const KINDS: &[Kind] = &[
    Kind { name: "Float", size: 4, read: Some(Read::As(Dtype::F32)) },
    Kind { name: "Half", size: 2, read: Some(Read::As(Dtype::F16)) },
    Kind { name: "BFloat16", size: 2, read: Some(Read::As(Dtype::BF16)) },
    Kind { name: "Double", size: 8, read: Some(Read::Rounded) },
    Kind { name: "Long", size: 8, read: None },
    Kind { name: "Int", size: 4, read: None },
    Kind { name: "Short", size: 2, read: None },
    Kind { name: "Char", size: 1, read: None },
    Kind { name: "Byte", size: 1, read: None },
    Kind { name: "Bool", size: 1, read: None },
    Kind { name: "ComplexFloat", size: 8, read: None },
    Kind { name: "ComplexDouble", size: 16, read: None },
];

/// The Python names that a pickle may use.
#[derive(Clone, Copy, Debug)]
enum Global {
    OrderedDict,
    Size,
    RebuildTensor,
    RebuildParameter,
    /// A name that no tensor depends on: a number type, a device, a counter. Its value is dropped.
    Unused,
    Storage(&'static Kind),
}

/// Names of torch that appear beside tensors in training checkpoints and change no tensor.
const UNUSED_OF_TORCH: &[&str] = &[
    "device", "float32", "float", "float64", "double", "float16", "half", "bfloat16", "int64", "long",
    "int32", "int", "int16", "short", "int8", "uint8", "bool",
];

/// Keys under which training programs store the model's dictionary, together with the optimizer's dictionary and
/// others.
const INNER: [&str; 4] = ["model", "state_dict", "model_state_dict", "module"];

/// A value on the stack. A `usize` is an index into a table of [`Machine`].
#[derive(Clone, Copy, Debug)]
enum Value<'a> {
    /// None, a float, or a set of attributes: a value that no tensor depends on.
    Inert,
    /// A list or a set. No tensor depends on its items.
    List,
    Bool,
    Int(i64),
    Text(&'a str),
    Tuple(usize),
    Dict(usize),
    Global(Global),
    Storage(usize),
    Tensor(usize),
}

impl Value<'_> {
    fn kind(self) -> &'static str {
        match self {
            Self::Inert => "a value of another kind",
            Self::List => "a list",
            Self::Bool => "a boolean",
            Self::Int(_) => "a number",
            Self::Text(_) => "a string",
            Self::Tuple(_) => "a tuple",
            Self::Dict(_) => "a dictionary",
            Self::Global(_) => "a function",
            Self::Storage(_) => "a storage",
            Self::Tensor(_) => "a tensor",
        }
    }
}

/// The maximum height of the stack. Python writes a dictionary in batches of a thousand entries.
const MAX_STACK: usize = 1 << 16;
/// The maximum number of axes of a tensor.
const MAX_AXES: usize = 8;
/// The maximum number of tensors.
const MAX_TENSORS: usize = 1 << 16;

/// The named tensors in the dictionary that `pickle` builds, or in an [`INNER`] dictionary inside it. If two have the
/// same name, the last one counts.
///
/// # Errors
/// Returns a description if the pickle is damaged or contains anything but tensors, dictionaries and tuples.
pub(super) fn read(pickle: &[u8]) -> Result<Vec<(&str, StoredTensor<'_>)>, Wrong> {
    let mut machine = Machine { rest: pickle, length: pickle.len(), ..Machine::default() };
    let top = machine.run()?;
    let Value::Dict(dict) = top else {
        return Err(machine.wrong("a dictionary of tensors", top.kind()));
    };
    let inner = |key: &str| {
        machine.dicts[dict].iter().rev().find_map(|(name, value)| match (name, value) {
            (Value::Text(name), Value::Dict(inner)) if *name == key => Some(*inner),
            _ => None,
        })
    };
    let dict = INNER.into_iter().find_map(inner).unwrap_or(dict);
    let mut tensors = BTreeMap::new();
    for (key, value) in &machine.dicts[dict] {
        if let (Value::Text(name), Value::Tensor(tensor)) = (key, value) {
            tensors.insert(*name, machine.tensors[*tensor].clone());
        }
    }
    // A shard may be empty.
    if tensors.is_empty() && !machine.dicts[dict].is_empty() {
        let keys = machine.dicts[dict].iter().filter_map(|(key, _)| match key {
            Value::Text(name) => Some(format!("`{}`", printable(name))),
            _ => None,
        });
        let found = format!("a dictionary with the keys {}", keys.take(5).collect::<Vec<_>>().join(", "));
        return Err(machine.wrong("a dictionary from names to tensors", found));
    }
    Ok(tensors.into_iter().collect())
}

/// The stack machine.
#[derive(Debug, Default)]
struct Machine<'a> {
    /// The unread rest.
    rest: &'a [u8],
    /// The length of the whole pickle.
    length: usize,
    stack: Vec<Value<'a>>,
    /// The marked heights of the stack.
    marks: Vec<usize>,
    memo: HashMap<u32, Value<'a>>,
    /// The elements of all tuples, and the range of each tuple's elements.
    elements: Vec<Value<'a>>,
    tuples: Vec<(usize, usize)>,
    dicts: Vec<Vec<(Value<'a>, Value<'a>)>>,
    storages: Vec<Storage<'a>>,
    tensors: Vec<StoredTensor<'a>>,
}

impl<'a> Machine<'a> {
    fn wrong(&self, expected: impl Into<String>, found: impl Into<String>) -> Wrong {
        Wrong {
            what: format!("the checkpoint's pickle is not valid (byte {})", self.length - self.rest.len()),
            expected: expected.into(),
            found: found.into(),
        }
    }

    fn run(&mut self) -> Result<Value<'a>, Wrong> {
        loop {
            let [code] = self.take()?;
            match code {
                b'.' => return self.pop(),
                // PROTO, FRAME
                0x80 => drop(self.take::<1>()?),
                0x95 => drop(self.take::<8>()?),
                // None, True, False, a float
                b'N' => self.push(Value::Inert)?,
                0x88 | 0x89 => self.push(Value::Bool)?,
                b'G' => {
                    self.take::<8>()?;
                    self.push(Value::Inert)?;
                }
                b'J' => {
                    let number = i32::from_le_bytes(self.take()?);
                    self.push(Value::Int(number.into()))?;
                }
                b'K' => {
                    let number = u8::from_le_bytes(self.take()?);
                    self.push(Value::Int(number.into()))?;
                }
                b'M' => {
                    let number = u16::from_le_bytes(self.take()?);
                    self.push(Value::Int(number.into()))?;
                }
                0x8a => self.long()?,
                // BINUNICODE, SHORT_BINUNICODE, BINUNICODE8, and the strings of Python 2
                b'X' | b'T' => {
                    let length = u32::from_le_bytes(self.take()?);
                    self.text(length.into())?;
                }
                0x8c | b'U' => {
                    let length = u8::from_le_bytes(self.take()?);
                    self.text(length.into())?;
                }
                0x8d => {
                    let length = u64::from_le_bytes(self.take()?);
                    self.text(length)?;
                }
                b'(' => self.mark()?,
                b')' => self.tuple(self.stack.len())?,
                0x85..=0x87 => {
                    let count = usize::from(code - 0x84);
                    let from = self.stack.len().checked_sub(count).ok_or_else(|| self.empty())?;
                    self.tuple(from)?;
                }
                b't' => {
                    let from = self.unmark()?;
                    self.tuple(from)?;
                }
                b'}' => self.dict()?,
                // EMPTY_LIST, EMPTY_SET; APPEND; APPENDS, ADDITEMS
                b']' | 0x8f => self.push(Value::List)?,
                b'a' => {
                    self.pop()?;
                    self.list()?;
                }
                b'e' | 0x90 => {
                    let from = self.unmark()?;
                    self.stack.truncate(from);
                    self.list()?;
                }
                b's' => {
                    let from = self.stack.len().checked_sub(2).ok_or_else(|| self.empty())?;
                    self.set_items(from)?;
                }
                b'u' => {
                    let from = self.unmark()?;
                    self.set_items(from)?;
                }
                b'b' => self.build()?,
                b'c' => {
                    let (module, name) = (self.line()?, self.line()?);
                    self.global(module, name)?;
                }
                0x93 => match (self.pop()?, self.pop()?) {
                    (Value::Text(name), Value::Text(module)) => self.global(module, name)?,
                    (name, _) => return Err(self.wrong("the name of a function", name.kind())),
                },
                b'R' => self.reduce()?,
                b'Q' => self.persistent()?,
                b'q' => {
                    let number = u8::from_le_bytes(self.take()?);
                    self.remember(number.into())?;
                }
                b'r' => {
                    let number = u32::from_le_bytes(self.take()?);
                    self.remember(number)?;
                }
                0x94 => self.remember(self.memo.len() as u32)?,
                b'h' => {
                    let number = u8::from_le_bytes(self.take()?);
                    self.recall(number.into())?;
                }
                b'j' => {
                    let number = u32::from_le_bytes(self.take()?);
                    self.recall(number)?;
                }
                other => {
                    let found = format!("operation 0x{other:02x}");
                    let expected = "operations that build tensors, dictionaries, lists and tuples";
                    return Err(self.wrong(expected, found));
                }
            }
        }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Wrong> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or_else(|| self.cut_off())?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn cut_off(&self) -> Wrong {
        self.wrong("more bytes", "the pickle's end")
    }

    fn empty(&self) -> Wrong {
        self.wrong("a value on the stack", "none")
    }

    fn push(&mut self, value: Value<'a>) -> Result<(), Wrong> {
        if self.stack.len() >= MAX_STACK {
            return Err(self.wrong(format!("at most {MAX_STACK} values on the stack"), "more"));
        }
        self.stack.push(value);
        Ok(())
    }

    /// Pops a value above the last mark.
    fn pop(&mut self) -> Result<Value<'a>, Wrong> {
        if self.marks.last().is_some_and(|&mark| mark >= self.stack.len()) {
            return Err(self.empty());
        }
        self.stack.pop().ok_or_else(|| self.empty())
    }

    fn mark(&mut self) -> Result<(), Wrong> {
        if self.marks.len() >= MAX_STACK {
            return Err(self.wrong(format!("at most {MAX_STACK} marks"), "more"));
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    fn unmark(&mut self) -> Result<usize, Wrong> {
        self.marks.pop().ok_or_else(|| self.wrong("a mark on the stack", "none"))
    }

    /// An integer of up to eight bytes, two's complement.
    fn long(&mut self) -> Result<(), Wrong> {
        let [length] = self.take()?;
        if length > 8 {
            return Err(self.wrong("a number of at most 8 bytes", format!("{length} bytes")));
        }
        let mut bytes = [0; 8];
        for byte in &mut bytes[..usize::from(length)] {
            [*byte] = self.take()?;
        }
        let unused = 64 - 8 * u32::from(length);
        let number = i64::from_le_bytes(bytes).checked_shl(unused).map_or(0, |number| number >> unused);
        self.push(Value::Int(number))
    }

    fn text(&mut self, length: u64) -> Result<(), Wrong> {
        let length = usize::try_from(length).ok().filter(|&length| length <= self.rest.len());
        let (bytes, rest) = self.rest.split_at(length.ok_or_else(|| self.cut_off())?);
        let text = std::str::from_utf8(bytes).map_err(|_| self.wrong("a string in UTF-8", "other bytes"))?;
        self.rest = rest;
        self.push(Value::Text(text))
    }

    fn line(&mut self) -> Result<&'a str, Wrong> {
        let end = self.rest.iter().position(|&byte| byte == b'\n').ok_or_else(|| self.cut_off())?;
        let line = std::str::from_utf8(&self.rest[..end]);
        let line = line.map_err(|_| self.wrong("a name in UTF-8", "other bytes"))?;
        self.rest = &self.rest[end + 1..];
        Ok(line)
    }

    fn tuple(&mut self, from: usize) -> Result<(), Wrong> {
        // No valid pickle reaches below a mark.
        if self.marks.last().is_some_and(|&mark| from < mark) || from > self.stack.len() {
            return Err(self.empty());
        }
        let start = self.elements.len();
        self.elements.extend(self.stack.drain(from..));
        self.tuples.push((start, self.elements.len()));
        self.push(Value::Tuple(self.tuples.len() - 1))
    }

    fn dict(&mut self) -> Result<(), Wrong> {
        self.dicts.push(Vec::new());
        self.push(Value::Dict(self.dicts.len() - 1))
    }

    /// Checks that a list is on top of the stack.
    fn list(&self) -> Result<(), Wrong> {
        match self.stack.last() {
            Some(Value::List) => Ok(()),
            other => Err(self.wrong("a list to put values in", other.map_or("none", |value| value.kind()))),
        }
    }

    /// Moves the pairs of key and value that are on the stack from `from` on into the dictionary below them.
    fn set_items(&mut self, from: usize) -> Result<(), Wrong> {
        if self.marks.last().is_some_and(|&mark| from < mark) || from > self.stack.len() {
            return Err(self.empty());
        }
        let below = from.checked_sub(1).and_then(|place| self.stack.get(place));
        let Some(Value::Dict(dict)) = below.copied() else {
            return Err(
                self.wrong("a dictionary to put values in", below.map_or("none", |value| value.kind()))
            );
        };
        let pairs = self.stack.split_off(from);
        if !pairs.len().is_multiple_of(2) {
            return Err(self.wrong("a value for every key", format!("{} keys and values", pairs.len())));
        }
        self.dicts[dict].extend(pairs.as_chunks::<2>().0.iter().map(|[key, value]| (*key, *value)));
        Ok(())
    }

    /// Drops the attributes of a dictionary; `state_dict` stores version numbers in them.
    fn build(&mut self) -> Result<(), Wrong> {
        self.pop()?;
        match self.stack.last() {
            Some(Value::Dict(_)) => Ok(()),
            other => {
                let found = other.map_or("none", |value| value.kind());
                Err(self.wrong("a dictionary to give attributes to", found))
            }
        }
    }

    fn remember(&mut self, number: u32) -> Result<(), Wrong> {
        let value = *self.stack.last().ok_or_else(|| self.empty())?;
        self.memo.insert(number, value);
        Ok(())
    }

    fn recall(&mut self, number: u32) -> Result<(), Wrong> {
        let value = self.memo.get(&number).copied();
        let value = value
            .ok_or_else(|| self.wrong("a value that was stored before", format!("value number {number}")))?;
        self.push(value)
    }

    fn global(&mut self, module: &str, name: &str) -> Result<(), Wrong> {
        let storage = || {
            let kind = name.strip_suffix("Storage").filter(|_| module == "torch")?;
            KINDS.iter().find(|known| known.name == kind).map(Global::Storage)
        };
        let global = match (module, name) {
            ("collections", "OrderedDict") => Some(Global::OrderedDict),
            ("torch", "Size") => Some(Global::Size),
            ("torch._utils", "_rebuild_tensor_v2") => Some(Global::RebuildTensor),
            ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => {
                Some(Global::RebuildParameter)
            }
            ("collections", "Counter") | ("builtins" | "__builtin__", "set") => Some(Global::Unused),
            ("torch", name) if UNUSED_OF_TORCH.contains(&name) => Some(Global::Unused),
            _ => storage(),
        };
        let Some(global) = global else {
            let full = format!("{}.{}", printable(module), printable(name));
            return Err(Wrong {
                what: format!("the checkpoint's pickle asks for `{full}`, which is refused"),
                expected: "only what tensors need, and nothing that runs code: OrderedDict, _rebuild_tensor_v2, _rebuild_parameter, \
                    torch's storages and Size"
                    .into(),
                found: format!("`{full}`"),
            });
        };
        self.push(Value::Global(global))
    }

    fn elements(&self, tuple: usize) -> &[Value<'a>] {
        let (from, to) = self.tuples[tuple];
        &self.elements[from..to]
    }

    /// Calls the function below the arguments on the stack.
    fn reduce(&mut self) -> Result<(), Wrong> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let (Value::Tuple(tuple), Value::Global(function)) = (arguments, function) else {
            let found = format!("{} and {}", function.kind(), arguments.kind());
            return Err(self.wrong("a function and its arguments", found));
        };
        let value = match (function, self.elements(tuple)) {
            (Global::OrderedDict, []) => return self.dict(),
            (Global::Size, &[sizes @ Value::Tuple(_)]) => sizes,
            (Global::Unused, _) => Value::Inert,
            (Global::RebuildParameter, &[tensor @ Value::Tensor(_), ..]) => tensor,
            (
                Global::RebuildTensor,
                &[
                    Value::Storage(storage),
                    Value::Int(offset),
                    Value::Tuple(shape),
                    Value::Tuple(strides),
                    ..,
                ],
            ) => {
                let storage = self.storages[storage];
                let view = Strided {
                    offset: self.size(Value::Int(offset))?,
                    shape: self.sizes(shape)?,
                    strides: self.sizes(strides)?,
                };
                if view.shape.len() != view.strides.len() {
                    let found = format!("{} sizes and {} strides", view.shape.len(), view.strides.len());
                    return Err(self.wrong("a stride for every size", found));
                }
                if self.tensors.len() >= MAX_TENSORS {
                    return Err(self.wrong(format!("at most {MAX_TENSORS} tensors"), "more"));
                }
                self.tensors.push(StoredTensor { storage, view });
                Value::Tensor(self.tensors.len() - 1)
            }
            (function, arguments) => {
                let kinds = arguments.iter().take(8).map(|argument| argument.kind()).collect::<Vec<_>>();
                let found = format!("{function:?} with ({})", kinds.join(", "));
                return Err(self.wrong("the arguments that PyTorch gives", found));
            }
        };
        self.push(value)
    }

    fn size(&self, value: Value<'a>) -> Result<usize, Wrong> {
        match value {
            Value::Int(number) if number >= 0 => Ok(number as usize),
            Value::Int(number) => Err(self.wrong("a size of 0 or more", number.to_string())),
            other => Err(self.wrong("a size", other.kind())),
        }
    }

    fn sizes(&self, tuple: usize) -> Result<Vec<usize>, Wrong> {
        let elements = self.elements(tuple);
        if elements.len() > MAX_AXES {
            return Err(self.wrong(format!("at most {MAX_AXES} axes"), elements.len().to_string()));
        }
        elements.iter().map(|&element| self.size(element)).collect()
    }

    /// A storage: ("storage", its class, its key, its device, its number of values).
    fn persistent(&mut self) -> Result<(), Wrong> {
        let id = self.pop()?;
        let elements = match id {
            Value::Tuple(tuple) => self.elements(tuple),
            _ => &[],
        };
        let &[
            Value::Text("storage"),
            Value::Global(Global::Storage(kind)),
            Value::Text(key),
            Value::Text(_),
            Value::Int(count),
        ] = elements
        else {
            return Err(self.wrong("a storage with its class, key, device and size", id.kind()));
        };
        let count = self.size(Value::Int(count))?;
        self.storages.push(Storage { kind, key, count });
        self.push(Value::Storage(self.storages.len() - 1))
    }
}

#[cfg(test)]
pub(super) mod tests;
