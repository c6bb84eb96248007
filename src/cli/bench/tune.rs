//! The speed of each kernel of this processor, for the table of default kernels.

use super::report::{Tuned, Tuning};
use super::{time_decode, time_prefill};
use llama_trace_core::error::{Error, Result};
use llama_trace_engine::backend::Backend;
use llama_trace_engine::model::Model;
use llama_trace_formats::checkpoint::Checkpoint;

/// Times the model with each kernel of its device, and then the fastest kernel with each order of reading. Each
/// measurement has a prefill of `prompt` tokens, and `draws` tokens sampled after `cached` cached tokens.
pub(super) fn measure(
    checkpoint: &Checkpoint,
    model: &Model,
    prompt: usize,
    (cached, draws): (usize, usize),
) -> Result<Tuning> {
    if draws == 0 {
        return Err(Error::usage("nothing can be tuned")
            .expected("--gen 1 or more: a kernel that is fast in a prefill may be slow in decoding")
            .found("--gen 0")
            .next("leave --gen out"));
    }
    let mut kernels = Vec::new();
    let mut tune = |backend: Box<dyn Backend>, reading: Option<String>| {
        let (kernel, line) = (backend.kernel_name(), backend.table_line());
        let model = Model::load_on(checkpoint, backend)?;
        let (prefill, decode) = (time_prefill(&model, prompt)?, time_decode(&model, cached, draws, 0)?);
        let tuned = Tuned { kernel, reading, prefill: prefill.rates, decode: decode.rates };
        // Time for a prompt, and for sampling as many tokens as the prompt has.
        let time = 1.0 / tuned.prefill.median + 1.0 / tuned.decode.median;
        kernels.push(tuned);
        Result::Ok((time, line))
    };
    let (mut best, mut line, mut readings) = (f64::INFINITY, None, Vec::new());
    // A default kernel has the default arithmetic.
    for backend in model.backend.kernels().into_iter().filter(|backend| backend.arithmetic().is_fused()) {
        let of_kernel = backend.readings();
        let (time, of_table) = tune(backend, None)?;
        if time < best {
            (best, line, readings) = (time, of_table, of_kernel);
        }
    }
    // The orders of reading are compared with the fastest kernel only.
    for (reading, backend) in readings {
        let (time, of_table) = tune(backend, Some(reading))?;
        if time < best {
            (best, line) = (time, of_table);
        }
    }
    let (processor, line) = line.unzip();
    Ok(Tuning { processor, prompt, kernels, line })
}
