//! Features of the CUDA device that the user has switched off or on. A feature is switched off to avoid a driver's
//! fault, or to find the faulty feature. A feature is off by default if no GPU has run it yet.

use llama_trace_core::error::{Error, Result};
use llama_trace_kernels::driver::Untried;

/// The environment variables that list the disabled features, and the untried features to use: some of the words below,
/// separated by commas.
pub(super) const DISABLED: &str = "LLAMA_TRACE_CUDA_WITHOUT";
pub(super) const UNTRIED: &str = "LLAMA_TRACE_CUDA_WITH";

/// A word, and the function that sets its field.
type Setter<T> = (&'static str, fn(&mut T));

/// Calls the setter of each word in the environment variable `variable`, which has the value `words`.
///
/// # Errors
/// [`Error::Usage`] for a word that is not in `known`.
fn set_all<T: Default>(variable: &str, words: &str, known: &[Setter<T>]) -> Result<T> {
    let mut all = T::default();
    for word in words.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let Some((_, set)) = known.iter().find(|(name, _)| *name == word) else {
            let names: Vec<_> = known.iter().map(|(name, _)| *name).collect();
            return Err(Error::usage(format!("{variable} has an unknown word"))
                .expected(format!("one or more of {}, separated by commas", names.join(", ")))
                .found(format!("`{word}`"))
                .next("correct the word, or unset the variable"));
        };
        set(&mut all);
    }
    Ok(all)
}

fn value_of(variable: &str) -> String {
    std::env::var_os(variable).unwrap_or_default().to_string_lossy().into_owned()
}

/// Reads the untried features to use from the environment variable.
///
/// # Errors
/// [`Error::Usage`] for an unknown word.
pub(super) fn untried_of_environment() -> Result<Untried> {
    untried_of(&value_of(UNTRIED))
}

fn untried_of(words: &str) -> Result<Untried> {
    set_all(
        UNTRIED,
        words,
        &[("coalesced", |all: &mut Untried| all.coalesced = true), ("wide", |all| all.wide = true)],
    )
}

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
        Self::of(&value_of(DISABLED))
    }

    fn of(words: &str) -> Result<Self> {
        let known: [Setter<Self>; 5] = [
            ("early", |all| all.early = true),
            ("graphs", |all| all.graphs = true),
            ("split", |all| all.split = true),
            ("streams", |all| all.streams = true),
            ("wgmma", |all| all.wgmma = true),
        ];
        set_all(DISABLED, words, &known)
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
        assert_eq!(untried_of(" ,").unwrap(), Untried::default());
        assert_eq!(untried_of("wide").unwrap(), Untried { wide: true, coalesced: false });
        assert_eq!(untried_of("wide, coalesced").unwrap(), Untried { wide: true, coalesced: true });
        let error = untried_of("wgmma").unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("LLAMA_TRACE_CUDA_WITH has an unknown word"), "{error}");
    }
}
