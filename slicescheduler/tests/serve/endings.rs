//! Every request that is taken ends, and gives back what it had.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use slicescheduler::driver::RequestError;
use slicescheduler::executor::cpu_world::CpuWorldOptions;
use slicescheduler::executor::fault::{Fault, Faults, Point};
use slicescheduler::gmg::View;
use slicescheduler::gmg::id::DeviceId;
use slicescheduler::gmg::plan::{Command, Event, Observer};
use slicescheduler::gmg::units::{Bytes, Nanos};
use slicescheduler::scheduler::policy::{Context, Policy};
use slicescheduler::serve::Status;
use slicescheduler::{Answer, Request, ServeError, SliceScheduler};

use crate::rig::{TENANTS, Threads, alone, collect, prompt, two_tenants};

/// Weights, KV cache and activations by device.
fn in_use(status: &Status) -> Vec<(Bytes, Bytes, Bytes)> {
    status.devices.iter().map(|device| (device.weights, device.kv, device.activations)).collect()
}

/// Makes passes until nothing is under way.
fn settle(slices: &SliceScheduler) -> Status {
    loop {
        let status = slices.status().unwrap();
        let weights_move = status.devices.iter().any(|device| device.activations > Bytes::ZERO);
        if status.under_way == 0 && !weights_move {
            return status;
        }
        slices.step(Duration::from_secs(60)).unwrap();
    }
}

#[test]
fn memory_is_as_before_when_every_request_has_ended() {
    let slices = two_tenants().build_stepped().unwrap();
    let before = in_use(&slices.status().unwrap());
    assert!(before.iter().all(|&(weights, kv, activations)| weights > kv && kv == activations));
    let ask = |n: u32| slices.submit(TENANTS[n as usize % 2], Request::prompt_tokens(&prompt(n, 50)).max_tokens(9));
    let answers: Vec<_> = (0..10).map(|n| ask(n).unwrap()).collect();
    slices.step(Duration::from_secs(60)).unwrap();
    assert_ne!(in_use(&slices.status().unwrap()), before);
    for (n, answer) in answers.into_iter().enumerate() {
        if n % 3 != 2 {
            assert_eq!(collect(answer).1, None);
        }
    }
    let after = settle(&slices);
    assert_eq!(in_use(&after), before);
    assert!(after.tenants.iter().all(|tenant| tenant.waiting + tenant.running == 0));
    assert_eq!(after.counters.divergences, 0);
}

/// One fault every so many operators of a device, from one operator on.
#[derive(Debug)]
struct Every {
    fault: Fault,
    device: DeviceId,
    operators: u64,
    so_far: AtomicU64,
}

impl Every {
    fn lanes(fault: Fault, device: u32, operators: u64) -> CpuWorldOptions {
        let every = Self { fault, device: DeviceId(device), operators, so_far: AtomicU64::new(0) };
        CpuWorldOptions { faults: Some(Arc::new(every)), ..CpuWorldOptions::default() }
    }
}

