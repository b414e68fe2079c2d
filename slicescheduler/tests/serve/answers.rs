//! Tokens, however they were computed and taken.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use futures_core::Stream;
use slicescheduler::gmg::View;
use slicescheduler::gmg::dtype::DType;
use slicescheduler::gmg::plan::{Command, Event, Observer};
use slicescheduler::gmg::units::{Bytes, Nanos};
use slicescheduler::scheduler::batching::BatchOptions;
use slicescheduler::scheduler::{IdlePriority, StaticContainers};
use slicescheduler::{
    Builder, Llama, MixtureOfExperts, Request, Sampling, ServeError, SliceScheduler, Tenant, TokenStream,
};

use crate::rig::{TENANTS, alone, collect, prompt, two_tenants};

/// Tenant, prompt, most tokens.
fn requests() -> Vec<(&'static str, Vec<u32>, u32)> {
    (0..24).map(|n| (TENANTS[n as usize % 2], prompt(n, 1 + (n * 17) % 90), 1 + (n * 7) % 40)).collect()
}

fn expected() -> Vec<Vec<u32>> {
    requests().iter().map(|(tenant, prompt, max)| alone(tenant, prompt, *max)).collect()
}

/// Submits all requests from as many threads.
fn at_once(slices: &SliceScheduler) -> Vec<Vec<u32>> {
    thread::scope(|scope| {
        let answers: Vec<_> = requests()
            .into_iter()
            .map(|(tenant, prompt, max)| {
                scope.spawn(move || {
                    let request = Request::prompt_tokens(&prompt).max_tokens(max);
                    let (tokens, error) = collect(slices.submit(tenant, request).unwrap());
                    assert_eq!(error, None);
                    tokens
                })
            })
            .collect();
        answers.into_iter().map(|answer| answer.join().unwrap()).collect()
    })
}

/// Its experts are chosen by the tokens of whole batches; which ones those are depends on the policy.
#[test]
fn a_mixture_of_experts_answers_alike_sliced_and_unsliced() {
    let answers = |policy: fn(Builder) -> Builder| {
        let builder = two_tenants().tenant(Tenant::best_effort("mixture"), MixtureOfExperts::tiny(3)).devices(3);
        let slices = policy(builder).build().unwrap();
        let submit = |n: u32| {
            let tenant = if n.is_multiple_of(4) { "chat" } else { "mixture" };
            slices.submit(tenant, Request::prompt_tokens(&prompt(n, 1 + (n * 17) % 60)).max_tokens(1 + n % 20)).unwrap()
        };
        let answers: Vec<_> = (0..24).map(submit).collect();
        answers.into_iter().map(collect).collect::<Vec<_>>()
    };
    let alone = answers(|builder| builder.policy(StaticContainers::default()));
    assert!(alone.iter().all(|(tokens, error)| !tokens.is_empty() && error.is_none()));
    assert_eq!(answers(|builder| builder), alone);
    assert_eq!(answers(|builder| builder.policy(IdlePriority::default())), alone);
}

#[test]
fn answers_at_once_equal_those_one_at_a_time_under_every_policy() {
    let expected = expected();
    assert!(expected.iter().zip(requests()).all(|(tokens, (.., max))| tokens.len() == max as usize));
    let builders: [fn(Builder) -> Builder; 3] = [
        |builder| builder,
        |builder| builder.policy(IdlePriority::default()),
        |builder| builder.policy(StaticContainers::default()),
    ];
    for policy in builders {
        assert_eq!(at_once(&policy(two_tenants()).build().unwrap()), expected);
        assert_eq!(at_once(&policy(two_tenants()).build_stepped().unwrap()), expected);
    }
}

