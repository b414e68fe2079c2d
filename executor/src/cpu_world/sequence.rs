//! The tokens of requests, and the rows of a batch of them.

use std::collections::HashMap;
use std::sync::Arc;

use slicescheduler_gmg::id::{DeviceId, RequestId};
use slicescheduler_gmg::job::JobSpec;
use slicescheduler_gmg::memory::KvPool;
use slicescheduler_gmg::plan::Ended;
use slicescheduler_gmg::shape::{SEQUENCES, Symbol, TOKENS};

use super::kept_kv::{Blocks, Keeping, KeptKv};
use crate::error::{ExecutorError, Result};
use crate::kernels::Sampling;
use crate::registry::Batch;

/// The tokens of one request: its prompt, then what was produced.
#[derive(Clone, Debug)]
struct Sequence {
    tokens: Vec<u32>,
    prompt: usize,
    max_output: u32,
    eos: Option<u32>,
    sampling: Sampling,
    embedding: Option<Arc<[f32]>>,
    /// The copy of its keys and values.
    kept: Option<KeptKv>,
    /// Its blocks do not hold what its next row builds on; the copy does.
    restore: bool,
}

/// The tokens of all requests that were entered and not forgotten.
#[derive(Debug, Default)]
pub(super) struct Sequences(HashMap<RequestId, Sequence>);

impl Sequences {
    pub(super) fn enter(
        &mut self,
        request: RequestId,
        prompt: &[u32],
        max_output: u32,
        eos: Option<u32>,
    ) -> Result<()> {
        if prompt.is_empty() || max_output == 0 {
            return Err(ExecutorError::EmptyRequest { request, prompt: prompt.len(), max_output });
        }
        let (tokens, sampling) = (prompt.to_vec(), Sampling::GREEDY);
        let (prompt, embedding, kept, restore) = (prompt.len(), None, None, false);
        let sequence = Sequence { tokens, prompt, max_output, eos, sampling, embedding, kept, restore };
        self.0.insert(request, sequence);
        Ok(())
    }

    pub(super) fn choose(&mut self, request: RequestId, sampling: Sampling) -> Result<()> {
        let sequence = self.0.get_mut(&request).ok_or(ExecutorError::UnknownRequest(request))?;
        sequence.sampling = sampling;
        Ok(())
    }

    /// The most tokens that a sequence may get.
    pub(super) fn longest(&self, request: RequestId) -> Option<u32> {
        let sequence = self.0.get(&request)?;
        Some(u32::try_from(sequence.prompt).unwrap_or(u32::MAX).saturating_add(sequence.max_output))
    }

    pub(super) fn keep(&mut self, request: RequestId, kept: KeptKv) -> Result<()> {
        let sequence = self.0.get_mut(&request).ok_or(ExecutorError::UnknownRequest(request))?;
        sequence.kept = Some(kept);
        Ok(())
    }

    pub(super) fn kept(&self, request: RequestId) -> Option<&KeptKv> {
        self.0.get(&request)?.kept.as_ref()
    }

    /// Sets whether the next row of a request builds on its copy; none if it has none.
    pub(super) fn restore(&mut self, request: RequestId, restore: bool) -> Option<()> {
        let sequence = self.0.get_mut(&request).filter(|sequence| sequence.kept.is_some())?;
        sequence.restore = restore;
        Some(())
    }

    /// What a job on `device` does with the copies of its sequences, whose blocks are those of `batch`.
    pub(super) fn keepings(
        &self,
        spec: &JobSpec,
        batch: &Batch,
        device: DeviceId,
        blocks: Blocks,
    ) -> Result<Vec<Keeping>> {
        let mut keepings = Vec::new();
        for (row, own) in spec.rows.iter().zip(batch.table_starts.windows(2)) {
            let Some(sequence) = self.0.get(&row.request) else { continue };
            let Some(kept) = &sequence.kept else { continue };
            let (request, position) = (row.request, row.position);
            if !kept.is_of(blocks) {
                if sequence.restore {
                    return Err(ExecutorError::OtherBlocks { request, device });
                }
                continue;
            }
            let restore = if sequence.restore { position.div_ceil(blocks.tokens().max(1)) } else { 0 };
            if sequence.restore && position > kept.tokens() {
                return Err(ExecutorError::NotKept { request, position, kept: kept.tokens() });
            }
            let own = own[0] as usize..own[1] as usize;
            let end = position.saturating_add(row.tokens);
            let restores = sequence.restore;
            keepings.push(Keeping { request, kept: kept.clone(), own, end, restores, restore });
        }
        Ok(keepings)
    }

