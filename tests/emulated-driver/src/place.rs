//! Where the shared library is, for tests.

use std::env;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

const FILE: &str = "libemulated_driver.so";

/// The shared library that cargo has built beside the running test.
///
/// # Panics
///
/// If it is not there.
pub fn library() -> PathBuf {
    let program = env::current_exe().expect("the path of the running program");
    // Tests are in target/<profile>/deps, programs one folder up, examples in a folder beside.
    let folders = program.ancestors().skip(1).take(2);
    let candidates: Vec<PathBuf> =
        folders.flat_map(|folder| [folder.join(FILE), folder.join("deps").join(FILE)]).collect();
    candidates.iter().find(|path| path.is_file()).cloned().unwrap_or_else(|| {
        panic!(
            "{FILE} is not beside this program (looked for {candidates:?}): cargo builds it with the tests of a crate \
             that has emulated-driver among its dev-dependencies; `cargo build -p emulated-driver` builds it alone"
        )
    })
}

/// Loads the library into this process for good, so that whoever loads `libcuda.so.1` by name afterwards gets it.
///
/// # Panics
///
/// If it cannot be loaded, or if there is a real driver that would be found first.
pub fn preload() {
    let path = library();
    let name = CString::new(path.as_os_str().as_bytes()).expect("a path has no zero byte");
    // SAFETY: the name is a string; the library's only initialisers are those of Rust's standard library.
    let loaded = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    assert!(!loaded.is_null(), "cannot load {}: {}", path.display(), last_error());
    // cudarc tries this name first, and it is not ours: with it a real driver would be taken after all.
    // SAFETY: as above. If there is a real driver, it is loaded and not called.
    let real = unsafe { libc::dlopen(c"libcuda.so".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(
        real.is_null() || real == loaded,
        "there is a real libcuda.so: start the test with the emulated one in LD_LIBRARY_PATH"
    );
}

fn last_error() -> String {
    // SAFETY: dlerror returns null or a string that stays until this thread's next call of this kind.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".to_owned();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Makes the library known in a folder by the names of the driver, for processes with that folder in LD_LIBRARY_PATH.
///
/// # Panics
///
/// If the links cannot be made.
pub fn as_driver(folder: &Path) {
    let library = library();
    for name in ["libcuda.so.1", "libcuda.so"] {
        let link = folder.join(name);
        std::os::unix::fs::symlink(&library, &link)
            .unwrap_or_else(|error| panic!("cannot make {}: {error}", link.display()));
    }
}
