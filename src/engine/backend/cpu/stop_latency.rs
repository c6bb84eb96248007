//! Tests of how soon operations stop on request. Each is first run to its end, and then stopped at many of its checks.

use super::*;
use crate::backend::AttentionPart;
use llama_trace_core::stop::testing::stops_at_every_look;
use llama_trace_core::tensor::Bytes;
use llama_trace_core::tensor::Dtype;

/// The maximum average number of multiply-adds between two checks.
const MOST: usize = 1 << 24;

/// The number of checks allowed after the request: each thread may still check before it sees the request.
fn after() -> usize {
    4 * llama_trace_core::threads::count()
}

fn matrix(dtype: Dtype, outputs: usize, inputs: usize) -> Tensor {
    let bytes = vec![0x3c_u8; outputs * inputs * dtype.block_bytes()];
    Tensor::new(dtype, vec![outputs, inputs], Bytes::owned(bytes)).unwrap()
}

/// A pass over `tokens` tokens.
fn pass(tokens: usize) -> backend::Pass {
    backend::Pass::new(Pass { ids: vec![3; tokens], spans: vec![Span { sequence: 0, start: 0, tokens }] })
}

/// A buffer of `count` times `value`.
fn buffer(value: f32, count: usize) -> Buffer {
    Buffer::new(vec![value; count])
}

#[test]
fn products_stop_between_their_blocks() {
    let (inputs, outputs) = (1024, 768);
    for kernel in Kernel::available() {
        for precision in [Precision::F32, Precision::Bf16, Precision::Q8 { group: 32 }] {
            for tokens in [1, 3, 100] {
                let tensor = matrix(Dtype::BF16, outputs, inputs);
                let (x, mut out) = (buffer(0.5, tokens * inputs), buffer(0.0, tokens * outputs));
                let what = format!("{} in {precision:?} of {tokens} tokens", kernel.name());
                let looks = stops_at_every_look(&what, after(), |stop| {
                    let cpu = Cpu::with_kernel(kernel).with_precision(precision).with_stop(stop.clone());
                    let (w, mut input) = (cpu.matrix(&tensor)?, cpu.input());
                    cpu.prepare(&x, inputs, &pass(tokens), &PassRows::All, &mut input)?;
                    cpu.matmul(&input, &w, None, &mut out)
                });
                let between = tokens * inputs * outputs / looks;
                assert!(between <= MOST, "{what}: {between} multiply-adds between two checks");
            }
        }
    }
}

struct Sees(bool);

impl AttentionSink for Sees {
    fn wants(&self, _part: AttentionPart) -> bool {
        self.0
    }

    fn rows(&mut self, _part: AttentionPart, _rows: Range<usize>, _values: &[f32]) -> Result<()> {
        Ok(())
    }
}

#[test]
fn attention_stops_between_its_blocks_watched_or_not() {
    let (tokens, heads, kv_heads, head_dim) = (256, 8, 4, 64);
    let shape = AttentionShape::llama(heads, kv_heads, head_dim, None);
    let (cpu, pass, width) = (Cpu::default(), pass(tokens), kv_heads * head_dim);
    let count = tokens * heads * head_dim;
    let (q, mut out) = (buffer(0.5, count), buffer(0.0, count));
    let mut cached = cpu.new_cache(tokens * width).unwrap();
    cpu.cache(&q, width, &pass, 0, &mut cached).unwrap();
    for watched in [false, true] {
        let looks = stops_at_every_look("attention", after(), |stop| {
            let cpu = Cpu::default().with_stop(stop.clone());
            cpu.attention(shape, &q, &pass, 0, &cached, &cached, &mut out, &mut Sees(watched))
        });
        let between = 2 * tokens * tokens * heads * head_dim / looks;
        assert!(between <= MOST, "{between} multiply-adds between two checks");
    }
}

#[test]
fn what_goes_row_by_row_stops_between_its_rows() {
    let (rows, width) = (1000, 256);
    let count = rows * width;
    let (a, mut out) = (buffer(0.5, count), buffer(0.0, count));
    let weight = Vector::new(vec![1.0_f32; width]);
    let table = Cpu::default().matrix(&matrix(Dtype::F32, 10, width)).unwrap();
    type Operation<'a> = (&'a str, &'a dyn Fn(&Cpu, &mut Buffer) -> Result<()>);
    let operations: [Operation<'_>; 6] = [
        ("embedding", &|cpu, out| cpu.embedding(&table, &pass(rows), out)),
        ("RMSNorm", &|cpu, out| cpu.rms_norm(&a, &weight, 1e-5, rows, out)),
        ("RoPE", &|cpu, out| cpu.rope(&a, &a, &a, Pairing::Halves, 4, width / 4, rows, out)),
        ("SiLU", &|cpu, out| cpu.silu(&a, count, out)),
        ("a product of elements", &|cpu, out| cpu.mul(&a, &a, count, out)),
        ("a sum of elements", &|cpu, out| cpu.add(&a, &a, count, out)),
    ];
    for (what, operation) in operations {
        let work = |stop: &Stop| operation(&Cpu::default().with_stop(stop.clone()), &mut out);
        let looks = stops_at_every_look(what, after(), work);
        assert!(count / looks <= ELEMENTS, "{what}: {looks} looks");
    }
}
