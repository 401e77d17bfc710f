//! NVRTC, NVIDIA's compiler, as a library that is loaded when it is needed.
//!
//! cudarc has the same functions, but takes whatever library of that name it finds first: one that a user names must be
//! the one that is used.
//!
//! `unsafe` lives here because NVRTC is a C library. It is sound because the types are those of `nvrtc.h`, which have not
//! changed since CUDA 11, a program is destroyed after its last use, and buffers are as long as NVRTC said they must be.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use libloading::{Library, Symbol};

/// Names under which NVRTC is looked for.
const NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];

/// A loaded NVRTC.
pub struct Nvrtc {
    /// Never unloaded: nobody knows what a library leaves behind in its threads.
    library: ManuallyDrop<Library>,
    path: PathBuf,
}

type Program = *mut c_void;
type Code = c_int;
/// Hands out a size, or bytes, of a program.
type Get<T> = unsafe extern "C" fn(Program, *mut T) -> Code;

/// What to hand out.
#[derive(Clone, Copy)]
pub enum Output {
    /// Machine code for one architecture.
    Machine,
    /// What drivers compile for newer ones.
    Ptx,
}

impl Nvrtc {
    /// The library at a path, or one that the loader finds and a driver of this CUDA version gets on with.
    pub fn load(named: Option<&Path>, driver: i32) -> Result<Nvrtc, String> {
        let names = match named {
            Some(path) => vec![path.to_path_buf()],
            None => NAMES.iter().map(PathBuf::from).collect(),
        };
        let mut refused = None;
        for path in names {
            // SAFETY: NVRTC's initialisers do nothing beyond the library.
            let library = match (unsafe { Library::new(&path) }, named) {
                (Ok(library), _) => library,
                (Err(_), None) => continue,
                (Err(error), Some(_)) => {
                    return Err(format!("NVRTC cannot be loaded from {}: {error}", path.display()));
                }
            };
            let nvrtc = Nvrtc { library: ManuallyDrop::new(library), path };
            let (major, minor) = nvrtc.version()?;
            if major <= driver / 1000 {
                return Ok(nvrtc);
            }
            refused = Some(format!(
                "NVRTC {major}.{minor} ({}) makes code that a driver of CUDA {}.{} does not take: use NVRTC {} (--nvrtc), or a \
                 newer driver",
                nvrtc.path.display(),
                driver / 1000,
                driver % 1000 / 10,
                driver / 1000
            ));
        }
        Err(refused.unwrap_or_else(|| {
            "NVRTC (libnvrtc.so.12) was not found: install it (pip install nvidia-cuda-nvrtc-cu12, or the CUDA toolkit) and \
             name the library with --nvrtc, or with LD_LIBRARY_PATH"
                .into()
        }))
    }

    /// Which it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// # Safety
    /// `T` is the type of the function of this name.
    unsafe fn function<T>(&self, name: &str) -> Result<Symbol<'_, T>, String> {
        // SAFETY: the caller's promise.
        unsafe { self.library.get(name.as_bytes()) }
            .map_err(|error| format!("{} lacks {name}: {error}", self.path.display()))
    }

    fn check(&self, what: &str, code: Code) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the function hands out a static string for every number.
        let text = unsafe {
            let error = self.function::<unsafe extern "C" fn(Code) -> *const c_char>("nvrtcGetErrorString")?;
            CStr::from_ptr(error(code)).to_string_lossy().into_owned()
        };
        Err(format!("NVRTC ({}) could not {what}: {text}", self.path.display()))
    }

    fn version(&self) -> Result<(i32, i32), String> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the pointers are to two numbers.
        let code = unsafe {
            self.function::<unsafe extern "C" fn(*mut c_int, *mut c_int) -> Code>("nvrtcVersion")?(
                &mut major, &mut minor,
            )
        };
        self.check("tell its version", code).map(|()| (major, minor))
    }

    /// The architectures that it knows, the oldest first.
    pub fn architectures(&self) -> Result<Vec<i32>, String> {
        type Give = unsafe extern "C" fn(*mut c_int) -> Code;
        let mut count = 0;
        // SAFETY: the pointer is to a number.
        let code = unsafe { self.function::<Give>("nvrtcGetNumSupportedArchs")?(&mut count) };
        self.check("count its architectures", code)?;
        let mut all = vec![0; count.max(0) as usize];
        // SAFETY: as many numbers as it said.
        let code = unsafe { self.function::<Give>("nvrtcGetSupportedArchs")?(all.as_mut_ptr()) };
        self.check("list its architectures", code)?;
        all.sort_unstable();
        Ok(all)
    }

    /// Compiles a source.
    pub fn compile(&self, source: &str, options: &[String], output: Output) -> Result<Vec<u8>, String> {
        type Create = unsafe extern "C" fn(
            *mut Program,
            *const c_char,
            *const c_char,
            c_int,
            *const *const c_char,
            *const *const c_char,
        ) -> Code;
        let text = |text: &str| CString::new(text).map_err(|error| error.to_string());
        let source = text(source)?;
        let mut program = std::ptr::null_mut();
        // SAFETY: the strings outlive the call, there are no headers, and the pointer is to a place for the program.
        let code = unsafe {
            let create = self.function::<Create>("nvrtcCreateProgram")?;
            create(&mut program, source.as_ptr(), c"kernels.cu".as_ptr(), 0, std::ptr::null(), std::ptr::null())
        };
        self.check("take the kernels", code)?;
        let made = self.make(program, options, output);
        // SAFETY: it was made above and is not used after this.
        let code = unsafe {
            self.function::<unsafe extern "C" fn(*mut Program) -> Code>("nvrtcDestroyProgram")?(&mut program)
        };
        self.check("let go of a program", code)?;
        made
    }

    fn make(&self, program: Program, options: &[String], output: Output) -> Result<Vec<u8>, String> {
        type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Code;
        let strings = options.iter().map(|option| CString::new(option.as_str())).collect::<Result<Vec<_>, _>>();
        let strings = strings.map_err(|error| error.to_string())?;
        let pointers: Vec<*const c_char> = strings.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program is alive, and the strings outlive the call.
        let code = unsafe {
            self.function::<Compile>("nvrtcCompileProgram")?(program, pointers.len() as c_int, pointers.as_ptr())
        };
        if let Err(error) = self.check("compile the kernels", code) {
            let log = self.get(program, "ProgramLog")?;
            return Err(format!("{error} ({})\n{}", options.join(" "), String::from_utf8_lossy(&log)));
        }
        self.get(
            program,
            match output {
                Output::Machine => "CUBIN",
                Output::Ptx => "PTX",
            },
        )
    }

    fn get(&self, program: Program, what: &str) -> Result<Vec<u8>, String> {
        let mut size = 0usize;
        // SAFETY: the program is alive, and the pointer is to a number.
        let code = unsafe { self.function::<Get<usize>>(&format!("nvrtcGet{what}Size"))?(program, &mut size) };
        self.check("hand out what it made", code)?;
        let mut bytes = vec![0u8; size];
        // SAFETY: the program is alive, and the buffer is as long as NVRTC said.
        let code =
            unsafe { self.function::<Get<c_char>>(&format!("nvrtcGet{what}"))?(program, bytes.as_mut_ptr().cast()) };
        self.check("hand out what it made", code).map(|()| bytes)
    }
}
