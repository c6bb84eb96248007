//! Kernels embedded in the program as PTX, for machines without NVRTC. They are compiled from the same sources, for
//! compute capability 8.0 and 9.0, and packed. The driver compiles them to machine code. Kernels for a single
//! architecture are left out. So are kernels that are only a faster version of another kernel.
//!
//! They are compiled with COMPACT defined (`common.cuh`): they multiply several rows one after the other, and
//! give the same bits. The compiler is an old version, because old drivers accept its PTX. `tests/cuda.rs` makes the
//! PTX, and checks that it was made from the current sources.

use std::collections::HashMap;
use std::io::{self, Read};
use std::sync::OnceLock;

use lzma_rust2::LzmaReader;
use ring::digest::SHA256;

use super::nvrtc::Version;
use super::sources::Module;

/// The architectures of the embedded PTX. The driver compiles the last one that is not newer than the device.
pub const ARCHITECTURES: [Version; 2] = [(8, 0), (9, 0)];

/// The version of the NVRTC that made the PTX. It is also the oldest driver version that accepts this PTX.
pub const COMPILER: Version = (12, 0);

/// All embedded PTX, as [`pack`] writes it, compressed by LZMA.
const PACKED: &[u8] = include_bytes!("ptx.lzma");

/// The file that identifies the embedded PTX: the digest of its sources, and the digest of the PTX itself.
pub const MADE_OF: &str = include_str!("ptx.txt");

/// Maximum memory for unpacking, in KiB.
const MOST_KIB: u32 = 64 << 10;

/// The PTX of a module for an architecture of [`ARCHITECTURES`].
pub type Texts = HashMap<(Version, Module), String>;

/// Returns the embedded modules.
#[must_use]
pub fn modules() -> Vec<Module> {
    Module::all().into_iter().filter(Module::is_carried).collect()
}

/// Returns `module` with the additional define for embedding.
#[must_use]
pub fn compact(module: &Module) -> Module {
    let mut compact = module.clone();
    compact.defines.push("COMPACT".into());
    compact
}

/// Concatenates texts, with similar texts side by side for better compression. A line with its title and length
/// precedes each text.
#[must_use]
pub fn pack(texts: &Texts) -> Vec<u8> {
    let mut all = Vec::new();
    for module in modules() {
        for architecture in ARCHITECTURES {
            if let Some(text) = texts.get(&(architecture, module.clone())) {
                all.extend(format!("{} {}\n", title(architecture, &module), text.len()).into_bytes());
                all.extend(text.as_bytes());
            }
        }
    }
    all
}

/// Returns the title of a text, such as `sm_90 matvec WEIGHT=BF16 PRECISION=F32`.
fn title((major, minor): Version, module: &Module) -> String {
    let words = [vec![format!("sm_{major}{minor}"), module.file.to_owned()], module.defines.clone()];
    words.concat().join(" ")
}

/// Unpacks texts that [`pack`] has packed and LZMA has compressed.
///
/// # Errors
/// If the packed bytes are damaged.
pub fn unpack(packed: &[u8]) -> io::Result<Texts> {
    let mut all = String::new();
    LzmaReader::new_mem_limit(packed, MOST_KIB, None)?.read_to_string(&mut all)?;
    let mut known = HashMap::new();
    for module in modules() {
        for architecture in ARCHITECTURES {
            known.insert(title(architecture, &module), (architecture, module.clone()));
        }
    }
    let damaged = || io::Error::other("the packed PTX is damaged");
    let (mut texts, mut rest) = (Texts::new(), &*all);
    while !rest.is_empty() {
        let (line, after) = rest.split_once('\n').ok_or_else(damaged)?;
        let (title, length) = line.rsplit_once(' ').ok_or_else(damaged)?;
        let length = length.parse().map_err(|_| damaged())?;
        let (text, after) = after.split_at_checked(length).ok_or_else(damaged)?;
        texts.insert(known.remove(title).ok_or_else(damaged)?, text.to_owned());
        rest = after;
    }
    Ok(texts)
}

/// Returns all embedded PTX. Empty if the PTX is damaged; a test checks that it is not.
pub fn carried() -> &'static Texts {
    static TEXTS: OnceLock<Texts> = OnceLock::new();
    TEXTS.get_or_init(|| unpack(PACKED).unwrap_or_default())
}

