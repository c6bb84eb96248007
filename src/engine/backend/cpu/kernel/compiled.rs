//! Plain operations that are written once and compiled for each vector instruction set.

/// `compiled!(FEATURES, UNIT: name, operation, (argument: type, …))` defines the operation as `name`, compiled for
/// FEATURES. UNIT is the name of these features in the docs. Use this macro only in a module whose kernel exists only
/// on processors with these features.
macro_rules! compiled {
    ($features:literal, $unit:literal: $($name:ident, $op:path, ($($argument:ident: $type:ty),*);)*) => {$(
        #[doc = concat!("[`", stringify!($op), "`], compiled for ", $unit, ".")]
        pub(super) fn $name($($argument: $type),*) {
            #[target_feature(enable = $features)]
            fn inner($($argument: $type),*) {
                $op($($argument),*);
            }
            // SAFETY: the kernel of this module exists only if the processor has these features.
            unsafe { inner($($argument),*) }
        }
    )*};
}

/// Defines the operations as methods of [`super::Isa`].
macro_rules! compiled_methods {
    ($features:literal: $($name:ident, $op:path, ($($argument:ident: $type:ty),*);)*) => {$(
        fn $name(&self, $($argument: $type),*) {
            #[target_feature(enable = $features)]
            fn inner($($argument: $type),*) {
                $op($($argument),*);
            }
            // SAFETY: the kernel of this module exists only if the processor has these features.
            unsafe { inner($($argument),*) }
        }
    )*};
}

/// Defines the methods of [`super::Isa`] that every vector instruction set compiles for its features.
macro_rules! row_operations {
    ($features:literal) => {
        compiled_methods! {
            $features:
            quantize, ops::quantize::quantize, (x: &[f32], group: usize, values: &mut [i8], scales: &mut [f32]);
            widen_bf16, rows::widen_bf16, (values: &[bf16], out: &mut [f32]);
            rms_norm, ops::rms_norm::rms_norm, (x: &[f32], weight: &[f32], eps: f32, precision: Precision, out: &mut [f32]);
            round, ops::round::row, (precision: Precision, row: &mut [f32]);
            add, ops::elementwise::add, (a: &[f32], b: &[f32], out: &mut [f32]);
            mul, ops::elementwise::mul, (a: &[f32], b: &[f32], out: &mut [f32]);
            scale, ops::attention::scale, (row: &mut [f32], head_dim: usize);
            rope, ops::rope::rope, (x: &[f32], cos: &[f32], sin: &[f32], pairing: Pairing, precision: Precision, out: &mut [f32]);
        }
    };
}

pub(super) use {compiled, compiled_methods, row_operations};
