//! `.npy` files of a student's program. The header and the file's size are checked before any value is read.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use super::case::{Case, Input, Values};

/// The longest header.
const HEADER: usize = 1 << 14;
/// Bytes of the largest number type.
const LARGEST: usize = 8;
/// The size of a file that is read whatever it should have.
const SMALL: usize = 4 << 20;
/// The most axes of an output.
const AXES: usize = 8;

/// An output as it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Its number type, as numpy names it.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its values, row-major.
    pub values: Vec<f64>,
}

/// The size of the largest file that is read for an output of `count` values. A small file of another shape is read,
/// so that the message can say which shape it has.
pub fn most_bytes(count: usize) -> u64 {
    (HEADER + 64 + count * LARGEST).max(SMALL) as u64
}

/// The header of a `.npy` file.
struct Header {
    dtype: String,
    is_fortran: bool,
    shape: Vec<usize>,
}

/// The value of a key in the header, a dictionary of Python.
fn value<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    let (_, rest) = text.split_once(&format!("'{key}':"))?;
    Some(rest.trim_start())
}

impl Header {
    fn parse(text: &str) -> Option<Self> {
        let dtype = value(text, "descr")?.strip_prefix('\'')?.split('\'').next()?.to_owned();
        let is_fortran = match value(text, "fortran_order")? {
            rest if rest.starts_with("True") => true,
            rest if rest.starts_with("False") => false,
            _ => return None,
        };
        let lengths = value(text, "shape")?.strip_prefix('(')?.split(')').next()?;
        let lengths = lengths.split(',').map(str::trim).filter(|length| !length.is_empty());
        let shape: Vec<usize> = lengths.map(|length| length.parse().ok()).collect::<Option<_>>()?;
        (shape.len() <= AXES).then_some(Self { dtype, is_fortran, shape })
    }
}

/// A number from its little-endian bytes.
type FromBytes = fn(&[u8]) -> f64;

/// The bytes of a number type, and its conversion from little-endian bytes.
fn number(dtype: &str) -> Option<(usize, FromBytes)> {
    macro_rules! of {
        ($type:ty) => {
            (size_of::<$type>(), |bytes: &[u8]| {
                bytes.try_into().map_or(f64::NAN, |bytes| <$type>::from_le_bytes(bytes) as f64)
            })
        };
    }
    Some(match dtype {
        "<f8" => of!(f64),
        "<f4" => of!(f32),
        "<f2" => {
            (2, |bytes| bytes.try_into().map_or(f64::NAN, |bytes| half::f16::from_le_bytes(bytes).to_f64()))
        }
        "|i1" => of!(i8),
        "|u1" => of!(u8),
        "<i2" => of!(i16),
        "<u2" => of!(u16),
        "<i4" => of!(i32),
        "<u4" => of!(u32),
        "<i8" => of!(i64),
        "<u8" => of!(u64),
        _ => return None,
    })
}

/// The name of a number type in numpy.
fn named(dtype: &str) -> String {
    match dtype.trim_start_matches(['<', '|', '=']) {
        "f8" => "float64".into(),
        "f4" => "float32".into(),
        "f2" => "float16".into(),
        "i1" => "int8".into(),
        "i2" => "int16".into(),
        "i4" => "int32".into(),
        "i8" => "int64".into(),
        "u1" => "uint8".into(),
        "u2" => "uint16".into(),
        "u4" => "uint32".into(),
        "u8" => "uint64".into(),
        "b1" => "bool".into(),
        "O" => "object".into(),
        other if other.starts_with('>') => format!("{} in big-endian order", named(&other[1..])),
        other => format!("`{}`", other.chars().take(20).collect::<String>()),
    }
}

/// A shape as text, as numpy writes it.
pub(super) fn shape_text(shape: &[usize]) -> String {
    match shape {
        [one] => format!("({one},)"),
        shape => format!("({})", shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    }
}

impl Output {
    /// Reads an output of `case` from a file of `size` bytes. The message says what is wrong with the file.
    ///
    /// # Errors
    /// A message if the file is no `.npy` file of real numbers, is too large, or is cut off.
    pub fn read(file: impl Read, size: u64, case: &Case) -> Result<Self, String> {
        let count: usize = case.shape.iter().product();
        if size > most_bytes(count) {
            return Err(format!(
                "the file has {size} bytes; an output of shape {} has at most {}",
                shape_text(&case.shape),
                most_bytes(count)
            ));
        }
        let mut bytes = Vec::new();
        let read = file.take(most_bytes(count) + 1).read_to_end(&mut bytes);
        read.map_err(|error| format!("the file cannot be read: {error}"))?;
        Self::parse(&bytes)
    }

    /// Reads an output from the bytes of its file.
    ///
    /// # Errors
    /// The messages of [`Output::read`].
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let rest = bytes.strip_prefix(b"\x93NUMPY").ok_or(match bytes {
            [] => "the file is empty",
            _ => "the file is not a .npy file, as numpy.save writes it",
        })?;
        let cut = || "the file is cut off in its header".to_owned();
        let (length, start) = match rest {
            [1, _, a, b, ..] => (usize::from(u16::from_le_bytes([*a, *b])), 4),
            [2 | 3, _, a, b, c, d, ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, 6),
            [_, _, ..] => return Err("the file has an unknown version of the .npy format".into()),
            _ => return Err(cut()),
        };
        if length > HEADER {
            return Err(format!("the header has {length} bytes; at most {HEADER} are expected"));
        }
        let text = rest.get(start..start + length).ok_or_else(cut)?;
        let text = std::str::from_utf8(text).map_err(|_| "the header is not text".to_owned())?;
        let header = Header::parse(text).ok_or("the header is not that of an array of numbers")?;
        let dtype = named(&header.dtype);
        let Some((width, number)) = number(&header.dtype) else {
            return Err(format!("the values are {dtype}; float32, float64 or integers are expected"));
        };
        let count = header.shape.iter().try_fold(1_usize, |count, length| count.checked_mul(*length));
        let count = count.ok_or("the shape has more values than any file")?;
        let values = &rest[start + length..];
        if count.checked_mul(width) != Some(values.len()) {
            return Err(format!(
                "the file has {} bytes of values; {} values of {dtype} are expected by its header",
                values.len(),
                count
            ));
        }
        let values: Vec<f64> = values.chunks_exact(width).map(number).collect();
        let values = if header.is_fortran { c_order(&values, &header.shape) } else { values };
        Ok(Self { dtype, shape: header.shape, values })
    }
}

