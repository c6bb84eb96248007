//! Random numbers that the device generates itself.

use super::Cuda;
use super::driver::Arguments;
use super::kernels::Kernel;
use super::memory::Memory;
use llama_trace_core::error::Result;
use llama_trace_core::tensor::Noise;

/// Returns `bytes` random bytes, rounded up to a whole word. A product may read weights before the kernel before it has
/// ended. So this must not be the kernel before it: a copy or a memset always lies between and waits for this kernel.
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
