//! The operations of a forward pass. Each file has one operation: its formula, a plain function on slices, and tests
//! that can be checked by eye. Backends are tested against these functions; nothing here knows about models or threads.

pub mod activation;
pub mod arithmetic;
pub mod attention;
pub mod blocks;
mod dispatch;
pub mod elementwise;
pub mod exp;
mod fma;
pub mod matmul;
pub mod norm;
pub mod quantize;
pub mod rms_norm;
pub mod rope;
pub mod round;
pub mod softmax;
pub mod swiglu;
pub mod typical;
