//! Random numbers that the device makes itself.

use super::Cuda;
use super::driver::Arguments;
use super::kernels::Kernel;
use super::memory::Memory;
use llama_trace_core::error::Result;
use llama_trace_core::tensor::Noise;

/// `bytes` random bytes, with those that fill the last word. A product may read weights before the kernel before it has ended:
/// between this and the first product there is always a copy or a memset, which waits for this kernel.
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
