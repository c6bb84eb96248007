//! Sums and products element by element: the residual connection and the SwiGLU gate.

/// out = a + b.
#[inline(always)]
pub fn add(a: &[f32], b: &[f32], out: &mut [f32]) {
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = a + b;
    }
}

/// out = out + a.
pub fn add_to(a: &[f32], out: &mut [f32]) {
    for (out, a) in out.iter_mut().zip(a) {
        *out += a;
    }
}

/// out = a · b.
#[inline(always)]
pub fn mul(a: &[f32], b: &[f32], out: &mut [f32]) {
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = a * b;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        let mut out = [0.0; 2];
        add(&[1.0, 2.0], &[10.0, 20.0], &mut out);
        assert_eq!(out, [11.0, 22.0]);
        mul(&[3.0, 4.0], &[10.0, 20.0], &mut out);
        assert_eq!(out, [30.0, 80.0]);
    }
}
