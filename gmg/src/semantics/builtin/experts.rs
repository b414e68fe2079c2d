//! Kinds of mixtures of experts: routing, and products with the weights of whoever was chosen.

use super::{arity, dims, float, has_dtype, has_shape, integer, wrong_shape};
use crate::graph::Tensor;
use crate::semantics::{DTypeRule, OutputType, Outputs, SemanticsError};
use crate::shape::{Binding, Dim, Shape};
use crate::units::Bytes;

/// The experts of a grouped product, and how tokens choose among them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Experts {
    pub(crate) experts: u32,
    pub(crate) top: u32,
    pub(crate) ranks: u32,
}

/// Fixed point with 32 fractional bits.
const ONE: u64 = 1 << 32;

impl Experts {
    fn check(self) -> Result<(), SemanticsError> {
        let Self { experts, top, ranks } = self;
        let all = u64::from(experts) * u64::from(ranks);
        if experts == 0 || top == 0 || ranks == 0 || u64::from(top) > all {
            return Err(SemanticsError::Invalid(format!(
                "{top} of {experts} experts on each of {ranks} ranks: expected positive numbers and no more than there are"
            )));
        }
        Ok(())
    }

    /// The bytes of `all` experts' weights that are read for `rows` rows: those of the experts that
    /// at least one of them was routed to, on average, if every token of every rank takes any `top`
    /// of all experts with equal probability. A token misses an expert with probability
    /// `1 - top / all experts`, and `rows / top` tokens of each rank choose independently.
    ///
    /// Integer arithmetic, so equal on every machine; exact for one token on one rank.
    pub(crate) fn weights_read(self, all: Bytes, rows: u64) -> Bytes {
        let total = u64::from(self.experts) * u64::from(self.ranks);
        let tokens = (rows / u64::from(self.top.max(1))).saturating_mul(u64::from(self.ranks));
        if tokens == 0 || total == 0 {
            return Bytes::ZERO;
        }
        let miss = (u128::from(ONE) * u128::from(total.saturating_sub(u64::from(self.top))) / u128::from(total)) as u64;
        let hit = ONE - power(miss, tokens);
        Bytes(((u128::from(all.get()) * u128::from(hit)) >> 32) as u64)
    }
}

/// `base` to the power of `exponent`, rounded down; `base` is at most one.
fn power(mut base: u64, mut exponent: u64) -> u64 {
    let times = |left: u64, right: u64| ((u128::from(left) * u128::from(right)) >> 32) as u64;
    let mut result = ONE;
    while exponent > 0 && result > 0 {
        if exponent & 1 == 1 {
            result = times(result, base);
        }
        base = times(base, base);
        exponent >>= 1;
    }
    result
}

/// The cost of a grouped product beside its weights, and those.
#[derive(Clone, Debug)]
pub(crate) struct GroupedCost {
    pub(crate) formula: super::CostFormula,
    pub(crate) experts: Experts,
    pub(crate) rows: Dim,
    pub(crate) all: Bytes,
}

impl GroupedCost {
    pub(crate) fn eval(&self, binding: &Binding) -> crate::semantics::OpCost {
        let weights = self.experts.weights_read(self.all, self.rows.eval(binding));
        crate::semantics::OpCost { weights, ..self.formula.eval(binding) }
    }
}

pub(super) fn top_k(inputs: &[&Tensor], top: u32) -> Result<Outputs, SemanticsError> {
    let &[logits] = inputs else { return arity("one: logits", inputs) };
    float(logits)?;
    let [rows, experts] = dims(logits, "[n, experts]")?;
    if top == 0 || experts.as_fixed().is_none_or(|experts| experts < u64::from(top)) {
        return Err(wrong_shape(logits, format!("[n, at least {}]", top.max(1))));
    }
    let shape = Shape::new([rows, Dim::fixed(u64::from(top))]);
    let weights = OutputType { dtype: DTypeRule::Exactly(logits.dtype), shape: shape.clone() };
    Ok([weights, OutputType { dtype: DTypeRule::AnyInteger, shape }].into_iter().collect())
}

