//! What a builder refuses, and what it makes.

use slicescheduler::executor::model::SeededWeights;
use slicescheduler::gmg::cluster::{Cluster, DeviceSpec};
use slicescheduler::gmg::dtype::DType;
use slicescheduler::gmg::templates::DenseSpec;
use slicescheduler::gmg::units::{Bandwidth, Bytes, FlopRate};
use slicescheduler::scheduler::StaticContainers;
use slicescheduler::scheduler::batching::BatchOptions;
use slicescheduler::{Builder, Llama, Model, Request, SliceScheduler, Tenant};

use crate::rig::{Threads, collect};

fn tenant(name: &str) -> Tenant {
    Tenant::best_effort(name)
}

fn refused(builder: Builder) -> String {
    let threads = Threads::default();
    let error = builder.spawner(threads.clone()).build().unwrap_err();
    assert_eq!(threads.alive(), 0, "nothing was started");
    error.to_string()
}

#[test]
fn tenants_and_devices_that_do_not_go_together_are_named() {
    let builder = SliceScheduler::builder;
    assert_eq!(refused(builder().devices(2)), "there are no tenants: add at least one");
    let twice = builder().tenant(tenant("a"), Llama::tiny(1)).tenant(tenant("a"), Llama::tiny(2));
    assert_eq!(refused(twice), r#"two tenants are named "a": names are how requests find their tenant"#);
    let three = || {
        let builder = builder().devices(3).tenant_on(tenant("own"), Llama::tiny(1), [2, 0]);
        builder.tenant(tenant("a"), Llama::tiny(2)).tenant(tenant("b"), Llama::tiny(3))
    };
    assert_eq!(refused(three()), r#"tenants "a", "b" need a device each, 1 of 3 are free"#);
    let on = |devices: &[u32]| {
        let builder = builder().devices(2).tenant_on(tenant("a"), Llama::tiny(1), [1]);
        builder.tenant_on(tenant("b"), Llama::tiny(2), devices.to_vec())
    };
    assert_eq!(refused(on(&[])), r#"tenant "b": its container has no devices; it needs at least one"#);
    assert_eq!(refused(on(&[0, 2])), r#"tenant "b": there is no device 2, the 2 devices are 0 to 1"#);
    assert_eq!(
        refused(on(&[1])),
        r#"tenant "b": device cpu/1 belongs to tenant "a" already; a device is in one container"#
    );
    assert_eq!(refused(on(&[0]).devices(0)), r#"node "cpu" has no devices: expected at least one"#);
    assert_eq!(
        refused(on(&[0]).devices(70_000)),
        "70000 lanes are asked for, each of which is a thread: expected at most 1024"
    );
    assert_eq!(refused(on(&[0]).max_requests(0)), "the number of requests at a time is 0: expected at least 1");
    let batching = BatchOptions { token_budget: 0, ..BatchOptions::default() };
    assert_eq!(refused(on(&[0]).batching(batching)), "the token budget of an iteration is 0: expected at least 1");
}

#[test]
fn a_model_that_does_not_fit_is_told_in_bytes() {
    let spec = DenseSpec::tiny();
    let builder = SliceScheduler::builder().device_memory(Bytes::kib(560)).tenant(tenant("chat"), Llama::tiny(1));
    let batching = BatchOptions { token_budget: 64, max_sequences: 4, ..BatchOptions::default() };
    let weights = spec.weight_bytes();
    let kv = spec.kv_bytes_per_token().times(4 * 16);
    let message = refused(builder.batching(batching));
    let (start, rest) = message.split_once(" of activations").unwrap();
    assert!(start.starts_with(&format!(r#"tenant "chat": model tiny needs {weights} of weights, "#)), "{message}");
    assert_eq!(rest, format!(" and {kv} of KV cache on device cpu/0, which has 560.0 KiB"));
}

#[test]
fn a_model_that_no_kernel_can_run_is_told_before_its_weights_are_read() {
    let spec = DenseSpec::tiny().with_dtype(DType::BF16);
    let builder = SliceScheduler::builder().tenant(tenant("chat"), Llama::from_spec(spec, SeededWeights::new(1)));
    assert_eq!(
        refused(builder),
        "tenant \"chat\": model tiny: tensor \"embedded\" is bf16 [tokens, 64]; F32 is supported"
    );
    let mut odd = DenseSpec::tiny();
    odd.kv_heads = 3;
    let message =
        refused(SliceScheduler::builder().tenant(tenant("chat"), Llama::from_spec(odd, SeededWeights::new(1))));
    assert!(message.starts_with(r#"tenant "chat": model tiny: "#), "{message}");
}

#[test]
fn guests_that_leave_no_room_for_a_cache_stay_away() {
    let mut wide = DenseSpec::tiny();
    wide.vocab = 1500;
    let device = |memory| DeviceSpec::cpu(1, memory, Bandwidth::gb_per_s(10), FlopRate::gflops(50));
    let cluster = Cluster::builder()
        .node("n", |node| node.devices(1, device(Bytes::kib(1800))).devices(1, device(Bytes::mib(8))))
        .build()
        .unwrap();
    let batching = BatchOptions { token_budget: 64, max_sequences: 4, ..BatchOptions::default() };
    let slices = SliceScheduler::builder()
        .cluster(cluster)
        .batching(batching)
        .tenant(Tenant::latency_sensitive("chat"), Llama::tiny(1))
        .tenant(tenant("batch"), Llama::from_spec(wide, SeededWeights::new(2)))
        .build_stepped()
        .unwrap();
    let devices = slices.status().unwrap().devices;
    assert_eq!(devices[0].weights, DenseSpec::tiny().weight_bytes(), "only its owner's: {devices:?}");
    for tenant in ["chat", "batch"] {
        let answer = slices.submit(tenant, Request::prompt_tokens(&[1, 2, 3]).max_tokens(3)).unwrap();
        assert_eq!(collect(answer).0.len(), 3);
    }
}

#[test]
fn models_are_objects_and_handles_go_to_other_threads() {
    fn send_and_sync<T: Send + Sync>() {}
    fn send<T: Send + Unpin>() {}
    send_and_sync::<SliceScheduler>();
    send::<slicescheduler::Answer>();
    send::<slicescheduler::TokenStream>();
    let models: [Box<dyn Model>; 2] = [Box::new(Llama::tiny(1)), Box::new(Llama::tiny(2))];
    let builder = models
        .into_iter()
        .zip(["a", "b"])
        .fold(SliceScheduler::builder(), |builder, (model, name)| builder.tenant(tenant(name), model));
    let slices = builder.policy(StaticContainers::default()).build_stepped().unwrap();
    let status = slices.status().unwrap();
    assert_eq!(status.tenants.iter().map(|tenant| &*tenant.name).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(status.devices.len(), 2, "a device for each tenant, unless said");
}
