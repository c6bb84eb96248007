//! Where the operations of [`llama_trace_core::ops`] run.
//!
//! A [`Backend`] is a set of operations over buffers that it owns; outputs are passed in, so that a pass
//! allocates nothing. What the numbers mean is the model's business.
//!
//! What is new in a pass (its ids, its positions, how much is cached) is handed over once, by
//! [`Backend::begin_pass`], and lies from then on where the operations read it. Everything else that they are told
//! is the same in every pass over as many tokens. So a device may take down the operations of one pass and repeat
//! them for the next, as a CUDA graph does.

pub mod cpu;
mod pass;

use std::ops::Range;
use std::time::Duration;

use llama_trace_core::config::{CacheDtype, Pairing, Precision};
use llama_trace_core::error::Result;
use llama_trace_core::ops::blocks::BlockRows;
use llama_trace_core::ops::quantize::Quantized;
use llama_trace_core::stop::Stop;
use llama_trace_core::tensor::{Dtype, Tensor};

pub use pass::{PassRows, Span};

/// The sizes of an attention operation that are the same in every pass; T and K are the span's.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    /// H.
    pub heads: usize,
    /// G.
    pub kv_heads: usize,
    /// C.
    pub head_dim: usize,
    /// W: the keys that each token sees, its own the last of them; none for all up to its own.
    pub window: Option<usize>,
}

/// What attention has on the way to its result; rows as the stage of the same name has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionPart {
    /// The cached keys, repeated for every query head (K, H, C).
    Keys,
    /// The cached values, repeated for every query head (K, H, C).
    Values,
    /// Dot products (H, T, K).
    Qk,
    /// Divided by √C (H, T, K).
    Scores,
    /// With the mask added (H, T, K).
    MaskedScores,
    /// Attention weights (H, T, K).
    Softmax,
}

/// An observer of attention's parts. They exist only where it wants them.
pub trait AttentionSink {
    /// Whether the rows of `part` should be handed over.
    fn wants(&self, part: AttentionPart) -> bool;

    /// Takes some rows of `part`; a row is everything along the last axis.
    ///
    /// # Errors
    /// Those of whoever looks on; attention then ends with them.
    fn rows(&mut self, part: AttentionPart, rows: Range<usize>, values: &[f32]) -> Result<()>;

    /// Whether it also takes what is still on its way ([`Backend::fetched`]).
    fn waits(&self) -> bool {
        false
    }

    /// Takes all rows of `part`, which are still on their way.
    fn fetched(&mut self, part: AttentionPart, fetched: Fetched) {
        let _ = (part, fetched);
    }
}

/// Nobody looks at the parts of attention.
pub struct Nobody;

impl AttentionSink for Nobody {
    fn wants(&self, _: AttentionPart) -> bool {
        false
    }

    fn rows(&mut self, _: AttentionPart, _: Range<usize>, _: &[f32]) -> Result<()> {
        Ok(())
    }
}

/// Values on their way from a device, in memory that a pass keeps for them: see [`Backend::fetch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched(pub Range<usize>);

/// Operations whose results a viewer may also compute by itself, with the functions of [`llama_trace_core::ops`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// [`Backend::prepare`], where it quantises.
    Prepare,
    /// [`Backend::attention`], its parts and its result.
    Attention,
    /// [`Backend::silu`].
    Silu,
    /// [`Backend::mul`].
    Mul,
    /// [`Backend::add`].
    Add,
}

/// One of several products of the same input.
pub struct Product<'a, B: Backend> {
    /// w (O, I)
    pub matrix: &'a B::Matrix,
    /// (O), or none.
    pub bias: Option<&'a B::Vector>,
    /// (rows, O)
    pub out: &'a mut B::Buffer,
}

/// What the gated half of a feed-forward network makes, (rows, F) each.
pub struct Swiglu<'a, B: Backend> {
    /// x · w1ᵀ
    pub gate: Product<'a, B>,
    /// silu(gate)
    pub silu: &'a mut B::Buffer,
    /// x · w3ᵀ
    pub up: Product<'a, B>,
    /// silu · up
    pub hidden: &'a mut B::Buffer,
}

