//! A transport that works on a thread of the host, as its owner sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam::channel::{Receiver, Sender, TrySendError, bounded};

use super::{Refusal, Refused, Transfer};
use crate::error::{ExecutorError, Result};
use crate::lane::ThreadSpawner;

/// The owner's side. Dropping it ends the work and waits for that.
#[derive(Debug)]
pub(super) struct Handle {
    queue: Option<Sender<Transfer>>,
    ended: Arc<AtomicBool>,
    exited: Receiver<()>,
}

/// The thread's side.
#[derive(Debug)]
pub(super) struct Orders {
    pub(super) transfers: Receiver<Transfer>,
    ended: Arc<AtomicBool>,
    /// Held for its drop, which the handle waits for; whoever holds the orders drops them last.
    _alive: Sender<()>,
}

impl Orders {
    /// True once the owner wants the work to end.
    pub(super) fn ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

impl Handle {
    /// Runs `work` on a thread called `name`, behind a queue of `length`.
    pub(super) fn start(
        threads: &dyn ThreadSpawner,
        name: &str,
        length: usize,
        work: impl FnOnce(Orders) + Send + 'static,
    ) -> Result<Self> {
        let (queue, transfers) = bounded(length.max(1));
        let (alive, exited) = bounded::<()>(0);
        let ended = Arc::new(AtomicBool::new(false));
        let orders = Orders { transfers, ended: ended.clone(), _alive: alive };
        match threads.spawn(name.to_owned(), Box::new(move || work(orders))) {
            Ok(()) => Ok(Self { queue: Some(queue), ended, exited }),
            Err(source) => Err(ExecutorError::Spawn { name: name.to_owned(), source }),
        }
    }

    pub(super) fn submit(&self, transfer: Transfer) -> Result<(), Box<Refused>> {
        let Some(queue) = &self.queue else {
            return Err(Box::new(Refused { transfer, reason: Refusal::Ended }));
        };
        queue.try_send(transfer).map_err(|refused| {
            Box::new(match refused {
                TrySendError::Full(transfer) => Refused { transfer, reason: Refusal::Full },
                TrySendError::Disconnected(transfer) => Refused { transfer, reason: Refusal::Ended },
            })
        })
    }

    /// Asks the work to end, without waiting.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.end();
        self.queue = None;
        // Nothing is ever sent: this returns when the thread drops its end.
        let _ = self.exited.recv();
    }
}
