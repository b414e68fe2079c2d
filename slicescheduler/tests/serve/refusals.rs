//! Requests that are not taken.

use slicescheduler::gmg::units::Bytes;
use slicescheduler::{Llama, Request, SliceScheduler, Tenant};

use crate::rig::{collect, prompt, two_tenants};

#[test]
fn what_is_wrong_with_a_request_is_said_at_once() {
    let slices = two_tenants().build_stepped().unwrap();
    let refused = |tenant: &str, request: Request| slices.submit(tenant, request).unwrap_err().to_string();
    let request = |tokens: &[u32]| Request::prompt_tokens(tokens).max_tokens(4);
    assert_eq!(refused("char", request(&[1])), r#"there is no tenant "char"; known are "chat", "batch""#);
    assert_eq!(refused("chat", request(&[])), r#"tenant "chat": the prompt has no tokens; it needs at least one"#);
    assert_eq!(
        refused("chat", request(&[1]).max_tokens(0)),
        r#"tenant "chat": an answer of at most 0 tokens was asked for; at least 1 is needed"#
    );
    assert_eq!(
        refused("batch", request(&[255, 0, 256])),
        r#"tenant "batch": token 2 of the prompt is 256, model tiny knows 0 to 255"#
    );
    assert_eq!(
        refused("chat", request(&prompt(1, 500)).max_tokens(13)),
        r#"tenant "chat": 500 tokens of prompt and up to 13 of answer are 513, model tiny has room for 512 here"#
    );
    assert_eq!(slices.status().unwrap().under_way, 0);
}

#[test]
fn a_device_that_holds_less_than_the_models_context_is_what_counts() {
    let slices = SliceScheduler::builder()
        .device_memory(Bytes::kib(800))
        .batching(slicescheduler::scheduler::batching::BatchOptions {
            token_budget: 64,
            max_sequences: 4,
            ..Default::default()
        })
        .tenant(Tenant::best_effort("small"), Llama::tiny(1))
        .build_stepped()
        .unwrap();
    let ask = |tokens| slices.submit("small", Request::prompt_tokens(&prompt(1, tokens)).max_tokens(16));
    let largest = (1..).take_while(|&tokens| ask(tokens).is_ok()).last().unwrap();
    assert!((16..496).contains(&largest), "{largest}");
    let (tokens, error) = collect(ask(largest).unwrap());
    assert_eq!((tokens.len(), error), (16, None), "what is taken is answered");
}

#[test]
fn as_many_requests_as_allowed_are_taken_at_a_time() {
    let slices = two_tenants().max_requests(2).build_stepped().unwrap();
    let ask = || slices.submit("chat", Request::prompt_tokens(&[1, 2, 3]).max_tokens(2));
    let (first, second) = (ask().unwrap(), ask().unwrap());
    assert_eq!(
        ask().unwrap_err().to_string(),
        "2 requests are under way already, which is the limit; try again when one has ended"
    );
    assert_eq!(collect(first).0.len(), 2);
    assert_eq!(collect(second).0.len(), 2);
    assert_eq!(collect(ask().unwrap()).0.len(), 2);
}
