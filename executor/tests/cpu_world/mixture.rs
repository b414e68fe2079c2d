//! A mixture of experts gives the tokens that it gives alone, whatever is done to it.

use slicescheduler_executor::cpu_world::{CpuWorldOptions, Direct};
use slicescheduler_executor::lane::StdThreads;
use slicescheduler_executor::model::CpuModel;
use slicescheduler_executor::registry::KernelRegistry;
use slicescheduler_gmg::dtype::DType;
use slicescheduler_gmg::id::{DeviceId, LaneId};
use slicescheduler_gmg::plan::{Event, Fate, Rank};
use slicescheduler_gmg::templates::{MoeSpec, moe};

use crate::rig::{Rig, Shape, prompt, weights};

/// Lengths of prompts and answers of some requests of the first tenant.
const ASKED: [(u32, u32); 4] = [(3, 6), (13, 4), (21, 5), (1, 7)];

fn spec(dtype: DType) -> MoeSpec {
    let mut spec = MoeSpec::tiny();
    spec.experts = 6;
    spec.with_dtype(dtype)
}

/// One after the other, each from its start, on the calling thread.
fn alone(dtype: DType) -> Vec<Vec<u32>> {
    let spec = spec(dtype);
    let model = CpuModel::mixture_of_experts(&spec, moe(&spec).unwrap().into(), &weights(0)).unwrap();
    let mut direct = Direct::new(model, &KernelRegistry::cpu(), 64, 32).unwrap();
    let answer = |(seed, &(length, output)): (usize, &(u32, u32))| {
        direct.restart();
        let mut next = direct.step(&prompt(seed as u32, length)).unwrap();
        let mut answer = vec![next];
        while answer.len() < output as usize {
            next = direct.step(&[next]).unwrap();
            answer.push(next);
        }
        answer
    };
    ASKED.iter().enumerate().map(answer).collect()
}

#[test]
fn batches_chunks_and_recalls_change_no_token() {
    for dtype in [DType::F32, DType::Q8_0] {
        let expected = alone(dtype);
        assert!(expected[0] != expected[1][..4.min(expected[1].len())] && expected[2] != expected[0]);
        let mut rig = Rig::of(&Shape::Moe(spec(dtype)), CpuWorldOptions::default(), &StdThreads).unwrap();
        let asked = ASKED.iter().enumerate();
        let requests: Vec<_> =
            asked.map(|(seed, &(length, output))| rig.request(0, &prompt(seed as u32, length), output)).collect();
        let mut round = 0;
        loop {
            let open: Vec<_> = requests.iter().filter(|&&request| !rig.has_ended(request)).collect();
            if open.is_empty() {
                break;
            }
            let chunk = 1 + round % 5;
            let rows: Vec<_> = open.into_iter().map(|&request| (request, chunk)).collect();
            let spec = rig.iteration(&rows);
            let job = rig.launch(spec, LaneId::new(DeviceId(0), 0), Rank::GuestBestEffort);
            // Wherever it is by then.
            let fate = if round % 2 == 0 { Fate::Keep } else { Fate::Drop };
            rig.recall(job, fate);
            while let Event::Recalled { .. } = rig.event() {
                rig.resume(job, LaneId::new(DeviceId(0), 1), Rank::OwnerBestEffort);
            }
            round += 1;
        }
        for (&request, expected) in requests.iter().zip(&expected) {
            assert_eq!(rig.world.tokens(request), expected);
            rig.leave(request);
        }
    }
}
