//! From the description of a tenant's requests to the requests.

use slicescheduler_gmg::units::Nanos;

use super::{Scenario, Workload};
use crate::workload::rng::Seed;
use crate::workload::transform::Transform;
use crate::workload::{ArrivalStream, Backlog, Client, ClientOptions, Generator, Lengths, Shift, WorkloadError};

/// The requests of one tenant.
pub enum Source {
    /// They arrive at their time; the stream ends with the scenario's duration or the trace.
    Arrivals(ArrivalStream),
    /// They are all there from the start.
    Backlog {
        /// Prompt and output lengths in the order of service; does not end.
        requests: BacklogRequests,
        /// How many of the oldest unfinished requests may be run at a time.
        window: u32,
    },
}

/// The requests of a backlog: pairs of prompt and output length.
#[derive(Clone, Debug)]
pub struct BacklogRequests {
    requests: Backlog,
    lengths: Lengths,
}

impl Iterator for BacklogRequests {
    type Item = (u32, u32);

    fn next(&mut self) -> Option<(u32, u32)> {
        self.requests.next().map(|(prompt, output)| self.lengths.apply(prompt, output))
    }
}

/// Requests of which the median is taken.
const SAMPLE: usize = 1024;

impl Scenario {
    /// The median prompt and the median answer of the tenant at `index`, in tokens: of its first 1,024 requests with
    /// the seed 0, before any drift, however long the scenario lasts. So it is a property of the workload, as a
    /// promise is; of a recorded trace, a run that begins there brings the same requests. [`None`] without such a tenant or request.
    ///
    /// # Errors
    /// Those of [`requests`](Self::requests).
    pub fn median_lengths(&self, index: usize) -> Result<Option<(u32, u32)>, WorkloadError> {
        let mut scenario = Self { seed: 0, duration: Nanos::MAX, ..self.clone() };
        if let Some(tenant) = scenario.tenants.get_mut(index) {
            tenant.workload.lengths_mut().drift = None;
        }
        let (mut prompts, mut answers): (Vec<u32>, Vec<u32>) = match scenario.requests(index)? {
            None => return Ok(None),
            Some(Source::Arrivals(stream)) => {
                let lengths = stream.take(SAMPLE).map(|record| record.map(|record| (record.prompt, record.output)));
                lengths.collect::<Result<_, _>>()?
            }
            Some(Source::Backlog { requests, .. }) => requests.take(SAMPLE).unzip(),
        };
        let median = |lengths: &mut [u32]| {
            lengths.sort_unstable();
            lengths.get(lengths.len().saturating_sub(1) / 2).copied()
        };
        Ok(median(&mut prompts).zip(median(&mut answers)))
    }

    /// The requests of the tenant at `index`, or [`None`] if there is no such tenant. They depend on
    /// the scenario alone, so that every policy sees the same ones.
    ///
    /// The seed of the scenario shifts every trace by the same share of its length
    /// ([`Shift::seeded`]), and starts every generator anew.
    ///
    /// # Errors
    /// What [`TraceFile::shifted`](crate::workload::TraceFile::shifted) gives.
    pub fn requests(&self, index: usize) -> Result<Option<Source>, WorkloadError> {
        let Some(tenant) = self.tenants.get(index) else {
            return Ok(None);
        };
        let transform = |rate_scale: f64, lengths: Lengths| Transform {
            rate_scale: rate_scale * self.rate_scale,
            lengths,
            until: self.duration,
        };
        let seed = |own: &Option<u64>| Seed(self.seed).derive(own.unwrap_or(index as u64)).0;
        Ok(Some(match &tenant.workload {
            Workload::Trace { file, shift, rate_scale, lengths } => {
                let records = file.shifted(&[*shift, Shift::seeded(self.seed)])?;
                Source::Arrivals(Box::new(transform(*rate_scale, *lengths).apply(records)))
            }
            Workload::Generated { preset, rate_scale, seed: own, lengths } => {
                let records = Generator::new(*preset, seed(own)).map(Ok);
                Source::Arrivals(Box::new(transform(*rate_scale, *lengths).apply(records)))
            }
            Workload::Client { file, preset, shift, window, rate_scale, seed: own, lengths } => {
                let windows = file.windows()?;
                let length = window.times(windows.len() as u64);
                let start = [*shift, Shift::seeded(self.seed)].map(|shift| shift.share_of(length)).iter().sum::<f64>();
                let options = ClientOptions {
                    start: start - libm::floor(start),
                    window: *window,
                    rate_scale: *rate_scale,
                    lengths: *preset,
                };
                let records = Client::new(windows, options, seed(own)).map(Ok);
                Source::Arrivals(Box::new(transform(1.0, *lengths).apply(records)))
            }
            Workload::Backlog { preset, window, seed: own, lengths } => Source::Backlog {
                requests: BacklogRequests { requests: Backlog::new(*preset, seed(own)), lengths: *lengths },
                window: *window,
            },
        }))
    }
}
