//! Kernels: they are compiled by NVRTC, or by the driver from the embedded PTX, and loaded.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::ptr;

use cudarc::driver::sys::{self, CUfunction, CUmodule};

use super::Nvidia;
use crate::probe_driver::check;
use llama_trace_core::error::{Error, Result};
use llama_trace_kernels::driver::failed;
use llama_trace_kernels::ptx;
use llama_trace_kernels::sources::Module;

/// Modules and functions that stay loaded until the device is closed.
#[derive(Default)]
pub(super) struct Loaded {
    /// Modules that NVRTC compiled. Each has one kernel.
    pub(super) alone: Vec<usize>,
    /// Modules from the embedded PTX.
    pub(super) carried: HashMap<Module, usize>,
    pub(super) functions: HashMap<(Module, String), u64>,
    /// Bytes of dynamic shared memory that each function is allowed to use, if it has an opt-in.
    pub(super) shared: HashMap<u64, u32>,
}

impl Nvidia {
    /// Returns a kernel of a module, compiled by NVRTC: its name in the machine code, a NUL, then the machine code.
    fn compiled(&self, module: &Module, name: &str) -> Result<Vec<u8>> {
        let nvrtc = self.nvrtc()?;
        let (source, architecture) = (module.source(), self.about.architecture);
        let compile = || {
            let (name, code) = nvrtc.kernel(source, architecture, name)?;
            Ok([name.as_bytes_with_nul(), &code].concat())
        };
        self.store.code((source, name), architecture, nvrtc.version(), compile)
    }

    /// Compiles one kernel of a module, and loads it.
    fn alone(&self, module: &Module, name: &str) -> Result<(CUmodule, u64)> {
        let compiled = self.compiled(module, name)?;
        let named = CStr::from_bytes_until_nul(&compiled).map_err(|error| failed("load a kernel", error))?;
        // The driver needs the code aligned to words.
        let code = compiled[named.to_bytes_with_nul().len()..].to_vec();
        let handle = Self::load(module, &code)?;
        Self::function_of(handle, named).map(|function| (handle, function))
    }

    /// Loads a module of the embedded PTX, compiled by the driver.
    fn carried(&self, module: &Module, why: Error) -> Result<CUmodule> {
        let Some(code) = ptx::code(module, self.about.architecture) else { return Err(why) };
        let handle = Self::load(module, &code)?;
        self.carried.get_or_init(|| why);
        Ok(handle)
    }

    /// Returns the kernel of this name in a module.
    fn function_of(module: CUmodule, name: &CStr) -> Result<u64> {
        let mut function: CUfunction = ptr::null_mut();
        // SAFETY: the module is loaded, and the name ends with a NUL.
        let code = unsafe { sys::cuModuleGetFunction(&raw mut function, module, name.as_ptr()) };
        check(code, &format!("find the kernel `{}`", name.to_string_lossy()))?;
        Ok(function as u64)
    }

    /// Returns a kernel; compiles and loads it at first use. Other threads are not blocked while it is compiled.
    pub(super) fn make(&self, module: &Module, name: &str) -> Result<u64> {
        let key = (module.clone(), name.to_owned());
        if let Some(&function) = self.loaded().functions.get(&key) {
            return Ok(function);
        }
        self.enter()?;
        // Without a compiler for the device, or if the driver refuses its code, the driver compiles the embedded PTX.
        let (function, handle) = match self.alone(module, name) {
            Ok((handle, function)) => (function, Some(handle)),
            Err(error) => {
                let known = self.loaded().carried.get(module).copied();
                let handle = match known {
                    Some(handle) => handle as CUmodule,
                    None => self.carried(module, error)?,
                };
                let name = CString::new(name).map_err(|error| failed("find a kernel", error))?;
                self.loaded().carried.insert(module.clone(), handle as usize);
                (Self::function_of(handle, &name)?, None)
            }
        };
        let mut loaded = self.loaded();
        loaded.alone.extend(handle.map(|handle| handle as usize));
        loaded.functions.insert(key, function);
        Ok(function)
    }

    /// Loads code: either a complete cubin (from the compiler, or from a file with the correct checksum), or PTX that
    /// ends with a NUL.
    fn load(module: &Module, code: &[u8]) -> Result<CUmodule> {
        let mut handle: CUmodule = ptr::null_mut();
        // SAFETY: the caller passes such code, and the context is current.
        let result = unsafe { sys::cuModuleLoadData(&raw mut handle, code.as_ptr().cast()) };
        check(result, &format!("load the kernel `{}`", module.file)).map(|()| handle)
    }
}
