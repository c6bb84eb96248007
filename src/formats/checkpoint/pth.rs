//! PyTorch's `.pth` and `.bin` files: a zip archive with a pickle that describes the tensors, and one entry with the
//! raw values of each storage. The archive is mapped, and its entries are read in place.

mod archive;
mod pickle;

use super::contents::Contents;
use super::gather::{self, Strided};
use crate::files::{magic, printable};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::tensor::Bytes;
use llama_trace_core::tensor::{Dtype, Tensor};

use archive::Archive;
use pickle::{Read, StoredTensor, Wrong};

/// The first bytes of a zip archive.
const ZIP: &[u8] = b"PK\x03\x04";
/// The magic number of `torch.save` before version 1.6, encoded as in a pickle.
const LEGACY: &[u8] = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";

/// The number of bytes that a file's tensors may take in memory beyond the file's size if strides require copies. This
/// is enough for norm weights that were expanded from one value.
pub(super) const SPARE: usize = 64 << 20;

/// Returns whether a file that begins with `bytes` was written by PyTorch, old or new.
pub(super) fn is_pth(bytes: &[u8]) -> bool {
    bytes.starts_with(ZIP) || is_legacy(bytes)
}

/// Returns whether a file that begins with `bytes` was written before PyTorch 1.6. Such a file is a pickle without an
/// archive and begins with the number of the pickle's protocol. In protocols 4 and 5, the length of a frame follows.
fn is_legacy(bytes: &[u8]) -> bool {
    let start = match bytes {
        [0x80, 2 | 3, ..] => 2,
        [0x80, 4 | 5, 0x95, ..] => 11,
        _ => return false,
    };
    bytes.get(start..).is_some_and(|bytes| bytes.starts_with(LEGACY))
}

/// The tensors of the file's dictionary, in place if their values are row-major. Prefixes from module wrappers are
/// removed from the names.
///
/// # Errors
/// Returns [`Error::Model`] if the file is damaged or of another kind, an entry is compressed, or the pickle contains
/// anything but tensors.
pub(super) fn read(file: &Bytes, place: &str) -> Result<Contents> {
    let wrong = |wrong: Wrong| {
        Error::model(wrong.what).at(place).expected(wrong.expected).found(wrong.found).next(
            "fetch the file again; if the published file is the same, save only the tensors in Python: \
                safetensors.torch.save_file(model.state_dict(), \"model.safetensors\")",
        )
    };
    if is_legacy(file) {
        return Err(Error::model("the file is in PyTorch's old format, from before version 1.6")
            .at(place)
            .expected("the zip archive that torch.save has written since")
            .found("a pickle without a zip archive")
            .next("save it again in Python: torch.save(torch.load(old, map_location=\"cpu\", weights_only=True), new)"));
    }
    if !file.starts_with(ZIP) {
        let found = magic::recognise(file).unwrap_or("something else").to_string();
        let what = "the file is not a PyTorch checkpoint".into();
        return Err(wrong(Wrong { what, expected: "a zip archive, as torch.save writes".into(), found }));
    }
    let archive = Archive::open(file).map_err(wrong)?;
    let tensors = pickle::read(archive.pickle()).map_err(wrong)?;
    let mut contents = Contents::default();
    let mut copied = 0_usize;
    for (name, stored) in tensors {
        let Some(read) = stored.storage.kind.read else {
            contents.unreadable.insert(name.into(), stored.storage.kind.name.into());
            continue;
        };
        let (bytes, copy) = values(file, &archive, &stored).map_err(|(expected, found)| {
            wrong(Wrong {
                what: format!("tensor `{}` does not fit its storage", printable(name)),
                expected,
                found,
            })
        })?;
        let (dtype, bytes, copy) = match read {
            Read::As(dtype) => (dtype, bytes, copy),
            Read::Rounded => {
                contents.rounded.insert(name.into());
                let bytes = gather::rounded(bytes);
                let length = bytes.len();
                (Dtype::F32, bytes, copy + length)
            }
        };
        copied = copied.saturating_add(copy);
        if copied > file.len().saturating_add(SPARE) {
            return Err(wrong(Wrong {
                what: "the tensors need much more memory than the file".into(),
                expected: format!(
                    "at most {} bytes of memory for tensors that must be copied: the size of the file, and 64 MiB more",
                    file.len().saturating_add(SPARE)
                ),
                found: format!("{copied} bytes, at tensor `{}`", printable(name)),
            }));
        }
        if let Some(tensor) = Tensor::new(dtype, stored.view.shape, bytes) {
            contents.tensors.insert(name.into(), tensor);
        }
    }
    contents.renamed(unwrapped, place)
}

