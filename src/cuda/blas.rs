//! cuBLASLt, if it is installed. The report on the device's limits compares the speed of our kernels with this library.
//! No model is run with it.
#![allow(unsafe_code)]

use std::env;
use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;

use libloading::Library;

use llama_trace_core::error::Result;
use llama_trace_kernels::driver::{Address, failed};
use llama_trace_kernels::libraries::{candidates, folders, load};

/// `cublasStatus_t`: 0 is success.
type Status = c_int;
/// A cuBLASLt object: a handle, an operation's description, a matrix layout or a preference.
type Handle = *mut c_void;

type Create = unsafe extern "C" fn(*mut Handle) -> Status;
type Destroy = unsafe extern "C" fn(Handle) -> Status;
type Describe = unsafe extern "C" fn(*mut Handle, c_int, c_int) -> Status;
type Layout = unsafe extern "C" fn(*mut Handle, c_int, u64, u64, i64) -> Status;
type Set = unsafe extern "C" fn(Handle, c_int, *const c_void, usize) -> Status;
type Choose = unsafe extern "C" fn(
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    c_int,
    *mut Chosen,
    *mut c_int,
) -> Status;
type Multiply = unsafe extern "C" fn(
    Handle,
    Handle,
    *const f32,
    *const c_void,
    Handle,
    *const c_void,
    Handle,
    *const f32,
    *const c_void,
    Handle,
    *mut c_void,
    Handle,
    *const [u64; 8],
    *mut c_void,
    usize,
    *mut c_void,
) -> Status;

/// `cublasLtMatmulHeuristicResult_t`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Chosen {
    algorithm: [u64; 8],
    workspace: usize,
    state: Status,
    waves: f32,
    reserved: [c_int; 4],
}

/// Constants of cublasLt.h and library_types.h: the types float32 and bfloat16; sums in float32; the attribute for a
/// transposed first matrix, and its value; the attribute for the size of the workspace.
const FLOAT32: c_int = 0;
const BFLOAT16: c_int = 14;
const COMPUTE_FLOAT32: c_int = 68;
const DESCRIPTION_TRANSPOSE_A: c_int = 3;
const TRANSPOSED: c_int = 1;
const PREFERENCE_WORKSPACE: c_int = 1;

/// Bytes of the workspace.
pub(super) const WORKSPACE: usize = 32 << 20;

/// A prepared product of two matrices of (side, side) bfloat16 values.
pub(super) struct Blas {
    handle: Handle,
    /// The operation, the layout of all three matrices, and the preference.
    parts: [Handle; 3],
    chosen: Chosen,
    multiply: Multiply,
    /// The destructors of the handle and of each part.
    destroy: [Destroy; 4],
}

/// Returns the function `name`.
///
/// # Safety
/// It must have the type `F`.
unsafe fn function<F: Copy>(library: &Library, name: &str) -> Option<F> {
    // SAFETY: the caller guarantees the type.
    unsafe { library.get::<F>(name.as_bytes()).ok().map(|symbol| *symbol) }
}

impl Blas {
    /// Loads the newest library of at most this driver's major version, and prepares the product. `None` if there is no
    /// such library, or if it has no algorithm for the product.
    pub(super) fn find(side: usize, driver: u32) -> Option<Self> {
        let folders = folders(|name| env::var_os(name).map(PathBuf::from));
        let all = candidates("cublasLt", &folders);
        let known = |path: &&PathBuf| {
            let name = path.to_string_lossy();
            let major = name.rsplit('.').next().and_then(|major| major.parse::<u32>().ok());
            major.is_none_or(|major| major <= driver)
        };
        all.iter().filter(known).find_map(|path| Self::open(path, side))
    }

