//! Questions of the derivation to the source, and their answers.

use llama_trace_core::trace::explanation::{Explanation, ExplanationAt, From, Operand};
use llama_trace_core::trace::{Address, Axis, Query, Run, Subject, Weight, WeightRows};

use super::app::App;

/// Maximum number of terms that are listed one by one.
const TERMS: usize = 32;

impl App {
    /// The question for the derivation of the number under the cursor.
    pub(super) fn number_at_cursor(&self) -> ExplanationAt {
        let step = self.place.step;
        let shape = self.outline.card.sizes().shape(step.stage().axes(), self.dims());
        let index = step.index_in_stage(&self.index(), &shape);
        let at = index.iter().zip(&shape).fold(0, |at, (index, length)| at * length + index);
        ExplanationAt { site: self.place.site(), at, terms: TERMS }
    }

    /// The questions of the open derivation.
    pub(super) fn derivation_questions(&self) -> Vec<Query> {
        let Some(derivation) = &self.derivation else { return Vec::new() };
        let row = derivation.weight.as_ref().and_then(|weight| self.weight_row(weight));
        let number = derivation.of.map(Query::Explanation);
        number.into_iter().chain(row.map(Query::Rows)).collect()
    }

    /// The question for the row of a weight that has the value at `address`.
    pub(super) fn weight_row(&self, address: &Address) -> Option<WeightRows> {
        let Some(Subject::Weight(weight)) = address.subject else { return None };
        let row = match weight.axes() {
            [_, _] => address.index.first()?.1,
            _ => 0,
        };
        let run: Run = self.outline.run;
        Some(WeightRows { run, layer: address.layer, weight, rows: row..row + 1 })
    }

    /// The values of the weight's row, or the reason of a failure; none until they are known.
    pub fn weight_values(&self, address: &Address) -> Option<Result<&[f32], &str>> {
        self.answers.get(&self.weight_row(address)?)
    }

    /// The explanation of the number, or the reason of a failure; none until it is known.
    pub fn explanation(&self) -> Option<Result<&Explanation, &str>> {
        self.answers.get(&self.derivation.as_ref()?.of?)
    }

    /// The chosen term and operand; by default the first operand that the run computed.
    pub fn chosen_operand(&self) -> Option<(usize, usize)> {
        let explanation = self.explanation()?.ok()?;
        let exists = |&(term, operand): &(usize, usize)| {
            explanation.terms.get(term).is_some_and(|term| operand < term.operands.len())
        };
        self.derivation.as_ref()?.chosen.filter(exists).or_else(|| leading_back(explanation))
    }

    /// The text of the token at `index` on `axis` of an address.
    pub fn text_in(&self, address: &Address, axis: Axis, index: usize) -> Option<String> {
        match axis {
            Axis::Token => {
                let pass = self.outline.passes.get(address.pass.unwrap_or(self.place.pass))?;
                Some(pass.tokens.get(index)?.text.clone())
            }
            Axis::Key => Some(self.position(index)?.text.clone()),
            Axis::Vocab => self.answers.text(u32::try_from(index).ok()?).map(str::to_owned),
            _ => None,
        }
    }

    /// The ids of the vocabulary in the derivation.
    pub(super) fn ids_in_derivation(&self) -> impl Iterator<Item = u32> {
        let explanation = self.explanation().and_then(Result::ok);
        let operands = explanation.into_iter().flat_map(|of| of.terms.iter().flat_map(|term| &term.operands));
        let addresses = operands.filter_map(|operand| address_of(operand));
        let own = explanation.map(|of| &of.address);
        let weight = self.derivation.as_ref().and_then(|derivation| derivation.weight.as_ref());
        addresses.chain(own).chain(weight).filter_map(|address| {
            let letters = address.subject?.letters();
            let (letter, _) = letters.into_iter().find(|(_, axis)| *axis == Axis::Vocab)?;
            let (_, index) = address.index.iter().find(|(other, _)| *other == letter)?;
            u32::try_from(*index).ok()
        })
    }
}

/// The address of an operand; none if the operand is a constant.
pub fn address_of(operand: &Operand) -> Option<&Address> {
    match &operand.from {
        From::Stage(address) | From::Weight(address) => Some(address),
        From::Constant(_) => None,
    }
}

/// The default operand: the first computed number among the terms, which are sorted by size. If there is none: the
/// embedding table for an id, or else the first operand.
fn leading_back(explanation: &Explanation) -> Option<(usize, usize)> {
    let all = || {
        let terms = explanation.terms.iter().enumerate();
        terms.flat_map(|(t, term)| term.operands.iter().enumerate().map(move |(o, one)| ((t, o), one)))
    };
    let computed = |operand: &Operand| match &operand.from {
        From::Stage(address) => {
            !matches!(address.subject, Some(Subject::Step(step)) if step.stage().is_ids())
        }
        _ => false,
    };
    let is_table = |operand: &Operand| {
        let table = |weight: Weight| weight.axes().first() == Some(&Axis::Vocab);
        matches!(&operand.from, From::Weight(Address { subject: Some(Subject::Weight(weight)), .. }) if table(*weight))
    };
    let first = |wanted: &dyn Fn(&Operand) -> bool| all().find(|(_, one)| wanted(one)).map(|(at, _)| at);
    first(&computed).or_else(|| first(&is_table)).or_else(|| first(&|_| true))
}
