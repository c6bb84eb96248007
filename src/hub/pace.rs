//! The lowest accepted rate of a server. A server that sends a byte now and then never times out, and a download would
//! take years.

use std::io::{Error, ErrorKind, Read, Result};
use std::time::{Duration, Instant};

/// The minimum number of bytes in each interval of time, except at the end of a file. A telephone line transfers more
/// in a minute.
pub(super) const LEAST: u64 = 1 << 16;

/// A body that fails if fewer than [`LEAST`] bytes arrive within `patience`.
pub(super) struct Paced<R> {
    reader: R,
    patience: Duration,
    since: Instant,
    bytes: u64,
}

impl<R: Read> Paced<R> {
    pub(super) fn new(reader: R, patience: Duration) -> Self {
        Self { reader, patience, since: Instant::now(), bytes: 0 }
    }

    /// Counts `count` more bytes, `time` after the start of this interval.
    fn keep(&mut self, count: usize, time: Duration) -> Result<usize> {
        self.bytes += count as u64;
        if count > 0 && time >= self.patience {
            if self.bytes < LEAST {
                let Self { patience, bytes, .. } = self;
                let what = format!("only {bytes} bytes in {} seconds", patience.as_secs());
                return Err(Error::new(ErrorKind::TimedOut, what));
            }
            (self.since, self.bytes) = (Instant::now(), 0);
        }
        Ok(count)
    }
}

impl<R: Read> Read for Paced<R> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let count = self.reader.read(buffer)?;
        self.keep(count, self.since.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_must_bring_its_bytes() {
        let minute = Duration::from_secs(60);
        let paced = || Paced::new(std::io::empty(), minute);
        let mut slow = paced();
        assert!(slow.keep(1, minute / 2).is_ok());
        assert!(slow.keep(1, minute).unwrap_err().to_string().contains("only 2 bytes in 60 seconds"));
        assert_eq!(paced().keep(0, minute).unwrap(), 0, "the end may come at any time");
        let mut fast = paced();
        assert!(fast.keep(LEAST as usize, minute).is_ok());
        assert!(fast.keep(1, minute).is_err(), "each stretch by itself");
    }
}