    fn open(path: &Path, side: usize) -> Option<Self> {
        let library = load(path)?;
        // SAFETY: the types are those of cublasLt.h of CUDA 12 and 13, where these functions are alike. The library is
        // never unloaded: each thread that called it holds some of its memory until the thread ends.
        let (create, describe, layout, prefer, set, set_preference, choose, mut blas) = unsafe {
            let get = |name: &str| function::<Destroy>(&library, name);
            let destroy = [
                get("cublasLtDestroy")?,
                get("cublasLtMatmulDescDestroy")?,
                get("cublasLtMatrixLayoutDestroy")?,
                get("cublasLtMatmulPreferenceDestroy")?,
            ];
            let create: Create = function(&library, "cublasLtCreate")?;
            let describe: Describe = function(&library, "cublasLtMatmulDescCreate")?;
            let layout: Layout = function(&library, "cublasLtMatrixLayoutCreate")?;
            let prefer: Create = function(&library, "cublasLtMatmulPreferenceCreate")?;
            let set: Set = function(&library, "cublasLtMatmulDescSetAttribute")?;
            let set_preference: Set = function(&library, "cublasLtMatmulPreferenceSetAttribute")?;
            let choose: Choose = function(&library, "cublasLtMatmulAlgoGetHeuristic")?;
            let multiply: Multiply = function(&library, "cublasLtMatmul")?;
            let (handle, parts) = (ptr::null_mut(), [ptr::null_mut(); 3]);
            let chosen = Chosen::default();
            let blas = Self { handle, parts, chosen, multiply, destroy };
            (create, describe, layout, prefer, set, set_preference, choose, blas)
        };
        std::mem::forget(library);
        let (transposed, workspace) = (TRANSPOSED, WORKSPACE);
        let (mut found, [operation, matrix, preference]) = (0, &mut blas.parts);
        // SAFETY: the device's context is current. Each handle is created before it is used, each attribute has the
        // stated size, and `chosen` has room for the one requested algorithm.
        let done = unsafe {
            create(&raw mut blas.handle) == 0
                && describe(operation, COMPUTE_FLOAT32, FLOAT32) == 0
                && set(
                    *operation,
                    DESCRIPTION_TRANSPOSE_A,
                    (&raw const transposed).cast(),
                    size_of::<c_int>(),
                ) == 0
                && layout(matrix, BFLOAT16, side as u64, side as u64, side as i64) == 0
                && prefer(preference) == 0
                && set_preference(
                    *preference,
                    PREFERENCE_WORKSPACE,
                    (&raw const workspace).cast(),
                    size_of::<usize>(),
                ) == 0
                && choose(
                    blas.handle,
                    *operation,
                    *matrix,
                    *matrix,
                    *matrix,
                    *matrix,
                    *preference,
                    1,
                    &raw mut blas.chosen,
                    &raw mut found,
                ) == 0
        };
        (done && found == 1).then_some(blas)
    }

    /// Queues `out = aᵀ · b` in the stream.
    ///
    /// # Safety
    /// The device's context is current, and the stream belongs to it. The addresses are in the device's memory, with
    /// room for the matrices and for the workspace of [`WORKSPACE`] bytes.
    pub(super) unsafe fn multiply(
        &self,
        [a, b, out, workspace]: [Address; 4],
        stream: *mut c_void,
    ) -> Result<()> {
        let [operation, matrix, _] = self.parts;
        let (one, zero) = (1.0_f32, 0.0_f32);
        // SAFETY: guaranteed by the caller. The library reads `one` and `zero` before the function returns.
        let status = unsafe {
            (self.multiply)(
                self.handle,
                operation,
                &raw const one,
                a as *const c_void,
                matrix,
                b as *const c_void,
                matrix,
                &raw const zero,
                out as *const c_void,
                matrix,
                out as *mut c_void,
                matrix,
                &raw const self.chosen.algorithm,
                workspace as *mut c_void,
                WORKSPACE,
                stream,
            )
        };
        if status == 0 { Ok(()) } else { Err(failed("multiply with cuBLASLt", status)) }
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        let [handle, operation, matrix, preference] = self.destroy;
        let [of_operation, of_matrix, of_preference] = self.parts;
        let all = [
            (preference, of_preference),
            (matrix, of_matrix),
            (operation, of_operation),
            (handle, self.handle),
        ];
        for (destroy, part) in all.into_iter().filter(|(_, part)| !part.is_null()) {
            // SAFETY: the object was created, and is not used any more.
            unsafe { destroy(part) };
        }
    }
}
