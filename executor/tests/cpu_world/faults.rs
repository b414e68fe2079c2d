//! Operators that fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use slicescheduler_executor::registry::{BoundKernel, Call, CpuKernels, Kernel, KernelRegistry, Site};
use slicescheduler_executor::{ExecutorError, Result};
use slicescheduler_gmg::dtype::DType;
use slicescheduler_gmg::id::{DeviceId, LaneId};
use slicescheduler_gmg::plan::{Action, Event, Failure, Rank, Work, World};
use slicescheduler_gmg::semantics::OpKind;
use slicescheduler_gmg::units::Nanos;
use slicescheduler_gmg::{GmgView, Intent};

use crate::rig::{Rig, alone, prompt};

/// Works (0), fails (1) or panics (2), as told.
#[derive(Clone, Debug, Default)]
struct Faulty(Arc<AtomicU8>);

#[derive(Debug)]
struct BoundFaulty(Arc<AtomicU8>, Arc<dyn BoundKernel>);

impl Kernel for Faulty {
    fn bind(&self, site: &Site<'_>) -> Result<Arc<dyn BoundKernel>> {
        Ok(Arc::new(BoundFaulty(self.0.clone(), CpuKernels.bind(site)?)))
    }
}

impl BoundKernel for BoundFaulty {
    fn run(&self, call: &mut Call<'_>) -> Result<()> {
        match self.0.load(Ordering::Relaxed) {
            0 => self.1.run(call),
            1 => Err(ExecutorError::NoNumber { kernel: "faulty", row: 3 }),
            _ => panic!("out of order"),
        }
    }
}

const LANE: LaneId = LaneId::new(DeviceId(0), 0);

#[test]
fn a_failure_or_a_panic_fails_the_job_and_nobody_else() {
    let faulty = Faulty::default();
    let mut kernels = KernelRegistry::cpu();
    kernels.register(&OpKind::SwiGlu, DType::F32, Arc::new(faulty.clone()));
    let mut rig = Rig::with_kernels(kernels);
    let messages = ["faulty: row 3 of the logits has no element that is a number", "operator 8 panicked: out of order"];
    for (mode, expected) in [1, 2].into_iter().zip(messages) {
        faulty.0.store(mode, Ordering::Relaxed);
        let request = rig.request(0, &prompt(1, 6), 3);
        let spec = rig.iteration(&[(request, u32::MAX)]);
        let job = rig.gmg.submit(spec).unwrap();
        let operators = rig.gmg.view().job(job).unwrap().op_count();
        for ops in [0..12, 12..operators] {
            rig.act(Action::Run { work: Work::Existing { job, ops }, lane: LANE, rank: Rank::OwnerLatency });
        }
        let failed = rig.event();
        let failure = Failure::Kernel { op: 8, message: expected.to_owned() };
        assert!(
            matches!(&failed, Event::Failed { job: j, lane: LANE, failure: f, .. } if *j == job && *f == failure),
            "{failed:?}"
        );
        while !rig.world.is_idle() {
            let mut events = Vec::new();
            let soon = rig.world.poll(Nanos::ZERO, &mut events).unwrap() + Nanos::ms(1);
            rig.world.poll(soon, &mut events).unwrap();
            assert_eq!(events, [], "the rest of the job was reported with it");
        }
        rig.gmg.apply(Intent::Retire { job }).unwrap();
        rig.gmg.apply(Intent::RetireRequest { request }).unwrap();
        rig.world.forget(request);
    }
    faulty.0.store(0, Ordering::Relaxed);
    let request = rig.request(0, &prompt(1, 6), 3);
    rig.run_alone(request);
    assert_eq!(rig.world.tokens(request), alone(0, &prompt(1, 6), 3));
    rig.assert_empty();
}

#[test]
fn a_token_outside_the_vocabulary_fails_its_job() {
    let mut rig = Rig::new();
    let request = rig.request(0, &[1, 256], 1);
    let spec = rig.iteration(&[(request, u32::MAX)]);
    rig.launch(spec, LANE, Rank::OwnerLatency);
    let failed = rig.event();
    let message = "embed_panels: `tokens[1]` is 256, but there are only 256".to_owned();
    assert!(matches!(failed, Event::Failed { failure, .. } if failure == Failure::Kernel { op: 0, message }));
}
