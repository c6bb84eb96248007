//! The additions of the sublayers to the residual stream. A source answers queries with these types. Attention and the
//! feed-forward network each read the stream x and add a vector a to it.

use std::ops::Range;

use super::site::Site;

/// Asks for the additions of the two sublayers of a layer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StreamAt {
    /// The layer's output: its `ffn_residual`.
    pub site: Site,
    /// Tokens of the pass.
    pub tokens: Range<usize>,
}

/// The addition of a sublayer, from recorded values. Norms are √(Σ v²) over the D components, summed in float64.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Addition {
    /// ‖x‖, the stream before.
    pub before: f64,
    /// ‖a‖, the addition.
    pub added: f64,
    /// ‖x + a‖, the stream after.
    pub after: f64,
    /// x · a.
    pub dot: f64,
}

impl Addition {
    /// ‖a‖ / ‖x‖: the relative size of the addition; `None` if it is not finite.
    pub fn share(&self) -> Option<f64> {
        Some(self.added / self.before).filter(|share| share.is_finite())
    }

    /// The angle between x and a in degrees, arccos(x · a / (‖x‖ · ‖a‖)); `None` if one of them is 0.
    pub fn angle(&self) -> Option<f64> {
        let cosine = self.dot / (self.before * self.added);
        cosine.is_finite().then(|| cosine.clamp(-1.0, 1.0).acos().to_degrees())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_angle_is_one_and_nothing_has_none() {
        let addition = Addition { before: 4.0, added: 3.0, after: 5.0, dot: 0.0 };
        assert_eq!((addition.share(), addition.angle()), (Some(0.75), Some(90.0)));
        let opposite = Addition { dot: -12.0, ..addition };
        assert_eq!(opposite.angle(), Some(180.0));
        let nothing = Addition { added: 0.0, after: 4.0, ..addition };
        assert_eq!((nothing.share(), nothing.angle()), (Some(0.0), None));
        assert_eq!(Addition { before: 0.0, ..addition }.share(), None);
    }
}
