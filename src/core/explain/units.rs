//! The units of a feed-forward network, one by one: the activation of each unit for a token, and its direct
//! contribution to the logits. The factor of the final norm is frozen at its recorded value.
//!
//! ```text
//! ffn_down = Σ_f hidden[f] · w2[:, f] (+ bias)      unit f adds to logit v:  Σ_d hidden[f] · w2[d, f] · norm[d] · factor · output[v, d]
//! ```
//!
//! All sums are float64, over recorded values and the model's weights.

use std::cmp::Ordering;

use super::attribution::likeliest;
use super::site::Rules;
use super::terms::Operands;
use super::token::{AT_ONCE, Token};
use crate::error::{Error, Result};
use crate::trace::units::{Effects, Promoted, Ranking, UnitOrder, UnitsAt, WritesAt, Writing};
use crate::trace::{Site, Stage, Weight};

/// Units processed together; each row of the head is read once for all of them.
const TOGETHER: usize = 8;

/// The units of a layer in the order of `at`.
///
/// # Errors
/// [`Error::Usage`] if there is no such token or the site is not the neurons of a layer, and the errors of
/// `operands`, which must have the weights for [`UnitOrder::Effect`].
pub fn strongest(rules: &Rules, at: &UnitsAt, operands: &mut impl Operands) -> Result<Ranking> {
    let mut token = token(rules, (at.site, at.token), operands)?;
    let hidden = token.row(at.site.layer, rules.sizes().neurons())?;
    let effects = match at.order {
        UnitOrder::Hidden => None,
        UnitOrder::Effect => {
            has_effects(rules)?;
            Some(token.effects(&hidden)?)
        }
    };
    let strength = |unit: u32| match &effects {
        Some(effects) => effects.added[unit as usize].abs(),
        None => f64::from(hidden[unit as usize].abs()),
    };
    let mut units: Vec<u32> = (0..hidden.len() as u32).collect();
    units.sort_by(|&a, &b| {
        let (a, b) = (strength(a), strength(b));
        a.is_nan().cmp(&b.is_nan()).then(b.total_cmp(&a))
    });
    Ok(Ranking { units, effects })
}

/// The contribution of some units of a layer to the logits.
///
/// # Errors
/// [`Error::Usage`] if there is no such token or unit, or the site is not the neurons of a layer. Also the errors
/// of `operands`, which must have the weights.
pub fn writings(rules: &Rules, at: &WritesAt, operands: &mut impl Operands) -> Result<Vec<Writing>> {
    has_effects(rules)?;
    let mut token = token(rules, (at.site, at.token), operands)?;
    if let Some(unit) = at.units.iter().find(|unit| **unit as usize >= rules.sizes().hidden) {
        let last = rules.sizes().hidden - 1;
        return Err(Error::usage(format!("there is no unit {unit}")).expected(format!("0 to {last}")));
    }
    let mut all = Vec::with_capacity(at.units.len());
    for units in at.units.chunks(TOGETHER) {
        let written = token.written(units)?;
        all.extend(token.read(units, &written, at.top)?);
    }
    Ok(all)
}

/// Checks that a logit is a sum of what the units add to it.
fn has_effects(rules: &Rules) -> Result<()> {
    match rules.card().config.not_a_sum() {
        None => Ok(()),
        Some(switch) => Err(Error::usage("the units of this model have no direct effects on the logits")
            .expected("a family whose logits are a sum of the units' contributions, as in Llama")
            .found(switch)
            .next("sort the units by their own values")),
    }
}

fn token<'a, O: Operands>(
    rules: &'a Rules,
    (site, token): (Site, usize),
    operands: &'a mut O,
) -> Result<Token<'a, O>> {
    let dims = rules.pass(site.pass).filter(|_| site.stage == rules.sizes().neurons());
    if dims.is_none_or(|dims| token >= dims.tokens) {
        return Err(Error::usage(format!("{site} has no token {token}")));
    }
    Ok(Token { rules, operands, site, token })
}

