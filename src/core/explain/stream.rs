//! The contribution of each sublayer to the residual stream of a token: norms and dot products of recorded rows, in
//! float64.

use super::site::Rules;
use super::terms::Operands;
use super::token::Token;
use crate::error::{Error, Result};
use crate::trace::stream::{Addition, StreamAt};
use crate::trace::{Site, Stage};

/// The additions of attention and of the feed-forward network of a layer, for each token.
///
/// # Errors
/// [`Error::Usage`] if the tokens do not exist or the site is not the `ffn_residual` of a layer, and the errors of
/// `operands`.
pub fn added(rules: &Rules, at: &StreamAt, operands: &mut impl Operands) -> Result<Vec<[Addition; 2]>> {
    let dims = rules.pass(at.site.pass).filter(|_| at.site.stage == Stage::FfnResidual);
    if dims.is_none_or(|dims| at.tokens.end > dims.tokens) {
        let last = at.tokens.end.saturating_sub(1);
        return Err(Error::usage(format!("{} has no token {last}", at.site)));
    }
    at.tokens.clone().map(|token| of_token(&mut Token { rules, operands, site: at.site, token })).collect()
}

fn of_token<O: Operands>(token: &mut Token<'_, O>) -> Result<[Addition; 2]> {
    let (here, Site { layer: before, stage, .. }) = (token.site.layer, token.site.layer_input());
    let x = token.row(before, stage)?;
    let by = token.rules.sizes().residual;
    let [attention, ffn] = token.rules.sizes().added();
    let mut row = |stage: Stage| token.row(here, stage);
    let [mut attention, mut ffn] = [row(attention)?, row(ffn)?];
    let (middle, end) = (row(Stage::AttnResidual)?, row(Stage::FfnResidual)?);
    if by != 1.0 {
        attention.iter_mut().chain(&mut ffn).for_each(|x| *x *= by);
    }
    Ok([addition(&x, &attention, &middle), addition(&middle, &ffn, &end)])
}

fn addition(x: &[f32], a: &[f32], sum: &[f32]) -> Addition {
    let dot =
        |x: &[f32], y: &[f32]| -> f64 { x.iter().zip(y).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum() };
    let norm = |x: &[f32]| dot(x, x).sqrt();
    Addition { before: norm(x), added: norm(a), after: norm(sum), dot: dot(x, a) }
}
