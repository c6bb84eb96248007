//! The self-test of a device. Before a model runs, one kernel of each kind computes a few numbers, which are compared
//! with the CPU's. Wrong numbers are reported as an error.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

use super::memory::own;
use super::product::{self, Asked, Tiles};
use super::{Cuda, attention, failed, features};
use llama_trace_core::config::{DEFAULT_GROUP, Pairing, Precision};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::tensor::Bytes;
use llama_trace_core::tensor::{Dtype, Tensor};
use llama_trace_engine::backend::cpu::Cpu;
use llama_trace_engine::backend::{
    AttentionShape, Backend, Buffer, Draw, Drawn, Input, Matrix, NoSink, Pass, PassRows, Product, Span,
    Swiglu,
};
use llama_trace_formats::checkpoint::{Checkpoint, random};
use llama_trace_kernels::driver::Untried;

/// The features that a model uses. The self-test covers them before the model runs.
#[derive(Clone, Debug)]
pub struct Uses {
    /// The number types of its matrices.
    weights: Vec<Dtype>,
    /// The shape of attention with at most two of its kv heads.
    heads: AttentionShape,
}

impl Uses {
    /// Returns the features that the model in `checkpoint` uses.
    pub fn of(checkpoint: &Checkpoint) -> Self {
        let config = &checkpoint.config;
        let matrices =
            checkpoint.tensors().map(|(_, tensor)| tensor).filter(|tensor| tensor.shape().len() == 2);
        let weights: BTreeSet<_> = matrices.map(Tensor::dtype).collect();
        let (kv_heads, head_dim) = (config.kv_heads.min(2), config.head_dim);
        let heads = config.heads / config.kv_heads * kv_heads;
        let heads = AttentionShape::llama(heads, kv_heads, head_dim, None);
        Self { weights: weights.into_iter().collect(), heads }
    }
}

/// `INPUTS`: inputs of a product, whole blocks of every number type. `OUTPUTS`: outputs of a product, with a partial
/// tile at the end. `HIDDEN`: outputs of the gate. `LONG`: inputs of a product with long rows.
const INPUTS: usize = 256;
const OUTPUTS: usize = 40;
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
const MANY_TOKENS: &str = "compute attention for many tokens";

/// The tolerance of a result with another order of summation: the relative L2 distance.
fn reorder_tolerance(precision: Precision) -> f64 {
    if precision == Precision::Bf16 { 2e-2 } else { 1e-5 }
}

/// Results of some kernels.
struct KernelResult {
    /// What the kernels do.
    what: &'static str,
    /// The tolerance of the difference from the CPU's results.
    bound: f64,
    values: Vec<f32>,
}