    pub(super) fn produced(&self, request: RequestId) -> &[u32] {
        self.0.get(&request).map_or(&[], |sequence| &sequence.tokens[sequence.prompt..])
    }

    pub(super) fn forget(&mut self, request: RequestId) {
        self.0.remove(&request);
    }

    /// Adds an output token; says so if it was the request's last. A request that was forgotten
    /// takes none.
    pub(super) fn produce(&mut self, request: RequestId, token: u32) -> Option<Ended> {
        let sequence = self.0.get_mut(&request)?;
        sequence.tokens.push(token);
        let produced = (sequence.tokens.len() - sequence.prompt) as u32;
        let last = produced == sequence.max_output || sequence.eos == Some(token);
        last.then_some(Ended { request, produced })
    }

    /// Keeps the vector of a request, which ends with it. A request that was forgotten takes none.
    pub(super) fn embed(&mut self, request: RequestId, vector: Arc<[f32]>) -> Option<Ended> {
        self.0.get_mut(&request)?.embedding = Some(vector);
        Some(Ended { request, produced: 1 })
    }

    pub(super) fn embedding(&self, request: RequestId) -> Option<Arc<[f32]>> {
        self.0.get(&request)?.embedding.clone()
    }

    /// The batch of a job, over the block tables of `kv`. With `whole`, each row has to be a sequence
    /// from its first token to its last.
    pub(super) fn batch(&self, spec: &JobSpec, kv: &KvPool, whole: bool) -> Result<Batch> {
        let mut batch = Batch { table_starts: vec![0], ..Batch::default() };
        let mut own = Vec::new();
        for (index, row) in spec.rows.iter().enumerate() {
            let request = row.request;
            let sequence = self.0.get(&request).ok_or(ExecutorError::UnknownRequest(request))?;
            let (start, end) = (u64::from(row.position), u64::from(row.position) + u64::from(row.tokens));
            let known = sequence.tokens.len();
            let mismatch = ExecutorError::Row { request, end, emits: row.emits, known };
            if row.emits && (end != known as u64 || row.tokens == 0) {
                return Err(mismatch);
            }
            if whole && (row.position > 0 || !row.emits) {
                return Err(ExecutorError::NotWhole { request, start, end, known });
            }
            batch.first_rows.push(batch.tokens.len() as u32);
            batch.lengths.push(row.tokens);
            let tokens = sequence.tokens.get(start as usize..end as usize).ok_or(mismatch)?;
            batch.tokens.extend_from_slice(tokens);
            batch.positions.extend((start..end).map(|position| position as u32));
            batch.sequences.resize(batch.tokens.len(), index as u32);
            if row.emits {
                batch.logit_rows.push(batch.tokens.len() as u32 - 1);
                batch.choices.push((sequence.sampling, end as u32));
            }
            own.extend_from_slice(kv.table(request));
            batch.table_starts.push(own.len() as u32);
        }
        batch.blocks = (0..own.len() as u32).collect();
        batch.own = own.into();
        check_dim(spec, TOKENS, batch.tokens.len())?;
        check_dim(spec, SEQUENCES, batch.logit_rows.len())?;
        Ok(batch)
    }
}

fn check_dim(spec: &JobSpec, symbol: Symbol, rows: usize) -> Result<()> {
    let (bound, rows) = (spec.binding.value(symbol), rows as u64);
    if bound == rows {
        return Ok(());
    }
    let symbol = if symbol == TOKENS { "tokens" } else { "sequences" };
    Err(ExecutorError::BatchDims { symbol, bound, rows })
}

#[cfg(test)]
mod tests {
    use slicescheduler_gmg::id::{ModelId, TenantId};
    use slicescheduler_gmg::job::Row;
    use slicescheduler_gmg::shape::Binding;

    use super::*;

    fn row(request: u64, position: u32, tokens: u32, emits: bool) -> Row {
        Row { request: RequestId(request), position, tokens, emits }
    }

