//! What the self-test computes: a few numbers by each kind of kernel, on the device or on the CPU.

use super::Uses;
use crate::Cuda;
use crate::memory::own;
use crate::product::{self, Asked, Tiles};
use llama_trace_core::config::{DEFAULT_GROUP, Pairing, Precision};
use llama_trace_core::error::Result;
use llama_trace_core::tensor::{Bytes, Dtype, Tensor};
use llama_trace_engine::backend::{
    AttentionShape, Backend, Buffer, Draw, Drawn, Input, Matrix, NoSink, Pass, PassRows, Product, Span,
    Swiglu,
};
use llama_trace_formats::checkpoint::random;

/// `INPUTS`: inputs of a product, whole blocks of every number type. `OUTPUTS`: outputs of a product, with a partial
/// tile at the end. `HIDDEN`: outputs of the gate. `LONG`: inputs of a product with long rows.
const INPUTS: usize = 256;
pub(super) const OUTPUTS: usize = 40;
const HIDDEN: usize = 512;
const LONG: usize = 4096;

/// Numbers of tokens for which there are separate kernels.
const TOKENS: [(&str, usize); 3] =
    [("multiply one row", 1), ("multiply a few rows", 9), ("multiply many rows", MANY)];
const MANY: usize = 20;

/// Heads that share keys are computed together if the number of keys times the number of heads is at least this. Two
/// heads are never computed together.
const KEYS_OF_HEADS: usize = 1 << 14;

/// The description of attention over several tokens ([`KernelResult::what`]).
pub(super) const MANY_TOKENS: &str = "compute attention for many tokens";

/// The tolerance of a result with another order of summation: the relative L2 distance.
fn reorder_tolerance(precision: Precision) -> f64 {
    if precision == Precision::Bf16 { 2e-2 } else { 1e-5 }
}

/// Results of some kernels.
pub(super) struct KernelResult {
    /// What the kernels do.
    pub(super) what: &'static str,
    /// The tolerance of the difference from the CPU's results.
    pub(super) bound: f64,
    pub(super) values: Vec<f32>,
}

/// Values that every number type represents exactly. In the self-test, sums of products of these values are exact in
/// any order. Only the final rounding to bfloat16 changes a sum, and it is the same on every device.
pub(super) fn exact(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + seed * 104_729) % 127 / 32) as f32 - 2.0).collect()
}

/// Values from -1 to 1.
fn any(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + seed * 104_729) % 257) as f32 / 128.0 - 1.0).collect()
}

/// Returns a tensor of these values; their number must fit the shape.
fn tensor(dtype: Dtype, shape: Vec<usize>, bytes: Vec<u8>) -> Tensor {
    let tensor = Tensor::new(dtype, shape, Bytes::owned(bytes));
    tensor.unwrap_or_else(|| unreachable!("the values are as many as the shape says"))
}

/// Returns the weights of a product. Floats are exact values; integers are arbitrary, and int8 values share a scale in
/// groups of `group`.
fn weights(dtype: Dtype, outputs: usize, inputs: usize, group: usize, seed: usize) -> Tensor {
    let values = || exact(outputs * inputs, seed).into_iter();
    let bytes = match dtype {
        Dtype::F32 => values().flat_map(f32::to_le_bytes).collect(),
        Dtype::F16 => values().flat_map(|x| half::f16::from_f32(x).to_le_bytes()).collect(),
        Dtype::BF16 => values().flat_map(|x| half::bf16::from_f32(x).to_le_bytes()).collect(),
        whole => return random::tensor(whole, &[outputs, inputs], group, &mut (seed as u64)),
    };
    tensor(dtype, vec![outputs, inputs], bytes)
}

pub(super) fn buffer(backend: &dyn Backend, values: &[f32]) -> Result<Buffer> {
    let mut buffer = backend.buffer(values.len())?;
    backend.write(values, 0, &mut buffer)?;
    Ok(buffer)
}

pub(super) fn values(backend: &dyn Backend, buffer: &Buffer, count: usize) -> Result<Vec<f32>> {
    let mut all = Vec::with_capacity(count);
    backend.read(buffer, 0..count, &mut |values| {
        all.extend_from_slice(values);
        Ok(())
    })?;
    Ok(all)
}

