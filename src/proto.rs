//! The generated form of `proto/hotrow/v1`. It stops at the server's and the client's edge.
#![allow(missing_docs, clippy::doc_markdown, clippy::large_enum_variant)]

tonic::include_proto!("hotrow.v1");

/// The compiled `proto/`, for server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hotrow.v1.bin"));
