//! The device's limits: bytes read per second, and operations of products per second.

use std::sync::Arc;
use std::time::Duration;

use super::Cuda;
use super::blas::WORKSPACE;
use super::kernels::Kernel;
use super::matrix::Matrix;
use super::memory::{Buffer, Memory};
use super::noise::random;
use llama_trace_core::config::Precision;
use llama_trace_core::error::Result;
use llama_trace_core::tensor::Dtype;
use llama_trace_core::tensor::Noise;
use llama_trace_engine::backend::{self, Backend, Limits, PassRows, Span};
use llama_trace_kernels::driver::Arguments;

/// The sizes of the measurements.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    /// Number of bytes that are read, a multiple of 16. It is many times as large as the last-level cache of any
    /// device.
    pub(super) bytes: usize,
    /// Rows and columns of the matrices that are multiplied, a multiple of 8.
    pub(super) side: usize,
}

impl Sizes {
    /// The same sizes, each halved until it takes at most `room` bytes.
    fn within(mut self, room: usize) -> Self {
        while self.bytes > room && self.bytes > 1 << 20 {
            self.bytes /= 2;
        }
        // Three matrices of up to four bytes a value, for this program's own kernel.
        while self.side * self.side * 12 + WORKSPACE > room && self.side > 256 {
            self.side /= 2;
        }
        self
    }
}

/// The sizes for a report.
pub(super) const FULL: Sizes = Sizes { bytes: 2 << 30, side: 8192 };

/// The number of timed runs of each measurement, after one run to warm up. The best run counts, because it shows the
/// limit.
const TRIES: usize = 5;

/// Random values, with masks: the bits that are kept, and the bits that are set. Each word then holds two float32 or
/// four bfloat16 values between 2⁻⁷ and 2⁻⁶, of either sign.
const FLOAT32: Noise = Noise::words(1, 0x807f_ffff_807f_ffff, 0x3c00_0000_3c00_0000);
const BFLOAT16: Noise = Noise::words(1, 0x807f_807f_807f_807f, 0x3c00_3c00_3c00_3c00);
const ANY: Noise = Noise::words(1, u64::MAX, 0);

/// Measures the limits, with smaller sizes if there is not enough free memory.
pub(super) fn measure(cuda: &Cuda, sizes: Sizes) -> Result<Limits> {
    let free = cuda.queue.device().room()?.free;
    let Sizes { bytes, side } = sizes.within(free / 2);
    let read_bandwidth = bytes as f64 / read(cuda, bytes)?.as_secs_f64();
    let operations = 2.0 * (side as f64).powi(3);
    let (time, multiplied) = match by_library(cuda, side)? {
        Some(measured) => measured,
        None => multiply(cuda, side)?,
    };
    Ok(Limits {
        read_bandwidth,
        memory: "the device's memory",
        multiply_rate: operations / time.as_secs_f64(),
        multiplied,
    })
}

/// The best time of `work`, by the device's clock.
fn best(cuda: &Cuda, work: impl Fn() -> Result<()>) -> Result<Duration> {
    let mut best = Duration::MAX;
    for run in 0..=TRIES {
        cuda.stop.check()?;
        let from = cuda.mark();
        work()?;
        let to = cuda.mark();
        cuda.sync()?;
        if run > 0 {
            best = best.min(cuda.between(&from, &to));
        }
    }
    Ok(best)
}

/// Times the read of random bytes.
fn read(cuda: &Cuda, bytes: usize) -> Result<Duration> {
    let (memory, out) = (random(cuda, bytes, ANY)?, Memory::zeros(&cuda.queue, 16)?);
    let kernel = Kernel { file: "limits", name: "read_words", weight: None };
    let blocks = cuda.queue.device().about().multiprocessors as usize * 8;
    best(cuda, || {
        let arguments = Arguments::new().address(memory.at()).long(bytes / 16).address(out.at());
        cuda.kernels.launch(kernel, (blocks, 1), 512, 0, arguments)
    })
}

/// Times cuBLASLt's product of two random bfloat16 matrices of shape (side, side). `None` if cuBLASLt is not
/// installed.
fn by_library(cuda: &Cuda, side: usize) -> Result<Option<(Duration, String)>> {
    let Some(product) = cuda.queue.device().library_product(side) else { return Ok(None) };
    let bytes = side * side * 2;
    let [a, b] = [random(cuda, bytes, BFLOAT16)?, random(cuda, bytes, BFLOAT16)?];
    let (out, beside) = (Memory::new(&cuda.queue, bytes)?, Memory::new(&cuda.queue, WORKSPACE)?);
    let places = [&a, &b, &out, &beside].map(Memory::at);
    let time = best(cuda, || cuda.queue.ask(|_| product(places)))?;
    Ok(Some((
        time,
        format!("products of {side}×{side} bfloat16 matrices on the tensor cores, with cuBLASLt"),
    )))
}

/// Times the same product with this program's own kernel.
fn multiply(cuda: &Cuda, side: usize) -> Result<(Duration, String)> {
    let cuda = cuda.clone().with_precision(Precision::Bf16);
    let weights = random(&cuda, side * side * 2, BFLOAT16)?;
    let matrix = backend::Matrix::new(Matrix::over(Arc::new(weights), Dtype::BF16, side, side));
    let x = backend::Buffer::new(Buffer::over(random(&cuda, side * side * 4, FLOAT32)?));
    let (mut out, mut input, mut pass) = (cuda.buffer(side * side)?, cuda.input(), cuda.new_pass()?);
    let spans = [Span { sequence: 0, start: 0, tokens: side }];
    cuda.begin_pass(&vec![0; side], &spans, &[], &mut pass)?;
    cuda.prepare(&x, side, &pass, &PassRows::All, &mut input)?;
    let out = std::cell::RefCell::new(&mut out);
    let time = best(&cuda, || cuda.matmul(&input, &matrix, None, &mut out.borrow_mut()))?;
    Ok((
        time,
        format!(
            "products of {side}×{side} bfloat16 matrices on the tensor cores, with this program's own kernel"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_less_memory_is_free_less_is_measured() {
        let within = |room| {
            let Sizes { bytes, side } = FULL.within(room);
            (bytes, side)
        };
        assert_eq!(within(16 << 30), (2 << 30, 8192));
        assert_eq!(within(1 << 30), (1 << 30, 8192));
        assert_eq!(within(300 << 20), (256 << 20, 4096));
        assert_eq!(within(0), (1 << 20, 256));
    }
}
