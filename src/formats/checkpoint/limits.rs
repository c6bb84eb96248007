//! Upper limits for the contents of a model.

/// The maximum number of weight files of a model. The largest Llama has 191.
pub const MAX_FILES: usize = 1024;
/// The maximum number of tensors in a model. The largest Llama has 1138. The maps of many tiny tensors could take many
/// times their files' size in memory.
pub(crate) const MAX_TENSORS: usize = 1 << 16;
