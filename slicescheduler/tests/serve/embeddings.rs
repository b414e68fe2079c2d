//! Vectors of encoders, beside a decoder that shares their devices.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use slicescheduler::driver::RequestError;
use slicescheduler::gmg::templates::Pooling;
use slicescheduler::scheduler::StaticContainers;
use slicescheduler::scheduler::batching::BatchOptions;
use slicescheduler::{Bert, Builder, Llama, PendingEmbedding, Request, SliceScheduler, Tenant};

use crate::rig::collect;

/// The text of this number.
fn text(number: u32) -> Vec<u32> {
    (0..1 + number * 7 % 31).map(|at| (number * 37 + at * at * 11) % 128).collect()
}

fn embed(slices: &SliceScheduler, number: u32) -> PendingEmbedding {
    slices.embed("embed", &text(number)).unwrap()
}

/// `chat` and `embed` on a device each, of which either may be latency-sensitive.
fn beside_chat(sensitive: &str) -> Builder {
    let tenant = |name: &str| match name == sensitive {
        true => Tenant::latency_sensitive(name),
        false => Tenant::best_effort(name),
    };
    let batching = BatchOptions { token_budget: 32, max_sequences: 8, block_tokens: 4, ..BatchOptions::default() };
    SliceScheduler::builder()
        .devices(2)
        .tenant(tenant("chat"), Llama::tiny(1))
        .tenant(tenant("embed"), Bert::tiny(2))
        .batching(batching)
}

#[test]
fn vectors_have_the_same_bits_alone_in_company_and_in_slices_of_others() {
    let alone = beside_chat("chat").policy(StaticContainers::default()).build_stepped().unwrap();
    let expected: Vec<_> = (0..24).map(|number| embed(&alone, number).wait().unwrap().vector).collect();
    let prompt = Request::prompt_tokens(&[72, 101, 108]).max_tokens(20);
    let answer = collect(alone.submit("chat", prompt.clone()).unwrap()).0;
    for sensitive in ["chat", "embed"] {
        let slices = beside_chat(sensitive).build().unwrap();
        let chats: Vec<_> = (0..6).map(|_| slices.submit("chat", prompt.clone()).unwrap()).collect();
        let pending: Vec<_> = (0..24).map(|number| embed(&slices, number)).collect();
        let vectors: Vec<_> = pending.into_iter().map(|pending| pending.wait().unwrap().vector).collect();
        assert!(vectors == expected, "{sensitive} first");
        chats.into_iter().for_each(|chat| assert_eq!(collect(chat).0, answer));
    }
}

#[test]
fn a_model_is_asked_for_what_it_gives() {
    let slices = beside_chat("chat").build_stepped().unwrap();
    let refused = |tokens: &[u32]| slices.embed("embed", tokens).unwrap_err().to_string();
    assert_eq!(refused(&[]), r#"tenant "embed": the prompt has no tokens; it needs at least one"#);
    assert_eq!(
        refused(&[3, 128]),
        r#"tenant "embed": token 1 of the prompt is 128, model tiny-encoder knows 0 to 127"#
    );
    // The model could read 64, an iteration has room for 32.
    let longest = vec![5; 33];
    assert!(refused(&longest).ends_with("model tiny-encoder has room for 32 here"));
    assert_eq!(slices.embed("embed", &longest[1..]).unwrap().wait().unwrap().vector.len(), 32);
    assert_eq!(
        slices.embed("chat", &[1]).unwrap_err().to_string(),
        r#"tenant "chat": model tiny is a decoder; ask it by `submit`"#
    );
    assert_eq!(
        slices.submit("embed", Request::prompt_tokens(&[1])).unwrap_err().to_string(),
        r#"tenant "embed": model tiny-encoder is an encoder; ask it by `embed`"#
    );
    assert_eq!(slices.status().unwrap().under_way, 0);
}

/// Wakes a thread that is parked.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn an_embedding_is_a_future_that_needs_no_runtime() {
    let slices = beside_chat("embed").build().unwrap();
    let expected = embed(&slices, 5).wait().unwrap().vector;
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut pending = pin!(embed(&slices, 5));
    let embedding = loop {
        match pending.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(embedding) => break embedding.unwrap(),
            Poll::Pending => thread::park(),
        }
    };
    assert_eq!(embedding.vector, expected);
    assert!(embedding.at <= slices.now());
}

#[test]
fn one_that_is_dropped_leaves_nothing_behind_and_one_that_is_asked_early_goes_on() {
    let slices = beside_chat("chat").build_stepped().unwrap();
    drop(embed(&slices, 1));
    let mut pending = embed(&slices, 2).try_wait().unwrap_err();
    let embedding = loop {
        slices.step(Duration::from_secs(60)).unwrap();
        match pending.try_wait() {
            Ok(embedding) => break embedding.unwrap(),
            Err(again) => pending = again,
        }
    };
    assert_eq!(embedding.vector.len(), 32);
    while slices.status().unwrap().under_way > 0 {
        slices.step(Duration::from_secs(60)).unwrap();
    }
    // Nobody takes a step after this one came, so nothing can answer it.
    let never = embed(&slices, 3);
    drop(slices);
    assert_eq!(never.wait(), Err(RequestError::ShutDown));
}

#[test]
fn a_model_may_answer_with_its_first_token_instead_of_the_mean() {
    let build = |model: Bert| SliceScheduler::builder().tenant(Tenant::best_effort("embed"), model).build().unwrap();
    let mean = embed(&build(Bert::tiny(4)), 9).wait().unwrap().vector;
    let first = embed(&build(Bert::tiny(4).pooled_by(Pooling::First)), 9).wait().unwrap().vector;
    let length = |vector: &[f32]| vector.iter().map(|x| x * x).sum::<f32>();
    assert!((length(&mean) - 1.0).abs() < 1e-5);
    assert!((length(&first) - 1.0).abs() > 1e-3 && first.iter().all(|x| x.abs() <= 1.0));
}
