//! The emulated GPU: a driver that runs the kernels on the host and ends the process at every mistake that it sees.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use hotrow::{CudaConfig, PoolConfig};

/// Whether tests put hot rows on it: `HOTROW_TEST_POOL=cuda`.
pub fn wanted() -> bool {
    match std::env::var("HOTROW_TEST_POOL").as_deref() {
        Ok("cuda") => true,
        Ok("host") | Err(_) => false,
        Ok(other) => panic!("HOTROW_TEST_POOL is {other}: use host or cuda"),
    }
}

/// The pool of an engine of this process.
pub fn pool() -> PoolConfig {
    emulated_driver::preload();
    PoolConfig::Cuda(CudaConfig {
        nvrtc: Some(nvrtc().into()),
        kernels: Some(kernels()),
        // The smallest trays there are, so that requests of a few hundred rows take several.
        tray_bytes: 1,
        // Tests make engines by the thousand.
        checked: false,
        ..CudaConfig::default()
    })
}

/// Gives a process of its own the emulated driver, and makes `hotrow` use it.
pub fn give(command: &mut Command) -> &mut Command {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        emulated_driver::as_driver(folder.path());
        folder
    });
    let command = command.env("LD_LIBRARY_PATH", folder.path()).env("HOTROW_POOL", "cuda");
    command.env("HOTROW_NVRTC", nvrtc()).env("HOTROW_KERNEL_CACHE", kernels())
}

/// NVRTC, which is fetched the first time.
fn nvrtc() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let fetched = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cuda/fetch")).output().unwrap();
        assert!(fetched.status.success(), "{}", String::from_utf8_lossy(&fetched.stderr));
        String::from_utf8(fetched.stdout).unwrap().lines().last().expect("fetch prints a path").into()
    })
}

/// Where all tests keep compiled kernels.
fn kernels() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels")
}
