//! The inner loops of [`llama_trace_core::ops`], written or compiled for each vector instruction set and chosen at run time.
//!
//! Every kernel computes the sums of `ops/` in the same order with the same fused multiply-adds, so the
//! choice changes the speed and not one bit of a result. The exception is [`bf16_gemm`]: where the processor
//! multiplies bfloat16, long products of many rows have another order.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512bf16;
#[cfg(target_arch = "x86_64")]
pub(super) mod bf16_gemm;
#[cfg(target_arch = "x86_64")]
pub(super) mod bf16_packed;
#[cfg(target_arch = "x86_64")]
pub(super) mod bf16_tiles;
#[cfg(target_arch = "x86_64")]
pub(super) mod bf16_unit;
mod blocks;
#[cfg(target_arch = "x86_64")]
mod compiled;
#[cfg(target_arch = "x86_64")]
mod emulated;
pub(super) mod gemm;
mod limits;
mod portable;
mod processor;
pub(super) mod q8;
mod readings;
mod rows;
#[cfg(target_arch = "x86_64")]
mod vectors;
#[cfg(target_arch = "x86_64")]
mod vnni;

use std::ops::Range;
use std::sync::OnceLock;

use gemm::{Packed, Scratch};
use half::{bf16, f16};
use limits::CHAINS;
pub use limits::Multiplied;
use processor::{Processor, Reading};
pub(super) use rows::{Aligned, GroupScales, Rows, Spaced, widen, with_format};

use llama_trace_core::config::{Pairing, Precision};
use llama_trace_core::error::Result;
use llama_trace_core::ops;
use llama_trace_core::ops::matmul::{LANES, STRETCH};
use llama_trace_core::stop::Stop;
use llama_trace_core::tensor::Dtype;

/// Queries from which packing the keys pays that they read.
const MIN_QUERIES: usize = 8;

/// The inner loops for one instruction set. A value of this type exists only for a set that the processor
/// has; that is what makes calling them sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    isa: Isa,
    /// What multiplies bfloat16, where it is used.
    #[cfg(target_arch = "x86_64")]
    bf16: Option<bf16_unit::Unit>,
    reading: Reading,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Isa {
    /// AVX-512 F, BW, DQ and VL: 16 values at once.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// The same with VNNI: int8 products of 64 values at once.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    /// AVX2, FMA and F16C: 8 values at once.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// The same with AVX-VNNI: int8 products of 32 values at once.
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    /// What the compiler makes of the plain operations; serves Arm too.
    Portable,
}

