//! The backends: devices that run the operations of [`llama_trace_core::ops`].
//!
//! A [`Backend`] is a set of operations over buffers that it owns. The caller holds them as handles ([`Buffer`]) and
//! passes the output buffers in, so a pass allocates nothing. A backend knows nothing about the meaning of the numbers.
//!
//! [`Backend::begin_pass`] sets everything that is new in a pass: its ids, its positions and the number of cached
//! tokens. These values are in memory that the operations can read. All other arguments are the same in every pass over
//! the same number of tokens. A device may therefore record the operations of one pass and replay them for the next, as
//! a CUDA graph does.

pub mod cpu;
pub mod family;
mod handles;
mod pass;
pub mod plain;

use std::ops::Range;
use std::time::Duration;

use llama_trace_core::config::{Arithmetic, CacheDtype, ModelConfig, Pairing, Precision, Sees};
use llama_trace_core::error::Result;
use llama_trace_core::ops::blocks::BlockRows;
use llama_trace_core::ops::quantize::Quantized;
use llama_trace_core::stop::Stop;
use llama_trace_core::tensor::{Dtype, Tensor};

pub use cpu::edited;
pub use cpu::free_memory as free_host_memory;
pub use handles::{Buffer, Cache, Input, Mark, Matrix, Pass, Vector};
pub use pass::{PassRows, Span};

/// The sizes of an attention operation that are the same in every pass. T and K depend on the span.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    /// H.
    pub heads: usize,
    /// G.
    pub kv_heads: usize,
    /// C.
    pub head_dim: usize,
    /// The keys that each token sees.
    pub sees: Sees,
    /// The factor of the dot products; `None` for 1/√C.
    pub scale: Option<f32>,
    /// The soft cap of the scores.
    pub cap: Option<f32>,
}

impl AttentionShape {
    /// Llama's attention, with a window if there is one.
    pub const fn llama(heads: usize, kv_heads: usize, head_dim: usize, window: Option<usize>) -> Self {
        let sees = match window {
            Some(window) => Sees::Window(window),
            None => Sees::All,
        };
        Self { heads, kv_heads, head_dim, sees, scale: None, cap: None }
    }

    /// Attention of `layer`.
    pub fn of(config: &ModelConfig, layer: usize) -> Self {
        Self {
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            sees: config.sees(layer),
            scale: config.score_scale,
            cap: config.score_cap,
        }
    }
}

/// The intermediate results of attention. Each part has the rows of the stage with the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionPart {
    /// The cached keys, repeated for every query head (K, H, C).
    Keys,
    /// The cached values, repeated for every query head (K, H, C).
    Values,
    /// Dot products (H, T, K).
    Qk,
    /// The dot products divided by √C (H, T, K).
    Scores,
    /// The scores after the soft cap (H, T, K), in families with one.
    CappedScores,
    /// The scores with the mask added (H, T, K).
    MaskedScores,
    /// Attention weights (H, T, K).
    Softmax,
}

impl AttentionPart {
    /// All parts, in the order in which attention computes them.
    pub const ALL: [Self; 7] = [
        Self::Keys,
        Self::Values,
        Self::Qk,
        Self::Scores,
        Self::CappedScores,
        Self::MaskedScores,
        Self::Softmax,
    ];
}

/// An observer of attention's intermediate results. They are computed only if the observer wants them.
pub trait AttentionSink {
    /// Whether the rows of `part` should be handed over.
    fn wants(&self, part: AttentionPart) -> bool;

    /// Receives some rows of `part`. A row is everything along the last axis.
    ///
    /// # Errors
    /// The observer's own errors; attention then stops with them.
    fn rows(&mut self, part: AttentionPart, rows: Range<usize>, values: &[f32]) -> Result<()>;

    /// Whether the observer also accepts values that the device is still copying ([`Backend::fetched`]).
    fn waits(&self) -> bool {
        false
    }