pub(super) fn permute(inputs: &[&Tensor]) -> Result<OutputType, SemanticsError> {
    let &[x, chosen] = inputs else { return arity("two: rows and the experts of each", inputs) };
    float(x)?;
    integer(chosen)?;
    let [rows, columns] = dims(x, "[n, m]")?;
    let routed = routed(chosen, rows)?;
    Ok(OutputType { dtype: DTypeRule::Exactly(x.dtype), shape: Shape::new([routed, columns]) })
}

pub(super) fn grouped_matmul(inputs: &[&Tensor], experts: Experts) -> Result<OutputType, SemanticsError> {
    let &[x, chosen, weight] = inputs else {
        return arity("three: routed rows, the experts of each row, a weight per expert", inputs);
    };
    experts.check()?;
    float(x)?;
    float(weight)?;
    integer(chosen)?;
    let [rows, depth] = dims(x, "[n * top, k]")?;
    let [tokens, top] = dims(chosen, "[n, top]")?;
    let expected = Dim { coefficient: tokens.coefficient.saturating_mul(u64::from(experts.top)), ..tokens };
    if top != Dim::fixed(u64::from(experts.top)) || rows != expected {
        return Err(wrong_shape(chosen, format!("[n, {}] for {} routed rows", experts.top, rows)));
    }
    let count = Dim::fixed(u64::from(experts.experts));
    let [held, columns, inner] = dims(weight, &format!("[{count}, m, {depth}]"))?;
    if held != count || inner != depth {
        return Err(wrong_shape(weight, format!("[{count}, {columns}, {depth}]")));
    }
    Ok(OutputType { dtype: DTypeRule::Exactly(x.dtype), shape: Shape::new([rows, columns]) })
}

pub(super) fn combine(inputs: &[&Tensor]) -> Result<OutputType, SemanticsError> {
    let (x, chosen, weights, residual) = match *inputs {
        [x, chosen, weights] => (x, chosen, weights, None),
        [x, chosen, weights, residual] => (x, chosen, weights, Some(residual)),
        _ => return arity("three or four: routed rows, experts, their weights and optionally a residual", inputs),
    };
    float(x)?;
    float(weights)?;
    integer(chosen)?;
    has_shape(chosen, &weights.shape)?;
    let [rows, _] = dims(weights, "[n, top]")?;
    let [routed_rows, columns] = dims(x, "[n * top, m]")?;
    let expected = routed(chosen, rows)?;
    if routed_rows != expected {
        return Err(wrong_shape(x, format!("[{expected}, {columns}]")));
    }
    let shape = Shape::new([rows, columns]);
    if let Some(residual) = residual {
        has_dtype(residual, x.dtype)?;
        has_shape(residual, &shape)?;
    }
    Ok(OutputType { dtype: DTypeRule::Exactly(x.dtype), shape })
}

/// `top` rows for each of `rows`, as `chosen` says.
fn routed(chosen: &Tensor, rows: Dim) -> Result<Dim, SemanticsError> {
    let [of, top] = dims(chosen, &format!("[{rows}, top]"))?;
    match top.as_fixed() {
        Some(top) if of == rows => Ok(Dim { coefficient: rows.coefficient.saturating_mul(top), ..rows }),
        _ => Err(wrong_shape(chosen, format!("[{rows}, top]"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_token_reads_exactly_its_experts_and_many_read_all() {
        let mixtral = Experts { experts: 8, top: 2, ranks: 1 };
        assert_eq!(mixtral.weights_read(Bytes(8000), 2), Bytes(2000));
        // Two tokens miss an expert with probability (3/4)^2: 7/16 of 8000 are read.
        assert_eq!(mixtral.weights_read(Bytes(8000), 4), Bytes(3500));
        assert_eq!(mixtral.weights_read(Bytes(8000), 2048), Bytes(8000));
        assert_eq!(mixtral.weights_read(Bytes(8000), 0), Bytes::ZERO);
        // Four ranks of two experts each: one token per rank, four tokens in all.
        let spread = Experts { experts: 2, top: 2, ranks: 4 };
        let read = spread.weights_read(Bytes(1 << 20), 2).get() as f64 / f64::from(1 << 20);
        assert!((read - (1.0 - 0.75f64.powi(4))).abs() < 1e-5, "{read}");
    }
}
