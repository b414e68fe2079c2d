//! The loop behind a scheduler: takes requests, makes passes, delivers tokens.

use std::collections::{HashMap, VecDeque};
use std::hash::RandomState;
use std::sync::Arc;

use slicescheduler_executor::cpu_world::{CpuWorld, Waker};
use slicescheduler_gmg::View;
use slicescheduler_gmg::delta::NewRequest;
use slicescheduler_gmg::id::RequestId;
use slicescheduler_gmg::plan::{Action, Clock, Command, Event, Observer, World, WorldError};
use slicescheduler_gmg::units::Nanos;
use slicescheduler_scheduler::batching::{BlockHashes, Completed};

use crate::driver::{Arrival, Driver, DriverError, Lost, RequestError};
use crate::learned::Learned;
use crate::serve::inbox::{Inbox, Message, Submission};
use crate::serve::mailbox::Recipient;
use crate::serve::{Embedding, Request, Status, Token};

/// The longest wait for a world in which nothing happens.
pub(super) const LONG: Nanos = Nanos::secs(3600);

/// A world that computes real tokens.
pub(crate) trait TokenWorld: World {
    /// Enters the prompt of a request that is about to be submitted, and when its answer ends.
    fn enter(&mut self, request: RequestId, asked: &Request) -> Result<(), WorldError>;

    /// The vector of a request to an encoder, once it is computed.
    fn vector(&self, request: RequestId) -> Option<Arc<[f32]>>;

    /// A request has ended.
    fn leave(&mut self, request: RequestId);
}

impl TokenWorld for CpuWorld {
    fn enter(&mut self, request: RequestId, asked: &Request) -> Result<(), WorldError> {
        self.prompt(request, &asked.prompt, asked.max_tokens, asked.stop_at)?;
        Ok(self.choose(request, asked.sampling)?)
    }

    fn vector(&self, request: RequestId) -> Option<Arc<[f32]>> {
        self.embedding(request)
    }

    fn leave(&mut self, request: RequestId) {
        self.forget(request);
    }
}

/// Owns the driver. When it goes, however that comes about, every request that has not ended does.
pub(crate) struct Service<W: TokenWorld> {
    driver: Driver<W>,
    clock: Arc<dyn Clock>,
    inbox: Arc<Inbox>,
    answers: HashMap<RequestId, Recipient>,
    observer: Box<dyn Observer + Send>,
    learned: Learned,
    /// What the contents of blocks are hashed with: nobody who asks can make two that are taken for one.
    keys: RandomState,
    /// Why the loop cannot go on.
    failure: Option<RequestError>,
    messages: VecDeque<Message>,
    completed: Vec<Completed>,
    lost: Vec<Lost>,
}

impl<W: TokenWorld> Service<W> {
    pub(crate) fn new(
        driver: Driver<W>,
        clock: Arc<dyn Clock>,
        observer: Box<dyn Observer + Send>,
        waker: Waker,
        limit: usize,
        learned: Learned,
    ) -> Self {
        Self {
            driver,
            clock,
            inbox: Arc::new(Inbox::new(waker, limit)),
            answers: HashMap::new(),
            observer: Box::new(learned.clone().before(observer)),
            learned,
            keys: RandomState::new(),
            failure: None,
            messages: VecDeque::new(),
            completed: Vec::new(),
            lost: Vec::new(),
        }
    }

    pub(super) fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    pub(super) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Brings guests' weights to their devices.
    pub(crate) fn prefetch(&mut self, actions: Vec<Action>) -> Result<(), DriverError> {
        self.driver.prefetch(actions, &mut *self.observer)
    }

    pub(super) fn status(&self) -> Status {
        Status::of(&self.driver, self.learned.predictions(), self.inbox.under_way(), self.clock.now())
    }

    /// Makes passes until the inbox is asked to close, or the world breaks.
    pub(super) fn run(mut self) {
        while !self.inbox.is_closing() {
            let until = self.clock.now() + LONG;
            if self.step(until).is_err() {
                return;
            }
        }
    }

    /// Ends after a pass that panicked.
    pub(super) fn end_panicked(mut self) {
        self.failure = Some(panicked());
    }

    /// Takes what is in the inbox, waits for the world until `until` at the latest, and makes the
    /// passes for what happened. After an error it can only be dropped.
    pub(super) fn step(&mut self, until: Nanos) -> Result<(), DriverError> {
        let outcome = self.try_step(until);
        if let Err(error) = &outcome {
            self.failure = Some(RequestError::Stopped { reason: error.to_string().into() });
        }
        outcome
    }