    /// Receives all rows of `part` while the device is still copying them.
    fn fetched(&mut self, part: AttentionPart, fetched: Fetched) {
        let _ = (part, fetched);
    }
}

/// A sink that wants no part of attention.
pub struct NoSink;

impl AttentionSink for NoSink {
    fn wants(&self, _: AttentionPart) -> bool {
        false
    }

    fn rows(&mut self, _: AttentionPart, _: Range<usize>, _: &[f32]) -> Result<()> {
        Ok(())
    }
}

/// Values that a device is copying to the host, in memory owned by the pass. See [`Backend::fetch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched(pub Range<usize>);

/// Operations that a viewer may also compute itself, with the functions of [`llama_trace_core::ops`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// [`Backend::prepare`], if it quantises.
    Prepare,
    /// [`Backend::attention`]: its intermediate results and its output.
    Attention,
    /// [`Backend::silu`].
    Silu,
    /// [`Backend::mul`].
    Mul,
    /// [`Backend::add`].
    Add,
}

/// One of several products of the same input.
pub struct Product<'a> {
    /// w (O, I)
    pub matrix: &'a Matrix,
    /// (O), optional.
    pub bias: Option<&'a Vector>,
    /// (rows, O)
    pub out: &'a mut Buffer,
}

/// The outputs of the gated part of a feed-forward network: gate, its SiLU, up and their product. Each has the
/// shape (rows, F).
pub struct Swiglu<'a> {
    /// x · w1ᵀ
    pub gate: Product<'a>,
    /// silu(gate)
    pub silu: &'a mut Buffer,
    /// x · w3ᵀ
    pub up: Product<'a>,
    /// silu · up
    pub hidden: &'a mut Buffer,
}

/// A callback that receives the int8 values and the scales of an input.
pub type SeeInt8<'a> = &'a mut (dyn FnMut(&[i8], &[f32]) -> Result<()> + 'a);

/// Consecutive rows of a matrix whose products run in integers.
#[derive(Clone, Copy, Debug)]
pub enum WholeRows<'a> {
    /// int8 values with the scales of their groups.
    Int8(Quantized<'a>),
    /// Blocks.
    Blocks(BlockRows<'a>),
}

/// A callback that receives rows of a matrix whose products run in integers.
pub type SeeGroups<'a> = &'a mut (dyn FnMut(WholeRows<'_>) -> Result<()> + 'a);

/// A callback that receives each output of a fused operation after it was computed, with its number. It must not change
/// an output from which the same operation computes another one ([`plain`] has the form for this).
pub type OnOutput<'a> = dyn FnMut(usize, &mut Buffer) -> Result<()> + 'a;

/// The vector unit of the host's processor, whatever device the model runs on. It does small work on the host, such as
/// sampling a token.
pub type Host = cpu::Kernel;

/// The tolerance for a product whose terms are added in another order, as a relative L2 distance.
pub const REORDER_TOLERANCE: f64 = 1e-6;

/// The tolerance for a product whose partial sums are truncated instead of rounded to float32, with up to 28,672
/// inputs: a relative L2 distance. Tensor cores truncate after every eight products (Fasi, Higham, Mikaitis and
/// Pranesh, 2021) or less often. The results of long products are then nearer to zero, by about 3·10⁻⁹ for each input.
pub const TRUNCATION_TOLERANCE: f64 = 1e-4;

/// How a token is sampled: the checked values of [`crate::generate::Sampling`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// 0 for the most likely token.
    pub temperature: f32,
    /// 0 for no limit.
    pub top_k: usize,
    /// 1 for no limit.
    pub top_p: f32,
    /// The random number, from 0 to 1. It is not used if the temperature is 0.
    pub random: f64,
}

/// A sampled token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drawn {
    /// The token.
    pub id: u32,
    /// Whether any logit is NaN.
    pub not_a_number: bool,
}

/// The measured limits of a device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// Bytes read per second.
    pub read_bandwidth: f64,
    /// The kind of memory that was read, which is the kind that holds the weights.
    pub memory: &'static str,
    /// Floating-point operations per second.
    pub multiply_rate: f64,
    /// The kind of multiplication that was measured, in words.
    pub multiplied: String,
}