    fn spec(rows: Vec<Row>) -> JobSpec {
        let mut binding = Binding::new();
        for row in &rows {
            binding.add_chunk(u64::from(row.tokens), u64::from(row.position), row.emits);
        }
        JobSpec { rows, ..JobSpec::of(ModelId(0)).bind(binding) }
    }

    fn entered() -> (Sequences, KvPool) {
        let mut sequences = Sequences::default();
        sequences.enter(RequestId(3), &[10, 11, 12, 13, 14], 4, None).unwrap();
        sequences.enter(RequestId(5), &[20, 21], 3, Some(99)).unwrap();
        sequences.produce(RequestId(5), 22);
        let mut kv = KvPool::new(8);
        kv.grow(RequestId(5), TenantId(0), 1);
        kv.grow(RequestId(3), TenantId(0), 2);
        (sequences, kv)
    }

    #[test]
    fn rows_become_tokens_positions_and_tables() {
        let (sequences, kv) = entered();
        let batch = sequences.batch(&spec(vec![row(3, 1, 3, false), row(5, 2, 1, true)]), &kv, false).unwrap();
        assert_eq!(batch.tokens, [11, 12, 13, 22]);
        assert_eq!(batch.positions, [1, 2, 3, 2]);
        assert_eq!(batch.sequences, [0, 0, 0, 1]);
        assert_eq!(batch.logit_rows, [3]);
        assert_eq!((&*batch.own, &*batch.blocks), (&[1, 2, 0][..], &[0, 1, 2][..]));
        assert_eq!(batch.table_starts, [0, 2, 3]);
    }

    #[test]
    fn an_encoder_takes_whole_sequences_and_no_parts_of_them() {
        let (sequences, kv) = entered();
        let batch = sequences.batch(&spec(vec![row(3, 0, 5, true), row(5, 0, 3, true)]), &kv, true).unwrap();
        assert_eq!((&*batch.lengths, &*batch.first_rows), (&[5, 3][..], &[0, 5][..]));
        for part in [row(3, 0, 4, false), row(3, 4, 1, true)] {
            let refused = sequences.batch(&spec(vec![part]), &kv, true);
            assert!(matches!(refused, Err(ExecutorError::NotWhole { known: 5, .. })));
        }
    }

    #[test]
    fn the_last_token_is_the_limit_or_the_end_of_sequence() {
        let (mut sequences, _) = entered();
        let ended = |request, produced| Some(Ended { request: RequestId(request), produced });
        assert_eq!(sequences.produce(RequestId(5), 99), ended(5, 2));
        for _ in 0..3 {
            assert_eq!(sequences.produce(RequestId(3), 99), None);
        }
        assert_eq!(sequences.produce(RequestId(3), 99), ended(3, 4));
        assert_eq!(sequences.produced(RequestId(3)), [99; 4]);
        sequences.forget(RequestId(3));
        assert_eq!((sequences.produce(RequestId(3), 1), sequences.produced(RequestId(3))), (None, &[][..]));
    }

    #[test]
    fn rows_that_do_not_fit_their_sequence_are_refused() {
        let (mut sequences, kv) = entered();
        let refused = |rows| sequences.batch(&spec(rows), &kv, false).unwrap_err();
        assert!(matches!(refused(vec![row(4, 0, 1, false)]), ExecutorError::UnknownRequest(RequestId(4))));
        assert!(matches!(refused(vec![row(3, 4, 2, false)]), ExecutorError::Row { end: 6, known: 5, .. }));
        assert!(matches!(refused(vec![row(3, 0, 4, true)]), ExecutorError::Row { end: 4, emits: true, .. }));
        assert!(matches!(refused(vec![row(3, 5, 0, true)]), ExecutorError::Row { end: 5, emits: true, .. }));
        let mut wrong = spec(vec![row(3, 0, 5, true)]);
        wrong.binding.set(SEQUENCES, 2);
        assert!(matches!(
            sequences.batch(&wrong, &kv, false),
            Err(ExecutorError::BatchDims { symbol: "sequences", bound: 2, rows: 1 })
        ));
        assert!(sequences.enter(RequestId(9), &[], 1, None).is_err());
        assert!(sequences.enter(RequestId(9), &[1], 0, None).is_err());
    }
}
