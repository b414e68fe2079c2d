//! Sequences that begin alike, told to the graph: what batching found in the pool of a device, its sequences share, and
//! what iterations have computed, others find.
//!
//! What must stay true: batching plans on the pool of the graph and on nothing else, and what it found is shared
//! before anything else happens to that pool; so both have equal tables. Blocks are published when the job that
//! computed them has ended, in front of the event that says so: who finds one may read it on any lane at once, and what
//! was recalled, cancelled or has failed is never found. A block that others hold or find is full and is not written
//! again, so none is ever copied.

use std::sync::Arc;

use slicescheduler_gmg::delta::Effect;
use slicescheduler_gmg::id::{ReplicaId, RequestId};
use slicescheduler_gmg::job::StoredState;
use slicescheduler_gmg::plan::{Event, World};
use slicescheduler_gmg::{GmgView, Intent};

use crate::driver::{Driver, DriverError};

impl<W: World> Driver<W> {
    /// The sequences that the latest iteration of `replica` admitted begin with the blocks that they found.
    pub(super) fn share_prefixes(&mut self, replica: ReplicaId) -> Result<(), DriverError> {
        let Some(batcher) = self.batching.get(replica.tenant.index()).filter(|batcher| batcher.shares_blocks()) else {
            return Ok(());
        };
        let Some(device) = batcher.replicas().get(replica.index as usize).map(|replica| replica.device) else {
            return Ok(());
        };
        let found = batcher.admitted(replica.index).filter(|&(_, found)| found > 0);
        let shares: Vec<(RequestId, Arc<[u64]>)> =
            found.map(|(sequence, found)| (sequence.request, sequence.block_hashes(0..found).into())).collect();
        for (request, hashes) in shares {
            let planned = hashes.len() as u32;
            let applied = self.gmg.apply(Intent::SharePrefix { request, device, hashes })?;
            self.follow(&applied)?;
            match applied.effect {
                Effect::Shared { blocks } if blocks == planned => {}
                _ => return Err(DriverError::Prefix { request, planned }),
            }
        }
        Ok(())
    }

    /// If `event` is the end of a job, the blocks that it has filled are found from now on.
    pub(super) fn publish_prefixes(&mut self, event: &Event) -> Result<(), DriverError> {
        let Event::Finished { job, ops, .. } = event else { return Ok(()) };
        let view = self.gmg.view();
        let Some(job) = view.job(*job) else { return Ok(()) };
        let key = job.spec.key;
        let Some(batcher) = self.batching.get(key.tenant as usize).filter(|batcher| batcher.shares_blocks()) else {
            return Ok(());
        };
        let end = job.op_count();
        let is_done = |range| job.segments.all(range, |segment| segment.state == StoredState::Done);
        // What the graph will not take for an end, because it was not on a lane, publishes nothing.
        let ran = |range| job.segments.all(range, |segment| segment.state.is_on_lane());
        let ends =
            ops.start < ops.end && ops.end <= end && ran(ops.clone()) && is_done(0..ops.start) && is_done(ops.end..end);
        let Some(device) = job.kv_on.filter(|&device| ends && !view.is_lost(device)) else { return Ok(()) };
        let Some((kv, state)) =
            view.memory(device).map(|memory| memory.kv()).zip(batcher.replicas().get(key.replica as usize))
        else {
            return Ok(());
        };
        let block_tokens = batcher.options().block_tokens.max(1);
        let (mut running, mut filled) = (state.running().iter(), Vec::new());
        for row in &job.spec.rows {
            let (first, full) = (row.position / block_tokens, (row.position + row.tokens) / block_tokens);
            // Rows are in the order of the running sequences, those that were preempted since left out.
            let mut rest = running.clone();
            let Some(sequence) = rest.find(|sequence| sequence.request == row.request) else { continue };
            running = rest;
            if full > first && kv.table(row.request).len() >= full as usize {
                filled.push((row.request, first, sequence.block_hashes(first..full).into()));
            }
        }
        for (request, first, hashes) in filled {
            self.apply(Intent::PublishBlocks { request, device, first, hashes })?;
        }
        Ok(())
    }
}