/// The operations of a Llama. Buffers are float32 and row-major. They may be longer than an operation needs: the sizes
/// passed in say how many values are read and written, from the beginning.
///
/// **Fused operations** have default bodies made of the plain operations, which define their results. A device that
/// replaces a default body writes every output with the same bits and passes each output to `on_output`, in order. The
/// probe therefore sees the same stages, and a recording never changes which operation runs.
///
/// # Errors
/// Operations over many values return [`Error::Interrupted`](llama_trace_core::error::Error::Interrupted) if
/// [`Backend::stop`] was requested before they were done. Their output is then incomplete and must not be read.
/// Operations that allocate return an error with the number of bytes needed if there is not enough memory. A device
/// that works asynchronously may detect a failure late. [`Backend::sync`] or the next read then returns the error.
#[expect(clippy::missing_errors_doc, reason = "said once, above")]
pub trait Backend: Send + Sync {
    /// The name that users see, for example "cpu".
    fn name(&self) -> &'static str;

    /// The stop request, which operations check between blocks of rows.
    fn stop(&self) -> &Stop;

    /// The name of the inner loops: the instruction set, or the architecture of the device.
    fn kernel_name(&self) -> &'static str;

    /// Measures the limits of the device, for a model whose matrices have the type `matrices`. Reads `mapped`, the
    /// weights in a mapped file, if the device can and there are enough of them. Allocates at most `most` bytes.
    fn limits(&self, matrices: Dtype, mapped: &[&[u8]], most: usize) -> Result<Limits>;

    /// The precision of the computation.
    fn precision(&self) -> Precision;

    /// The arithmetic of the computation.
    fn arithmetic(&self) -> Arithmetic;

    /// Whether `operation` gives the same bits as the functions of [`llama_trace_core::ops`] in the same arithmetic. If not, a viewer lets
    /// this backend compute it.
    fn bit_exact(&self, operation: Operation) -> bool;

    /// Whether the products of `matrix` with `tokens` tokens of one sequence give the same bits as the functions of
    /// [`llama_trace_core::ops`] in the same arithmetic. If not, the relative L2 distance between the two results stays under
    /// [`REORDER_TOLERANCE`], before rounding. If the backend truncates sums ([`Backend::truncates_sums`]) and there
    /// are many tokens, the bound is [`TRUNCATION_TOLERANCE`].
    fn product_bit_exact(&self, matrix: &Matrix, tokens: usize) -> bool;

    /// Whether the partial sums of long products are truncated instead of rounded, as in tensor cores.
    fn truncates_sums(&self) -> bool;

    /// The kind of this processor, and the line of the table of processors that selects this kernel by default. `None`
    /// if the device has no such table.
    fn table_line(&self) -> Option<(String, String)>;

    /// One copy of this device for each of its kernels; everything else is equal. Each copy can read the matrices and
    /// buffers of the others.
    fn kernels(&self) -> Vec<Box<dyn Backend>>;

    /// One copy of this device and kernel for each order in which it can read weights, with the name of the order. The
    /// results have the same bits. Empty if there is only one order.
    fn readings(&self) -> Vec<(String, Box<dyn Backend>)>;

    /// Some rows of `matrix` as a separate matrix that shares its memory.
    fn cut(&self, matrix: &Matrix, rows: Range<usize>) -> Result<Matrix>;

    /// The operations of families other than Llama; `None` if the device does not have them.
    fn families(&self) -> Option<&dyn family::FamilyOperations> {
        None
    }

    /// The number of bytes that can still be allocated, as far as the system reports it.
    fn free_memory(&self) -> Option<usize>;

    /// Records the current point in the device's work, after all operations called so far.
    fn mark(&self) -> Mark;

