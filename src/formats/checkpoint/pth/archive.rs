//! The zip archive around a PyTorch checkpoint, read in place. `rawzip` finds the entries; this module interprets them
//! as PyTorch does.

use std::collections::HashMap;
use std::ops::Range;

use rawzip::{CompressionMethod, ZipArchive, ZipSliceArchive};

use super::pickle::Wrong;
use crate::files::printable;

/// The maximum size of a pickle in bytes. That of Llama 3.1 405B has less than one megabyte, and an unpickled byte
/// takes up to a hundred bytes in memory.
const MAX_PICKLE: usize = 2 << 20;
/// The maximum number of entries. There is one for each tensor, and a few more.
const MAX_ENTRIES: usize = 1 << 16;

/// An archive whose entries are all stored uncompressed.
pub(super) struct Archive<'a> {
    /// The byte range of each entry in the file, by name.
    entries: HashMap<Vec<u8>, Range<usize>>,
    /// The folder of all entries, with a slash at the end.
    folder: Vec<u8>,
    pickle: &'a [u8],
}

impl<'a> Archive<'a> {
    /// Reads the archive's directory and finds the pickle.
    pub(super) fn open(file: &'a [u8]) -> Result<Self, Wrong> {
        let zip = ZipArchive::from_slice(file).map_err(|error| damaged(&error))?;
        let entries = entries(&zip)?;
        let pickles: Vec<_> = entries.keys().filter_map(|name| name.strip_suffix(b"data.pkl")).collect();
        let folder = match pickles[..] {
            [folder] if folder.ends_with(b"/") => folder.to_vec(),
            _ => {
                return Err(Wrong {
                    what: "the zip archive is not a PyTorch checkpoint".into(),
                    expected: "one entry `…/data.pkl`".into(),
                    found: format!("{} of them among {} entries", pickles.len(), entries.len()),
                });
            }
        };
        let mut archive = Self { entries, folder, pickle: &[] };
        if let Ok(range) = archive.find("byteorder")
            && &file[range.clone()] != b"little"
        {
            return Err(Wrong {
                what: "the checkpoint was written on a big-endian machine".into(),
                expected: "little-endian values".into(),
                found: format!("`{}`", printable(&String::from_utf8_lossy(&file[range]))),
            });
        }
        let range = archive.find("data.pkl").map_err(|(expected, found)| Wrong {
            what: "the checkpoint has no pickle".into(),
            expected,
            found,
        })?;
        if range.len() > MAX_PICKLE {
            return Err(Wrong {
                what: "the checkpoint's pickle is too large".into(),
                expected: format!("at most {MAX_PICKLE} bytes"),
                found: format!("{} bytes", range.len()),
            });
        }
        archive.pickle = &file[range];
        Ok(archive)
    }

    /// The pickle.
    pub(super) fn pickle(&self) -> &'a [u8] {
        self.pickle
    }

    /// The byte range of the storage `key` in the file. An error holds what was expected and what was found.
    pub(super) fn storage(&self, key: &str) -> Result<Range<usize>, (String, String)> {
        self.find(&format!("data/{key}"))
    }

    /// The byte range of the entry `name` in the archive's folder. Names are only compared: whatever they are, no other
    /// file is ever opened.
    fn find(&self, name: &str) -> Result<Range<usize>, (String, String)> {
        let full = [&self.folder, name.as_bytes()].concat();
        let found = self.entries.get(&full).cloned();
        found
            .ok_or_else(|| (format!("an entry `{}` in the archive", printable(name)), "no such entry".into()))
    }
}

fn damaged(error: &rawzip::Error) -> Wrong {
    Wrong {
        what: "the zip archive is cut off or damaged".into(),
        expected: "a directory of its entries at the end of the file".into(),
        found: error.to_string(),
    }
}

/// The byte range of each entry. If two have the same name, the last one counts, as in Python.
fn entries(zip: &ZipSliceArchive<&[u8]>) -> Result<HashMap<Vec<u8>, Range<usize>>, Wrong> {
    let (mut ranges, mut places) = (HashMap::new(), Vec::new());
    let mut entries = zip.entries();
    while let Some(entry) = entries.next_entry().map_err(|error| damaged(&error))? {
        if places.len() >= MAX_ENTRIES {
            return Err(Wrong {
                what: "the zip archive has more entries than any checkpoint".into(),
                expected: format!("at most {MAX_ENTRIES}"),
                found: format!("{} entries, as its directory says", zip.entries_hint()),
            });
        }
        let (way, name) = (entry.wayfinder(), entry.file_path());
        let method = entry.compression_method();
        let sizes = (way.compressed_size_hint(), way.uncompressed_size_hint());
        // PyTorch does not compress, and compressed entries cannot be read in place.
        if method != CompressionMethod::STORE || entry.flags().is_encrypted() || sizes.0 != sizes.1 {
            let name = printable(&String::from_utf8_lossy(name.as_bytes()));
            return Err(Wrong {
                what: format!("the zip entry `{name}` is compressed or encrypted"),
                expected:
                    "uncompressed entries, as torch.save writes them; compressed ones may be a zip bomb"
                        .into(),
                found: format!("{method:?}: {} bytes in the file, {} unpacked", sizes.0, sizes.1),
            });
        }
        let (start, end) = zip.get_entry(way).map_err(|error| damaged(&error))?.compressed_data_range();
        let range = start as usize..end as usize;
        places.push((range.clone(), name.as_bytes().to_vec()));
        ranges.insert(name.as_bytes().to_vec(), range);
    }
    places.retain(|(range, _)| !range.is_empty());
    places.sort_by_key(|(range, _)| range.start);
    if let Some([(first, _), (second, name)]) = places.array_windows().find(|[a, b]| b.0.start < a.0.end) {
        let name = printable(&String::from_utf8_lossy(name));
        return Err(Wrong {
            what: format!("the zip entry `{name}` overlaps another, as in a zip bomb"),
            expected: "entries that follow one another, as torch.save writes them".into(),
            found: format!("bytes {second:?} after {first:?}"),
        });
    }
    Ok(ranges)
}

