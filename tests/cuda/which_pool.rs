//! A shard says where its hot rows are, and why; where it must have a GPU and has none, it says what to do.

use crate::cluster::{Shard, free_address, hotrow};
use crate::emulated;

/// `hotrow serve` with the emulated driver and these variables.
fn serve(variables: &[(&str, &str)]) -> std::process::Command {
    let mut command = hotrow(&[]);
    emulated::give(&mut command).envs(variables.iter().copied());
    command
}

async fn started(variables: &[(&str, &str)], flags: &[&str]) -> Shard {
    Shard::start_as(serve(variables), &free_address(), flags).await
}

/// Waits until a shard has logged this: it is ready a moment before it says what it runs on.
async fn says(shard: &Shard, text: &str) {
    let begun = std::time::Instant::now();
    while !shard.log().contains(text) {
        assert!(begun.elapsed().as_secs() < 10, "'{text}' is not in\n{}", shard.log());
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

/// What a shard says that does not start.
fn refused(variables: &[(&str, &str)], flags: &[&str]) -> String {
    let (listen, http) = (free_address(), free_address());
    let mut command = serve(variables);
    let output = command.args(["serve", "--listen", &listen, "--http", &http]).args(flags).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_and_the_metrics_say_which() {
    let shard = started(&[], &["--device-memory", "1GiB"]).await;
    says(&shard, "hot rows are on GPU 0 (Emulated GPU, sm_80, CUDA 12.").await;
    let client = hotrow::client::Client::connect(&shard.address).await.unwrap();
    let table = hotrow::TableSpec::hashed("t", 4).cache(hotrow::CacheBudget::Rows(1000));
    client.create_table(&table).await.unwrap();
    let push = hotrow::Push { table: "t", keys: &[1, 2], gradients: &[0.5; 8], ..hotrow::Push::default() };
    client.push(&[push]).await.unwrap();
    client.pull(&[hotrow::Pull { table: "t", keys: &[1, 2] }]).await.unwrap();
    let (_, metrics) = shard.get("/metrics").unwrap();
    let value = |name: &str| {
        let line = metrics.lines().find(|line| line.starts_with(&format!("{name} ")));
        let line = line.unwrap_or_else(|| panic!("{name} is not in\n{metrics}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    assert_eq!(value(r#"hotrow_pool_info{pool="cuda",device="0",name="Emulated GPU"}"#), 1.0);
    assert_eq!(value("hotrow_device_memory_budget_bytes"), f64::from(1 << 30));
    // Whole sets of slots, so somewhat more than was asked for.
    assert!((16_000.0..64_000.0).contains(&value("hotrow_device_memory_used_bytes")));
    assert!(value(r#"hotrow_device_transferred_bytes_total{direction="up"}"#) > 32.0);
    assert!(value(r#"hotrow_device_transferred_bytes_total{direction="down"}"#) >= 32.0);
    for (operation, least) in [("gather", 1.0), ("load", 1.0), ("update", 1.0), ("write_back", 0.0)] {
        assert!(value(&format!(r#"hotrow_device_kernels_total{{operation="{operation}"}}"#)) >= least);
        assert!(value(&format!(r#"hotrow_device_kernel_seconds_total{{operation="{operation}"}}"#)) >= 0.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_driver_it_starts_and_says_so() {
    // With no driver at all, which is the way of most machines.
    let mut command = std::process::Command::new(crate::cluster::HOTROW);
    command.env_clear();
    let shard = Shard::start_as(command, &free_address(), &[]).await;
    says(&shard, "hot rows are in host memory: there is no NVIDIA driver here").await;
    let (_, metrics) = shard.get("/metrics").unwrap();
    assert!(metrics.contains(r#"hotrow_pool_info{pool="host",device="",name=""} 1"#), "{metrics}");
    assert!(!metrics.contains("hotrow_device_"), "{metrics}");
    let shard = started(&[("HOTROW_POOL", "host")], &[]).await;
    says(&shard, "hot rows are in host memory\n").await;
}

/// Variables, flags, and what is wrong with them.
type Case<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str], &'a str);

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_used_is_named_and_auto_does_without() {
    let nowhere = tempfile::tempdir().unwrap();
    let nowhere = nowhere.path().to_str().unwrap();
    let without_nvrtc = [("HOTROW_NVRTC", "/no/libnvrtc.so.12"), ("HOTROW_KERNEL_CACHE", nowhere)];
    let cases: [Case<'_>; 10] = [
        (&[("EMULATED_CUDA_VERSION", "11040")], &[], "of CUDA 11.4, and 12.0 (driver 525) is the oldest that will do"),
        (&[], &["--device", "3"], "there is no GPU 3: the driver has 1, counted from 0 (--device)"),
        (&without_nvrtc, &[], "NVRTC cannot be loaded from /no/libnvrtc.so.12"),
        (&[("EMULATED_CUDA_BREAK", "update_adam")], &[], "computes other bits than the host: update of rows stored as"),
        (&[("EMULATED_CUDA_FAIL", "init=999")], &[], "the NVIDIA driver does not start: CUDA_ERROR_UNKNOWN (999)"),
        (&[("EMULATED_CUDA_FAIL", "init=226")], &[], "the NVIDIA driver does not start: CUDA_ERROR_CONTAINED (226)"),
        // It fails while it is being looked at.
        (&[("EMULATED_CUDA_FAIL", "launch=3")], &[], "the GPU cannot be used: starting work: CUDA_ERROR_LAUNCH_OUT_OF"),
        (&[("EMULATED_CUDA_FAIL", "kernel=5")], &[], "CUDA_ERROR_ILLEGAL_ADDRESS (700)"),
        (
            &[("EMULATED_CUDA_CAPABILITY", "6.1"), ("HOTROW_KERNEL_CACHE", nowhere)],
            &[],
            "sm_70 is the oldest that will do",
        ),
        (&[("EMULATED_CUDA_FAIL", "host_alloc=2")], &[], "no room for the buffers between host and GPU"),
    ];
    for (variables, flags, reason) in cases {
        let said = refused(variables, flags);
        assert!(said.contains("the cache cannot be on a GPU") && said.contains(reason), "{said}");
        let auto = [variables, &[("HOTROW_POOL", "auto")]].concat();
        let mut shard = started(&auto, flags).await;
        says(&shard, "hot rows are in host memory: ").await;
        says(&shard, reason).await;
        shard.check();
    }
    assert!(refused(&[], &["--pool", "gpu"]).contains("cache.pool (--pool) is 'gpu': use auto, host or cuda"));
    assert!(refused(&[], &["--device-memory", "much"]).contains("cache.device_memory (--device-memory)"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_takes_the_gpu_that_it_names() {
    let shard = started(&[("EMULATED_CUDA_DEVICES", "2")], &["--device", "1"]).await;
    says(&shard, "hot rows are on GPU 1 ").await;
}

/// Each kernel is looked at before the GPU is used.
#[test]
fn a_gpu_that_computes_other_bits_is_not_used() {
    let kernels = include_str!("../../src/cache/cuda/kernels.cu");
    let kernels = kernels.lines().filter_map(|line| line.strip_prefix("KERNEL(")?.split(')').next());
    for kernel in kernels {
        let said = refused(&[("EMULATED_CUDA_BREAK", kernel)], &[]);
        assert!(said.contains("computes other bits than the host"), "{kernel}: {said}");
    }
}

/// A GPU that NVRTC does not know gets PTX that its driver can compile.
#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_that_is_newer_than_nvrtc() {
    let shard = started(&[("EMULATED_CUDA_CAPABILITY", "11.0")], &[]).await;
    says(&shard, "hot rows are on GPU 0 (Emulated GPU, sm_110").await;
}

/// Kernels that were kept and that the driver does not take are compiled again.
#[tokio::test(flavor = "multi_thread")]
async fn kept_kernels_of_another_driver() {
    let folder = tempfile::tempdir().unwrap();
    let kernels = [("HOTROW_KERNEL_CACHE", folder.path().to_str().unwrap())];
    let wrong: &[u8] = b".target sm_999";
    drop(started(&kernels, &[]).await);
    let kept = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    let whole = std::fs::read(&kept).unwrap();
    let sum = xxhash_rust::xxh3::xxh3_64(wrong).to_le_bytes();
    std::fs::write(&kept, [&sum[..], wrong].concat()).unwrap();
    let shard = started(&kernels, &[]).await;
    says(&shard, "hot rows are on GPU 0").await;
    assert!(std::fs::read(&kept).unwrap() == whole, "what was compiled is kept");
}
