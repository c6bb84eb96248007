//! Checks of the edits of a model: an edit that writes the values that are there changes nothing, and nothing before an
//! edit changes.

use super::row_hashes::{RowHasher, RowHashes};
use super::{Check, Runs};
use llama_trace_core::edit::{Edit, Edits, Operand, Operator, Part};
use llama_trace_core::error::Result;
use llama_trace_core::trace::{Address, Site, Stage, Step};
use llama_trace_engine::backend::{Operation, REORDER_TOLERANCE};
use llama_trace_engine::model::Model;

/// The checks of the edits of `edited`; none without edits. `plain` and `logits` are the hashes and the last logits of
/// each pass of the run without edits.
pub(super) fn check(
    run: &Runs<'_>,
    edited: &Model,
    plain: &RowHashes,
    logits: &[Vec<u32>],
) -> Result<Vec<Check>> {
    if edited.edits.is_empty() {
        return Ok(Vec::new());
    }
    let mut checks = Vec::new();
    for edit in edited.edits.list() {
        let same = |part: &Part| Part {
            operator: Operator::Multiply,
            operand: Operand::Number(1.0),
            ..part.clone()
        };
        let same = Edit { text: edit.text.clone(), parts: edit.parts.iter().map(same).collect() };
        let stage = edit.parts[0].place.stage;
        let (hashes, last) = hashes(run, &run.model.with_edits(Edits::new(vec![same])))?;
        // On a device, attention with edits runs on the host.
        let is_exact =
            run.model.backend.bit_exact(Operation::Attention) && run.model.backend.bit_exact(Operation::Mul);
        let mut check = Check::new("edit:same", if is_exact { 0.0 } else { REORDER_TOLERANCE });
        if is_exact {
            plain.compare(&hashes, run.model, &mut check);
        } else {
            for (pass, (plain, edited)) in logits.iter().zip(&last).enumerate() {
                check.see(distance(plain, edited), || {
                    Address::of(Site::once(pass, Stage::Logits), Step::Stage(Stage::Logits), &[])
                });
            }
        }
        check.at = check.at.or_else(|| Some(Address::of(Site::once(0, stage), Step::Stage(stage), &[])));
        checks.push(check);
    }
    let (hashes, _) = hashes(run, edited)?;
    let mut check = Check::new("edit:before", 0.0);
    match plain.first(|site| edited.edits.touches(site)) {
        Some(first) => plain.before(first).compare(&hashes.before(first), run.model, &mut check),
        None => check = Check::skipped("edit:before", "the passes of this check have no edited stage"),
    }
    checks.push(check);
    Ok(checks)
}

/// The hashes of all rows, and the last logits of each pass, of a run with `model`.
fn hashes(run: &Runs<'_>, model: &Model) -> Result<(RowHashes, Vec<Vec<u32>>)> {
    let (mut all, mut logits) = (RowHashes::default(), Vec::new());
    let run = Runs { model, ids: run.ids, done: Default::default(), progress: &|_, _| {} };
    run.passes(
        |_, _| RowHasher::new(|| {}),
        |probe, last| {
            all.extend(probe.hashes);
            logits.push(last);
            Ok(())
        },
    )?;
    Ok((all, logits))
}

/// The relative L2 distance of two rows of float32 bits.
fn distance(a: &[u32], b: &[u32]) -> f64 {
    let values = |bits: &[u32]| bits.iter().map(|&bits| f64::from(f32::from_bits(bits))).collect::<Vec<_>>();
    let (a, b) = (values(a), values(b));
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>();
    let apart = square(&mut a.iter().zip(&b).map(|(a, b)| a - b));
    (apart / square(&mut a.iter().copied())).sqrt()
}
