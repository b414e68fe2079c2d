//! Which requests are taken in: one rule, the same under every policy.

use slicescheduler_gmg::tenant::Slo;
use slicescheduler_gmg::units::Nanos;

use crate::demand::Waiting;

/// When a request is refused on arrival. The default refuses nobody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// Requests of a tenant that may wait.
    pub most_waiting: Option<usize>,
    /// How far the oldest waiting request of a tenant with due times may be behind, in times to first token:
    /// whoever comes behind such a queue would be late too.
    pub most_ttfts_behind: Option<u64>,
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Too many wait.
    #[error("{waiting} requests of its tenant wait, {most} may")]
    QueueFull {
        /// How many do.
        waiting: usize,
        /// How many may.
        most: usize,
    },
    /// Those that wait are late.
    #[error("the oldest waiting request of its tenant is {behind} late, {most} is accepted")]
    Behind {
        /// By how much.
        behind: Nanos,
        /// What is accepted.
        most: Nanos,
    },
}

impl Admission {
    /// Decides about a request of a tenant of which `waiting` waits at `now`.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn check(&self, now: Nanos, slo: Option<Slo>, waiting: Option<Waiting>) -> Result<(), Refusal> {
        let Some(queue) = waiting else { return Ok(()) };
        if let Some(most) = self.most_waiting.filter(|&most| queue.requests >= most) {
            return Err(Refusal::QueueFull { waiting: queue.requests, most });
        }
        if let Some((times, slo)) = self.most_ttfts_behind.zip(slo) {
            let (behind, most) = (now - queue.first_due, slo.ttft.times(times));
            if behind > most {
                return Err(Refusal::Behind { behind, most });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_refused_behind_a_full_or_a_late_queue() {
        let slo = Slo { ttft: Nanos::ms(100), tpot: Nanos::ms(10) };
        let (due, tokens) = (Nanos::secs(1), 100);
        let queue = |requests| Some(Waiting { requests, tokens, first_due: due, last_due: due });
        let rule = Admission { most_waiting: Some(3), most_ttfts_behind: Some(2) };
        let at = Nanos::ms(1200);
        assert_eq!(rule.check(at, Some(slo), None), Ok(()), "nobody waits");
        assert_eq!(rule.check(at, Some(slo), queue(2)), Ok(()), "200 ms late are accepted");
        assert_eq!(rule.check(at, Some(slo), queue(3)), Err(Refusal::QueueFull { waiting: 3, most: 3 }));
        let late = Refusal::Behind { behind: Nanos::ms(300), most: Nanos::ms(200) };
        assert_eq!(rule.check(Nanos::ms(1300), Some(slo), queue(1)), Err(late));
        assert_eq!(rule.check(Nanos::ms(1300), None, queue(1)), Ok(()), "nothing of it is ever late");
        assert_eq!(Admission::default().check(Nanos::secs(99), Some(slo), queue(9999)), Ok(()));
    }
}