/// Values in Fortran order, in C order.
fn c_order(values: &[f64], shape: &[usize]) -> Vec<f64> {
    let at = |cell: usize| {
        let (mut rest, mut indices) = (cell, vec![0; shape.len()]);
        for (index, length) in indices.iter_mut().zip(shape).rev() {
            (*index, rest) = (rest % length, rest / length);
        }
        let (mut at, mut step) = (0, 1);
        for (index, length) in indices.iter().zip(shape) {
            (at, step) = (at + index * step, step * length);
        }
        at
    };
    (0..values.len()).map(|cell| values[at(cell)]).collect()
}

impl Input {
    /// Writes the input as a `.npy` file.
    ///
    /// # Errors
    /// The errors of the file.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let dtype = match self.values {
            Values::F32(_) => "<f4",
            Values::I64(_) => "<i8",
        };
        let mut header =
            format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': {}, }}", shape_text(&self.shape));
        // The values begin at a multiple of 64 bytes.
        let padded = (10 + header.len() + 1).next_multiple_of(64) - 10 - 1;
        header.extend(std::iter::repeat_n(' ', padded - header.len()));
        header.push('\n');
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.bytes());
        match &self.values {
            Values::F32(values) => values.iter().for_each(|value| bytes.extend(value.to_le_bytes())),
            Values::I64(values) => values.iter().for_each(|value| bytes.extend(value.to_le_bytes())),
        }
        File::create_new(path)?.write_all(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, values: &[u8]) -> Vec<u8> {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.bytes().chain(values.iter().copied()));
        bytes
    }

    #[test]
    fn arrays_in_both_orders_and_of_all_number_types_are_read() {
        let six: Vec<u8> = (0_u8..6).flat_map(|x| f32::from(x).to_le_bytes()).collect();
        let c = file("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", &six);
        assert_eq!(Output::parse(&c).unwrap().values, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        let fortran = file("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }", &six);
        assert_eq!(Output::parse(&fortran).unwrap().values, [0.0, 2.0, 4.0, 1.0, 3.0, 5.0]);
        let id = file("{'descr': '<i8', 'fortran_order': False, 'shape': (1,), }", &7_i64.to_le_bytes());
        let id = Output::parse(&id).unwrap();
        assert_eq!((id.dtype.as_str(), id.shape, id.values), ("int64", vec![1], vec![7.0]));
        let scalar = file("{'descr': '<f2', 'fortran_order': False, 'shape': (), }", &[0, 0x3c]);
        assert_eq!(Output::parse(&scalar).unwrap().values, [1.0]);
    }

    #[test]
    fn broken_files_get_one_message_and_nothing_is_read_beyond_them() {
        let header = |dtype: &str, shape: &str| {
            format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}")
        };
        for (bytes, expected) in [
            (vec![], "is empty"),
            (b"hello".to_vec(), "not a .npy file"),
            (b"\x93NUMPY".to_vec(), "cut off"),
            (b"\x93NUMPY\x09\x00ab".to_vec(), "unknown version"),
            (b"\x93NUMPY\x01\x00\xff\x00{".to_vec(), "cut off"),
            (b"\x93NUMPY\x02\x00\xff\xff\xff\xff".to_vec(), "the header has 4294967295 bytes"),
            (file("{}", &[]), "not that of an array"),
            (file(&header("|O", "(1,)"), b"x"), "the values are object"),
            (file(&header(">f4", "(1,)"), &[0; 4]), "big-endian"),
            (file(&header("<c8", "(1,)"), &[0; 8]), "`c8`"),
            (file(&header("<f4", "(2,)"), &[0; 4]), "4 bytes of values"),
            (file(&header("<f4", "(18446744073709551615, 9)"), &[]), "more values than any file"),
            (file(&header("<f4", "(99999999999999999999,)"), &[]), "not that of an array"),
            (file(&header("<f4", "(-1,)"), &[]), "not that of an array"),
            (file(&header("<f4", "(0,)"), &[1]), "1 bytes of values"),
        ] {
            let found = Output::parse(&bytes).unwrap_err();
            assert!(found.contains(expected), "{found}");
        }
    }

    #[test]
    fn an_input_is_written_as_it_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.npy");
        let input = Input { name: "x", shape: vec![2, 1], values: Values::F32(vec![1.5, f32::NEG_INFINITY]) };
        input.write(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let read = Output::parse(&bytes).unwrap();
        assert_eq!((read.shape, read.values), (vec![2, 1], vec![1.5, f64::NEG_INFINITY]));
        assert_eq!(
            ndarray_npy::read_npy::<_, ndarray::Array2<f32>>(&path).unwrap(),
            ndarray::arr2(&[[1.5], [f32::NEG_INFINITY]])
        );
        assert!(input.write(&path).is_err(), "no file is replaced");
    }
}
