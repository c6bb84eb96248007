//! Statistics of the values that an address selects.

/// A statistic of some values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Statistic {
    /// The only value.
    Value,
    /// The lengths of the axes.
    Shape,
    Min,
    Max,
    Mean,
    Std,
    Rms,
    Norm,
    Sum,
    Count,
    Zeros,
    NegInf,
    Negative,
    Positive,
    /// The number of values that are at least this large.
    AtLeast(f64),
    /// The index of the smallest value.
    ArgMin,
    /// The index of the value with this rank; 1 is the largest.
    Arg(usize),
    /// The value with this rank; 1 is the largest.
    Top(usize),
}

impl Statistic {
    /// Parses what follows an index: `.max`, `.arg3`, `.at_least(1)`.
    ///
    /// # Errors
    /// A message with the name.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let rank = |digits: &str| digits.parse().ok().filter(|rank| *rank > 0);
        let ranked = text.strip_prefix(".arg").and_then(rank).map(Self::Arg);
        let ranked = ranked.or_else(|| text.strip_prefix(".top").and_then(rank).map(Self::Top));
        if let Some(ranked) = ranked {
            return Ok(ranked);
        }
        if let Some(least) = text.strip_prefix(".at_least(").and_then(|rest| rest.strip_suffix(')')) {
            let least = least.parse().ok().filter(|least: &f64| least.is_finite());
            return least.map(Self::AtLeast).ok_or_else(|| format!("{text} needs a number"));
        }
        Ok(match text {
            "" => Self::Value,
            ".shape" => Self::Shape,
            ".min" => Self::Min,
            ".max" => Self::Max,
            ".mean" => Self::Mean,
            ".std" => Self::Std,
            ".rms" => Self::Rms,
            ".norm" => Self::Norm,
            ".sum" => Self::Sum,
            ".count" => Self::Count,
            ".zeros" => Self::Zeros,
            ".neg_inf" => Self::NegInf,
            ".negative" => Self::Negative,
            ".positive" => Self::Positive,
            ".argmax" => Self::Arg(1),
            ".argmin" => Self::ArgMin,
            _ => return Err(format!("{text} is no known statistic")),
        })
    }

    /// Whether its value is an index on the only axis that the address leaves free.
    pub(super) fn is_ranked(self) -> bool {
        matches!(self, Self::ArgMin | Self::Arg(_) | Self::Top(_))
    }

    /// The statistic of `values`.
    ///
    /// # Errors
    /// A message if there are too few or too many values.
    pub(super) fn of(self, values: &[f64]) -> Result<f64, String> {
        let finite = || values.iter().copied().filter(|value| value.is_finite());
        let count = |holds: fn(f64) -> bool| values.iter().filter(|&&value| holds(value)).count() as f64;
        let squares = || finite().map(|value| value * value).sum::<f64>();
        let number = || finite().count() as f64;
        Ok(match self {
            Self::Value => match values {
                [value] => *value,
                _ => return Err(format!("the index leaves {} values", values.len())),
            },
            Self::Shape => return Err("a shape is no number".into()),
            Self::Min => finite().fold(f64::INFINITY, f64::min),
            Self::Max => finite().fold(f64::NEG_INFINITY, f64::max),
            Self::Mean => finite().sum::<f64>() / number(),
            Self::Std => {
                let mean = finite().sum::<f64>() / number();
                (finite().map(|value| (value - mean).powi(2)).sum::<f64>() / number()).sqrt()
            }
            Self::Rms => (squares() / number()).sqrt(),
            Self::Norm => squares().sqrt(),
            Self::Sum => finite().sum(),
            Self::Count => values.len() as f64,
            Self::Zeros => count(|value| value == 0.0),
            Self::NegInf => count(|value| value == f64::NEG_INFINITY),
            Self::Negative => count(|value| value < 0.0),
            Self::Positive => count(|value| value > 0.0),
            Self::AtLeast(least) => values.iter().filter(|&&value| value >= least).count() as f64,
            Self::ArgMin => ranked(values, values.len())? as f64,
            Self::Arg(rank) => ranked(values, rank)? as f64,
            Self::Top(rank) => values[ranked(values, rank)?],
        })
    }
}

/// The index of the value with this rank; 1 is the largest. Of equal values, the first is the larger one.
fn ranked(values: &[f64], rank: usize) -> Result<usize, String> {
    let at = rank.checked_sub(1).filter(|at| *at < values.len());
    let at = at.ok_or_else(|| format!("there are only {} values, so none has rank {rank}", values.len()))?;
    let mut order: Vec<usize> = (0..values.len()).collect();
    let (_, found, _) =
        order.select_nth_unstable_by(at, |&a, &b| values[b].total_cmp(&values[a]).then(a.cmp(&b)));
    Ok(*found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_those_of_the_finite_values() {
        let values = [3.0, f64::NEG_INFINITY, 1.0, 3.0, -2.0, 0.0];
        let is = |name: &str, expected: f64| {
            let value = Statistic::parse(name).unwrap().of(&values).unwrap();
            assert!((value - expected).abs() < 1e-12, "{name}: {value}");
        };
        is(".min", -2.0);
        is(".max", 3.0);
        is(".mean", 1.0);
        is(".sum", 5.0);
        is(".count", 6.0);
        is(".zeros", 1.0);
        is(".neg_inf", 1.0);
        is(".negative", 2.0);
        is(".positive", 3.0);
        is(".at_least(1)", 3.0);
        is(".argmax", 0.0);
        is(".arg2", 3.0);
        is(".top3", 1.0);
        is(".argmin", 1.0);
        is(".norm", 23_f64.sqrt());
        is(".rms", (23_f64 / 5.0).sqrt());
        is(".std", (18_f64 / 5.0).sqrt());
    }

    #[test]
    fn unknown_statistics_and_ranks_are_errors() {
        for text in [".median", ".arg0", ".top", ".at_least(x)", ".at_least(inf)", "max", ".argmax2"] {
            assert!(Statistic::parse(text).is_err(), "{text}");
        }
        assert!(Statistic::Arg(3).of(&[1.0, 2.0]).unwrap_err().contains("rank 3"));
        assert!(Statistic::ArgMin.of(&[]).is_err());
        assert!(Statistic::Value.of(&[1.0, 2.0]).unwrap_err().contains("leaves 2 values"));
    }
}
