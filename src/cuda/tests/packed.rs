//! Inputs of integer products with many rows: they are computed, quantised and packed in one launch, bit-exact with
//! ops.

use super::products::product;
use super::*;
use llama_trace_engine::backend::Product;

const Q8: Precision = Precision::Q8 { group: 32 };

/// Rows that are hard to quantise, each in another way: NaN, infinite, huge, tiny, or all zero.
fn hard(rows: usize, width: usize, seed: u32) -> Vec<f32> {
    let mut x = noise(rows * width, seed);
    for (i, row) in x.chunks_mut(width).enumerate() {
        let at = i * 37 % width;
        match i % 9 {
            0 => row[at] = f32::NAN,
            1 => row[at] = f32::INFINITY,
            2 => row[at] = f32::MAX,
            3 => row.iter_mut().for_each(|x| *x *= 1e-25),
            4 => row.iter_mut().for_each(|x| *x *= 1e-42),
            5 => row.fill(0.0),
            6 => row[at / 32 * 32..][..32].iter_mut().for_each(|x| *x *= 1e-38),
            _ => {}
        }
    }
    x
}

/// Whether two lists have the same bits. Two NaNs count as equal: they have different bits on different machines.
fn same(found: &[f32], expected: &[f32]) -> bool {
    let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    found.len() == expected.len() && found.iter().zip(expected).all(same)
}

/// The number of rows, their width, and the width of the feed-forward network.
#[derive(Clone, Copy, Debug)]
struct Chain(usize, usize, usize);

impl Chain {
    /// A norm and a product; a sum and its norm, the gate, and a product; and a product whose input's launch was
    /// already sent. Returns everything that is written. Calls `look` after each operation.
    fn run(self, backend: &dyn Backend, look: &dyn Fn(&dyn Backend)) -> Vec<Vec<f32>> {
        let Self(rows, width, ffn) = self;
        let (x, weight) =
            (filled(backend, &hard(rows, width, 1)), backend.vector(&vector(width, 2)).unwrap());
        let matrix =
            |outputs, inputs, seed| backend.matrix(&tensor(Dtype::I8, outputs, inputs, seed)).unwrap();
        let (wo, gate, up, down) =
            (matrix(width, width, 3), matrix(ffn, width, 4), matrix(ffn, width, 5), matrix(3, ffn, 6));
        let mut bias = noise(ffn, 7);
        bias[..4].copy_from_slice(&[100.0, -100.0, 1e38, -1e38]);
        // Groups in the second half are tiny.
        bias[ffn / 2..].iter_mut().for_each(|x| *x *= 1e-30);
        let bias = bias.into_iter().flat_map(f32::to_le_bytes).collect();
        let bias = Tensor::new(Dtype::F32, vec![ffn], Bytes::owned(bias)).unwrap();
        let bias = backend.vector(&bias).unwrap();
        let pass = pass(backend, &[(0, rows)]);
        let buffer = |width: usize| backend.buffer(rows * width).unwrap();
        let (mut input, mut other) = (backend.input(), backend.input());
        let [mut normed, mut of_wo, mut sum, mut second] = [0; 4].map(|_| buffer(width));
        let [mut of_gate, mut silu, mut of_up, mut hidden] = [0; 4].map(|_| buffer(ffn));
        let [mut out, mut of_sum] = [buffer(3), buffer(ffn)];
        let mut nobody = |_: usize, _: &mut Buffer| {
            look(backend);
            Ok(())
        };
        // Memory grows in the first run, and then some launches are not fused.
        for _ in 0..3 {
            backend.sync().unwrap();
            backend.rms_norm(&x, &weight, 1e-5, rows, &mut normed).unwrap();
            look(backend);
            backend.prepare(&normed, width, &pass, &PassRows::All, &mut input).unwrap();
            backend.matmul(&input, &wo, None, &mut of_wo).unwrap();
            look(backend);
            let written = (&mut sum, &mut second);
            backend.add_rms_norm((&x, &of_wo), &weight, 1e-5, (rows, width), written, &mut nobody).unwrap();
            backend.prepare(&second, width, &pass, &PassRows::All, &mut input).unwrap();
            let outs = Swiglu {
                gate: Product { matrix: &gate, bias: Some(&bias), out: &mut of_gate },
                silu: &mut silu,
                up: Product { matrix: &up, bias: None, out: &mut of_up },
                hidden: &mut hidden,
            };
            backend.swiglu(&input, rows * ffn, outs, &mut nobody).unwrap();
            backend.prepare(&hidden, ffn, &pass, &PassRows::All, &mut other).unwrap();
            backend.matmul(&other, &down, None, &mut out).unwrap();
            look(backend);
            backend.prepare(&sum, width, &pass, &PassRows::All, &mut other).unwrap();
            backend.matmul(&other, &up, None, &mut of_sum).unwrap();
            backend.sync().unwrap();
        }
        let of_width = [&normed, &of_wo, &sum, &second].map(|buffer| (buffer, width));
        let of_ffn = [&of_gate, &silu, &of_up, &hidden, &of_sum].map(|buffer| (buffer, ffn));
        let all = of_width.into_iter().chain(of_ffn).chain([(&out, 3)]);
        all.map(|(buffer, width)| values(backend, buffer, rows * width)).collect()
    }
}

