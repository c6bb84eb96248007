//! The draw of a token: the tokens that are kept, and the one whose interval contains the random number.

use super::{Explainer, Operands, constant, single};
use crate::error::Result;
use crate::explain::fold::{kept, likeliest};
use crate::explain::rule::{Cell, Line, Place};
use crate::trace::Site;

/// Tolerance of a random number at the ends of an interval: probabilities are rounded to float32.
const ROUNDING: f64 = 1e-6;

impl<O: Operands> Explainer<'_, O> {
    pub(super) fn nucleus(&mut self, probs: Line, at: usize, top_k: usize, top_p: f32) -> Result<()> {
        let values = self.operands.numbers(probs)?;
        let possible = values.iter().filter(|&&prob| prob > 0.0).count();
        let (ids, sum) = kept(&values, top_k, top_p);
        let kept = ids.len();
        let rank = ids.iter().position(|&id| id == at);
        let operand = self.operand(probs.cell(at), values[at]);
        self.applied(operand, values[at]);
        let result = if rank.is_some() { (f64::from(values[at]) / sum) as f32 } else { 0.0 };
        self.applied(constant("sum of the kept probabilities", sum), result);
        let limit = if top_k > 0 { format!("top-k {top_k}") } else { "no top-k".to_owned() };
        let all = values.iter().fold(0.0, |sum, &prob| sum + f64::from(prob));
        let tokens = if possible == 1 { "token is" } else { "tokens are" };
        let possible_of = match values.len() - possible {
            0 => format!("{possible} {tokens} possible"),
            others => format!(
                "{possible} {tokens} possible, because the probability of the other {others} is 0 in float32"
            ),
        };
        self.note(if kept == possible {
            format!(
                "{possible_of}; {limit} and top-p {top_p} keep all {possible}. Their probabilities are divided by their sum, {sum:.6}."
            )
        } else {
            format!(
                "{possible_of}; {limit} and top-p {top_p} keep {kept} and remove the others, with a total of {:.6}. Each kept probability is divided by the sum of the kept ones, {sum:.6}.",
                (all - sum).max(0.0)
            )
        });
        self.note(match rank {
            Some(rank) => {
                let so_far = ids[..=rank].iter().fold(0.0, |sum, &id| sum + f64::from(values[id]));
                format!(
                    "This token is number {} of the kept ones; the probabilities up to and including its own add up to {so_far:.6}.",
                    rank + 1
                )
            }
            None if values[at] == 0.0 => {
                "This token cannot be sampled: its probability is 0 in float32.".to_owned()
            }
            None => {
                let beyond_k = top_k > 0 && !likeliest(&values).iter().take(top_k).any(|&id| id == at);
                let by = if beyond_k { "top-k" } else { "top-p" };
                format!("This token cannot be sampled: {by} removes it.")
            }
        });
        self.folded.result = Some(result);
        Ok(())
    }

    pub(super) fn draw(&mut self, site: Site, nucleus: Line, random: Option<f64>) -> Result<()> {
        let shares = self.operands.numbers(nucleus)?;
        let drawn = single(self.operands, Cell { place: Place::Stage(site), at: 0 })?;
        let id = drawn as usize;
        let likelier = likeliest(&shares).into_iter().take_while(|&other| other != id);
        let before = likelier.fold(0.0, |sum, other| sum + f64::from(shares[other]));
        if let Some(&share) = shares.get(id) {
            let operand = self.operand(nucleus.cell(id), share);
            self.applied(operand, share);
            let end = before + f64::from(share);
            let place = format!(
                "If the probabilities lie side by side, the largest first, this token has the interval from {before:.6} to {end:.6}"
            );
            // A branch begins with a picked token instead of the sampled one.
            let drawn_here = match random {
                Some(random) => share > 0.0 && (before - ROUNDING..end + ROUNDING).contains(&random),
                None => before == 0.0,
            };
            match random {
                _ if !drawn_here => {
                    let luck =
                        random.map_or(String::new(), |random| format!(" by the random number {random:.6}"));
                    self.applied(constant("picked instead of the sampled token", drawn.into()), drawn);
                    self.note(format!(
                        "The token was picked by hand: a branch begins here. Sampling{luck} gives another token."
                    ));
                }
                Some(random) => {
                    self.applied(constant("random number", random), drawn);
                    self.note(format!("{place}. The random number {random:.6} is in this interval."));
                }
                None => self.note(format!("{place}. At temperature 0 there is no random number.")),
            }
        }
        self.folded.result = Some(drawn);
        Ok(())
    }
}
