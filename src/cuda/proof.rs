//! The self-test of a device. Before a model runs, one kernel of each kind computes a few numbers, which are compared
//! with the CPU's. Wrong numbers are reported as an error.

mod computed;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

use super::product::{self, Tiles};
use super::{Cuda, attention, failed, features};
use computed::{
    GREEDY, KernelResult, LIKELIEST, MANY_TOKENS, OF_TILES, buffer, drawn, gated, layer, made, made_by_tiles,
    of_tiles, sizes_of_streams, values,
};
use llama_trace_core::config::Precision;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::tensor::{Dtype, Tensor};
use llama_trace_engine::backend::cpu::Cpu;
use llama_trace_engine::backend::{AttentionShape, Backend, Drawn};
use llama_trace_formats::checkpoint::Checkpoint;
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

#[cfg(test)]
mod tests {
    use super::computed::{OUTPUTS, exact};
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

    /// With so many heads, a few keys already reach the limit of keys times heads.
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
