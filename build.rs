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
    let mut config = tonic_prost_build::configure().bytes(".");
    // What is also handed out as JSON.
    for message in [
        "Footprint",
        "StatsResponse",
        "TableStats",
        "HitCurve",
        "HitCurvePoint",
        "ShardStatus",
        "DeviceStatus",
        "LogStatus",
        "CheckpointStatus",
        "MethodStats",
    ] {
        config = config.type_attribute(format!(".hotrow.v1.{message}"), "#[derive(serde::Serialize)]");
    }
    config.compile_fds(descriptors)?;
    Ok(())
}
