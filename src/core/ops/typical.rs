//! Typical sampling (Meister et al., 2023): of the tokens in the order of |−ln p − H|, those are kept that reach a share
//! of the probability. H = −Σ p · ln p is the entropy.

/// The tokens that typical sampling keeps.
#[derive(Clone, Copy, Debug)]
pub struct Typical {
    /// The sum of the probabilities.
    total: f64,
    entropy: f64,
    /// The largest distance from the entropy that is kept.
    most: f64,
}

impl Typical {
    /// The tokens of `probs` that reach the share `mass`. The probabilities are above 0; they need not sum to 1. As in
    /// transformers, all tokens that are as typical as the last one are kept too.
    pub fn new(probs: impl Iterator<Item = f64> + Clone, mass: f32) -> Self {
        let total: f64 = probs.clone().sum();
        let entropy = -probs.clone().map(|prob| prob / total * (prob / total).ln()).sum::<f64>();
        let mut all = Self { total, entropy, most: f64::INFINITY };
        let mut by_distance: Vec<(f64, f64)> = probs.map(|prob| (all.distance(prob), prob)).collect();
        by_distance.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let mut sum = 0.0;
        let reached = by_distance.iter().find(|(_, prob)| {
            sum += prob / total;
            sum >= f64::from(mass)
        });
        all.most = reached.or(by_distance.last()).map_or(f64::INFINITY, |(distance, _)| *distance);
        all
    }

    /// Whether a token of this probability is kept.
    pub fn keeps(&self, prob: f64) -> bool {
        self.distance(prob) <= self.most
    }

    /// The entropy, in nats.
    pub fn entropy(&self) -> f64 {
        self.entropy
    }

    /// The distance of the surprise −ln p of a token from the entropy, in nats.
    pub fn distance(&self, prob: f64) -> f64 {
        (-(prob / self.total).ln() - self.entropy).abs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_likely_token_is_removed_where_it_is_no_surprise() {
        // H = 1.23 nats; the surprises are 0.51 and 2.30.
        let probs = [0.6, 0.1, 0.1, 0.1, 0.1];
        let typical = Typical::new(probs.into_iter(), 0.3);
        assert!((typical.entropy() - 1.2275).abs() < 1e-4);
        assert_eq!(probs.map(|prob| typical.keeps(prob)), [true, false, false, false, false]);
        // H = 1.50 nats; the surprises are 0.92 and 1.90.
        let few = [0.4, 0.15, 0.15, 0.15, 0.15];
        let typical = Typical::new(few.into_iter(), 0.2);
        assert_eq!(few.map(|prob| typical.keeps(prob)), [false, true, true, true, true], "equals stay");
        assert!(few.iter().all(|prob| Typical::new(few.into_iter(), 0.7).keeps(*prob)));
        assert!(Typical::new([0.3, 0.3].into_iter(), 0.99).keeps(0.3), "the sum may be any number");
        assert!(Typical::new(std::iter::empty(), 0.5).most.is_infinite());
    }
}