/// Values that every number type represents exactly. In the self-test, sums of products of these values are exact in
/// any order. Only the final rounding to bfloat16 changes a sum, and it is the same on every device.
fn exact(count: usize, seed: usize) -> Vec<f32> {
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

fn buffer(backend: &dyn Backend, values: &[f32]) -> Result<Buffer> {
    let mut buffer = backend.buffer(values.len())?;
    backend.write(values, 0, &mut buffer)?;
    Ok(buffer)
}

fn values(backend: &dyn Backend, buffer: &Buffer, count: usize) -> Result<Vec<f32>> {
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
fn gated(backend: &dyn Backend, input: &Input, [gate, up]: [&Matrix; 2], count: usize) -> Result<Buffer> {
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
const OF_TILES: [usize; 3] = [70, 264, 328];

/// The size of the vocabulary, and the likeliest tokens. These tokens are far apart, so several thread blocks have
/// them.
const VOCAB: usize = 3001;
const LIKELIEST: [usize; 4] = [13, 1203, 1900, 2999];

/// The likeliest token in the test of temperature 0.
const GREEDY: usize = LIKELIEST[2];

/// Returns the results of each kind of kernel.
fn made(backend: &dyn Backend, uses: &Uses) -> Result<Vec<KernelResult>> {
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

/// The relative L2 distance.
fn distance(found: &[f32], expected: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let apart: f64 = found.iter().zip(expected).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    let size: f64 = expected.iter().map(|b| square(f64::from(*b))).sum();
    if found == expected { 0.0 } else { (apart / size).sqrt() }
}

fn compare(found: &KernelResult, expected: &[f32]) -> Result<()> {
    let apart = distance(&found.values, expected);
    // This also rejects NaN.
    if apart <= found.bound {
        return Ok(());
    }
    let bound = found.bound;
    Err(failed(
        &format!("{} as the CPU does", found.what),
        format!(
            "results with a relative L2 distance of {apart:.1e} from the CPU's; the limit is {bound:.0e}"
        ),
    ))
}

/// Compares the device's results with the CPU's, unless this executable has passed the self-test before. If this
/// self-test has excluded the faster kernels, returns the reason.
///
/// # Errors
/// If a kernel does not compile or run, or if its results differ.
pub(super) fn prove(cuda: &Cuda, uses: &Uses) -> Result<Option<Error>> {
    let device = cuda.queue.device();
    let untried = cuda.untried != Untried::default();
    let mut what = format!("{uses:?} {:?} {:?}", cuda.precision, cuda.cache_dtype);
    if untried {
        what += &format!(" {:?}", cuda.untried);
    }
    let (faster, why_not) = match device.remembered(&what) {
        Some(faster) => (faster, None),
        None => {
            let (faster, why_not) = proved(cuda, uses).map_err(|error| match untried {
                true => error.next(format!("unset {}, or run with --device cpu", features::UNTRIED)),
                false => error,
            })?;
            device.remember(&what, faster);
            (faster, why_not)
        }
    };
    if has_tiles(cuda) {
        cuda.warpgroups.store(faster, Relaxed);
    }
    if has_streams(cuda) {
        cuda.streams.store(faster, Relaxed);
    }
    Ok(why_not)
}

/// Runs the self-test. Returns whether the optional faster kernels exist and have passed: warpgroups in bfloat16,
/// weights through shared memory in integers. If they have failed, also returns their error. All other kernels have
/// passed.
fn proved(cuda: &Cuda, uses: &Uses) -> Result<(bool, Option<Error>)> {
    // Numbers whose sums are exact in every number type.
    let numbers = [1.0_f32, -2.5, 96.0, 0.125];
    let (x, mut sum) = (buffer(cuda, &numbers)?, cuda.buffer(numbers.len())?);
    cuda.add(&x, &x, numbers.len(), &mut sum)?;
    let found = values(cuda, &sum, numbers.len())?;
    if found != numbers.map(|x| x + x) {
        return Err(failed("add numbers", format!("{numbers:?} + {numbers:?} = {found:?}")));
    }

    let cpu = Cpu::default().with_precision(cuda.precision).with_cache_dtype(cuda.cache_dtype);
    let expected = made(&cpu, uses)?;
    let of_all = || {
        made(cuda, uses)?.iter().zip(&expected).try_for_each(|(found, expected)| {
            let compared = compare(found, &expected.values);
            if found.what == MANY_TOKENS && attention::splits(cuda, uses.heads) {
                let next = "switch them off with LLAMA_TRACE_CUDA_WITHOUT=split, or run with --device cpu";
                return compared.map_err(|error| error.next(next));
            }
            compared
        })
    };
    let of_streams = has_streams(cuda).then(|| {
        cuda.streams.store(true, Relaxed);
        let proved = of_all().and_then(|()| prove_streams(cuda, &cpu, uses));
        cuda.streams.store(false, Relaxed);
        proved
    });
    if !matches!(of_streams, Some(Ok(()))) {
        of_all().map_err(|error| match of_streams {
            // If the first kernels break the device, later ones fail too: report the first.
            Some(Err(ref first)) => first
                .clone()
                .next("switch them off with LLAMA_TRACE_CUDA_WITHOUT=streams, or run with --device cpu"),
            _ => error,
        })?;
    }
    compare_draws(&drawn(cuda)?, &[&LIKELIEST[..], &[GREEDY]].concat())?;
    if !has_tiles(cuda) {
        return Ok(whether(of_streams));
    }
    // The sizes above choose one kind of tiles; here every kind is tested. The tiles of warpgroups are faster, and
    // optional. If they break the device, the later tiles fail too.
    let expected = of_tiles(&cpu, |input, matrices, out| {
        cpu.matmul(input, &matrices[0], None, out)?;
        gated(&cpu, input, matrices.each_ref(), OF_TILES[0] * OF_TILES[1])
    })?;
    let prove = |all: &[Tiles]| {
        all.iter().try_for_each(|&tiles| {
            made_by_tiles(cuda, tiles)?.into_iter().zip(&expected).try_for_each(|(values, expected)| {
                compare(&KernelResult { what: "multiply in tiles", bound: 0.0, values }, expected)
            })
        })
    };
    let of_four = cuda.queue.device().has_warpgroups().then(|| prove(&product::OF_WARPGROUPS));
    // If the first kernels break the device, later ones fail too: report the first.
    match (of_four, prove(&product::OF_WARPS)) {
        (Some(Err(first)), Err(_)) => {
            Err(first.next("switch them off with LLAMA_TRACE_CUDA_WITHOUT=wgmma, or run with --device cpu"))
        }
        (_, Err(error)) => Err(error),
        (of_four, Ok(())) => Ok(whether(of_four)),
    }
}

/// For optional kernels: whether they exist and have passed the self-test; and their error, if they have failed it.
fn whether(proved: Option<Result<()>>) -> (bool, Option<Error>) {
    (matches!(proved, Some(Ok(()))), proved.and_then(Result::err))
}

/// Runs all kernels of the self-test, and ignores the results.
pub(super) fn run(cuda: &Cuda, uses: &Uses) {
    let _ = made(cuda, uses);
    let _ = drawn(cuda);
    if has_streams(cuda) {
        for &dtype in &uses.weights {
            for (width, rows) in
                sizes_of_streams(dtype).1.into_iter().flat_map(|width| [1, 3, 16].map(|rows| (width, rows)))
            {
                let _ = layer(cuda, dtype, rows, width);
            }
        }
    }
    if has_tiles(cuda) {
        let of_four: &[Tiles] =
            if cuda.queue.device().has_warpgroups() { &product::OF_WARPGROUPS } else { &[] };
        for tiles in of_four.iter().chain(&product::OF_WARPS) {
            let _ = made_by_tiles(cuda, *tiles);
        }
    }
}

/// The heads of a layer whose products go through shared memory.
const OF_STREAMS: AttentionShape = AttentionShape::llama(4, 2, 16, None);

/// The number of hidden values of such a layer, and two widths. The second width is more than one piece.
fn sizes_of_streams(dtype: Dtype) -> (usize, [usize; 2]) {
    if dtype.block() > 32 { (256, [256, 1280]) } else { (96, [64, 1120]) }
}

/// Computes a layer without attention for `rows` rows of `width` values, each row in its own sequence. Nothing is
/// recorded, so kernels are fused as in a model's run. Returns queries, keys, values, hidden, and the residual after
/// the feed-forward network.
fn layer(backend: &dyn Backend, dtype: Dtype, rows: usize, width: usize) -> Result<Vec<f32>> {
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

/// Compares layers of one row and of several with the CPU's, bit by bit.
fn prove_streams(cuda: &Cuda, cpu: &Cpu, uses: &Uses) -> Result<()> {
    for &dtype in &uses.weights {
        for width in sizes_of_streams(dtype).1 {
            for rows in [1, 3, 16] {
                let (values, expected) = (layer(cuda, dtype, rows, width)?, layer(cpu, dtype, rows, width)?);
                compare(&KernelResult { what: "multiply integers", bound: 0.0, values }, &expected)?;
            }
        }
    }
    Ok(())
}

/// Whether the device has integer products whose weights go through shared memory, whatever their self-test says.
fn has_streams(cuda: &Cuda) -> bool {
    cuda.precision.group().is_some() && cuda.queue.device().streams()
}

/// Whether the device multiplies in tiles of bfloat16.
fn has_tiles(cuda: &Cuda) -> bool {
    cuda.precision == Precision::Bf16
}

/// Returns the tokens that the device draws. Four logits are equal, and larger than all others. Two come next. Top-k
/// keeps these six, and top-p keeps the four. So each of the four has a quarter of the probability, in the order of
/// ids. For temperature 0, one of the four logits is larger.
fn drawn(cuda: &Cuda) -> Result<Vec<Drawn>> {
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

fn compare_draws(found: &[Drawn], expected: &[usize]) -> Result<()> {
    let expected: Vec<_> = expected.iter().map(|id| Drawn { id: *id as u32, not_a_number: false }).collect();
    if found == expected {
        return Ok(());
    }
    let word = |drawn: &Drawn| format!("{}{}", drawn.id, if drawn.not_a_number { " (from NaN)" } else { "" });
    let words = |drawn: &[Drawn]| drawn.iter().map(word).collect::<Vec<_>>().join(", ");
    let why = format!("tokens {}; the CPU draws {}", words(found), words(&expected));
    Err(failed("draw tokens as the CPU does", why))
}

/// Calls `run` with two matrices. Returns the product with the first, and hidden of both.
fn of_tiles(
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
fn made_by_tiles(cuda: &Cuda, tiles: Tiles) -> Result<[Vec<f32>; 2]> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use llama_trace_core::testing::sampled;
    use llama_trace_emulator::Asked;

    #[test]
    fn a_wrong_value_and_none_at_all_are_told_from_the_right_ones() {
        let made = |bound, values: &[f32]| KernelResult { what: "add", bound, values: values.to_vec() };
        assert!(compare(&made(0.0, &[1.0, 2.0]), &[1.0, 2.0]).is_ok());
        assert!(compare(&made(1e-3, &[1.0, 2.001]), &[1.0, 2.0]).is_ok());
        for wrong in [[1.0, 2.1], [1.0, f32::NAN], [f32::INFINITY, 2.0]] {
            let error = compare(&made(1e-3, &wrong), &[1.0, 2.0]).unwrap_err();
            assert!(error.to_string().contains("cannot add as the CPU does"), "{error}");
        }
    }

    #[test]
    fn a_wrong_token_and_a_logit_that_is_not_a_number_are_told() {
        let drawn = |id, not_a_number| Drawn { id, not_a_number };
        assert!(compare_draws(&[drawn(13, false), drawn(7, false)], &[13, 7]).is_ok());
        for (second, told) in
            [(drawn(8, false), "tokens 13, 8; the CPU draws 13, 7"), (drawn(7, true), "7 (from NaN)")]
        {
            let error = compare_draws(&[drawn(13, false), second], &[13, 7]).unwrap_err().to_string();
            assert!(error.contains("cannot draw tokens") && error.contains(told), "{error}");
        }
    }

    #[test]
    fn no_sum_of_the_products_is_rounded() {
        let (x, w) = (exact(20 * OF_TILES[2], 2), exact(OUTPUTS * OF_TILES[2], 1));
        assert!(x.iter().chain(&w).all(|x| half::bf16::from_f32(*x).to_f32() == *x));
        let dot =
            |row: &[f32], w: &[f32]| -> i64 { row.iter().zip(w).map(|(a, b)| (a * b).abs() as i64).sum() };
        let most =
            x.chunks(OF_TILES[2]).flat_map(|x| w.chunks(OF_TILES[2]).map(move |w| dot(x, w))).max().unwrap();
        assert!(most > 0 && most < 1 << 23, "{most}");
    }

    #[test]
    fn the_emulated_device_passes_in_every_precision() {
        let precisions = [Precision::F32, Precision::Bf16, Precision::Q8 { group: 32 }];
        let weights = [vec![Dtype::BF16], vec![Dtype::I8, Dtype::F32], vec![Dtype::Q4K, Dtype::Q6K]];
        let all = precisions.iter().flat_map(|precision| weights.iter().map(move |w| (*precision, w)));
        for (precision, weights) in sampled("number types that are proved", all, 3) {
            let Some(cuda) = Cuda::of_tests(1 << 30) else { return };
            passes(cuda, precision, weights);
        }
    }

    /// A device that is lost in warpgroup products is also lost for the later kernels.
    #[test]
    fn who_loses_the_device_to_the_products_of_four_warps_is_told_how_to_leave_them_out() {
        let Some((cuda, log)) = Cuda::logged(1 << 30) else { return };
        if !cuda.queue.device().has_warpgroups() {
            return;
        }
        prove(&cuda.with_precision(Precision::Bf16), &uses(vec![Dtype::BF16])).unwrap();
        let launches = |asked: &Asked| if let Asked::Launches(count) = asked { *count } else { 0 };
        let all: usize = log.lock().unwrap().iter().map(launches).sum();
        let told = |launches: usize| {
            let cuda = Cuda::lost_after(1 << 30, launches).unwrap().with_precision(Precision::Bf16);
            let error = prove(&cuda, &uses(vec![Dtype::BF16])).unwrap_err();
            error.to_string().contains("LLAMA_TRACE_CUDA_WITHOUT=wgmma")
        };
        // The last launches use single warps; the launches just before them use warpgroups. If the device is lost
        // earlier, the message does not name warpgroups.
        assert!(!told(all - 1) && !told(3), "of {all}");
        assert!((all - 12..all - 1).any(told), "of {all}");
    }

    #[test]
    fn what_was_proved_is_not_run_again_for_the_same_uses_and_is_for_others() {
        let Some((cuda, log)) = Cuda::logged(1 << 30) else { return };
        let launches = |precision, weights| {
            log.lock().unwrap().clear();
            let cuda = cuda.clone().with_precision(precision);
            assert!(!cuda.is_proved());
            cuda.prove(&uses(weights)).unwrap();
            assert!(cuda.is_proved());
            log.lock().unwrap().iter().any(|asked| matches!(asked, Asked::Launches(_)))
        };
        let (f32, bf16) = (Precision::F32, Precision::Bf16);
        assert!(launches(f32, vec![Dtype::Q4K]) && !launches(f32, vec![Dtype::Q4K]));
        assert!(launches(f32, vec![Dtype::Q6K]) && launches(bf16, vec![Dtype::BF16]));
        assert_eq!(cuda.kernel_name(), "sm_90a");
        cuda.warpgroups.store(false, Relaxed);
        assert!(!launches(bf16, vec![Dtype::BF16]));
        assert_eq!(cuda.kernel_name(), "sm_90a", "warpgroups have passed too");
    }

    /// The PTX interpreter needs no compiler.
    #[test]
    fn the_ptx_that_the_program_carries_passes_in_every_precision() {
        for precision in [Precision::F32, Precision::Bf16, Precision::Q8 { group: 32 }] {
            passes(Cuda::of_ptx(1 << 30), precision, &[Dtype::BF16]);
        }
    }

    fn uses(weights: Vec<Dtype>) -> Uses {
        Uses { weights, heads: AttentionShape::llama(8, 2, 64, None) }
    }

    fn passes(cuda: Cuda, precision: Precision, weights: &[Dtype]) {
        let cuda = cuda.with_precision(precision);
        let faster = has_streams(&cuda) || has_tiles(&cuda) && cuda.queue.device().has_warpgroups();
        // The self-test of an earlier process does not count.
        let (proved, why_not) = proved(&cuda, &uses(weights.to_vec())).unwrap();
        assert!(proved == faster && why_not.is_none(), "{precision:?} {weights:?}: {why_not:?}");
    }

    /// With so many heads, a few keys already reach the limit of keys times heads.
    #[test]
    fn untried_kernels_are_proved_and_the_variable_is_named_if_they_fail() {
        let untried = Untried { coalesced: true, wide: true };
        for (precision, weights) in
            [(Precision::Q8 { group: 32 }, Dtype::Q8_0), (Precision::Bf16, Dtype::Q4K)]
        {
            let Some((cuda, _)) = Cuda::with_large_blocks(1 << 28, None) else { return };
            passes(cuda.trying(untried), precision, &[weights]);
        }
        let Some((cuda, _)) = Cuda::with_large_blocks(1 << 28, Some("matmul_q8_wide")) else { return };
        let cuda = cuda.with_precision(Precision::Q8 { group: 32 });
        let uses = uses(vec![Dtype::Q8_0]);
        let error = prove(&cuda.clone().trying(untried), &uses).unwrap_err().to_string();
        assert!(error.contains("unset LLAMA_TRACE_CUDA_WITH,"), "{error}");
        // Without the variable, the device passes.
        assert!(prove(&cuda, &uses).unwrap().is_none());
    }

    #[test]
    fn a_model_of_many_heads_for_one_of_keys_is_proved_too() {
        let heads = AttentionShape::llama(256, 1, 8, None);
        let uses = Uses { weights: vec![Dtype::F32], heads };
        made(&Cpu::default(), &uses).unwrap();
    }

    #[test]
    fn what_is_faster_and_does_not_run_is_left_out_and_the_reason_is_told_once() {
        for (kernels, precision) in
            [("stream_", Precision::Q8 { group: 32 }), ("matmul_wgmma", Precision::Bf16)]
        {
            let Some(cuda) = Cuda::refusing(1 << 30, kernels) else { return };
            let cuda = cuda.with_precision(precision);
            let prove = || prove(&cuda, &uses(vec![Dtype::Q4K])).unwrap();
            let why_not = prove().map(|why| why.to_string()).unwrap_or_default();
            assert!(why_not.contains("CUDA_ERROR_INVALID_VALUE"), "{why_not}");
            assert!(!cuda.streams.load(Relaxed) && !cuda.warpgroups.load(Relaxed));
            assert!(prove().is_none(), "a remembered failure is not reported again");
        }
    }
}
