//! The part of rayon's interface that the program uses, without threads: work is done in sequence.

/// Iterators with the names of rayon's parallel ones.
pub mod prelude {
    pub use super::{IntoParallelIterator, ParallelIterator, ParallelSlice, ParallelSliceMut};
}

/// The number of threads: 1.
pub fn count() -> usize {
    1
}

/// Runs `first`, then `second`, and returns both results.
pub fn join<A, B>(first: impl FnOnce() -> A, second: impl FnOnce() -> B) -> (A, B) {
    (first(), second())
}

/// Does nothing: without threads, work cannot be done ahead.
pub fn ahead(_work: impl FnOnce() + Send + 'static) {}

/// Collections with a parallel iterator.
pub trait IntoParallelIterator: IntoIterator + Sized {
    /// Its iterator.
    fn into_par_iter(self) -> Self::IntoIter {
        self.into_iter()
    }
}

impl<I: IntoIterator> IntoParallelIterator for I {}

/// Methods of rayon's iterators that plain iterators lack.
pub trait ParallelIterator: Iterator + Sized {
    /// The iterator itself: it is not split.
    #[must_use]
    fn with_min_len(self, _: usize) -> Self {
        self
    }

    /// The iterator itself: it is not split.
    #[must_use]
    fn with_max_len(self, _: usize) -> Self {
        self
    }

    /// Maps each item with `map`. One value of `init` serves all items.
    fn map_init<T, R>(
        self,
        init: impl Fn() -> T,
        map: impl Fn(&mut T, Self::Item) -> R,
    ) -> impl Iterator<Item = R> {
        let mut own = init();
        self.map(move |item| map(&mut own, item))
    }

    /// Passes each item to `work` until an item fails. One value of `init` serves all items.
    ///
    /// # Errors
    /// The first error of `work`.
    fn try_for_each_init<T, E>(
        mut self,
        init: impl Fn() -> T,
        work: impl Fn(&mut T, Self::Item) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut own = init();
        self.try_for_each(|item| work(&mut own, item))
    }
}

impl<I: Iterator> ParallelIterator for I {}

/// Parts of a slice.
pub trait ParallelSlice<T> {
    /// The slice.
    fn slice(&self) -> &[T];

    /// Its values.
    fn par_iter(&self) -> std::slice::Iter<'_, T> {
        self.slice().iter()
    }

    /// Parts of `length` values; the last may be shorter.
    fn par_chunks(&self, length: usize) -> std::slice::Chunks<'_, T> {
        self.slice().chunks(length)
    }

    /// Parts of `length` values, without the rest.
    fn par_chunks_exact(&self, length: usize) -> std::slice::ChunksExact<'_, T> {
        self.slice().chunks_exact(length)
    }
}

impl<T> ParallelSlice<T> for [T] {
    fn slice(&self) -> &[T] {
        self
    }
}

/// Mutable parts of a slice.
pub trait ParallelSliceMut<T> {
    /// The slice.
    fn slice_mut(&mut self) -> &mut [T];

    /// Its values.
    fn par_iter_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.slice_mut().iter_mut()
    }

    /// Parts of `length` values; the last may be shorter.
    fn par_chunks_mut(&mut self, length: usize) -> std::slice::ChunksMut<'_, T> {
        self.slice_mut().chunks_mut(length)
    }

    /// Parts of `length` values, without the rest.
    fn par_chunks_exact_mut(&mut self, length: usize) -> std::slice::ChunksExactMut<'_, T> {
        self.slice_mut().chunks_exact_mut(length)
    }
}

impl<T> ParallelSliceMut<T> for [T] {
    fn slice_mut(&mut self) -> &mut [T] {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_in_order_and_work_ends_with_the_first_that_fails() {
        let (values, mut sums) = ([1, 2, 3, 4, 5, 6, 7], [0; 3]);
        let parts = values.par_chunks(3).zip(sums.par_chunks_mut(1)).with_min_len(2).with_max_len(2);
        parts.for_each(|(part, sum)| sum[0] = part.iter().sum());
        assert_eq!(sums, [6, 15, 7]);
        let exact = values.par_chunks_exact(3).zip(sums.par_chunks_exact_mut(1));
        exact.for_each(|(part, sum)| sum[0] = part[0]);
        assert_eq!(sums, [1, 4, 7]);
        let found: Vec<_> = values.par_iter().map_init(|| 10, |own, value| *own + value).collect();
        assert_eq!(found, [11, 12, 13, 14, 15, 16, 17]);
        let failed = sums.par_iter_mut().try_for_each_init(Vec::new, |seen, value| {
            seen.push(*value);
            if *value == 4 { Err(seen.clone()) } else { Ok(()) }
        });
        assert_eq!(failed, Err(vec![1, 4]));
        assert_eq!((0..3).into_par_iter().count(), 3);
        assert_eq!((count(), join(|| 1, || 2)), (1, (1, 2)));
        ahead(|| panic!("nobody does it ahead"));
    }
}
