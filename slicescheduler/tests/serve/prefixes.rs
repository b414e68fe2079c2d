//! Prompts that begin alike: blocks are shared, and no answer changes by it.

use std::time::Duration;

use slicescheduler::scheduler::{IdlePriority, StaticContainers};
use slicescheduler::{Builder, Request, SliceScheduler};

use crate::rig::{TENANTS, alone, collect, prompt, two_tenants};

/// Tokens of a KV block of the rig.
const BLOCK: u64 = 4;

/// A prompt of `beginning` tokens that others have, and `own` that no other has.
fn begun(beginning: u32, seed: u32, own: u32) -> Vec<u32> {
    [prompt(7, beginning), prompt(seed, own)].concat()
}

fn answered(slices: &SliceScheduler, tenant: &str, prompt: &[u32], max: u32) -> Vec<u32> {
    let (tokens, error) = collect(slices.submit(tenant, Request::prompt_tokens(prompt).max_tokens(max)).unwrap());
    assert_eq!(error, None);
    tokens
}

fn cached(slices: &SliceScheduler, tenant: usize) -> u64 {
    slices.status().unwrap().tenants[tenant].cached_tokens
}

#[test]
fn a_beginning_is_found_after_its_request_has_ended() {
    let slices = two_tenants().prefix_caching(true).build_stepped().unwrap();
    let (one, other) = (begun(30, 100, 9), begun(30, 101, 5));
    assert_eq!(answered(&slices, "chat", &one, 6), alone("chat", &one, 6));
    assert_eq!(cached(&slices, 0), 0);
    assert_eq!(answered(&slices, "chat", &other, 6), alone("chat", &other, 6));
    assert_eq!(cached(&slices, 0), 28, "seven blocks of four tokens are full of what both begin with");
    // Of the same prompt all but the block of its last token are there.
    assert_eq!(answered(&slices, "chat", &other, 9), alone("chat", &other, 9));
    assert_eq!(cached(&slices, 0), 28 + (other.len() as u64 - 1) / BLOCK * BLOCK);
    // Nobody finds what is another tenant's.
    assert_eq!(answered(&slices, "batch", &other, 6), alone("batch", &other, 6));
    assert_eq!(cached(&slices, 1), 0);
}

#[test]
fn a_beginning_is_found_while_its_request_runs() {
    let slices = two_tenants().policy(StaticContainers::default()).prefix_caching(true).build_stepped().unwrap();
    let (one, other) = (begun(30, 100, 9), begun(30, 101, 5));
    let first = slices.submit("chat", Request::prompt_tokens(&one).max_tokens(200)).unwrap();
    while slices.status().unwrap().tenants[0].running == 0 || slices.status().unwrap().devices[0].kv.get() == 0 {
        slices.step(Duration::from_millis(10)).unwrap();
    }
    // Its prompt takes two iterations, the second of which ends before it has more than three tokens.
    for _ in 0..6 {
        slices.step(Duration::from_secs(10)).unwrap();
    }
    let second = slices.submit("chat", Request::prompt_tokens(&other).max_tokens(40)).unwrap();
    let third = slices.submit("chat", Request::prompt_tokens(&one).max_tokens(40)).unwrap();
    for (answer, prompt, max) in [(second, &other, 40), (third, &one, 40), (first, &one, 200)] {
        let (tokens, error) = collect(answer);
        assert_eq!(error, None);
        assert_eq!(tokens, alone("chat", prompt, max), "what is written after a shared beginning is nobody else's");
    }
    assert_eq!(cached(&slices, 0), 28 + (one.len() as u64 - 1) / BLOCK * BLOCK);
}

/// Prompts of a few kinds, of every length, at once: on busy devices with guests, and with little memory.
#[test]
fn answers_are_the_same_with_and_without_under_every_policy() {
    let requests: Vec<(&str, Vec<u32>, u32)> =
        (0..36).map(|n| (TENANTS[n as usize % 2], begun(n * 5 % 4 * 11, n, 1 + n * 17 % 50), 1 + n * 7 % 30)).collect();
    let expected: Vec<_> = requests.iter().map(|(tenant, prompt, max)| alone(tenant, prompt, *max)).collect();
    let policies: [fn(Builder) -> Builder; 3] = [
        |builder| builder,
        |builder| builder.policy(IdlePriority::default()),
        |builder| builder.policy(StaticContainers::default()),
    ];
    for policy in policies {
        for repeated in 0..2 {
            let slices = policy(two_tenants()).prefix_caching(true).build().unwrap();
            let submit = |(tenant, prompt, max): &(&str, Vec<u32>, u32)| {
                slices.submit(tenant, Request::prompt_tokens(prompt).max_tokens(*max)).unwrap()
            };
            let answers: Vec<_> = requests.iter().map(submit).collect();
            let answers: Vec<_> = answers.into_iter().map(collect).collect();
            for ((tokens, error), expected) in answers.into_iter().zip(&expected) {
                assert_eq!((tokens, error), (expected.clone(), None), "{repeated}");
            }
            assert!(cached(&slices, 0) + cached(&slices, 1) > 0);
        }
    }
}
