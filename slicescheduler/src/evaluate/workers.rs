//! Independent work on several threads, with results in the order of the work.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Does `work` for every item, on at most `threads` threads that end before this returns. After the
/// first error no further item is begun; that error, the earliest in the order of the items, is
/// returned.
///
/// # Errors
/// The error of `work`.
pub(super) fn for_each<T, R, E>(
    threads: usize,
    items: &[T],
    work: impl Fn(&T) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E>
where
    T: Sync,
    R: Send,
    E: Send,
{
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<Result<R, E>>>> = items.iter().map(|_| Mutex::new(None)).collect();
    let one = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some((item, place)) = items.get(index).zip(results.get(index)) else { return };
            let result = work(item);
            if result.is_err() {
                next.store(items.len(), Ordering::Relaxed);
            }
            *place.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(result);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(items.len()) {
            scope.spawn(one);
        }
        one();
    });
    let place = |place: Mutex<_>| place.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    results.into_iter().filter_map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_items() {
        let items: Vec<u32> = (0..100).collect();
        let squares = for_each::<_, _, ()>(3, &items, |item| Ok(item * item)).unwrap();
        assert_eq!(squares, items.iter().map(|item| item * item).collect::<Vec<_>>());
        assert!(for_each::<u32, u32, ()>(8, &[], |item| Ok(*item)).unwrap().is_empty());
    }

    #[test]
    fn the_first_error_is_told_and_ends_the_work() {
        let begun = AtomicUsize::new(0);
        let items: Vec<u32> = (0..1000).collect();
        let result = for_each(1, &items, |item| {
            begun.fetch_add(1, Ordering::Relaxed);
            if *item == 3 { Err(*item) } else { Ok(()) }
        });
        assert_eq!((result, begun.into_inner()), (Err(3), 4));
    }
}
