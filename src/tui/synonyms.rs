//! Words that a reader may type for things that have another name here. The go-to line, its completions and the search
//! of the help screen use this table.

/// One row of the table.
#[derive(Debug)]
pub struct Synonym {
    /// The words, in small letters.
    pub words: &'static [&'static str],
    /// What they find, the best first: names of steps and of views, commands of the go-to line, and keys.
    pub finds: &'static [&'static str],
    /// What it is, in a few words.
    pub what: &'static str,
}

/// Number of letters from which the beginning of a word is enough.
const ENOUGH: usize = 3;

impl Synonym {
    /// Returns whether `typed`, in small letters, is one of the words, or the beginning of one.
    pub fn is_meant(&self, typed: &str) -> bool {
        self.words.iter().any(|word| *word == typed || (typed.len() >= ENOUGH && word.starts_with(typed)))
    }
}

/// The rows that `typed` means, those with the whole word first.
pub fn meant(typed: &str) -> impl Iterator<Item = &'static Synonym> {
    let typed = typed.trim().to_lowercase();
    let whole = |row: &&Synonym, typed: &str| row.words.contains(&typed);
    let (first, then) = (typed.clone(), typed);
    let rows = SYNONYMS.iter().filter(move |row| whole(row, &first));
    rows.chain(SYNONYMS.iter().filter(move |row| row.is_meant(&then) && !whole(row, &then)))
}

const fn row(words: &'static [&'static str], finds: &'static [&'static str], what: &'static str) -> Synonym {
    Synonym { words, finds, what }
}

