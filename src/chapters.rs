//! The notes under `chapters/` and the manual under `chapters/reference/`. Both are built into the program.
//! [`llama_trace_core::chapters`] says how notes are written.

use llama_trace_core::chapters::{Chapter, Chapters};

macro_rules! chapters {
    ($folder:literal: $($slug:literal,)*) => {
        Chapters(&[$(Chapter { slug: $slug, text: include_str!(concat!($folder, $slug, ".md")) },)*])
    };
}

/// Every note, in reading order.
pub const CHAPTERS: Chapters = chapters! {
    "../chapters/":
    "00-map-of-the-pass",
    "01-tokens",
    "02-embedding",
    "03-residual-stream",
    "04-rms-norm",
    "05-queries-keys-values",
    "06-heads-and-views",
    "07-rope-tables",
    "08-rope",
    "09-kv-cache",
    "10-grouped-query-attention",
    "11-qk",
    "12-scores",
    "13-mask",
    "14-masked-scores",
    "15-softmax",
    "16-attention-patterns",
    "17-attn-heads",
    "18-attn-output",
    "19-ffn-gate",
    "20-ffn-silu",
    "21-ffn-up",
    "22-swiglu",
    "23-ffn-down",
    "24-logits",
    "25-probs",
    "26-nucleus",
    "27-sampled",
    "28-bfloat16",
    "29-int8",
    "30-where-from",
    "31-a-port-with-a-bug",
    "32-what-causes-what",
};

/// The first lesson. It is not in the list of the chapters.
pub const TOUR: Chapter = Chapter { slug: "tour", text: include_str!("../chapters/tour.md") };

/// The pages of the manual, in the order of `llama-trace help`. The tracer does not list them.
pub const MANUAL: Chapters = chapters! {
    "../chapters/reference/":
    "commands",
    "prompts",
    "sampling",
    "chat",
    "keys",
    "views",
    "addresses",
    "explain",
    "branches",
    "ablation",
    "edits",
    "patch",
    "teaching",
    "learn",
    "lessons",
    "page",
    "pictures",
    "export",
    "traces",
    "diff",
    "mistakes",
    "kata",
    "capture",
    "python",
    "check",
    "models",
    "config",
    "hub",
    "precision",
    "gpu",
    "performance",
    "speed",
    "limits",
    "platforms",
    "exit-codes",
};
