//! Edits on the CUDA backend.

use llama_trace_core::edit::{Edit, Edits};

use super::*;

fn edited(model: &Model, texts: &[&str]) -> Model {
    model.with_edits(Edits::new(texts.iter().map(|text| Edit::parse(text).unwrap()).collect()))
}

/// Edits of stages inside and outside fused operations, in the cache, inside attention and in the head.
const EDITS: [&str; 9] = [
    "embedding[t=1] *= 2",
    "L0/xk[pos=2] = 0",
    "L1/rope off",
    "L0/softmax[h=1] = 0",
    "L1/values[h=0] *= -1",
    "L0/attn_residual[d=3] += 1",
    "L1/ffn_silu[f=2-5] = mean",
    "L0/ffn_down = mean",
    "logits[v=7] += 3",
];

#[test]
fn edited_stages_agree_with_the_cpus() {
    for checkpoint in checkpoints().take(3) {
        for (precision, bound) in [(Precision::F32, 1e-5), (Precision::Bf16, 3e-2)] {
            let Some((cuda, cpu)) = both(&checkpoint, precision) else { return };
            let alone = EDITS.iter().map(|edit| vec![*edit]);
            let sets = alone.chain([EDITS.to_vec()]);
            for edits in sampled("edits on the GPU", sets, 4) {
                let (cuda, cpu) = (edited(&cuda, &edits), edited(&cpu, &edits));
                let (found, logits) = run(&cuda, 5, Some(&Select::all()));
                let (expected, _) = run(&cpu, 5, Some(&Select::all()));
                assert_eq!(found.len(), expected.len());
                for (site, frame) in &found {
                    let apart = apart(frame, &expected[site]);
                    assert!(apart <= bound, "{edits:?}: {site}, {precision:?}: {apart}");
                }
                // Recorded or not, the bits are the same.
                assert_eq!(run(&cuda, 5, None).1, logits, "{edits:?}, {precision:?}");
                let cells = |model: &Model| {
                    model
                        .edits
                        .changes()
                        .iter()
                        .map(|changed| changed.as_ref().unwrap().cells)
                        .collect::<Vec<_>>()
                };
                assert_eq!(cells(&cuda), cells(&cpu), "{edits:?}");
            }
        }
    }
}

#[test]
fn before_an_edit_the_bits_are_those_of_the_plain_run() {
    let checkpoint = checkpoints().next().unwrap();
    let Some((cuda, _)) = both(&checkpoint, Precision::F32) else { return };
    let (plain, _) = run(&cuda, 5, Some(&Select::all()));
    for (text, last) in [
        ("L1/attn_residual[d=0] += 1", Stage::AttnOutput),
        ("L1/ffn_silu *= 2", Stage::FfnGate),
        ("L1/softmax *= 2", Stage::MaskedScores),
        ("L1/xk *= 2", Stage::Xq),
    ] {
        let (frames, _) = run(&edited(&cuda, &[text]), 5, Some(&Select::all()));
        let mut same = 0;
        for (site, frame) in plain.iter().filter(|(site, _)| site.pass == 0) {
            let before = match site.layer {
                Some(layer) => layer == 0 || layer == 1 && site.stage <= last,
                None => site.stage <= Stage::Mask,
            };
            // Attention with edits runs on the host, where scores are within a bound.
            let inside = text.contains("softmax") && site.layer == Some(1) && site.stage >= Stage::Keys;
            if before && !inside {
                assert_same(&frames[site], frame, text);
                same += 1;
            }
        }
        assert!(same > 20, "{text}: {same}");
    }
}