/// Begins a pass over `tokens` tokens of one sequence from position `start` on.
fn pass(backend: &dyn Backend, start: usize, tokens: usize) -> Result<Pass> {
    let mut pass = backend.new_pass()?;
    backend.begin_pass(&vec![0; tokens], &[Span { sequence: 0, start, tokens }], &[], &mut pass)?;
    Ok(pass)
}

/// Returns the input of a product of `tokens` tokens.
fn input(backend: &dyn Backend, tokens: usize, inputs: usize) -> Result<Input> {
    let (x, mut input) = (buffer(backend, &exact(tokens * inputs, 2))?, backend.input());
    backend.prepare(&x, inputs, &pass(backend, 0, tokens)?, &PassRows::All, &mut input)?;
    Ok(input)
}

/// Computes silu(gate) · up of a feed-forward network. Returns hidden, `count` values.
pub(super) fn gated(
    backend: &dyn Backend,
    input: &Input,
    [gate, up]: [&Matrix; 2],
    count: usize,
) -> Result<Buffer> {
    let mut outs =
        [backend.buffer(count)?, backend.buffer(count)?, backend.buffer(count)?, backend.buffer(count)?];
    gate_to(backend, input, [gate, up], count, &mut outs)?;
    let [_, _, _, hidden] = outs;
    Ok(hidden)
}

/// [`gated`] into these buffers: the gate's result, its SiLU, up's result, and hidden.
fn gate_to(
    backend: &dyn Backend,
    input: &Input,
    [gate, up]: [&Matrix; 2],
    count: usize,
    [of_gate, silu, of_up, hidden]: &mut [Buffer; 4],
) -> Result<()> {
    let outputs = Swiglu {
        gate: Product { matrix: gate, bias: None, out: of_gate },
        silu,
        up: Product { matrix: up, bias: None, out: of_up },
        hidden,
    };
    backend.swiglu(input, count, outputs, &mut |_, _| Ok(()))
}

/// Tokens, outputs and inputs of products in tiles: they end in a partial tile in each direction, and reuse shared
/// memory.
pub(super) const OF_TILES: [usize; 3] = [70, 264, 328];

/// The size of the vocabulary, and the likeliest tokens. These tokens are far apart, so several thread blocks have
/// them.
const VOCAB: usize = 3001;
pub(super) const LIKELIEST: [usize; 4] = [13, 1203, 1900, 2999];

/// The likeliest token in the test of temperature 0.
pub(super) const GREEDY: usize = LIKELIEST[2];

