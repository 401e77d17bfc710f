//! What the benchmarks share: keys as trainers send them, and what the machine can do at best on the same work.
#![allow(dead_code, unsafe_code)]

pub mod limits;
pub mod workload;
