//! Branches of a recorded run.

use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::{Address, Fork, Run};

/// The largest number of branches in a trace.
pub(super) const MOST: usize = 64;

/// A branch: it shares the passes of another run up to a given pass, then continues with its own token. The first
/// branch of a trace is `r1`, the next `r2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    /// Its sequence, which is also that of the run it branches from.
    pub sequence: usize,
    /// The run it branches from: the original run, or an earlier branch.
    pub of: Run,
    /// The last shared pass.
    pub pass: usize,
    /// The branch's token after that pass.
    pub token: u32,
}

impl Branch {
    /// The branch as a [`Fork`], which a viewer uses.
    pub fn fork(self) -> Fork {
        Fork { of: self.of, pass: self.pass, token: self.token, setting: None }
    }

    /// Parses `p3=412`, `s1/p3=412` or `r1:p3=412`: the last shared pass, and the token after it.
    ///
    /// # Errors
    /// A description of the wrong part.
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        let form = || format!("`{text}` is not of the form PASS=ID, with the id of a token, as in p3=412");
        let (place, token) = text.rsplit_once('=').ok_or_else(form)?;
        let token = token.trim().parse().map_err(|_| form())?;
        let address = Address::parse(place)?;
        if address.layer.is_some() || address.subject.is_some() || !address.index.is_empty() {
            return Err(form());
        }
        let of =
            address.run_number(Run::ITSELF).ok_or_else(|| format!("`{place}` names no run of the trace"))?;
        let pass = address.pass.ok_or_else(form)?;
        Ok(Self { sequence: address.sequence.unwrap_or(0), of, pass, token })
    }

    /// Checks that each branch starts from a pass of the run or of an earlier branch; the run has `sequences`
    /// sequences.
    ///
    /// # Errors
    /// [`Error::Usage`] if one does not, or there are too many.
    pub fn check(all: &[Self], sequences: usize) -> Result<()> {
        if all.len() > MOST {
            return Err(Error::usage("there are too many branches")
                .at("--branch")
                .expected(format!("at most {MOST}"))
                .found(all.len()));
        }
        for (number, branch) in all.iter().enumerate() {
            let there = match usize::from(branch.of.0).checked_sub(1) {
                None => branch.sequence < sequences,
                Some(of) => of < number && all[of].sequence == branch.sequence && all[of].pass < branch.pass,
            };
            if !there {
                return Err(Error::usage("a branch starts from a pass that does not exist")
                    .at(format!("--branch number {}, which is r{}", number + 1, number + 1))
                    .expected("a pass of the run itself (p3), of another sequence (s1/p3), or of an earlier branch, after the pass where that branch starts (r1:p5)")
                    .found(format!("{}:s{}/p{}", branch.of, branch.sequence, branch.pass)));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_is_a_pass_and_a_token() {
        let branch = |sequence, of, pass| Ok(Branch { sequence, of: Run(of), pass, token: 12 });
        assert_eq!(Branch::parse("p3=12"), branch(0, 0, 3));
        assert_eq!(Branch::parse("s2/p0=12"), branch(2, 0, 0));
        assert_eq!(Branch::parse("r1:p5=12"), branch(0, 1, 5));
        for wrong in
            ["", "p3", "=12", "12", "p3=", "p3=cat", "p3=-1", "p3/L0=12", "p3/xq=12", "L0=12", "b:p3=12"]
        {
            assert!(Branch::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_branch_parts_from_what_is_there_before_it() {
        let branch = |sequence, of, pass| Branch { sequence, of: Run(of), pass, token: 12 };
        assert!(Branch::check(&[branch(0, 0, 3), branch(1, 0, 0), branch(0, 1, 4)], 2).is_ok());
        for wrong in [
            &[branch(2, 0, 0)][..],
            &[branch(0, 1, 3)],
            &[branch(0, 0, 3), branch(0, 1, 3)],
            &[branch(0, 0, 3), branch(1, 1, 5)],
            &[branch(0, 0, 3); MOST + 1],
        ] {
            assert!(Branch::check(wrong, 2).is_err(), "{wrong:?}");
        }
    }
}
