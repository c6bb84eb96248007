//! Direct logit attribution: splits the difference of two logits into the contributions of the parts of the model that
//! add to the residual stream. The factor of the final norm is frozen at its recorded value.
//!
//! ```text
//! logit(a) − logit(b) = (output[a] − output[b]) · (x · norm / √(mean x² + ε)) = v · x,   x = embedding + Σ_l (attn_output_l + ffn_down_l)
//! ```
//!
//! All sums are float64, over recorded values. The rounding by the recorded run is a separate part.

use super::site::Rules;
use super::terms::Operands;
use super::token::{AT_ONCE, Token};
use crate::error::{Error, Result};
use crate::trace::lens::{Attribution, AttributionAt, Contributor, Share};
use crate::trace::{Stage, Weight};

/// The contribution of each part of the model to the difference of two logits.
///
/// # Errors
/// [`Error::Usage`] if `at.site` has no logits of the token, or an id does not exist. Also the errors of `operands`.
pub fn attribute(rules: &Rules, at: &AttributionAt, operands: &mut impl Operands) -> Result<Attribution> {
    let dims = rules.pass(at.site.pass).filter(|_| at.site.stage == Stage::Logits);
    if dims.is_none_or(|dims| at.token >= dims.tokens) {
        return Err(Error::usage(format!("{} has no token {}", at.site, at.token)));
    }
    for id in [at.id, at.against].into_iter().flatten() {
        if id as usize >= rules.sizes().vocab {
            let last = rules.sizes().vocab - 1;
            return Err(Error::usage(format!("this vocabulary has no token {id}"))
                .expected(format!("an id from 0 to {last}"))
                .next("`llama-trace tokenize TEXT` prints the ids of a text"));
        }
    }
    if at.id.is_some() && at.id == at.against {
        return Err(Error::usage("a token cannot be compared with itself")
            .expected("two different ids")
            .found(format!("{} twice", at.id.unwrap_or_default())));
    }
    if let Some(switch) = rules.card().config.not_a_sum() {
        return Err(Error::usage("the logits of this model are not split into parts")
            .expected("a family whose logits are a sum of the parts' contributions, as in Llama")
            .found(switch));
    }
    let mut token = Token { rules, operands, site: at.site, token: at.token };
    let logits = token.row(None, Stage::Logits)?;
    let id = at.id.unwrap_or_else(|| likeliest(&logits, at.against));
    let against = at.against.unwrap_or_else(|| likeliest(&logits, Some(id)));
    let difference = f64::from(logits[id as usize]) - f64::from(logits[against as usize]);
    let parts = token.parts(difference, (id, against))?;
    Ok(Attribution { id, against, difference, parts })
}

/// The token with the largest logit, other than `but`. Of equal logits, the lower id.
pub(super) fn likeliest(logits: &[f32], but: Option<u32>) -> u32 {
    let ids = (0..logits.len() as u32).filter(|&id| Some(id) != but);
    ids.max_by(|&a, &b| logits[a as usize].total_cmp(&logits[b as usize]).then(b.cmp(&a))).unwrap_or(0)
}

impl<O: Operands> Token<'_, O> {
    /// The contribution of each part to `difference`, the difference of the two logits.
    fn parts(&mut self, difference: f64, ids: (u32, u32)) -> Result<Vec<Share>> {
        let sizes = *self.rules.sizes();
        let last = self.row(sizes.layers.checked_sub(1), Stage::FfnResidual)?;
        let mut x = self.row(None, Stage::Embedding)?;
        let v = self.direction(&last, ids.0, Some(ids.1))?;
        let along = |x: &[f32]| dot(&v, x);

        let mut parts = vec![Share { part: Contributor::Embedding, value: along(&x) }];
        // Rounding of the run: each recorded sum minus the exact sum of its recorded terms.
        let mut rounding = difference - along(&last);
        for layer in 0..sizes.layers {
            let mut row = |stage: Stage| self.row(Some(layer), stage);
            let (heads, output) = (row(Stage::AttnHeads)?, row(Stage::AttnOutput)?);
            let (middle, down, end) =
                (row(Stage::AttnResidual)?, row(Stage::FfnDown)?, row(Stage::FfnResidual)?);
            let through = self.through(Stage::AttnOutput, Some(layer), &v, heads.len())?;
            let each = through.chunks(sizes.head_dim).zip(heads.chunks(sizes.head_dim)).enumerate();
            let heads = each
                .map(|(head, (u, x))| Share { part: Contributor::Head { layer, head }, value: dot(u, x) });
            let first = parts.len();
            parts.extend(heads);
            if let Some(weight) = Weight::read_in(Stage::AttnOutput, self.rules.card()).nth(1) {
                let bias = self.weight(Some(layer), weight, 0..sizes.dim)?;
                parts.push(Share { part: Contributor::Bias { layer }, value: along(&bias) });
            }
            let attention: f64 = parts[first..].iter().map(|share| share.value).sum();
            parts.push(Share { part: Contributor::Ffn { layer }, value: along(&down) });
            rounding += (along(&output) - attention)
                + (along(&middle) - along(&x) - along(&output))
                + (along(&end) - along(&middle) - along(&down));
            x = end;
        }
        parts.push(Share { part: Contributor::Rounding, value: rounding });
        Ok(parts)
    }

    /// v (D): the change of logit `id`, or of its difference to logit `against`, per unit of each component of `last`,
    /// the residual stream after the last layer.
    pub(super) fn direction(&mut self, last: &[f32], id: u32, against: Option<u32>) -> Result<Vec<f64>> {
        let factor = self.norm_factor(last);
        let mut row = |stage: Stage, row: usize| -> Result<Vec<f32>> {
            let Some(weight) = Weight::read_in(stage, self.rules.card()).next() else {
                return Ok(Vec::new());
            };
            self.weight(None, weight, row * last.len()..(row + 1) * last.len())
        };
        let norm = row(Stage::FinalNorm, 0)?;
        let one = row(Stage::Logits, id as usize)?;
        let other = match against {
            Some(against) => row(Stage::Logits, against as usize)?,
            None => vec![0.0; one.len()],
        };
        let each = one.iter().zip(&other).zip(&norm);
        Ok(each.map(|((&a, &b), &w)| (f64::from(a) - f64::from(b)) * f64::from(w) * factor).collect())
    }

    /// wᵀ · v, where w is the matrix of the linear stage `by`, with `width` columns: the change of the logit, or of the
    /// difference, per unit of each component of the stage's input.
    pub(super) fn through(
        &mut self,
        by: Stage,
        layer: Option<usize>,
        v: &[f64],
        width: usize,
    ) -> Result<Vec<f64>> {
        let mut sum = vec![0.0; width];
        let Some(weight) = Weight::read_in(by, self.rules.card()).next() else {
            return Ok(sum);
        };
        let at_once = (AT_ONCE / width.max(1)).max(1);
        for first in (0..v.len()).step_by(at_once) {
            let rows = first..v.len().min(first + at_once);
            let values = self.weight(layer, weight, rows.start * width..rows.end * width)?;
            for (row, &v) in values.chunks_exact(width).zip(&v[rows]) {
                sum.iter_mut().zip(row).for_each(|(sum, &w)| *sum += v * f64::from(w));
            }
        }
        Ok(sum)
    }
}

fn dot(v: &[f64], x: &[f32]) -> f64 {
    v.iter().zip(x).map(|(&v, &x)| v * f64::from(x)).sum()
}