    /// The time that the device's work took between two marks. Call [`Backend::sync`] after both marks first.
    fn between(&self, from: &Mark, to: &Mark) -> Duration;

    /// Waits for all operations called so far. Errors of asynchronous work are returned here.
    fn sync(&self) -> Result<()>;

    /// A buffer of `count` zeros.
    fn buffer(&self, count: usize) -> Result<Buffer>;

    /// A matrix from a tensor of two axes.
    fn matrix(&self, tensor: &Tensor) -> Result<Matrix>;

    /// A vector from a tensor of one axis.
    fn vector(&self, tensor: &Tensor) -> Result<Vector>;

    /// Shows the values of `buffer` in `range` to `see`.
    fn read(
        &self,
        buffer: &Buffer,
        range: Range<usize>,
        see: &mut dyn FnMut(&[f32]) -> Result<()>,
    ) -> Result<()>;

    /// Starts an asynchronous copy of the values of `buffer` in `range` to the host. The values are those after all
    /// operations called so far. [`Backend::fetched`] shows them later. Returns `None` if the backend cannot do this,
    /// or has no room until the earlier fetches of the pass are shown and released ([`Backend::all_shown`]).
    /// [`Backend::read`] always works.
    fn fetch(&self, buffer: &Buffer, range: Range<usize>, pass: &Pass) -> Result<Option<Fetched>> {
        let _ = (buffer, range, pass);
        Ok(None)
    }

    /// [`Backend::fetch`] for the first `count` values of `cache`, in the form of [`Backend::read_cache`].
    fn fetch_cache(&self, cache: &Cache, count: usize, pass: &Pass) -> Result<Option<Fetched>> {
        let _ = (cache, count, pass);
        Ok(None)
    }

    /// [`Backend::fetch`] for the int8 values and the scales of `rows` of `input`, in the form of
    /// [`Backend::read_quantized`].
    fn fetch_quantized(
        &self,
        input: &Input,
        rows: Range<usize>,
        pass: &Pass,
    ) -> Result<Option<[Fetched; 2]>> {
        let _ = (input, rows, pass);
        Ok(None)
    }

    /// Starts copying the fetched values to the host while the device continues with later work.
    fn bring(&self, pass: &Pass) -> Result<()> {
        let _ = pass;
        Ok(())
    }

    /// Shows the bytes of one fetch of `pass` to `see`. Waits until they have arrived.
    fn fetched(
        &self,
        fetched: &Fetched,
        pass: &Pass,
        see: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let _ = (fetched, pass, see);
        Ok(())
    }

    /// Releases the memory of all fetches of `pass`.
    fn all_shown(&self, pass: &Pass) {
        let _ = pass;
    }

    /// Shows `rows` of `matrix` (rows, inputs), widened to float32, to `see`.
    fn read_rows(
        &self,
        matrix: &Matrix,
        rows: Range<usize>,
        see: &mut dyn FnMut(&[f32]) -> Result<()>,
    ) -> Result<()>;

