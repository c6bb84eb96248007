//! SHA-256 without a C compiler, by the crate sha2: ring has no build for a web page.

use sha2::Digest;

/// A hash in the making.
#[derive(Clone, Default)]
pub struct Sha256(sha2::Sha256);

impl Sha256 {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The hash of all bytes.
    pub fn finish(self) -> [u8; 32] {
        self.0.finalize().into()
    }

    /// The hash of `bytes`.
    pub fn of(bytes: &[u8]) -> [u8; 32] {
        sha2::Sha256::digest(bytes).into()
    }
}
