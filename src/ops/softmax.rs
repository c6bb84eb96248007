//! Softmax: out\[k\] = e^(x\[k\] − max x) / Σ e^(x − max x). Subtracting the maximum changes nothing but
//! keeps e^x from overflowing.

/// Replaces `row` by its softmax. −∞ becomes exactly 0; a row that is empty stays empty.
pub fn softmax(row: &mut [f32]) {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for x in row.iter_mut() {
        *x = (*x - max).exp();
        sum += *x;
    }
    for x in row.iter_mut() {
        *x /= sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_become_their_shares() {
        let mut row = [1.0_f32.ln(), 3.0_f32.ln(), f32::NEG_INFINITY];
        softmax(&mut row);
        assert!((row[0] - 0.25).abs() < 1e-6 && (row[1] - 0.75).abs() < 1e-6);
        assert_eq!(row[2], 0.0);
    }

    #[test]
    fn large_scores_do_not_overflow() {
        let mut row = [1000.0, 1000.0];
        softmax(&mut row);
        assert_eq!(row, [0.5, 0.5]);
    }
}