#[test]
fn what_makes_many_rows_packs_them_too_and_all_has_the_bits_of_the_cpu() {
    // Rows that are part of a tile, and rows of several tiles. Widths of one group, of fewer groups than there are
    // partial sums, of more groups, and of a number of groups that is not a multiple of 16.
    for chain in
        [Chain(17, 32, 32), Chain(18, 96, 544), Chain(33, 544, 96), Chain(100, 64, 64), Chain(17, 512, 32)]
    {
        let Some((cuda, cpu)) = both(Q8) else { return };
        let expected = chain.run(&cpu, &|_| ());
        let found = chain.run(&cuda, &|_| ());
        let looked = chain.run(&cuda, &|cuda| cuda.sync().unwrap());
        for (i, expected) in expected.iter().enumerate() {
            assert!(same(&found[i], expected), "{chain:?}: number {i}");
            assert!(same(&looked[i], expected), "{chain:?}, looked at: number {i}");
        }
        let finite = expected.iter().filter(|values| values.iter().any(|x| x.is_finite() && *x != 0.0));
        assert_eq!(finite.count(), expected.len(), "{chain:?}: nothing was compared");
    }
}

/// The norm of a buffer and the norm of a sum, with this many rows and this width.
struct Wide(usize, usize);

impl Operate for Wide {
    fn on(&self, backend: &dyn Backend) -> Vec<f32> {
        let Self(rows, width) = *self;
        let (a, b) = (filled(backend, &hard(rows, width, 11)), filled(backend, &noise(rows * width, 12)));
        let weight = backend.vector(&vector(width, 13)).unwrap();
        let w = backend.matrix(&tensor(Dtype::Q8_0, 4, width, 14)).unwrap();
        let (pass, mut input) = (pass(backend, &[(0, rows)]), backend.input());
        let [mut alone, mut sum, mut normed] = [0; 3].map(|_| backend.buffer(rows * width).unwrap());
        let [mut first, mut second] = [0; 2].map(|_| backend.buffer(rows * 4).unwrap());
        // Memory grows in the first run.
        for _ in 0..2 {
            backend.rms_norm(&b, &weight, 1e-5, rows, &mut alone).unwrap();
            backend.prepare(&alone, width, &pass, &PassRows::All, &mut input).unwrap();
            backend.matmul(&input, &w, None, &mut first).unwrap();
            let written = (&mut sum, &mut normed);
            backend
                .add_rms_norm((&a, &b), &weight, 1e-5, (rows, width), written, &mut |_, _| Ok(()))
                .unwrap();
            backend.prepare(&normed, width, &pass, &PassRows::All, &mut input).unwrap();
            backend.matmul(&input, &w, None, &mut second).unwrap();
        }
        let wide = [&alone, &sum, &normed].map(|buffer| values(backend, buffer, rows * width));
        [wide.concat(), values(backend, &first, rows * 4), values(backend, &second, rows * 4)].concat()
    }
}

#[test]
fn norms_of_any_width_pack_what_they_make_with_the_bits_of_the_cpu() {
    for (rows, width) in [(18, 8224), (17, 4128), (17, 4096), (260, 1056), (257, 2048)] {
        let Some((cuda, cpu)) = both(Q8) else { return };
        let (found, expected) = (Wide(rows, width).on(&cuda), Wide(rows, width).on(&cpu));
        assert!(same(&found, &expected), "{rows} rows of {width}");
    }
}

