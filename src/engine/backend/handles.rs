//! Handles of the buffers, weights and caches that a backend owns. The rest of the program holds only the handles. Only
//! the backend that made a handle reads the value inside, and it chooses the value's type.

use std::any::Any;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        pub struct $name(Box<dyn Any + Send + Sync>);

        impl $name {
            /// Wraps a backend's own value.
            pub fn new(value: impl Any + Send + Sync) -> Self {
                Self(Box::new(value))
            }

            /// The backend's own value.
            ///
            /// # Panics
            /// If a backend of another kind made the handle.
            pub fn downcast<T: Any>(&self) -> &T {
                self.0.downcast_ref().unwrap_or_else(|| unreachable!("a handle stays with its backend"))
            }

            /// The backend's own value, to write to it.
            ///
            /// # Panics
            /// If a backend of another kind made the handle.
            pub fn downcast_mut<T: Any>(&mut self) -> &mut T {
                self.0.downcast_mut().unwrap_or_else(|| unreachable!("a handle stays with its backend"))
            }
        }
    )*};
}

handles! {
    /// Activations.
    Buffer

    /// A weight matrix (outputs, inputs), in the number type of its file.
    Matrix

    /// A weight vector.
    Vector

    /// Activations in the form that a matrix product reads: in another order, or in another number type.
    Input

    /// The keys or the values of one layer of one sequence (capacity, G, C).
    Cache

    /// The data that are new in a pass (ids, positions and spans), in the memory that the operations read.
    Pass

    /// A point in time in the device's work, like a CUDA event.
    Mark
}