/// Sees the int8 values and the scales of an input.
pub type SeeInt8<'a> = &'a mut (dyn FnMut(&[i8], &[f32]) -> Result<()> + 'a);

/// Rows of a matrix whose products run in whole numbers, one after the other.
#[derive(Clone, Copy, Debug)]
pub enum WholeRows<'a> {
    /// int8 values with the scales of their groups.
    Int8(Quantized<'a>),
    /// Blocks.
    Blocks(BlockRows<'a>),
}

/// Sees rows of a matrix whose products run in whole numbers.
pub type SeeGroups<'a> = &'a mut (dyn FnMut(WholeRows<'_>) -> Result<()> + 'a);

/// Takes each output of a fused operation once it is there, with its number.
pub type Made<'a, B> = dyn FnMut(usize, &<B as Backend>::Buffer) -> Result<()> + 'a;

/// The vector unit of the processor that the program runs on, whatever device the model is on: for what is small and
/// stays here, such as drawing a token.
pub type Host = cpu::Kernel;

/// The most by which a product differs whose terms are added up in another order: the relative L2 distance.
pub const ORDERS_APART: f64 = 1e-6;

/// The same where sums are cut off on the way instead of rounded to float32, with up to 28,672 inputs. Tensor cores do so once
/// for every eight products (Fasi, Higham, Mikaitis and Pranesh, 2021), or seldomer: then the results of long products are
/// nearer to zero by some 3·10⁻⁹ for each input.
pub const CUT_OFF: f64 = 1e-4;

/// How a token is drawn: see [`crate::generate::Sampling`], which has been checked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// 0 for the most likely token.
    pub temperature: f32,
    /// 0 for no limit.
    pub top_k: usize,
    /// 1 for no limit.
    pub top_p: f32,
    /// The random number, from 0 to 1; any where the temperature is 0.
    pub random: f64,
}

/// A token that was drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drawn {
    /// The token.
    pub id: u32,
    /// Whether some logit is not a number.
    pub not_a_number: bool,
}

/// What a device can do at most, measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// Bytes read a second.
    pub read_bandwidth: f64,
    /// What was read: the kind of memory that the weights are in.
    pub memory: &'static str,
    /// Floating-point operations a second.
    pub multiply_rate: f64,
    /// What was multiplied, in words.
    pub multiplied: String,
}

/// The operations of a Llama. Buffers are float32, row-major, and may be longer than an operation needs:
/// the sizes passed in say what is read and written, from the beginning.
///
/// **Fused operations** have default bodies made of the plain ones, which are what they are held to: a device that
/// replaces one writes every output of it with the same bits, and shows each to `made`, in their order. So whoever
/// looks on sees the same stages, and nothing that is recorded changes which operation runs.
///
/// # Errors
/// Operations over many values return [`Error::Interrupted`](llama_trace_core::error::Error::Interrupted) where [`Backend::stop`] was asked
/// before they were done. What they were to write is then incomplete and must not be read. What makes something
/// returns an error with the bytes that were wanted where there is no memory for it. A device that works on its own
/// may find out late that an operation failed: then [`Backend::sync`] says so, or what reads first.
#[expect(clippy::missing_errors_doc, reason = "said once, above")]
pub trait Backend: Sized + Send + Sync {
    /// Activations.
    type Buffer: Send + Sync;
    /// A weight matrix (outputs, inputs), in the number type of its file.
    type Matrix: Send + Sync;
    /// A weight vector.
    type Vector: Send + Sync;
    /// Activations as a matrix product reads them: in another order, or in another number type.
    type Input: Send;
    /// The keys or the values of one layer of one sequence (capacity, G, C).
    type Cache: Send;
    /// What is new in a pass: ids, positions and spans, where the operations read them.
    type Pass: Send;
    /// A moment in its work.
    type Mark;

    /// Its name for users: "cpu".
    fn name(&self) -> &'static str;

    /// What its operations look at between blocks of rows.
    fn stop(&self) -> &Stop;

    /// Its inner loops, by name: the instruction set, or the device's architecture.
    fn kernel_name(&self) -> &'static str;

    /// Measures what the device can do at most, for a model whose matrices are of `matrices`. Reads `mapped`, the
    /// weights where they lie in a mapped file, if it can and there are enough of them, and takes `most` bytes of
    /// memory at most.
    fn limits(&self, matrices: Dtype, mapped: &[&[u8]], most: usize) -> Result<Limits>;

    /// The arithmetic that it computes in.
    fn precision(&self) -> Precision;

    /// Whether the results of `operation` have the bits that the functions of [`llama_trace_core::ops`] give. Where they have
    /// not, a viewer has this backend compute them.
    fn keeps_order(&self, operation: Operation) -> bool;

    /// Whether the products of `tokens` tokens of one sequence with `matrix` have the bits that the functions of
    /// [`llama_trace_core::ops`] give. Where they have not, their relative L2 distance from those stays under
    /// [`ORDERS_APART`], before they are rounded; where [`Backend::cuts_off`], [`CUT_OFF`] for many tokens.
    fn product_keeps_order(&self, matrix: &Self::Matrix, tokens: usize) -> bool;