impl Faults for Every {
    fn at(&self, point: Point) -> Option<Fault> {
        let Point::Operator { lane, .. } = point else { return None };
        let is_next = || (self.so_far.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(self.operators);
        (lane.device == self.device && is_next()).then_some(self.fault)
    }
}

/// The tenant, its answer to the request alone, what came, the error.
type Answered = (u32, Vec<u32>, Vec<u32>, Option<RequestError>);

/// Answers to requests of both tenants.
fn answers(slices: &SliceScheduler, count: u32) -> Vec<Answered> {
    let ask = |n: u32| slices.submit(TENANTS[n as usize % 2], Request::prompt_tokens(&prompt(n, 24)).max_tokens(8));
    let answers: Vec<_> = (0..count).map(|n| ask(n).unwrap()).collect();
    let ended = (0..).zip(answers).map(|(n, answer)| {
        let (tokens, error) = collect(answer);
        (n % 2, alone(TENANTS[n as usize % 2], &prompt(n, 24), 8), tokens, error)
    });
    ended.collect()
}

#[test]
fn operators_that_fail_end_requests_with_errors_and_no_wrong_token() {
    for fault in [Fault::Fails, Fault::Panics] {
        let slices = two_tenants().lanes(Every::lanes(fault, 1, 97)).build_stepped().unwrap();
        let before = in_use(&slices.status().unwrap());
        let answers = answers(&slices, 24);
        for (_, alone, tokens, error) in &answers {
            match error {
                None => assert_eq!(tokens, alone),
                Some(RequestError::Failed(_)) => assert_eq!(*tokens, alone[..tokens.len()]),
                Some(other) => panic!("{other}"),
            }
        }
        assert!(answers.iter().any(|answer| answer.3.is_some()) && answers.iter().any(|answer| answer.3.is_none()));
        let after = settle(&slices);
        assert_eq!((in_use(&after), after.counters.divergences), (before, 0));
    }
}

#[test]
fn a_device_that_is_lost_takes_its_tenant_along_and_nobody_else() {
    let slices = two_tenants().lanes(Every::lanes(Fault::LosesDevice, 1, 60)).build_stepped().unwrap();
    for (tenant, alone, tokens, error) in answers(&slices, 12) {
        if tenant == 0 || error.is_none() {
            assert_eq!((tokens, error), (alone, None));
        } else {
            assert_eq!(tokens, alone[..tokens.len()]);
        }
    }
    let after = settle(&slices);
    assert_eq!(after.devices.iter().map(|device| device.lost).collect::<Vec<_>>(), [false, true]);
}

#[test]
fn an_answer_that_is_dropped_goes_and_leaves_the_others_alone() {
    let slices = two_tenants().build_stepped().unwrap();
    let ask = |n: u32| slices.submit("chat", Request::prompt_tokens(&prompt(n, 20)).max_tokens(30)).unwrap();
    let never_seen = ask(0);
    drop(never_seen);
    let (mut begun, kept) = (ask(1), ask(2));
    assert!(begun.next().unwrap().is_ok());
    drop(begun);
    assert_eq!(collect(kept), (alone("chat", &prompt(2, 20), 30), None));
    assert_eq!(settle(&slices).under_way, 0);
}

#[test]
fn a_shut_down_ends_what_is_under_way_and_takes_every_thread_along() {
    for stepped in [false, true] {
        let threads = Threads::default();
        let builder = two_tenants().spawner(threads.clone());
        let slices = if stepped { builder.build_stepped() } else { builder.build() }.unwrap();
        assert_eq!(threads.alive(), if stepped { 3 } else { 4 }, "two lanes, transfers, and the loop");
        let ask = |n: u32| slices.submit("batch", Request::prompt_tokens(&prompt(n, 100)).max_tokens(400)).unwrap();
        let mut answers: Vec<_> = (0..6).map(ask).collect();
        assert!(answers[0].next().unwrap().is_ok());
        drop(slices);
        threads.assert_all_end();
        for answer in answers {
            let (tokens, error) = collect(answer);
            assert!(tokens.len() < 400);
            assert_eq!(error, Some(RequestError::ShutDown));
        }
    }
}

/// Panics when told.
struct Touchy(Arc<AtomicBool>);

impl Observer for Touchy {
    fn on_event(&mut self, _event: &Event, _view: View<'_>) {
        assert!(!self.0.load(Ordering::SeqCst), "told to");
    }

    fn on_command(&mut self, _now: Nanos, _command: &Command, _view: View<'_>) {}
}

#[test]
fn a_panic_in_a_pass_ends_every_request_with_an_error() {
    let panicking = Arc::new(AtomicBool::new(false));
    let threads = Threads::default();
    let slices = two_tenants().observer(Touchy(panicking.clone())).spawner(threads.clone()).build().unwrap();
    let ask = || slices.submit("chat", Request::prompt_tokens(&[1, 2, 3]).max_tokens(200));
    let mut first = ask().unwrap();
    assert!(first.next().unwrap().is_ok());
    panicking.store(true, Ordering::SeqCst);
    let error = collect(first).1.unwrap();
    assert_eq!(error.to_string(), "the scheduler stopped: a pass panicked, in the policy or the observer");
    let refused = ask().unwrap_err();
    assert!(matches!(&refused, ServeError::Ended(reason) if *reason == error), "{refused}");
    assert!(slices.status().is_err());
    drop(slices);
    threads.assert_all_end();
}

/// Starts nothing.
struct Idle;

impl Policy for Idle {
    fn name(&self) -> &'static str {
        "idle"
    }

