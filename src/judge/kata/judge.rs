//! The verdict on the outputs of a program.

use std::collections::BTreeSet;

use half::{bf16, f16};

use super::case::Case;
use super::npy::{Output, shape_text};
use super::table::Kata;
use crate::diff::{Frames, Named};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::explain::{Line, Operands, explain};
use llama_trace_core::trace::Stage;
use llama_trace_core::trace::explanation::Explanation;

/// The tolerance of a value, relative to the largest magnitude of its row. float32 arithmetic in any order is well
/// within it; float16 and bfloat16 are not.
const TOLERANCE: f64 = 2e-5;
/// The largest difference, relative to the largest magnitude of its row, that a lower precision may explain.
const IMPRECISE: f64 = 0.05;
/// Masked values below this count as −∞.
const HIDDEN: f64 = -6e4;
/// The most mistakes that are named.
const NAMED: usize = 3;
/// Terms of the explanation.
const TERMS: usize = 8;

/// The verdict.
#[derive(Debug)]
pub enum Judgement {
    /// All outputs are right.
    Correct,
    /// An output is wrong.
    Wrong(Box<Wrong>),
}

/// The first wrong output.
#[derive(Debug)]
pub struct Wrong {
    /// The number of its case.
    pub case: usize,
    /// The problem in one line, if the output has another shape or number type.
    pub problem: Option<String>,
    /// The first wrong cell.
    pub cell: Option<Cell>,
    /// Cases with a wrong output.
    pub wrong_cases: usize,
    /// The mistakes that would give all outputs; the best first.
    pub mistakes: Vec<Named>,
}

/// The first wrong cell of an output.
#[derive(Debug)]
pub struct Cell {
    /// Its address.
    pub address: String,
    /// The value found.
    pub found: f64,
    /// The right value.
    pub right: f64,
    /// Wrong values in the output.
    pub count: usize,
    /// Values in the output.
    pub of: usize,
    /// The right value from its operands.
    pub explanation: Explanation,
}

/// A value as it is compared.
fn compared(stage: Stage, x: f64) -> f64 {
    match stage {
        Stage::Mask | Stage::MaskedScores if x < HIDDEN => f64::NEG_INFINITY,
        _ => x,
    }
}

/// The difference of each value from the right one, relative to the row's tolerance: at most 1 if it is near.
fn distances(case: &Case, found: &[f64], right: &[f64]) -> Vec<f64> {
    let stage = case.site.stage;
    let exact = stage.is_ids() || stage.is_int8();
    let width = case.shape.last().copied().unwrap_or(1).max(1);
    let mut all = Vec::with_capacity(found.len());
    for (found, right) in found.chunks(width).zip(right.chunks(width)) {
        let size = |x: &&f64| x.is_finite();
        let largest = right.iter().filter(size).fold(0.0, |most: f64, x| most.max(x.abs()));
        let tolerance = if exact { 0.25 } else { (TOLERANCE * largest).max(f64::MIN_POSITIVE) };
        all.extend(found.iter().zip(right).map(|(found, right)| {
            let (found, right) = (compared(stage, *found), compared(stage, *right));
            if found == right || (found.is_nan() && right.is_nan()) {
                return 0.0;
            }
            let apart = (found - right).abs() / tolerance;
            if apart.is_nan() { f64::INFINITY } else { apart }
        }));
    }
    all
}

/// Returns whether all values are near the right ones.
fn is_near(case: &Case, found: &[f64], right: &[f64]) -> bool {
    found.len() == right.len() && distances(case, found, right).into_iter().all(|apart| apart <= 1.0)
}

