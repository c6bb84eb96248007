//! `diff` names the mistakes that ports of other families make, each at its own stage.

use std::collections::BTreeSet;

use llama_trace::backend::cpu::Cpu;
use llama_trace::checkpoint;
use llama_trace::model::Model;

use super::common::fixture;
use super::diff::{judged, of_modules, run, verdict};
use super::port::Port;

const IDS: [u32; 9] = super::diff::IDS;

/// Each mistake: its family, the stage that shows it first, and the first one among the outputs of transformers' modules.
/// Then the other names that may explain these values as well.
pub(super) const BUGS: [(&str, &str, &str, &str, &[&str]); 33] = [
    ("norm_weight_as_stored", "gemma2", "p0/L0/attn_norm", "p0/L0/attn_norm", &[]),
    ("norm_weight_as_stored", "gemma3", "p0/L0/attn_norm", "p0/L0/attn_norm", &[]),
    ("softcap_late", "gemma2", "p0/L0/masked_scores", "p0/L0/softmax", &[]),
    ("softcap_missing", "gemma2", "p0/L0/masked_scores", "p0/L0/softmax", &[]),
    ("softcap_missing:logits", "gemma2", "p0/capped_logits", "p0/capped_logits", &[]),
    ("attention_scale", "gemma2", "p0/L0/scores", "p0/L0/softmax", &[]),
    ("attention_scale:root", "gemma2", "p0/L0/scores", "p0/L0/softmax", &[]),
    ("attention_scale:root", "granite", "p0/L0/scores", "p0/L0/softmax", &[]),
    ("embedding_scale:missing", "gemma2", "p0/embedding", "p0/embedding", &[]),
    ("embedding_scale:missing", "granite", "p0/embedding", "p0/embedding", &[]),
    ("residual_scale", "granite", "p0/L0/attn_residual", "p0/L0/attn_residual", &[]),
    ("logit_scale", "granite", "p0/logits", "p0/logits", &[]),
    ("logit_scale:divided", "granite", "p0/logits", "p0/logits", &[]),
    ("logit_scale", "cohere2", "p0/logits", "p0/logits", &[]),
    ("post_norm_place", "gemma2", "p0/L0/post_attn_norm", "p0/L0/post_attn_norm", &[]),
    ("post_norm_place", "olmo2", "p0/L0/post_attn_norm", "p0/L0/post_attn_norm", &[]),
    ("post_norm_place:hidden", "olmo2", "p0/L0/attn_residual", "p0/L0/attn_residual", &[]),
    ("norm_weights_swapped:after", "gemma2", "p0/L0/ffn_norm", "p0/L0/ffn_norm", &[]),
    ("qk_norm_width", "olmo2", "p0/L0/xq_norm", "p0/L0/xq_norm", &[]),
    ("norm_mean_missing", "cohere2", "p0/L0/attn_norm", "p0/L0/attn_norm", &[]),
    ("activation", "gemma2", "p0/L0/ffn_act", "p0/L0/ffn_act", &[]),
    ("gate_up_swapped:halves", "gemma2", "p0/L0/ffn_act", "p0/L0/ffn_act", &[]),
    ("window", "smollm3", "p0/L1/masked_scores", "p0/L1/softmax", &[]),
    ("window:short", "gemma2", "p0/L0/masked_scores", "p0/L0/softmax", &[]),
    ("window:wide", "smollm3", "p0/L1/masked_scores", "p0/L1/softmax", &[]),
    ("window:everywhere", "gemma2", "p0/L1/masked_scores", "p0/L1/softmax", &[]),
    ("rope_theta:global", "gemma3", "p0/L0/rope_cos", "p0/L0/softmax", &[]),
    ("rope_frequency", "gemma3", "p0/L0/rope_cos", "p0/L0/softmax", &[]),
    ("qk_norm_place", "gemma3", "p0/L0/xq_rope", "p0/L0/softmax", &["norm_missing"]),
    ("qk_norm_place", "hunyuan", "p0/L0/xq_rope", "p0/L0/softmax", &[]),
    ("rope_layers", "smollm3", "p0/L1/keys", "p0/L1/softmax", &[]),
    ("rope_layers:exchanged", "smollm3", "p0/L0/keys", "p0/L0/softmax", &["rope_missing"]),
    ("rope_layers", "cohere2", "p0/L3/keys", "p0/L3/softmax", &[]),
];

const FAMILIES: [&str; 7] = ["gemma2", "gemma3", "granite", "smollm3", "olmo2", "cohere2", "hunyuan"];

fn model(family: &str) -> Model {
    let checkpoint = checkpoint::open(&fixture(&format!("families/{family}"))).unwrap();
    Model::load(&checkpoint, Cpu::default()).unwrap()
}

fn port(family: &str, model: &Model, bug: &'static str) -> Port {
    Port::new(&format!("../families/{family}"), &model.config, bug)
}

#[test]
fn a_port_of_a_family_without_a_mistake_is_the_same() {
    for family in FAMILIES {
        let model = model(family);
        let (a, b) = (run(&model), port(family, &model, "").run(&IDS));
        let report = judged(&model, &a, &b);
        assert!(report.same() && report.diagnosis.is_empty(), "{family}: {:?}", report.first);
        let missing: Vec<_> = report.missing.iter().map(|missing| missing.site.stage).collect();
        let copies = ["cache_k", "cache_v", "mask", "probs", "nucleus", "sampled"];
        assert!(missing.iter().all(|stage| copies.contains(&stage.name())), "{family}: {missing:?}");
    }
}

#[test]
fn a_mistake_in_a_family_is_named_and_no_other() {
    for (bug, family, address, shown, others) in BUGS {
        let model = model(family);
        let (a, b) = (run(&model), port(family, &model, bug).run(&IDS));
        let name = bug.split(':').next().unwrap();
        let expected: BTreeSet<_> = others.iter().copied().chain([name]).collect();
        for (b, address) in [(b.clone(), address), (of_modules(&b), shown)] {
            let report = judged(&model, &a, &b);
            let (_, found, names) = verdict(&report);
            assert_eq!(found, address, "{bug} of {family}");
            let only = names.contains(name) && names.is_subset(&expected);
            assert!(only, "{bug} of {family} at {found}: {:?}", report.diagnosis);
            let one = report.diagnosis.iter().find(|one| one.name == name).unwrap();
            assert!(one.after < one.before / 8.0, "{bug} of {family}: {one:?}");
        }
    }
}
