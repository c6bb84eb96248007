//! A builder of GGUF files, valid and invalid, for tests.

/// The type of a 32-bit integer.
pub const U32: u32 = 4;
/// The type of a string.
pub const TEXT: u32 = 8;
/// The type of an array.
pub const LIST: u32 = 9;

/// A file under construction.
#[derive(Clone, Debug)]
pub struct Build {
    /// The version of the format.
    pub version: u32,
    /// The number of keys in the header, if it should be wrong.
    pub claimed_keys: Option<u64>,
    /// The number of tensors in the header, if it should be wrong.
    pub claimed_tensors: Option<u64>,
    /// The keys with their values, encoded.
    pub keys: Vec<Vec<u8>>,
    /// The rows of the tensor table.
    pub table: Vec<Vec<u8>>,
    /// The bytes after the table.
    pub data: Vec<u8>,
}

/// A string, preceded by its length.
pub fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text].concat()
}

impl Build {
    /// An empty file.
    #[allow(clippy::new_without_default, reason = "a test begins every file with `new`")]
    pub fn new() -> Self {
        Self {
            version: 3,
            claimed_keys: None,
            claimed_tensors: None,
            keys: vec![],
            table: vec![],
            data: vec![],
        }
    }

    /// Adds a key with an arbitrary value.
    pub fn raw(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        self.keys.push([&string(key.as_bytes()), &kind.to_le_bytes()[..], value].concat());
        self
    }

    /// Adds a key with an integer.
    pub fn u32(self, key: &str, value: u32) -> Self {
        self.raw(key, U32, &value.to_le_bytes())
    }

    /// Adds a key with a float.
    pub fn f32(self, key: &str, value: f32) -> Self {
        self.raw(key, 6, &value.to_le_bytes())
    }

    /// Adds a key with a boolean.
    pub fn flag(self, key: &str, value: bool) -> Self {
        self.raw(key, 7, &[u8::from(value)])
    }

    /// Adds a key with a string.
    pub fn text(self, key: &str, value: &str) -> Self {
        self.raw(key, TEXT, &string(value.as_bytes()))
    }

    /// Adds a key with an array of `count` elements of type `kind`.
    pub fn list(self, key: &str, kind: u32, count: u64, elements: &[u8]) -> Self {
        self.raw(key, LIST, &[&kind.to_le_bytes()[..], &count.to_le_bytes(), elements].concat())
    }

    /// Adds a key with an array of strings.
    pub fn texts<T: AsRef<[u8]>>(self, key: &str, texts: &[T]) -> Self {
        let elements: Vec<u8> = texts.iter().flat_map(|text| string(text.as_ref())).collect();
        self.list(key, TEXT, texts.len() as u64, &elements)
    }

    /// Adds a key with an array of floats.
    pub fn floats(self, key: &str, values: &[f32]) -> Self {
        let elements: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.list(key, 6, values.len() as u64, &elements)
    }

    /// Adds a key with an array of integers.
    pub fn wholes(self, key: &str, values: &[i32]) -> Self {
        let elements: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.list(key, 5, values.len() as u64, &elements)
    }

    /// Adds an unchecked row to the tensor table. `shape` is in the order of the file, innermost first.
    pub fn row(mut self, name: &str, shape: &[u64], kind: u32, offset: u64) -> Self {
        let sizes: Vec<u8> = shape.iter().flat_map(|size| size.to_le_bytes()).collect();
        let axes = (shape.len() as u32).to_le_bytes();
        self.table.push(
            [&string(name.as_bytes()), &axes[..], &sizes, &kind.to_le_bytes(), &offset.to_le_bytes()]
                .concat(),
        );
        self
    }

    /// Adds a tensor of this shape, outermost first, whose float32 values are all `value`.
    pub fn tensor(mut self, name: &str, shape: &[u64], value: f32) -> Self {
        self.data.resize(self.data.len().next_multiple_of(32), 0);
        let offset = self.data.len() as u64;
        for _ in 0..shape.iter().product() {
            self.data.extend(value.to_le_bytes());
        }
        let shape: Vec<u64> = shape.iter().rev().copied().collect();
        self.row(name, &shape, 0, offset)
    }

    /// The whole file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut file = [b"GGUF", &self.version.to_le_bytes()[..]].concat();
        file.extend(self.claimed_tensors.unwrap_or(self.table.len() as u64).to_le_bytes());
        file.extend(self.claimed_keys.unwrap_or(self.keys.len() as u64).to_le_bytes());
        file.extend(self.keys.concat());
        file.extend(self.table.concat());
        if !self.table.is_empty() {
            file.resize(file.len().next_multiple_of(32), 0);
            file.extend(&self.data);
        }
        file
    }
}