/// The table.
pub static SYNONYMS: &[Synonym] = &[
    row(
        &["vocabulary", "bpe", "subword", "merges", "tokenizer", "word"],
        &["tokens"],
        "the tokens of the text",
    ),
    row(&["wte", "embed_tokens", "word vector", "lookup"], &["embedding"], "a vector for each token"),
    row(
        &["rms", "rmsnorm", "layernorm", "layer norm", "normalize", "normalise", "root mean square"],
        &["attn_norm", "ffn_norm", "final_norm"],
        "RMSNorm: root mean square",
    ),
    row(&["query", "q_proj"], &["xq"], "the queries"),
    row(&["k_proj"], &["xk"], "the keys"),
    row(&["v_proj"], &["xv"], "the values"),
    row(
        &["position", "positional", "rotary", "rotation", "rotate", "angle"],
        &["xq_rope", "xk_rope", "rope", "rope_cos"],
        "RoPE: rotates queries and keys by their position",
    ),
    row(
        &["memory", "kv cache", "kvcache", "kv", "past"],
        &["cache", "cache_k", "cache_v"],
        "the KV cache: kept keys and values",
    ),
    row(
        &["gqa", "mqa", "grouped query", "grouped-query", "repeat_kv", "repeat kv", "kv head"],
        &["keys", "values", "xk", "xv"],
        "grouped-query attention: shared keys and values",
    ),
    row(&["dot product", "similarity", "match"], &["qk"], "the products of queries and keys"),
    row(
        &["sqrt", "scaled", "square root"],
        &["scores"],
        "the products, divided by the root of the head size",
    ),
    row(&["causal", "triangle", "future", "window"], &["mask", "masked_scores"], "hides later tokens"),
    row(
        &["attention", "attend", "pattern", "weights", "attn"],
        &["softmax", "heads", "layers", "bars"],
        "how much each token attends to each other token",
    ),
    row(
        &["induction", "induction head", "previous token", "copy", "copying", "sink"],
        &["layers", "softmax"],
        "the patterns of all heads of all layers",
    ),
    row(&["weighted sum", "context vector"], &["attn_heads"], "the values, mixed by attention"),
    row(&["concat", "concatenate", "merge heads"], &["attn_merged", "attn_heads"], "the heads side by side"),
    row(&["o_proj", "projection"], &["attn_output"], "the output of attention"),
    row(
        &["shortcut", "skip connection", "stream", "add"],
        &["residual", "attn_residual", "ffn_residual"],
        "the residual stream",
    ),
    row(
        &["mlp", "feedforward", "feed-forward", "feed forward", "dense"],
        &["ffn_gate", "ffn_up", "ffn_hidden", "ffn_down"],
        "the feed-forward network",
    ),
    row(
        &["swish", "relu", "gelu", "gate_proj", "activation function"],
        &["ffn_silu", "ffn_gate"],
        "SiLU of the gate",
    ),
    row(&["swiglu", "glu", "up_proj"], &["ffn_hidden", "ffn_up"], "SwiGLU: the gate times the other branch"),
    row(&["down_proj"], &["ffn_down"], "the output of the feed-forward network"),
    row(
        &["unit", "feature", "knowledge", "key-value memory"],
        &["neurons", "ffn_hidden"],
        "the neurons of a feed-forward network",
    ),
    row(
        &["unembed", "unembedding", "lm_head", "output head"],
        &["logits"],
        "a number for each possible next token",
    ),
    row(
        &["predict", "prediction", "next token", "answer", "probability", "chance", "likely"],
        &["probs", "logits"],
        "the probability of each next token",
    ),
    row(
        &["temperature", "top-k", "top-p", "topk", "topp", "sampling", "random", "seed", "greedy"],
        &["sampler", "nucleus", "sampled", "probs"],
        "how the next token is sampled",
    ),
    row(
        &["logit lens", "early exit", "intermediate"],
        &["lens"],
        "what the model would predict after each layer",
    ),
    row(
        &["contribution", "cause", "credit", "direct effect", "dla", "why"],
        &["attribution", "neurons", "Enter"],
        "what each part adds to the prediction; Enter explains a number",
    ),
    row(
        &["patching", "causes", "causal map", "causal tracing", "corrupted", "clean prompt", "exchange"],
        &["patch"],
        "which places carry the answer, with values from another prompt",
    ),
    row(
        &["surprise", "perplexity", "loss", "log-probability", "logprob", "entropy"],
        &["tokens", "T"],
        "the log-probability of each token: in the view tokens, and on the token strip with T",
    ),
    row(
        &["distribution", "outlier", "spread", "statistics", "min max"],
        &["histogram", "overview"],
        "how the values are spread",
    ),
    row(
        &["diagram", "graph", "architecture", "block", "dataflow"],
        &["flow", "pass"],
        "a diagram of the layer, and of the pass",
    ),
    row(
        &["quantize", "quantise", "quantization", "int8", "q8", "8-bit"],
        &["attn_norm_q8", "attn_norm_scale"],
        "the int8 inputs of a product, with --precision q8",
    ),
    row(
        &["reshape", "transpose", "permute", "split heads"],
        &["xq_heads", "queries_t", "keys_t", "attn_merged", "R"],
        "the same values in another shape; R skips these steps",
    ),
    row(
        &["off", "ablate", "ablation", "knock out", "knockout", "disable", "remove", "zero"],
        &["without"],
        "switches a part of the model off",
    ),
    row(
        &["difference", "diff", "versus", "side by side"],
        &["compare", "c", "d"],
        "compares with another place; c and d too",
    ),
    row(&["another text", "other text", "new text", "input"], &["prompt"], "runs another text"),
    row(&["generate", "decode", "continue"], &["t"], "t runs the next token"),
    row(
        &["fork", "alternative", "what if"],
        &["b", "B"],
        "b continues with another token, B lists the branches",
    ),
    row(&["bookmark", "remember", "favourite", "favorite"], &["m", "'"], "m and a letter marks a place"),
    row(&["save", "download", "numpy", "npy", "file"], &["e"], "e writes the stage to a file"),
    row(&["screenshot", "picture", "image", "svg"], &["S"], "S draws the screen into a file"),
    row(
        &["undo", "go back", "previous place"],
        &["Alt-←", "Backspace"],
        "Alt-← goes back to the place before",
    ),
    row(&["color", "colour", "range", "contrast"], &["s"], "s chooses the range of the colours"),
    row(&["animate", "animation", "autoplay"], &["A"], "A repeats the last key that moved"),
    row(&["exit", "leave", "stop"], &["q", "Esc"], "q quits, Esc stops a computation"),
];
