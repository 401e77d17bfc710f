//! Compiling the kernels with NVRTC, once per machine: what it made is kept in a folder.
//!
//! `unsafe` lives here because NVRTC is a C library. It is sound because a program is destroyed after its last use, and
//! buffers are as long as NVRTC said they must be.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use cudarc::nvrtc::result as nvrtc;
use cudarc::nvrtc::sys;
use xxhash_rust::xxh3::xxh3_64;

use super::launch::SOURCE;

/// Where NVRTC is, and where to keep what it makes.
pub struct Compiler<'a> {
    /// The library; `None` looks where libraries are.
    pub nvrtc: Option<&'a Path>,
    /// The folder; `None` keeps nothing.
    pub kept: Option<&'a Path>,
}

impl Compiler<'_> {
    /// The kernels for a GPU of this compute capability, ready for the driver.
    pub fn image(&self, capability: (i32, i32)) -> Result<Vec<u8>, String> {
        let arch = format!("{}{}", capability.0, capability.1);
        let kept =
            self.kept.map(|folder| folder.join(format!("{:016x}-sm_{arch}.kernels", xxh3_64(SOURCE.as_bytes()))));
        if let Some(image) = kept.as_deref().and_then(read) {
            return Ok(image);
        }
        let begun = std::time::Instant::now();
        let image = self.compile(&arch)?;
        tracing::info!("compiled the GPU kernels for sm_{arch} in {:.1} s", begun.elapsed().as_secs_f64());
        if let Some(path) = kept
            && let Err(error) = write(&path, &image)
        {
            tracing::warn!("the compiled GPU kernels are not kept: {}: {error}", path.display());
        }
        Ok(image)
    }

    fn compile(&self, arch: &str) -> Result<Vec<u8>, String> {
        if let Some(path) = self.nvrtc {
            // SAFETY: NVRTC's initialisers do nothing beyond the library. It is found by its name from here on.
            match unsafe { libloading::Library::new(path) } {
                Ok(library) => std::mem::forget(library),
                Err(error) => return Err(format!("NVRTC cannot be loaded from {}: {error}", path.display())),
            }
        }
        // SAFETY: as above.
        if !unsafe { sys::is_culib_present() } {
            return Err(
                "NVRTC (libnvrtc.so.12) was not found: install it (pip install nvidia-cuda-nvrtc-cu12, or the CUDA \
                        toolkit) and name the library with --nvrtc or LD_LIBRARY_PATH"
                    .into(),
            );
        }
        let wanted: i32 = arch.parse().map_err(|_| format!("the GPU says that it is sm_{arch}"))?;
        let known = architectures()?;
        let (oldest, newest) = (known.first().copied().unwrap_or(0), known.last().copied().unwrap_or(0));
        match known.contains(&wanted) {
            // Machine code for the very GPU: drivers take it from any NVRTC of their major version.
            true => compile(&format!("--gpu-architecture=sm_{arch}"), Output::Machine),
            // A GPU that is newer than this NVRTC: its driver compiles the rest.
            false if wanted > oldest => compile(&format!("--gpu-architecture=compute_{newest}"), Output::Ptx),
            false => Err(format!(
                "the GPU is sm_{arch}, and NVRTC begins at sm_{oldest}: use an older NVRTC 12, or the host pool"
            )),
        }
    }
}

/// Where what was compiled is kept, unless the configuration says otherwise.
pub fn default_folder() -> Option<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")))?;
    Some(cache.join("hotrow"))
}

/// What a file holds, if it is whole.
fn read(path: &Path) -> Option<Vec<u8>> {
    let bytes = fs::read(path).ok()?;
    let (sum, image) = bytes.split_first_chunk::<8>()?;
    (u64::from_le_bytes(*sum) == xxh3_64(image)).then(|| image.to_vec())
}

fn write(path: &Path, image: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    // Shards of one host may do this at once; each puts a whole file there.
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(&xxh3_64(image).to_le_bytes())?;
    file.write_all(image)?;
    file.persist(path)?;
    Ok(())
}

enum Output {
    Machine,
    Ptx,
}

fn failed(what: &str) -> impl Fn(nvrtc::NvrtcError) -> String + '_ {
    move |error| format!("NVRTC could not {what}: {error}")
}

/// The architectures that this NVRTC knows, the oldest first.
fn architectures() -> Result<Vec<i32>, String> {
    let mut count = 0;
    // SAFETY: the pointer is to a number.
    unsafe { sys::nvrtcGetNumSupportedArchs(&mut count) }.result().map_err(failed("count its architectures"))?;
    let mut all = vec![0; count.max(0) as usize];
    // SAFETY: as many numbers as it said.
    unsafe { sys::nvrtcGetSupportedArchs(all.as_mut_ptr()) }.result().map_err(failed("list its architectures"))?;
    all.sort_unstable();
    Ok(all)
}

/// The options that the source asks for.
fn options() -> impl Iterator<Item = &'static str> {
    SOURCE.lines().find_map(|line| line.strip_prefix("// nvrtc: ")).unwrap_or_default().split_whitespace()
}

fn compile(architecture: &str, output: Output) -> Result<Vec<u8>, String> {
    let source = CString::new(SOURCE).map_err(|e| e.to_string())?;
    let program = nvrtc::create_program(&source, Some(c"kernels.cu")).map_err(failed("take the kernels"))?;
    let mut all: Vec<&str> = options().collect();
    all.push(architecture);
    // SAFETY: the program was made above and is destroyed below.
    let compiled = unsafe { nvrtc::compile_program(program, &all) };
    let image = match (compiled, output) {
        (Err(error), _) => {
            // SAFETY: as above.
            let log = unsafe { nvrtc::get_program_log(program) }.unwrap_or_default();
            let log: String = log.iter().map(|&c| c as u8 as char).filter(|&c| c != '\0').collect();
            Err(format!("NVRTC could not compile the kernels ({}): {error}\n{log}", all.join(" ")))
        }
        (Ok(()), Output::Machine) => {
            let mut size = 0;
            // SAFETY: as above; the pointer is to a number.
            let sized = unsafe { sys::nvrtcGetCUBINSize(program, &mut size) }.result();
            let mut image = vec![0u8; size];
            // SAFETY: as above; the buffer is as long as NVRTC said.
            let got = sized.and_then(|()| unsafe { sys::nvrtcGetCUBIN(program, image.as_mut_ptr().cast()) }.result());
            got.map(|()| image).map_err(failed("hand out machine code"))
        }
        (Ok(()), Output::Ptx) => {
            // SAFETY: as above.
            let ptx = unsafe { nvrtc::get_ptx(program) };
            ptx.map(|ptx| ptx.iter().map(|&c| c as u8).collect()).map_err(failed("hand out PTX"))
        }
    };
    // SAFETY: it was made above and is not used after this.
    unsafe { nvrtc::destroy_program(program) }.map_err(failed("let go of a program"))?;
    image
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_file_is_compiled_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("below").join("x.kernels");
        assert!(read(&path).is_none());
        write(&path, b"machine code").unwrap();
        assert_eq!(read(&path).unwrap(), b"machine code");
        let whole = fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            assert!(read(&path).is_none(), "{cut} bytes of {}", whole.len());
        }
    }

    #[test]
    fn arithmetic_is_exact() {
        let all: Vec<&str> = options().collect();
        for option in ["--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true"] {
            assert!(all.contains(&option), "{option}");
        }
    }
}
