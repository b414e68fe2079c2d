//! The tokens of a request are those that it has alone, whatever is done to it.

use std::collections::BTreeMap;

use proptest::prelude::*;
use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::id::{DeviceId, JobId, LaneId, RequestId};
use slicescheduler_gmg::plan::{Action, Event, Fate, Rank, Source};

use crate::gate::Gate;
use crate::rig::{LANES, Rig, alone, prompt};

const LANE: LaneId = LaneId::new(DeviceId(0), 0);
const OTHER_LANE: LaneId = LaneId::new(DeviceId(0), 1);

#[test]
fn tokens_differ_from_prompt_to_prompt_and_within_an_answer() {
    let (first, second) = (alone(0, &prompt(1, 9), 12), alone(0, &prompt(2, 9), 12));
    assert_ne!(first, second);
    assert_ne!(first, alone(1, &prompt(1, 9), 12), "the other tenant's model is another");
    let mut distinct = first.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert!(distinct.len() > 3, "{first:?}");
}

/// Cuts an iteration at each of its operators, with both fates, and goes on on another lane. What the recall meets runs
/// to its end, or to the end of its first part.
#[test]
fn a_recall_after_any_operator_changes_no_token() {
    let (gate, kernels) = Gate::new();
    let mut rig = Rig::with_kernels(kernels);
    let expected = alone(0, &prompt(5, 7), 2);
    let operators = rig.gmg.view().models()[0].template.op_count();
    let mut stopped = 0;
    for fate in [Fate::Keep, Fate::Drop] {
        for after in 0..operators {
            let request = rig.request(0, &prompt(5, 7), 2);
            let spec = rig.iteration(&[(request, u32::MAX)]);
            gate.close();
            let job = rig.launch(spec, LANE, Rank::OwnerLatency);
            for _ in 0..after {
                gate.begun();
                gate.release();
            }
            gate.begun();
            rig.recall(job, fate);
            gate.open();
            match rig.event() {
                Event::Finished { ops, .. } => assert_eq!((after, ops), (operators - 1, 0..operators)),
                Event::Recalled { job: cut, lane, done, end, fate: told, started, at } => {
                    assert_eq!((cut, lane, done.start, end, told), (job, LANE, 0, operators, fate));
                    assert!(started <= at && (done.end == after || done.end == after + 1));
                    stopped += u32::from(done.end == after);
                    rig.resume(job, OTHER_LANE, Rank::OwnerLatency);
                    let first = if fate == Fate::Keep { done.end } else { 0 };
                    assert!(matches!(rig.event(), Event::Finished { ops, .. } if ops == (first..operators)));
                }
                other => panic!("{other:?}"),
            }
            rig.run_alone(request);
            assert_eq!(rig.world.tokens(request), expected, "cut at operator {after}, {fate:?}");
        }
    }
    assert!(stopped > 0, "attention to seven rows has seven parts");
    rig.assert_empty();
}

#[test]
fn an_iteration_yields_to_a_higher_rank_and_goes_on_where_it_was() {
    let (gate, kernels) = Gate::new();
    let mut rig = Rig::with_kernels(kernels);
    let (low, high) = (rig.request(0, &prompt(8, 30), 3), rig.request(0, &prompt(9, 5), 3));
    let spec = rig.iteration(&[(low, 20)]);
    gate.close();
    let job = rig.launch(spec, LANE, Rank::GuestBestEffort);
    while gate.begun() != "attn.attend" {
        gate.release();
    }
    let spec = rig.iteration(&[(high, u32::MAX)]);
    let urgent = rig.launch(spec, LANE, Rank::GuestLatency);
    gate.open();
    let mut events = Vec::new();
    while events.len() < 2 {
        events.extend(rig.events());
    }
    assert!(
        matches!(&events[0], Event::Recalled { job: cut, done, fate: Fate::Keep, .. } if *cut == job && *done == (0..4)),
        "{events:?}"
    );
    assert!(matches!(&events[1], Event::Finished { job, tokens, .. } if *job == urgent && tokens.len() == 1));
    rig.resume(job, LANE, Rank::OwnerBestEffort);
    assert!(
        matches!(rig.event(), Event::Finished { tokens, .. } if tokens.is_empty()),
        "the prompt is not computed yet"
    );
    rig.run_alone(low);
    rig.run_alone(high);
    assert_eq!(rig.world.tokens(low), alone(0, &prompt(8, 30), 3));
    assert_eq!(rig.world.tokens(high), alone(0, &prompt(9, 5), 3));
}

