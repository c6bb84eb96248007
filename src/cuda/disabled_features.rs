//! Features of the CUDA device that the user has switched off: to avoid a driver's fault, or to find the faulty
//! feature.

use llama_trace_core::error::{Error, Result};

/// The environment variable that lists the disabled features: some of the words below, separated by commas.
pub(super) const VARIABLE: &str = "LLAMA_TRACE_CUDA_WITHOUT";

/// The features that are switched off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DisabledFeatures {
    /// `early`: a kernel may start before the previous kernel has ended.
    pub(super) early: bool,
    /// `graphs`: a pass is launched as one graph.
    pub(super) graphs: bool,
    /// `split`: attention in float32 uses tensor cores. Each operand is split into two float16 values.
    pub(super) split: bool,
    /// `streams`: integer products copy their weights to shared memory first.
    pub(super) streams: bool,
    /// `wgmma`: products use warpgroups (four warps together).
    pub(super) wgmma: bool,
}

impl DisabledFeatures {
    /// Reads the environment variable.
    ///
    /// # Errors
    /// [`Error::Usage`] for an unknown word.
    pub(super) fn of_environment() -> Result<Self> {
        Self::of(&std::env::var_os(VARIABLE).unwrap_or_default().to_string_lossy())
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
                    return Err(Error::usage(format!("{VARIABLE} has an unknown word"))
                        .expected(
                            "one or more of early, graphs, split, streams and wgmma, separated by commas",
                        )
                        .found(format!("`{other}`"))
                        .next("correct the word, or unset the variable"));
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
        assert_eq!(DisabledFeatures::of("").unwrap(), DisabledFeatures::default());
        let some = DisabledFeatures { early: true, split: true, wgmma: true, ..DisabledFeatures::default() };
        assert_eq!(DisabledFeatures::of("early, wgmma,split").unwrap(), some);
        let error = DisabledFeatures::of("graphs,pdl").unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("`pdl`"), "{error}");
    }
}
