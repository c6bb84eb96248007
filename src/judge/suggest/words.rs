//! The stage that a file's name states, or that its words suggest.

use llama_trace_core::trace::Stage;

/// Returns whether a file has the stage's name in this program or in transformers. It then holds that stage, even if
/// the values are wrong.
pub(super) fn calls(pattern: &str, stage: Stage) -> bool {
    let stem = pattern.strip_suffix(".npy").unwrap_or(pattern);
    let module = stage.info().aliases.hugging_face;
    let is_module = !module.is_empty() && (stem == module || stem.ends_with(&format!(".{module}")));
    is_module || stem.split(['/', '.', '-', '{', '}']).any(|part| part == stage.name())
}

/// The stage whose name the file has.
pub(super) fn called(pattern: &str) -> Option<Stage> {
    Stage::ALL.iter().copied().find(|stage| calls(pattern, *stage))
}

/// The stage that the words of a name suggest. Names of ports are not always exact: values have priority.
pub(super) fn hinted(pattern: &str, has_layer: bool) -> Option<Stage> {
    if let Some(stage) = called(pattern) {
        return Some(stage);
    }
    let text: String = apart(pattern.strip_suffix(".npy").unwrap_or(pattern)).to_lowercase();
    // `{pass}` and `{layer}` are not words.
    let words: Vec<&str> = text
        .split(['{', '}'])
        .enumerate()
        .filter(|(at, _)| at % 2 == 0)
        .flat_map(|(_, part)| part.split(|c: char| !c.is_ascii_alphanumeric()))
        .filter(|word| !word.is_empty())
        .flat_map(parts)
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
        () if has(&["ln1", "norm1", "input"]) || norm && attention && !has(&["post"]) => Stage::AttnNorm,
        () if has(&["ln2", "norm2"]) || norm && (ffn || has(&["post"])) => Stage::FfnNorm,
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
        () if ffn && has(&["inp"]) => Stage::AttnResidual,
        () if has(&["resid1", "res1", "residual1"]) || after && attention => Stage::AttnResidual,
        () if has(&["resid2", "res2", "residual2"]) => Stage::FfnResidual,
        () if after && ffn => Stage::FfnResidual,
        () if has(&["softmax", "soft", "probs", "pattern", "weights"]) => Stage::Softmax,
        () if has(&["scores", "score", "qk", "kq"]) => Stage::Scores,
        () if has(&["gate"]) && has(&["par"]) => Stage::FfnHidden,
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

/// The name with `_` between words that only capitals separate: `block{layer}AfterMlp`, `FFNDown{layer}`.
fn apart(name: &str) -> String {
    let mut text = String::new();
    let mut last = ' ';
    let mut rest = name.chars().peekable();
    while let Some(c) = rest.next() {
        let ends_capitals = last.is_ascii_uppercase() && rest.peek().is_some_and(char::is_ascii_lowercase);
        if c.is_ascii_uppercase() && (last.is_ascii_lowercase() || ends_capitals) {
            text.push('_');
        }
        text.push(c);
        last = c;
    }
    text
}

/// Words that names join without a separator: `ffndown`, `attnout`, `qrope`.
const JOINED: [&str; 60] = [
    "activation",
    "after",
    "attention",
    "attn",
    "block",
    "context",
    "ctx",
    "down",
    "embd",
    "embed",
    "embedding",
    "embeddings",
    "feed",
    "ffn",
    "final",
    "forward",
    "gate",
    "gated",
    "head",
    "heads",
    "hidden",
    "input",
    "k",
    "key",
    "layer",
    "layernorm",
    "lm",
    "ln",
    "logits",
    "mid",
    "middle",
    "mlp",
    "norm",
    "o",
    "out",
    "output",
    "post",
    "pre",
    "prev",
    "probs",
    "proj",
    "q",
    "qkv",
    "query",
    "resid",
    "residual",
    "rmsnorm",
    "rope",
    "rot",
    "scores",
    "silu",
    "softmax",
    "states",
    "swiglu",
    "tok",
    "token",
    "up",
    "v",
    "value",
    "weights",
];

/// The parts of a word: the fewest joined words that make it up, if one of them is longer than two letters, or else the
/// word itself.
fn parts(word: &str) -> Vec<&str> {
    /// The length of the longest word that is split.
    const LETTERS: usize = 40;
    if JOINED.contains(&word) || word.len() > LETTERS || !word.is_ascii() {
        return vec![word];
    }
    // The best split of each prefix of the word.
    let mut ways: Vec<Option<Vec<&str>>> = vec![None; word.len() + 1];
    ways[0] = Some(Vec::new());
    for end in 1..=word.len() {
        let with = |start: usize| {
            let (before, last) = (ways[start].as_ref()?, &word[start..end]);
            JOINED.contains(&last).then(|| [&before[..], &[last]].concat())
        };
        ways[end] = (0..end).filter_map(with).min_by_key(Vec::len);
    }
    let is_told = |parts: &Vec<&str>| parts.iter().any(|part| part.len() > 2);
    ways.pop().flatten().filter(is_told).unwrap_or_else(|| vec![word])
}

/// Returns whether a known mistake gives the stage `named` the values of `stage`.
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
            ("ffnDown{layer}.npy", Some(Stage::FfnDown)),
            ("layer{layer}FFNDown.npy", Some(Stage::FfnDown)),
            ("L{layer}_FFNDOWN.npy", Some(Stage::FfnDown)),
            ("layer{layer}.krope.npy", Some(Stage::XkRope)),
            ("l{layer}_attnresid.npy", Some(Stage::AttnResidual)),
            ("postattentionlayernorm{layer}.npy", Some(Stage::FfnNorm)),
            ("ffn_inp-{layer}.npy", Some(Stage::AttnResidual)),
            ("ffn_gate_par-{layer}.npy", Some(Stage::FfnHidden)),
            ("hook{layer}.npy", None),
            ("prev_{layer}.npy", None),
            ("attnqkv{layer}.npy", None),
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
