//! Two tenants on two devices, and what they answer when nobody disturbs them.

use std::sync::{Arc, Condvar, LazyLock, Mutex};
use std::time::Duration;

use slicescheduler::driver::RequestError;
use slicescheduler::executor::lane::ThreadSpawner;
use slicescheduler::gmg::units::Nanos;
use slicescheduler::scheduler::StaticContainers;
use slicescheduler::scheduler::batching::BatchOptions;
use slicescheduler::{Answer, Builder, Llama, Request, SliceScheduler, Tenant};

pub(crate) const TENANTS: [&str; 2] = ["chat", "batch"];

/// Both tenants, on a device each. Iterations are small, so that prompts are computed in chunks and
/// work of one tenant yields to the other's often.
pub(crate) fn two_tenants() -> Builder {
    let chat = Tenant::latency_sensitive("chat").ttft(Nanos::ms(50)).tpot(Nanos::ms(5));
    let batching = BatchOptions { token_budget: 32, max_sequences: 8, block_tokens: 4, ..BatchOptions::default() };
    SliceScheduler::builder()
        .devices(2)
        .tenant(chat, Llama::tiny(1))
        .tenant(Tenant::best_effort("batch"), Llama::tiny(2))
        .batching(batching)
}

/// A prompt of this length that belongs to `seed`.
pub(crate) fn prompt(seed: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|at| (seed.wrapping_mul(0x9e37_79b9).wrapping_add(at.wrapping_mul(40_503)) >> 7) % 256).collect()
}

/// The tokens that are left of an answer, and how it ended.
pub(crate) fn collect(answer: Answer) -> (Vec<u32>, Option<RequestError>) {
    let (mut tokens, mut first) = (Vec::new(), None);
    for token in answer {
        match token {
            Ok(token) => {
                assert_eq!(token.index, *first.get_or_insert(token.index) + tokens.len() as u32);
                tokens.push(token.id);
            }
            Err(error) => return (tokens, Some(error)),
        }
    }
    (tokens, None)
}

/// What a scheduler answers that has nothing else to do, and lends nothing.
pub(crate) fn alone(tenant: &str, prompt: &[u32], max_tokens: u32) -> Vec<u32> {
    static UNDISTURBED: LazyLock<Mutex<SliceScheduler>> =
        LazyLock::new(|| two_tenants().policy(StaticContainers::default()).build_stepped().unwrap().into());
    let slices = UNDISTURBED.lock().unwrap();
    let (tokens, error) =
        collect(slices.submit(tenant, Request::prompt_tokens(prompt).max_tokens(max_tokens)).unwrap());
    assert_eq!(error, None);
    tokens
}

/// Counts the threads that live.
#[derive(Clone, Default)]
pub(crate) struct Threads(Arc<(Mutex<usize>, Condvar)>);

impl Threads {
    pub(crate) fn alive(&self) -> usize {
        *self.0.0.lock().unwrap()
    }

    /// Waits until the threads that were told to end have ended.
    pub(crate) fn assert_all_end(&self) {
        let (alive, changed) = &*self.0;
        let alive = alive.lock().unwrap();
        let (alive, _) = changed.wait_timeout_while(alive, Duration::from_secs(60), |alive| *alive > 0).unwrap();
        assert_eq!(*alive, 0);
    }
}

/// Counts a thread as long as it exists.
struct Alive(Threads);

impl Drop for Alive {
    fn drop(&mut self) {
        let (alive, changed) = &*self.0.0;
        *alive.lock().unwrap() -= 1;
        changed.notify_all();
    }
}

impl ThreadSpawner for Threads {
    fn spawn(&self, name: String, body: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
        *self.0.0.lock().unwrap() += 1;
        let alive = Alive(self.clone());
        let body = move || {
            let _alive = alive;
            body();
        };
        std::thread::Builder::new().name(name).spawn(body).map(drop)
    }
}
