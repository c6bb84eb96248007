//! How fast each kernel of this processor is, for the table that says which one runs.

use super::report::{Tuned, Tuning};
use super::{time_decode, time_prefill};
use crate::backend::Backend;
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::model::Model;

/// Times the model with each kernel of its device: a prefill of `prompt` tokens, and the `draws` after `cached` ones.
pub(super) fn measure<B: Backend>(
    checkpoint: &Checkpoint,
    model: &Model<B>,
    prompt: usize,
    (cached, draws): (usize, usize),
) -> Result<Tuning> {
    if draws == 0 {
        return Err(Error::usage("nothing can be tuned")
            .expected("--gen 1 or more: what is fast in a prefill may be slow in decoding")
            .found("--gen 0")
            .next("leave --gen out"));
    }
    let (mut kernels, mut lines) = (Vec::new(), Vec::new());
    for backend in model.backend.kernels() {
        let kernel = backend.kernel_name();
        lines.push(backend.table_line());
        let model = Model::load(checkpoint, backend)?;
        let (prefill, decode) = (time_prefill(&model, prompt)?, time_decode(&model, cached, draws, 0)?);
        kernels.push(Tuned { kernel, prefill: prefill.rates, decode: decode.rates });
    }
    // A prompt, and as many tokens drawn as it has.
    let time = |tuned: &Tuned| 1.0 / tuned.prefill.median + 1.0 / tuned.decode.median;
    let fastest = kernels.iter().zip(lines).min_by(|(a, _), (b, _)| time(a).total_cmp(&time(b)));
    let (processor, line) = fastest.and_then(|(_, line)| line).unzip();
    Ok(Tuning { processor, prompt, kernels, line })
}