impl<O: Operands> Token<'_, O> {
    /// The contribution of each unit to the logit of the predicted token. `hidden` has the token's neurons.
    fn effects(&mut self, hidden: &[f32]) -> Result<Effects> {
        let id = likeliest(&self.row(None, Stage::Logits)?, None);
        let last = self.row(self.rules.sizes().layers.checked_sub(1), Stage::FfnResidual)?;
        let v = self.direction(&last, id, None)?;
        let through = self.through(Stage::FfnDown, self.site.layer, &v, hidden.len())?;
        let added = through.iter().zip(hidden).map(|(u, &x)| u * f64::from(x)).collect();
        Ok(Effects { id, added })
    }

    /// The contribution of each unit to the input of the output head: D rows, with one column per unit.
    fn written(&mut self, units: &[u32]) -> Result<Vec<[f64; TOGETHER]>> {
        let sizes = *self.rules.sizes();
        let layer = self.site.layer;
        // Reads the weights first: without weights there is nothing to compute.
        let mut columns = vec![[0.0; TOGETHER]; sizes.dim];
        let rows_at_once = (AT_ONCE / sizes.hidden).max(1);
        let Some(w2) = Weight::read_in(Stage::FfnDown, self.rules.card()).next() else { return Ok(columns) };
        for first in (0..sizes.dim).step_by(rows_at_once) {
            let rows = first..sizes.dim.min(first + rows_at_once);
            let values = self.weight(layer, w2, rows.start * sizes.hidden..rows.end * sizes.hidden)?;
            for (row, column) in values.chunks_exact(sizes.hidden).zip(&mut columns[rows]) {
                for (&unit, value) in units.iter().zip(column) {
                    *value = f64::from(row[unit as usize]);
                }
            }
        }
        let Some(norm) = Weight::read_in(Stage::FinalNorm, self.rules.card()).next() else {
            return Ok(columns);
        };
        let norm = self.weight(None, norm, 0..sizes.dim)?;
        let hidden = self.row(layer, sizes.neurons())?;
        let last = self.row(sizes.layers.checked_sub(1), Stage::FfnResidual)?;
        let factor = self.norm_factor(&last);
        for (column, &norm) in columns.iter_mut().zip(&norm) {
            for (&unit, value) in units.iter().zip(column) {
                *value *= f64::from(hidden[unit as usize]) * f64::from(norm) * factor;
            }
        }
        Ok(columns)
    }

    /// Multiplies the contributions `written` by the output head, and keeps the largest and the smallest results of
    /// each unit.
    fn read(&mut self, units: &[u32], written: &[[f64; TOGETHER]], top: usize) -> Result<Vec<Writing>> {
        let (vocab, dim) = (self.rules.sizes().vocab, self.rules.sizes().dim);
        let mut ends = vec![(Ends::new(top), Ends::new(top)); units.len()];
        let Some(head) = Weight::read_in(Stage::Logits, self.rules.card()).next() else {
            return Ok(Vec::new());
        };
        let rows_at_once = (AT_ONCE / dim).max(1);
        for first in (0..vocab).step_by(rows_at_once) {
            let rows = first..vocab.min(first + rows_at_once);
            let values = self.weight(None, head, rows.start * dim..rows.end * dim)?;
            for (row, id) in values.chunks_exact(dim).zip(rows.start as u32..) {
                let mut sums = [0.0; TOGETHER];
                for (&weight, written) in row.iter().zip(written) {
                    let weight = f64::from(weight);
                    sums.iter_mut().zip(written).for_each(|(sum, written)| *sum += weight * written);
                }
                for ((most, least), added) in ends.iter_mut().zip(sums) {
                    most.offer(id, added, |a, b| b.total_cmp(&a));
                    least.offer(id, added, |a, b| a.total_cmp(&b));
                }
            }
        }
        let writing = |(&unit, (most, least)): (&u32, (Ends, Ends))| Writing {
            unit,
            most: most.kept,
            least: least.kept,
        };
        Ok(units.iter().zip(ends).map(writing).collect())
    }
}

/// The first `top` entries in the order that the caller gives. Equal entries are in the order of their ids.
#[derive(Clone, Debug)]
struct Ends {
    kept: Vec<Promoted>,
    top: usize,
}

impl Ends {
    fn new(top: usize) -> Self {
        Self { kept: Vec::new(), top }
    }

    fn offer(&mut self, id: u32, added: f64, order: impl Fn(f64, f64) -> Ordering) {
        let full = self.kept.len() >= self.top;
        if full && self.kept.last().is_none_or(|last| order(added, last.added) != Ordering::Less) {
            return;
        }
        let at = self.kept.partition_point(|other| order(added, other.added) != Ordering::Less);
        self.kept.insert(at, Promoted { id, added });
        self.kept.truncate(self.top);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_a_list_are_kept_in_order_and_of_equals_the_lower_id() {
        let mut ends = Ends::new(3);
        for (id, added) in [1.0, 5.0, 3.0, 5.0, -2.0, 4.0].into_iter().enumerate() {
            ends.offer(id as u32, added, |a, b| b.total_cmp(&a));
        }
        let kept: Vec<_> = ends.kept.iter().map(|one| (one.id, one.added)).collect();
        assert_eq!(kept, [(1, 5.0), (3, 5.0), (5, 4.0)]);
        let mut none = Ends::new(0);
        none.offer(1, 1.0, |a, b| a.total_cmp(&b));
        assert!(none.kept.is_empty());
    }
}
