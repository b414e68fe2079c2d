//! What a builder refuses, and what it makes.

use std::sync::Arc;

use slicescheduler::executor::cpu_world::CpuWorldOptions;
use slicescheduler::executor::model::{CpuModel, SeededWeights};
use slicescheduler::executor::registry::KernelRegistry;
use slicescheduler::gmg::cluster::{Cluster, DeviceSpec};
use slicescheduler::gmg::dtype::DType;
use slicescheduler::gmg::graph::OpGraph;
use slicescheduler::gmg::templates::DenseSpec;
use slicescheduler::gmg::units::{Bandwidth, Bytes, FlopRate};
use slicescheduler::scheduler::StaticContainers;
use slicescheduler::scheduler::batching::BatchOptions;
use slicescheduler::{Builder, Llama, Model, ModelError, Request, SliceScheduler, Tenant};

use crate::rig::{Threads, alone, collect};

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

/// A model that keeps its contract but for one thing.
#[derive(Debug)]
struct Liar {
    model: Llama,
    weights: Option<Bytes>,
    kv: Option<Bytes>,
    other_template: bool,
}

impl Liar {
    fn new() -> Self {
        Self { model: Llama::tiny(1), weights: None, kv: None, other_template: false }
    }
}

impl Model for Liar {
    fn name(&self) -> &str {
        "liar"
    }

    fn template(&self) -> Result<Arc<OpGraph>, ModelError> {
        self.model.template()
    }

    fn kv_bytes_per_token(&self) -> Bytes {
        self.kv.unwrap_or(self.model.kv_bytes_per_token())
    }

    fn max_context(&self) -> u32 {
        self.model.max_context()
    }

    fn vocabulary(&self) -> u32 {
        self.model.vocabulary()
    }

    fn weight_bytes(&self, template: &OpGraph) -> Result<Bytes, ModelError> {
        self.weights.map_or_else(|| self.model.weight_bytes(template), Ok)
    }

    fn on_cpu(&self, template: Arc<OpGraph>) -> Result<CpuModel, ModelError> {
        self.model.on_cpu(if self.other_template { self.model.template()? } else { template })
    }
}

#[test]
fn a_model_that_breaks_its_contract_is_told_with_its_tenant() {
    let of =
        |liar: Liar| refused(SliceScheduler::builder().tenant(tenant("a"), Llama::tiny(1)).tenant(tenant("b"), liar));
    let spec = DenseSpec::tiny();
    assert_eq!(
        of(Liar { weights: Some(Bytes(1000)), ..Liar::new() }),
        format!(
            "tenant \"b\": model liar: its packed weights take {}, `weight_bytes` says 1000 B; give what a CpuModel has \
             as slot_bytes",
            spec.weight_bytes()
        )
    );
    assert_eq!(
        of(Liar { kv: Some(Bytes(1)), ..Liar::new() }),
        format!(
            "tenant \"b\": model liar: 16 tokens take {} of KV cache, `kv_bytes_per_token` says 1 B for each; give what \
             the cache takes",
            spec.kv_bytes_per_token().times(16)
        )
    );
    assert_eq!(
        of(Liar { other_template: true, ..Liar::new() }),
        "tenant \"b\": model liar: `on_cpu` gave a model of another template than it was given; make it from the same Arc"
    );
    let kernels = CpuWorldOptions { kernels: KernelRegistry::new(), ..CpuWorldOptions::default() };
    assert_eq!(
        refused(SliceScheduler::builder().tenant(tenant("a"), Llama::tiny(1)).lanes(kernels)),
        "tenant \"a\": model tiny: no kernel for embedding of f32 elements, which operator \"embed\" needs; register one"
    );
}

/// As a file may say it, of which nothing else is wrong.
#[test]
fn a_context_that_no_memory_holds_takes_none() {
    let mut endless = DenseSpec::tiny();
    endless.max_context = u32::MAX;
    let slices = SliceScheduler::builder()
        .tenant(tenant("chat"), Llama::from_spec(endless, SeededWeights::new(1)))
        .build_stepped()
        .unwrap();
    let prompt = [1, 2, 3];
    let answer = slices.submit("chat", Request::prompt_tokens(&prompt).max_tokens(5)).unwrap();
    assert_eq!(collect(answer).0, alone("chat", &prompt, 5));
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
