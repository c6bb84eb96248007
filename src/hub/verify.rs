//! Checksums of files, from their ETags.

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

/// The expected checksum of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Digest {
    kind: Kind,
    size: u64,
    /// In lower-case hexadecimal.
    hex: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Of a large file (Git LFS): the SHA-256 of its bytes.
    Sha256,
    /// Of a small file: its id in git, the SHA-1 of `blob SIZE\0` and its bytes.
    Git,
}

impl Digest {
    /// Returns the checksum that the ETag of a file of `size` bytes contains. The length of the ETag tells the kind of
    /// checksum. On servers other than the hub, an ETag may be something else than a checksum.
    pub(super) fn of_etag(etag: &str, size: u64) -> Option<Self> {
        let kind = match etag.len() {
            64 => Kind::Sha256,
            40 => Kind::Git,
            _ => return None,
        };
        let hex = etag.to_ascii_lowercase();
        hex.bytes().all(|byte| byte.is_ascii_hexdigit()).then_some(Self { kind, size, hex })
    }

    /// Starts to compute the checksum.
    pub(super) fn begin(&self) -> Context {
        match self.kind {
            Kind::Sha256 => Context::new(&SHA256),
            Kind::Git => {
                let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
                context.update(format!("blob {}\0", self.size).as_bytes());
                context
            }
        }
    }

    /// Returns the expected and the found checksum, if they differ.
    pub(super) fn differs(&self, context: Context) -> Option<(String, String)> {
        let found: String = context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let name = match self.kind {
            Kind::Sha256 => "SHA-256",
            Kind::Git => "git id",
        };
        (found != self.hex).then(|| (format!("{name} {}", self.hex), found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(etag: &str, bytes: &[u8]) -> bool {
        let digest = Digest::of_etag(etag, bytes.len() as u64).unwrap();
        let mut context = digest.begin();
        context.update(bytes);
        digest.differs(context).is_none()
    }

    #[test]
    fn the_checksums_are_those_of_sha256sum_and_git() {
        let sha256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
        assert!(matches(sha256, b"hello") && !matches(sha256, b"hallo"));
        // printf hello | git hash-object --stdin
        let git = "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0";
        assert!(matches(git, b"hello") && !matches(git, b"hallo"));
        assert!(Digest::of_etag("d41d8cd98f00b204e9800998ecf8427e", 0).is_none());
        assert!(Digest::of_etag(&"x".repeat(64), 0).is_none());
    }
}
