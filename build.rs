//! Turns `proto/` into Rust, without `protoc`.

use std::path::PathBuf;

use prost::Message as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(
        [
            "hotrow/v1/data.proto",
            "hotrow/v1/tables.proto",
            "hotrow/v1/admin.proto",
            "hotrow/v1/checkpoint.proto",
            "hotrow/v1/log.proto",
        ],
        ["proto"],
    )?;
    // For server reflection.
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("hotrow.v1.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    Ok(())
}
