//! Work that can stop in the middle.

use std::fmt;

/// Multiply-adds of a part at most, where one can be made so small: a tenth of a millisecond or two.
pub(super) const WORK: usize = 4 << 20;

/// Lets a kernel stop between two parts of its work, and go on there later.
///
/// What a part computes does not depend on which parts run in the same call, so neither do the bits of the result.
/// Until the last part has run the outputs are not to be used; whoever goes on gives the same operands, with
/// the outputs as they were left.
///
/// ```
/// use slicescheduler_executor::kernels::{Output, OwnedPanels, PANEL, Parts, matmul_in_parts};
///
/// // Three panels, and somebody wants the lane all the time: each call does one of them.
/// let (n, k) = (3 * PANEL, 8);
/// let weights = OwnedPanels::pack(&vec![0.5; n * k], n, k)?;
/// let mut y = vec![0.0; n];
/// let (mut first, mut calls) = (Some(0), 0);
/// while let Some(part) = first {
///     let mut parts = Parts::from(part, &|| true);
///     matmul_in_parts(&[1.0; 8], 1, weights.view(), Output::Overwrite, &mut y, &mut parts)?;
///     (first, calls) = (parts.left(), calls + 1);
/// }
/// assert_eq!((calls, y), (3, vec![4.0; n]));
/// # Ok::<(), slicescheduler_executor::ExecutorError>(())
/// ```
#[derive(Default)]
pub struct Parts<'a> {
    first: usize,
    wanted: Option<&'a dyn Fn() -> bool>,
    left: Option<usize>,
}

impl fmt::Debug for Parts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, wanted: _, left } = self;
        f.debug_struct("Parts").field("first", first).field("left", left).finish_non_exhaustive()
    }
}

impl<'a> Parts<'a> {
    /// All of the work, without a stop.
    pub const fn all() -> Self {
        Self { first: 0, wanted: None, left: None }
    }

    /// The work from part `first` on, to be stopped once `wanted` says so. It is asked between two parts, so that at
    /// least one is done.
    pub const fn from(first: usize, wanted: &'a dyn Fn() -> bool) -> Self {
        Self { first, wanted: Some(wanted), left: None }
    }

    /// The part with which to begin; those before it were done by an earlier call.
    pub const fn first(&self) -> usize {
        self.first
    }

    /// Whether to stop before `part`. A kernel that is told so returns, without an error.
    #[inline]
    pub fn stop_before(&mut self, part: usize) -> bool {
        if part > self.first && self.wanted.is_some_and(|wanted| wanted()) {
            self.left = Some(part);
        }
        self.left.is_some()
    }

    /// Does `step`, whose parts are those of the whole from `base` on, with its own numbers.
    pub(super) fn within<T>(&mut self, base: usize, step: impl FnOnce(&mut Self) -> T) -> T {
        let mut own = Self { first: self.first.saturating_sub(base), wanted: self.wanted, left: None };
        let result = step(&mut own);
        self.left = own.left.map(|part| base + part).or(self.left);
        result
    }

    /// The part before which the work was stopped; none if it was done.
    pub const fn left(&self) -> Option<usize> {
        self.left
    }
}
