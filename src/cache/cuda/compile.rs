//! Compiling the kernels, once per machine: what NVRTC made is kept in a folder.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use super::launch::SOURCE;
use super::nvrtc::{Nvrtc, Output};

/// The oldest architecture: Volta.
const OLDEST: i32 = 70;

/// What kernels are compiled for, by what, and where the result is kept.
pub struct Compiler<'a> {
    /// The NVRTC library; `None` looks where libraries are.
    pub nvrtc: Option<&'a Path>,
    /// The folder; `None` keeps nothing.
    pub folder: Option<&'a Path>,
    /// The GPU's compute capability.
    pub capability: (i32, i32),
    /// The driver's CUDA version.
    pub driver: i32,
}

impl Compiler<'_> {
    fn kept_at(&self) -> Option<PathBuf> {
        let (major, minor) = self.capability;
        let name = format!("{:016x}-sm_{major}{minor}.kernels", xxh3_64(SOURCE.as_bytes()));
        Some(self.folder?.join(name))
    }

    /// What was compiled before, if it is whole.
    pub fn kept(&self) -> Option<Vec<u8>> {
        read(&self.kept_at()?)
    }

    /// The kernels, compiled now, and kept.
    pub fn compiled(&self) -> Result<Vec<u8>, String> {
        let begun = std::time::Instant::now();
        let image = self.compile()?;
        tracing::info!("compiled the GPU kernels in {:.1} s", begun.elapsed().as_secs_f64());
        if let Some(path) = self.kept_at()
            && let Err(error) = write(&path, &image)
        {
            tracing::warn!("the compiled GPU kernels are not kept: {}: {error}", path.display());
        }
        Ok(image)
    }

    fn compile(&self) -> Result<Vec<u8>, String> {
        let wanted = 10 * self.capability.0 + self.capability.1;
        if wanted < OLDEST {
            return Err(format!("the GPU is sm_{wanted}, and sm_{OLDEST} is the oldest that will do"));
        }
        let nvrtc = Nvrtc::load(self.nvrtc, self.driver)?;
        let (architecture, output) = architecture(wanted, &nvrtc.architectures()?).ok_or_else(|| {
            format!("the GPU is sm_{wanted}, which {} no longer knows: use an older NVRTC", nvrtc.path().display())
        })?;
        let options: Vec<String> = options().map(String::from).chain([architecture]).collect();
        nvrtc.compile(SOURCE, &options, output)
    }
}

/// What to compile for, so that it runs on a GPU of architecture `wanted`.
fn architecture(wanted: i32, known: &[i32]) -> Option<(String, Output)> {
    if known.contains(&wanted) {
        // Machine code for the very GPU: drivers take it from any NVRTC of their major version.
        return Some((format!("--gpu-architecture=sm_{wanted}"), Output::Machine));
    }
    // A GPU that this NVRTC does not know: its driver compiles the rest, from the nearest below.
    let below = known.iter().rev().find(|&&known| known < wanted)?;
    Some((format!("--gpu-architecture=compute_{below}"), Output::Ptx))
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

/// The options that the source asks for.
fn options() -> impl Iterator<Item = &'static str> {
    SOURCE.lines().find_map(|line| line.strip_prefix("// nvrtc: ")).unwrap_or_default().split_whitespace()
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
    fn a_gpu_that_nvrtc_does_not_know_gets_what_its_driver_can_compile() {
        let known = [52, 70, 75, 80, 90, 100, 120, 121];
        let text = |wanted| architecture(wanted, &known).map(|(text, _)| text);
        assert_eq!(text(80).unwrap(), "--gpu-architecture=sm_80");
        assert_eq!(text(110).unwrap(), "--gpu-architecture=compute_100");
        assert_eq!(text(89).unwrap(), "--gpu-architecture=compute_80");
        assert_eq!(text(130).unwrap(), "--gpu-architecture=compute_121");
        assert!(architecture(70, &[75, 80]).is_none());
    }

    #[test]
    fn arithmetic_is_exact() {
        let all: Vec<&str> = options().collect();
        for option in ["--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true"] {
            assert!(all.contains(&option), "{option}");
        }
    }
}
