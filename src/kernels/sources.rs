//! The sources of the kernels, which are embedded in the program, and the defines of each file.

use ring::digest::{Context, SHA256};

use super::nvrtc::{OPTIONS, Source, Version, WARPGROUPS};
use llama_trace_core::config::{CacheDtype, Precision};
use llama_trace_core::tensor::Dtype;

/// A source file with its defines.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Module {
    /// The file's name without `.cu`.
    pub file: &'static str,
    /// The defines: `WEIGHT=BF16` and so on.
    pub defines: Vec<String>,
}

/// Number of values of a large block of weights.
pub const LARGE: usize = 256;

/// The number types of weights that a file is compiled for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Weights {
    /// The file reads no weights.
    None,
    /// Weights that are stored as floats.
    Floats,
    /// Weights that are stored as integers: int8 and blocks.
    Whole,
    /// Of the integer types, only those with blocks of 256 values (`Large`), or all others (`Small`).
    Large,
    Small,
    /// All weights.
    All,
}

impl Weights {
    fn has(self, dtype: Dtype) -> bool {
        match self {
            Self::None => false,
            Self::Floats => dtype.is_float(),
            Self::Whole => !dtype.is_float(),
            Self::Large => dtype.is_blocks() && dtype.block() == LARGE,
            Self::Small => !dtype.is_float() && !Self::Large.has(dtype),
            Self::All => true,
        }
    }
}

/// A file, and what its defines depend on.
struct File {
    name: &'static str,
    text: &'static str,
    weights: Weights,
    cache: bool,
    precision: bool,
}

macro_rules! file {
    ($name:literal, $weights:ident, $cache:literal, $precision:literal) => {
        File {
            name: $name,
            text: include_str!(concat!($name, ".cu")),
            weights: Weights::$weights,
            cache: $cache,
            precision: $precision,
        }
    };
}

/// All files: name, weights, whether the file depends on the cache's number type, and whether it depends on the
/// precision.
const FILES: &[File] = &[
    file!("attention_bf16", None, false, false),
    file!("attention_decode", None, true, true),
    file!("attention_plain", None, true, true),
    file!("attention_prefill", None, true, true),
    file!("attention_split", None, true, false),
    file!("cache", None, true, false),
    file!("coalesced", Whole, false, false),
    file!("elementwise", None, false, true),
    file!("embedding", All, false, true),
    file!("limits", None, false, false),
    file!("matmul", All, false, true),
    file!("matmul_bf16", None, false, false),
    file!("matmul_plain", Floats, false, true),
    file!("matmul_q8", Whole, false, false),
    file!("matmul_q8_wide", Whole, false, false),
    file!("matmul_wgmma", None, false, false),
    file!("matvec", All, false, true),
    file!("matvec_16", Floats, false, true),
    file!("matvec_bf16", None, false, false),
    file!("matvec_plain", All, false, true),
    file!("matvec_q8", Whole, false, false),
    file!("pack", None, false, false),
    file!("quantize", None, false, false),
    file!("rms_norm", None, false, true),
    file!("rope", None, true, true),
    file!("rows", None, false, false),
    file!("sample", None, false, false),
    file!("stream_q8", Small, false, false),
    file!("stream_q8_16", Whole, false, false),
    file!("stream_tiles", Large, false, false),
    file!("unpack", Whole, false, false),
    file!("widen", All, false, true),
];

macro_rules! headers {
    ($($name:literal)*) => { &[$(($name, include_str!($name))),*] };
}

const HEADERS: &[(&str, &str)] = headers!("attention.cuh" "attention_prefill.cuh" "attention_sizes.cuh" "blocks.cuh" "cache.cuh" "common.cuh" "matmul_q8.cuh" "matvec.cuh" "norm.cuh" "packed.cuh" "quantize.cuh" "stream.cuh" "stream_row.cuh" "tensor.cuh" "tiles.cuh" "turns.cuh" "warpgroup.cuh" "weights.cuh" "whole.cuh");

/// The files that do not multiply bfloat16 weights in bfloat16. The tensor cores do this, in `matvec_bf16`,
/// `matmul_bf16` and `matmul_wgmma`.
const NOT_BY_TENSOR_CORES: [&str; 3] = ["matmul", "matvec", "matvec_16"];

