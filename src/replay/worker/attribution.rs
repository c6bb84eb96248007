//! Direct logit attribution: a difference of two logits as the sum of what each part wrote into the residual stream,
//! with the final norm's factor frozen at what it was.
//!
//! ```text
//! logit(a) − logit(b) = (output[a] − output[b]) · (x · norm / √(mean x² + ε)) = v · x,   x = embedding + Σ_l (attn_output_l + ffn_down_l)
//! ```
//!
//! Everything is summed in float64 from recorded values; what the run itself rounded is a part of its own.

use super::{Worker, missing};
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::replay::derive::values;
use crate::trace::lens::{Attribution, AttributionAt, Contributor, Share};
use crate::trace::{ModelCard, Region, Run, Site, Stage, Weight, WeightRows};

impl<B: Backend> Worker<'_, B> {
    /// What each part of the model added to a logit.
    pub(super) fn attribution(&mut self, at: &AttributionAt) -> Result<Attribution> {
        let (dims, sizes) = self.dims(at.site)?;
        if at.token >= dims.tokens || at.site.stage != Stage::Logits {
            return Err(missing(at.site));
        }
        for id in [at.id, at.against].into_iter().flatten() {
            if id as usize >= sizes.vocab {
                let last = sizes.vocab - 1;
                return Err(Error::usage(format!("there is no token {id} in this vocabulary"))
                    .expected(format!("an id from 0 to {last}")));
            }
        }
        if at.id.is_some() && at.id == at.against {
            return Err(Error::usage("a token is compared with another")
                .expected("two different ids")
                .found(format!("{} twice", at.id.unwrap_or_default())));
        }
        let card = self.session.model.card();
        let mut token = TokenOf { worker: self, at };
        let logits = token.row(None, Stage::Logits)?;
        let likeliest = |but: Option<u32>| {
            let ids = (0..logits.len() as u32).filter(|&id| Some(id) != but);
            ids.max_by(|&a, &b| logits[a as usize].total_cmp(&logits[b as usize]).then(b.cmp(&a)))
                .unwrap_or(0)
        };
        let id = at.id.unwrap_or_else(|| likeliest(at.against));
        let against = at.against.unwrap_or_else(|| likeliest(Some(id)));
        attribute(&mut token, &card, &logits, (id, against))
    }
}

/// A token of a pass, of which rows of stages are read.
struct TokenOf<'w, 'm, B: Backend> {
    worker: &'w mut Worker<'m, B>,
    at: &'w AttributionAt,
}

impl<B: Backend> Read for TokenOf<'_, '_, B> {
    fn row(&mut self, layer: Option<usize>, stage: Stage) -> Result<Vec<f32>> {
        let site = Site { layer, stage, ..self.at.site };
        let (dims, sizes) = self.worker.dims(site)?;
        let shape = sizes.shape(stage.axes(), dims);
        let mut region = Region::whole(&shape);
        region.0[0] = self.at.token..self.at.token + 1;
        let block = self.worker.block(site, &region)?;
        let width: usize = shape[1..].iter().product();
        let first = self.at.token * width;
        let run = block.run(first).ok_or_else(|| missing(site))?;
        Ok(values(&block.frame)[run][..width].to_vec())
    }

    fn weight(&mut self, at: &WeightRows) -> Result<Vec<f32>> {
        self.worker.session.model.backend.stop().check()?;
        self.worker.session.model.rows(at)
    }
}

/// What is read of the run, for one token of a pass.
trait Read {
    /// The row of a stage.
    fn row(&mut self, layer: Option<usize>, stage: Stage) -> Result<Vec<f32>>;

    /// Rows of a weight.
    fn weight(&mut self, at: &WeightRows) -> Result<Vec<f32>>;
}

/// Values of a weight that are read at once.
const AT_ONCE: usize = 1 << 20;

