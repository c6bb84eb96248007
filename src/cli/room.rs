//! Whether a model fits into a device's memory, and what would fit instead.

use std::collections::HashSet;

use super::memory::size;
use llama_trace_core::config::{CacheDtype, DEFAULT_GROUP, Precision};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::tensor::Tensor;
use llama_trace_engine::model::{buffer_bytes, kv_cache};
use llama_trace_formats::checkpoint::Checkpoint;

/// Smallest context, in tokens, that must fit if the options give no context. It is enough for a prompt.
const LEAST_CONTEXT: usize = 512;

/// Longest prompt, in tokens, for which the buffers are calculated. Few prompts are as long as the context.
const MOST_AT_ONCE: usize = 2048;

/// Memory that a run takes on a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Needs {
    /// The weights, in the number type that the precision computes with.
    pub(super) weights: usize,
    /// The keys and values of the context.
    pub(super) cache: usize,
    /// The buffers of a pass over the context, or over 2,048 tokens if the context is longer.
    pub(super) buffers: usize,
    /// Tokens of the context.
    pub(super) context: usize,
    precision: Precision,
    cache_dtype: CacheDtype,
    asked: bool,
    /// The memory that the device takes for itself.
    own: usize,
}

impl Needs {
    /// The memory for a run of `checkpoint` with a context of `context` tokens. The device takes `own` bytes for
    /// itself.
    pub(super) fn of(
        checkpoint: &Checkpoint,
        precision: Precision,
        cache_dtype: CacheDtype,
        context: Option<usize>,
        own: usize,
    ) -> Self {
        let config = &checkpoint.config;
        let tokens = context.unwrap_or(LEAST_CONTEXT).min(config.context);
        Self {
            weights: weights(checkpoint, precision),
            cache: kv_cache::bytes(config, cache_dtype, tokens),
            buffers: buffer_bytes(config, tokens.min(MOST_AT_ONCE), 1),
            context: tokens,
            precision,
            cache_dtype,
            asked: context.is_some(),
            own,
        }
    }

    /// The sum, including the share of the driver and the kernels.
    pub(super) fn total(&self) -> usize {
        [self.weights, self.cache, self.buffers, self.own].into_iter().fold(0, usize::saturating_add)
    }

    /// Checks that `free` bytes are enough.
    ///
    /// # Errors
    /// [`Error::Prompt`], which says what would fit.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "a GPU's"))]
    pub(super) fn check(&self, free: usize, checkpoint: &Checkpoint) -> Result<()> {
        if self.total() <= free {
            return Ok(());
        }
        Err(Error::prompt("the model does not fit into the device's memory")
            .expected(self.told())
            .found(format!("{} are free", size(free)))
            .next(self.would_fit(free, checkpoint)))
    }

    /// The sum and its parts, as text.
    pub(super) fn told(&self) -> String {
        let Self { weights, cache, buffers, context, own, .. } = *self;
        let all = [
            format!("{} of weights", size(weights)),
            format!("{} of KV cache for {context} tokens", size(cache)),
            format!("{} for the buffers of a pass over {} tokens", size(buffers), context.min(MOST_AT_ONCE)),
            format!("{} for the driver and the kernels", size(own)),
        ];
        format!("{}: {}", size(self.total()), all.join(", "))
    }

    /// A smaller context or another precision that fits into `free` bytes.
    fn would_fit(&self, free: usize, checkpoint: &Checkpoint) -> String {
        let with =
            |precision, context| Self::of(checkpoint, precision, self.cache_dtype, Some(context), self.own);
        let mut ways = Vec::new();
        if self.asked {
            // Half of the given context, a quarter, and so on.
            let shorter = std::iter::successors(Some(self.context / 2), |context| Some(context / 2));
            let mut shorter = shorter.take_while(|context| *context > 0);
            let found = shorter.find(|context| with(self.precision, *context).total() <= free);
            ways.extend(found.map(|context| format!("a context of {context} tokens")));
        }
        if self.precision.group().is_none() {
            let q8 = with(Precision::Q8 { group: checkpoint.group().unwrap_or(DEFAULT_GROUP) }, self.context);
            ways.extend(
                (q8.total() <= free).then(|| format!("--precision q8, which takes {}", size(q8.total()))),
            );
        }
        ways.push("--device cpu".into());
        match ways.split_last() {
            Some((last, [])) => format!("run with {last}; or end other programs on the device"),
            Some((last, rest)) => format!("run with {}, or {last}", rest.join(", or ")),
            None => String::new(),
        }
    }
}