    fn on_event(&mut self, context: &mut Context<'_>, _event: &Event) -> slicescheduler::gmg::plan::Plan {
        context.plan()
    }
}

#[test]
fn a_request_that_no_policy_starts_ends_with_an_error() {
    let slices = two_tenants().policy(Idle).build().unwrap();
    let (tokens, error) = collect(slices.submit("chat", Request::prompt_tokens(&[1]).max_tokens(1)).unwrap());
    assert_eq!((tokens, error), (vec![], Some(RequestError::Starved { policy: "idle" })));
    assert_eq!(slices.status().unwrap().under_way, 0);
}

#[test]
fn an_observer_sees_the_tokens_that_are_delivered() {
    #[derive(Clone, Default)]
    struct Seen(Arc<Mutex<Vec<u32>>>);
    impl Observer for Seen {
        fn on_event(&mut self, event: &Event, _view: View<'_>) {
            if let Event::Finished { tokens, .. } = event {
                self.0.lock().unwrap().extend(tokens.iter().map(|&(_, token)| token));
            }
        }
        fn on_command(&mut self, _now: Nanos, _command: &Command, _view: View<'_>) {}
    }
    let seen = Seen::default();
    let slices = two_tenants().observer(seen.clone()).build().unwrap();
    let (tokens, _) = collect(slices.submit("chat", Request::prompt_tokens(&prompt(1, 40)).max_tokens(12)).unwrap());
    assert_eq!(*seen.0.lock().unwrap(), tokens);
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Submit {
        tenant: usize,
        prompt: u32,
        max: u32,
    },
    /// Drop one of the answers.
    Cancel(usize),
    /// Take a token of one of the answers.
    Take(usize),
    /// Let something happen.
    Pass,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (0..2usize, 1..70u32, 1..40u32).prop_map(|(tenant, prompt, max)| Act::Submit { tenant, prompt, max }),
        2 => any::<usize>().prop_map(Act::Cancel),
        2 => any::<usize>().prop_map(Act::Take),
        3 => Just(Act::Pass),
    ]
}

struct Asked {
    answer: Answer,
    tenant: usize,
    prompt: Vec<u32>,
    max: u32,
    tokens: Vec<u32>,
}

impl Asked {
    fn finish(mut self) -> Option<RequestError> {
        let (rest, error) = {
            let (mut tokens, mut error) = (Vec::new(), None);
            for token in self.answer.by_ref() {
                match token {
                    Ok(token) => tokens.push(token.id),
                    Err(reason) => error = Some(reason),
                }
            }
            (tokens, error)
        };
        self.tokens.extend(rest);
        assert_eq!(self.answer.next(), None, "nothing comes after the end");
        let expected = alone(TENANTS[self.tenant], &self.prompt, self.max);
        match error {
            None => assert_eq!(self.tokens, expected),
            Some(_) => assert_eq!(self.tokens, expected[..self.tokens.len()]),
        }
        error
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever is submitted, cancelled and waited for in whatever order, with little memory, and
    /// whether a shut down comes in between or not.
    #[test]
    fn every_request_ends_whatever_happens(
        acts in prop::collection::vec(act(), 0..40),
        stepped: bool,
        shut_down: bool,
        memory in 1100u64..2000,
    ) {
        let builder = two_tenants().device_memory(Bytes::kib(memory));
        let slices = if stepped { builder.build_stepped() } else { builder.build() }.unwrap();
        let before = in_use(&slices.status().unwrap());
        let mut asked: Vec<Asked> = Vec::new();
        for (seed, act) in (0u32..).zip(acts) {
            match act {
                Act::Submit { tenant, prompt: length, max } => {
                    let prompt = prompt(seed, length);
                    let request = Request::prompt_tokens(&prompt).max_tokens(max);
                    match slices.submit(TENANTS[tenant], request) {
                        Ok(answer) => asked.push(Asked { answer, tenant, prompt, max, tokens: Vec::new() }),
                        Err(error) => prop_assert!(matches!(error, ServeError::TooLong { .. }), "{}", error),
                    }
                }
                Act::Cancel(which) if !asked.is_empty() => drop(asked.swap_remove(which % asked.len())),
                Act::Take(which) if !asked.is_empty() => {
                    let which = which % asked.len();
                    if let Some(token) = asked[which].answer.next() {
                        asked[which].tokens.push(token.unwrap().id);
                    }
                }
                Act::Pass if stepped => slices.step(Duration::from_micros(50)).unwrap(),
                _ => {}
            }
        }
        if shut_down {
            drop(slices);
            for asked in asked {
                let error = asked.finish();
                prop_assert!(matches!(error, None | Some(RequestError::ShutDown)), "{:?}", error);
            }
            return Ok(());
        }
        for asked in asked {
            prop_assert_eq!(asked.finish(), None);
        }
        if stepped {
            let after = settle(&slices);
            prop_assert_eq!(in_use(&after).iter().map(|used| (used.1, used.2)).collect::<Vec<_>>(),
                before.iter().map(|used| (used.1, used.2)).collect::<Vec<_>>());
            prop_assert_eq!(after.counters.divergences, 0);
        }
    }
}
