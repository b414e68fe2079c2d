//! A loop without a thread: whoever needs a pass makes it.
//!
//! The service is behind a lock that is held for a pass, the wait for the world included. Somebody
//! who waits for a token either gets the lock and makes the pass, or waits for the one who has it,
//! whose pass ends with the next event. So a token that comes is never waited for beyond the pass
//! that brings it.

use std::sync::{Arc, Mutex, MutexGuard};

use slicescheduler_executor::cpu_world::CpuWorld;
use slicescheduler_gmg::units::Nanos;

use crate::driver::{DriverError, RequestError};
use crate::serve::inbox::Inbox;
use crate::serve::mailbox::Mailbox;
use crate::serve::service::{LONG, Service};
use crate::serve::{ServeError, Status};

pub(super) struct Stepped {
    /// [`None`] once it has ended.
    service: Mutex<Option<Service<CpuWorld>>>,
    inbox: Arc<Inbox>,
}

impl Stepped {
    pub(super) fn new(service: Service<CpuWorld>) -> Self {
        let inbox = service.inbox().clone();
        Self { service: Mutex::new(Some(service)), inbox }
    }

    /// The service; one in which a pass panicked is dropped, which ends its requests.
    fn lock(&self) -> MutexGuard<'_, Option<Service<CpuWorld>>> {
        self.service.lock().unwrap_or_else(|poisoned| {
            let mut service = poisoned.into_inner();
            if let Some(broken) = service.take() {
                broken.end_panicked();
            }
            service
        })
    }

    /// One pass, which waits for `timeout` at most.
    pub(super) fn step(&self, timeout: Nanos) -> Result<(), ServeError> {
        let mut service = self.lock();
        let Some(running) = &mut *service else { return Err(self.ended()) };
        let until = running.clock().now() + timeout;
        let outcome = running.step(until);
        self.end_after(service, outcome)
    }

    /// A pass, unless meanwhile somebody else's brought what is waited for.
    pub(super) fn pass_for<T>(&self, mailbox: &Mailbox<T>) {
        let mut service = self.lock();
        let Some(running) = &mut *service else { return };
        if mailbox.has_next() {
            return;
        }
        let until = running.clock().now() + LONG;
        let outcome = running.step(until);
        // The error is in the mailbox, since the service has ended.
        let _ = self.end_after(service, outcome);
    }

    fn end_after(
        &self,
        mut service: MutexGuard<'_, Option<Service<CpuWorld>>>,
        outcome: Result<(), DriverError>,
    ) -> Result<(), ServeError> {
        if outcome.is_err() {
            *service = None;
        }
        Ok(outcome?)
    }

    pub(super) fn status(&self) -> Result<Status, ServeError> {
        self.inbox.wake();
        self.lock().as_ref().map(Service::status).ok_or_else(|| self.ended())
    }

    pub(super) fn end(&self) {
        self.inbox.ask_to_close();
        *self.lock() = None;
    }

    fn ended(&self) -> ServeError {
        ServeError::Ended(self.inbox.closed().unwrap_or(RequestError::ShutDown))
    }
}
