//! Compiled kernels on disk, so that each kernel is compiled only once for a device.
//!
//! A file's name is a hash of all inputs: the sources, their defines, the options, the architecture and the compiler's
//! version. The file holds the SHA-256 of the code, then the code. A truncated or changed file is written again. If the
//! folder cannot be written, kernels are compiled in every run.

use std::fmt::Write as _;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use ring::digest::{Context, SHA256, SHA256_OUTPUT_LEN, digest};

use llama_trace_core::error::Result;
use llama_trace_kernels::nvrtc::{OPTIONS, Source, Version};
use llama_trace_kernels::sources;

/// Maximum size of a file that is read, in bytes. Every kernel is smaller.
const MOST: u64 = 64 << 20;

/// A folder of compiled kernels.
pub(super) struct Store {
    folder: Option<PathBuf>,
}

impl Store {
    /// Returns the store in the user's cache folder, if there is such a folder.
    pub(super) fn of_user() -> Self {
        let cache = std::env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
        let cache = cache.or_else(|| Some(std::env::home_dir()?.join(".cache")));
        Self { folder: cache.map(|cache| cache.join("llama-trace/kernels")) }
    }

    /// Returns the machine code of `kernel` in `source` for `architecture`, compiled by version `compiler` of the
    /// compiler. Reads it from the folder. If it is not there, calls `compile` and stores the result.
    ///
    /// # Errors
    /// The errors of `compile`.
    pub(super) fn code(
        &self,
        (source, kernel): (Source<'_>, &str),
        architecture: Version,
        compiler: Version,
        compile: impl FnOnce() -> Result<Vec<u8>>,
    ) -> Result<Vec<u8>> {
        let path =
            self.folder.as_ref().map(|folder| folder.join(name(source, kernel, architecture, compiler)));
        if let Some(code) = path.as_deref().and_then(read) {
            return Ok(code);
        }
        let code = compile()?;
        // If the file cannot be written, the run continues without it.
        let _ = path.map(|path| write(&path, &code));
        Ok(code)
    }
}

impl Store {
    /// Returns the stored answer for `what`.
    pub(super) fn remembered(&self, what: &str) -> Option<bool> {
        match read(&self.place(what)?)?[..] {
            [answer] => Some(answer == 1),
            _ => None,
        }
    }

    /// Stores an answer, if the folder can be written.
    pub(super) fn remember(&self, what: &str, answer: bool) {
        let _ = self.place(what).map(|path| write(&path, &[u8::from(answer)]));
    }

    fn place(&self, what: &str) -> Option<PathBuf> {
        let hash = hex(&digest(&SHA256, [what, &sources::digest()].concat().as_bytes()).as_ref()[..16]);
        self.folder.as_ref().map(|folder| folder.join(format!("proof-{hash}")))
    }
}

/// Returns the name of the file.
fn name(source: Source<'_>, kernel: &str, architecture: Version, compiler: Version) -> String {
    let mut all = Context::new(&SHA256);
    let mut add = |part: &[u8]| {
        // The lengths separate the parts.
        all.update(&(part.len() as u64).to_le_bytes());
        all.update(part);
    };
    let numbers = [architecture.0, architecture.1, compiler.0, compiler.1];
    numbers.iter().for_each(|number| add(&number.to_le_bytes()));
    for (name, text) in source.headers.iter().chain([&(source.name, source.text)]) {
        add(name.as_bytes());
        add(text.as_bytes());
    }
    OPTIONS.iter().for_each(|option| add(option.as_bytes()));
    source.defines.iter().for_each(|define| add(define.as_bytes()));
    add(kernel.as_bytes());
    let hash = hex(&all.finish().as_ref()[..16]);
    format!("{kernel}-sm_{}{}-{hash}.cubin", architecture.0, architecture.1)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns the contents of a file, if its hash is correct.
fn read(path: &Path) -> Option<Vec<u8>> {
    if fs::metadata(path).ok()?.len() > MOST {
        return None;
    }
    let bytes = fs::read(path).ok()?;
    let (sum, code) = bytes.split_at_checked(SHA256_OUTPUT_LEN)?;
    (digest(&SHA256, code).as_ref() == sum).then(|| code.to_vec())
}

/// Writes a temporary file and renames it, so the file is always complete.
fn write(path: &Path, code: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(digest(&SHA256, code).as_ref())?;
    file.write_all(code)?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use llama_trace_core::error::Error;

    const SOURCE: Source<'static> =
        Source { name: "add", text: "text", headers: &[("common.cuh", "header")], defines: &[] };

    #[test]
    fn what_was_compiled_is_not_compiled_again_unless_the_file_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store { folder: Some(folder.path().join("not/there/yet")) };
        let compiled = Cell::new(0);
        let code = || {
            store.code((SOURCE, "add"), (9, 0), (12, 8), || {
                compiled.set(compiled.get() + 1);
                Ok(b"code".to_vec())
            })
        };
        assert_eq!(
            (code().unwrap(), code().unwrap(), compiled.get()),
            (b"code".to_vec(), b"code".to_vec(), 1)
        );
        let path = folder.path().join("not/there/yet").join(name(SOURCE, "add", (9, 0), (12, 8)));
        let whole = fs::read(&path).unwrap();
        let changed = [&whole[..whole.len() - 1], b"?"].concat();
        for damaged in [&whole[..whole.len() - 1], &whole[..5], &[], &changed] {
            fs::write(&path, damaged).unwrap();
            let before = compiled.get();
            assert_eq!(code().unwrap(), b"code");
            assert_eq!(compiled.get(), before + 1, "{} bytes", damaged.len());
            assert_eq!(fs::read(&path).unwrap(), whole, "it is complete again");
        }
        let left = fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(left, 1, "no temporary file is left");
    }

    #[test]
    fn other_sources_defines_devices_and_compilers_have_other_files() {
        let defines = ["WEIGHT=F32".to_owned()];
        let other = [
            Source { text: "other", ..SOURCE },
            Source { headers: &[("common.cuh", "other")], ..SOURCE },
            Source { headers: &[], ..SOURCE },
            Source { defines: &defines, ..SOURCE },
        ];
        let mut names: Vec<_> = other.iter().map(|source| name(*source, "add", (9, 0), (12, 8))).collect();
        names.extend(
            [((9, 0), (12, 8)), ((8, 0), (12, 8)), ((9, 0), (13, 0))].map(|(a, c)| name(SOURCE, "add", a, c)),
        );
        names.push(name(SOURCE, "mul", (9, 0), (12, 8)));
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn an_answer_is_remembered_for_the_same_question_unless_the_file_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store { folder: Some(folder.path().to_owned()) };
        assert_eq!(store.remembered("a"), None);
        store.remember("a", true);
        store.remember("b", false);
        assert_eq!(["a", "b", "c"].map(|what| store.remembered(what)), [Some(true), Some(false), None]);
        let path = store.place("a").unwrap();
        let whole = fs::read(&path).unwrap();
        for damaged in [&whole[..whole.len() - 1], &[&whole[..], &[1]].concat(), &[]] {
            fs::write(&path, damaged).unwrap();
            assert_eq!(store.remembered("a"), None, "{} bytes", damaged.len());
        }
    }

    #[test]
    fn a_folder_that_cannot_be_written_to_and_a_compiler_that_refuses() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let store = Store { folder: Some(file.path().to_owned()) };
        assert_eq!(store.code((SOURCE, "add"), (8, 0), (12, 0), || Ok(vec![7])).unwrap(), [7]);
        let refused = store.code((SOURCE, "add"), (8, 0), (12, 0), || Err(Error::usage("no")));
        assert!(refused.is_err());
    }
}
