//! Kernels that wait for the test.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam::channel::{Receiver, Sender, unbounded};
use slicescheduler_executor::Result;
use slicescheduler_executor::registry::{BoundKernel, Call, CpuKernels, Kernel, KernelRegistry, Site};
use slicescheduler_gmg::dtype::DType;
use slicescheduler_gmg::semantics::OpKind;

#[derive(Clone, Debug)]
struct Gated {
    closed: Arc<AtomicBool>,
    begun: Sender<String>,
    go: Receiver<()>,
}

#[derive(Debug)]
struct BoundGated {
    gate: Gated,
    name: String,
    kernel: Arc<dyn BoundKernel>,
}

impl Kernel for Gated {
    fn bind(&self, site: &Site<'_>) -> Result<Arc<dyn BoundKernel>> {
        let name = site.op.name().local().to_owned();
        Ok(Arc::new(BoundGated { gate: self.clone(), name, kernel: CpuKernels.bind(site)? }))
    }
}

impl BoundKernel for BoundGated {
    fn run(&self, call: &mut Call<'_>) -> Result<()> {
        if self.gate.closed.load(Ordering::Acquire) {
            self.gate.begun.send(self.name.clone()).unwrap();
            self.gate.go.recv().unwrap();
        }
        self.kernel.run(call)
    }
}

/// A registry in which every operator of a decoder, dense or a mixture of experts, has this kernel.
pub(crate) fn instead_of_all(kernel: Arc<dyn Kernel>) -> KernelRegistry {
    let mut kernels = KernelRegistry::cpu();
    let (heads, kv_heads, head_dim) = (0, 0, 0);
    for kind in [
        OpKind::Embedding,
        OpKind::RmsNorm { epsilon: 0.0 },
        OpKind::MatMul,
        OpKind::Rotary { heads, kv_heads, head_dim, theta: 0.0 },
        OpKind::Attention { heads, kv_heads, head_dim },
        OpKind::SwiGlu,
        OpKind::Gather,
        OpKind::Sample,
        OpKind::TopK { top: 0 },
        OpKind::Permute,
        OpKind::GroupedMatMul { experts: 0, top: 0, ranks: 0 },
        OpKind::Combine,
    ] {
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0, DType::Q4_1] {
            assert!(kernels.register(&kind, dtype, kernel.clone()).is_some(), "{kind} has a kernel");
        }
    }
    kernels
}

/// The test's side: while it is closed, every operator says that it has begun and waits.
pub(crate) struct Gate {
    closed: Arc<AtomicBool>,
    begun: Receiver<String>,
    go: Sender<()>,
}

impl Gate {
    /// A gate in front of every kernel, open.
    pub(crate) fn new() -> (Self, KernelRegistry) {
        let (begun_in, begun) = unbounded();
        let (go, go_out) = unbounded();
        let closed = Arc::new(AtomicBool::new(false));
        let gated = Gated { closed: closed.clone(), begun: begun_in, go: go_out };
        (Self { closed, begun, go }, instead_of_all(Arc::new(gated)))
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Opens the gate, and lets go who waits at it.
    pub(crate) fn open(&self) {
        self.closed.store(false, Ordering::Release);
        self.go.send(()).unwrap();
    }

    /// Waits until the next operator has begun, and returns its name within its block.
    pub(crate) fn begun(&self) -> String {
        self.begun.recv().unwrap()
    }

    /// Lets the operator that waits go.
    pub(crate) fn release(&self) {
        self.go.send(()).unwrap();
    }
}
