//! A reader for the header: little-endian numbers and strings, checked against the end of the file.

use crate::files::printable;
use llama_trace_core::error::{Error, Result};

/// The maximum length of a key or a tensor name in the specification.
const MAX_NAME: u64 = 65535;

/// A position in a file.
#[derive(Clone)]
pub(crate) struct Reader<'a> {
    file: &'a [u8],
    at: usize,
    /// The file's name, for messages.
    place: &'a str,
}

impl<'a> Reader<'a> {
    /// A reader at the beginning of `file`.
    pub(crate) fn new(file: &'a [u8], place: &'a str) -> Self {
        Self { file, at: 0, place }
    }

    /// The number of bytes read so far.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// The number of bytes left.
    pub(crate) fn left(&self) -> usize {
        self.file.len() - self.at
    }

    /// The error for an invalid `what`.
    pub(crate) fn wrong(
        &self,
        what: impl Into<String>,
        expected: &str,
        found: impl std::fmt::Display,
    ) -> Error {
        Error::model(what)
            .at(format!("{}, byte {}", self.place, self.at))
            .expected(expected)
            .found(found)
            .next("fetch the file again; it is damaged or not a GGUF file")
    }

    /// The next `count` bytes. `what` names them in an error.
    pub(crate) fn bytes(&mut self, count: u64, what: &str) -> Result<&'a [u8]> {
        let rest = &self.file[self.at..];
        let Some(bytes) = usize::try_from(count).ok().and_then(|count| rest.get(..count)) else {
            let found = format!("{} bytes before the end of the file", rest.len());
            return Err(self.wrong("the GGUF file is cut off", &format!("{count} bytes for {what}"), found));
        };
        self.at += bytes.len();
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let bytes = self.bytes(N as u64, what)?;
        Ok(std::array::from_fn(|i| bytes[i]))
    }

    /// A u32.
    pub(crate) fn u32(&mut self, what: &str) -> Result<u32> {
        self.array(what).map(u32::from_le_bytes)
    }

    /// A u64.
    pub(crate) fn u64(&mut self, what: &str) -> Result<u64> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A string: its length as a u64, then its bytes, which need not be UTF-8.
    pub(crate) fn string(&mut self, what: &str) -> Result<&'a [u8]> {
        let length = self.u64(what)?;
        self.bytes(length, what)
    }

    /// The name of a key or a tensor.
    pub(crate) fn name(&mut self, what: &str) -> Result<&'a str> {
        let length = self.u64(what)?;
        if length > MAX_NAME {
            let expected = format!("at most {MAX_NAME} bytes");
            return Err(self.wrong(format!("{what} is too long"), &expected, format!("{length} bytes")));
        }
        let bytes = self.bytes(length, what)?;
        std::str::from_utf8(bytes).map_err(|_| {
            self.wrong(format!("{what} is not a text"), "UTF-8", printable(&String::from_utf8_lossy(bytes)))
        })
    }
}