    /// Shows `rows` of `matrix` to `see` as integers with their scales. This is the form that its products multiply if
    /// they run in int8. In other precisions it shows nothing.
    fn read_int8_rows(&self, matrix: &Matrix, rows: Range<usize>, see: SeeGroups<'_>) -> Result<()>;

    /// Shows all of `vector` to `see`.
    fn read_vector(&self, vector: &Vector, see: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()>;

    /// Writes `values` to `buffer`, from value `at` on.
    fn write(&self, values: &[f32], at: usize, buffer: &mut Buffer) -> Result<()>;

    /// Writes `values` over the beginning of `cache`, rounded to the cache's number type.
    fn write_cache(&self, values: &[f32], cache: &mut Cache) -> Result<()>;

    /// Creates a pass without tokens.
    fn new_pass(&self) -> Result<Pass>;

    /// Sets `pass` to `spans`. `ids` holds the ids of all spans, one span after the other. `draws` says how
    /// [`Backend::draw`] samples a token after each span; it is empty if no token is sampled.
    fn begin_pass(&self, ids: &[u32], spans: &[Span], draws: &[Draw], pass: &mut Pass) -> Result<()>;

    /// Sets `pass` to the next pass, over one token of each of the same sequences: the token that was just sampled. The
    /// host need not know it yet. Earlier draws can still be read, pass by pass ([`Backend::drawn`]), for at most two
    /// passes at a time. Only for a backend that samples tokens itself ([`Backend::draws`]).
    fn follow_pass(&self, spans: &[Span], draws: &[Draw], pass: &mut Pass) -> Result<()> {
        let _ = (spans, draws, pass);
        Ok(())
    }

    /// out (rows, D): the rows of `table` (V, D) with the pass's ids.
    fn embedding(&self, table: &Matrix, pass: &Pass, out: &mut Buffer) -> Result<()>;

    /// cos and sin (rows, C/2) of the pass's positions. `frequencies` holds the angle per position of each of the C/2
    /// `pairs`.
    fn rope_table(
        &self,
        frequencies: &Buffer,
        pairs: usize,
        pass: &Pass,
        cos: &mut Buffer,
        sin: &mut Buffer,
    ) -> Result<()>;

    /// out (rows, D) = RMSNorm of x (rows, D).
    fn rms_norm(&self, x: &Buffer, weight: &Vector, eps: f32, rows: usize, out: &mut Buffer) -> Result<()>;

    /// Creates an empty input.
    fn input(&self) -> Input;

    /// Prepares x for the matrix products that read it. Its rows of `width` values are `rows` of the pass. In int8,
    /// this quantises x.
    ///
    /// Read the values of x, and of the stages computed together with x, before this call. A backend that multiplies
    /// another form of x may never write these buffers. For the same reason x must not be prepared twice.
    ///
    /// A backend that sums in another order for many tokens must choose by [`PassRows::orders`], never by the number of
    /// rows. The number of rows depends on the probe.
    fn prepare(
        &self,
        x: &Buffer,
        width: usize,
        pass: &Pass,
        rows: &PassRows,
        input: &mut Input,
    ) -> Result<()>;

    /// Shows the int8 values (rows, width) and the scales (rows, groups) of `rows` of an input to `see`. Shows nothing
    /// if products do not run in int8.
    fn read_quantized(&self, input: &Input, rows: Range<usize>, see: SeeInt8<'_>) -> Result<()>;

    /// out (rows, O) = x (rows, I) · wᵀ (+ bias), w (O, I), for every row of the input.
    fn matmul(&self, x: &Input, w: &Matrix, bias: Option<&Vector>, out: &mut Buffer) -> Result<()>;

    /// out (rows, heads, C) = x rotated by cos and sin (rows, C/2).
    #[expect(clippy::too_many_arguments, reason = "an operation with two tables and two sizes")]
    fn rope(
        &self,
        x: &Buffer,
        cos: &Buffer,
        sin: &Buffer,
        pairing: Pairing,
        heads: usize,
        head_dim: usize,
        rows: usize,
        out: &mut Buffer,
    ) -> Result<()>;

    /// The number type of cached keys and values.
    fn cache_dtype(&self) -> CacheDtype;

    /// Creates a cache with room for `count` values. Memory may be allocated later, when it is written.
    fn new_cache(&self, count: usize) -> Result<Cache>;

    /// cache\[start .. K\] = the rows (T, width) of span number `span` in x, rounded to the cache's number type.
    fn cache(&self, x: &Buffer, width: usize, pass: &Pass, span: usize, cache: &mut Cache) -> Result<()>;

    /// Shows the first `count` values of `cache` to `see`.
    fn read_cache(
        &self,
        cache: &Cache,
        count: usize,
        see: &mut dyn FnMut(&[f32]) -> Result<()>,
    ) -> Result<()>;

    /// Copies the values of `cache` in `range` into a new cache, bit for bit.
    fn take_cache(&self, cache: &Cache, range: Range<usize>) -> Result<Cache>;

    /// cache\[at ..\] = all values of `from`, bit for bit.
    fn put_cache(&self, from: &Cache, at: usize, cache: &mut Cache) -> Result<()>;

    /// Attention of span number `span`: out = softmax(q · keysᵀ / √C + mask) · values. Its rows in q and out are (T, H,
    /// C). The cached keys and values of its sequence are (K, G, C). `sink` receives the intermediate results that it
    /// wants; they do not change the result.
    #[expect(clippy::too_many_arguments, reason = "an operation with three inputs and an observer")]
    fn attention(
        &self,
        shape: AttentionShape,
        q: &Buffer,
        pass: &Pass,
        span: usize,
        keys: &Cache,
        values: &Cache,
        out: &mut Buffer,
        sink: &mut dyn AttentionSink,
    ) -> Result<()>;

    /// out = silu(x), the first `count` values.
    fn silu(&self, x: &Buffer, count: usize, out: &mut Buffer) -> Result<()>;

    /// out = a · b, the first `count` values.
    fn mul(&self, a: &Buffer, b: &Buffer, count: usize, out: &mut Buffer) -> Result<()>;

    /// out = a + b, the first `count` values.
    fn add(&self, a: &Buffer, b: &Buffer, count: usize, out: &mut Buffer) -> Result<()>;

    /// out (rows, width) = `rows` of x. x has all rows of the pass.
    fn rows(&self, x: &Buffer, width: usize, pass: &Pass, rows: &PassRows, out: &mut Buffer) -> Result<()>;

    /// Whether the device samples tokens itself. If not, the sampler reads the logits.
    fn draws(&self) -> bool {
        false
    }

    /// Samples a token from each row of logits (spans, V), with the draws of [`Backend::begin_pass`]. The result is the
    /// token that [`crate::generate::Sampler`] samples with the same random number. The two tokens may differ only if a
    /// sum of probabilities is within 10⁻⁶ of the limit that decides between them.
    fn draw(&self, logits: &Buffer, vocab: usize, pass: &Pass) -> Result<()> {
        let _ = (logits, vocab, pass);
        Ok(())
    }

    /// The sampled tokens of the pass, one for each span. Waits for them, like [`Backend::sync`]. If the next pass was
    /// already launched, the tokens of the earlier pass are returned first.
    fn drawn(&self, pass: &Pass) -> Result<Vec<Drawn>> {
        let _ = pass;
        Ok(Vec::new())
    }

    /// Fused: several products of one input. `on_output` receives their outputs.
    fn matmuls(&self, x: &Input, products: &mut [Product<'_>], on_output: &mut OnOutput<'_>) -> Result<()> {
        for (i, Product { matrix, bias, out }) in products.iter_mut().enumerate() {
            self.matmul(x, matrix, *bias, out)?;
            on_output(i, out)?;
        }
        Ok(())
    }

    /// Fused: a residual and the norm that reads it. sum = a + b, normed = RMSNorm of sum, both (rows, width).
    /// `on_output` receives sum and normed.
    fn add_rms_norm(
        &self,
        (a, b): (&Buffer, &Buffer),
        weight: &Vector,
        eps: f32,
        (rows, width): (usize, usize),
        (sum, normed): (&mut Buffer, &mut Buffer),
        on_output: &mut OnOutput<'_>,
    ) -> Result<()> {
        plain::add_rms_norm(self, (a, b), weight, eps, (rows, width), (sum, normed), on_output)
    }

    /// Fused: gate, its SiLU, up and their product in the feed-forward network, `count` values each. `on_output`
    /// receives gate, silu, up and hidden.
    fn swiglu(
        &self,
        x: &Input,
        count: usize,
        outputs: Swiglu<'_>,
        on_output: &mut OnOutput<'_>,
    ) -> Result<()> {
        plain::swiglu(self, x, count, outputs, on_output)
    }
}
