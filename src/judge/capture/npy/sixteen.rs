//! `.npy` files of float16, and of bfloat16 as numpy writes it with `ml_dtypes`.

use half::{bf16, f16};
use ndarray::{ArrayD, IxDyn, ShapeBuilder};

/// The first bytes of a `.npy` file. The version of the header follows them.
const MAGIC: &[u8] = b"\x93NUMPY";

/// The values as float32; `None` if the file has another number type, or is not an `.npy` file.
pub(super) fn read(bytes: &[u8]) -> Option<ArrayD<f32>> {
    let (&version, rest) = bytes.strip_prefix(MAGIC)?.split_first()?;
    let (_, rest) = rest.split_first()?;
    let (size, rest) = if version == 1 {
        let (size, rest) = rest.split_first_chunk::<2>()?;
        (usize::from(u16::from_le_bytes(*size)), rest)
    } else {
        let (size, rest) = rest.split_first_chunk::<4>()?;
        (usize::try_from(u32::from_le_bytes(*size)).ok()?, rest)
    };
    let (header, data) = rest.split_at_checked(size)?;
    let header = std::str::from_utf8(header).ok()?;
    let number: fn(u16) -> f32 = match value(header, "descr")?.split(['\'', '"']).nth(1)? {
        "<f2" => |bits| f16::from_bits(bits).to_f32(),
        "<V2" | "|V2" | "bfloat16" => |bits| bf16::from_bits(bits).to_f32(),
        _ => return None,
    };
    let fortran = value(header, "fortran_order")?.starts_with("True");
    let lengths = value(header, "shape")?.strip_prefix('(')?.split_once(')')?.0;
    let lengths = lengths.split(',').map(str::trim).filter(|length| !length.is_empty());
    let shape = lengths.map(|length| length.parse().ok()).collect::<Option<Vec<usize>>>()?;
    let count = shape.iter().try_fold(1_usize, |count, &length| count.checked_mul(length))?;
    let (words, odd) = data.as_chunks::<2>();
    if words.len() != count || !odd.is_empty() {
        return None;
    }
    let values = words.iter().map(|word| number(u16::from_le_bytes(*word))).collect();
    ArrayD::from_shape_vec(IxDyn(&shape).set_f(fortran), values)
        .ok()
        .map(|values| if fortran { values.as_standard_layout().into_owned() } else { values })
}

/// The header's text after a key.
fn value<'h>(header: &'h str, key: &str) -> Option<&'h str> {
    let (_, after) = header.split_once(&format!("'{key}':"))?;
    Some(after.trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let header = format!("{header}\n");
        let mut bytes = [MAGIC, &[1, 0], &(header.len() as u16).to_le_bytes()[..]].concat();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(data);
        bytes
    }

    #[test]
    fn numbers_of_sixteen_bits_are_read_and_damaged_files_are_not() {
        let header = |kind: &str, fortran: &str| {
            format!("{{'descr': '{kind}', 'fortran_order': {fortran}, 'shape': (2, 2), }}")
        };
        let halves: Vec<u8> =
            [1.0, -2.5, 0.125, 65504.0].iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect();
        let read_halves = read(&file(&header("<f2", "False"), &halves)).unwrap();
        assert_eq!(read_halves.iter().copied().collect::<Vec<_>>(), [1.0, -2.5, 0.125, 65504.0]);
        let turned = read(&file(&header("<f2", "True"), &halves)).unwrap();
        assert_eq!(turned.iter().copied().collect::<Vec<_>>(), [1.0, 0.125, -2.5, 65504.0]);
        let brains: Vec<u8> =
            [1.0, -2.5, 3e38, 0.0].iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect();
        let read_brains = read(&file(&header("|V2", "False"), &brains)).unwrap();
        assert_eq!(read_brains[[0, 1]], -2.5);
        let whole = file(&header("<f2", "False"), &halves);
        for end in 0..whole.len() {
            assert!(read(&whole[..end]).is_none(), "{end}");
        }
        for header in [
            "{'descr': '<f2', 'fortran_order': False, 'shape': (99999999999, 99999999999, 99999999999), }",
            "{'descr': '<f2', 'fortran_order': False, 'shape': (-1, 4), }",
            "{'descr': '<f2', 'fortran_order': False, 'shape': (2, 3), }",
            "{'descr': '>f2', 'fortran_order': False, 'shape': (2, 2), }",
            "{'descr': [('a', '<f2')], 'shape': (2, 2), }",
            "",
        ] {
            assert!(read(&file(header, &halves)).is_none(), "{header}");
        }
    }
}
