//! A stage as a `.npy` file: little-endian float32, int64 or int8, C order. Values may arrive in any order and are not
//! kept in memory: each value is written to its place in the file.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use ndarray::{Dimension, IxDyn};
use ndarray_npy::{WriteNpyError, write_zeroed_npy};

use super::probe::Values;
use super::stage::Stage;

/// Bytes per read.
const AT_ONCE: usize = 1 << 20;

/// A `.npy` file under construction.
#[derive(Debug)]
pub struct Npy {
    stage: Stage,
    file: File,
    /// The offset of the values.
    start: u64,
    /// The current offset of the file.
    at: u64,
    /// The number of values.
    count: usize,
}

impl Npy {
    /// Starts a `.npy` file for the values of `stage` in `shape`. `file` must be empty, readable and writable.
    ///
    /// # Errors
    /// The file's errors.
    pub fn begin(stage: Stage, shape: &[usize], mut file: File) -> io::Result<Self> {
        let shape = IxDyn(shape);
        let count = shape.size();
        let begun = match stage {
            stage if stage.is_ids() => write_zeroed_npy::<i64, _>(&file, shape),
            stage if stage.is_int8() => write_zeroed_npy::<i8, _>(&file, shape),
            _ => write_zeroed_npy::<f32, _>(&file, shape),
        };
        begun.map_err(|error| match error {
            WriteNpyError::Io(error) => error,
            other => io::Error::other(other),
        })?;
        let at = file.stream_position()?;
        Ok(Self { stage, file, start: at, at, count })
    }

    /// Writes `values`, the stage's values from number `first` on (row-major).
    ///
    /// # Errors
    /// The file's errors.
    pub fn write(&mut self, first: usize, values: Values<'_>) -> io::Result<()> {
        self.go_to(first)?;
        let bytes = match values {
            Values::F32(values) => cast_slice(values),
            Values::I64(values) => cast_slice(values),
            Values::I8(values) => cast_slice(values),
        };
        self.file.write_all(bytes)?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Reads all written values in order, and passes them to `see` part by part.
    ///
    /// # Errors
    /// The file's errors and those of `see`.
    pub fn read(&mut self, see: impl FnMut(Values<'_>) -> io::Result<()>) -> io::Result<()> {
        match self.stage {
            stage if stage.is_ids() => self.read_as(|part| Values::I64(part), see),
            stage if stage.is_int8() => self.read_as(|part| Values::I8(part), see),
            _ => self.read_as(|part| Values::F32(part), see),
        }
    }

    fn read_as<T: Pod>(
        &mut self,
        values: impl for<'a> Fn(&'a [T]) -> Values<'a>,
        mut see: impl FnMut(Values<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let at_once = (AT_ONCE / size_of::<T>()).min(self.count).max(1);
        let mut part = vec![T::zeroed(); at_once];
        self.go_to(0)?;
        for first in (0..self.count).step_by(at_once) {
            let part = &mut part[..at_once.min(self.count - first)];
            let bytes = cast_slice_mut(part);
            self.file.read_exact(bytes)?;
            self.at += bytes.len() as u64;
            see(values(part))?;
        }
        Ok(())
    }

    fn go_to(&mut self, value: usize) -> io::Result<()> {
        let to = self.start + (value * self.stage.value_bytes()) as u64;
        if self.at != to {
            self.file.seek(SeekFrom::Start(to))?;
            self.at = to;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ndarray::Array3;
    use ndarray_npy::WriteNpyExt;

    use super::*;

    #[test]
    fn rows_in_any_order_make_the_file_of_the_whole_tensor() {
        let (mut file, mut read) = (tempfile::tempfile().unwrap(), Vec::new());
        let values: Vec<f32> = (0..24).map(|i| i as f32).collect();
        let mut npy = Npy::begin(Stage::Qk, &[2, 3, 4], file.try_clone().unwrap()).unwrap();
        for row in [3, 4, 0, 5, 1, 2] {
            npy.write(row * 4, Values::F32(&values[row * 4..row * 4 + 4])).unwrap();
        }
        npy.read(|values| {
            read.extend(values.numbers());
            Ok(())
        })
        .unwrap();
        assert_eq!(read, values.iter().map(|&value| f64::from(value)).collect::<Vec<_>>());
        let (mut ours, mut whole) = (Vec::new(), Vec::new());
        file.rewind().unwrap();
        file.read_to_end(&mut ours).unwrap();
        Array3::from_shape_vec((2, 3, 4), values).unwrap().write_npy(&mut whole).unwrap();
        assert!(ours == whole);
    }
}