/// Judges the outputs of a kata's cases. `outputs` are in the order of `cases`.
///
/// # Errors
/// The errors of the weights, and a stop request.
pub fn judge(kata: &Kata, cases: &[Case], outputs: &[Output]) -> Result<Judgement> {
    for (number, (case, output)) in cases.iter().zip(outputs).enumerate() {
        if let Some(problem) = misshapen(kata, case, output) {
            return Ok(Judgement::Wrong(Box::new(Wrong {
                case: number,
                problem: Some(problem),
                cell: None,
                wrong_cases: 1,
                mistakes: Vec::new(),
            })));
        }
    }
    let wrong: Vec<usize> = (0..cases.len().min(outputs.len()))
        .filter(|&i| !is_near(&cases[i], &outputs[i].values, &cases[i].right))
        .collect();
    let Some(&first) = wrong.first() else { return Ok(Judgement::Correct) };
    let (case, output) = (&cases[first], &outputs[first]);
    let apart = distances(case, &output.values, &case.right);
    let at = apart.iter().position(|apart| *apart > 1.0).unwrap_or(0);
    let cell = Cell {
        address: case.address(at),
        found: output.values[at],
        right: case.right[at],
        count: apart.iter().filter(|apart| **apart > 1.0).count(),
        of: apart.len(),
        explanation: explanation(case, at)?,
    };
    Ok(Judgement::Wrong(Box::new(Wrong {
        case: first,
        problem: None,
        cell: Some(cell),
        wrong_cases: wrong.len(),
        mistakes: named(cases, outputs, &wrong)?,
    })))
}

/// The problem of an output in another shape or number type.
fn misshapen(kata: &Kata, case: &Case, output: &Output) -> Option<String> {
    let whole = output.dtype.starts_with("int") || output.dtype.starts_with("uint");
    if whole && !kata.is_ids() && !kata.is_int8() && kata.name != "mask" {
        return Some(format!("the values are {}; float32 or float64 is expected", output.dtype));
    }
    if output.shape == case.shape {
        return None;
    }
    let expected = format!(
        "the shape is {}; {} is expected, which is {}",
        shape_text(&output.shape),
        shape_text(&case.shape),
        kata.output
    );
    Some(match another_order(case, output) {
        Some(hint) => format!("{expected}; {hint}"),
        None => expected,
    })
}

/// A hint if the values are right, but in another order of axes or another shape.
fn another_order(case: &Case, output: &Output) -> Option<String> {
    if output.values.len() != case.right.len() {
        return None;
    }
    if is_near(case, &output.values, &case.right) {
        return Some("the values are right, so reshape them".into());
    }
    let axes = output.shape.len();
    let mut orders = vec![vec![]];
    for _ in 0..axes {
        orders = orders
            .into_iter()
            .flat_map(|order: Vec<usize>| {
                let rest: Vec<usize> = (0..axes).filter(|axis| !order.contains(axis)).collect();
                rest.into_iter().map(move |axis| [order.clone(), vec![axis]].concat())
            })
            .collect();
    }
    let values =
        ndarray::ArrayD::from_shape_vec(ndarray::IxDyn(&output.shape), output.values.clone()).ok()?;
    orders.into_iter().filter(|_| axes <= 4).find_map(|order| {
        let turned = values.view().permuted_axes(ndarray::IxDyn(&order));
        let turned: Vec<f64> = turned.iter().copied().collect();
        let order = order.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        is_near(case, &turned, &case.right)
            .then(|| format!("the values are right in another order of axes: transpose them by ({order})"))
    })
}

