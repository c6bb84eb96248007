//! The most of anything that a model is made of.

/// The most files that the weights of one model are in. The largest Llama's are in 191.
pub const MAX_FILES: usize = 1024;
/// The most tensors that a model has. The largest Llama's are 1138; the maps of tiny ones could take many times
/// their files' size in memory.
pub(crate) const MAX_TENSORS: usize = 1 << 16;
