//! What more cores are worth here and now.

use std::thread;

use slicescheduler_executor::Result;
use slicescheduler_executor::kernels::{Output, OwnedPanels, matmul};
use slicescheduler_gmg::plan::Clock;
use slicescheduler_gmg::units::Nanos;

/// Rows, columns and depth of the product: what a core keeps in its own caches.
const SIZE: usize = 192;
/// Products of a round, about 10 ms.
const PRODUCTS: usize = 64;
/// Rounds of one thread and of all, in turn.
const ROUNDS: usize = 5;

/// How many times the arithmetic of one thread `threads` threads do together: `threads` on cores of their own that
/// nothing else uses, 1 on a single core. Takes about 0.2 s and starts the threads itself. The best of five rounds
/// each counts, since other programs only ever make one longer.
///
/// Lanes are threads, so ratios between ways to use them mean little where this is far below their number.
///
/// # Errors
/// When the kernel is broken.
pub fn core_scaling(clock: &dyn Clock, threads: usize) -> Result<f64> {
    let values: Vec<f32> = (0..SIZE * SIZE).map(|at| (at % 13) as f32 - 6.0).collect();
    let weights = OwnedPanels::pack(&values, SIZE, SIZE)?;
    let products = || -> Result<()> {
        let mut y = vec![0.0; SIZE * SIZE];
        (0..PRODUCTS).try_for_each(|_| matmul(&values, SIZE, weights.view(), Output::Overwrite, &mut y))
    };
    let round = |threads: usize| -> Result<Nanos> {
        let begun = clock.now();
        thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(products)).collect();
            let own = products();
            others.into_iter().fold(own, |all, other| all.and(other.join().unwrap_or(Ok(()))))
        })?;
        Ok(clock.now() - begun)
    };
    let (mut one, mut all) = (Nanos::MAX, Nanos::MAX);
    for _ in 0..ROUNDS {
        one = one.min(round(1)?);
        all = all.min(round(threads.max(1))?);
    }
    Ok(threads.max(1) as f64 * one.as_secs_f64() / all.max(Nanos(1)).as_secs_f64())
}
