//! The explanation of one cell: its rule's operands with their values, and the result in float32. The result is
//! computed with the functions of [`crate::ops`], in the arithmetic and in the order of sums of the pass.

mod drawn;
mod split;

use super::fold::largest;
use super::rule::{Cell, Fold, Line, Place};
use super::site::{Rules, SiteRules};
use crate::config::{Arithmetic, CacheDtype, Pairing, Precision, Sees};
use crate::error::{Error, Result};
use crate::ops;
use crate::ops::norm::Form;
use crate::ops::round;
use crate::trace::explanation::{Explanation, Figure, From, Operand, Rest, Split, Term, Together};
use crate::trace::stage::Rounded;
use crate::trace::{ModelCard, Site, Stage, Step};

/// Reads the values of operands.
pub trait Operands {
    /// The numbers of a line; integers are converted to float32.
    ///
    /// # Errors
    /// An error if they cannot be read.
    fn numbers(&mut self, line: Line) -> Result<Vec<f32>>;

    /// A row of a matrix whose products run in int8: its dequantised values, and its product with a row of int8
    /// activations. `scales` has one scale per `group` activations. The product is summed in the order of the pass.
    ///
    /// # Errors
    /// An error if it cannot be read.
    fn whole(&mut self, row: Line, x: &[i8], scales: &[f32], group: usize) -> Result<(Vec<f32>, f32)>;

    /// Returns whether values that cannot be read here are available nowhere else. An explanation then omits the parts
    /// that need these values.
    fn is_all(&self) -> bool {
        false
    }
}

/// The result of a rule, with its terms.
#[derive(Default)]
struct Folded {
    result: Option<f32>,
    is_sum: bool,
    /// For a rule that is not a sum: the number of first operands that are always shown, and a name for the others.
    /// `None` if all are shown.
    own: Option<(usize, &'static str)>,
    /// Whether the result is the largest of the operands.
    is_largest: bool,
    terms: Vec<Term>,
    notes: Vec<String>,
    splits: Vec<Split>,
    figure: Option<Figure>,
    /// Operands left out of the terms; each is smaller than every term.
    small: Small,
}

/// Terms too small to be shown one by one.
#[derive(Clone, Copy, Default)]
struct Small {
    count: usize,
    /// The sum of their products, all of which are ≥ 0.
    sum: f64,
}

/// Explains value `at` of `site`, with at most `most` terms (0 for all). If `operands` lacks the value itself, the
/// result computed from its operands is shown instead.
///
/// # Errors
/// [`Error::Usage`] if there is no such value, and the errors of `operands`.
pub fn explain(
    rules: &Rules,
    site: Site,
    at: usize,
    most: usize,
    operands: &mut impl Operands,
) -> Result<Explanation> {
    let of = rules.of(site).filter(|of| at < of.count());
    let of = of.ok_or_else(|| Error::usage(format!("{site} has no value number {at} in this run")))?;
    let Some(dims) = rules.pass(site.pass) else { unreachable!("the site is in a pass") };
    let cell = Cell { place: Place::Stage(site), at };
    let value = match single(operands, cell) {
        Ok(value) => Ok(value),
        Err(Error::Usage(why)) => Err(Error::Usage(why)),
        Err(error) => return Err(error),
    };
    let ModelCard { precision, arithmetic, .. } = *rules.card();
    let mut explainer = Explainer { rules, operands, precision, arithmetic, most, folded: Folded::default() };
    match (explainer.fold(site, &of, at), &value) {
        // If there are two errors, the one about the requested value itself is reported.
        (Err(Error::Usage(_)), Err(_)) => {}
        (folded, _) => folded?,
    }
    let value = match (value, explainer.folded.result) {
        (Ok(value), _) | (Err(_), Some(value)) => f64::from(value),
        (Err(error), None) => return Err(error),
    };
    let Folded { result, is_sum, own, is_largest, mut terms, mut notes, splits, figure, small } =
        explainer.folded;
    let edits = rules.edits_of(site, dims, at).into_iter();
    notes.extend(
        edits.map(|edit| format!("edited: `{edit}` wrote this value; the formula gives the value before it")),
    );
    // Operands of a rule that is not a sum stay in the order of their use.
    if is_sum {
        terms.sort_by(|a, b| b.product.abs().total_cmp(&a.product.abs()));
    }
    let least = if is_sum { 0 } else { own.map_or(terms.len(), |(own, _)| own) };
    let told = if most == 0 { terms.len() } else { most.max(least).min(terms.len()) };
    let rest = &terms[told..];
    let sum = |of: fn(f64) -> f64| rest.iter().fold(0.0, |sum, term| sum + of(term.product));
    let rest = Rest {
        count: small.count + rest.len(),
        together: match is_largest {
            true => Together::Largest(rest.iter().map(|term| term.product).fold(0.0, f64::max)),
            false => Together::Sum(small.sum + sum(|product| product)),
        },
        size: small.sum + sum(f64::abs),
    };
    terms.truncate(told);
    Ok(Explanation {
        address: rules.address(cell),
        value,
        recorded: true,
        result: result.map(f64::from),
        formula: rules.card().formula(Step::Stage(site.stage), dims, site.layer),
        notes,
        is_sum,
        others: own.filter(|(own, _)| *own < terms.len()),
        terms,
        rest,
        splits,
        figure,
    })
}

fn single(operands: &mut impl Operands, cell: Cell) -> Result<f32> {
    let line = Line { place: cell.place, first: cell.at, step: 1, count: 1 };
    Ok(operands.numbers(line)?.first().copied().unwrap_or(f32::NAN))
}

/// A cell that is being explained.
struct Explainer<'a, O> {
    rules: &'a Rules,
    operands: &'a mut O,
    precision: Precision,
    arithmetic: Arithmetic,
    /// The number of terms shown, 0 for all.
    most: usize,
    folded: Folded,
}