/// Returns the results of each kind of kernel.
pub(super) fn made(backend: &dyn Backend, uses: &Uses) -> Result<Vec<KernelResult>> {
    let mut all = Vec::new();
    let mut add = |what, bound, values| all.push(KernelResult { what, bound, values });

    let (x, weight) = (buffer(backend, &any(3 * INPUTS, 3))?, any(INPUTS, 4));
    let bytes = weight.iter().flat_map(|x| x.to_le_bytes()).collect();
    let weight = backend.vector(&tensor(Dtype::F32, vec![INPUTS], bytes))?;
    let mut normed = backend.buffer(3 * INPUTS)?;
    backend.rms_norm(&x, &weight, 1e-5, 3, &mut normed)?;
    add("normalise", 0.0, values(backend, &normed, 3 * INPUTS)?);

    let (x, mut normed) = (buffer(backend, &any(MANY * INPUTS, 10))?, backend.buffer(MANY * INPUTS)?);
    for &dtype in &uses.weights {
        let group = backend.precision().group();
        let matrix = |outputs, inputs, seed| {
            backend.matrix(&weights(dtype, outputs, inputs, group.unwrap_or(DEFAULT_GROUP), seed))
        };
        // Integer sums are bit-exact, and so are sums of exact floats.
        let apart = reorder_tolerance(backend.precision());
        let bound = if group.is_some() || dtype.is_float() { 0.0 } else { apart };
        let of_rows = matrix(OUTPUTS, INPUTS, 1)?;
        for (what, tokens) in TOKENS {
            let mut out = backend.buffer(tokens * OUTPUTS)?;
            backend.matmul(&input(backend, tokens, INPUTS)?, &of_rows, None, &mut out)?;
            add(what, bound, values(backend, &out, tokens * OUTPUTS)?);
        }

        if group.is_some() {
            // With so many inputs, each of the sixteen partial sums of an output has several groups.
            let mut out = backend.buffer(MANY * OUTPUTS)?;
            let of_many = input(backend, MANY, LONG)?;
            backend.matmul(&of_many, &matrix(OUTPUTS, LONG, 10)?, None, &mut out)?;
            add("multiply many long rows", bound, values(backend, &out, MANY * OUTPUTS)?);
        }

        let (gate, up) = (matrix(HIDDEN, INPUTS, 1)?, matrix(HIDDEN, INPUTS, 8)?);
        let (count, of_many) = (MANY * HIDDEN, input(backend, MANY, INPUTS)?);
        let hidden = gated(backend, &of_many, [&gate, &up], count)?;
        add("gate many rows", bound, values(backend, &hidden, count)?);

        // A chain without recording, as in a layer: a norm, the gate, a product, the norm of its sum with the residual,
        // and a product. It runs twice, because an allocation sends the queue. In the second run, no memory has to be
        // allocated.
        let down = matrix(INPUTS, HIDDEN, 9)?;
        let (of_pass, mut first, mut second) = (pass(backend, 0, MANY)?, backend.input(), backend.input());
        let [of_down, sum, of_sum] = [(); 3].map(|()| backend.buffer(MANY * INPUTS));
        let (mut of_down, mut sum, mut of_sum) = (of_down?, sum?, of_sum?);
        let mut outs =
            [backend.buffer(count)?, backend.buffer(count)?, backend.buffer(count)?, backend.buffer(count)?];
        let mut out = backend.buffer(MANY * OUTPUTS)?;
        for _ in 0..2 {
            backend.rms_norm(&x, &weight, 1e-5, MANY, &mut normed)?;
            backend.prepare(&normed, INPUTS, &of_pass, &PassRows::All, &mut first)?;
            gate_to(backend, &first, [&gate, &up], count, &mut outs)?;
            backend.prepare(&outs[3], HIDDEN, &of_pass, &PassRows::All, &mut second)?;
            backend.matmul(&second, &down, None, &mut of_down)?;
            let (added, sizes) = ((&x, &of_down), (MANY, INPUTS));
            let written = (&mut sum, &mut of_sum);
            backend.add_rms_norm(added, &weight, 1e-5, sizes, written, &mut |_, _| Ok(()))?;
            backend.prepare(&of_sum, INPUTS, &of_pass, &PassRows::All, &mut first)?;
            backend.matmul(&first, &of_rows, None, &mut out)?;
        }
        let bound = if group.is_some() { 0.0 } else { apart };
        let made = [values(backend, &sum, MANY * INPUTS)?, values(backend, &out, MANY * OUTPUTS)?];
        add("chain the operations of a layer", bound, made.concat());
    }

    // A prompt, then one token, which each head computes on its own; then one token with so many keys that its heads
    // are computed together.
    let AttentionShape { heads, kv_heads, head_dim, .. } = uses.heads;
    let (width, of_keys, tokens) = (heads * head_dim, kv_heads * head_dim, 70);
    let many = (KEYS_OF_HEADS / heads).max(tokens + 2);
    let [mut keys, mut cached] =
        [backend.new_cache((many + 1) * of_keys)?, backend.new_cache((many + 1) * of_keys)?];
    let after = tokens + 1..many;
    let of_after = pass(backend, after.start, after.len())?;
    for (keys, seed) in [(&mut keys, 11), (&mut cached, 12)] {
        backend.cache(&buffer(backend, &any(after.len() * of_keys, seed))?, of_keys, &of_after, 0, keys)?;
    }
    for (what, start, tokens) in [
        (MANY_TOKENS, 0, tokens),
        ("compute attention for one token", tokens, 1),
        ("compute attention over many keys", many, 1),
    ] {
        let pass = pass(backend, start, tokens)?;
        let [q, k, v] = [(width, 5), (of_keys, 6), (of_keys, 7)]
            .map(|(width, seed)| buffer(backend, &any(tokens * width, seed + start)));
        let (q, k, v, mut out) = (q?, k?, v?, backend.buffer(tokens * width)?);
        backend.cache(&k, of_keys, &pass, 0, &mut keys)?;
        backend.cache(&v, of_keys, &pass, 0, &mut cached)?;
        backend.attention(uses.heads, &q, &pass, 0, &keys, &cached, &mut out, &mut NoSink)?;
        add(what, reorder_tolerance(backend.precision()), values(backend, &out, tokens * width)?);
    }
    Ok(all)
}

