//! The time of one iteration.

use slicescheduler_gmg::units::Nanos;

use super::{Load, Profile};
use crate::cost::{Confidence, Coverage};
use crate::profile::{ProfileError, Reading, Table};

/// Operators that run once per iteration; all others run in every block.
const ONCE: [&str; 2] = ["embedding", "final_layernorm"];
/// Operators that run twice per block: before attention and before the feed-forward part.
const TWICE: [&str; 1] = ["layernorm"];
/// Operators without which there is no iteration of a decoder.
const NEEDED: [&str; 3] = ["embedding", "qkv_proj", "o_proj"];

/// What the profile of one layer does not say about the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// Layers.
    pub layers: u32,
    /// Experts per layer and experts per token; [`None`] for a dense model.
    pub experts: Option<(u32, u32)>,
    /// Ranks over which the experts are spread.
    pub expert_ranks: u32,
    /// Key-value heads of a rank.
    pub kv_heads: u32,
    /// Multiprocessors of the device, if known: decides when attention splits sequences.
    pub multiprocessors: Option<u32>,
}

/// What ranks exchange: time by bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Exchange {
    /// Bytes of one token's activations.
    pub token_bytes: f64,
    /// Reductions over the tensor-parallel ranks per block; two, after attention and after the feed-forward part.
    pub reductions: u32,
    /// Gathers and scatters over the expert ranks per block. Each moves what a reduction of one rank's tokens moves.
    pub gathers: u32,
    /// (bytes of one rank, nanoseconds), ascending.
    pub times: Vec<(f64, f64)>,
}

impl Exchange {
    /// The time of exchanging `bytes`, on a line between what was measured, and on the last line beyond.
    fn nanos(&self, bytes: f64) -> f64 {
        let above = self.times.partition_point(|&(at, _)| at < bytes).clamp(1, self.times.len().max(2) - 1);
        match (self.times.get(above - 1), self.times.get(above)) {
            (Some(&(a, low)), Some(&(b, high))) => {
                if bytes <= a {
                    low
                } else {
                    low + (high - low) * (bytes - a) / (b - a)
                }
            }
            (Some(&(_, nanos)), None) => nanos,
            _ => 0.0,
        }
    }
}

/// What an iteration computes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Tokens of this rank, padded to the size that runs.
    pub tokens: u32,
    /// Tokens that reach the experts from all ranks; those of this one if it is alone.
    pub expert_tokens: u32,
    /// Sequences: rows of which logits are computed.
    pub sequences: u32,
    /// Chunks of prompts: tokens, and tokens before them.
    pub chunks: Vec<(u32, u32)>,
    /// Tokens that each decode reads, in any order.
    pub decodes: Vec<u32>,
}

/// The parts of an iteration's time, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepParts {
    /// Operators that follow the tokens.
    pub dense: f64,
    /// Blocks of experts.
    pub experts: f64,
    /// Attention, as if all decodes were equally long.
    pub attention: f64,
    /// What unequal lengths add.
    pub skew: f64,
    /// Logits and sampling.
    pub head: f64,
    /// Exchange between ranks.
    pub exchange: f64,
}

impl StepParts {
    /// Adds `other` part by part.
    pub fn add(&mut self, other: Self) {
        self.dense += other.dense;
        self.experts += other.experts;
        self.attention += other.attention;
        self.skew += other.skew;
        self.head += other.head;
        self.exchange += other.exchange;
    }

    /// Their sum.
    pub fn total(&self) -> Nanos {
        let sum = self.dense + self.experts + self.attention + self.skew + self.head + self.exchange;
        Nanos((sum as u64).max(1))
    }
}

/// How long iterations take by a profile.
///
/// The sum of its kernels, each at its own interpolation: dense operators at the padded tokens, logits and sampling
/// at the sequences, attention at the load, exchange at the bytes. What the host does between iterations is no part
/// of it: with iterations formed ahead it is hidden behind the device.
///
/// Several chunks in one iteration count as one of as many tokens that looks back as far on average.
#[derive(Clone, Debug)]
pub struct StepModel {
    profile: Profile,
    block: Block,
    exchange: Option<Exchange>,
    once: Vec<Table>,
    /// Per block, with how often it runs there.
    repeated: Vec<(Table, f64)>,
    head: Vec<Table>,
}

impl StepModel {
    /// The model of `profile`, with what it does not say.
    ///
    /// # Errors
    /// If operators of a decoder are missing, or the block has experts of which there are no times.
    pub fn new(profile: Profile, block: Block, exchange: Option<Exchange>) -> Result<Self, ProfileError> {
        let missing = |operator: &str| ProfileError::MissingOperator {
            folder: profile.folder().display().to_string().into(),
            operator: operator.into(),
            found: profile.dense.keys().map(String::as_str).collect::<Vec<_>>().join(", "),
        };
        if let Some(operator) = NEEDED.into_iter().find(|&operator| !profile.dense.contains_key(operator)) {
            return Err(missing(operator));
        }
        if block.experts.is_some() && profile.experts.is_none() {
            return Err(missing("experts (moe.csv)"));
        }
        if block.experts.is_none() && !profile.dense.contains_key("down_proj") {
            return Err(missing("down_proj"));
        }
        let (once, repeated): (Vec<_>, Vec<_>) =
            profile.dense.iter().partition(|(name, _)| ONCE.contains(&name.as_str()));
        let times = |name: &String| if TWICE.contains(&name.as_str()) { 2.0 } else { 1.0 };
        Ok(Self {
            once: once.into_iter().map(|(_, table)| table.clone()).collect(),
            repeated: repeated.into_iter().map(|(name, table)| (table.clone(), times(name))).collect(),
            head: profile.per_sequence.values().cloned().collect(),
            block,
            exchange,
            profile,
        })
    }