/// SHA-256 of a file, in hexadecimal digits.
#[must_use]
pub fn digest(file: &[u8]) -> String {
    ring::digest::digest(&SHA256, file).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the PTX of a module for a device of `architecture`, with a NUL at the end, as the driver wants it. `None` if
/// the device is older than all embedded architectures.
pub fn code(module: &Module, architecture: Version) -> Option<Vec<u8>> {
    let of = ARCHITECTURES.into_iter().rfind(|known| *known <= architecture)?;
    let text = carried().get(&(of, module.clone()))?;
    Some([text.as_bytes(), b"\0"].concat())
}

#[cfg(test)]
mod tests {
    use super::super::sources;
    use super::*;

    /// This test needs no compiler. It fails if a kernel was changed after the PTX was made.
    #[test]
    fn the_ptx_was_made_of_the_sources_as_they_are() {
        let digests: Vec<_> = MADE_OF.lines().take(2).collect();
        assert_eq!(
            digests,
            [sources::digest(), digest(PACKED)],
            "the PTX is out of date: LLAMA_TRACE_NVRTC=$(.ci/nvrtc.sh) LLAMA_TRACE_BLESS=1 cargo test --test cuda"
        );
    }

    #[test]
    fn every_module_is_there_for_every_architecture_with_all_its_kernels() {
        let texts = unpack(PACKED).unwrap();
        assert_eq!(texts.len(), modules().len() * ARCHITECTURES.len());
        for module in modules() {
            for architecture in ARCHITECTURES {
                let text = &texts[&(architecture, module.clone())];
                let what = title(architecture, &module);
                let head = format!(
                    ".version 8.0\n.target sm_{}{}\n.address_size 64\n",
                    architecture.0, architecture.1
                );
                assert!(text.starts_with(&head), "{what}: {}", &text[..100]);
                let names = module.kernels();
                assert!(!names.is_empty(), "{what}");
                for name in names {
                    assert!(text.contains(&format!(".visible .entry {name}(")), "{what}: {name}");
                }
                // A driver refuses a call of a missing function.
                assert!(!text.contains(".extern .func"), "{what}");
                // A kernel starts early only on a device that supports this (9.0 and newer).
                assert_eq!(text.contains("griddepcontrol"), architecture >= (9, 0), "{what}");
            }
        }
        assert!(PACKED.len() < 1_700_000, "{} bytes", PACKED.len());
    }

    /// A kernel loads its first weights before it waits for the previous kernel. The compiler could move a load of
    /// constant data (`.nc`) to after the wait, so the PTX must have no such load before it.
    #[test]
    fn weights_are_asked_for_before_the_kernel_before_has_ended() {
        for ((architecture, module), text) in carried() {
            if *architecture < (9, 0) {
                continue;
            }
            for kernel in text.split(".visible .entry ").skip(1) {
                let name = kernel.split('(').next().unwrap();
                // Kernels that measure the device have no wait.
                let Some((before, _)) = kernel.split_once("griddepcontrol.wait") else { continue };
                assert!(!before.contains("ld.global.nc"), "{name} {module:?}");
                if name.starts_with("matvec_bf16_") || name.starts_with("swiglu_bf16_8") {
                    let asked = before.matches("ld.global.L1::no_allocate.L2::256B.v4").count();
                    assert_eq!(asked, 16, "{name}: two pieces of four times two rows");
                }
            }
        }
    }

    #[test]
    fn a_device_gets_the_newest_that_it_is_not_older_than() {
        let module = Module::all().remove(0);
        let target = |architecture| {
            let code = String::from_utf8(code(&module, architecture)?).unwrap();
            assert!(code.ends_with('\0'));
            code.lines().find_map(|line| line.strip_prefix(".target ").map(str::to_owned))
        };
        for (architecture, expected) in [
            ((7, 5), None),
            ((8, 0), Some("sm_80")),
            ((8, 9), Some("sm_80")),
            ((9, 0), Some("sm_90")),
            ((12, 0), Some("sm_90")),
        ] {
            assert_eq!(target(architecture).as_deref(), expected);
        }
    }

    #[test]
    fn what_is_damaged_is_an_error() {
        for damaged in [&PACKED[..PACKED.len() / 2], &PACKED[..7], b"no LZMA at all, but long enough"] {
            assert!(unpack(damaged).is_err());
        }
    }
}
