//! Memory that operators take from the system.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use allocation_counter::measure;
use slicescheduler_executor::Result;
use slicescheduler_executor::cpu_world::CpuWorldOptions;
use slicescheduler_executor::lane::StdThreads;
use slicescheduler_executor::registry::{BoundKernel, Call, CpuKernels, Kernel, Site};
use slicescheduler_gmg::dtype::DType;
use slicescheduler_gmg::id::{DeviceId, LaneId};
use slicescheduler_gmg::plan::Rank;
use slicescheduler_gmg::templates::{DenseSpec, MoeSpec};

use crate::gate::instead_of_all;
use crate::rig::{Rig, Shape, prompt};

/// Counts operators, and what they allocate.
#[derive(Clone, Debug, Default)]
struct Counted(Arc<[AtomicU64; 2]>);

#[derive(Debug)]
struct BoundCounted(Counted, Arc<dyn BoundKernel>);

impl Kernel for Counted {
    fn bind(&self, site: &Site<'_>) -> Result<Arc<dyn BoundKernel>> {
        Ok(Arc::new(BoundCounted(self.clone(), CpuKernels.bind(site)?)))
    }
}

impl BoundKernel for BoundCounted {
    fn run(&self, call: &mut Call<'_>) -> Result<()> {
        let mut result = Ok(());
        let taken = measure(|| result = self.1.run(call));
        let [operators, allocations] = &*self.0.0;
        operators.fetch_add(1, Ordering::Relaxed);
        allocations.fetch_add(taken.count_total, Ordering::Relaxed);
        result
    }
}

/// Weights of every type. Products with quantized ones are this crate's own everywhere; those of floats are where the
/// processor has 512-bit registers, and else the gemm crate's, which takes room for itself in every call.
fn dtypes() -> Vec<DType> {
    let mut dtypes = vec![DType::Q8_0, DType::Q4_0, DType::Q4_1];
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx512f") {
        dtypes.extend([DType::F32, DType::F16, DType::BF16]);
    }
    dtypes
}

/// A prompt in chunks and every iteration of its answer, of models of all kinds.
#[test]
fn operators_allocate_nothing_once_their_lane_has_run_as_much_before() {
    let with = |base: DenseSpec, dtype| {
        let mut spec = base.with_dtype(dtype);
        (spec.activation_dtype, spec.kv_dtype) = (DType::F32, DType::F32);
        spec
    };
    for dtype in dtypes() {
        let (dense, mut experts) = (with(DenseSpec::tiny(), dtype), MoeSpec::tiny());
        experts.base = with(experts.base, dtype);
        for shape in [Shape::Dense(dense), Shape::Moe(experts)] {
            // Experts' routers are floats, whatever the experts are.
            if matches!(shape, Shape::Moe(_)) && dtypes().len() == 3 {
                continue;
            }
            let counted = Counted::default();
            let kernels = instead_of_all(Arc::new(counted.clone()));
            let options = CpuWorldOptions { kernels, ..CpuWorldOptions::default() };
            let mut rig = Rig::of(&shape, options, &StdThreads).unwrap();
            let run = |rig: &mut Rig| {
                let request = rig.request(0, &prompt(1, 40), 8);
                while !rig.has_ended(request) {
                    let spec = rig.iteration(&[(request, 16)]);
                    rig.launch(spec, LaneId::new(DeviceId(0), 0), Rank::OwnerLatency);
                    rig.event();
                }
                let [operators, allocations] = &*counted.0;
                (operators.swap(0, Ordering::Relaxed), allocations.swap(0, Ordering::Relaxed))
            };
            // Lanes keep what kernels need besides their operands.
            let (operators, _) = run(&mut rig);
            assert_eq!(run(&mut rig), (operators, 0), "{dtype}");
            assert!(operators > 200, "ten iterations of a model of two layers");
        }
    }
}