/// The heads of a layer whose products go through shared memory.
const OF_STREAMS: AttentionShape = AttentionShape::llama(4, 2, 16, None);

/// The number of hidden values of such a layer, and two widths. The second width is more than one piece.
pub(super) fn sizes_of_streams(dtype: Dtype) -> (usize, [usize; 2]) {
    if dtype.block() > 32 { (256, [256, 1280]) } else { (96, [64, 1120]) }
}

/// Computes a layer without attention for `rows` rows of `width` values, each row in its own sequence. Nothing is
/// recorded, so kernels are fused as in a model's run. Returns queries, keys, values, hidden, and the residual after
/// the feed-forward network.
pub(super) fn layer(backend: &dyn Backend, dtype: Dtype, rows: usize, width: usize) -> Result<Vec<f32>> {
    let (shape, (hidden, _)) = (OF_STREAMS, sizes_of_streams(dtype));
    let group = backend.precision().group().unwrap_or(DEFAULT_GROUP);
    let [of_q, of_k] = [shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim];
    let matrix = |outputs, inputs, seed| backend.matrix(&weights(dtype, outputs, inputs, group, seed));
    let (q, k, v) = (matrix(of_q, width, 21)?, matrix(of_k, width, 22)?, matrix(of_k, width, 23)?);
    let (gate, up, down) =
        (matrix(hidden, width, 24)?, matrix(hidden, width, 25)?, matrix(width, hidden, 26)?);
    let norm: Vec<u8> = any(width, 27).iter().flat_map(|x| x.to_le_bytes()).collect();
    let norm = backend.vector(&tensor(Dtype::F32, vec![width], norm))?;
    let x = buffer(backend, &any(rows * width, 28))?;
    let pairs = rows * shape.head_dim / 2;
    let (cos, sin) = (buffer(backend, &any(pairs, 29))?, buffer(backend, &any(pairs, 30))?);
    let spans: Vec<_> = (0..rows).map(|sequence| Span { sequence, start: 3, tokens: 1 }).collect();
    let mut pass = backend.new_pass()?;
    backend.begin_pass(&vec![0; rows], &spans, &[], &mut pass)?;

    let (mut normed, mut input) = (backend.buffer(rows * width)?, backend.input());
    let (mut out_q, mut turned_q) = (backend.buffer(rows * of_q)?, backend.buffer(rows * of_q)?);
    let (mut out_k, mut turned_k) = (backend.buffer(rows * of_k)?, backend.buffer(rows * of_k)?);
    let mut out_v = backend.buffer(rows * of_k)?;
    let (mut of_down, mut sum) = (backend.buffer(rows * width)?, backend.buffer(rows * width)?);
    // Allocate before the first launch: an allocation sends the queue, and then no launches are fused.
    let count = rows * hidden;
    let mut outs =
        [backend.buffer(count)?, backend.buffer(count)?, backend.buffer(count)?, backend.buffer(count)?];
    let mut caches = Vec::new();
    for _ in 0..rows {
        caches.push([backend.new_cache(4 * of_k)?, backend.new_cache(4 * of_k)?]);
    }
    backend.rms_norm(&x, &norm, 1e-5, rows, &mut normed)?;
    backend.prepare(&normed, width, &pass, &PassRows::All, &mut input)?;
    let mut products = [
        Product { matrix: &q, bias: None, out: &mut out_q },
        Product { matrix: &k, bias: None, out: &mut out_k },
        Product { matrix: &v, bias: None, out: &mut out_v },
    ];
    backend.matmuls(&input, &mut products, &mut |_, _| Ok(()))?;
    let (pairing, dim) = (Pairing::Halves, shape.head_dim);
    backend.rope(&out_q, &cos, &sin, pairing, shape.heads, dim, rows, &mut turned_q)?;
    backend.rope(&out_k, &cos, &sin, pairing, shape.kv_heads, dim, rows, &mut turned_k)?;
    for (span, [keys, values]) in caches.iter_mut().enumerate() {
        backend.cache(&turned_k, of_k, &pass, span, keys)?;
        backend.cache(&out_v, of_k, &pass, span, values)?;
    }
    gate_to(backend, &input, [&gate, &up], count, &mut outs)?;
    backend.prepare(&outs[3], hidden, &pass, &PassRows::All, &mut input)?;
    backend.matmul(&input, &down, None, &mut of_down)?;
    backend.add(&x, &of_down, rows * width, &mut sum)?;

    let mut all = values(backend, &turned_q, rows * of_q)?;
    for cache in caches.iter().flatten() {
        let mut see = |values: &[f32]| {
            all.extend_from_slice(&values[3 * of_k..]);
            Ok(())
        };
        backend.read_cache(cache, 4 * of_k, &mut see)?;
    }
    all.extend(values(backend, &outs[3], count)?);
    all.extend(values(backend, &sum, rows * width)?);
    Ok(all)
}

