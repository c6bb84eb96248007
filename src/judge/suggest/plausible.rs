//! Tests whether values are plausible for a stage, for a run that is far from the reference after a mistake.

use ndarray::ArrayD;

use llama_trace_core::trace::Stage;

/// A bound below every activation's minimum: SiLU's is -0.2785, GELU's is -0.17, and a 16-bit type rounds.
const LEAST: f32 = -0.285;

/// Returns whether these may be the values of a stage after an earlier mistake.
pub(super) fn may_be(stage: Stage, values: &ArrayD<f32>) -> bool {
    match stage {
        Stage::FfnSilu => !values.iter().any(|&x| x < LEAST),
        Stage::Softmax => !values.iter().any(|&x| x < 0.0),
        Stage::Qk | Stage::Scores | Stage::MaskedScores => !are_shares(values),
        _ => true,
    }
}

/// Returns whether every row holds probabilities: no value is below 0, and the sum is 1.
fn are_shares(values: &ArrayD<f32>) -> bool {
    /// The largest error of a sum of rounded probabilities.
    const NEAR: f64 = 2e-2;
    let width = values.shape().last().copied().unwrap_or(0);
    // If there is one key, its probability is 1, and a score may be 1 too.
    let is_row = |row: &[f32]| {
        let sum: f64 = row.iter().copied().map(f64::from).sum();
        row.iter().all(|&x| x >= 0.0) && (sum - 1.0).abs() <= NEAR
    };
    let values: Vec<f32> = values.iter().copied().collect();
    width > 1 && values.chunks(width).all(is_row)
}

/// Returns whether the rows of `values` have the size that the norm from `input` to `normed` gives. After a division by
/// the norm's weight, by the weight + 1 or by 1, all rows then have the same root mean square. All three arrays have
/// the shape (T, `dim`).
pub(super) fn is_normed(values: &ArrayD<f32>, input: &ArrayD<f32>, normed: &ArrayD<f32>, dim: usize) -> bool {
    /// The largest spread of the sizes, and their largest distance from 1.
    const SPREAD: f64 = 0.03;
    const NEAR: f64 = 0.05;
    /// The smallest spread that rows before the norm need, to be distinguished from rows after it.
    const TOLD: f64 = 4.0 * SPREAD;
    let flat = |of: &ArrayD<f32>| of.iter().copied().map(f64::from).collect::<Vec<f64>>();
    let (values, input, normed) = (flat(values), flat(input), flat(normed));
    // A constant row has the same size too.
    if values.chunks(dim.max(1)).any(|row| row.iter().all(|x| *x == row[0])) {
        return false;
    }
    if dim == 0 || values.len() != input.len() || input.len() != normed.len() || values.len() < dim {
        return false;
    }
    let size = |row: &mut dyn Iterator<Item = f64>| (row.map(|x| x * x).sum::<f64>() / dim as f64).sqrt();
    // The weight, computed from the reference's own values by least squares.
    let (mut both, mut square) = (vec![0.0; dim], vec![0.0; dim]);
    let mut sizes_before = Vec::new();
    for (x, y) in input.chunks_exact(dim).zip(normed.chunks_exact(dim)) {
        let before = size(&mut x.iter().copied());
        sizes_before.push(before);
        for at in 0..dim {
            let x = x[at] / before;
            both[at] += x * y[at];
            square[at] += x * x;
        }
    }
    let weight: Vec<f64> = both.iter().zip(&square).map(|(both, square)| both / square).collect();
    let spread = |sizes: &[f64]| {
        let mean = sizes.iter().sum::<f64>() / sizes.len() as f64;
        let apart = sizes.iter().map(|size| (size - mean).powi(2)).sum::<f64>() / sizes.len() as f64;
        (mean, apart.sqrt() / mean)
    };
    let is_told = sizes_before.len() > 2 && spread(&sizes_before).1 > TOLD;
    let by: [&dyn Fn(f64) -> f64; 3] = [&|w| w, &|w| w + 1.0, &|_| 1.0];
    by.iter().any(|by| {
        let row = |row: &[f64]| {
            // A weight near 0 would dominate.
            let parts = row.iter().zip(&weight).filter(|(_, weight)| by(**weight).abs() > 0.05);
            let (sum, count) = parts
                .fold((0.0, 0.0), |(sum, count), (x, weight)| (sum + (x / by(*weight)).powi(2), count + 1.0));
            f64::sqrt(sum / count)
        };
        let sizes: Vec<f64> = values.chunks_exact(dim).map(row).collect();
        let (mean, apart) = spread(&sizes);
        apart <= SPREAD && (is_told || (mean - 1.0).abs() <= NEAR)
    })
}