    fn try_step(&mut self, until: Nanos) -> Result<(), DriverError> {
        self.take_in()?;
        let mut delivery = Delivery { answers: &self.answers, observer: &mut *self.observer };
        self.driver.end_starved(&mut delivery)?;
        self.settle();
        let mut delivery = Delivery { answers: &self.answers, observer: &mut *self.observer };
        self.driver.step(until, &mut delivery)?;
        self.settle();
        Ok(())
    }

    /// Whatever interrupts it, messages that were not obeyed stay, to be answered when this is dropped.
    fn take_in(&mut self) -> Result<(), DriverError> {
        self.inbox.take(&mut self.messages);
        while let Some(message) = self.messages.pop_front() {
            self.obey(message)?;
        }
        Ok(())
    }

    fn obey(&mut self, message: Message) -> Result<(), DriverError> {
        match message {
            Message::Submit(submission) => self.enter(submission),
            Message::Cancel(name) => {
                let Some(&request) = name.get() else { return Ok(()) };
                let mut delivery = Delivery { answers: &self.answers, observer: &mut *self.observer };
                self.driver.cancel(request, &mut delivery)
            }
            Message::Report(to) => {
                // Whoever asked may have gone.
                let _ = to.send(self.status());
                Ok(())
            }
        }
    }

    fn enter(&mut self, submission: Submission) -> Result<(), DriverError> {
        let Submission { tenant, arrival, request, recipient } = submission;
        let id = self.driver.gmg().next_request_id();
        let prompt = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
        let max_output = request.max_tokens;
        // Set for the first time: a recipient is submitted once.
        let _ = recipient.name().set(id);
        self.answers.insert(id, recipient);
        let batcher = self.driver.batching().get(tenant.index()).filter(|batcher| batcher.shares_blocks());
        let hashes = batcher.map_or_else(BlockHashes::default, |batcher| {
            BlockHashes::of_tokens(&self.keys, &request.prompt, batcher.options().block_tokens)
        });
        self.driver.world_mut().enter(id, &request)?;
        let mut delivery = Delivery { answers: &self.answers, observer: &mut *self.observer };
        let request = NewRequest { tenant, arrival, prompt, max_output };
        self.driver.submit(Arrival::from(request).hashes(hashes), &mut delivery)?;
        Ok(())
    }

    /// Parts with requests that have ended.
    fn settle(&mut self) {
        self.driver.take_completed(&mut self.completed);
        self.driver.take_lost(&mut self.lost);
        let completed = self.completed.drain(..).map(|completed| (completed.request, Ok(completed.last_token)));
        let lost = self.lost.drain(..).map(|lost| (lost.request, Err(lost.reason)));
        for (request, end) in completed.chain(lost) {
            let vector = self.driver.world().vector(request);
            self.driver.world_mut().leave(request);
            let Some(recipient) = self.answers.remove(&request) else { continue };
            self.inbox.ended();
            if let (Recipient::Embedding(mailbox), Ok(at), Some(vector)) = (&recipient, &end, vector) {
                mailbox.push(|_| Embedding { vector, at: *at });
            }
            recipient.end(end.map(drop));
        }
    }
}

fn panicked() -> RequestError {
    RequestError::Stopped { reason: "a pass panicked, in the policy or the observer".into() }
}

impl<W: TokenWorld> Drop for Service<W> {
    fn drop(&mut self) {
        let end = || if std::thread::panicking() { panicked() } else { RequestError::ShutDown };
        let reason = self.failure.take().unwrap_or_else(end);
        let not_taken = self.inbox.close(reason.clone());
        for message in self.messages.drain(..).chain(not_taken) {
            if let Message::Submit(submission) = message {
                submission.recipient.end(Err(reason.clone()));
            }
        }
        for recipient in self.answers.values() {
            recipient.end(Err(reason.clone()));
        }
    }
}

/// Brings tokens to those who wait for them, before anything is decided on the event.
struct Delivery<'a> {
    answers: &'a HashMap<RequestId, Recipient>,
    observer: &'a mut dyn Observer,
}

impl Observer for Delivery<'_> {
    fn on_event(&mut self, event: &Event, view: View<'_>) {
        if let Event::Finished { tokens, at, .. } = event {
            for (request, token) in tokens {
                if let Some(Recipient::Tokens(mailbox)) = self.answers.get(request) {
                    mailbox.push(|index| Token { id: *token, index, at: *at });
                }
            }
        }
        self.observer.on_event(event, view);
    }

    fn on_command(&mut self, now: Nanos, command: &Command, view: View<'_>) {
        self.observer.on_command(now, command, view);
    }
}

#[cfg(test)]
mod tests;