    /// Whether the sums of long products are cut off on the way instead of rounded, as by tensor cores.
    fn cuts_off(&self) -> bool;

    /// The kind of processor that this is, and the line of the table of processors that makes this kernel the default on it;
    /// none where no such table is kept.
    fn table_line(&self) -> Option<(String, String)>;

    /// The same device once with each of its kernels, alike in everything else: each reads what any of them made.
    fn kernels(&self) -> Vec<Self>;

    /// The same device and kernel with each order in which it can read weights, by name: with the same bits. None where
    /// there is one.
    fn readings(&self) -> Vec<(String, Self)>;

    /// Rows of `matrix` as a matrix of their own, which shares their memory.
    fn cut(&self, matrix: &Self::Matrix, rows: Range<usize>) -> Result<Self::Matrix>;

    /// Bytes that may be taken for what is made from now on, as far as the system tells.
    fn free_memory(&self) -> Option<usize>;

    /// Now, in the order of its work: after the operations that were called before.
    fn mark(&self) -> Self::Mark;

    /// How long its work took from one moment to another; a [`Backend::sync`] has come after both.
    fn between(&self, from: &Self::Mark, to: &Self::Mark) -> Duration;

    /// Waits until everything that was called is done; the errors of work that went on by itself come out here.
    fn sync(&self) -> Result<()>;

    /// A buffer of `count` zeros.
    fn buffer(&self, count: usize) -> Result<Self::Buffer>;

    /// A matrix from a tensor of two axes.
    fn matrix(&self, tensor: &Tensor) -> Result<Self::Matrix>;

    /// A vector from a tensor of one axis.
    fn vector(&self, tensor: &Tensor) -> Result<Self::Vector>;

    /// Shows the values of `buffer` in `range` to `see`.
    fn read(
        &self,
        buffer: &Self::Buffer,
        range: Range<usize>,
        see: &mut dyn FnMut(&[f32]) -> Result<()>,
    ) -> Result<()>;

    /// Begins to bring the values of `buffer` in `range`, as they are after the operations so far, while the device goes on:
    /// [`Backend::fetched`] shows them later. None where it does not, or has no room for them before what was fetched in the
    /// pass is shown and given up ([`Backend::all_shown`]); [`Backend::read`] shows them in any case.
    fn fetch(
        &self,
        buffer: &Self::Buffer,
        range: Range<usize>,
        pass: &Self::Pass,
    ) -> Result<Option<Fetched>> {
        let _ = (buffer, range, pass);
        Ok(None)
    }

    /// The same for the first `count` values of `cache`, as [`Backend::read_cache`] shows them.
    fn fetch_cache(&self, cache: &Self::Cache, count: usize, pass: &Self::Pass) -> Result<Option<Fetched>> {
        let _ = (cache, count, pass);
        Ok(None)
    }

    /// The same for the int8 values and the scales of `rows` of `input`, as [`Backend::read_quantized`] shows them.
    fn fetch_quantized(
        &self,
        input: &Self::Input,
        rows: Range<usize>,
        pass: &Self::Pass,
    ) -> Result<Option<[Fetched; 2]>> {
        let _ = (input, rows, pass);
        Ok(None)
    }

    /// Has what was fetched so far come here while the device goes on with what it is asked for next.
    fn bring(&self, pass: &Self::Pass) -> Result<()> {
        let _ = pass;
        Ok(())
    }

    /// Shows the bytes of what was fetched in `pass` to `see`; waits until they are there.
    fn fetched(
        &self,
        fetched: &Fetched,
        pass: &Self::Pass,
        see: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let _ = (fetched, pass, see);
        Ok(())
    }

    /// Nobody wants any more what was fetched in `pass`: there is room for more.
    fn all_shown(&self, pass: &Self::Pass) {
        let _ = pass;
    }

    /// Shows `rows` of `matrix` (rows, inputs), widened to float32, to `see`.
    fn read_rows(
        &self,
        matrix: &Self::Matrix,
        rows: Range<usize>,
        see: &mut dyn FnMut(&[f32]) -> Result<()>,
    ) -> Result<()>;