impl Kernel {
    /// The kernels that this processor can run, those first that should be fastest; the last is always `portable`.
    pub fn available() -> Vec<Self> {
        let mut kernels = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let [avx2, avx512, vnni] = vectors::vectors();
            let of_unit = |unit| Self { bf16: Some(unit), ..Self::new(Isa::Avx512Vnni) };
            kernels.extend((vnni && amx::available()).then_some(of_unit(bf16_unit::Unit::Amx)));
            let of_vectors = bf16_unit::Unit::Avx512Bf16 { in_place: Reading::here().in_place };
            kernels.extend((vnni && avx512bf16::available()).then_some(of_unit(of_vectors)));
            kernels.extend(vnni.then_some(Self::new(Isa::Avx512Vnni)));
            kernels.extend(avx512.then_some(Self::new(Isa::Avx512)));
            let avxvnni = avx2 && (is_x86_feature_detected!("avxvnni") || emulated::on());
            kernels.extend(avxvnni.then_some(Self::new(Isa::AvxVnni)));
            kernels.extend(avx2.then_some(Self::new(Isa::Avx2)));
        }
        kernels.push(Self::new(Isa::Portable));
        kernels
    }

    /// The plain kernel of an instruction set that the processor has.
    fn new(isa: Isa) -> Self {
        Self {
            isa,
            #[cfg(target_arch = "x86_64")]
            bf16: None,
            reading: Reading::here(),
        }
    }

    /// The fastest instruction set with plain loops in place of a unit for bfloat16: what is chosen where there is
    /// such a unit can be tested where there is none.
    #[cfg(all(any(test, feature = "testing"), target_arch = "x86_64"))]
    pub fn plain_unit() -> Self {
        Self { bf16: Some(bf16_unit::Unit::Plain), ..Self::default() }
    }

    /// Its name, as `--cpu-kernel` takes it.
    pub fn name(self) -> &'static str {
        #[cfg(target_arch = "x86_64")]
        if let Some(unit) = self.bf16 {
            return unit.name();
        }
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => "avx512vnni",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => "avxvnni",
            Isa::Portable => "portable",
        }
    }

    /// out (rows of x)(rows of w) = x · wᵀ for a few rows of `x`, reading each weight once, in the
    /// number type in which it is stored. `scratch` is for one row of weights.
    pub(super) fn dots(self, x: Spaced<'_>, w: Rows<'_>, out: &mut [&mut [f32]], scratch: &mut Vec<f32>) {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni | Isa::Avx2 | Isa::AvxVnni
                if w.dtype.is_blocks() && w.precision != Precision::Bf16 =>
            {
                avx2::dots_of_floats(x, w, out);
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni if !w.plain() => avx512::dots_of_blocks(x, w, out, scratch),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => avx512::dots(x, w, self.reading.streams, out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni if !w.plain() => avx2::dots_of_blocks(x, w, out, scratch),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => avx2::dots(x, w, self.reading.streams, out),
            Isa::Portable => portable::dots(x, w, out, scratch),
        }
    }

    /// The same for many rows of `x`, packed in the order in which they are read.
    pub(super) fn gemm(
        self,
        x: &Packed,
        w: Rows<'_>,
        out: &mut [&mut [f32]],
        scratch: &mut Scratch,
        stop: &Stop,
    ) -> Result<()> {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => gemm::gemm::<avx512::Tile>(x, w, out, scratch, stop),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => gemm::gemm::<avx2::Tile>(x, w, out, scratch, stop),
            Isa::Portable => gemm::gemm::<portable::Tile>(x, w, out, scratch, stop),
        }
    }

    /// out (rows of x)(rows of w) = x · wᵀ in int8, as [`ops::quantize::dot`] computes it, or [`ops::blocks::dot`] where
    /// the rows are blocks.
    pub(super) fn q8(self, x: &q8::Quantized, w: Rows<'_>, out: &mut [&mut [f32]]) {
        let blocks = w.dtype != Dtype::I8;
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni if blocks => vnni::blocks(x, w, out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => vnni::q8(x, w, out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx2 => avx2::q8::<false>(x, w, out),
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => avx2::q8::<true>(x, w, out),
            Isa::Portable if blocks => blocks::portable(x, w, out),
            Isa::Portable => portable::q8(x, w, out),
        }
    }

    /// The tiles in which [`Kernel::q8`] reads many rows of activations, where it does.
    pub(super) fn tiles_q8(self) -> Option<q8::Tiling> {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni if self.has_int8_tiles() => Some(vnni::TILING_AMX),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => Some(vnni::TILING),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx2 => Some(q8::Tiling { widths: &[avx2::TOKENS], pairs: true, lines: None }),
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => Some(q8::Tiling { widths: &[avx2::TOKENS], pairs: false, lines: None }),
            Isa::Portable => None,
        }
    }

    /// Whether AMX multiplies int8 values of many tokens here.
    #[cfg(target_arch = "x86_64")]
    fn has_int8_tiles(self) -> bool {
        self.bf16 == Some(bf16_unit::Unit::Amx) && amx::multiplies_int8()
    }

    /// What multiplies inputs of `width` values with bfloat16 weights as bfloat16 here, where anything does.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn bf16_unit(self, precision: Precision, width: usize) -> Option<bf16_unit::Unit> {
        self.bf16.filter(|unit| unit.takes_width(width) && unit.takes(Dtype::BF16, precision))
    }

    /// Weight rows that a tile of many tokens takes at once, where no unit for bfloat16 does.
    pub(super) fn tile_rows(self, precision: Precision) -> usize {
        use gemm::Tile;
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            _ if precision.group().is_some() => LANES,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => avx512::Tile::ROWS,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => avx2::Tile::ROWS,
            Isa::Portable => {
                let _ = precision;
                portable::Tile::ROWS
            }
        }
    }

    /// Tokens that a tile of [`Kernel::gemm`] takes at once.
    pub(super) fn tile_tokens(self) -> usize {
        use gemm::Tile;
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => avx512::Tile::TOKENS,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => avx2::Tile::TOKENS,
            Isa::Portable => portable::Tile::TOKENS,
        }
    }

    /// [`ops::attention::qk`].
    pub(super) fn qk(self, query: &[f32], keys: &[f32], stride: usize, out: &mut [f32]) {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => avx512::qk(query, keys, stride, out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => avx2::qk(query, keys, stride, out),
            Isa::Portable => ops::attention::qk(query, keys, stride, out),
        }
    }

    /// Whether keys that so many queries read are worth packing for [`Kernel::qk_packed`].
    pub(super) fn packs_keys(self, queries: usize, width: usize) -> bool {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => queries >= MIN_QUERIES && width <= STRETCH,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => queries >= MIN_QUERIES && width <= STRETCH && width.is_multiple_of(8),
            Isa::Portable => {
                let _ = (queries, width);
                false
            }
        }
    }

    /// Packs `count` keys of `width` components, which begin `stride` of one another. Only where [`Kernel::packs_keys`].
    pub(super) fn pack_keys(
        self,
        keys: &[f32],
        stride: usize,
        count: usize,
        width: usize,
        packed: &mut Vec<Aligned>,
    ) {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => avx512::pack_keys(keys, stride, count, width, packed),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => avx2::pack_keys(keys, stride, count, width, packed),
            Isa::Portable => {
                unreachable!("this kernel packs no keys: {:?}", (keys.len(), stride, count, width, packed))
            }
        }
    }

    /// [`ops::attention::qk`] of `queries`, one after the other, of `width` components, with those of the packed keys that
    /// are in `part`: `out` begins with the first of these, and with that many values after it for the next query.
    pub(super) fn qk_packed(
        self,
        queries: &[f32],
        width: usize,
        packed: &[Aligned],
        part: &Range<usize>,
        out: (&mut [f32], usize),
    ) {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => avx512::qk_packed(queries, width, packed, part, out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => avx2::qk_packed(queries, width, packed, part, out),
            Isa::Portable => {
                unreachable!("this kernel packs no keys: {:?}", (queries.len(), width, packed, part, out))
            }
        }
    }

    /// [`ops::attention::mix`] of several rows of `count` weights, which begin `apart` of one another, with the values of
    /// as many keys: `out` has the rows of `width` components one after the other.
    pub(super) fn mix(
        self,
        weights: &[f32],
        (count, apart): (usize, usize),
        values: &[f32],
        stride: usize,
        width: usize,
        out: &mut [f32],
    ) {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => {
                avx512::mix(weights, (count, apart), values, stride, width, out);
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => avx2::mix(weights, (count, apart), values, stride, width, out),
            Isa::Portable => {
                for (row, out) in out.chunks_mut(width).enumerate() {
                    ops::attention::mix(&weights[row * apart..][..count], values, stride, out);
                }
            }
        }
    }

    /// out = values, exactly.
    pub(super) fn widen_f16(self, values: &[f16], out: &mut [f32]) {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => avx512::widen_f16(values, out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => portable::widen_f16(values, out),
            Isa::Portable => portable::widen_f16(values, out),
        }
    }

    /// out = values, exactly.
    pub(super) fn widen_bf16(self, values: &[bf16], out: &mut [f32]) {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => avx512::widen_bf16(values, out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => avx2::widen_bf16(values, out),
            Isa::Portable => portable::widen_bf16(values, out),
        }
    }

    /// [`ops::quantize::quantize`].
    pub(super) fn quantize(self, x: &[f32], group: usize, values: &mut [i8], scales: &mut [f32]) {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => avx512::quantize(x, group, values, scales),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => avx2::quantize(x, group, values, scales),
            Isa::Portable => ops::quantize::quantize(x, group, values, scales),
        }
    }

    /// [`ops::softmax::softmax`].
    pub(crate) fn softmax(self, row: &mut [f32]) {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => avx512::softmax(row),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => avx2::softmax(row),
            Isa::Portable => ops::softmax::softmax(row),
        }
    }

    /// [`ops::swiglu::silu_all`].
    pub(super) fn silu(self, gate: &[f32], out: &mut [f32]) {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => avx512::silu(gate, out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => avx2::silu(gate, out),
            Isa::Portable => ops::swiglu::silu_all(gate, out),
        }
    }

    /// [`ops::rms_norm::rms_norm`].
    pub(super) fn rms_norm(self, x: &[f32], weight: &[f32], eps: f32, precision: Precision, out: &mut [f32]) {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => avx512::rms_norm(x, weight, eps, precision, out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => avx2::rms_norm(x, weight, eps, precision, out),
            Isa::Portable => ops::rms_norm::rms_norm(x, weight, eps, precision, out),
        }
    }

    /// [`ops::round::row`].
    pub(super) fn round(self, precision: Precision, row: &mut [f32]) {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => avx512::round(precision, row),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => avx2::round(precision, row),
            Isa::Portable => ops::round::row(precision, row),
        }
    }

    /// [`ops::elementwise::add`].
    pub(super) fn add(self, a: &[f32], b: &[f32], out: &mut [f32]) {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => avx512::add(a, b, out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => avx2::add(a, b, out),
            Isa::Portable => ops::elementwise::add(a, b, out),
        }
    }

    /// [`ops::elementwise::mul`].
    pub(super) fn mul(self, a: &[f32], b: &[f32], out: &mut [f32]) {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => avx512::mul(a, b, out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => avx2::mul(a, b, out),
            Isa::Portable => ops::elementwise::mul(a, b, out),
        }
    }

    /// [`ops::attention::scale`].
    pub(super) fn scale(self, row: &mut [f32], head_dim: usize) {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => avx512::scale(row, head_dim),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => avx2::scale(row, head_dim),
            Isa::Portable => ops::attention::scale(row, head_dim),
        }
    }

    /// [`ops::rope::rope`].
    pub(super) fn rope(
        self,
        x: &[f32],
        cos: &[f32],
        sin: &[f32],
        pairing: Pairing,
        precision: Precision,
        out: &mut [f32],
    ) {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => avx512::rope(x, cos, sin, pairing, precision, out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => avx2::rope(x, cos, sin, pairing, precision, out),
            Isa::Portable => ops::rope::rope(x, cos, sin, pairing, precision, out),
        }
    }
}