/// The name of a tensor without the prefixes of PyTorch's module wrappers, `DataParallel` and `torch.compile`.
fn unwrapped(name: &str) -> String {
    let mut rest = name;
    while let Some(inner) = ["module.", "_orig_mod."].iter().find_map(|prefix| rest.strip_prefix(prefix)) {
        rest = inner;
    }
    rest.into()
}

/// The bytes of a tensor's values in row-major order, and the number of bytes that must be copied to get this order.
fn values(
    file: &Bytes,
    archive: &Archive<'_>,
    stored: &StoredTensor<'_>,
) -> std::result::Result<(Bytes, usize), (String, String)> {
    let StoredTensor { storage, view } = stored;
    let width = storage.kind.size;
    let range = archive.storage(storage.key)?;
    let room = storage.count.checked_mul(width);
    if room != Some(range.len()) {
        let expected =
            format!("{} values of {width} bytes in entry `{}`", storage.count, printable(storage.key));
        return Err((expected, format!("{} bytes", range.len())));
    }
    let (Some(end), Some(length)) = (view.end(), view.count().and_then(|count| count.checked_mul(width)))
    else {
        return Err(("values inside the file".into(), describe(view)));
    };
    if end > storage.count {
        return Err((
            format!("{} values", storage.count),
            format!("values up to number {end}: {}", describe(view)),
        ));
    }
    let lost = || ("an entry inside the file".to_string(), format!("bytes {range:?}"));
    if view.is_contiguous() {
        let from = range.start + if length == 0 { 0 } else { view.offset * width };
        return Ok((file.slice(from..from + length).ok_or_else(lost)?, 0));
    }
    let storage = file.slice(range.clone()).ok_or_else(lost)?;
    Ok((view.clone().gather(storage, width), length))
}

