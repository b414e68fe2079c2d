//! Where a lane's thread comes from.

use std::io;
use std::thread;

/// Gives threads. A host that owns its threads (their number, names, cores, priorities) implements
/// it; the executor starts none by other means.
///
/// # Contract
/// `spawn` returns after it has arranged that `body` runs once on a thread of its own, or an error.
/// The body runs as long as the lane lives, and must not be run inside a pool whose other work
/// waits for it. A body that is dropped without being run ends its lane.
///
/// ```
/// use slicescheduler_executor::lane::ThreadSpawner;
///
/// struct WithLargeStacks;
///
/// impl ThreadSpawner for WithLargeStacks {
///     fn spawn(&self, name: String, body: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
///         std::thread::Builder::new().name(name).stack_size(8 << 20).spawn(body).map(drop)
///     }
/// }
/// ```
pub trait ThreadSpawner: Send + Sync {
    /// Runs `body` on a thread of its own, called `name`.
    ///
    /// # Errors
    /// When there is no thread to be had.
    fn spawn(&self, name: String, body: Box<dyn FnOnce() + Send>) -> io::Result<()>;
}

/// Threads of the standard library.
#[derive(Clone, Copy, Debug, Default)]
pub struct StdThreads;

impl ThreadSpawner for StdThreads {
    fn spawn(&self, name: String, body: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        thread::Builder::new().name(name).spawn(body).map(drop)
    }
}