/// Returns the tokens that the device draws. Four logits are equal, and larger than all others. Two come next. Top-k
/// keeps these six, and top-p keeps the four. So each of the four has a quarter of the probability, in the order of
/// ids. For temperature 0, one of the four logits is larger.
pub(super) fn drawn(cuda: &Cuda) -> Result<Vec<Drawn>> {
    let mut logits: Vec<f32> = any(VOCAB, 11);
    LIKELIEST.into_iter().for_each(|id| logits[id] = 4.0);
    [500, 2500].into_iter().for_each(|id| logits[id] = 3.0);
    let draw = Draw { temperature: 0.5, top_k: 6, top_p: 0.8, random: 0.0 };
    let draws: Vec<Draw> = [0.1, 0.4, 0.6, 0.9].map(|random| Draw { random, ..draw }).into();
    let draws = [draws, vec![Draw { temperature: 0.0, ..draw }]].concat();
    let mut rows = logits.repeat(draws.len());
    rows[(draws.len() - 1) * VOCAB + GREEDY] = 5.0;

    let spans: Vec<_> = (0..draws.len()).map(|sequence| Span { sequence, start: 0, tokens: 1 }).collect();
    let mut pass = cuda.new_pass()?;
    cuda.begin_pass(&vec![0; draws.len()], &spans, &draws, &mut pass)?;
    cuda.draw(&buffer(cuda, &rows)?, VOCAB, &pass)?;
    let drawn = cuda.drawn(&pass)?;
    // The model's draws allocate memory of their own size.
    cuda.scratch().draw = None;
    Ok(drawn)
}

/// Calls `run` with two matrices. Returns the product with the first, and hidden of both.
pub(super) fn of_tiles(
    backend: &dyn Backend,
    run: impl FnOnce(&Input, [Matrix; 2], &mut Buffer) -> Result<Buffer>,
) -> Result<[Vec<f32>; 2]> {
    let [tokens, outputs, inputs] = OF_TILES;
    let [gate, up] =
        [1, 8].map(|seed| backend.matrix(&weights(Dtype::BF16, outputs, inputs, DEFAULT_GROUP, seed)));
    let mut out = backend.buffer(tokens * outputs)?;
    let hidden = run(&input(backend, tokens, inputs)?, [gate?, up?], &mut out)?;
    Ok([values(backend, &out, tokens * outputs)?, values(backend, &hidden, tokens * outputs)?])
}

/// Returns the results of these tiles.
pub(super) fn made_by_tiles(cuda: &Cuda, tiles: Tiles) -> Result<[Vec<f32>; 2]> {
    of_tiles(cuda, |input, [gate, up], out| {
        let [of_gate, silu, of_up, hidden] = [0; 4].map(|_| cuda.buffer(OF_TILES[0] * OF_TILES[1]));
        let (of_gate, silu, of_up, hidden) = (of_gate?, silu?, of_up?, hidden?);
        let input = input.downcast();
        product::all_in_tiles(cuda, input, &[Asked::of(&gate, None, out)], tiles)?;
        let (gate, up) = (Asked::of(&gate, None, &of_gate), Asked::of(&up, None, &of_up));
        product::all_gated_in_tiles(cuda, input, gate, up, (own(&silu), own(&hidden)), tiles)?;
        Ok(hidden)
    })
}
