//! What the name of a file says: surely, where it is a stage's own or a module's, and likely, by its words.

use llama_trace_core::trace::Stage;

/// Whether a file of this name is called as the stage is here or in transformers: who calls it so means that stage, whatever is
/// wrong with the values.
pub(super) fn calls(pattern: &str, stage: Stage) -> bool {
    let stem = pattern.strip_suffix(".npy").unwrap_or(pattern);
    let module = stage.info().aliases.hugging_face;
    let is_module = !module.is_empty() && (stem == module || stem.ends_with(&format!(".{module}")));
    is_module || stem.split(['/', '.', '-', '{', '}']).any(|part| part == stage.name())
}

/// The stage whose name it is.
pub(super) fn called(pattern: &str) -> Option<Stage> {
    Stage::ALL.iter().copied().find(|stage| calls(pattern, *stage))
}

/// The stage that the words of a name speak of, where they do. Who ports something writes what others write, and is not
/// always exact: values come first.
pub(super) fn hinted(pattern: &str, has_layer: bool) -> Option<Stage> {
    if let Some(stage) = called(pattern) {
        return Some(stage);
    }
    let text: String = apart(pattern.strip_suffix(".npy").unwrap_or(pattern)).to_lowercase();
    // Places are no words, and what stands before the layer's number names the layer.
    let words: Vec<&str> = text
        .split(['{', '}'])
        .enumerate()
        .filter(|(at, _)| at % 2 == 0)
        .flat_map(|(_, part)| part.split(|c: char| !c.is_ascii_alphanumeric()))
        .filter(|word| !word.is_empty())
        .collect();
    let has = |any: &[&str]| words.iter().any(|word| any.contains(word));
    let norm = has(&["norm", "ln", "layernorm", "rmsnorm", "normed"]);
    let attention = has(&["attn", "attention", "sa"]);
    let ffn = has(&["mlp", "ffn", "ff", "feed"]);
    let out = has(&["out", "output", "o", "proj", "result"]);
    let after = has(&["after", "resid", "residual"]);
    let turned = has(&["rope", "rot", "roped", "rotated", "rotary", "turned", "post", "after"]);
    if !has_layer {
        return Some(match () {
            () if has(&["cos", "cosine"]) => Stage::RopeCos,
            () if has(&["sin", "sine"]) => Stage::RopeSin,
            () if has(&["mask"]) => Stage::Mask,
            () if has(&["embed", "embedding", "embeddings", "emb", "embd", "wte", "embeds"]) => {
                Stage::Embedding
            }
            () if has(&["logits", "logit", "head", "lm"]) => Stage::Logits,
            () if norm || has(&["lnf"]) => Stage::FinalNorm,
            () => return None,
        });
    }
    Some(match () {
        () if has(&["ln1", "norm1", "input"]) || norm && attention => Stage::AttnNorm,
        () if has(&["ln2", "norm2"]) || norm && (ffn || attention || has(&["post"])) => Stage::FfnNorm,
        () if norm => return None,
        () if has(&["q", "query", "queries", "wq", "qcur", "xq"]) => {
            if turned {
                Stage::XqRope
            } else {
                Stage::Xq
            }
        }
        () if has(&["k", "key", "keys", "wk", "kcur", "xk"]) => {
            if turned {
                Stage::XkRope
            } else {
                Stage::Xk
            }
        }
        () if has(&["v", "value", "values", "wv", "vcur", "xv"]) => Stage::Xv,
        () if after && attention => Stage::AttnResidual,
        () if after && ffn => Stage::FfnResidual,
        () if has(&["softmax", "soft", "probs", "pattern", "weights"]) => Stage::Softmax,
        () if has(&["scores", "score", "qk", "kq"]) => Stage::Scores,
        () if has(&["gate", "w1"]) => Stage::FfnGate,
        () if has(&["up", "w3"]) => Stage::FfnUp,
        () if has(&["silu", "swish", "act", "activation"]) => Stage::FfnSilu,
        () if has(&["swiglu", "gated"]) => Stage::FfnHidden,
        () if has(&["down", "w2"]) || ffn => Stage::FfnDown,
        () if has(&["mid", "middle", "inp"]) => Stage::AttnResidual,
        () if has(&["wo", "o"]) || attention && out => Stage::AttnOutput,
        () if has(&["heads", "z", "ctx", "context"]) => Stage::AttnHeads,
        () if has(&["hidden", "states", "resid", "residual", "out", "output", "stream"]) => {
            Stage::FfnResidual
        }
        () if words.iter().all(|word| {
            ["layer", "layers", "block", "blocks", "blk", "l", "h", "x", "p", "pass"].contains(word)
        }) =>
        {
            Stage::FfnResidual
        }
        () => return None,
    })
}

