//! NVIDIA's driver and its devices: whether they exist and are new enough.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};
use libloading::Library;

use llama_trace_core::error::{Error, Result};
use llama_trace_kernels::driver::{About, failed};
use llama_trace_kernels::nvrtc::Version;
use llama_trace_kernels::ptx;

/// The oldest architecture that the kernels support.
const OLDEST: (u32, u32) = (8, 0);

/// The file names of the driver's library.
const DRIVER: &[&str] = if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so.1", "libcuda.so"] };

/// Whether the driver's library is there.
fn present() -> bool {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    // Every start of the program calls this. cudarc alone would try forty names, in all folders of the loader's path.
    *PRESENT.get_or_init(|| {
        let found = DRIVER.iter().find_map(|name| {
            // SAFETY: NVIDIA's driver may be loaded at any time and by any thread.
            unsafe { Library::new(*name) }.ok()
        });
        // The library stays loaded: a driver does not support being unloaded.
        let there = found.map(std::mem::forget).is_some();
        // SAFETY: as above.
        there && unsafe { sys::is_culib_present() }
    })
}

/// Whether there is a driver that reports at least one device, or that fails to report its devices.
pub(super) fn is_there() -> bool {
    let mut count = 0;
    // SAFETY: the driver is called only if its library is there. `count` is a variable for an int.
    present()
        && unsafe {
            match sys::cuInit(0) {
                CUresult::CUDA_SUCCESS => {
                    sys::cuDeviceGetCount(&raw mut count) != CUresult::CUDA_SUCCESS || count > 0
                }
                code => code != CUresult::CUDA_ERROR_NO_DEVICE,
            }
        }
}

/// Returns the driver's name of a result code.
fn word(code: CUresult) -> String {
    format!("{code:?}")
}

/// Returns `Ok` for success, otherwise the error "the device cannot `what`".
pub(super) fn check(code: CUresult, what: &str) -> Result<()> {
    match code {
        CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(failed(what, word(code))),
    }
}

/// Returns an error for a driver that is too old for the embedded PTX. Such a driver also lacks some of the functions
/// that this program calls.
fn too_old(driver: Version) -> Result<()> {
    if driver >= ptx::COMPILER {
        return Ok(());
    }
    Err(Error::usage("NVIDIA's driver is too old")
        .expected(format!("one for CUDA {}.{} or newer", ptx::COMPILER.0, ptx::COMPILER.1))
        .found(format!("one for CUDA {}.{}", driver.0, driver.1))
        .next("update the driver, or run with --device cpu"))
}

/// A device that can run the kernels, and the driver's version.
pub(super) struct Found {
    pub(super) about: About,
    pub(super) driver: Version,
    pub(super) device: sys::CUdevice,
}

/// Finds device number `number`.
///
/// # Errors
/// [`Error::Usage`] if there is no driver or no such device, or if the driver or the device is too old.
pub(super) fn find(number: usize) -> Result<Found> {
    let cpu = "run with --device cpu, or on a machine with an NVIDIA GPU";
    if !present() {
        let names = DRIVER.join(", ");
        return Err(Error::usage("there is no CUDA driver on this machine")
            .expected(format!("NVIDIA's driver library ({names}) in the loader's path"))
            .found("none of these")
            .next(format!(
                "install NVIDIA's driver, or name its folder in LD_LIBRARY_PATH. Without the driver, {cpu}"
            )));
    }
    let no_device = |found: String| {
        Error::usage(format!("there is no CUDA device {number}"))
            .expected(
                "a GPU that the driver finds (nvidia-smi lists them, CUDA_VISIBLE_DEVICES hides some, and \
                 CUDA_DEVICE_ORDER=PCI_BUS_ID gives them the order of nvidia-smi)",
            )
            .found(found)
            .next(cpu)
    };
    let (mut version, mut count) = (0, 0);
    // SAFETY: the library is there. The pointers are to variables for an int.
    let started = unsafe {
        let started = sys::cuInit(0);
        if started == CUresult::CUDA_SUCCESS {
            sys::cuDriverGetVersion(&raw mut version);
            sys::cuDeviceGetCount(&raw mut count);
        }
        started
    };
    if started != CUresult::CUDA_SUCCESS {
        return Err(no_device(format!("the driver's error {}", word(started))));
    }
    let version = u32::try_from(version).unwrap_or(0);
    let driver = (version / 1000, version % 1000 / 10);
    too_old(driver)?;
    let number_of = c_int::try_from(number).ok().filter(|number| *number < count);
    let ordinal = number_of.ok_or_else(|| match count {
        0 => no_device("none".into()),
        1 => no_device("only cuda:0".into()),
        _ => no_device(format!("cuda:0 to cuda:{}", count - 1)),
    })?;
    let (mut device, mut name) = (0, [0_u8; 128]);
    // SAFETY: the ordinal is that of a device, and `name` has the stated size.
    let code = unsafe {
        match sys::cuDeviceGet(&raw mut device, ordinal) {
            CUresult::CUDA_SUCCESS => {
                sys::cuDeviceGetName(name.as_mut_ptr().cast::<c_char>(), name.len() as c_int, device)
            }
            code => code,
        }
    };
    check(code, "be found")?;
    let attribute = |attribute| {
        let mut value = 0;
        // SAFETY: the device exists, and `value` is a variable for an int.
        let code = unsafe { sys::cuDeviceGetAttribute(&raw mut value, attribute, device) };
        check(code, "report its properties").map(|()| u32::try_from(value).unwrap_or(0))
    };
    let about = About {
        name: String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned(),
        architecture: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize,
    };
    if about.architecture < OLDEST {
        let (major, minor) = about.architecture;
        return Err(Error::usage("the device is too old for the kernels")
            .at(&about.name)
            .expected("compute capability 8.0 or newer (Ampere)")
            .found(format!("{major}.{minor}"))
            .next(cpu));
    }
    Ok(Found { about, driver, device })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_is_too_old_is_told_from_one_that_takes_the_kernels() {
        let error = too_old((11, 8)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("CUDA 12.0 or newer") && text.contains("for CUDA 11.8"), "{text}");
        assert_eq!(error.exit_code(), 2);
        assert!([(12, 0), (12, 8), (13, 0)].into_iter().all(|driver| too_old(driver).is_ok()));
    }
}