/// Bytes of all weights on a device in `precision`. Two names may belong to one tensor: the tied embedding and head.
fn weights(checkpoint: &Checkpoint, precision: Precision) -> usize {
    let mut counted = HashSet::new();
    let bytes = |tensor: &Tensor| match (precision, tensor.shape().len()) {
        (Precision::Q8 { group }, 2) if tensor.scales().is_none() && !tensor.dtype().is_blocks() => {
            tensor.count() + 4 * tensor.count().div_ceil(group)
        }
        (_, 2) => tensor.size(),
        // Vectors are float32 on the device.
        _ => 4 * tensor.count(),
    };
    let own = checkpoint.tensors().filter(|(_, tensor)| counted.insert(tensor.bytes().place()));
    own.map(|(_, tensor)| bytes(tensor)).fold(0, usize::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use llama_trace_core::tensor::Dtype;
    use llama_trace_formats::checkpoint::random;

    fn needs(checkpoint: &Checkpoint, precision: Precision, context: Option<usize>) -> Needs {
        Needs::of(checkpoint, precision, CacheDtype::F32, context, 1 << 20)
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_would() {
        let checkpoint = random::checkpoint("stories-15m", Dtype::F32).unwrap();
        let long = needs(&checkpoint, Precision::F32, Some(8192));
        assert!(long.check(long.total(), &checkpoint).is_ok());
        let short = needs(&checkpoint, Precision::F32, Some(4096));
        let error = long.check(short.total(), &checkpoint).unwrap_err();
        assert_eq!(error.exit_code(), 4);
        let text = error.to_string();
        assert!(
            text.contains("run with a context of 4096 tokens, or") && text.contains("--device cpu"),
            "{text}"
        );
        assert!(text.contains("KV cache for 8192 tokens") && text.contains("of weights"), "{text}");
        assert!(text.contains("the buffers of a pass over 2048 tokens"), "{text}");
        // Too few bytes for the weights in float32, but enough for weights of a quarter of this size.
        let few = needs(&checkpoint, Precision::F32, None);
        let text = few.check(few.total() - 1, &checkpoint).unwrap_err().to_string();
        assert!(text.contains("--precision q8") && !text.contains("a context of"), "{text}");
        let text = few.check(1000, &checkpoint).unwrap_err().to_string();
        assert!(text.contains("run with --device cpu") && !text.contains("q8"), "{text}");
    }

    #[test]
    fn the_weights_of_a_shape_have_its_size() {
        let weights = |dtype: random::Weights, precision| {
            needs(&random::checkpoint("llama-3.1-8b", dtype).unwrap(), precision, None).weights
        };
        let bf16 = weights(Dtype::BF16.into(), Precision::Bf16);
        assert!((16_000_000_000..16_200_000_000).contains(&bf16), "{bf16}");
        let int8 = weights(Dtype::Q8_0.into(), Precision::Q8 { group: 32 });
        assert!((bf16 / 2..bf16 * 2 / 3).contains(&int8), "{int8}");
        let mixture = weights(random::Weights::Q4KM, Precision::Q8 { group: 32 });
        assert!((4_800_000_000..5_000_000_000).contains(&mixture), "{mixture}");
    }

    #[test]
    fn weights_take_what_their_number_type_does() {
        let checkpoint = random::checkpoint("stories-15m", Dtype::F32).unwrap();
        let parameters: usize = checkpoint.tensors().map(|(_, tensor)| tensor.count()).sum();
        assert_eq!(needs(&checkpoint, Precision::F32, None).weights, 4 * parameters);
        let q8 = needs(&checkpoint, Precision::Q8 { group: 32 }, None).weights;
        assert!((parameters..parameters * 3 / 2).contains(&q8), "{q8}");
    }
}