/// A name with a place between its words where capitals alone show it: `block{layer}AfterMlp`.
fn apart(name: &str) -> String {
    let mut text = String::new();
    let mut last = ' ';
    for c in name.chars() {
        if c.is_ascii_uppercase() && last.is_ascii_lowercase() {
            text.push('_');
        }
        text.push(c);
        last = c;
    }
    text
}

/// Whether a known mistake gives the stage that a file's name speaks of the values of another one.
pub(super) fn may_look_like(named: Stage, stage: Stage) -> bool {
    use Stage::{
        AttnNorm, AttnOutput, AttnResidual, FfnDown, FfnGate, FfnHidden, FfnNorm, FfnResidual, FfnSilu,
        FfnUp, MaskedScores, Qk, Scores, Xk, XkNorm, XkRope, Xq, XqNorm, XqRope, Xv,
    };
    matches!(
        (named, stage),
        (FfnGate | FfnHidden, FfnUp)
            | (FfnUp | FfnSilu, FfnGate)
            | (Xk | XkRope, Xv)
            | (Xv | XkRope | XkNorm, Xk)
            | (XqRope | XqNorm, Xq)
            | (XqRope, XqNorm)
            | (XkRope, XkNorm)
            | (Scores, Qk)
            | (MaskedScores, Scores)
            | (AttnResidual, AttnOutput)
            | (FfnResidual, FfnDown)
            | (FfnNorm, AttnResidual | AttnNorm)
            | (AttnNorm, FfnNorm)
            | (FfnHidden, FfnSilu)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_ports_have_speak_of_their_stage() {
        for (name, stage) in [
            ("blocks.{layer}.hook_resid_post.npy", Some(Stage::FfnResidual)),
            ("hidden_states.{layer+1}.npy", Some(Stage::FfnResidual)),
            ("h{layer}.npy", Some(Stage::FfnResidual)),
            ("layer{layer}_out.npy", Some(Stage::FfnResidual)),
            ("l{layer}.q_rot.npy", Some(Stage::XqRope)),
            ("blk.{layer}.attn_q.npy", Some(Stage::Xq)),
            ("layers.{layer}.mlp_out.npy", Some(Stage::FfnDown)),
            ("l{layer}/attn_out.npy", Some(Stage::AttnOutput)),
            ("model.layers.{layer}.self_attn.o_proj.npy", Some(Stage::AttnOutput)),
            ("l{layer}.ffn_norm.npy", Some(Stage::FfnNorm)),
            ("l{layer}.ln1.npy", Some(Stage::AttnNorm)),
            ("l{layer}.zz9.npy", None),
            ("block{layer}AfterAttn.npy", Some(Stage::AttnResidual)),
            ("block{layer}AfterMlp.npy", Some(Stage::FfnResidual)),
            ("after_ffn_{layer}.npy", Some(Stage::FfnResidual)),
            ("KQ_soft-{layer}.npy", Some(Stage::Softmax)),
            ("kq_soft_max-{layer}.npy", Some(Stage::Softmax)),
        ] {
            assert_eq!(hinted(name, true), stage, "{name}");
        }
        for (name, stage) in [
            ("tok_embeddings.npy", Some(Stage::Embedding)),
            ("ln_f.npy", Some(Stage::FinalNorm)),
            ("lm_head_out.npy", Some(Stage::Logits)),
            ("normOut.npy", Some(Stage::FinalNorm)),
            ("tokEmb.npy", Some(Stage::Embedding)),
            ("foo.npy", None),
        ] {
            assert_eq!(hinted(name, false), stage, "{name}");
        }
    }
}
