//! Jobs that run one iteration together, one per rank.
//!
//! A sharded model runs as a *gang*: one job per rank, each on a device of its own, with the same
//! [`JobKey`]. The jobs are entered together
//! ([`Intent::SubmitGang`](crate::Intent::SubmitGang)), so a gang that exists is complete and its
//! collectives match; they are placed one by one, in the order of their ranks the first time. Within
//! the gang, [`Collective`]s say which ranks exchange what, and when.
//!
//! What holds for a gang as a whole:
//!
//! - It is done when all of its jobs are. Each may be removed as soon as it is done itself.
//! - It breaks when one of its jobs fails, is cancelled or is lost: what the others have not
//!   dispatched is cancelled, since its exchanges could never happen. What they have on a lane stays
//!   there until the world reports it; the world reports every launched operator, here as failed or
//!   recalled.
//! - A world recalls all ranks at the same operator, and drops or keeps the activations of all.
//! - All ranks have the same requests in their batches, or every request is in the batch of one rank.
//!   In the first case (tensor and pipeline parallelism) a KV sequence has a part on every rank's
//!   device: [`Request::device`](crate::request::Request) names the one of rank 0, and the parts are
//!   freed together. In the second (experts spread over ranks that each serve their own requests) a
//!   sequence lies on one device.

use std::sync::Arc;

use crate::graph::OpGraph;
use crate::id::{JobId, JobKey, RequestId};
use crate::job::JobSpec;
use crate::semantics::Collective;

/// A job's place in its gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Gang {
    /// The job's number, from 0.
    pub rank: u32,
    /// How many jobs there are.
    pub size: u32,
}

/// The jobs of a gang, as one of them sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members {
    pub(crate) jobs: Arc<[JobId]>,
    pub(crate) broken: bool,
    pub(crate) shared_batch: bool,
}

impl Members {
    /// All jobs of the gang, by rank; some may have been removed.
    pub fn jobs(&self) -> &[JobId] {
        &self.jobs
    }

    /// True if all ranks have the same requests in their batches.
    pub fn shares_batch(&self) -> bool {
        self.shared_batch
    }

    /// True if one of them will never be done.
    pub fn is_broken(&self) -> bool {
        self.broken
    }
}

/// Why jobs are not a gang.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GangError {
    /// Nobody is in it.
    #[error("a gang has no jobs: expected at least one")]
    Empty,
    /// A job of a gang, or with collectives, on its own.
    #[error("the job exchanges data with other ranks: submit the jobs of all ranks together, as a gang")]
    Alone,
    /// A job is in the wrong place.
    #[error("job {position} of the gang is {found:?}: expected rank {position} of {size}")]
    Rank {
        /// Its place.
        position: u32,
        /// What it says.
        found: Option<Gang>,
        /// How many jobs there are.
        size: u32,
    },
    /// The jobs are of different iterations.
    #[error("rank {rank} is {found:?}: expected {expected:?}, as rank 0 is")]
    Key {
        /// The rank.
        rank: u32,
        /// Its key.
        found: JobKey,
        /// The key of rank 0.
        expected: JobKey,
    },
    /// Some ranks share a request, others do not have it.
    #[error("{request} is in the batch of rank {rank} but not of all: expected it in one batch, or in all of them")]
    Batch {
        /// The request.
        request: RequestId,
        /// A rank that has it.
        rank: u32,
    },
    /// Groups do not divide the gang.
    #[error("rank {rank} has a collective among {ranks} ranks: expected a divisor of the {size} of the gang")]
    Group {
        /// The rank.
        rank: u32,
        /// Ranks of a group.
        ranks: u32,
        /// Ranks of the gang.
        size: u32,
    },
    /// A message from or to nobody.
    #[error("rank {rank} of {size} has a {collective:?}, at the other end of which there is no rank")]
    Peer {
        /// The rank.
        rank: u32,
        /// The collective.
        collective: Collective,
        /// Ranks of the gang.
        size: u32,
    },
    /// Two ranks disagree about what they exchange.
    #[error("exchange {index} of rank {rank} is {found:?}, but rank {peer} has {other:?} there")]
    Unmatched {
        /// The rank.
        rank: u32,
        /// Its peer.
        peer: u32,
        /// Which exchange between the two, from 0.
        index: usize,
        /// What the rank has.
        found: Option<Collective>,
        /// What the peer has.
        other: Option<Collective>,
    },
}

