//! How long an iteration would take, by the forecast: what stands for the profiles and predictors that the
//! published systems measure or train.

use slicescheduler_gmg::job::JobSpec;
use slicescheduler_gmg::plan::{Forecast, Question, Rank};
use slicescheduler_gmg::units::Nanos;

use crate::baseline::candidates::Candidate;
use crate::placing::run_action;
use crate::policy::Context;

/// Nothing that starts later than this is forecast.
const HORIZON: Nanos = Nanos::secs(2);

/// When the iteration would end if it waited for all that its lane has to do; [`None`] if the budget is spent or
/// there is no forecast.
pub(super) fn finish(context: &mut Context<'_>, candidate: &Candidate, answer: &mut Forecast) -> Option<Nanos> {
    if !context.budget.take() {
        return None;
    }
    let spec = JobSpec::of(candidate.replica.model).bind(candidate.binding);
    let actions = [run_action(context.view, &candidate.replica, spec, Rank::GuestBestEffort)];
    let question = Question { actions: &actions, continuations: &mut [], horizon: context.now + HORIZON };
    context.what_if.what_if(context.now, question, answer).ok()?;
    answer.finish_of_action(0)
}

/// How long the iteration would take on a lane that is free.
pub(super) fn duration(context: &mut Context<'_>, candidate: &Candidate, answer: &mut Forecast) -> Option<Nanos> {
    Some(finish(context, candidate, answer)? - context.now)
}
