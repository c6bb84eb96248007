//! Attention patterns of the heads of a layer: the weight on the previous token, on the first token, on the token itself
//! and on repeated tokens, and a small picture of the matrix.
//!
//! The scores of repeated tokens are those of Olsson et al., "In-context Learning and Induction Heads", 2022 (there:
//! prefix matching score). The keys are those of TransformerLens's `head_detector`, but the mean is over the queries that
//! have such a key, so a text with few repetitions does not make the scores small.

use std::collections::HashMap;
use std::ops::Range;

use super::frame::{Frame, FrameData};
use super::probe::{Probe, Values};
use super::site::Site;
use super::sizes::{PassDims, Sizes};

/// The largest number of rows and columns of a picture.
pub const SIDE: usize = 16;

/// The attention of a head, over those queries of a pass that see an earlier key.
#[derive(Clone, Debug, PartialEq)]
pub struct Pattern {
    /// The number of these queries. If it is 0, the three means are 0.
    pub queries: usize,
    /// The mean of softmax[h, t, p − 1], with p the query's position.
    pub back: f64,
    /// The mean of softmax[h, t, 0].
    pub first: f64,
    /// The mean of softmax[h, t, p].
    pub itself: f64,
    /// The number of queries whose token occurred earlier in the text. If it is 0, the next two means are 0.
    pub repeats: usize,
    /// The mean over these queries of the weight on all earlier equal tokens (duplicate-token score).
    pub duplicate: f64,
    /// The mean over these queries of the weight on all tokens that follow earlier equal tokens (induction score).
    pub induction: f64,
    /// The head's matrix, downscaled, row-major: each cell is the maximum of the weights it covers.
    pub picture: Vec<f32>,
    /// Rows and columns of the picture.
    pub places: (usize, usize),
}

/// A probe that measures the heads of a layer from its softmax, without keeping the softmax.
#[derive(Debug)]
pub struct Measuring {
    site: Site,
    dims: PassDims,
    /// For each token of the pass, the positions of earlier equal tokens in the text.
    earlier: Vec<Vec<usize>>,
    heads: Vec<Pattern>,
}

impl Measuring {
    /// A probe for the softmax `site`, in pass `dims` of a model with `sizes`. `text` holds the ids of the tokens up to
    /// the end of the pass.
    pub fn new(site: Site, sizes: &Sizes, dims: PassDims, text: &[u32]) -> Self {
        let places = (dims.tokens.min(SIDE), dims.keys().min(SIDE));
        let picture = vec![0.0; places.0 * places.1];
        let none = Pattern {
            queries: 0,
            back: 0.0,
            first: 0.0,
            itself: 0.0,
            repeats: 0,
            duplicate: 0.0,
            induction: 0.0,
            picture,
            places,
        };
        let mut seen: HashMap<u32, Vec<usize>> = HashMap::new();
        let mut earlier = Vec::new();
        for (position, id) in text.iter().enumerate() {
            let before = seen.entry(*id).or_default();
            if position >= dims.start {
                earlier.push(before.clone());
            }
            before.push(position);
        }
        Self { site, dims, earlier, heads: vec![none; sizes.heads] }
    }

    /// The patterns of a layer from its whole softmax.
    pub fn of_frame(frame: &Frame, sizes: &Sizes, dims: PassDims, text: &[u32]) -> Vec<Pattern> {
        let mut measuring = Self::new(frame.site, sizes, dims, text);
        if let FrameData::F32(array) = &frame.data
            && let Some(values) = array.as_slice()
        {
            measuring.record(frame.site, 0..sizes.heads * dims.tokens, Values::F32(values));
        }
        measuring.patterns()
    }

    /// The measured patterns.
    pub fn patterns(mut self) -> Vec<Pattern> {
        for head in &mut self.heads {
            let count = head.queries.max(1) as f64;
            head.back /= count;
            head.first /= count;
            head.itself /= count;
            let repeats = head.repeats.max(1) as f64;
            head.duplicate /= repeats;
            head.induction /= repeats;
        }
        self.heads
    }
}

impl Probe for Measuring {
    fn enabled(&self) -> bool {
        true
    }

    fn wants(&self, site: Site) -> bool {
        site == self.site
    }