    /// Shows `rows` of `matrix` as whole numbers with their scales to `see`: what its products multiply where
    /// they run in int8. Elsewhere there are none, and nothing is shown.
    fn read_int8_rows(&self, matrix: &Self::Matrix, rows: Range<usize>, see: SeeGroups<'_>) -> Result<()>;

    /// Shows all of `vector` to `see`.
    fn read_vector(&self, vector: &Self::Vector, see: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()>;

    /// Writes `values` over the beginning of `buffer`.
    fn write(&self, values: &[f32], buffer: &mut Self::Buffer) -> Result<()>;

    /// A pass over nothing.
    fn new_pass(&self) -> Result<Self::Pass>;

    /// Makes `pass` one over `spans`, whose ids are `ids`, those of all spans one after the other. `draws` says how
    /// [`Backend::draw`] draws a token after each span; there are none where it is not called.
    fn begin_pass(&self, ids: &[u32], spans: &[Span], draws: &[Draw], pass: &mut Self::Pass) -> Result<()>;

    /// Makes `pass` the one after it, over one token of each of the same sequences: the one that was drawn for it, which
    /// need not be known here yet. What was drawn before can still be asked for, pass by pass ([`Backend::drawn`]); of no
    /// more than two passes at a time. Only where it [`Backend::draws`].
    fn follow_pass(&self, spans: &[Span], draws: &[Draw], pass: &mut Self::Pass) -> Result<()> {
        let _ = (spans, draws, pass);
        Ok(())
    }

    /// out (rows, D): the rows of `table` (V, D) that the pass's ids name.
    fn embedding(&self, table: &Self::Matrix, pass: &Self::Pass, out: &mut Self::Buffer) -> Result<()>;

    /// cos and sin (rows, C/2) of the pass's positions; `frequencies` has the angle of each of the C/2 `pairs`.
    fn rope_table(
        &self,
        frequencies: &Self::Buffer,
        pairs: usize,
        pass: &Self::Pass,
        cos: &mut Self::Buffer,
        sin: &mut Self::Buffer,
    ) -> Result<()>;

    /// out (rows, D) = RMSNorm of x (rows, D).
    fn rms_norm(
        &self,
        x: &Self::Buffer,
        weight: &Self::Vector,
        eps: f32,
        rows: usize,
        out: &mut Self::Buffer,
    ) -> Result<()>;

    /// An input with nothing in it.
    fn input(&self) -> Self::Input;

    /// Makes x ready for the matrix products that read it, whose rows of `width` values are `rows` of the pass; in
    /// int8 it is quantised here. Whoever wants the values of x, or of what was shown beside it when it was made, reads
    /// them before: a backend that multiplies them in another form may leave them out of their buffers from the first product on,
    /// so x is not made ready a second time either. A backend that sums in another order for many tokens goes by
    /// [`PassRows::orders`], and never by how many rows there are: these depend on who looks on.
    fn prepare(
        &self,
        x: &Self::Buffer,
        width: usize,
        pass: &Self::Pass,
        rows: &PassRows,
        input: &mut Self::Input,
    ) -> Result<()>;

    /// Shows the int8 values (rows, width) and the scales (rows, groups) of `rows` of an input to `see`. There are
    /// none where products do not run in int8.
    fn read_quantized(&self, input: &Self::Input, rows: Range<usize>, see: SeeInt8<'_>) -> Result<()>;

    /// out (rows, O) = x (rows, I) · wᵀ (+ bias), w (O, I), for every row of the input.
    fn matmul(
        &self,
        x: &Self::Input,
        w: &Self::Matrix,
        bias: Option<&Self::Vector>,
        out: &mut Self::Buffer,
    ) -> Result<()>;

    /// out (rows, heads, C) = x turned by cos and sin (rows, C/2).
    #[expect(clippy::too_many_arguments, reason = "an operation with two tables and two sizes")]
    fn rope(
        &self,
        x: &Self::Buffer,
        cos: &Self::Buffer,
        sin: &Self::Buffer,
        pairing: Pairing,
        heads: usize,
        head_dim: usize,
        rows: usize,
        out: &mut Self::Buffer,
    ) -> Result<()>;

    /// The number type that keys and values are cached in.
    fn cache_dtype(&self) -> CacheDtype;

    /// A cache with room for `count` values. It may take the memory as it is written.
    fn new_cache(&self, count: usize) -> Result<Self::Cache>;

    /// cache\[start .. K\] = the rows (T, width) of span number `span` in x, rounded to the cache's number type.
    fn cache(
        &self,
        x: &Self::Buffer,
        width: usize,
        pass: &Self::Pass,
        span: usize,
        cache: &mut Self::Cache,
    ) -> Result<()>;

    /// Shows the first `count` values of `cache` to `see`.
    fn read_cache(
        &self,
        cache: &Self::Cache,
        count: usize,
        see: &mut dyn FnMut(&[f32]) -> Result<()>,
    ) -> Result<()>;

    /// The values of `cache` in `range` as a cache of their own, bit for bit.
    fn take_cache(&self, cache: &Self::Cache, range: Range<usize>) -> Result<Self::Cache>;

    /// cache\[at ..\] = all values of `from`, bit for bit.
    fn put_cache(&self, from: &Self::Cache, at: usize, cache: &mut Self::Cache) -> Result<()>;

    /// The rows (T, H, C) of span number `span` in out = softmax(q · keysᵀ / √C + mask) · values, with its rows
    /// (T, H, C) in q, and the cached keys and values (K, G, C) of its sequence. `sink` sees the parts it wants;
    /// they do not change the result.
    #[expect(clippy::too_many_arguments, reason = "an operation with three inputs and an observer")]
    fn attention(
        &self,
        shape: AttentionShape,
        q: &Self::Buffer,
        pass: &Self::Pass,
        span: usize,
        keys: &Self::Cache,
        values: &Self::Cache,
        out: &mut Self::Buffer,
        sink: &mut dyn AttentionSink,
    ) -> Result<()>;

    /// out = silu(x), the first `count` values.
    fn silu(&self, x: &Self::Buffer, count: usize, out: &mut Self::Buffer) -> Result<()>;

    /// out = a · b, the first `count` values.
    fn mul(&self, a: &Self::Buffer, b: &Self::Buffer, count: usize, out: &mut Self::Buffer) -> Result<()>;

    /// out = a + b, the first `count` values.
    fn add(&self, a: &Self::Buffer, b: &Self::Buffer, count: usize, out: &mut Self::Buffer) -> Result<()>;

    /// out (rows, width) = `rows` of x, which has all rows of the pass.
    fn rows(
        &self,
        x: &Self::Buffer,
        width: usize,
        pass: &Self::Pass,
        rows: &PassRows,
        out: &mut Self::Buffer,
    ) -> Result<()>;

    /// Whether it draws tokens by itself. Where it does not, the sampler reads the logits.
    fn draws(&self) -> bool {
        false
    }

    /// Draws a token from each row of logits (spans, V), as [`Backend::begin_pass`] was told: the one that
    /// [`crate::generate::Sampler`] draws by the same random number, but within 10⁻⁶ of the edge between two.
    fn draw(&self, logits: &Self::Buffer, vocab: usize, pass: &Self::Pass) -> Result<()> {
        let _ = (logits, vocab, pass);
        Ok(())
    }

    /// What was drawn in the pass, span by span; waits for it, as [`Backend::sync`] does. Where another pass has followed
    /// it already, of the first one first.
    fn drawn(&self, pass: &Self::Pass) -> Result<Vec<Drawn>> {
        let _ = pass;
        Ok(Vec::new())
    }

    /// Fused: several products of one input. `made` is shown their outputs.
    fn matmuls(
        &self,
        x: &Self::Input,
        products: &mut [Product<'_, Self>],
        made: &mut Made<'_, Self>,
    ) -> Result<()> {
        for (i, Product { matrix, bias, out }) in products.iter_mut().enumerate() {
            self.matmul(x, matrix, *bias, out)?;
            made(i, out)?;
        }
        Ok(())
    }

    /// Fused: a residual and the norm that reads it. sum = a + b, normed = RMSNorm of sum, both (rows, width). `made`
    /// is shown sum and normed.
    fn add_rms_norm(
        &self,
        (a, b): (&Self::Buffer, &Self::Buffer),
        weight: &Self::Vector,
        eps: f32,
        (rows, width): (usize, usize),
        (sum, normed): (&mut Self::Buffer, &mut Self::Buffer),
        made: &mut Made<'_, Self>,
    ) -> Result<()> {
        self.add(a, b, rows * width, sum)?;
        made(0, sum)?;
        self.rms_norm(sum, weight, eps, rows, normed)?;
        made(1, normed)
    }

    /// Fused: the gated half of the feed-forward network, `count` values of each output. `made` is shown gate, silu,
    /// up and hidden.
    fn swiglu(
        &self,
        x: &Self::Input,
        count: usize,
        outputs: Swiglu<'_, Self>,
        made: &mut Made<'_, Self>,
    ) -> Result<()> {
        let Swiglu { gate, silu, up, hidden } = outputs;
        self.matmul(x, gate.matrix, gate.bias, gate.out)?;
        made(0, gate.out)?;
        self.silu(gate.out, count, silu)?;
        made(1, silu)?;
        self.matmul(x, up.matrix, up.bias, up.out)?;
        made(2, up.out)?;
        self.mul(silu, up.out, count, hidden)?;
        made(3, hidden)
    }
}