    /// The profile.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The time of an iteration by parts; the decodes of `step` are sorted, the longest first.
    /// O(operators + decodes log decodes).
    pub fn parts(&self, step: &mut Step) -> StepParts {
        self.covered_parts(step).0
    }

    /// As [`parts`](Self::parts), and how much of the time was measured. What unequal lengths add and what ranks
    /// exchange counts as modelled.
    pub fn covered_parts(&self, step: &mut Step) -> (StepParts, Coverage) {
        let layers = f64::from(self.block.layers);
        let mut coverage = Coverage::default();
        let mut counted = |reading: Reading, times: f64| {
            let nanos = reading.nanos * times;
            coverage.count(reading.confidence, Nanos(nanos as u64));
            nanos
        };
        let tokens = [f64::from(step.tokens)];
        let once: f64 = self.once.iter().map(|table| counted(table.read(&tokens), 1.0)).sum();
        let mut repeated = 0.0;
        for (table, times) in &self.repeated {
            let reading = table.read(&tokens);
            repeated += reading.nanos * times;
            counted(reading, times * layers);
        }
        let sequences = [f64::from(step.sequences.max(1))];
        let head = self.head.iter().map(|table| counted(table.read(&sequences), 1.0)).sum();
        let experts = self.experts(step).map_or(0.0, |reading| counted(reading, layers));
        let (attention, saved, skew) = self.attention(step);
        let attention = attention.map_or(0.0, |reading| {
            let reading = Reading { nanos: reading.nanos - saved, ..reading };
            counted(reading, layers)
        });
        let (skew, exchange) = (skew * layers, self.exchange(step) * layers);
        coverage.count(Confidence::Modelled, Nanos((skew.max(0.0) + exchange) as u64));
        (StepParts { dense: once + repeated * layers, experts, attention, skew, head, exchange }, coverage)
    }

    fn experts(&self, step: &Step) -> Option<Reading> {
        let (table, (experts, per_token)) = self.profile.experts.as_ref().zip(self.block.experts)?;
        table.read_at(f64::from(step.expert_tokens), experts, per_token, self.block.expert_ranks)
    }

    fn exchange(&self, step: &Step) -> f64 {
        let Some(exchange) = &self.exchange else { return 0.0 };
        let reduction = exchange.nanos(f64::from(step.tokens) * exchange.token_bytes);
        reduction * f64::from(exchange.reductions + exchange.gathers)
    }

    /// Attention of one layer as if its prompts were one, what they save because they are not, and what unequal
    /// lengths add.
    fn attention(&self, step: &mut Step) -> (Option<Reading>, f64, f64) {
        let tables = &self.profile.attention;
        let chunk: f64 = step.chunks.iter().map(|&(tokens, _)| f64::from(tokens)).sum();
        // How far a token of a prompt looks back on average: all that is before its chunk, and half of that.
        let back = |&(tokens, before): &(u32, u32)| f64::from(tokens) * (f64::from(before) + f64::from(tokens) * 0.5);
        let look_back = if chunk > 0.0 { step.chunks.iter().map(back).sum::<f64>() / chunk } else { 0.0 };
        let decodes = step.decodes.len() as f64;
        let length = step.decodes.iter().map(|&length| f64::from(length)).sum::<f64>() / decodes.max(1.0);
        let load = Load { chunk, behind: (look_back - chunk * 0.5).max(0.0), decodes, length };
        let reading = tables.reading_at(load);
        let nanos = reading.map_or(0.0, |reading| reading.nanos);
        step.decodes.sort_unstable_by(|a, b| b.cmp(a));
        let units = self.block.multiprocessors.map(|count| f64::from(count) / f64::from(self.block.kv_heads.max(1)));
        let skew = match &self.profile.skew {
            Some(skew) if step.decodes.len() > 1 => skew.excess(tables, load, nanos, &step.decodes, units),
            _ => 0.0,
        };
        (reading, self.shorter(chunk, look_back), skew)
    }

    /// What several short prompts save against one long one: they look back less far than the beginning of
    /// a prompt of as many tokens.
    fn shorter(&self, chunk: f64, look_back: f64) -> f64 {
        if look_back >= chunk * 0.5 {
            return 0.0;
        }
        let alone = |chunk| self.profile.attention.read_at(Load { chunk, ..Load::default() });
        let each = (look_back * 2.0).max(1.0);
        (alone(chunk) - alone(each) * chunk / each).max(0.0)
    }
}
