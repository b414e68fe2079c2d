//! Collectives: shapes, sums and what goes over the links.

use super::{arity, dims, float, last, like, wrong_shape};
use crate::graph::{OpGraph, OpSlot, Tensor};
use crate::semantics::{Collective, DTypeRule, OpKind, OutputType, Outputs, SemanticsError};
use crate::shape::polynomial::Monomial;
use crate::shape::{Binding, Dim, Shape};
use crate::units::Bytes;

/// The types of the outputs. What a receive gives is what it was declared to give.
pub(super) fn outputs(
    collective: Collective,
    inputs: &[&Tensor],
    declared: &[&Tensor],
) -> Result<Outputs, SemanticsError> {
    check(collective)?;
    if let Collective::Receive { .. } = collective {
        let &[] = inputs else { return arity("none", inputs) };
        let &[given] = declared else {
            return Err(SemanticsError::Invalid(format!("it has {} outputs: expected one", declared.len())));
        };
        float(given)?;
        return Ok([like(given)].into_iter().collect());
    }
    let &[x] = inputs else { return arity("one", inputs) };
    let ranks = u64::from(collective.ranks());
    let columns = |columns: Dim| {
        let outer = x.shape.dims().len() - 1;
        let shape = Shape::new(x.shape.dims()[..outer].iter().copied().chain([columns]));
        OutputType { dtype: DTypeRule::Exactly(x.dtype), shape }
    };
    let output = match collective {
        Collective::Send { .. } => return Ok(Outputs::new()),
        Collective::AllGather { .. } => {
            let part = last(x)?;
            columns(Dim { coefficient: part.coefficient.saturating_mul(ranks), ..part })
        }
        Collective::ReduceScatter { .. } => {
            float(x)?;
            let whole = last(x)?;
            if whole.coefficient % ranks != 0 {
                return Err(wrong_shape(x, format!("[.., a multiple of {ranks}]")));
            }
            columns(Dim { coefficient: whole.coefficient / ranks, ..whole })
        }
        Collective::AllReduce { .. } => {
            float(x)?;
            like(x)
        }
        Collective::AllToAll { .. } => {
            let [_, _] = dims(x, "[n, m]")?;
            like(x)
        }
        Collective::Broadcast { .. } | Collective::Receive { .. } => like(x),
    };
    Ok([output].into_iter().collect())
}

fn check(collective: Collective) -> Result<(), SemanticsError> {
    let invalid = |reason: String| Err(SemanticsError::Invalid(reason));
    match collective {
        Collective::Send { distance: 0 } | Collective::Receive { distance: 0 } => {
            invalid("a message over a distance of 0 ranks: expected at least 1".to_owned())
        }
        Collective::Broadcast { ranks, root } if root >= ranks => {
            invalid(format!("rank {root} is the root of {ranks} ranks: expected one of them"))
        }
        _ if collective.ranks() == 0 => invalid("it is among 0 ranks: expected at least 1".to_owned()),
        _ => Ok(()),
    }
}

/// Sums of a ring: every rank adds all chunks but its own once.
pub(super) fn flops(collective: Collective, inputs: &[&Tensor]) -> Monomial {
    let elements = inputs.first().map_or(Monomial::constant(0), |x| Monomial::elements(&x.shape));
    match collective {
        Collective::AllReduce { ranks } | Collective::ReduceScatter { ranks } => {
            elements.times(u64::from(ranks.saturating_sub(1))).divided_by(u64::from(ranks.max(1)))
        }
        _ => Monomial::constant(0),
    }
}

impl OpGraph {
    /// The collective that the operator of `slot` is, if it is one.
    pub fn collective(&self, slot: OpSlot) -> Option<Collective> {
        match self.kind(slot)? {
            OpKind::Collective(collective) => Some(*collective),
            _ => None,
        }
    }

    /// Bytes that one rank has of what the collective of `slot` exchanges under `binding`: the
    /// larger of what it takes and gives. Zero for other operators.
    pub fn payload_bytes(&self, slot: OpSlot, binding: &Binding) -> Bytes {
        if self.collective(slot).is_none() {
            return Bytes::ZERO;
        }
        let cost = self.cost(slot, binding);
        cost.read.max(cost.written)
    }

    /// Bytes that one rank moves over its links for the operator of `slot`; see
    /// [`Collective::wire_bytes`]. Zero for what is no collective.
    pub fn wire_bytes(&self, slot: OpSlot, binding: &Binding) -> Bytes {
        let payload = self.payload_bytes(slot, binding);
        self.collective(slot).map_or(Bytes::ZERO, |collective| collective.wire_bytes(payload))
    }

    /// The bytes of all collectives together. O(stored operators).
    pub fn total_wire_bytes(&self, binding: &Binding) -> Bytes {
        let of = |segment: crate::graph::Segment<'_>| -> Bytes {
            let once: Bytes = segment.slots().map(|slot| self.wire_bytes(slot, binding)).sum();
            once.times(u64::from(segment.repeat()))
        };
        self.segments().map(of).sum()
    }

    /// The collectives over all repetitions, in operator order.
    pub fn collectives(&self) -> impl Iterator<Item = Collective> + '_ {
        self.segments().flat_map(move |segment| {
            let once = segment.slots().filter_map(|slot| self.collective(slot));
            let once: smallvec::SmallVec<[Collective; 4]> = once.collect();
            (0..segment.repeat()).flat_map(move |_| once.clone())
        })
    }
}