impl Kernel {
    /// Reads `bytes` once (to the last 256) with the widest loads of this instruction set, and returns something made
    /// of all of them, so that no read is left out. With `ahead`, where it can, it asks for what comes later too.
    pub fn read_limit(self, bytes: &[u8], ahead: bool) -> u64 {
        match (self.isa, ahead) {
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512 | Isa::Avx512Vnni, true) => avx512::read::<true>(bytes),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512 | Isa::Avx512Vnni, false) => avx512::read::<false>(bytes),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2 | Isa::AvxVnni, _) => avx2::read(bytes),
            (Isa::Portable, _) => portable::read(bytes),
        }
    }

    /// Bytes that [`Kernel::read_limit`] loads at once: kernels with one width have one loop.
    pub fn read_width(self) -> usize {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => 64,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => 32,
            Isa::Portable => 8,
        }
    }

    /// What the products of many rows with a matrix of number type `dtype` are made of in `precision`.
    pub fn multiplied(self, precision: Precision, dtype: Dtype) -> Multiplied {
        #[cfg(target_arch = "x86_64")]
        if self.bf16.is_some_and(|unit| unit.takes(dtype, precision)) {
            return match precision {
                Precision::Bf16 => Multiplied::BFloat16,
                _ => Multiplied::ThreeBFloat16,
            };
        }
        match precision {
            Precision::Q8 { .. } if self.tiles_q8().is_some() => Multiplied::Int8,
            _ => Multiplied::Float32,
        }
    }

    /// Multiplies and adds values in registers with the widest multiply that this kernel has for `multiplied`, and
    /// returns something made of them. A round is [`Kernel::multiply_round`].
    pub fn multiply_limit(self, multiplied: Multiplied, rounds: usize) -> f32 {
        #[cfg(target_arch = "x86_64")]
        match (multiplied, self.isa, self.bf16) {
            (Multiplied::Int8, isa, _) => {
                let factor = std::hint::black_box(0x0102_0304);
                return match isa {
                    _ if self.has_int8_tiles() => amx::multiply::<true>(rounds / bf16_unit::AMX_ROUNDS),
                    Isa::Avx512Vnni => vnni::multiply(rounds, factor),
                    Isa::AvxVnni => avx2::multiply_int8::<true>(rounds, factor),
                    _ => avx2::multiply_int8::<false>(rounds, factor),
                };
            }
            (Multiplied::BFloat16 | Multiplied::ThreeBFloat16, _, Some(unit)) => {
                return unit.multiply(rounds);
            }
            _ => {}
        }
        let factor = std::hint::black_box(0.999);
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => avx512::multiply(rounds, factor),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => avx2::multiply(rounds, factor),
            Isa::Portable => portable::multiply(rounds, factor),
        }
    }

    /// Multiplications and additions of one round of [`Kernel::multiply_limit`], as many as count for a product:
    /// where it takes three, a third of those that are done.
    pub fn multiply_round(self, multiplied: Multiplied) -> f64 {
        let operations = (2 * CHAINS * LANES) as f64;
        #[cfg(target_arch = "x86_64")]
        let bf16 = self.bf16.map_or(operations, |unit| unit.multiply_round() as f64);
        #[cfg(target_arch = "x86_64")]
        // A tile has twice as many int8 values as bfloat16 values.
        let int8 = if self.has_int8_tiles() { 2.0 * bf16 } else { 4.0 * operations };
        #[cfg(not(target_arch = "x86_64"))]
        let (bf16, int8) = (operations, 4.0 * operations);
        match multiplied {
            Multiplied::Float32 => operations,
            Multiplied::BFloat16 => bf16,
            Multiplied::ThreeBFloat16 => bf16 / 3.0,
            Multiplied::Int8 => int8,
        }
    }
}

impl Default for Kernel {
    /// The one that was found fastest on this kind of processor, or else the first of [`Kernel::available`].
    fn default() -> Self {
        static DEFAULT: OnceLock<Kernel> = OnceLock::new();
        *DEFAULT.get_or_init(|| {
            let available = Self::available();
            let found = Processor::here().and_then(|processor| processor.fastest());
            let found = available.iter().find(|kernel| found.is_some_and(|(name, _)| kernel.name() == name));
            *found.unwrap_or(&available[0])
        })
    }
}

#[cfg(test)]
mod tests;
