//! The reach of an edit, compared with the numbers that it changes.

use std::collections::HashMap;

use llama_trace::model::Model;
use llama_trace::trace::{Frame, FrameData, PassDims, Site, Stage};
use llama_trace_core::edit::{Edit, Edits, Reach};
use llama_trace_core::testing::sampled;

use super::{MODELS, model, record};

const PROMPT: [u32; 5] = [1, 5, 9, 3, 7];

/// Edits whose first one is large enough to change almost every number that is computed from it. The others belong to
/// the run with which it is compared.
const LISTS: [&[&str]; 30] = [
    &["embedding[t=2,d=5] += 3"],
    &["rope_cos[t=2,i=1] += 1"],
    &["L0/attn_norm[t=1,d=4] += 3"],
    &["L0/xq[t=2,h=1,c=1] += 3"],
    &["L0/xk[t=1,c=2] += 3"],
    &["L1/xv[t=1,c=3] += 3"],
    &["L1/xq_rope[t=3,h=0,c=2] += 3"],
    &["L0/cache_k[k=1,c=0] += 3"],
    &["L1/cache_v[k=4] += 3"],
    &["L0/keys[h=1,k=2] += 3"],
    &["L0/values[h=1,k=2,c=3] += 3"],
    &["L0/qk[h=0,t=3,k=2] += 5"],
    &["L1/scores[h=2-3,k=1] += 2"],
    &["p0/L0/masked_scores[h=1,t=1,k=3] = 0.5"],
    &["L0/softmax[h=1,t=2,k=4] = 0.5"],
    &["L1/attn_heads[t=2,h=1,c=0] += 3"],
    &["L1/attn_output[t=2,d=7] += 3"],
    &["L0/attn_residual[t=3,d=3] += 3"],
    &["L1/ffn_gate[t=1,f=6] += 3"],
    &["L1/ffn_hidden[t=4,f=6] += 3"],
    &["L0/ffn_residual[t=3,d=3] += 3"],
    &["p1/L0/xk[c=2] += 3"],
    &["logits[t=2,v=3] += 30"],
    // With edits that open hidden keys, cut the way or mix tokens.
    &["L0/xv[t=3] += 3", "L0/mask off"],
    &["L0/values[k=3,c=1] += 3", "L0/softmax[h=0,q=1] = 0.3"],
    &["embedding[t=3,d=2] += 3", "L0/attn off", "L0/ffn off"],
    &["embedding[t=3,d=2] += 3", "L0 off"],
    &["embedding[t=3] += 3", "L1/attn_residual = mean"],
    &["rope_sin[t=3] += 3", "L0/rope off"],
    &["L0/xq[t=3,h=1,c=1] += 3", "L0/xq[h=0] = mean", "rope off"],
];

fn edited(plain: &Model, list: &[Edit]) -> (HashMap<Site, Frame>, Vec<PassDims>) {
    record(&plain.with_edits(Edits::new(list.to_vec())), &PROMPT)
}

#[test]
fn an_edit_reaches_every_number_that_it_changes_and_hardly_any_other() {
    let cases: Vec<_> = MODELS.iter().flat_map(|&name| LISTS.map(|list| (name, list))).collect();
    let (mut reached, mut changed) = (0_usize, 0_usize);
    for (name, texts) in sampled("edits whose reach is compared with what they change", cases, 40) {
        let list: Vec<Edit> = texts.iter().map(|text| Edit::parse(text).unwrap()).collect();
        let plain = model(name);
        let (after, passes) = edited(&plain, &list);
        let (before, _) = edited(&plain, &list[1..]);
        let reach = Reach::new((&list, 0), &plain.card(), 0, &passes);
        for (site, frame) in &after {
            let (FrameData::F32(after), FrameData::F32(before)) = (&frame.data, &before[site].data) else {
                continue;
            };
            for ((index, after), before) in after.indexed_iter().zip(before) {
                let differs = after.to_bits() != before.to_bits();
                let can_differ = reach.contains(*site, ndarray::Dimension::slice(&index));
                assert!(can_differ || !differs, "{name}, {texts:?}: {site} {index:?} is not reached");
                // A later pass reads a sampled token that may be the same, and most probabilities of the sampler are 0.
                let counts = site.pass == 0 && site.stage <= Stage::Logits;
                reached += usize::from(can_differ && counts);
                changed += usize::from(differs && counts);
            }
        }
    }
    assert!(
        changed > 1000 && reached - changed < reached / 50,
        "{changed} of {reached} reached numbers change"
    );
}
