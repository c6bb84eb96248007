//! The tensor table of a GGUF file, and the location of each tensor.

use std::ops::Range;

use crate::checkpoint::contents::Contents;
use crate::files::gguf::{Header, Reader};
use crate::files::printable;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::tensor::Bytes;
use llama_trace_core::tensor::{Dtype, Tensor};

/// The maximum number of tensors in a file, so that a table of tiny tensors cannot take many times the file's size in
/// memory. Llama 3.1 405B has 1138.
const MAX_TENSORS: u64 = 1 << 16;
/// The maximum number of axes in ggml.
const MAX_AXES: u32 = 4;
/// The alignment if `general.alignment` is absent.
const DEFAULT_ALIGNMENT: usize = 32;

/// The number types by ggml's numbers. The dtype is `None` for unsupported types.
const TYPES: &[(u32, &str, Option<Dtype>)] = &[
    (0, "F32", Some(Dtype::F32)),
    (1, "F16", Some(Dtype::F16)),
    (2, "Q4_0", Some(Dtype::Q4_0)),
    (3, "Q4_1", Some(Dtype::Q4_1)),
    (6, "Q5_0", Some(Dtype::Q5_0)),
    (7, "Q5_1", Some(Dtype::Q5_1)),
    (8, "Q8_0", Some(Dtype::Q8_0)),
    (9, "Q8_1", None),
    (10, "Q2_K", Some(Dtype::Q2K)),
    (11, "Q3_K", Some(Dtype::Q3K)),
    (12, "Q4_K", Some(Dtype::Q4K)),
    (13, "Q5_K", Some(Dtype::Q5K)),
    (14, "Q6_K", Some(Dtype::Q6K)),
    (15, "Q8_K", None),
    (16, "IQ2_XXS", None),
    (17, "IQ2_XS", None),
    (18, "IQ3_XXS", None),
    (19, "IQ1_S", None),
    (20, "IQ4_NL", Some(Dtype::Iq4Nl)),
    (21, "IQ3_S", None),
    (22, "IQ2_S", None),
    (23, "IQ4_XS", Some(Dtype::Iq4Xs)),
    (24, "I8", None),
    (25, "I16", None),
    (26, "I32", None),
    (27, "I64", None),
    (28, "F64", None),
    (29, "IQ1_M", None),
    (30, "BF16", Some(Dtype::BF16)),
    (34, "TQ1_0", None),
    (35, "TQ2_0", None),
    (39, "MXFP4", Some(Dtype::Mxfp4)),
    (40, "NVFP4", None),
];

/// A row of the table.
struct Row<'a> {
    name: &'a str,
    /// Outermost first.
    shape: Vec<usize>,
    kind: u32,
    /// Relative to the first byte after the header and its padding.
    offset: u64,
}

/// All rows, and the offset of the first tensor.
struct Table<'a> {
    rows: Vec<Row<'a>>,
    alignment: usize,
    start: usize,
}

/// Splits the file with this header into its tensors, without copying.
///
/// # Errors
/// Returns [`Error::Model`] if the table or a tensor reaches past the end of the file, or if two tensors overlap or
/// have the same name.
pub(super) fn read(file: &Bytes, header: &Header<'_>, place: &str) -> Result<Contents> {
    let Table { rows, alignment, start } = table(header)?;
    let mut contents = Contents::default();
    let mut ranges = Vec::new();
    for row in rows {
        let wrong = |what: &str, expected: String, found: String| {
            Error::model(format!("tensor `{}` {what}", printable(row.name)))
                .at(place)
                .expected(expected)
                .found(found)
                .next("fetch the file again; it is damaged or cut off")
        };
        let twice =
            || wrong("is in the file twice", "every tensor once".into(), "two tensors of this name".into());
        let name = row.name.to_owned();
        let Some(dtype) = dtype(row.kind) else {
            let kind = TYPES.iter().find(|(number, ..)| *number == row.kind);
            let kind = kind.map_or_else(|| format!("ggml type {}", row.kind), |(_, kind, _)| (*kind).into());
            if contents.tensors.contains_key(&name) || contents.unreadable.insert(name, kind).is_some() {
                return Err(twice());
            }
            continue;
        };
        if !row.offset.is_multiple_of(alignment as u64) {
            let found = format!("offset {}", row.offset);
            return Err(wrong("has a misaligned offset", format!("a multiple of {alignment}"), found));
        }
        let Some(range) = range(&row, dtype, start) else {
            let found = format!("{:?}", row.shape);
            let expected =
                format!("rows whose length is a multiple of {}, and a size below 2^64 bytes", dtype.block());
            return Err(wrong(&format!("({dtype}) has an invalid shape"), expected, found));
        };
        let Some(bytes) = file.slice(range.clone()) else {
            let (expected, found) =
                (format!("a file of at least {} bytes", range.end), format!("{} bytes", file.len()));
            return Err(wrong("reaches past the end of the file", expected, found));
        };
        let Some(tensor) = Tensor::new(dtype, row.shape.clone(), bytes) else {
            let found = format!("{} bytes", range.len());
            return Err(wrong("has the wrong number of bytes", format!("{dtype} {:?}", row.shape), found));
        };
        if contents.unreadable.contains_key(&name) || contents.tensors.insert(name, tensor).is_some() {
            return Err(twice());
        }
        ranges.push((range.start, range.end, row.name));
    }
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        let ((_, end, first), (next, _, second)) = (pair[0], pair[1]);
        if next < end {
            return Err(Error::model("two tensors of the GGUF file overlap")
                .at(place)
                .expected("tensors that have no bytes in common")
                .found(format!("`{}` and `{}`", printable(first), printable(second)))
                .next("fetch the file again"));
        }
    }
    Ok(contents)
}

