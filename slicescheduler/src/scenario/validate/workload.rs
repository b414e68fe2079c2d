//! Where a tenant's requests come from: exactly one source, and no key that belongs to another.

use std::ops::Range;
use std::path::{Path, PathBuf};

use slicescheduler_gmg::tenant::Class;
use slicescheduler_gmg::units::Nanos;
use toml::Spanned;

use super::{Checked, Validator};
use crate::scenario::files::candidates;
use crate::scenario::raw::{Factor, RawWorkload};
use crate::scenario::{ScenarioError, Workload};
use crate::workload::{ClientFile, Lengths, MAX_TOKENS, Shift, TraceFile};

/// Requests of a backlog that wait at a time.
const MOST_REQUESTS: u32 = 1 << 16;
/// Where requests may come from.
const ONE_SOURCE: &str = "one of trace, clients, generator and backlog";

impl Validator<'_> {
    pub(super) fn workload(
        &self,
        key: &str,
        class: Class,
        raw: &Spanned<RawWorkload>,
        duration: Nanos,
    ) -> Checked<Workload> {
        let workload = raw.get_ref();
        let factor = |factor: Option<Factor>| factor.map_or(1.0, |factor| factor.0);
        let rate_scale = workload.rate_scale.as_ref().map_or(1.0, |scale| scale.get_ref().0);
        let seed = workload.seed.as_ref().map(|seed| *seed.get_ref());
        let longest = |name: &str, value: &Option<Spanned<u32>>| match value {
            None => Ok(MAX_TOKENS),
            Some(value) => self.at_least_one(&format!("{key}.{name}"), value),
        };
        let lengths = Lengths {
            prompt_scale: factor(workload.prompt_scale),
            output_scale: factor(workload.output_scale),
            max_prompt: longest("max_prompt", &workload.max_prompt)?,
            max_output: longest("max_output", &workload.max_output)?,
            drift: self.drift(key, duration, workload.drift.as_ref())?,
        };
        let foreign = |kind: &str, keys: &[(&str, Option<Range<usize>>)]| match keys
            .iter()
            .find_map(|(name, span)| span.clone().map(|span| (name, span)))
        {
            Some((name, span)) => Err(self.error(span, &format!("{key}.{name}"), "set", format!("none beside {kind}"))),
            None => Ok(()),
        };
        let of_clients = [
            ("client", span(&workload.client)),
            ("like", span(&workload.like)),
            ("window_time", span(&workload.window_time)),
        ];
        if let Some(clients) = &workload.clients {
            let others = [span(&workload.trace), span(&workload.generator), span(&workload.backlog)];
            if others.iter().any(Option::is_some) {
                return Err(self.error(raw.span(), key, "more than one", ONE_SOURCE));
            }
            foreign("clients", &[("window", span(&workload.window)), ("format", span(&workload.format))])?;
            return self.client(key, raw, clients, lengths);
        }
        foreign("another source than clients", &of_clients)?;
        match (&workload.trace, &workload.generator, &workload.backlog) {
            (Some(trace), None, None) => {
                foreign("trace", &[("window", span(&workload.window)), ("seed", span(&workload.seed))])?;
                let shift = workload.shift.as_ref().map_or(Shift::NONE, |shift| shift.get_ref().0);
                match (self.trace(key, trace, workload), &workload.stand_in, self.stand_ins) {
                    (Err(ScenarioError::MissingTrace { .. }), Some(stand_in), Some(noted)) => {
                        noted.borrow_mut().push(trace.get_ref().clone());
                        let seed = Some(shift_seed(shift));
                        Ok(Workload::Generated { preset: stand_in.get_ref().0, rate_scale, seed, lengths })
                    }
                    (file, _, _) => Ok(Workload::Trace { file: file?, shift, rate_scale, lengths }),
                }
            }
            (None, Some(generator), None) => {
                foreign(
                    "generator",
                    &[
                        ("window", span(&workload.window)),
                        ("format", span(&workload.format)),
                        ("shift", span(&workload.shift)),
                        ("stand_in", span(&workload.stand_in)),
                    ],
                )?;
                Ok(Workload::Generated { preset: generator.get_ref().0, rate_scale, seed, lengths })
            }
            (None, None, Some(backlog)) => {
                foreign(
                    "backlog",
                    &[
                        ("format", span(&workload.format)),
                        ("shift", span(&workload.shift)),
                        ("stand_in", span(&workload.stand_in)),
                        ("rate_scale", span(&workload.rate_scale)),
                        ("drift", span(&workload.drift)),
                    ],
                )?;
                if class == Class::LatencySensitive {
                    let expected = "a trace or a generator for a latency-sensitive tenant";
                    return Err(self.error(backlog.span(), key, "a backlog", expected));
                }
                let window = match &workload.window {
                    None => 64,
                    Some(window) => match *window.get_ref() {
                        1..=MOST_REQUESTS => *window.get_ref(),
                        number => {
                            let expected = format!("a whole number from 1 to {MOST_REQUESTS}");
                            return Err(self.error(window.span(), &format!("{key}.window"), number, expected));
                        }
                    },
                };
                Ok(Workload::Backlog { preset: backlog.get_ref().0, window, seed, lengths })
            }
            (None, None, None) => Err(self.error(raw.span(), key, "none", ONE_SOURCE)),
            _ => Err(self.error(raw.span(), key, "more than one", ONE_SOURCE)),
        }
    }

    fn client(
        &self,
        key: &str,
        raw: &Spanned<RawWorkload>,
        clients: &Spanned<String>,
        lengths: Lengths,
    ) -> Checked<Workload> {
        let workload = raw.get_ref();
        let missing =
            |name: &str, expected: &str| self.error(raw.span(), &format!("{key}.{name}"), "missing", expected);
        let client = workload.client.as_ref().ok_or_else(|| missing("client", "the number of a client"))?;
        let like = workload.like.as_ref().ok_or_else(|| missing("like", "azure-code, azure-conv or mooncake"))?;
        let window = match &workload.window_time {
            None => Nanos::secs(600),
            Some(window) => self.positive(&format!("{key}.window_time"), window)?,
        };
        let shift = workload.shift.as_ref().map_or(Shift::NONE, |shift| shift.get_ref().0);
        let rate_scale = workload.rate_scale.as_ref().map_or(1.0, |scale| scale.get_ref().0);
        let seed = workload.seed.as_ref().map(|seed| *seed.get_ref());
        match (self.find(key, "clients", clients), &workload.stand_in, self.stand_ins) {
            (Err(ScenarioError::MissingTrace { .. }), Some(stand_in), Some(noted)) => {
                noted.borrow_mut().push(clients.get_ref().clone());
                // Of equal clients, those with another shift have other requests.
                let own = seed.unwrap_or_else(|| u64::from(*client.get_ref()));
                let shifted = (shift_seed(shift) != 0).then(|| own.wrapping_add(shift_seed(shift)));
                let seed = shifted.or(seed);
                Ok(Workload::Generated { preset: stand_in.get_ref().0, rate_scale, seed, lengths })
            }
            (path, _, _) => Ok(Workload::Client {
                file: ClientFile { path: path?, client: *client.get_ref() },
                preset: like.get_ref().0,
                shift,
                window,
                rate_scale,
                seed,
                lengths,
            }),
        }
    }

    fn trace(&self, key: &str, trace: &Spanned<String>, workload: &RawWorkload) -> Checked<TraceFile> {
        let Some(format) = &workload.format else {
            return Err(self.error(trace.span(), &format!("{key}.format"), "missing", "azure or mooncake"));
        };
        Ok(TraceFile { path: self.find(key, "trace", trace)?, format: format.get_ref().0 })
    }

    /// The file that a workload names under `what`.
    fn find(&self, key: &str, what: &str, file: &Spanned<String>) -> Checked<PathBuf> {
        let named = Path::new(file.get_ref());
        let mut tried = candidates(named, self.file, self.data_dir);
        match tried.iter().position(|path| path.is_file()) {
            Some(found) => Ok(tried.swap_remove(found)),
            None => Err(ScenarioError::MissingTrace {
                at: self.location(file.span()),
                key: format!("{key}.{what}"),
                trace: named.into(),
                tried,
            }),
        }
    }
}

/// The seed of a generator in place of a trace: equal for equal shifts.
fn shift_seed(shift: Shift) -> u64 {
    match shift {
        Shift::Span(span) => span.get(),
        Shift::Fraction(share) => (share * 1e6) as u64,
    }
}

fn span<T>(value: &Option<Spanned<T>>) -> Option<Range<usize>> {
    value.as_ref().map(Spanned::span)
}
