//! Random numbers that are generated on the device.

use super::Cuda;
use super::kernels::Kernel;
use super::memory::Memory;
use llama_trace_core::error::Result;
use llama_trace_core::tensor::Noise;
use llama_trace_kernels::driver::Arguments;

/// Returns `bytes` random bytes, rounded up to a whole 8-byte word. A product that follows may read its weights before
/// the previous kernel has ended. That kernel is never the one that generates these bytes, because a copy or a memset
/// always comes between, and waits for it.
pub(super) fn random(cuda: &Cuda, bytes: usize, noise: Noise) -> Result<Memory> {
    let Noise { seed, keep, set, block, at } = noise;
    let memory = Memory::new(&cuda.queue, bytes.next_multiple_of(8))?;
    let kernel = Kernel { file: "limits", name: "random_words", weight: None };
    let words = bytes.div_ceil(8);
    let arguments = Arguments::new().address(memory.at()).long(words).bits(seed).bits(keep).bits(set);
    let arguments = arguments.int(block).int(at);
    cuda.kernels.launch(kernel, (words.div_ceil(256), 1), 256, 0, arguments)?;
    Ok(memory)
}