/// The byte ranges of the tensors called `name` in the file with this header. The file need not have anything after the
/// table.
///
/// # Errors
/// Returns [`Error::Model`] if the table is damaged or incomplete.
pub(super) fn places(header: &Header<'_>, name: &str) -> Result<Vec<Range<u64>>> {
    let table = table(header)?;
    let named = table.rows.iter().filter(|row| row.name == name);
    let ranges = named.filter_map(|row| range(row, dtype(row.kind)?, table.start));
    Ok(ranges.map(|range| range.start as u64..range.end as u64).collect())
}

fn table<'a>(header: &Header<'a>) -> Result<Table<'a>> {
    let mut reader = header.rest.clone();
    if header.tensors > MAX_TENSORS {
        let expected = format!("at most {MAX_TENSORS} tensors");
        return Err(reader.wrong("the GGUF file has more tensors than any model", &expected, header.tensors));
    }
    let rows = (0..header.tensors).map(|_| read_row(&mut reader)).collect::<Result<Vec<_>>>()?;
    let alignment = header.metadata.size("general.alignment")?.unwrap_or(DEFAULT_ALIGNMENT);
    if !alignment.is_power_of_two() {
        return Err(header.metadata.wrong("general.alignment", "a power of two", alignment));
    }
    // Neither the position nor the alignment is above 2^63, so rounding up does not overflow.
    Ok(Table { rows, alignment, start: reader.at().next_multiple_of(alignment) })
}

/// The number type with ggml's number `kind`. `None` for unsupported types.
fn dtype(kind: u32) -> Option<Dtype> {
    TYPES.iter().find(|(number, ..)| *number == kind)?.2
}

fn read_row<'a>(reader: &mut Reader<'a>) -> Result<Row<'a>> {
    let name = reader.name("a tensor's name")?;
    let axes = reader.u32("a tensor's number of axes")?;
    let what = || format!("tensor `{}` has an invalid shape", printable(name));
    if axes > MAX_AXES {
        return Err(reader.wrong(what(), &format!("at most {MAX_AXES} axes"), axes));
    }
    let mut shape = Vec::new();
    for _ in 0..axes {
        let size = reader.u64("the length of a tensor's axis")?;
        let Some(size) = usize::try_from(size).ok().filter(|&size| size > 0) else {
            return Err(reader.wrong(what(), "sizes of at least 1", size));
        };
        shape.push(size);
    }
    // ggml stores the innermost axis first.
    shape.reverse();
    let kind = reader.u32("a tensor's type")?;
    let offset = reader.u64("a tensor's offset")?;
    Ok(Row { name, shape, kind, offset })
}

/// The byte range of the tensor in the file. `None` if its numbers overflow.
fn range(row: &Row<'_>, dtype: Dtype, start: usize) -> Option<Range<usize>> {
    let (inner, outer) = row.shape.split_last().unwrap_or((&1, &[]));
    let size = outer.iter().try_fold(dtype.bytes(*inner)?, |product, &size| product.checked_mul(size))?;
    let from = start.checked_add(usize::try_from(row.offset).ok()?)?;
    Some(from..from.checked_add(size)?)
}
