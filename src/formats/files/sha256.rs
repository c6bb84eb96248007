//! SHA-256, by ring.

use ring::digest::{Context, SHA256};

/// A hash in the making.
#[derive(Clone)]
pub struct Sha256(Context);

impl Default for Sha256 {
    fn default() -> Self {
        Self(Context::new(&SHA256))
    }
}

impl Sha256 {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The hash of all bytes.
    pub fn finish(self) -> [u8; 32] {
        let mut hash = [0; 32];
        hash.copy_from_slice(self.0.finish().as_ref());
        hash
    }

    /// The hash of `bytes`.
    pub fn of(bytes: &[u8]) -> [u8; 32] {
        let mut hash = Self::default();
        hash.update(bytes);
        hash.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_the_standard() {
        let hex = |hash: [u8; 32]| hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hex(Sha256::of(b"abc")), abc);
        let mut parts = Sha256::default();
        parts.update(b"a");
        parts.update(b"bc");
        assert_eq!(hex(parts.finish()), abc);
    }
}