/// What each part added to `logits[id] − logits[against]`, where `logits` is the token's recorded row.
fn attribute(
    read: &mut impl Read,
    card: &ModelCard,
    logits: &[f32],
    (id, against): (u32, u32),
) -> Result<Attribution> {
    let sizes = card.sizes();
    let difference = f64::from(logits[id as usize]) - f64::from(logits[against as usize]);
    let mut row = |layer: Option<usize>, stage: Stage| read.row(layer, stage);
    let last = row(sizes.layers.checked_sub(1), Stage::FfnResidual)?;
    let mut x = row(None, Stage::Embedding)?;
    let v = direction(read, card, &last, (id, against))?;
    let along = |x: &[f32]| dot(&v, x);

    let mut parts = vec![Share { part: Contributor::Embedding, value: along(&x) }];
    // What the run rounded: each recorded sum less the exact one of what was recorded of its terms.
    let mut rounding = difference - along(&last);
    for layer in 0..sizes.layers {
        let mut row = |stage: Stage| read.row(Some(layer), stage);
        let (heads, output) = (row(Stage::AttnHeads)?, row(Stage::AttnOutput)?);
        let (middle, down, end) = (row(Stage::AttnResidual)?, row(Stage::FfnDown)?, row(Stage::FfnResidual)?);
        let through = through_wo(read, card, layer, &v, heads.len())?;
        let each = through.chunks(sizes.head_dim).zip(heads.chunks(sizes.head_dim)).enumerate();
        let heads =
            each.map(|(head, (u, x))| Share { part: Contributor::Head { layer, head }, value: dot(u, x) });
        let first = parts.len();
        parts.extend(heads);
        if let Some(weight) = Weight::read_in(Stage::AttnOutput, card).nth(1) {
            let bias =
                read.weight(&WeightRows { run: Run::ITSELF, layer: Some(layer), weight, rows: 0..1 })?;
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
    Ok(Attribution { id, against, difference, parts })
}

/// v (D): what one unit of each component of the residual adds to the difference of the logits.
fn direction(
    read: &mut impl Read,
    card: &ModelCard,
    last: &[f32],
    (id, against): (u32, u32),
) -> Result<Vec<f64>> {
    let square: f64 = last.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    let factor = 1.0 / (square / last.len() as f64 + f64::from(card.config.norm_eps)).sqrt();
    let mut rows = |stage: Stage, row: usize| -> Result<Vec<f32>> {
        let Some(weight) = Weight::read_in(stage, card).next() else { return Ok(Vec::new()) };
        read.weight(&WeightRows { run: Run::ITSELF, layer: None, weight, rows: row..row + 1 })
    };
    let norm = rows(Stage::FinalNorm, 0)?;
    let (one, other) = (rows(Stage::Logits, id as usize)?, rows(Stage::Logits, against as usize)?);
    let each = one.iter().zip(&other).zip(&norm);
    Ok(each.map(|((&a, &b), &w)| (f64::from(a) - f64::from(b)) * f64::from(w) * factor).collect())
}

/// woᵀ · v (H·C): what one unit of each component of the heads adds.
fn through_wo(
    read: &mut impl Read,
    card: &ModelCard,
    layer: usize,
    v: &[f64],
    width: usize,
) -> Result<Vec<f64>> {
    let mut sum = vec![0.0; width];
    let Some(weight) = Weight::read_in(Stage::AttnOutput, card).next() else { return Ok(sum) };
    let at_once = (AT_ONCE / width.max(1)).max(1);
    for first in (0..v.len()).step_by(at_once) {
        let rows = first..v.len().min(first + at_once);
        let at = WeightRows { run: Run::ITSELF, layer: Some(layer), weight, rows: rows.clone() };
        for (row, &v) in read.weight(&at)?.chunks_exact(width).zip(&v[rows]) {
            sum.iter_mut().zip(row).for_each(|(sum, &w)| *sum += v * f64::from(w));
        }
    }
    Ok(sum)
}

fn dot(v: &[f64], x: &[f32]) -> f64 {
    v.iter().zip(x).map(|(&v, &x)| v * f64::from(x)).sum()
}