    fn record(&mut self, site: Site, rows: Range<usize>, values: Values<'_>) {
        let (Values::F32(values), true) = (values, site == self.site) else { return };
        let (tokens, keys) = (self.dims.tokens, self.dims.keys());
        for (row, values) in rows.zip(values.chunks_exact(keys.max(1))) {
            let (token, position) = (row % tokens.max(1), self.dims.start + row % tokens.max(1));
            let Some(head) = self.heads.get_mut(row / tokens.max(1)) else { return };
            let weight = |key: usize| values.get(key).map_or(0.0, |&weight| f64::from(weight));
            if let Some(before) = position.checked_sub(1) {
                head.queries += 1;
                head.back += weight(before);
                head.first += weight(0);
                head.itself += weight(position);
            }
            if let Some(earlier) = self.earlier.get(token).filter(|earlier| !earlier.is_empty()) {
                head.repeats += 1;
                head.duplicate += earlier.iter().map(|&key| weight(key)).sum::<f64>();
                head.induction += earlier.iter().map(|&key| weight(key + 1)).sum::<f64>();
            }
            let (down, across) = head.places;
            let line = token * down / tokens;
            for (key, &value) in values.iter().enumerate() {
                let place = &mut head.picture[line * across + key * across / keys];
                *place = place.max(value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{ArrayD, IxDyn};

    use super::super::card::ModelCard;
    use super::super::stage::Stage;
    use super::*;

    /// Two heads over `tokens` tokens: one attends to the previous token, the other to the first.
    fn frame(tokens: usize) -> (Frame, Sizes, PassDims) {
        let sizes = ModelCard::small(|config| config.heads = 2).sizes();
        let dims = PassDims { pass: 0, start: 0, tokens, ..PassDims::default() };
        let array = ArrayD::from_shape_fn(IxDyn(&[2, tokens, tokens]), |at| {
            let looked_at = if at[0] == 0 { at[1].saturating_sub(1) } else { 0 };
            f32::from(u8::from(at[2] == looked_at))
        });
        let site = Site::layer(0, 0, Stage::Softmax);
        (Frame { site, axes: Stage::Softmax.axes(), data: FrameData::F32(array) }, sizes, dims)
    }

    #[test]
    fn a_head_that_looks_one_token_back_is_told_from_one_that_looks_at_the_first() {
        let (frame, sizes, dims) = frame(6);
        let heads = Measuring::of_frame(&frame, &sizes, dims, &[]);
        let means = |head: &Pattern| (head.queries, head.back, head.first, head.itself);
        // For the second query, the first token is also the previous one.
        assert_eq!(means(&heads[0]), (5, 1.0, 0.2, 0.0));
        assert_eq!(means(&heads[1]), (5, 0.2, 1.0, 0.0));
        assert_eq!(heads[0].places, (6, 6));
        assert_eq!(heads[0].picture[3 * 6..4 * 6], [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn a_picture_made_small_keeps_every_extreme_and_rows_may_come_in_parts() {
        let (frame, sizes, dims) = frame(50);
        let whole = Measuring::of_frame(&frame, &sizes, dims, &[]);
        assert_eq!(whole[0].places, (SIDE, SIDE));
        let diagonal = (0..SIDE).map(|at| whole[0].picture[at * SIDE + at]);
        assert!(diagonal.clone().all(|weight| weight == 1.0), "{:?}", diagonal.collect::<Vec<_>>());
        let mut parts = Measuring::new(frame.site, &sizes, dims, &[]);
        let FrameData::F32(array) = &frame.data else { panic!("it is float32") };
        for (number, rows) in array.as_slice().unwrap().chunks(7 * 50).enumerate() {
            parts.record(frame.site, number * 7..number * 7 + rows.len() / 50, Values::F32(rows));
        }
        assert_eq!(parts.patterns(), whole);
    }

    #[test]
    fn the_scores_of_repeated_tokens_are_those_computed_by_hand() {
        // a b a b b: the queries 2, 3 and 4 have earlier equal tokens.
        let text = [7, 9, 7, 9, 9];
        let (mut frame, sizes, dims) = frame(text.len());
        let rows: [[f32; 5]; 5] = [
            [1.0, 0.0, 0.0, 0.0, 0.0],
            [0.5, 0.5, 0.0, 0.0, 0.0],
            [0.25, 0.5, 0.25, 0.0, 0.0],
            [0.125, 0.125, 0.25, 0.5, 0.0],
            [0.0, 0.125, 0.25, 0.125, 0.5],
        ];
        let array = ArrayD::from_shape_fn(IxDyn(&[2, 5, 5]), |at| rows[at[1]][at[2]]);
        frame.data = FrameData::F32(array);
        let head = &Measuring::of_frame(&frame, &sizes, dims, &text)[0];
        assert_eq!(head.repeats, 3);
        // Query 2: key 0. Query 3: key 1. Query 4: keys 1 and 3.
        assert_eq!(head.duplicate, (0.25 + 0.125 + (0.125 + 0.125)) / 3.0);
        // The keys after them. After key 3 comes the query itself.
        assert_eq!(head.induction, (0.5 + 0.25 + (0.25 + 0.5)) / 3.0);
        let none = &Measuring::of_frame(&frame, &sizes, dims, &[1, 2, 3, 4, 5])[0];
        assert_eq!((none.repeats, none.duplicate, none.induction), (0, 0.0, 0.0));
        // A later pass has one query, and the text before it.
        let later = PassDims { pass: 1, start: 4, tokens: 1, ..PassDims::default() };
        let mut measuring = Measuring::new(frame.site, &sizes, later, &text);
        measuring.record(frame.site, 0..1, Values::F32(&rows[4]));
        let head = &measuring.patterns()[0];
        assert_eq!((head.repeats, head.duplicate, head.induction), (1, 0.25, 0.75));
    }
}
