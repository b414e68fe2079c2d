//! Memory that operators take from the system.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use allocation_counter::measure;
use slicescheduler_executor::Result;
use slicescheduler_executor::cpu_world::CpuWorldOptions;
use slicescheduler_executor::lane::StdThreads;
use slicescheduler_executor::registry::{BoundKernel, Call, CpuKernels, Kernel, Site};
use slicescheduler_gmg::dtype::DType;
use slicescheduler_gmg::templates::DenseSpec;

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

/// With quantized weights, whose products are this crate's own everywhere; those of floats are where the processor has
/// 512-bit registers, and else the gemm crate's, which takes room for itself in every call.
#[test]
fn operators_allocate_nothing_once_their_lane_has_run_as_much_before() {
    let mut dtypes = vec![DType::Q8_0];
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx512f") {
        dtypes.push(DType::F32);
    }
    for dtype in dtypes {
        let counted = Counted::default();
        let kernels = instead_of_all(Arc::new(counted.clone()));
        let options = CpuWorldOptions { kernels, ..CpuWorldOptions::default() };
        let mut rig = Rig::of(&Shape::Dense(DenseSpec::tiny().with_dtype(dtype)), options, &StdThreads).unwrap();
        let run = |rig: &mut Rig| {
            let request = rig.request(0, &prompt(1, 40), 8);
            rig.run_alone(request);
            let [operators, allocations] = &*counted.0;
            (operators.swap(0, Ordering::Relaxed), allocations.swap(0, Ordering::Relaxed))
        };
        // Lanes keep what kernels need besides their operands.
        let (operators, _) = run(&mut rig);
        assert_eq!(run(&mut rig), (operators, 0), "{dtype}");
        assert!(operators > 100);
    }
}
