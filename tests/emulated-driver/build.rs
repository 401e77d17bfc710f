//! Compiles the kernels for the host, with a call before each access to memory, and lists them for the driver.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Where the project's kernels are, seen from this crate.
const KERNELS: &str = "../../src/cache/cuda/kernels.cu";

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // A program that exports its symbols may have this crate's, from the Rust library: the kernels must not call those.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let header = here.join("kernels/device.h");
    rerun_if_changed(&header);

    let units = [("project", project_kernels(&here)), ("planted", here.join("kernels/planted.c"))];
    let mut build = compiler(&header);
    compile_plain(&here);
    for (unit, source) in &units {
        rerun_if_changed(source);
        build.file(write_unit(unit, source));
    }
    build.compile("emulated_kernels");
}

/// The source of the project's kernels, or a sample where there is none yet.
fn project_kernels(here: &Path) -> PathBuf {
    println!("cargo:rerun-if-env-changed=EMULATED_KERNELS");
    if let Some(chosen) = env::var_os("EMULATED_KERNELS") {
        let chosen = here.join(chosen);
        assert!(chosen.is_file(), "EMULATED_KERNELS names no file: {}", chosen.display());
        return chosen;
    }
    let usual = here.join(KERNELS);
    if usual.is_file() {
        return usual;
    }
    // Cargo looks at this path again at each build, and builds anew when the file appears.
    rerun_if_changed(&usual);
    println!("cargo:warning={KERNELS} does not exist: the emulated driver is built with a sample instead");
    here.join("kernels/sample.cu")
}

/// Writes a C file that includes a source and lists its kernels. A file for each, because each has its own
/// `struct Launch`.
fn write_unit(unit: &str, source: &Path) -> PathBuf {
    let text = fs::read_to_string(source).unwrap_or_else(|error| panic!("cannot read {}: {error}", source.display()));
    let names: Vec<&str> = text.lines().filter_map(kernel_name).collect();
    assert!(!names.is_empty(), "no line of {} begins with KERNEL(name)", source.display());

    let mut unit_text = format!("#include \"{}\"\n", source.display());
    // The driver knows a launch only as bytes; what takes them apart is no part of a kernel, so it is not checked.
    for name in &names {
        write!(
            unit_text,
            "__attribute__((no_sanitize_thread, noinline)) static void run_{name}(const void *launch, unsigned block,\n\
             \x20   unsigned grid, const unsigned *order) {{\n\
             \x20   kernel_{name}(*(const struct Launch *)launch, block, grid, order);\n}}\n"
        )
        .expect("a String takes all");
    }
    unit_text.push_str(
        "struct Entry { const char *name; void (*run)(const void *, unsigned, unsigned, const unsigned *);\n\
         \x20   unsigned long launch_size; };\n",
    );
    writeln!(unit_text, "const struct Entry emulated_{unit}_kernels[] = {{").expect("a String takes all");
    for name in &names {
        writeln!(unit_text, "    {{\"{name}\", run_{name}, sizeof(struct Launch)}},").expect("a String takes all");
    }
    unit_text.push_str("    {0, 0, 0},\n};\n");

    let path = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join(format!("{unit}.c"));
    fs::write(&path, unit_text).unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
    path
}

/// The name in `KERNEL(name)` where a line begins with that.
fn kernel_name(line: &str) -> Option<&str> {
    let name = line.strip_prefix("KERNEL(")?.split(')').next()?.trim();
    let good = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    assert!(good, "not the name of a kernel: {line}");
    Some(name)
}

/// The C compiler, told to check each access and to keep to the arithmetic as written.
fn compiler(header: &Path) -> cc::Build {
    let mut build = cc::Build::new();
    // Of rustc's flags none is wanted; cc adds the sanitizer's nevertheless, so it is taken back below.
    build.inherit_rustflags(false).opt_level(2).debug(false).warnings(false).std("gnu11").flag("-include").flag(header);
    let tool = build.get_compiler();
    assert!(
        tool.is_like_gnu(),
        "the emulated driver needs gcc to have each access of a kernel checked, and {} is something else: set CC",
        tool.path().display()
    );
    for flag in [
        "-ffp-contract=off",
        "-fno-strict-aliasing",
        "-fno-sanitize=address",
        "-fsanitize=thread",
        // Shared arrays are local arrays here; an index beyond their end is found by this.
        "-fsanitize=bounds",
        "-Wno-builtin-declaration-mismatch",
        // Calls to memset and memcpy that the compiler makes of loops would not be checked.
        "-fno-tree-loop-distribute-patterns",
    ] {
        build.flag(flag);
    }
    build.flag("--param").flag("tsan-instrument-func-entry-exit=0");
    // What a shared variable holds before it is written is garbage on a GPU. Compilers before gcc 12 leave it to chance.
    build.flag_if_supported("-ftrivial-auto-var-init=pattern");
    build
}

/// What is not checked itself, and must not be.
fn compile_plain(here: &Path) {
    let mut build = cc::Build::new();
    build.inherit_rustflags(false).opt_level(2).debug(false).flag("-fno-sanitize=address");
    let source = here.join("kernels/call.c");
    rerun_if_changed(&source);
    build.file(source).compile("emulated_plain");
}

fn rerun_if_changed(path: &Path) {
    println!("cargo:rerun-if-changed={}", path.display());
}