/// The files that are not embedded as PTX. Other files do the same work, more slowly.
const NOT_CARRIED: [&str; 6] =
    ["coalesced", "matmul_q8_wide", OF_WARPGROUPS, "stream_q8", "stream_q8_16", "stream_tiles"];

/// The file for a single architecture.
const OF_WARPGROUPS: &str = "matmul_wgmma";

/// Returns the file of this name.
fn file(name: &str) -> &'static File {
    let file = FILES.iter().find(|file| file.name == name);
    file.unwrap_or_else(|| unreachable!("there is no kernel file {name}"))
}

impl Module {
    /// Returns file `name`, compiled for weights of type `weight`, a precision and a cache. Each of these is used only
    /// if the file depends on it.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn new(name: &str, weight: Option<Dtype>, precision: Precision, cache: CacheDtype) -> Self {
        let file = file(name);
        let mut defines = Vec::new();
        defines.extend(weight.map(|dtype| format!("WEIGHT={dtype:?}")));
        defines.extend(file.cache.then(|| format!("CACHE={}", cache.name().to_uppercase())));
        // With integer products, all other operations round as in float32.
        let precision = if precision == Precision::Bf16 { "BF16" } else { "F32" };
        defines.extend(file.precision.then(|| format!("PRECISION={precision}")));
        Self { file: file.name, defines }
    }

    /// Returns all modules that are ever compiled.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        let never = |file: &File, weight, precision| {
            let bf16 = weight == Some(Dtype::BF16) && precision == Precision::Bf16;
            bf16 && NOT_BY_TENSOR_CORES.contains(&file.name)
        };
        for file in FILES {
            let weights: Vec<_> = match file.weights {
                Weights::None => vec![None],
                weights => Dtype::ALL.into_iter().filter(|dtype| weights.has(*dtype)).map(Some).collect(),
            };
            for weight in weights {
                for precision in [Precision::F32, Precision::Bf16] {
                    for cache in [CacheDtype::F32, CacheDtype::F16, CacheDtype::Bf16] {
                        let module = Self::new(file.name, weight, precision, cache);
                        if !all.contains(&module) && !never(file, weight, precision) {
                            all.push(module);
                        }
                    }
                }
            }
        }
        all
    }

    /// Whether the module can be compiled for devices of `architecture`.
    #[must_use]
    pub fn is_for(&self, architecture: Version) -> bool {
        self.file != OF_WARPGROUPS || architecture == WARPGROUPS
    }

    /// Whether the module is embedded as PTX.
    #[must_use]
    pub fn is_carried(&self) -> bool {
        !NOT_CARRIED.contains(&self.file)
    }

    /// Returns the names of the module's kernels.
    pub fn kernels(&self) -> Vec<&'static str> {
        let list =
            file(self.file).text.split_once("#define KERNELS_OF_THIS_FILE(X)").map_or("", |(_, list)| list);
        list.split("X(").skip(1).filter_map(|name| name.split(')').next()).collect()
    }

    /// Returns the source to compile.
    pub fn source(&self) -> Source<'_> {
        let File { name, text, .. } = *file(self.file);
        Source { name, text, headers: HEADERS, defines: &self.defines }
    }
}

/// Returns the SHA-256, in hexadecimal digits, of everything that is compiled: the sources without their comments, the
/// defines and the options.
#[must_use]
pub fn digest() -> String {
    let mut hash = Context::new(&SHA256);
    let mut add = |part: &str| {
        hash.update(part.as_bytes());
        hash.update(b"\0");
    };
    for (name, text) in FILES.iter().map(|file| (file.name, file.text)).chain(HEADERS.iter().copied()) {
        add(name);
        // Every `//` begins a comment: no string of the kernels contains one.
        text.lines()
            .map(|line| line.split("//").next().unwrap_or_default().trim_end())
            .filter(|line| !line.is_empty())
            .for_each(&mut add);
    }
    for module in Module::all() {
        add(module.file);
        module.defines.iter().for_each(|define| add(define));
    }
    OPTIONS.into_iter().for_each(&mut add);
    hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
