//! Preparing the GPU kernels of one model. The kernels are listed, compiled together while the weights are read, and
//! tested.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use super::device::{Cuda, KernelList, Uses};
use super::progress::Progress;
use super::tell;
use llama_trace_core::error::Result;
use llama_trace_core::trace::NoProbe;
use llama_trace_engine::backend::Backend;
use llama_trace_engine::generate::{Next, Sampler, Sampling, Session};
use llama_trace_engine::model::Model;
use llama_trace_formats::checkpoint::{Checkpoint, random};

/// Prompt lengths that need different kernels: kernels for a few rows, and tiles of every size.
const PROMPTS: [usize; 13] = [1, 2, 3, 5, 9, 16, 32, 64, 128, 256, 512, 1024, 2048];

/// Number of tokens sampled after each prompt.
const DRAWS: usize = 3;

/// Interval at which the program checks whether to explain the wait.
const LOOKS: Duration = Duration::from_millis(100);

/// Compiles the kernels that a run of `checkpoint` needs and that are not compiled yet, and tests them.
///
/// # Errors
/// As for [`Cuda::prove`].
pub(super) fn make(cuda: &Cuda, checkpoint: &Checkpoint) -> Result<()> {
    while_compiling(cuda, checkpoint, |_| Ok(()))
}

/// Loads the checkpoint's weights on the device while its kernels are compiled, and then tests the kernels.
///
/// # Errors
/// As for [`Model::load`] and [`Cuda::prove`].
pub(super) fn load(cuda: &Cuda, checkpoint: &Checkpoint) -> Result<Model> {
    let model = while_compiling(cuda, checkpoint, |bar| {
        bar.say("(reading weights)".into());
        let model = Model::load(checkpoint, cuda.clone());
        bar.say(String::new());
        model
    })?;
    if let Err(why) = cuda.compiles() {
        tell(format_args!(
            "The program's built-in kernels are used. For several tokens at once they are slower than the kernels that NVRTC compiles for {}.\n{why}",
            cuda.device_name()
        ));
    }
    Ok(model)
}

/// Runs `work` while the kernels are compiled.
fn while_compiling<T>(
    cuda: &Cuda,
    checkpoint: &Checkpoint,
    work: impl FnOnce(&Progress) -> Result<T>,
) -> Result<T> {
    let uses = Uses::of(checkpoint);
    let list = if cuda.is_proved() { KernelList::default() } else { kernels(cuda, checkpoint, &uses)? };
    let bar = &Progress::new(list.count(), "kernels compiled");
    let compile = || cuda.compile(&list, rayon::current_num_threads(), &|| bar.add(1));
    let (working, worked) = mpsc::channel::<()>();
    let compile_and_show = move || {
        compile();
        while worked.recv_timeout(LOOKS) == Err(RecvTimeoutError::Timeout) {
            bar.tick();
        }
    };
    let done = thread::scope(|scope| {
        let compiling = thread::Builder::new().spawn_scoped(scope, compile_and_show);
        let done = work(bar);
        drop(working);
        match compiling {
            Ok(compiling) => compiling.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            // If no second thread can be started, the two are done one after the other.
            Err(_) => compile(),
        }
        bar.say("(checking them)".into());
        done.and_then(|done| Ok((done, cuda.prove(&uses)?)))
    });
    bar.finish();
    let (done, why_not) = done?;
    if let Some(why_not) = why_not {
        tell(format_args!(
            "The faster matrix kernels are left out: {} does not run them correctly.\n{why_not}",
            cuda.device_name()
        ));
    }
    Ok(done)
}