/// The second part waits behind the first; when the first yields, the second must not overtake it.
#[test]
fn what_waits_behind_a_part_that_was_cut_does_not_run() {
    let (gate, kernels) = Gate::new();
    let mut rig = Rig::with_kernels(kernels);
    let (low, high) = (rig.request(0, &prompt(3, 6), 1), rig.request(0, &prompt(4, 6), 1));
    let spec = rig.iteration(&[(low, u32::MAX)]);
    let job = rig.gmg.submit(spec).unwrap();
    let operators = rig.gmg.view().job(job).unwrap().op_count();
    gate.close();
    for ops in [0..10, 10..operators] {
        let work = slicescheduler_gmg::plan::Work::Existing { job, ops };
        rig.act(Action::Run { work, lane: LANE, rank: Rank::GuestBestEffort });
    }
    gate.begun();
    let spec = rig.iteration(&[(high, u32::MAX)]);
    rig.launch(spec, LANE, Rank::OwnerLatency);
    gate.open();
    let mut events = Vec::new();
    while events.len() < 3 {
        events.extend(rig.events());
    }
    let recalled: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Recalled { done, end, .. } => Some((done.clone(), *end)),
            _ => None,
        })
        .collect();
    assert_eq!(recalled, [(0..1, 10), (10..10, operators)]);
    rig.resume(job, LANE, Rank::OwnerLatency);
    rig.event();
    assert_eq!(rig.world.tokens(low), alone(0, &prompt(3, 6), 1));
    rig.assert_empty();
}

#[test]
fn requests_end_at_their_limit_or_at_their_end_of_sequence() {
    let expected = alone(0, &prompt(6, 8), 10);
    let mut rig = Rig::new();
    let eos = expected[4];
    let first = expected.iter().position(|&token| token == eos).unwrap();
    let request = rig.request(0, &prompt(6, 8), 10);
    rig.world.prompt(request, &prompt(6, 8), 10, Some(eos)).unwrap();
    rig.run_alone(request);
    assert_eq!(rig.world.tokens(request), &expected[..=first]);
    rig.world.forget(request);
    assert!(rig.world.tokens(request).is_empty());
    rig.assert_empty();
}

/// One step of a random run.
#[derive(Clone, Debug)]
enum Step {
    /// An iteration of the tenant's requests for which the bits are set, with these chunks.
    Launch { tenant: usize, who: u8, chunks: [u32; 3], lane: u16, rank: u8 },
    /// Recalls the oldest job that is on a lane.
    Recall(bool),
    /// Frees the sequence of a request.
    Release(usize),
    /// Waits for an event.
    Wait,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0usize..2, 1u8..8, prop::array::uniform3(1u32..9), 0..LANES, 0u8..4)
            .prop_map(|(tenant, who, chunks, lane, rank)| Step::Launch { tenant, who, chunks, lane, rank }),
        2 => any::<bool>().prop_map(Step::Recall),
        1 => (0usize..6).prop_map(Step::Release),
        3 => Just(Step::Wait),
    ]
}

const RANKS: [Rank; 4] = [Rank::GuestBestEffort, Rank::OwnerBestEffort, Rank::GuestLatency, Rank::OwnerLatency];

/// Jobs that are on lanes, and those that were cut and wait, with the lane they were on.
#[derive(Default)]
struct Jobs {
    running: BTreeMap<JobId, Vec<RequestId>>,
    cut: Vec<(JobId, LaneId)>,
}