#[cfg(test)]
pub(in crate::checkpoint) mod tests {
    use super::*;

    /// A zip archive of stored entries, as torch.save writes it: name and contents.
    pub(in crate::checkpoint) fn zip(entries: &[(&str, &[u8])]) -> Vec<u8> {
        zip_with(entries, CompressionMethod::STORE)
    }

    fn zip_with(entries: &[(&str, &[u8])], method: CompressionMethod) -> Vec<u8> {
        use std::io::Write;
        let mut file = Vec::new();
        let mut writer = rawzip::ZipArchiveWriter::new(&mut file);
        for (name, bytes) in entries {
            let (mut entry, config) = writer.new_file(name).compression_method(method).start().unwrap();
            let mut data = config.wrap(&mut entry);
            data.write_all(bytes).unwrap();
            let (_, descriptor) = data.finish().unwrap();
            entry.finish(descriptor).unwrap();
        }
        writer.finish().unwrap();
        file
    }

    #[test]
    fn entries_are_found_in_place() {
        let file = zip(&[("m/data.pkl", b"pickle"), ("m/data/0", b"values"), ("m/byteorder", b"little")]);
        let archive = Archive::open(&file).unwrap();
        assert_eq!(archive.pickle(), b"pickle");
        assert_eq!(&file[archive.storage("0").unwrap()], b"values");
        assert!(archive.storage("1").unwrap_err().0.contains("`data/1`"));
        assert!(archive.storage("../data.pkl").is_err());
    }

    /// An archive of one entry with sizes and offset in 64 bits, as for more than 4 GB.
    fn zip64(name: &str, bytes: &[u8], size: u64) -> Vec<u8> {
        let (short, ends) = (name.len() as u16, [0xff; 4]);
        let fixed = [&[45, 0][..], &[0; 12]].concat();
        let local =
            [b"PK\x03\x04", &fixed[..], &ends, &ends, &short.to_le_bytes(), &[20, 0], name.as_bytes()]
                .concat();
        let extra = [&[1, 0, 16, 0][..], &size.to_le_bytes(), &size.to_le_bytes()].concat();
        let mut file = [local, extra, bytes.to_vec()].concat();
        let directory = file.len() as u64;
        file.extend(
            [
                b"PK\x01\x02\x2d\x00",
                &fixed[..],
                &ends,
                &ends,
                &short.to_le_bytes(),
                &[28, 0],
                &[0; 10],
                &ends,
            ]
            .concat(),
        );
        file.extend(
            [name.as_bytes(), &[1, 0, 24, 0], &size.to_le_bytes(), &size.to_le_bytes(), &[0; 8]].concat(),
        );
        let end = file.len() as u64;
        let [one, length] = [1, end - directory].map(u64::to_le_bytes);
        let versions = [45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        file.extend(
            [
                b"PK\x06\x06",
                &44_u64.to_le_bytes()[..],
                &versions,
                &one,
                &one,
                &length,
                &directory.to_le_bytes(),
            ]
            .concat(),
        );
        file.extend([b"PK\x06\x07", &[0; 4][..], &end.to_le_bytes(), &[1, 0, 0, 0]].concat());
        file.extend([b"PK\x05\x06", &[0xff; 16][..], &[0; 2]].concat());
        file
    }

    #[test]
    fn sizes_of_64_bits_are_read() {
        let file = zip64("m/data.pkl", b"pickle", 6);
        assert_eq!(Archive::open(&file).unwrap().pickle(), b"pickle");
        for size in [1 << 63, u64::MAX, u64::MAX - 40, 1 << 32, 1000] {
            Archive::open(&zip64("m/data.pkl", b"pickle", size)).err().unwrap();
        }
    }

    #[test]
    fn entries_that_share_bytes_are_refused() {
        // Both rows of the directory point to the first entry.
        let mut file = zip(&[("m/data.pkl", b"pickle"), ("m/data/0", b"values")]);
        Archive::open(&file).unwrap();
        let rows: Vec<usize> = (0..file.len()).filter(|&at| file[at..].starts_with(b"PK\x01\x02")).collect();
        file[rows[1] + 42..][..4].fill(0);
        let text = message(&file);
        assert!(text.contains("`m/data/0` overlaps another, as in a zip bomb"), "{text}");
    }

    fn message(file: &[u8]) -> String {
        let wrong = Archive::open(file).err().unwrap();
        format!("{}; {}; {}", wrong.what, wrong.expected, wrong.found)
    }

    #[test]
    fn other_archives_are_refused() {
        assert!(message(&zip(&[("a", b"")])).contains("`…/data.pkl`"));
        assert!(message(&zip(&[("a/data.pkl", b""), ("b/data.pkl", b"")])).contains("2 of them"));
        assert!(message(&zip(&[("data.pkl", b"")])).contains("`…/data.pkl`"));
        let big = zip(&[("m/data.pkl", b""), ("m/byteorder", b"big")]);
        assert!(message(&big).contains("big-endian"));
        let bomb = zip_with(&[("m/data.pkl", b"...")], CompressionMethod::DEFLATE);
        assert!(message(&bomb).contains("`m/data.pkl` is compressed") && message(&bomb).contains("zip bomb"));
        assert!(message(&zip(&[("m/data.pkl", &vec![0; MAX_PICKLE + 1])])).contains("at most"));
    }
}
