//! A time limit for the tokenization of a text, whatever the tokenizer's file contains.
//!
//! The sizes in a tokenizer's file are checked before any work. The time of the work cannot be checked in advance. A
//! regular expression such as `a(?=.*b)`, or `(?s)a.*z|.`, reads the rest of the text at each character. The form of an
//! expression does not show whether it is slow: `\s*[\r\n]+|\s+` also reads far, but then continues from the place that
//! it reached. A vocabulary of `a`, `aa`, `aaa` and so on is just as slow without a regular expression. This work
//! cannot be stopped from outside. It therefore runs on a separate thread. A thread that takes too long is abandoned
//! and ends with the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::merges::Stretch;
use super::{TextStream, Tokenizer};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::stop;

/// The time limit for a text. A published tokenizer needs a small fraction of it for the longest possible text.
const MAX_TIME: Duration = Duration::from_secs(20);

/// The maximum size in bytes of a text that is tokenized on the calling thread, because that is faster than starting a
/// thread. fancy-regex stops after a million backtracking steps, so even the worst pattern ends.
const SHORT: usize = 64;

/// A tokenizer that abandons a text after [`MAX_TIME`], or when the process is asked to stop.
pub(super) struct Bounded {
    inner: Arc<dyn Tokenizer>,
    /// The location of its file.
    place: String,
    time: Duration,
    /// Whether it has abandoned a text.
    late: AtomicBool,
}

impl Bounded {
    /// Wraps `inner`, found at `place`.
    pub(super) fn new(inner: Box<dyn Tokenizer>, place: &str) -> Self {
        Self { inner: inner.into(), place: place.into(), time: MAX_TIME, late: AtomicBool::new(false) }
    }

    /// Runs `work` on the tokenizer and a text, within the time limit.
    fn within<T: Send + 'static>(
        &self,
        text: &str,
        work: impl FnOnce(&dyn Tokenizer, &str) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        // The abandoned thread is still running. No second one is started.
        if self.late() {
            return Err(self.too_long(text));
        }
        if text.len() <= SHORT {
            return work(&*self.inner, text);
        }
        let (inner, own) = (Arc::clone(&self.inner), text.to_owned());
        stop::process().within(
            self.time,
            || {
                self.late.store(true, Ordering::Relaxed);
                self.too_long(text)
            },
            move || work(&*inner, &own),
        )
    }

    fn too_long(&self, text: &str) -> Error {
        Error::model("the tokenizer takes too long to split a text into tokens")
            .at(&self.place)
            .expected(format!("at most {} seconds", self.time.as_secs()))
            .found(format!("a text of {} bytes that takes longer", text.len()))
            .next("give a shorter text, another tokenizer with --tokenizer, or token ids")
    }
}

impl Tokenizer for Bounded {
    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.within(text, |inner, text| inner.encode(text))
    }

    fn encode_marked(&self, text: &str) -> Result<Vec<u32>> {
        self.within(text, |inner, text| inner.encode_marked(text))
    }

    fn encode_plain(&self, text: &str) -> Result<Vec<u32>> {
        self.within(text, |inner, text| inner.encode_plain(text))
    }

    fn merges(&self, text: &str, plain: bool) -> Result<Option<Vec<Stretch>>> {
        self.within(text, move |inner, text| inner.merges(text, plain))
    }

    fn late(&self) -> bool {
        self.late.load(Ordering::Relaxed)
    }

    fn specials(&self) -> Vec<String> {
        self.inner.specials()
    }

    fn bos(&self) -> Option<u32> {
        self.inner.bos()
    }

    fn ends(&self) -> Vec<u32> {
        self.inner.ends()
    }

    fn vocab_size(&self) -> usize {
        self.inner.vocab_size()
    }

    fn label(&self, id: u32) -> String {
        self.inner.label(id)
    }

    fn longest(&self) -> usize {
        self.inner.longest()
    }

    fn note(&self) -> Option<&str> {
        self.inner.note()
    }

    fn stream(&self) -> TextStream<'_> {
        self.inner.stream()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    /// A tokenizer that blocks forever, except for the empty text.
    struct Slow(Mutex<Receiver<()>>);

    impl Tokenizer for Slow {
        fn encode(&self, text: &str) -> Result<Vec<u32>> {
            if !text.is_empty() {
                let _ = self.0.lock().unwrap().recv();
            }
            Ok(vec![7])
        }

        fn encode_plain(&self, text: &str) -> Result<Vec<u32>> {
            self.encode(text)
        }

        fn merges(&self, text: &str, _: bool) -> Result<Option<Vec<Stretch>>> {
            self.encode(text).map(|_| None)
        }

        fn bos(&self) -> Option<u32> {
            None
        }

        fn vocab_size(&self) -> usize {
            8
        }

        fn label(&self, id: u32) -> String {
            id.to_string()
        }

        fn stream(&self) -> TextStream<'_> {
            unreachable!("nothing is decoded here")
        }
    }

    type Way = fn(&dyn Tokenizer, &str) -> Result<()>;

    #[test]
    fn a_text_that_takes_too_long_is_given_up_in_every_way_to_split_one() {
        let ways: [Way; 4] = [
            |tokenizer, text| tokenizer.encode(text).map(drop),
            |tokenizer, text| tokenizer.encode_marked(text).map(drop),
            |tokenizer, text| tokenizer.encode_plain(text).map(drop),
            |tokenizer, text| tokenizer.merges(text, false).map(drop),
        ];
        for way in ways {
            let (hold, held) = channel();
            let bounded = Bounded::new(Box::new(Slow(Mutex::new(held))), "tokenizer.json");
            let bounded = Bounded { time: Duration::from_millis(1), ..bounded };
            way(&bounded, "").unwrap();
            let error = way(&bounded, &"text".repeat(SHORT)).unwrap_err();
            assert!(bounded.late(), "{error}");
            assert_eq!(error.exit_code(), 3);
            let text = error.to_string();
            assert!(text.contains("too long") && text.contains("tokenizer.json"), "{text}");
            // The first call holds the lock forever, so no second call may start.
            assert!(bounded.late() && way(&bounded, "").is_err());
            drop(hold);
        }
    }
}
