//! Kernels that the program carries as PTX, for machines where no NVRTC is: made of the same sources for compute capability
//! 8.0 and 9.0, packed, and turned into machine code by the driver. Those for one architecture alone are not among them, nor
//! those that only do faster what others do too.
//!
//! They were made with COMPACT defined (`kernels/common.cuh`): several rows are multiplied one after the other, with the
//! same bits. An old compiler made them, so that an old driver takes them. `tests/cuda.rs` makes them, and holds them
//! against the sources.

use std::collections::HashMap;
use std::io::{self, Read};
use std::sync::OnceLock;

use lzma_rust2::LzmaReader;
use ring::digest::SHA256;

use super::nvrtc::Version;
use super::sources::Module;

/// What they are made for. The driver makes code of the last of these that the device is not older than.
pub const ARCHITECTURES: [Version; 2] = [(8, 0), (9, 0)];

/// The NVRTC that they are made by, and the oldest driver that takes them.
pub const COMPILER: Version = (12, 0);

/// All of them, as [`pack`] writes them, by LZMA.
const PACKED: &[u8] = include_bytes!("kernels/ptx.lzma");

/// What they were made of, the digest of the sources, and their own digest.
pub const MADE_OF: &str = include_str!("kernels/ptx.txt");

/// The most memory that unpacking may take, in KiB.
const MOST_KIB: u32 = 64 << 10;

/// The PTX of a module for an architecture of [`ARCHITECTURES`].
pub type Texts = HashMap<(Version, Module), String>;

/// What is carried.
#[must_use]
pub fn modules() -> Vec<Module> {
    Module::all().into_iter().filter(Module::is_carried).collect()
}

/// `module` as it is compiled for this.
#[must_use]
pub fn compact(module: &Module) -> Module {
    let mut compact = module.clone();
    compact.defines.push("COMPACT".into());
    compact
}

/// Puts texts one after the other, so that those which are alike are neighbours: each after a line with what it is, and its
/// length.
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

/// sm_90 matvec WEIGHT=BF16 PRECISION=F32
fn title((major, minor): Version, module: &Module) -> String {
    let words = [vec![format!("sm_{major}{minor}"), module.file.to_owned()], module.defines.clone()];
    words.concat().join(" ")
}

/// Takes apart what [`pack`] wrote and LZMA packed.
///
/// # Errors
/// Where it is damaged.
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

/// All that the program carries; none where that is damaged, which a test rules out.
pub fn carried() -> &'static Texts {
    static TEXTS: OnceLock<Texts> = OnceLock::new();
    TEXTS.get_or_init(|| unpack(PACKED).unwrap_or_default())
}

/// SHA-256 of a file, in hexadecimal digits.
#[must_use]
pub fn digest(file: &[u8]) -> String {
    ring::digest::digest(&SHA256, file).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The module as code that the driver takes for a device of `architecture`: PTX and a NUL. None where the device is older
/// than any that there is a text for.
pub(super) fn code(module: &Module, architecture: Version) -> Option<Vec<u8>> {
    let of = ARCHITECTURES.into_iter().rfind(|known| *known <= architecture)?;
    let text = carried().get(&(of, module.clone()))?;
    Some([text.as_bytes(), b"\0"].concat())
}

#[cfg(test)]
mod tests {
    use super::super::sources;
    use super::*;

    /// Needs no compiler: whoever changes a kernel sees it fail.
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
                // A driver takes nothing that calls a function which is not there.
                assert!(!text.contains(".extern .func"), "{what}");
                // Only a device that knows it is asked to start a kernel early.
                assert_eq!(text.contains("griddepcontrol"), architecture >= (9, 0), "{what}");
            }
        }
        assert!(PACKED.len() < 1_700_000, "{} bytes", PACKED.len());
    }

    /// Of a load whose bytes never change (`.nc`), the compiler thinks that it may as well come after the wait.
    #[test]
    fn weights_are_asked_for_before_the_kernel_before_has_ended() {
        for ((architecture, module), text) in carried() {
            if *architecture < (9, 0) {
                continue;
            }
            for kernel in text.split(".visible .entry ").skip(1) {
                let name = kernel.split('(').next().unwrap();
                // Those that measure the device wait for nobody.
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
