//! How long an owner waits for a lane that a guest uses: from before the graph is asked to launch the owner's
//! iteration to the start of its first operator. The guest computes prompts and yields by the lane's
//! own rule; the owner comes at random moments, so it waits for the rest of a part of an operator of the guest. With
//! prompts of 128 tokens an operator takes milliseconds here, but products and attention stop between two parts.

use slicescheduler_benches::Target;
use slicescheduler_executor::lane::StdThreads;
use slicescheduler_gmg::plan::{Event, Rank};
use slicescheduler_gmg::units::Nanos;

use crate::Outcome;
use crate::decoder::decoder;
use crate::rig::Rig;

const SAMPLES: usize = 200;
/// The bound of what is launched beyond recall, in microseconds.
const BOUND: f64 = 300.0;

pub(crate) fn rows() -> Outcome<Vec<Target>> {
    let mut rows = waits(128, ["recall latency, guest of 128 rows, p50", "recall latency, guest of 128 rows, p99"])?;
    rows.extend(waits(4, ["recall latency, guest of 4 rows, p50", "recall latency, guest of 4 rows, p99"])?);
    Ok(rows)
}

/// How long the owner waits for a guest with prompts of so many tokens.
fn waits(guest_rows: u32, [median, tail]: [&'static str; 2]) -> Outcome<Vec<Target>> {
    let (spec, model) = decoder()?;
    let mut rig = Rig::new(&spec, &model, 2, &StdThreads)?;
    rig.load(1)?;
    let prompt = |length: u32| -> Vec<u32> { (0..length).map(|index| 300 + index * 7 % 1000).collect() };
    let mut owner = rig.enter(0, &prompt(8), 1500)?;
    rig.iterate(&mut owner)?;
    let mut waits = Vec::with_capacity(SAMPLES);
    let mut random = 0x9e37_79b9_u32;
    while waits.len() < SAMPLES {
        let mut guest = rig.enter(1, &prompt(guest_rows), 2)?;
        let job = rig.launch(&mut guest, Rank::GuestBestEffort)?;
        let mut running = true;
        while running {
            // xorshift32 (Marsaglia, Journal of Statistical Software 8, 2003).
            random ^= random << 13;
            random ^= random >> 17;
            random ^= random << 5;
            let until = rig.now() + Nanos::us(300 + u64::from(random % 3000));
            while rig.now() < until {
                std::hint::spin_loop();
            }
            let asked = rig.now();
            let owners = rig.launch(&mut owner, Rank::OwnerLatency)?;
            let (mut recalled, mut answered) = (false, false);
            while !answered {
                match rig.event()? {
                    Event::Finished { job, started, .. } if job == owners => {
                        answered = true;
                        // A guest that had ended before did not make anybody wait.
                        if recalled && waits.len() < SAMPLES {
                            waits.push((started - asked).0 as f64 / 1e3);
                        }
                    }
                    Event::Recalled { .. } => recalled = true,
                    Event::Finished { .. } => running = false,
                    _ => {}
                }
            }
            if waits.len() == SAMPLES && running {
                rig.resume(job, Rank::GuestBestEffort)?;
                while !matches!(rig.event()?, Event::Finished { .. }) {}
                running = false;
            } else if recalled {
                rig.resume(job, Rank::GuestBestEffort)?;
            }
        }
        rig.leave(&guest)?;
    }
    waits.sort_by(f64::total_cmp);
    let at = |share: f64| waits[((waits.len() - 1) as f64 * share) as usize];
    let row = |name, value| Target { threads: 2, ..Target::at_most(name, value, "us", BOUND) };
    Ok(vec![row(median, at(0.5)), row(tail, at(0.99))])
}
