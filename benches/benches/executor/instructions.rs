//! Iterations of a tiny decoder of as many layers as SmolLM2-135M has, through graph, world and lane, then directly:
//! for `benches/instructions`, which counts the instructions of both. Those that the executor adds do not depend on
//! how wide a model is.

use slicescheduler_benches::Target;
use slicescheduler_executor::cpu_world::Direct;
use slicescheduler_executor::lane::StdThreads;
use slicescheduler_executor::model::{CpuModel, SeededWeights};
use slicescheduler_executor::registry::KernelRegistry;
use slicescheduler_gmg::templates::{DenseSpec, dense};

use crate::Outcome;
use crate::rig::{Rig, Sequence};

/// Decoding steps behind a prompt; a number that `benches/instructions` knows.
const STEPS: u32 = 100;

pub(crate) fn rows() -> Outcome<Vec<Target>> {
    let mut spec = DenseSpec::tiny();
    spec.layers = DenseSpec::smollm2_135m().layers;
    let model = CpuModel::decoder(&spec, dense(&spec)?.into(), &SeededWeights::new(1))?;
    let mut rig = Rig::new(&spec, &model, 1, &StdThreads)?;
    let prompt = [72, 101, 108, 108, 111];
    let mut sequence = rig.enter(0, &prompt, STEPS + 1)?;
    let through = plan(&mut rig, &mut sequence)?;
    rig.leave(&sequence)?;
    let mut direct = Direct::new(model, &KernelRegistry::cpu(), 2 * STEPS, STEPS)?;
    let mut last = direct.step(&prompt)?;
    for token in &through[1..] {
        last = direct.step(&[last])?;
        if last != *token {
            return Err(format!("token {token}, directly {last}").into());
        }
    }
    println!("{} iterations of {} operators each way", STEPS + 1, dense(&spec)?.op_count());
    Ok(Vec::new())
}

/// What the thread that plans does; by this name it is found.
#[inline(never)]
fn plan(rig: &mut Rig, sequence: &mut Sequence) -> Outcome<Vec<u32>> {
    (0..=STEPS).map(|_| rig.iterate(sequence)).collect()
}