/// The mistakes that give the outputs of all cases, the wrong ones and the right ones.
fn named(cases: &[Case], outputs: &[Output], wrong: &[usize]) -> Result<Vec<Named>> {
    // The smallest wrong case rules out most mistakes.
    let mut order: Vec<usize> = wrong.to_vec();
    order.sort_by_key(|i| cases[*i].right.len());
    order.extend((0..cases.len()).filter(|i| !wrong.contains(i)));
    let mut left: Option<Vec<Named>> = None;
    for i in order {
        let (case, found) = (&cases[i], &outputs[i].values);
        let must_differ = wrong.contains(&i);
        let mut next = Vec::new();
        let mut refuted = BTreeSet::new();
        let is_tried = |named: &Named| left.as_ref().is_none_or(|left| left.contains(named));
        case.stage().try_mistakes(found, &case.right, is_tried, |tried| {
            let explains = tried.wrong.as_ref().is_some_and(|wrong| is_near(case, found, wrong));
            match (explains, tried.wrong.is_some()) {
                (true, _) => next.push(tried.named),
                // A mistake that does not apply to a case leaves it right.
                (false, false) if !must_differ => {}
                (false, _) => drop(refuted.insert((tried.named.name, tried.named.form))),
            }
            Ok(())
        })?;
        left = Some(match left {
            None => next,
            Some(left) => left
                .into_iter()
                .filter(|one| {
                    let is_refuted = refuted.contains(&(one.name, one.form.clone()));
                    next.contains(one) || (!must_differ && !is_refuted)
                })
                .collect(),
        });
        if left.as_ref().is_none_or(Vec::is_empty) {
            break;
        }
    }
    let mut left = left.unwrap_or_default();
    // One form of each mistake.
    let mut names = BTreeSet::new();
    left.retain(|named| names.insert(named.name));
    left.truncate(NAMED);
    if left.is_empty() {
        left.extend(imprecise(cases, outputs));
    }
    Ok(left)
}

/// The mistake of a lower precision: all values are a little wrong, and representable in a 16-bit type or nearly so.
fn imprecise(cases: &[Case], outputs: &[Output]) -> Option<Named> {
    let mut all = cases.iter().zip(outputs);
    let near = all.clone().all(|(case, output)| {
        let apart = distances(case, &output.values, &case.right);
        apart.into_iter().all(|apart| apart * TOLERANCE <= IMPRECISE)
    });
    if !near || cases.iter().any(|case| case.site.stage.is_ids() || case.site.stage.is_int8()) {
        return None;
    }
    let is = |kept: fn(f64) -> f64| {
        let mut values = cases.iter().zip(outputs).flat_map(|(_, output)| &output.values);
        values.all(|x| x.is_nan() || kept(*x) == *x)
    };
    if is(|x| f16::from_f64(x).to_f64()) {
        return Some(Named { name: "f16_rounding", form: "all values are float16 numbers".into() });
    }
    if is(|x| bf16::from_f64(x).to_f64()) {
        return Some(Named { name: "bf16_rounding", form: "all values are bfloat16 numbers".into() });
    }
    // A sum in 16 bits is wrong in its fourth digit.
    const FEW_DIGITS: f64 = 5e-3;
    all.all(|(case, output)| {
        let apart = distances(case, &output.values, &case.right);
        apart.into_iter().all(|apart| apart * TOLERANCE <= FEW_DIGITS)
    })
    .then(|| Named {
        name: "f16_rounding",
        form: "the values have 3 right digits, as after steps in float16".into(),
    })
}

/// The operands of a case, for an explanation.
struct Held<'a> {
    case: &'a Case,
    operands: Frames,
}

impl Operands for Held<'_> {
    fn numbers(&mut self, line: Line) -> Result<Vec<f32>> {
        let values = self.case.place(line.place, &self.operands)?;
        let wrong = || Error::usage("an operand is outside its stage");
        line.cells().map(|cell| values.get(cell.at).copied().ok_or_else(wrong)).collect()
    }

    fn whole(&mut self, _: Line, _: &[i8], _: &[f32], _: usize) -> Result<(Vec<f32>, f32)> {
        Err(Error::usage("a kata has no int8 weights"))
    }

    fn is_all(&self) -> bool {
        true
    }
}

/// The right value of a cell from its operands.
fn explanation(case: &Case, at: usize) -> Result<Explanation> {
    let mut held = Held { case, operands: case.stage().operands()? };
    let explanation = explain(case.run.rules(), case.site, at, TERMS, &mut held)?;
    // The right value is computed by the rule, not recorded.
    Ok(Explanation { recorded: false, ..explanation })
}