/// Checks that jobs with these templates are a gang. O(ranks), and O(collectives) for every pair of
/// ranks that exchange data and have different templates.
///
/// # Errors
/// The first thing that does not fit.
pub fn check(members: &[(&JobSpec, &Arc<OpGraph>)]) -> Result<(), GangError> {
    let Some(&(first, _)) = members.first() else { return Err(GangError::Empty) };
    let size = members.len() as u32;
    for (rank, &(spec, template)) in (0u32..).zip(members) {
        if spec.gang != Some(Gang { rank, size }) {
            return Err(GangError::Rank { position: rank, found: spec.gang, size });
        }
        if spec.key != first.key {
            return Err(GangError::Key { rank, found: spec.key, expected: first.key });
        }
        check_exchanges(rank, template, members)?;
    }
    let requests = || members.iter().map(|(spec, _)| sorted_requests(spec));
    if !shares_batch(members.iter().map(|(spec, _)| *spec)) {
        let mut all: Vec<_> =
            (0u32..).zip(requests()).flat_map(|(rank, of)| of.into_iter().map(move |id| (id, rank))).collect();
        all.sort_unstable();
        let twice = all.windows(2).find(|pair| pair[0].0 == pair[1].0);
        return twice.map_or(Ok(()), |pair| Err(GangError::Batch { request: pair[0].0, rank: pair[0].1 }));
    }
    let first = sorted_requests(first);
    for (rank, own) in (0u32..).zip(requests()) {
        let odd = |one: &[RequestId], other: &[RequestId]| one.iter().copied().find(|id| !other.contains(id));
        if let Some(request) = odd(&own, &first) {
            return Err(GangError::Batch { request, rank });
        }
        if let Some(request) = odd(&first, &own) {
            return Err(GangError::Batch { request, rank: 0 });
        }
    }
    Ok(())
}

/// True if the second rank has a request of the first: then all of them must have the same.
pub(crate) fn shares_batch<'s>(mut specs: impl Iterator<Item = &'s JobSpec>) -> bool {
    let (Some(first), Some(second)) = (specs.next(), specs.next()) else { return false };
    first.requests().any(|request| second.requests().any(|other| other == request))
}

fn sorted_requests(spec: &JobSpec) -> Vec<RequestId> {
    let mut requests: Vec<_> = spec.requests().collect();
    requests.sort_unstable();
    requests.dedup();
    requests
}

fn check_exchanges(rank: u32, own: &Arc<OpGraph>, members: &[(&JobSpec, &Arc<OpGraph>)]) -> Result<(), GangError> {
    let size = members.len() as u32;
    // A collective is compared at its first occurrence, for all of its kind.
    let mut seen: Vec<(bool, u32)> = Vec::new();
    for collective in own.collectives() {
        let (kind, peer) = match (collective, collective.group(rank)) {
            (Collective::Send { distance }, _) => ((true, distance), collective.peer(rank)),
            (Collective::Receive { .. }, _) if collective.peer(rank).is_some() => continue,
            (_, Some(group)) if size.is_multiple_of(collective.ranks()) => {
                ((false, collective.ranks()), Some(group.start))
            }
            (_, Some(_)) => return Err(GangError::Group { rank, ranks: collective.ranks(), size }),
            (_, None) => return Err(GangError::Peer { rank, collective, size }),
        };
        if seen.contains(&kind) {
            continue;
        }
        seen.push(kind);
        let Some((peer, &(_, other))) = peer.and_then(|peer| Some((peer, members.get(peer as usize)?))) else {
            return Err(GangError::Peer { rank, collective, size });
        };
        let in_kind = |of: Collective| match of {
            Collective::Send { distance } | Collective::Receive { distance } => kind == (true, distance),
            _ => kind == (false, of.ranks()),
        };
        if kind.0 {
            let sends = own.collectives().filter(|of| matches!(of, Collective::Send { .. }) && in_kind(*of));
            let receives = other.collectives().filter(|of| matches!(of, Collective::Receive { .. }) && in_kind(*of));
            compare((rank, peer), sends, receives)?;
        } else if !Arc::ptr_eq(own, other) {
            let [mine, theirs] = [own, other].map(|graph| graph.collectives().filter(|of| in_kind(*of)));
            compare((rank, peer), mine, theirs)?;
        }
    }
    // A receive that nobody sends to is found from its own side.
    for collective in own.collectives().filter(|of| matches!(of, Collective::Receive { .. })) {
        let peer = collective.peer(rank).unwrap_or_default();
        let Some(&(_, other)) = members.get(peer as usize) else {
            return Err(GangError::Peer { rank, collective, size });
        };
        if !other.collectives().any(|of| of.matches(collective)) {
            return Err(GangError::Unmatched { rank, peer, index: 0, found: Some(collective), other: None });
        }
    }
    Ok(())
}

fn compare(
    (rank, peer): (u32, u32),
    mut mine: impl Iterator<Item = Collective>,
    mut theirs: impl Iterator<Item = Collective>,
) -> Result<(), GangError> {
    for index in 0.. {
        let (found, other) = (mine.next(), theirs.next());
        match (found, other) {
            (None, None) => break,
            (Some(one), Some(two)) if one.matches(two) => {}
            _ => return Err(GangError::Unmatched { rank, peer, index, found, other }),
        }
    }
    Ok(())
}
