//! Incremental conversion of bytes to text. A token may end inside a character.

/// Collects bytes and returns the characters that are complete.
#[derive(Debug, Default)]
pub(super) struct Utf8Stream {
    /// The incomplete character at the end, at most three bytes.
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// The text that `bytes` completes. Bytes that can never become UTF-8 are replaced by the replacement character, as
    /// in [`String::from_utf8_lossy`]. An incomplete character is kept.
    pub(super) fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut text = String::new();
        let mut waiting = 0;
        for chunk in self.pending.utf8_chunks() {
            text.push_str(chunk.valid());
            waiting = 0;
            if !chunk.invalid().is_empty() {
                if is_beginning(chunk.invalid()) {
                    waiting = chunk.invalid().len();
                }
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        if waiting > 0 {
            // The invalid part of the last chunk is at the end of the bytes. It may be the beginning of a character.
            text.pop();
        }
        self.pending.drain(..self.pending.len() - waiting);
        text
    }

    /// The rest at the end, with the replacement character for an incomplete character.
    pub(super) fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }
}

/// Returns whether more bytes could complete `bytes` to a character.
fn is_beginning(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_character_waits_for_its_last_byte() {
        let mut stream = Utf8Stream::default();
        assert_eq!(stream.push(b"a\xe2"), "a");
        assert_eq!(stream.push(b"\x82"), "");
        assert_eq!(stream.push(b"\xacb"), "€b");
        assert_eq!(stream.finish(), "");
    }

    #[test]
    fn what_cannot_become_a_character_is_replaced_at_once() {
        let mut stream = Utf8Stream::default();
        assert_eq!(stream.push(b"\xff"), "\u{fffd}");
        assert_eq!(stream.push(b"\xe2"), "");
        assert_eq!(stream.push(b"x"), "\u{fffd}x");
        assert_eq!(stream.push(b"\xf0\x9f"), "");
        assert_eq!(stream.finish(), "\u{fffd}");
    }

    proptest! {
        #[test]
        fn any_cuts_give_the_text_of_the_whole(bytes: Vec<u8>, size in 1_usize..5, text: String) {
            for bytes in [&bytes[..], text.as_bytes()] {
                let mut stream = Utf8Stream::default();
                let mut joined: String = bytes.chunks(size).map(|part| stream.push(part)).collect();
                joined += &stream.finish();
                prop_assert_eq!(joined, String::from_utf8_lossy(bytes));
            }
        }
    }
}
