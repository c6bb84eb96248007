//! The draw of a token: the tokens that are kept, and the one whose interval contains the random number.

use super::{Explainer, Operands, constant, single};
use crate::error::Result;
use crate::explain::fold::{kept, likeliest};
use crate::explain::rule::{Cell, Line, Place};
use crate::ops::typical::Typical;
use crate::trace::{Sampling, Site, Stage};

/// Tolerance of a random number at the ends of an interval: probabilities are rounded to float32.
const ROUNDING: f64 = 1e-6;

impl<O: Operands> Explainer<'_, O> {
    pub(super) fn penalize(&mut self, x: Cell, repeats: Option<Cell>, sampling: Sampling) -> Result<()> {
        let (logit, operand) = self.read(x)?;
        self.applied(operand, logit);
        let Some(repeats) = repeats else {
            self.note("The text does not have this token, so its logit stays as it is.");
            self.folded.result = Some(logit);
            return Ok(());
        };
        let (result, penalty) = (sampling.penalized(logit), sampling.repetition_penalty);
        self.applied(constant("repetition penalty", f64::from(penalty)), result);
        let how = if logit < 0.0 { "A negative logit is multiplied" } else { "Its logit is divided" };
        let last = self.rules.address(repeats);
        self.note(format!(
            "The text has this token already, last at {last}. {how} by the penalty, {penalty}."
        ));
        self.folded.result = Some(result);
        Ok(())
    }

    pub(super) fn nucleus(&mut self, probs: Line, at: usize, limits: Sampling) -> Result<()> {
        let values = self.operands.numbers(probs)?;
        let possible = values.iter().filter(|&&prob| prob > 0.0).count();
        let (ids, sum) = kept(&values, &limits);
        let kept_count = ids.len();
        let rank = ids.iter().position(|&id| id == at);
        let operand = self.operand(probs.cell(at), values[at]);
        self.applied(operand, values[at]);
        let result = if rank.is_some() { (f64::from(values[at]) / sum) as f32 } else { 0.0 };
        self.applied(constant("sum of the kept probabilities", sum), result);
        let filters = named(&limits, probs);
        let (keep, remove) = if filters.len() == 1 { ("keeps", "removes") } else { ("keep", "remove") };
        let together = list(&filters);
        let all = values.iter().fold(0.0, |sum, &prob| sum + f64::from(prob));
        let tokens = if possible == 1 { "token is" } else { "tokens are" };
        let possible_of = match (values.len() - possible, probs.place) {
            (0, _) => format!("{possible} {tokens} possible"),
            (others, Place::Stage(site)) if site.stage != Stage::Probs => {
                format!("{possible} {tokens} possible, because an earlier filter removed the other {others}")
            }
            (others, _) => format!(
                "{possible} {tokens} possible, because the probability of the other {others} is 0 in float32"
            ),
        };
        self.note(if kept_count == possible {
            format!(
                "{possible_of}; {together} {keep} all {possible}. Their probabilities are divided by their sum, {sum:.6}."
            )
        } else {
            format!(
                "{possible_of}; {together} {keep} {kept_count} and {remove} the others, with a total of {:.6}. Each kept probability is divided by the sum of the kept ones, {sum:.6}.",
                (all - sum).max(0.0)
            )
        });
        if limits.filters().typical_p {
            self.how_typical(&values, at, limits);
        }
        self.note(match rank {
            Some(rank) => {
                let so_far = ids[..=rank].iter().fold(0.0, |sum, &id| sum + f64::from(values[id]));
                format!(
                    "This token is number {} of the kept ones; the probabilities up to and including its own add up to {so_far:.6}.",
                    rank + 1
                )
            }
            None if values[at] == 0.0 => match probs.place {
                Place::Stage(site) if site.stage != Stage::Probs => {
                    "This token cannot be sampled: an earlier filter removed it.".to_owned()
                }
                _ => "This token cannot be sampled: its probability is 0 in float32.".to_owned(),
            },
            None => {
                format!("This token cannot be sampled: {} removes it.", remover(&values, at, limits))
            }
        });
        self.folded.result = Some(result);
        Ok(())
    }

    /// Adds a note on how typical a token is, among the tokens that the other filters keep.
    fn how_typical(&mut self, values: &[f32], at: usize, limits: Sampling) {
        let (before, _) = kept(values, &Sampling { typical_p: 1.0, ..limits });
        let probs = before.iter().map(|&id| f64::from(values[id]));
        let typical = Typical::new(probs, limits.typical_p);
        if before.contains(&at) {
            let distance = typical.distance(f64::from(values[at]));
            self.note(format!(
                "The average surprise, the entropy, is {:.6} nats. The surprise of this token, −ln of its share, is {distance:.6} away from it.",
                typical.entropy()
            ));
        }
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

/// The filters that a stage applies to `probs`, with their limits. Top-k and top-p are named wherever they could act.
fn named(limits: &Sampling, probs: Line) -> Vec<String> {
    let Sampling { top_k, top_p, min_p, typical_p, .. } = *limits;
    let mut names = Vec::new();
    if matches!(probs.place, Place::Stage(site) if site.stage == Stage::Probs) {
        names.push(if top_k > 0 { format!("top-k {top_k}") } else { "no top-k".to_owned() });
        names.push(format!("top-p {top_p}"));
    }
    let filters = limits.filters();
    names.extend(filters.min_p.then(|| format!("min-p {min_p}")));
    names.extend(filters.typical_p.then(|| format!("typical-p {typical_p}")));
    names
}

/// A list in words: `a`, `a and b`, `a, b and c`.
fn list(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// The first filter that removes `at`.
fn remover(values: &[f32], at: usize, limits: Sampling) -> &'static str {
    let top_k = Sampling { top_p: 1.0, min_p: 0.0, typical_p: 1.0, ..limits };
    let top_p = Sampling { top_p: limits.top_p, ..top_k };
    let min_p = Sampling { min_p: limits.min_p, ..top_p };
    let filters = [("top-k", top_k), ("top-p", top_p), ("min-p", min_p)];
    let found = filters.iter().find(|(_, limits)| !kept(values, limits).0.contains(&at));
    found.map_or("typical-p", |(name, _)| name)
}