/// Products follow a norm, the gate and attention. For each, at most one launch packs its input.
#[test]
fn rows_of_products_are_packed_by_what_makes_them_where_nobody_looks() {
    let Some((device, log)) = Cuda::logged(ROOM) else { return };
    let cuda = device.with_precision(Q8);
    let launches = |look: bool| {
        log.lock().unwrap().clear();
        Chain(20, 64, 96).run(&cuda, &|cuda| {
            if look {
                cuda.sync().unwrap();
            }
        });
        let of = |asked: &Asked| match asked {
            Asked::Launches(count) | Asked::Graph(count) => *count,
            _ => 0,
        };
        log.lock().unwrap().iter().map(of).sum::<usize>()
    };
    // Each run has two norms, five products of two launches each, the gate, and the packing of rows whose launch was
    // already sent. In the first run memory grows, so the number of its launches is not exact.
    let of_each = 2 + 5 * 2 + 1 + 1;
    let (together, looked) = (launches(false), launches(true));
    assert!((3 * of_each..3 * of_each + 4).contains(&together), "{together}, not three times {of_each}");
    assert!(looked >= 3 * (of_each + 3), "{looked}");
}

/// The kernel multiplies by the inverse of the scale; it divides only close to the middle between two integers. It must
/// find the same integers as ops.
#[test]
fn values_next_to_the_middle_of_two_whole_numbers_are_quantised_as_ops_does() {
    let Some((cuda, cpu)) = both(Q8) else { return };
    let rows = 24;
    let width = 32 * 34;
    let mut x = noise(rows * width, 9);
    for (i, group) in x.chunks_mut(32).enumerate() {
        let scale = f32::from_bits(0x0080_0000 + (i as u32).wrapping_mul(2_654_435_761) % 0x7d00_0000);
        for (k, x) in group.iter_mut().enumerate() {
            let near = ((i * 31 + k) % 127) as f32 + 0.5;
            let off = ((i / 4 + k) % 9) as i32 - 4;
            let exact = near * scale;
            *x = f32::from_bits(exact.to_bits().wrapping_add_signed(off));
            if k % 2 == 1 {
                *x = -*x;
            }
        }
        group[0] = 127.0 * scale;
    }
    fn run(backend: &dyn Backend, x: &[f32], rows: usize, width: usize) -> (Vec<i8>, Vec<f32>, Vec<f32>) {
        let (x, mut input) = (filled(backend, x), backend.input());
        backend.prepare(&x, width, &pass(backend, &[(0, rows)]), &PassRows::All, &mut input).unwrap();
        let matrix = backend.matrix(&tensor(Dtype::Q8_0, 5, width, 10)).unwrap();
        let mut out = backend.buffer(rows * 5).unwrap();
        backend.matmul(&input, &matrix, None, &mut out).unwrap();
        let mut seen = (Vec::new(), Vec::new());
        let mut see = |values: &[i8], scales: &[f32]| {
            seen = (values.to_vec(), scales.to_vec());
            Ok(())
        };
        backend.read_quantized(&input, 0..rows, &mut see).unwrap();
        (seen.0, seen.1, values(backend, &out, rows * 5))
    }
    let (found, expected) = (run(&cuda, &x, rows, width), run(&cpu, &x, rows, width));
    // If a group has NaN, its scale is NaN too, with any bits.
    assert!(expected.1.iter().any(|scale| scale.is_nan()));
    assert!(found.0 == expected.0 && same(&found.1, &expected.1), "int8 values");
    assert!(same(&found.2, &expected.2), "the packed rows");
}

#[test]
fn many_rows_in_larger_groups_have_the_bits_of_ops() {
    for group in [64, 96, 128] {
        let Some((cuda, cpu)) = both(Precision::Q8 { group }) else { return };
        for (rows, inputs) in [(17, group), (40, 3 * group), (20, 17 * group)] {
            let w = int8(&noise(9 * inputs, 15), vec![9, inputs], group);
            let spans = [(0, rows)];
            let (found, expected) = (product(&cuda, &w, &spans, false), product(&cpu, &w, &spans, false));
            assert!(bits(&found.0) == bits(&expected.0), "{rows} rows of {inputs}, groups of {group}");
        }
    }
}

/// Wide tiles are only for groups of 32 values. Products of larger groups use the default tiles.
#[test]
fn many_rows_in_larger_groups_are_multiplied_in_default_tiles() {
    let Some((cuda, list)) = Cuda::with_large_blocks(ROOM, None) else { return };
    let wide =
        cuda.with_precision(Precision::Q8 { group: 64 }).trying(Untried { coalesced: false, wide: true });
    let w = int8(&noise(9 * 128, 15), vec![9, 128], 64);
    product(&wide, &w, &[(0, 17)], false);
    let tiles: Vec<_> = list.names().into_iter().filter(|name| name.starts_with("matmul_q8")).collect();
    assert_eq!(tiles, ["matmul_q8_128 WEIGHT=I8"]);
}
