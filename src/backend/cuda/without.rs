//! What a user leaves out of the device's work, where a driver does not do it well, or to find what does not.

use crate::error::{Error, Result};

/// The variable that names it: some of the words below, with commas between them.
pub(super) const VARIABLE: &str = "LLAMA_TRACE_CUDA_WITHOUT";

/// The variable that names what is taken though no GPU has shown yet that it is right: `streams`.
pub(super) const OF_MORE: &str = "LLAMA_TRACE_CUDA_WITH";

/// What is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Without {
    /// `early`: kernels that begin before the one before them has ended.
    pub(super) early: bool,
    /// `graphs`: passes that are repeated as one.
    pub(super) graphs: bool,
    /// `split`: attention in float32 by tensor cores, its operands split in two float16 values each.
    pub(super) split: bool,
    /// `streams`: products in whole numbers whose weights go through shared memory.
    pub(super) streams: bool,
    /// Products whose weights go through shared memory, of formats that no GPU has multiplied so yet: left out unless
    /// [`OF_MORE`] names `streams`.
    pub(super) new_streams: bool,
    /// `wgmma`: products by groups of four warps.
    pub(super) wgmma: bool,
}

impl Without {
    /// What the environment says.
    ///
    /// # Errors
    /// [`Error::Usage`] for a word that is none of them.
    pub(super) fn of_environment() -> Result<Self> {
        let words = |variable| std::env::var_os(variable).unwrap_or_default().to_string_lossy().into_owned();
        let new_streams = match words(OF_MORE).trim() {
            "" => true,
            "streams" => false,
            other => {
                return Err(Error::usage(format!("{OF_MORE} names what a device has not"))
                    .expected("streams")
                    .found(format!("`{other}`"))
                    .next("name this, or unset the variable"));
            }
        };
        Ok(Self { new_streams, ..Self::of(&words(VARIABLE))? })
    }

    fn of(words: &str) -> Result<Self> {
        let mut all = Self::default();
        for word in words.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            match word {
                "early" => all.early = true,
                "graphs" => all.graphs = true,
                "split" => all.split = true,
                "streams" => all.streams = true,
                "wgmma" => all.wgmma = true,
                other => {
                    return Err(Error::usage(format!("{VARIABLE} names what a device cannot be without"))
                        .expected("early, graphs, split, streams, wgmma, or some of them with commas between")
                        .found(format!("`{other}`"))
                        .next("name one of these, or unset the variable"));
                }
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_taken_and_others_are_refused() {
        assert_eq!(Without::of("").unwrap(), Without::default());
        let some = Without { early: true, split: true, wgmma: true, ..Without::default() };
        assert_eq!(Without::of("early, wgmma,split").unwrap(), some);
        let error = Without::of("graphs,pdl").unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("`pdl`"), "{error}");
    }
}
