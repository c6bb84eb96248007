//! safetensors: eight bytes with the length of a JSON header, the header, and the values.
//!
//! The `safetensors` crate parses and checks the header: every byte range must match its shape and dtype, and the
//! ranges must be consecutive without gap or overlap. This module checks the header against the file. A damaged file is
//! reported with the expected and the actual size.

use safetensors::tensor::{Dtype as StoredDtype, Metadata};

use super::contents::Contents;
use super::gather;
use super::limits::MAX_TENSORS;
use crate::files::{magic, printable};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::tensor::Bytes;
use llama_trace_core::tensor::{Dtype, Tensor};

/// The maximum size of a header in bytes. The format allows 100 MB. The largest Llamas need a tenth of a megabyte, and
/// a parsed header takes up to 20 times its size in memory.
const MAX_HEADER: u64 = 8 << 20;

/// The offset of the first value in a file that begins with `bytes`. `None` if the length is incomplete or above the
/// maximum.
pub fn header_end(bytes: &[u8]) -> Option<u64> {
    let (length, _) = bytes.split_first_chunk::<8>()?;
    Some(u64::from_le_bytes(*length)).filter(|length| *length <= MAX_HEADER).map(|length| 8 + length)
}

/// Reads the header of `file`, found at `place`, and splits the file into its tensors, without copying.
///
/// # Errors
/// Returns [`Error::Model`] if the file is truncated, too long, or has an invalid header.
pub(super) fn parse(file: &Bytes, place: &str) -> Result<Contents> {
    let damaged = |what: &str, expected: String, found: String| {
        Error::model(what)
            .at(place)
            .expected(expected)
            .found(found)
            .next("fetch the file again; it is damaged or not a safetensors file")
    };
    let size = file.len() as u64;
    let Some((length, rest)) = file.split_first_chunk::<8>() else {
        return Err(damaged(
            "the safetensors file is cut off",
            "at least 8 bytes".into(),
            format!("{size} bytes"),
        ));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER || length > rest.len() as u64 {
        let found = match magic::recognise(file) {
            Some(kind) if kind != "a safetensors file" => kind.to_string(),
            _ => format!("a header of {length} bytes, as its first 8 bytes say, in a file of {size} bytes"),
        };
        let expected = format!("a header of at most {MAX_HEADER} bytes that ends inside the file");
        let what = "the safetensors file is cut off, or its header's length is wrong";
        return Err(damaged(what, expected, found));
    }
    let (header, values) = rest.split_at(length as usize);
    let metadata: Metadata = serde_json::from_slice(header).map_err(|error| {
        let expected = "JSON with name, dtype, shape and offsets of every tensor, without gap or overlap";
        damaged("the safetensors header is not valid", expected.into(), printable(&error.to_string()))
    })?;
    if metadata.data_len() != values.len() {
        let start = 8 + length;
        let what = if metadata.data_len() > values.len() {
            "the safetensors file is cut off"
        } else {
            "the safetensors file has bytes after its last tensor"
        };
        let expected =
            format!("{} bytes, as its header says", u128::from(start) + metadata.data_len() as u128);
        return Err(damaged(what, expected, format!("{size} bytes")));
    }
    let tensors = metadata.tensors();
    if tensors.len() > MAX_TENSORS {
        let what = "the safetensors file has more tensors than any model";
        return Err(damaged(what, format!("at most {MAX_TENSORS}"), tensors.len().to_string()));
    }
    let mut contents = Contents::default();
    for (name, info) in tensors {
        let dtype = match info.dtype {
            StoredDtype::F32 | StoredDtype::F64 => Dtype::F32,
            StoredDtype::F16 => Dtype::F16,
            StoredDtype::BF16 => Dtype::BF16,
            other => {
                contents.unreadable.insert(name, other.to_string());
                continue;
            }
        };
        let start = 8 + header.len();
        let (from, to) = info.data_offsets;
        let mut bytes = file.slice(start + from..start + to);
        if info.dtype == StoredDtype::F64 {
            contents.rounded.insert(name.clone());
            bytes = bytes.map(gather::rounded);
        }
        let tensor = bytes.and_then(|bytes| Tensor::new(dtype, info.shape.clone(), bytes));
        let Some(tensor) = tensor else {
            let what = format!("tensor `{}` has the wrong number of bytes", printable(&name));
            return Err(damaged(&what, format!("{dtype} {:?}", info.shape), format!("{} bytes", to - from)));
        };
        contents.tensors.insert(name, tensor);
    }
    Ok(contents)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A safetensors file with `tensors`: name, shape, F32 values.
    pub(in crate::checkpoint) fn file(tensors: &[(&str, &[usize], &[f32])]) -> Vec<u8> {
        let views = tensors.iter().map(|(name, shape, values)| {
            let bytes: &[u8] = bytemuck::cast_slice(values);
            let view = safetensors::tensor::TensorView::new(StoredDtype::F32, shape.to_vec(), bytes).unwrap();
            (*name, view)
        });
        safetensors::serialize(views, None).unwrap()
    }

    fn raw(header: &str, values: &[u8]) -> Vec<u8> {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(header.as_bytes());
        file.extend_from_slice(values);
        file
    }

    fn parse_vec(bytes: &[u8]) -> Result<Contents> {
        // Leaked, because `Bytes` needs a static lifetime; a few kilobytes in a test.
        parse(&Bytes::Static(Box::leak(bytes.to_vec().into_boxed_slice())), "test")
    }

    #[test]
    fn tensors_are_cut_out_of_the_file() {
        let contents = parse_vec(&file(&[("a", &[2], &[1.0, 2.0]), ("b", &[1, 1], &[3.0])])).unwrap();
        assert_eq!(&**contents.tensors["a"].bytes(), bytemuck::cast_slice::<f32, u8>(&[1.0, 2.0]));
        assert_eq!(contents.tensors["b"].shape(), [1, 1]);
    }

    #[test]
    fn null_metadata_unsorted_offsets_and_padding_are_accepted() {
        let header = r#"{"__metadata__":null,"z":{"dtype":"F16","shape":[1],"data_offsets":[4,6]},
            "a":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}}   "#;
        let contents = parse_vec(&raw(header, &[0, 0, 0, 0, 7, 8])).unwrap();
        assert_eq!(&**contents.tensors["z"].bytes(), [7, 8]);
        assert_eq!(contents.unreadable["a"], "I32");
    }

    #[test]
    fn every_truncation_and_an_extra_byte_are_errors() {
        let mut bytes = file(&[("a", &[2], &[1.0, 2.0])]);
        for length in 0..bytes.len() {
            parse_vec(&bytes[..length]).unwrap_err();
        }
        let size = bytes.len();
        bytes.push(0);
        let text = parse_vec(&bytes).unwrap_err().to_string();
        assert!(text.contains(&format!("{size} bytes, as its header says")), "{text}");
        assert!(text.contains(&format!("{} bytes", size + 1)), "{text}");
    }

    #[test]
    fn absurd_headers_are_errors() {
        let tensor = |shape: &str, offsets: &str| {
            format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#)
        };
        let headers = [
            tensor("[1]", "[4,8]"),
            tensor("[1]", "[4,0]"),
            tensor("[2]", "[0,4]"),
            tensor("[18446744073709551615,18446744073709551615]", "[0,4]"),
            tensor("[18446744073709551616]", "[0,4]"),
            tensor("[-1]", "[0,4]"),
            tensor("[4611686018427387904]", "[0,18446744073709551615]"),
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#
                .into(),
            r#"{"a":{"dtype":"Q4","shape":[1],"data_offsets":[0,4]}}"#.into(),
            "[".repeat(1000),
            "{}".into(),
            "null".into(),
            String::new(),
        ];
        for header in headers {
            parse_vec(&raw(&header, &[0; 4])).expect_err(&header);
        }
        for length in [u64::MAX, u64::MAX - 7, 1 << 40, MAX_HEADER + 1] {
            let mut bytes = file(&[("a", &[1], &[1.0])]);
            bytes[..8].copy_from_slice(&length.to_le_bytes());
            parse_vec(&bytes).unwrap_err();
        }
    }

    proptest! {
        #[test]
        fn mutated_files_never_panic(at in 0_usize..200, byte: u8, cut in 0_usize..200) {
            let mut bytes = file(&[("a", &[2], &[1.0, 2.0]), ("b", &[1, 1], &[3.0])]);
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = parse_vec(&bytes);
            bytes.truncate(cut);
            let _ = parse_vec(&bytes);
        }
    }
}
