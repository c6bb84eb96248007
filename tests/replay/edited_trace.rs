//! Edits of a trace without its model: up to the next product with weights, they have the bits of the model's run.

use std::path::Path;
use std::sync::Arc;

use llama_trace::backend::cpu::Cpu;
use llama_trace::checkpoint;
use llama_trace::config::Precision;
use llama_trace::model::Model;
use llama_trace::record::{Keep, Trace};
use llama_trace::replay::{DEFAULT_MEMORY, Recorded};
use llama_trace::trace::{Answer, Frame, Query, Region, Run, Site, Source, Stage};
use llama_trace_core::edit::{Edit, Edits};
use llama_trace_core::error::Result;

use super::common::fixture;
use super::recorded::record_with;
use super::{ask, assert_same, model, record, sampler};

const PROMPT: [u32; 5] = [1, 5, 9, 3, 7];

/// A trace that keeps as little as possible.
fn trace_of(model: &Model, folder: &Path) -> Recorded {
    let path = folder.join("run.trace");
    record_with(model, sampler().sampling(), &PROMPT, Keep::Minimal, &path);
    Recorded::new(Arc::new(Trace::open(&path).unwrap()), None, None, DEFAULT_MEMORY)
}

fn edits(texts: &[&str]) -> Edits {
    Edits::new(texts.iter().map(|text| Edit::parse(text).unwrap()).collect())
}

fn frame(source: &mut dyn Source, site: Site) -> Result<Arc<Frame>> {
    let (sizes, site) = (source.outline().card.sizes(), Site { run: source.outline().run, ..site });
    let shape = sizes.shape(site.stage.axes(), source.outline().passes[site.pass].dims);
    match ask(source, &Query::Block(site, Region::whole(&shape)))? {
        Answer::Block(block) => Ok(block.frame),
        other => panic!("{site}: {other:?}"),
    }
}

#[test]
fn an_edited_trace_has_the_bits_of_the_edited_run_up_to_the_next_product_with_weights() {
    let attention = "keys values qk scores masked_scores softmax attn_heads";
    let cases: [(&str, &[&str], &str); 12] = [
        ("gqa", &["L1/xq[h=1,t=3] *= 2"], "xq xq_rope qk scores masked_scores softmax attn_heads"),
        (
            "gqa",
            &["p0/L1/xk_rope[t=2] += 1"],
            "xk_rope cache_k keys qk scores masked_scores softmax attn_heads",
        ),
        ("mistral", &["L0/cache_v[k=1] = 0"], "cache_v values attn_heads"),
        ("mistral", &["L1/keys[h=1] *= 2", "L1/values[h=1] = 0.5"], attention),
        ("gqa", &["L0/scores[h=0] = -3"], "scores masked_scores softmax attn_heads"),
        ("qwen2", &["p0/L1/masked_scores[h=0,t=1,k=3] = 1"], "masked_scores softmax attn_heads"),
        ("gqa", &["L2/softmax[h=2] = mean"], "softmax attn_heads"),
        ("mha_bias", &["p0/L0/mask off"], "masked_scores softmax attn_heads"),
        (
            "tied_llama3",
            &["L1/rope off"],
            "xq_rope xk_rope cache_k keys qk scores masked_scores softmax attn_heads",
        ),
        ("qwen3", &["L0/ffn_gate[f=3] += 1"], "ffn_gate ffn_silu ffn_hidden"),
        ("qwen3", &["L1/attn_output[t=4] *= -1"], "attn_output attn_residual"),
        ("gqa", &["logits[v=3] += 9"], "logits probs nucleus sampled"),
    ];
    for (name, texts, reached) in cases {
        let (plain, temporary) = (model(name), tempfile::tempdir().unwrap());
        let (expected, _) = record(&plain.with_edits(edits(texts)), &PROMPT);
        let (before, _) = record(&plain, &PROMPT);
        let mut trace = trace_of(&plain, temporary.path()).edited(Run(1), 0, edits(texts)).unwrap();
        assert_eq!(trace.outline().passes.len(), 1, "the tokens after the edited pass are not known");
        let mut seen = Vec::new();
        for site in Site::all(&plain.sizes(), trace.outline().passes[0].dims) {
            let differs = expected[&site].data != before[&site].data;
            match frame(&mut *trace, site) {
                Ok(frame) => {
                    assert_same(&frame, &expected[&site]);
                    seen.extend(differs.then_some(site.stage));
                }
                Err(error) => {
                    let told = error.to_string();
                    let said = ["an edit reaches it", "--model"];
                    assert!(said.iter().all(|said| told.contains(said)), "{name}, {texts:?}: {site}: {told}");
                }
            }
        }
        let named: Vec<String> = seen.iter().map(|stage| stage.name().to_owned()).collect();
        assert_eq!(named.join(" "), reached, "{name}, {texts:?}");
    }
}

/// Command R and OLMo 2 round RoPE in another way than Llama, and the layers of OLMo 3 have tables of their own.
#[test]
fn queries_after_rope_are_computed_by_the_rules_of_the_family() {
    for (name, table) in [("cohere2", None), ("olmo2", None), ("ernie4_5", None), ("olmo3", Some(0))] {
        let checkpoint = checkpoint::open(&fixture(&format!("families/{name}"))).unwrap();
        let plain = Model::load(&checkpoint, Cpu::default().with_precision(Precision::Bf16)).unwrap();
        let temporary = tempfile::tempdir().unwrap();
        let edit = if plain.sizes().qk_norm { "L0/xq_norm[h=1,t=3] *= 2" } else { "L0/xq[h=1,t=3] *= 2" };
        let (expected, _) = record(&plain.with_edits(edits(&[edit])), &PROMPT);
        let mut trace = trace_of(&plain, temporary.path()).edited(Run(1), 0, edits(&[edit])).unwrap();
        let cos = Site { layer: table, ..Site::once(0, Stage::RopeCos.in_model(&plain.sizes())) };
        for site in [cos, Site { layer: Some(0), ..Site::once(0, Stage::XqRope) }] {
            assert_same(&frame(&mut *trace, site).unwrap(), &expected[&site]);
        }
    }
}

#[test]
fn an_edit_that_a_trace_cannot_show_is_refused_with_the_reason() {
    let (plain, temporary) = (model("gqa"), tempfile::tempdir().unwrap());
    let trace = trace_of(&plain, temporary.path());
    let refused = |trace: &Recorded, text: &str, said: &str| {
        let error = trace.edited(Run(1), 0, edits(&[text])).err().unwrap().to_string();
        assert!(error.contains(said), "{text}: {error}");
    };
    refused(&trace, "p9/L0/xq = 0", "no pass 9");
    refused(&trace, "L0/xq[t=99] = 0", "token 99 is past the last");
    refused(&trace, "p1-2/xq[t=0,pos=1] = 0", "no pass of the trace has a cell");
    let temporary = tempfile::tempdir().unwrap();
    let edited = trace_of(&plain.with_edits(edits(&["L0/xq *= 2"])), temporary.path());
    refused(&edited, "L1/xq = 0", "has edits already");
}
