//! Kinds of encoders: norms with a bias, products with a bias, attention both ways, pooling.

use super::{Heads, arity, dims, float, has_dtype, has_shape, integer, last, like, matmul, wrong_shape};
use crate::graph::Tensor;
use crate::semantics::{DTypeRule, OutputType, SemanticsError};
use crate::shape::{Dim, Shape};

pub(super) fn layer_norm(inputs: &[&Tensor]) -> Result<OutputType, SemanticsError> {
    let &[x, weight, bias] = inputs else {
        return arity("three: rows, a weight and a bias", inputs);
    };
    float(x)?;
    let columns = Shape::new([last(x)?]);
    for scale in [weight, bias] {
        float(scale)?;
        has_shape(scale, &columns)?;
    }
    Ok(like(x))
}

pub(super) fn linear(inputs: &[&Tensor]) -> Result<OutputType, SemanticsError> {
    let (x, weight, bias, residual) = match *inputs {
        [x, weight, bias] => (x, weight, bias, None),
        [x, weight, bias, residual] => (x, weight, bias, Some(residual)),
        _ => return arity("three or four: rows, a weight, a bias and optionally a residual", inputs),
    };
    let output = match residual {
        None => matmul(&[x, weight])?,
        Some(residual) => matmul(&[x, weight, residual])?,
    };
    float(bias)?;
    has_shape(bias, &Shape::new(output.shape.dims().last().copied()))?;
    Ok(output)
}

pub(super) fn elementwise(inputs: &[&Tensor]) -> Result<OutputType, SemanticsError> {
    let &[x] = inputs else { return arity("one", inputs) };
    float(x)?;
    Ok(like(x))
}

pub(super) fn self_attention(inputs: &[&Tensor], heads: Heads) -> Result<OutputType, SemanticsError> {
    let &[fused, lengths] = inputs else {
        return arity("two: queries, keys and values side by side; the lengths of the sequences", inputs);
    };
    heads.check()?;
    float(fused)?;
    sequence_lengths(lengths)?;
    let width = Dim::fixed(heads.queries().saturating_mul(3));
    let [rows, columns] = dims(fused, &format!("[n, {width}]"))?;
    if columns != width {
        return Err(wrong_shape(fused, format!("[{rows}, {width}]")));
    }
    Ok(OutputType { dtype: DTypeRule::Exactly(fused.dtype), shape: Shape::new([rows, Dim::fixed(heads.queries())]) })
}

pub(super) fn mean_pool(inputs: &[&Tensor]) -> Result<OutputType, SemanticsError> {
    let &[x, lengths] = inputs else {
        return arity("two: rows and the lengths of the sequences", inputs);
    };
    float(x)?;
    let [_, columns] = dims(x, "[n, m]")?;
    let sequences = sequence_lengths(lengths)?;
    Ok(OutputType { dtype: DTypeRule::Exactly(x.dtype), shape: Shape::new([sequences, columns]) })
}

/// Rows of queries and keys, each head scaled by its own root mean square.
pub(super) fn head_norm(inputs: &[&Tensor], heads: Heads) -> Result<OutputType, SemanticsError> {
    let &[fused, queries, keys] = inputs else {
        return arity("three: queries, keys and values; a weight for queries; one for keys", inputs);
    };
    heads.check()?;
    float(fused)?;
    let width = Dim::fixed(heads.queries().saturating_add(heads.keys_and_values()));
    let [rows, columns] = dims(fused, &format!("[n, {width}]"))?;
    if columns != width {
        return Err(wrong_shape(fused, format!("[{rows}, {width}]")));
    }
    float(queries)?;
    has_shape(queries, &Shape::vector(u64::from(heads.head_dim)))?;
    has_dtype(keys, queries.dtype)?;
    has_shape(keys, &queries.shape)?;
    Ok(like(fused))
}

fn sequence_lengths(lengths: &Tensor) -> Result<Dim, SemanticsError> {
    integer(lengths)?;
    let [sequences] = dims(lengths, "[s]")?;
    Ok(sequences)
}