/// One at a time, requests leave in the order that was forecast; at once, and with guests that are recalled, in any.
#[test]
fn forecasts_of_memory_are_never_below_what_is_used_and_equal_it_in_their_own_order() {
    let slices = two_tenants().policy(StaticContainers::default()).forecasts_memory(true).build_stepped().unwrap();
    for (tenant, prompt, max) in requests() {
        let answer = slices.submit(tenant, Request::prompt_tokens(&prompt).max_tokens(max)).unwrap();
        assert_eq!(collect(answer).0.len(), max as usize);
    }
    for device in slices.status().unwrap().devices {
        assert!(device.peak > device.weights);
        assert_eq!(device.forecast_peak, Some(device.peak), "{}", device.name);
    }
    let slices = two_tenants().forecasts_memory(true).build().unwrap();
    at_once(&slices);
    for device in slices.status().unwrap().devices {
        assert!(device.forecast_peak >= Some(device.peak), "{device:?}");
    }
    let slices = two_tenants().build_stepped().unwrap();
    at_once(&slices);
    assert!(slices.status().unwrap().devices.iter().all(|device| device.forecast_peak.is_none()));
}

/// Counts the tokens that iterations compute.
#[derive(Clone, Default)]
struct Computed(Arc<AtomicU32>);

impl Observer for Computed {
    fn on_event(&mut self, _event: &Event, _view: View<'_>) {}

    fn on_command(&mut self, _now: Nanos, command: &Command, _view: View<'_>) {
        if let Command::Launch(launch) = command
            && launch.ops.start == 0
        {
            let tokens = launch.spec.rows.iter().map(|row| row.tokens).sum();
            self.0.fetch_add(tokens, Ordering::Relaxed);
        }
    }
}

#[test]
fn sequences_that_lose_their_memory_are_computed_again_to_the_same_tokens() {
    let (expected, computed) = (expected(), Computed::default());
    let options = BatchOptions {
        token_budget: 32,
        max_sequences: 8,
        block_tokens: 4,
        growth_reserve: 0,
        ..BatchOptions::default()
    };
    let builder = two_tenants().policy(StaticContainers::default()).batching(options).device_memory(Bytes::kib(600));
    let slices = builder.observer(computed.clone()).build_stepped().unwrap();
    let ask = |(tenant, prompt, max): (&str, Vec<u32>, u32)| {
        slices.submit(tenant, Request::prompt_tokens(&prompt).max_tokens(max)).unwrap()
    };
    let answers: Vec<_> = requests().into_iter().map(ask).collect();
    assert_eq!(answers.into_iter().map(|answer| collect(answer).0).collect::<Vec<_>>(), expected);
    let once: usize = requests().iter().map(|(_, prompt, max)| prompt.len() + *max as usize - 1).sum();
    assert!(computed.0.load(Ordering::Relaxed) as usize > once, "nobody lost memory");
}

#[test]
fn one_tenant_on_several_devices_answers_as_on_one() {
    let build = |devices: &[u32]| {
        let tenant = Tenant::latency_sensitive("chat");
        SliceScheduler::builder().devices(3).tenant_on(tenant, Llama::tiny(1), devices.iter().copied()).build().unwrap()
    };
    let answers = |slices: &SliceScheduler| {
        let ask = |n| slices.submit("chat", Request::prompt_tokens(&prompt(n, 30)).max_tokens(20)).unwrap();
        let answers: Vec<_> = (0..12).map(ask).collect();
        answers.into_iter().map(collect).collect::<Vec<_>>()
    };
    assert_eq!(answers(&build(&[2, 0, 1])), answers(&build(&[1])));
}

#[test]
fn an_answer_ends_with_the_models_last_token_or_the_requests() {
    let prompt = prompt(3, 9);
    let whole = alone("chat", &prompt, 30);
    let first = |token: u32| whole.iter().position(|&other| other == token).unwrap() + 1;
    let (of_model, of_request) = (whole[4], whole[11]);
    let model = Llama::tiny(1).ending_with(of_model);
    let slices = SliceScheduler::builder().tenant(Tenant::best_effort("chat"), model).build().unwrap();
    let ask = |request: Request| collect(slices.submit("chat", request.max_tokens(30)).unwrap());
    assert_eq!(ask(Request::prompt_tokens(&prompt)).0, whole[..first(of_model)]);
    assert_eq!(ask(Request::prompt_tokens(&prompt).stop_at(of_request)).0, whole[..first(of_request)]);
}

#[test]
fn tokens_that_are_drawn_depend_on_the_seed_and_not_on_the_company() {
    let sampling = |seed| Sampling { temperature: 0.8, top_k: 50, top_p: 0.95, seed };
    let request = |seed| Request::prompt_tokens(&prompt(2, 20)).max_tokens(24).sampling(sampling(seed));
    let slices = two_tenants().build().unwrap();
    let alone = collect(slices.submit("chat", request(1)).unwrap()).0;
    let together: Vec<_> = (0..6).map(|seed| slices.submit("chat", request(seed)).unwrap()).collect();
    let together: Vec<_> = together.into_iter().map(|answer| collect(answer).0).collect();
    assert_eq!(together[1], alone);
    assert!(together.iter().filter(|answer| **answer == alone).count() == 1);
    assert_ne!(alone, collect(slices.submit("chat", Request::prompt_tokens(&prompt(2, 20)).max_tokens(24)).unwrap()).0);
}

#[test]
fn tokens_of_weights_of_any_type_do_not_depend_on_chunks_blocks_and_company() {
    let types = [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0, DType::Q4_1];
    let scheduler = |dtype, token_budget, block_tokens| {
        let batching = BatchOptions { token_budget, max_sequences: 8, block_tokens, ..BatchOptions::default() };
        let model = Llama::tiny(1).weights_as(dtype);
        SliceScheduler::builder().tenant(Tenant::best_effort("chat"), model).batching(batching).build().unwrap()
    };
    let mut distinct = Vec::new();
    for dtype in types {
        let (alone, together) = (scheduler(dtype, 256, 16), scheduler(dtype, 11, 4));
        let ask = |slices: &SliceScheduler, n: u32| {
            slices.submit("chat", Request::prompt_tokens(&prompt(n, 40 + n)).max_tokens(16)).unwrap()
        };
        let expected: Vec<_> = (0..5).map(|n| collect(ask(&alone, n)).0).collect();
        let answers: Vec<_> = (0..5).map(|n| ask(&together, n)).collect();
        assert_eq!(answers.into_iter().map(|answer| collect(answer).0).collect::<Vec<_>>(), expected, "{dtype}");
        if !distinct.contains(&expected) {
            distinct.push(expected);
        }
    }
    // Rounding to four bits changes a random model, so the types were not all the same in truth.
    assert!(distinct.len() >= 3, "{} kinds of answers", distinct.len());
}

/// Wakes a thread that is parked.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn next_of(stream: &mut Pin<&mut TokenStream>) -> Option<u32> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut next = pin!(poll_fn(|context| stream.as_mut().poll_next(context)));
    loop {
        match next.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(token) => return token.map(|token| token.unwrap().id),
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn a_stream_gives_what_the_iterator_gives_without_a_runtime() {
    let slices = two_tenants().build().unwrap();
    let prompt = prompt(5, 12);
    let mut stream = pin!(slices.submit("batch", Request::prompt_tokens(&prompt).max_tokens(25)).unwrap().stream());
    let mut tokens = Vec::new();
    while let Some(token) = next_of(&mut stream) {
        tokens.push(token);
    }
    assert_eq!(tokens, alone("batch", &prompt, 25));
    assert_eq!(next_of(&mut stream), None);
}

#[test]
fn steps_of_the_host_make_an_answer_that_nobody_waits_for() {
    let slices = two_tenants().build_stepped().unwrap();
    let prompt = prompt(8, 40);
    let mut answer = slices.submit("chat", Request::prompt_tokens(&prompt).max_tokens(10)).unwrap();
    assert!(answer.try_next().is_pending() && answer.request().is_none());
    let mut tokens = Vec::new();
    loop {
        match answer.try_next() {
            Poll::Ready(Some(token)) => tokens.push(token.unwrap().id),
            Poll::Ready(None) => break,
            Poll::Pending => slices.step(Duration::from_secs(60)).unwrap(),
        }
    }
    assert_eq!(tokens, alone("chat", &prompt, 10));
    assert!(matches!(two_tenants().build().unwrap().step(Duration::ZERO), Err(ServeError::HasThread)));
}
