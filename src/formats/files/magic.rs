//! Recognition of file kinds by their first bytes, for messages about unsupported files.

/// The probable kind of a file that begins with `bytes`. `None` if it is not recognised.
pub fn recognise(bytes: &[u8]) -> Option<&'static str> {
    let starts = |magic: &[u8]| bytes.starts_with(magic);
    // llama2.c writes the magic 0x616b3432 ("ak42") and the version as little-endian u32.
    if starts(b"24ka") {
        return Some(match bytes.get(4..8) {
            Some([1, 0, 0, 0]) => "a llama2.c checkpoint of version 1",
            Some([2, 0, 0, 0]) => "a llama2.c checkpoint of version 2 (Q8_0)",
            _ => "a llama2.c checkpoint of a later version",
        });
    }
    if starts(b"GGUF") {
        Some("a GGUF file")
    } else if starts(b"PK\x03\x04") {
        Some("a zip archive, like PyTorch's .pth and .bin files")
    } else if starts(b"\x80\x02\x8a\x0a") {
        Some("a Python pickle, like old PyTorch files")
    } else if starts(b"version https://git-lfs") {
        Some("a Git LFS pointer, not the file itself (`git lfs pull` fetches it)")
    } else if starts(b"\x0a\x0e\x0a\x05<unk>") {
        Some("a SentencePiece model (tokenizer.model)")
    } else if starts(b"IQ== 0\n") {
        Some("a tiktoken rank file (tokenizer.model)")
    } else if bytes.get(8) == Some(&b'{') && bytes.get(4..8) == Some(&[0; 4]) {
        Some("a safetensors file")
    } else if bytes.trim_ascii_start().first() == Some(&b'{') && !bytes.iter().take(4).any(|&byte| byte == 0)
    {
        // Text contains no zero byte. The small number at the beginning of llama2.c's files does.
        Some("a JSON file")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginnings_are_told_apart() {
        let beginnings: [(&[u8], Option<&str>); 11] = [
            (b"24ka\x02\0\0\0", Some("version 2")),
            (b"24ka", Some("later version")),
            (b"GGUF\x03\0\0\0", Some("GGUF")),
            (b"PK\x03\x04....", Some("zip")),
            (b"\x10\0\0\0\0\0\0\0{\"a\"", Some("safetensors")),
            (b" \n{\"a\": 1}", Some("JSON")),
            (b"\x40\0\0\0\xac\0\0\0\x05\0\0\0", None),
            (b"\x80\x02\x8a\x0a", Some("pickle")),
            // llama2.c files with dim 640 and with a longest token of 123 bytes.
            (b"\x80\x02\0\0", None),
            (b"{\0\0\0", None),
            (b"", None),
        ];
        for (bytes, expected) in beginnings {
            match (recognise(bytes), expected) {
                (Some(found), Some(part)) => assert!(found.contains(part), "{found} has no {part}"),
                (found, expected) => assert_eq!(found, expected),
            }
        }
    }
}