impl<O: Operands> Explainer<'_, O> {
    fn operand(&self, cell: Cell, value: f32) -> Operand {
        let address = self.rules.address(cell);
        let from = match cell.place {
            Place::Stage(_) => From::Stage(address),
            Place::Weight(..) => From::Weight(address),
        };
        Operand { from, value: f64::from(value) }
    }

    fn read(&mut self, cell: Cell) -> Result<(f32, Operand)> {
        let value = single(self.operands, cell)?;
        Ok((value, self.operand(cell, value)))
    }

    fn term(&mut self, operands: Vec<Operand>, product: f64) {
        self.folded.terms.push(Term { operands, product });
    }

    /// Adds a step of a computation: an operand, and the value after it was applied.
    fn applied(&mut self, operand: Operand, product: f32) {
        self.term(vec![operand], f64::from(product));
    }

    fn note(&mut self, text: impl Into<String>) {
        self.folded.notes.push(text.into());
    }

    /// Sets the result from its value before rounding. In a sum, the rounding becomes a term.
    fn result(&mut self, value: f32) {
        let rounded = round::value(self.precision, value);
        if self.folded.is_sum && rounded.to_bits() != value.to_bits() {
            let lost = f64::from(rounded) - f64::from(value);
            self.term(vec![constant("rounding to bfloat16", lost)], lost);
        }
        self.folded.result = Some(rounded);
    }

    fn fold(&mut self, site: Site, of: &SiteRules<'_>, at: usize) -> Result<()> {
        let rule = of.cell(at);
        self.unscaled(site, of, at, rule.fold)?;
        if rule.by != 1.0
            && let Some(result) = self.folded.result
        {
            let scaled = round::value(self.precision, result * rule.by);
            // In a sum, the factor changes every term.
            if self.folded.is_sum {
                self.folded.terms.iter_mut().for_each(|term| {
                    term.operands.push(constant("the factor of the family", f64::from(rule.by)));
                    term.product *= f64::from(rule.by);
                });
            } else {
                self.applied(constant("the factor of the family", f64::from(rule.by)), scaled);
            }
            self.folded.result = Some(scaled);
        }
        Ok(())
    }

    /// The operands and the result of a rule before its factor.
    fn unscaled(&mut self, site: Site, of: &SiteRules<'_>, at: usize, fold: Fold) -> Result<()> {
        match fold {
            Fold::Given => {
                self.note("This value is an input and is not computed: a token of the prompt, or the token sampled after the previous pass.");
            }
            Fold::Lookup { id, table, width, at } => {
                let (row, id) = self.read(id)?;
                let (weight, operand) = self.read(Cell { place: table, at: row as usize * width + at })?;
                self.applied(id, row);
                self.applied(operand, weight);
                self.result(weight);
            }
            Fold::Angle { position, pair, frequency, sine, factor } => {
                let angle = position as f32 * frequency.value;
                self.applied(constant("position", position as f64), position as f32);
                self.applied(
                    constant("frequency of the pair, radians per position", f64::from(frequency.value)),
                    angle,
                );
                let turns = f64::from(angle) / std::f64::consts::TAU;
                // Two significant digits for a slow pair.
                let digits =
                    if turns > 0.0 { (1.0 - turns.log10().floor()).clamp(2.0, 12.0) as usize } else { 2 };
                self.note(format!(
                    "Pair {pair} is rotated by position {position} × {} = {angle} radians ({turns:.digits$} turns).",
                    frequency.value,
                ));
                let (sin, cos) = self.arithmetic.sin_cos(angle);
                let value = if sine { sin } else { cos } * factor;
                if factor != 1.0 {
                    self.applied(constant("the attention factor of the scaling", f64::from(factor)), value);
                }
                self.result(value);
                if of.cell(at).rounded == Rounded::Never {
                    self.folded.result = Some(value);
                }
            }
            Fold::Hide { seen } => {
                let value = if seen { 0.0 } else { f32::NEG_INFINITY };
                self.applied(constant("the mask", f64::from(value)), value);
                self.why_hidden(site, at, seen);
                self.result(value);
            }
            Fold::Norm { x, at, weight, bias, centred, eps } => {
                let form = Form { centred, rounded_once: of.cell(at).rounded != Rounded::TwiceInNorm, eps };
                self.norm(x, at, (weight, bias), form)?;
            }
            Fold::Product { a, b, bias } => {
                self.product(a, b, bias)?;
                if site.stage == Stage::Qk {
                    self.content_and_position(a, b)?;
                }
                if site.stage == Stage::AttnHeads {
                    self.what_is_seen(site, at, a.count);
                }
            }
            Fold::Int8 { x, scales, group, w, bias } => self.int8(x, scales, group, w, bias)?,
            Fold::Rotate { pair, cos, sin, second } => {
                let rounds_products = of.cell(at).rounded == Rounded::ProductsAndSum;
                self.rotate(pair, (cos, sin), second, rounds_products)?;
            }
            Fold::Cached { from, dtype } => {
                let (value, operand) = self.read(from)?;
                let kept = match dtype {
                    CacheDtype::F32 => value,
                    CacheDtype::F16 => half::f16::from_f32(value).to_f32(),
                    CacheDtype::Bf16 => half::bf16::from_f32(value).to_f32(),
                };
                self.applied(operand, kept);
                if let Place::Stage(wrote) = from.place {
                    self.note(match wrote.pass == site.pass {
                        true => "This pass wrote this row of the cache.".to_owned(),
                        false => format!("Pass {} wrote this row of the cache.", wrote.pass),
                    });
                }
                self.result(kept);
            }
            Fold::Same { from } => {
                let (value, operand) = self.read(from)?;
                self.applied(operand, value);
                if site.stage == Stage::Nucleus {
                    self.note("The last filter of the sampler leaves these probabilities.");
                    self.folded.result = Some(value);
                    return Ok(());
                }
                let sizes = self.rules.sizes();
                if matches!(site.stage, Stage::XqRope | Stage::XkRope) {
                    self.note(format!(
                        "RoPE rotates only the first {} components of a head.",
                        2 * sizes.pairs
                    ));
                    self.result(value);
                    return Ok(());
                }
                let head = at / sizes.head_dim % sizes.heads;
                let (each, kv) = (
                    sizes.heads / sizes.kv_heads,
                    ops::attention::kv_head(head, sizes.heads, sizes.kv_heads),
                );
                self.note(format!(
                    "Query head {head} reads kv head {kv}: {each} query heads share one kv head, and {head} / {each} is rounded down."
                ));
                self.result(value);
            }
            Fold::Scale { x, head_dim, scale } => {
                let (value, operand) = self.read(x)?;
                let mut row = [value];
                ops::attention::scale_by(&mut row, head_dim, scale);
                self.applied(operand, value);
                self.applied(
                    match scale {
                        Some(by) => constant("the factor of the family", f64::from(by)),
                        None => constant("√C", (head_dim as f64).sqrt()),
                    },
                    row[0],
                );
                self.result(row[0]);
            }
            Fold::Cap { x, cap } => {
                let (value, operand) = self.read(x)?;
                let mut row = [value];
                ops::elementwise::cap(cap, self.precision, &mut row);
                self.applied(operand, value);
                self.applied(constant("the cap c, as c · tanh(x / c)", f64::from(cap)), row[0]);
                self.result(row[0]);
            }
            Fold::Activation { x, activation, numbers } => {
                let (value, operand) = self.read(x)?;
                let mut learned = [0.0; 2];
                self.applied(operand, value);
                for (at, learned) in learned.iter_mut().enumerate().filter(|_| numbers.is_some()) {
                    let Some(place) = numbers else { continue };
                    let operand;
                    (*learned, operand) = self.read(Cell { place, at })?;
                    let factor = ops::activation::xielu_numbers([*learned; 2], self.precision)[at];
                    self.applied(operand, factor);
                }
                let (mut out, arithmetic) = ([0.0], self.arithmetic);
                let silu = |x: &[f32], out: &mut [f32]| arithmetic.silu_all(x, out);
                ops::activation::activate(activation, silu, learned, self.precision, &[value], &mut out);
                self.applied(constant(activation.formula(), f64::from(out[0])), out[0]);
                self.result(out[0]);
            }
            Fold::Mask { x, seen } => {
                let (value, operand) = self.read(x)?;
                let mask = if seen { 0.0 } else { f32::NEG_INFINITY };
                let result = if seen { value } else { mask };
                self.applied(operand, value);
                self.applied(constant("the mask", f64::from(mask)), result);
                self.why_hidden(site, at, seen);
                self.result(result);
            }
            Fold::Softmax { x, at: of, temperature } => self.softmax(site, at, x, of, temperature)?,
            Fold::Add { a, b, by } => {
                let ((a, one), (b, other)) = (self.read(a)?, self.read(b)?);
                self.folded.is_sum = true;
                self.applied(one, a);
                if by == 1.0 {
                    self.applied(other, b);
                    self.result(a + b);
                    return Ok(());
                }
                let b = round::value(self.precision, b * by);
                self.term(vec![other, constant("the residual multiplier", f64::from(by))], f64::from(b));
                self.result(a + b);
            }
            Fold::Mul { a, b } => {
                let ((a, one), (b, other)) = (self.read(a)?, self.read(b)?);
                self.applied(one, a);
                self.applied(other, a * b);
                self.result(a * b);
            }
            Fold::Silu { gate } => {
                let (gate, operand) = self.read(gate)?;
                let result = self.arithmetic.silu(gate);
                self.applied(operand, gate);
                self.folded.figure = Some(Figure::Silu { x: f64::from(gate), y: f64::from(result) });
                let sigmoid = 1.0 / (1.0 + (-f64::from(gate)).exp());
                self.applied(constant("the sigmoid of the gate, 1 / (1 + e^−gate)", sigmoid), result);
                self.result(result);
            }
            Fold::Steps { x, scale } => {
                let ((x, one), (scale, other)) = (self.read(x)?, self.read(scale)?);
                self.applied(one, x);
                self.applied(other, x / scale);
                // Halves away from zero; NaN becomes 0.
                self.folded.result = Some(f32::from((x / scale).round() as i8));
                self.note("The quotient is rounded to a whole number, halves away from 0.");
            }
            Fold::Step { x } => {
                let values = self.operands.numbers(x)?;
                let (mut q8, mut scale) = (vec![0; values.len()], [0.0]);
                ops::quantize::quantize(&values, values.len().max(1), &mut q8, &mut scale);
                let mut terms: Vec<(usize, f32)> = values.iter().copied().enumerate().collect();
                terms.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
                for (i, value) in terms {
                    let operand = self.operand(x.cell(i), value);
                    self.applied(operand, value.abs() / 127.0);
                }
                self.folded.own = Some((1, "the other values of the group: none is further from 0"));
                self.folded.is_largest = true;
                self.note("The group's value that is furthest from 0 becomes 127 or −127 steps.");
                self.folded.result = Some(scale[0]);
            }
            Fold::Penalize { x, repeats, sampling } => self.penalize(x, repeats, sampling)?,
            Fold::Nucleus { probs, at, limits } => self.nucleus(probs, at, limits)?,
            Fold::Largest { x, at } => {
                let logits = self.operands.numbers(x)?;
                let largest = largest(&logits);
                let operand = self.operand(x.cell(at), logits[at]);
                self.applied(operand, logits[at]);
                if largest != at {
                    let operand = self.operand(x.cell(largest), logits[largest]);
                    self.applied(operand, logits[largest]);
                }
                self.note(match largest == at {
                    true => "At temperature 0 the largest logit gets probability 1: it is the logit of this token.",
                    false => "At temperature 0 the largest logit gets probability 1: it is the logit of the other token.",
                });
                self.folded.result = Some(if largest == at { 1.0 } else { 0.0 });
            }
            Fold::Draw { nucleus, random } => self.draw(site, nucleus, random)?,
        }
        Ok(())
    }

    fn norm(
        &mut self,
        x: Line,
        at: usize,
        (weight, bias): (Option<Cell>, Option<Cell>),
        form: Form,
    ) -> Result<()> {
        let mut values = self.operands.numbers(x)?;
        let operand = self.operand(x.cell(at), values[at]);
        self.applied(operand, values[at]);
        if form.centred {
            let (mean, all) = (ops::norm::mean(&values), values.clone());
            ops::norm::centre(&all, &mut values);
            self.applied(constant("minus the mean of the row", -f64::from(mean)), values[at]);
        }
        let weight = weight.map(|cell| self.read(cell)).transpose()?;
        let bias = bias.map(|cell| self.read(cell)).transpose()?;
        let eps = form.eps;
        let mean_square = self.arithmetic.dot(&values, &values) / values.len() as f32;
        let factor = 1.0 / (mean_square + eps).sqrt();
        // Only the weight of this component is used.
        let (mut weights, mut out) = (vec![0.0; values.len()], vec![0.0; values.len()]);
        weights[at] = weight.as_ref().map_or(1.0, |weight| weight.0);
        let inner = if form.rounded_once { Precision::F32 } else { self.precision };
        self.arithmetic.rms_norm(&values, &weights, eps, inner, &mut out);
        self.applied(constant("mean of the squares", f64::from(mean_square)), mean_square);
        self.applied(constant("ε", f64::from(eps)), mean_square + eps);
        self.applied(
            constant("factor, 1 / √(mean + ε)", f64::from(factor)),
            round::value(inner, values[at] * factor),
        );
        let mut result = out[at];
        if let Some((_, operand)) = weight {
            self.applied(operand, result);
        }
        if let Some((bias, operand)) = bias {
            result += bias;
            self.applied(operand, result);
        }
        self.folded.result = Some(round::value(self.precision, result));
        Ok(())
    }

    fn product(&mut self, a: Line, b: Line, bias: Option<Cell>) -> Result<()> {
        let (x, w) = (self.operands.numbers(a)?, self.operands.numbers(b)?);
        self.folded.is_sum = true;
        for (i, (&x, &w)) in x.iter().zip(&w).enumerate() {
            let operands = vec![self.operand(a.cell(i), x), self.operand(b.cell(i), w)];
            self.term(operands, f64::from(x) * f64::from(w));
        }
        // `attn_heads` is summed key by key; matrix rows and `qk` are summed in lanes.
        let mut sum = match b.step {
            1 => self.arithmetic.dot(&x, &w),
            _ => x.iter().zip(&w).fold(0.0, |sum, (x, w)| self.arithmetic.mul_add(*x, *w, sum)),
        };
        if let Some(bias) = bias {
            let (bias, operand) = self.read(bias)?;
            self.applied(operand, bias);
            sum += bias;
        }
        self.result(sum);
        Ok(())
    }

    fn int8(&mut self, x: Line, scales: Line, group: usize, w: Line, bias: Option<Cell>) -> Result<()> {
        let (values, scale) = (self.operands.numbers(x)?, self.operands.numbers(scales)?);
        let q8: Vec<i8> = values.iter().map(|&value| value as i8).collect();
        let (weights, mut sum) = self.operands.whole(w, &q8, &scale, group)?;
        self.folded.is_sum = true;
        for (i, (&x_value, &weight)) in values.iter().zip(&weights).enumerate() {
            let by = scale[i / group];
            let operands = vec![
                self.operand(x.cell(i), x_value),
                self.operand(scales.cell(i / group), by),
                self.operand(w.cell(i), weight),
            ];
            self.term(operands, f64::from(x_value) * f64::from(by) * f64::from(weight));
        }
        if let Some(bias) = bias {
            let (bias, operand) = self.read(bias)?;
            self.applied(operand, bias);
            sum += bias;
        }
        self.result(sum);
        Ok(())
    }

    fn rotate(
        &mut self,
        pair: [Cell; 2],
        (cos, sin): (Cell, Cell),
        second: bool,
        rounds_products: bool,
    ) -> Result<()> {
        let ((a, of_a), (b, of_b)) = (self.read(pair[0])?, self.read(pair[1])?);
        let turned = self.turned_by(cos);
        let ((cos, of_cos), (sin, of_sin)) = (self.read(cos)?, self.read(sin)?);
        let mut out = [0.0; 2];
        let inner = if rounds_products { self.precision } else { Precision::F32 };
        ops::rope::rope(&[a, b], &[cos], &[sin], Pairing::Neighbours, inner, &mut out);
        round::row(self.precision, &mut out);
        self.folded.is_sum = true;
        let round = |x: f32| f64::from(round::value(inner, x));
        let (one, other) = match second {
            false => {
                let minus = constant("sign", -1.0);
                ((vec![of_a, of_cos], round(a * cos)), (vec![of_b, of_sin, minus], -round(b * sin)))
            }
            true => ((vec![of_a, of_sin], round(a * sin)), (vec![of_b, of_cos], round(b * cos))),
        };
        self.term(one.0, one.1);
        self.term(other.0, other.1);
        let result = out[usize::from(second)];
        let lost = f64::from(result) - (one.1 + other.1);
        if self.precision == Precision::Bf16 && lost != 0.0 {
            self.term(vec![constant("rounding to bfloat16", lost)], lost);
        }
        self.note(format!("(a, b) = ({a}, {b}), rotated by {turned}, becomes ({}, {}).", out[0], out[1]));
        let [before, after] = [[a, b], out].map(|pair| pair.map(f64::from));
        self.folded.figure = Some(Figure::Rotation { before, after, angle: f64::from(sin.atan2(cos)) });
        self.folded.result = Some(result);
        Ok(())
    }

    /// The angle of the cosine `cos`, as text: position 4 × 0.1778 = 0.7113 radians.
    fn turned_by(&self, cos: Cell) -> String {
        let Place::Stage(site) = cos.place else { return "its angle".to_owned() };
        let pairs = self.rules.sizes().pairs;
        let start = self.rules.pass(site.pass).map_or(0, |dims| dims.start);
        let (position, frequency) = (start + cos.at / pairs, self.rules.angle(site, cos.at % pairs));
        let angle = position as f32 * frequency;
        format!("position {position} × {frequency:.6} = {angle:.4} radians")
    }

    fn softmax(
        &mut self,
        site: Site,
        cell: usize,
        x: Line,
        at: Option<usize>,
        temperature: f32,
    ) -> Result<()> {
        let values = self.operands.numbers(x)?;
        let Some(at) = at else {
            self.applied(constant("the share of a hidden key", 0.0), 0.0);
            self.why_hidden(site, cell, false);
            self.result(0.0);
            return Ok(());
        };
        let mut shares = values.clone();
        if site.stage == Stage::Probs {
            shares.iter_mut().for_each(|x| *x /= temperature);
        }
        let max = shares.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let exponentials: Vec<f64> = shares.iter().map(|&x| (f64::from(x) - f64::from(max)).exp()).collect();
        let total: f64 = exponentials.iter().sum();
        // Every sampler has the same arithmetic.
        match site.stage {
            Stage::Probs => ops::softmax::softmax(&mut shares),
            _ => self.arithmetic.softmax(&mut shares),
        }
        let operand = self.operand(x.cell(at), values[at]);
        self.applied(operand, values[at]);
        if temperature != 1.0 {
            self.applied(constant("temperature", f64::from(temperature)), values[at] / temperature);
        }
        self.applied(constant("maximum of the row", f64::from(max)), values[at] / temperature - max);
        self.term(vec![constant("exponential, e^(x − maximum)", exponentials[at])], exponentials[at]);
        self.term(vec![constant("sum of all exponentials", total)], f64::from(shares[at]));
        let own = self.folded.terms.len();
        self.folded.own = Some((own, "the others in that sum, each with its exponential"));
        let mut others: Vec<usize> = (0..values.len()).filter(|&i| i != at).collect();
        // Only the largest logits become terms; a term for each token of the vocabulary would take most of the time.
        let told = if self.most == 0 { others.len() } else { self.most.min(others.len()) };
        let larger = |&a: &usize, &b: &usize| exponentials[b].total_cmp(&exponentials[a]).then(a.cmp(&b));
        if told < others.len() {
            others.select_nth_unstable_by(told, larger);
            let small = others.split_off(told);
            let sum = small.iter().fold(0.0, |sum, &i| sum + exponentials[i]);
            self.folded.small = Small { count: small.len(), sum };
        }
        others.sort_by(larger);
        for i in others {
            let operand = self.operand(x.cell(i), values[i]);
            self.term(vec![operand], exponentials[i]);
        }
        // `probs` stay float32 in every precision.
        if site.stage == Stage::Probs {
            self.folded.result = Some(shares[at]);
        } else {
            self.result(shares[at]);
        }
        Ok(())
    }

    /// Adds a note on how many keys an output of a head uses, and how many are hidden.
    fn what_is_seen(&mut self, site: Site, at: usize, seen: usize) {
        let Some(dims) = self.rules.pass(site.pass) else { return };
        let sizes = self.rules.sizes();
        let (position, hidden) = (dims.start + at / (sizes.heads * sizes.head_dim), dims.keys() - seen);
        if hidden > 0 {
            self.note(format!(
                "The sum has one term for each key that the token at position {position} sees: {seen} of the {} keys. \
                 The token does not see the other {hidden} keys.",
                dims.keys()
            ));
        }
    }

    /// Adds a note on the token and the key of a mask's cell, and on why the key is hidden.
    fn why_hidden(&mut self, site: Site, at: usize, seen: bool) {
        let Some(dims) = self.rules.pass(site.pass) else { return };
        let (keys, tokens) = (dims.keys(), dims.tokens);
        let (position, key) = (dims.start + at / keys % tokens, at % keys);
        self.note(match (seen, self.rules.sizes().sees(site.layer)) {
            (true, _) => format!("The token at position {position} sees key {key}."),
            (false, _) if key > position => {
                format!("Key {key} comes after position {position}, so the token there must not see it.")
            }
            (false, Sees::Window(window)) => format!(
                "Key {key} has left the window of the token at position {position}: the token sees only {window} keys, including its own."
            ),
            (false, Sees::Chunk(chunk)) => format!(
                "Key {key} is not in the chunk of the token at position {position}: the token sees only the keys of its own {chunk} positions."
            ),
            (false, Sees::All) => format!("Key {key} is hidden from the token at position {position}."),
        });
    }
}

fn constant(name: &'static str, value: f64) -> Operand {
    Operand { from: From::Constant(name), value }
}
