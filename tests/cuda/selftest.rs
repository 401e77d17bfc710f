//! `hotrow selftest --cuda` passes on a GPU that computes what it should, and fails on one that does not.

use std::process::Output;

use crate::cluster::HOTROW;
use crate::emulated;

fn selftest(broken: Option<&str>) -> Output {
    let mut command = std::process::Command::new(HOTROW);
    command.env_clear().args(["selftest", "--cuda", "--seconds", "0.01", "--changes", "6"]);
    if let Some(kernel) = broken {
        command.env("EMULATED_CUDA_BREAK", kernel);
    }
    emulated::give(&mut command).output().unwrap()
}

#[test]
fn it_passes() {
    let output = selftest(None);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("Emulated GPU, sm_80") && text.contains("every bit as on the host"), "{text}");
    for name in ["pull.hits", "pull.half", "push"] {
        assert!(text.contains(&format!("ratio selftest.{name}.cuda_over_host ")), "{text}");
    }
}

#[test]
fn a_kernel_that_is_wrong_by_one_bit_is_found() {
    for kernel in
        ["gather_f16", "gather_pooled", "fill_int4_affine", "load", "update_sgd", "update_adam", "write_back_bf16"]
    {
        let output = selftest(Some(kernel));
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{kernel}: {text}");
        assert!(text.contains("workloads differ from the host: do not use this GPU"), "{kernel}: {text}");
    }
}
