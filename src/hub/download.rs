//! Download of one file to its blob in the cache. Resumes an earlier download and a broken connection. Every blob is
//! checked before it gets its name.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use ring::digest::Context;

use super::cache::{Cache, cannot_write};
use super::client::{Client, Failure, Meta, pause};
use super::pace::LEAST;
use super::{Watch, refusal};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::stop;
use llama_trace_formats::files::itself;

/// The maximum number of consecutive attempts without progress. An attempt fails if the connection breaks, or if the
/// server does not have the requested range.
const ATTEMPTS: u32 = 4;
const CHUNK: usize = 1 << 17;

/// A download of one file.
pub(super) struct Download<'c, 's> {
    pub(super) client: &'c Client<'s>,
    pub(super) cache: &'c Cache,
    pub(super) commit: &'c str,
    pub(super) file: &'c str,
    pub(super) meta: &'c Meta,
}

/// The bytes so far, and their checksum.
struct Partial {
    file: File,
    at: u64,
    context: Option<Context>,
}

impl Download<'_, '_> {
    /// Downloads the blob. The caller holds its lock. Without locks, two downloads of one blob write the same bytes at
    /// the same places.
    ///
    /// # Errors
    /// [`Error::Model`] if the hub does not return the whole file, [`Error::Output`] if it cannot be written,
    /// [`Error::Interrupted`] after a stop request. The bytes so far are kept, and the next download resumes there.
    pub(super) fn run(&self, watch: &mut dyn Watch) -> Result<()> {
        let path = self.cache.partial(&self.meta.etag);
        let failed = |error: std::io::Error| cannot_write(&path, &error);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let mut partial = self.take_up(&path)?;
        // Whether some bytes are from an earlier run and may be damaged. Otherwise this run received all bytes from the
        // hub.
        let mut inherited = partial.at > 0;
        // `furthest` is the largest number of bytes that any attempt has reached. An attempt that starts again, or adds
        // almost nothing, counts as one without progress.
        let (mut attempts, mut furthest) = (0, partial.at);
        loop {
            watch.at(partial.at);
            if let Err(failure) = self.receive(&mut partial, &path, watch)? {
                // Status 416: the server does not have this range.
                let no_part = matches!(failure, Failure::Refused { status: 416, .. }) && partial.at > 0;
                if !no_part && !matches!(failure, Failure::Unreachable(_)) {
                    return Err(refusal::report(&failure, self.client));
                }
                attempts = if partial.at >= furthest + LEAST { 1 } else { attempts + 1 };
                furthest = furthest.max(partial.at);
                if attempts == ATTEMPTS {
                    return Err(self.broken(&failure, partial.at));
                }
                if no_part {
                    partial = self.start(&path)?;
                    inherited = false;
                } else {
                    stop::sleep(pause(attempts - 1))?;
                }
                continue;
            }
            let context = partial.context.take();
            let wrong = self.meta.digest.as_ref().zip(context).and_then(|(digest, it)| digest.differs(it));
            let Some((expected, found)) = wrong else { break };
            if !inherited {
                fs::remove_file(&path).map_err(failed)?;
                return Err(Error::model(format!(
                    "the bytes received for `{}` have a wrong checksum",
                    self.file
                ))
                .at(refusal::place(self.client))
                .expected(expected)
                .found(found)
                .next("try again; if it fails again, tell the repository's owners"));
            }
            partial = self.start(&path)?;
            inherited = false;
        }
        partial.file.sync_all().map_err(failed)?;
        let blob = self.cache.blob(&self.meta.etag);
        match fs::rename(&path, &blob) {
            Err(error) if !blob.exists() => Err(failed(error)),
            _ => Ok(()),
        }
    }

    /// Resumes the file of an earlier run, if possible.
    fn take_up(&self, path: &Path) -> Result<Partial> {
        let failed = |error: std::io::Error| cannot_write(path, &error);
        let Ok(mut file) = itself(File::options().read(true).write(true)).open(path) else {
            return self.start(path);
        };
        if !file.metadata().is_ok_and(|metadata| is_ours(&metadata)) {
            return self.start(path);
        }
        let mut context = self.meta.digest.as_ref().map(super::verify::Digest::begin);
        let mut chunk = vec![0; CHUNK];
        let mut at = 0;
        loop {
            stop::check()?;
            let count = file.read(&mut chunk).map_err(failed)?;
            if count == 0 {
                break;
            }
            at += count as u64;
            if at > self.meta.size {
                return self.start(path);
            }
            if let Some(context) = &mut context {
                context.update(&chunk[..count]);
            }
        }
        Ok(Partial { file, at, context })
    }

    /// Replaces the file by an empty one. Never truncates it: another process may be about to rename it to the blob.
    fn start(&self, path: &Path) -> Result<Partial> {
        let failed = |error: std::io::Error| cannot_write(path, &error);
        // Windows keeps the name of an open file that was removed.
        let other_name = path.with_extension("removed");
        let moved = cfg!(windows) && fs::rename(path, &other_name).is_ok();
        match fs::remove_file(if moved { &other_name } else { path }) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let file = File::create_new(path).map_err(failed)?;
        Ok(Partial { file, at: 0, context: self.meta.digest.as_ref().map(super::verify::Digest::begin) })
    }

    /// Requests the missing bytes and writes them. The outer error is one of this machine, the inner error one of the
    /// hub.
    fn receive(
        &self,
        partial: &mut Partial,
        path: &Path,
        watch: &mut dyn Watch,
    ) -> Result<std::result::Result<(), Failure>> {
        let size = self.meta.size;
        if partial.at == size {
            return Ok(Ok(()));
        }
        let (start, mut reader) = match self.client.bytes(self.commit, self.file, partial.at) {
            Ok(answer) => answer,
            Err(failure) => return Ok(Err(failure)),
        };
        if start != partial.at {
            *partial = self.start(path)?;
        }
        let failed = |error: std::io::Error| cannot_write(path, &error);
        partial.file.seek(SeekFrom::Start(start)).map_err(failed)?;
        let mut chunk = vec![0; CHUNK];
        loop {
            stop::check()?;
            let count = match reader.read(&mut chunk) {
                Ok(count) => count,
                Err(error) => return Ok(Err(Failure::Unreachable(error.to_string()))),
            };
            if count == 0 {
                let cut = || Failure::Unreachable(format!("the connection ended after {} bytes", partial.at));
                return Ok(if partial.at == size { Ok(()) } else { Err(cut()) });
            }
            if count as u64 > size - partial.at {
                let more = format!("more than the {size} bytes of {}", self.file);
                return Ok(Err(Failure::Strange(more)));
            }
            partial.file.write_all(&chunk[..count]).map_err(failed)?;
            if let Some(context) = &mut partial.context {
                context.update(&chunk[..count]);
            }
            partial.at += count as u64;
            watch.at(partial.at);
        }
    }

    fn broken(&self, failure: &Failure, at: u64) -> Error {
        Error::model(format!("`{}` was not received completely", self.file))
            .at(refusal::place(self.client))
            .expected(format!("{} bytes", self.meta.size))
            .found(format!("{at} bytes, then: {}", refusal::told(failure)))
            .next("run the same command again: it goes on from there")
    }
}

/// Returns whether a partial file can be resumed: it must be a regular file without other names. The target of a link,
/// or a file with a second name, may belong to another user.
fn is_ours(metadata: &fs::Metadata) -> bool {
    #[cfg(unix)]
    if std::os::unix::fs::MetadataExt::nlink(metadata) > 1 {
        return false;
    }
    metadata.is_file()
}