impl Jobs {
    fn uses(&self, request: RequestId) -> bool {
        self.running.values().any(|requests| requests.contains(&request))
    }

    fn wait(&mut self, rig: &mut Rig) {
        for event in rig.events() {
            match event {
                Event::Finished { job, .. } => {
                    self.running.remove(&job);
                }
                Event::Recalled { job, lane, .. } => self.cut.push((job, lane)),
                other => panic!("{other:?}"),
            }
        }
    }

    /// A cut job stays among the running ones: its requests are its own until it has finished.
    fn resume(&mut self, rig: &mut Rig, rank: Rank) {
        for (job, lane) in self.cut.drain(..) {
            rig.resume(job, LaneId::new(lane.device, (lane.index + 1) % LANES), rank);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Both models are on both devices, so sequences that are freed may go on elsewhere.
    #[test]
    fn no_schedule_changes_a_token(steps in prop::collection::vec(step(), 1..60)) {
        let lengths = [(0, 3, 6), (0, 13, 4), (0, 21, 5), (1, 9, 5), (1, 2, 7), (1, 17, 3)];
        let mut rig = Rig::new();
        for tenant in 0..2 {
            let (model, from, device) = (rig.models[tenant], DeviceId(tenant as u32), DeviceId(1 - tenant as u32));
            let source = if tenant == 0 { Source::Device(from) } else { Source::Host };
            rig.act(Action::Prefetch { model, device, source });
            rig.event();
        }
        let requests: Vec<RequestId> = lengths
            .iter()
            .enumerate()
            .map(|(seed, &(tenant, length, output))| rig.request(tenant, &prompt(seed as u32, length), output))
            .collect();
        let mut jobs = Jobs::default();
        for step in steps {
            match step {
                Step::Launch { tenant, who, chunks, lane, rank } => {
                    let device = DeviceId(u32::from(who % 2));
                    let rows: Vec<_> = (0..3)
                        .filter(|index| who & (1 << index) != 0)
                        .map(|index| (requests[tenant * 3 + index], chunks[index]))
                        .filter(|&(request, _)| !rig.has_ended(request) && !jobs.uses(request))
                        .filter(|&(request, _)| rig.gmg.view().request(request).unwrap().device.is_none_or(|on| on == device))
                        .collect();
                    if rows.is_empty() {
                        continue;
                    }
                    let spec = rig.iteration(&rows);
                    let job = rig.launch(spec, LaneId::new(device, lane), RANKS[usize::from(rank)]);
                    jobs.running.insert(job, rows.iter().map(|row| row.0).collect());
                }
                Step::Recall(keep) => {
                    let on_lane = |job: &&JobId| !jobs.cut.iter().any(|(cut, _)| cut == *job);
                    if let Some(&job) = jobs.running.keys().find(on_lane) {
                        rig.recall(job, if keep { Fate::Keep } else { Fate::Drop });
                    }
                }
                Step::Release(index) => {
                    let request = requests[index];
                    let holds = rig.gmg.view().request(request).is_some_and(|request| request.device.is_some());
                    if holds && !jobs.uses(request) {
                        rig.release(request);
                    }
                }
                Step::Wait => {
                    if jobs.running.len() > jobs.cut.len() {
                        jobs.wait(&mut rig);
                    }
                    jobs.resume(&mut rig, Rank::OwnerBestEffort);
                }
            }
        }
        while !jobs.running.is_empty() {
            jobs.resume(&mut rig, Rank::OwnerLatency);
            jobs.wait(&mut rig);
        }
        for (&request, (seed, &(tenant, length, output))) in requests.iter().zip(lengths.iter().enumerate()) {
            rig.run_alone(request);
            prop_assert_eq!(rig.world.tokens(request), alone(tenant, &prompt(seed as u32, length), output));
        }
        rig.assert_empty();
    }
}
