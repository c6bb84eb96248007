//! Filter for cells like the one under the cursor: values with the same sign that are as far from 0, or further.

use llama_trace_core::trace::Step;
use llama_trace_core::trace::frame::Number;

use super::text;

/// A filter on the values of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Filter {
    /// The step.
    pub step: Step,
    /// The value under the cursor when the filter was set.
    pub like: Number,
}

/// A number as float64.
fn real(number: Number) -> f64 {
    match number {
        Number::F32(value) => value.into(),
        Number::I64(value) => value as f64,
    }
}

impl Filter {
    /// Returns whether the filter accepts `value`.
    pub fn takes(self, value: f64) -> bool {
        match real(self.like) {
            own if own.is_nan() => value.is_nan(),
            0.0 => value == 0.0,
            own if own < 0.0 => value <= own,
            own => value >= own,
        }
    }

    /// The accepted values in words: "0.42 or more".
    pub fn words(self) -> String {
        let number = text::full(self.like);
        match real(self.like) {
            own if own.is_nan() => "not a number".to_owned(),
            0.0 => "exactly 0".to_owned(),
            own if own.is_infinite() => number,
            own if own < 0.0 => format!("{number} or less"),
            _ => format!("{number} or more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use llama_trace_core::trace::Stage;

    #[test]
    fn what_is_as_far_from_0_on_the_same_side_is_taken() {
        let takes = |like: f32| {
            let filter = Filter { step: Step::Stage(Stage::Xq), like: Number::F32(like) };
            let values = [f64::NEG_INFINITY, -2.0, -1.0, 0.0, 1.0, 2.0, f64::INFINITY, f64::NAN];
            let taken: Vec<usize> = (0..values.len()).filter(|&at| filter.takes(values[at])).collect();
            (taken, filter.words())
        };
        assert_eq!(takes(1.0), (vec![4, 5, 6], "1 or more".into()));
        assert_eq!(takes(-1.0), (vec![0, 1, 2], "-1 or less".into()));
        assert_eq!(takes(0.0), (vec![3], "exactly 0".into()));
        assert_eq!(takes(f32::NAN), (vec![7], "not a number".into()));
        assert_eq!(takes(f32::NEG_INFINITY), (vec![0], "-inf".into()));
    }
}