fn describe(view: &Strided) -> String {
    format!("shape {:?} with strides {:?} from value {}", view.shape, view.strides, view.offset)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    use archive::tests::zip;
    use pickle::tests::{Entry, pickle};

    /// A `.pth` file with these tensors and storages.
    pub(in crate::checkpoint) fn pth(entries: &[Entry<'_>], storages: &[(&str, &[u8])]) -> Vec<u8> {
        let pickle = pickle(entries);
        let names: Vec<String> = storages.iter().map(|(key, _)| format!("m/data/{key}")).collect();
        let mut files = vec![("m/data.pkl", &pickle[..]), ("m/byteorder", b"little")];
        files.extend(names.iter().map(String::as_str).zip(storages.iter().map(|(_, bytes)| *bytes)));
        files.push(("m/version", b"3\n"));
        zip(&files)
    }

    fn read_vec(bytes: &[u8]) -> Result<Contents> {
        // Leaked, because `Bytes` needs a static lifetime; a few kilobytes in a test.
        read(&Bytes::Static(Box::leak(bytes.to_vec().into_boxed_slice())), "test.pth")
    }

    fn small() -> Vec<u8> {
        let entries: [Entry<'_>; 4] = [
            ("a", "Half", "0", 6, 0, &[2, 3], &[3, 1]),
            ("row", "Half", "0", 6, 3, &[3], &[1]),
            ("transposed", "Half", "0", 6, 0, &[3, 2], &[1, 3]),
            ("mask", "Bool", "1", 1, 0, &[1], &[1]),
        ];
        pth(&entries, &[("0", b"aabbccddeeff"), ("1", b"\x01")])
    }

    #[test]
    fn tensors_are_views_of_storages() {
        let contents = read_vec(&small()).unwrap();
        assert_eq!(&**contents.tensors["a"].bytes(), b"aabbccddeeff");
        assert_eq!(&**contents.tensors["row"].bytes(), b"ddeeff");
        assert_eq!(&**contents.tensors["transposed"].bytes(), b"aaddbbeeccff");
        assert!(matches!(contents.tensors["a"].bytes(), Bytes::Static(_)), "in place");
        assert_eq!((contents.tensors.len(), &*contents.unreadable["mask"]), (3, "Bool"));
    }

    #[test]
    fn tensors_that_pass_their_storage_are_refused() {
        let message =
            |entry: Entry<'_>| read_vec(&pth(&[entry], &[("0", b"aabbccddeeff")])).unwrap_err().to_string();
        assert!(message(("x", "Half", "0", 6, 1, &[2, 3], &[3, 1])).contains("values up to number 7"));
        assert!(message(("x", "Half", "0", 6, 0, &[2, 3], &[4, 1])).contains("values up to number 7"));
        assert!(message(("x", "Half", "0", 7, 0, &[7], &[1])).contains("12 bytes"));
        assert!(message(("x", "Float", "0", 6, 0, &[6], &[1])).contains("6 values of 4 bytes"));
        assert!(message(("x", "Half", "1", 6, 0, &[6], &[1])).contains("`data/1`"));
        let huge = usize::MAX >> 1;
        assert!(message(("x", "Half", "0", 6, huge, &[3], &[huge])).contains("inside the file"));
        assert!(message(("x", "Half", "0", huge, 0, &[huge], &[1])).contains("12 bytes"));
    }

    #[test]
    fn strides_must_not_multiply_a_file() {
        // One value as a norm weight of a thousand values is allowed; a million times a million is not.
        let expanded = |size: usize| pth(&[("x", "Half", "0", 1, 0, &[size], &[0])], &[("0", b"ab")]);
        assert_eq!(**read_vec(&expanded(1000)).unwrap().tensors["x"].bytes(), *b"ab".repeat(1000));
        assert!(read_vec(&expanded(1 << 40)).unwrap_err().to_string().contains("much more memory"));
        let names: Vec<String> = (0..100).map(|i| format!("w{i}")).collect();
        let many: Vec<Entry<'_>> = names
            .iter()
            .map(|name| (&**name, "Half", "0", 1, 0, &[1_usize << 20][..], &[0_usize][..]))
            .collect();
        assert!(read_vec(&pth(&many, &[("0", b"ab")])).unwrap_err().to_string().contains("much more memory"));
    }

    #[test]
    fn float64_is_rounded_and_counts_as_a_copy() {
        let doubles: Vec<u8> =
            [0.1_f64, 0.2, 0.3, 0.4].iter().flat_map(|value| value.to_le_bytes()).collect();
        let entries: [Entry<'_>; 2] =
            [("a", "Double", "0", 4, 0, &[2, 2], &[1, 2]), ("b", "Double", "0", 4, 3, &[1], &[1])];
        let contents = read_vec(&pth(&entries, &[("0", &doubles)])).unwrap();
        let values = [0.1_f32, 0.3, 0.2, 0.4].map(f32::to_le_bytes).concat();
        assert_eq!(
            (contents.tensors["a"].dtype(), &contents.tensors["a"].bytes()[..]),
            (Dtype::F32, &values[..])
        );
        assert_eq!(contents.rounded.iter().collect::<Vec<_>>(), ["a", "b"]);
        // The same 8 MB storage under 30 names: 120 MB of float32.
        let names: Vec<String> = (0..30).map(|i| format!("w{i}")).collect();
        let many: Vec<Entry<'_>> = names
            .iter()
            .map(|name| (&**name, "Double", "0", 1 << 20, 0, &[1 << 20][..], &[1_usize][..]))
            .collect();
        let text = read_vec(&pth(&many, &[("0", &vec![0; 8 << 20])])).unwrap_err().to_string();
        assert!(text.contains("much more memory"), "{text}");
    }

    #[test]
    fn wrappers_names_are_taken_off() {
        assert_eq!(unwrapped("module._orig_mod.module.model.norm.weight"), "model.norm.weight");
        assert_eq!(unwrapped("modules.norm.weight"), "modules.norm.weight");
        let entries: [Entry<'_>; 2] =
            [("module.a", "Half", "0", 2, 0, &[1], &[1]), ("a", "Half", "0", 2, 1, &[1], &[1])];
        assert_eq!(read_vec(&pth(&entries, &[("0", b"aaaa")])).unwrap().tensors.len(), 1);
        let text = read_vec(&pth(&entries, &[("0", b"aabb")])).unwrap_err().to_string();
        assert!(text.contains("two tensors for one weight"), "{text}");
    }

    #[test]
    fn other_files_are_named() {
        for start in [&b"\x80\x02"[..], b"\x80\x03", b"\x80\x04\x95\0\0\0\0\0\0\0\0"] {
            let text = read_vec(&[start, LEGACY].concat()).unwrap_err().to_string();
            assert!(text.contains("before version 1.6") && text.contains("torch.save(torch.load("), "{text}");
        }
        assert!(read_vec(b"GGUF").unwrap_err().to_string().contains("GGUF"));
    }

    #[test]
    fn every_truncation_is_an_error() {
        let file = small();
        for length in 0..file.len() {
            read_vec(&file[..length]).unwrap_err();
        }
    }

    proptest! {
        #[test]
        fn mutated_files_never_panic(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4), cut in any::<prop::sample::Index>(),
        ) {
            let mut file = small();
            for (at, byte) in changes {
                let at = at.index(file.len());
                file[at] = byte;
            }
            for bytes in [&file[..], &file[..cut.index(file.len())], &file[cut.index(file.len())..]] {
                if let Ok(contents) = read_vec(bytes) {
                    contents.tensors.values().for_each(|tensor| assert_eq!((**tensor.bytes()).len(), tensor.bytes().len()));
                }
            }
        }
    }
}