/// Returns whether every head of `values` has the length of the head in `of_a`, and some have another direction.
pub(super) fn is_turned(values: &ArrayD<f32>, of_a: &ArrayD<f32>, head_dim: usize) -> bool {
    /// The largest difference of lengths, and the least distance of a turned head, relative to the length.
    const NEAR: f64 = 0.01;
    const TOLD: f64 = 0.05;
    if head_dim == 0 || values.len() != of_a.len() || !values.len().is_multiple_of(head_dim) {
        return false;
    }
    let flat = |of: &ArrayD<f32>| of.iter().copied().map(f64::from).collect::<Vec<f64>>();
    let (values, of_a) = (flat(values), flat(of_a));
    let norm = |of: &mut dyn Iterator<Item = f64>| of.map(|x| x * x).sum::<f64>().sqrt();
    let mut is_apart = false;
    for (b, a) in values.chunks_exact(head_dim).zip(of_a.chunks_exact(head_dim)) {
        let [own, length] = [b, a].map(|of| norm(&mut of.iter().copied()));
        // NaN has no length.
        if !(own - length).abs().le(&(NEAR * length)) {
            return false;
        }
        is_apart |= norm(&mut b.iter().zip(a).map(|(b, a)| b - a)) > TOLD * length;
    }
    is_apart
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::IxDyn;

    fn array(rows: usize, values: impl Iterator<Item = f64>) -> ArrayD<f32> {
        let values: Vec<f32> = values.map(|x| x as f32).collect();
        ArrayD::from_shape_vec(IxDyn(&[rows, values.len() / rows]), values).unwrap()
    }

    #[test]
    fn rows_of_a_norm_are_told_from_others_whatever_its_weight_is() {
        let (rows, dim) = (4, 16);
        let wave = |at: usize, step: f64| ((at as f64 + 0.5) * step).sin();
        let input = |step: f64| -> Vec<f64> {
            (0..rows * dim).map(|at| wave(at, step) * (1.0 + (at / dim) as f64)).collect()
        };
        let weight = |at: usize| 1.0 + 0.5 * wave(at % dim, 1.7);
        let normed = |input: &[f64], weight: &dyn Fn(usize) -> f64| -> Vec<f64> {
            let size = |at: usize| {
                let row = &input[at / dim * dim..][..dim];
                (row.iter().map(|x| x * x).sum::<f64>() / dim as f64).sqrt()
            };
            (0..rows * dim).map(|at| input[at] / size(at) * weight(at)).collect()
        };
        let (own, other) = (input(2.3), input(3.1));
        let [input, normal] =
            [own.clone(), normed(&own, &weight)].map(|values| array(rows, values.into_iter()));
        let is = |values: Vec<f64>| is_normed(&array(rows, values.into_iter()), &input, &normal, dim);
        assert!(is(normed(&other, &weight)) && is(normed(&other, &|at| weight(at) + 1.0)));
        assert!(is(normed(&other, &|_| 1.0)) && !is(other) && !is(own));
        assert!(!is(vec![1.0; rows * dim]));
    }

    #[test]
    fn heads_that_are_turned_are_as_long_as_they_were() {
        let of = |values: [f64; 4]| array(2, values.into_iter());
        let is = |values| is_turned(&of(values), &of([3.0, 4.0, 0.0, 2.0]), 2);
        assert!(is([4.0, -3.0, 2.0, 0.0]) && is([3.0, 4.0, -2.0, 0.0]));
        assert!(!is([3.0, 4.0, 0.0, 2.0]) && !is([4.0, -3.0, 2.5, 0.0]) && !is([f64::NAN, 4.0, 0.0, 2.0]));
    }

    #[test]
    fn an_activation_has_a_least_value_and_scores_are_no_shares() {
        let of = |values: [f64; 4]| array(2, values.into_iter());
        assert!(may_be(Stage::FfnSilu, &of([-0.27, 3.0, 0.0, 9.0])));
        assert!(!may_be(Stage::FfnSilu, &of([-0.5, 3.0, 0.0, 9.0])));
        assert!(may_be(Stage::Scores, &of([-0.5, 3.0, 0.0, 9.0])) && may_be(Stage::Softmax, &of([0.5; 4])));
        assert!(!may_be(Stage::Scores, &of([0.5; 4])) && !may_be(Stage::Softmax, &of([-0.5, 1.5, 1.0, 0.0])));
    }
}