/// The kernels that a run needs. A device that computes nothing lists the kernel launches of passes over prompts of
/// many lengths and over sampled tokens. Recording, and several texts in one batch, need more kernels. Those are
/// compiled at first use.
fn kernels(cuda: &Cuda, checkpoint: &Checkpoint, uses: &Uses) -> Result<KernelList> {
    let (device, list) = cuda.listing(uses);
    let model = Model::load(&random::like(checkpoint, cuda.precision()), device)?;
    let greedy = Sampling::default();
    let warm = Sampling { temperature: 1.0, ..greedy };
    for (tokens, sampling) in PROMPTS.into_iter().map(|tokens| (tokens, greedy)).chain([(1, warm)]) {
        let tokens = tokens.min(model.config.context.saturating_sub(DRAWS)).max(1);
        let mut session = Session::with_capacity(&model, Sampler::new(sampling)?, tokens + DRAWS)?;
        session.begin(vec![0; tokens], &[], DRAWS.min(session.room().saturating_sub(tokens)))?;
        while let Next::Pass(_) = session.next() {
            session.pass(&mut NoProbe)?;
        }
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use llama_trace_core::config::{ModelConfig, Precision};
    use llama_trace_core::tensor::Dtype;
    use llama_trace_core::testing::sampled;

    fn small() -> ModelConfig {
        ModelConfig {
            layers: 3,
            ffn_dim: 512,
            vocab: 96,
            context: 128,
            tied: true,
            ..ModelConfig::of_heads(8, 2, 32)
        }
    }

    /// Samples a few tokens after a prompt of `tokens` tokens.
    fn text(model: &Model, tokens: usize, temperature: f32) {
        let sampler = Sampler::new(Sampling { temperature, ..Sampling::default() }).unwrap();
        let mut session = Session::with_capacity(model, sampler, tokens + 3).unwrap();
        session.begin((0..tokens as u32).collect(), &[], 3).unwrap();
        while let Next::Pass(_) = session.next() {
            session.pass(&mut NoProbe).unwrap();
        }
    }

    #[test]
    fn a_model_asks_for_no_kernel_that_was_not_compiled_before_it_runs() {
        let q8 = Precision::Q8 { group: 32 };
        let models = [
            (random::Weights::Q4KM, q8),
            (Dtype::Q8_0.into(), Precision::Bf16),
            (Dtype::BF16.into(), Precision::Bf16),
            (Dtype::BF16.into(), q8),
            (Dtype::F16.into(), Precision::F32),
        ];
        for (weights, precision) in sampled("models whose kernels are listed", models, 2) {
            let Some((cuda, asked)) = Cuda::listed(1 << 30) else { return };
            let cuda = cuda.with_precision(precision);
            let checkpoint = random::of_config("small", small(), weights);
            let list = kernels(&cuda, &checkpoint, &Uses::of(&checkpoint)).unwrap();
            assert_eq!(asked.count(), 0, "nothing is compiled for the list");
            let model = load(&cuda, &checkpoint).unwrap();
            for tokens in [1, 2, 4, 7, 12, 30] {
                text(&model, tokens, 0.0);
            }
            text(&model, 1, 0.9);
            let (listed, asked) = (list.names(), asked.names());
            // Only benchmarks make random weights.
            let missing: Vec<_> = asked.difference(&listed).filter(|name| *name != "random_words").collect();
            assert!(missing.is_empty(), "{weights:?} in {precision:?}: {missing:?}");
            // The list has one of the twelve kernels for a token's attention, and no kernels for other number types.
            let of_decode = listed.iter().filter(|name| name.starts_with("attention_decode")).count();
            assert_eq!(of_decode, 1, "{listed:?}");
            let own = |dtype: &str| {
                weights == random::Weights::Q4KM && ["Q4K", "Q6K"].contains(&dtype)
                    || format!("{weights:?}") == format!("Of({dtype})")
                    || dtype == "I8" && precision == q8
            };
            let weight = |name: &String| Some(name.split_once("WEIGHT=")?.1.split(' ').next()?.to_owned());
            assert!(listed.iter().filter_map(weight).all(|dtype| own(&dtype)), "{listed:?}");
            println!("{weights:?} in {precision:?}: {listed:?}");
        }
    }

    #[test]
    fn a_list_is_made_without_reading_a_weight() {
        let Some(cuda) = Cuda::emulated(1 << 20) else { return };
        // The largest shape. Its weights would not fit into the device's memory.
        let checkpoint = random::checkpoint("llama-3.1-8b", random::Weights::Q4KM).unwrap();
        let cuda = cuda.with_precision(Precision::Q8 { group: 32 });
        let list = kernels(&cuda, &checkpoint, &Uses::of(&checkpoint)).unwrap();
        assert!(
            list.names().contains("attention_decode_4_128 CACHE=F32 PRECISION=F32"),
            "{:?}",
            list.names()
        );
    }
}
