//! Labels of tokens, the same for every kind of tokenizer.

/// The text of a token with `bytes`. A byte that is not part of valid UTF-8 is written in the form `<0xE2>`.
pub(super) fn of_bytes(bytes: &[u8]) -> String {
    let mut label = String::new();
    for chunk in bytes.utf8_chunks() {
        label.push_str(chunk.valid());
        for byte in chunk.invalid() {
            label += &format!("<0x{byte:02X}>");
        }
    }
    label
}

/// The label of an id outside the vocabulary.
pub(super) fn unknown(id: u32) -> String {
    format!("#{id}")
}

/// The byte of a token written `<0xE2>`.
pub(super) fn byte_token(token: &[u8]) -> Option<u8> {
    let digits = token.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    let digits =
        std::str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()))?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_characters_are_spelt_as_bytes() {
        assert_eq!(of_bytes(" the".as_bytes()), " the");
        assert_eq!(of_bytes(b"\xe2\x82"), "<0xE2><0x82>");
        assert_eq!(of_bytes(b"a\xe2\x82\xacb\xff"), "a€b<0xFF>");
    }

    #[test]
    fn byte_tokens_have_two_hexadecimal_digits() {
        assert_eq!(byte_token(b"<0xE2>"), Some(0xe2));
        assert_eq!(byte_token(b"<0x0a>"), Some(10));
        for token in [&b"<0xE>"[..], b"<0x+1>", b"<0xE2", b"0xE2", b"<0xE23>", b"<0x\xc3\xa9>"] {
            assert_eq!(byte_token(token), None);
        }
    }
}
