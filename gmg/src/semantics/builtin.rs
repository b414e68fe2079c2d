//! Shapes and costs of the built-in kinds.

mod encoder;
mod exchange;
mod experts;

use smallvec::smallvec;

pub(crate) use experts::{Experts, GroupedCost};

use super::{DTypeRule, OpCost, OpKind, OutputType, Outputs, SemanticsError};
use crate::dtype::DType;
use crate::graph::{Role, Tensor};
use crate::shape::polynomial::Monomial;
use crate::shape::{Binding, Dim, PAIRS, Polynomial, Shape};
use crate::units::{Bytes, Flops};

/// The cost of a built-in operator as a function of the job's symbols.
#[derive(Clone, Debug, Default)]
pub(crate) struct CostFormula {
    pub(crate) flops: Polynomial,
    pub(crate) weights: Polynomial,
    pub(crate) read: Polynomial,
    pub(crate) written: Polynomial,
}

impl CostFormula {
    pub(crate) fn eval(&self, binding: &Binding) -> OpCost {
        OpCost {
            flops: Flops(self.flops.eval(binding)),
            weights: Bytes(self.weights.eval(binding)),
            read: Bytes(self.read.eval(binding)),
            written: Bytes(self.written.eval(binding)),
        }
    }

    pub(crate) fn add_times(&mut self, other: &Self, factor: u64) {
        self.flops.add_times(&other.flops, factor);
        self.weights.add_times(&other.weights, factor);
        self.read.add_times(&other.read, factor);
        self.written.add_times(&other.written, factor);
    }
}

/// The types of the outputs of a built-in kind; `None` for a custom one. `declared` is what the graph
/// says about them, for kinds that give whatever is declared.
pub(crate) fn outputs(
    kind: &OpKind,
    inputs: &[&Tensor],
    declared: &[&Tensor],
) -> Option<Result<Outputs, SemanticsError>> {
    let output = match kind {
        OpKind::Embedding => embedding(inputs),
        OpKind::RmsNorm { .. } => rms_norm(inputs),
        OpKind::MatMul => matmul(inputs),
        &OpKind::Rotary { heads, kv_heads, head_dim, .. } => rotary(inputs, Heads { heads, kv_heads, head_dim }),
        &OpKind::Attention { heads, kv_heads, head_dim } => attention(inputs, Heads { heads, kv_heads, head_dim }),
        OpKind::SwiGlu => swiglu(inputs),
        OpKind::Gather => gather(inputs),
        OpKind::Sample => sample(inputs),
        OpKind::Add => add(inputs),
        OpKind::Softmax => softmax(inputs),
        OpKind::LayerNorm { .. } => encoder::layer_norm(inputs),
        OpKind::Linear => encoder::linear(inputs),
        OpKind::Gelu | OpKind::Tanh | OpKind::Normalize => encoder::elementwise(inputs),
        &OpKind::SelfAttention { heads, head_dim } => {
            encoder::self_attention(inputs, Heads { heads, kv_heads: heads, head_dim })
        }
        OpKind::MeanPool => encoder::mean_pool(inputs),
        &OpKind::HeadNorm { heads, kv_heads, head_dim, .. } => {
            encoder::head_norm(inputs, Heads { heads, kv_heads, head_dim })
        }
        &OpKind::TopK { top } => return Some(experts::top_k(inputs, top)),
        OpKind::Permute => experts::permute(inputs),
        &OpKind::GroupedMatMul { experts, top, ranks } => {
            experts::grouped_matmul(inputs, Experts { experts, top, ranks })
        }
        OpKind::Combine => experts::combine(inputs),
        &OpKind::Collective(collective) => return Some(exchange::outputs(collective, inputs, declared)),
        OpKind::Custom(_) => return None,
    };
    Some(output.map(|output| smallvec![output]))
}

/// The cost of a built-in kind whose inputs and outputs have been checked; `None` for a custom one.
pub(crate) fn cost(kind: &OpKind, inputs: &[&Tensor], outputs: &[&Tensor]) -> Option<CostFormula> {
    let mut cost = CostFormula::default();
    for input in inputs {
        match input.role {
            Role::Weight => cost.weights.add_times(&input.bytes_formula().into(), 1),
            // What is read or written of the cache depends on the kind.
            Role::KvCache => {}
            Role::Input | Role::Activation | Role::Output => {
                cost.read.add_times(&input.bytes_formula().into(), 1);
            }
        }
    }
    let mut result = Monomial::constant(0);
    for output in outputs {
        cost.written.add_times(&output.bytes_formula().into(), 1);
        result = Monomial::elements(&output.shape);
    }
    cost.flops = match (kind, inputs) {
        (OpKind::Custom(_), _) => return None,
        (OpKind::Embedding, [ids, table]) => {
            cost.weights = rows_of(table, ids).into();
            Polynomial::default()
        }
        (OpKind::Gather, [rows, numbers]) => {
            cost.read = Polynomial::from(rows_of(rows, numbers)).plus(numbers.bytes_formula());
            Polynomial::default()
        }
        (OpKind::RmsNorm { .. }, _) => result.times(4).into(),
        (OpKind::MatMul, [_, weight, residual @ ..]) => {
            let depth = weight.shape.dims().last().copied().unwrap_or(Dim::fixed(1));
            let product = Polynomial::from(result.times_dim(depth).times(2));
            if residual.is_empty() { product } else { product.plus(result) }
        }
        (&OpKind::Rotary { heads, kv_heads, head_dim, .. }, [fused, _, cache]) => {
            let rows = fused.shape.dims().first().copied().unwrap_or(Dim::fixed(1));
            cost.written.add_times(&rows_times(rows, cache).into(), 1);
            let rotated = (u64::from(heads) + u64::from(kv_heads)).saturating_mul(u64::from(head_dim));
            Monomial::constant(rotated).times(3).times_dim(rows).into()
        }
        (&OpKind::Attention { heads, head_dim, .. }, [_, cache]) => {
            cost.read.add_times(&cache.bytes_formula().into(), 1);
            let per_pair = Monomial::constant(u64::from(heads) * u64::from(head_dim)).times(4);
            per_pair.times_dim(Dim::of(PAIRS)).into()
        }
        (OpKind::SwiGlu | OpKind::Softmax, _) => result.times(5).into(),
        (OpKind::Sample, [logits]) => Monomial::elements(&logits.shape).into(),
        (OpKind::Add, _) => result.into(),
        (OpKind::LayerNorm { .. }, _) => result.times(7).into(),
        (OpKind::Linear, [_, weight, _, residual @ ..]) => {
            let depth = weight.shape.dims().last().copied().unwrap_or(Dim::fixed(1));
            let product = Polynomial::from(result.times_dim(depth).times(2)).plus(result);
            if residual.is_empty() { product } else { product.plus(result) }
        }
        (OpKind::Gelu, _) => result.times(5).into(),
        (OpKind::Tanh, _) => result.into(),
        (OpKind::Normalize, _) => result.times(3).into(),
        (&OpKind::SelfAttention { heads, head_dim }, _) => {
            let per_pair = Monomial::constant(u64::from(heads) * u64::from(head_dim)).times(4);
            per_pair.times_dim(Dim::of(PAIRS)).into()
        }
        (OpKind::MeanPool, [x, _]) => Polynomial::from(Monomial::elements(&x.shape)).plus(result),
        (&OpKind::HeadNorm { heads, kv_heads, head_dim, .. }, [fused, ..]) => {
            let rows = fused.shape.dims().first().copied().unwrap_or(Dim::fixed(1));
            let normed = (u64::from(heads) + u64::from(kv_heads)).saturating_mul(u64::from(head_dim));
            Monomial::constant(normed).times(4).times_dim(rows).into()
        }
        (OpKind::TopK { .. }, [logits]) => Monomial::elements(&logits.shape).times(5).into(),
        (OpKind::Permute, [_, chosen]) => {
            cost.read = Polynomial::from(result_bytes(outputs)).plus(chosen.bytes_formula());
            Polynomial::default()
        }
        (OpKind::GroupedMatMul { .. }, [_, _, weight]) => {
            let depth = weight.shape.dims().last().copied().unwrap_or(Dim::fixed(1));
            result.times_dim(depth).times(2).into()
        }
        (OpKind::Combine, [x, _, _, residual @ ..]) => {
            let sums = Polynomial::from(Monomial::elements(&x.shape).times(2));
            if residual.is_empty() { sums } else { sums.plus(result) }
        }
        (&OpKind::Collective(collective), inputs) => exchange::flops(collective, inputs).into(),
        _ => Polynomial::default(),
    };
    Some(cost)
}

/// The cost of a product with the weights of experts, which is no polynomial: how many of them are
/// read depends on how many were chosen. `None` for other kinds.
pub(crate) fn grouped(kind: &OpKind, inputs: &[&Tensor], outputs: &[&Tensor]) -> Option<GroupedCost> {
    let (&OpKind::GroupedMatMul { experts, top, ranks }, [x, _, weight]) = (kind, inputs) else { return None };
    Some(GroupedCost {
        formula: cost(kind, inputs, outputs)?,
        experts: Experts { experts, top, ranks },
        rows: x.shape.dims().first().copied()?,
        all: weight.bytes(&Binding::new()),
    })
}

fn result_bytes(outputs: &[&Tensor]) -> Monomial {
    outputs.first().map_or(Monomial::constant(0), |output| output.bytes_formula())
}

/// Bytes of as many rows of `table` as `ids` has elements.
fn rows_of(table: &Tensor, ids: &Tensor) -> Monomial {
    let row = table.shape.dims().last().copied().unwrap_or(Dim::fixed(1));
    table.dtype_bytes(Monomial::elements(&ids.shape).times_dim(row))
}

/// Bytes of `rows` rows of `table`.
fn rows_times(rows: Dim, table: &Tensor) -> Monomial {
    let row = table.shape.dims().last().copied().unwrap_or(Dim::fixed(1));
    table.dtype_bytes(Monomial::constant(1).times_dim(rows).times_dim(row))
}

#[derive(Clone, Copy)]
struct Heads {
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
}

impl Heads {
    fn check(self) -> Result<(), SemanticsError> {
        let Self { heads, kv_heads, head_dim } = self;
        if kv_heads == 0 || head_dim == 0 || heads == 0 || heads % kv_heads != 0 {
            return Err(SemanticsError::Invalid(format!(
                "{heads} heads of {head_dim} elements over {kv_heads} KV heads: expected positive \
                 numbers and a multiple of the KV heads"
            )));
        }
        Ok(())
    }

    fn queries(self) -> u64 {
        u64::from(self.heads) * u64::from(self.head_dim)
    }

    fn keys_and_values(self) -> u64 {
        (u64::from(self.kv_heads) * u64::from(self.head_dim)).saturating_mul(2)
    }
}

fn embedding(inputs: &[&Tensor]) -> Result<OutputType, SemanticsError> {
    let &[ids, table] = inputs else {
        return arity("two: ids and a table", inputs);
    };
    integer(ids)?;
    float(table)?;
    let [rows] = dims(ids, "[n]")?;
    let [_, columns] = dims(table, "[vocab, m]")?;
    Ok(OutputType { dtype: DTypeRule::AnyFloat, shape: Shape::new([rows, columns]) })
}

fn rms_norm(inputs: &[&Tensor]) -> Result<OutputType, SemanticsError> {
    let &[x, weight] = inputs else {
        return arity("two: rows and a weight", inputs);
    };
    float(x)?;
    float(weight)?;
    let columns = last(x)?;
    has_shape(weight, &Shape::new([columns]))?;
    Ok(like(x))
}

fn matmul(inputs: &[&Tensor]) -> Result<OutputType, SemanticsError> {
    let (x, weight, residual) = match *inputs {
        [x, weight] => (x, weight, None),
        [x, weight, residual] => (x, weight, Some(residual)),
        _ => {
            return arity("two or three: rows, a weight and optionally a residual", inputs);
        }
    };
    float(x)?;
    float(weight)?;
    let depth = last(x)?;
    let [columns, inner] = dims(weight, &format!("[m, {depth}]"))?;
    if inner != depth {
        return Err(wrong_shape(weight, format!("[{columns}, {depth}]")));
    }
    let outer = x.shape.dims().len() - 1;
    let shape = Shape::new(x.shape.dims()[..outer].iter().copied().chain([columns]));
    if let Some(residual) = residual {
        has_dtype(residual, x.dtype)?;
        has_shape(residual, &shape)?;
    }
    Ok(OutputType { dtype: DTypeRule::Exactly(x.dtype), shape })
}

fn rotary(inputs: &[&Tensor], heads: Heads) -> Result<OutputType, SemanticsError> {
    let &[fused, positions, cache] = inputs else {
        return arity("three: queries, keys and values; positions; the KV cache", inputs);
    };
    heads.check()?;
    float(fused)?;
    integer(positions)?;
    let width = Dim::fixed(heads.queries().saturating_add(heads.keys_and_values()));
    let [rows, columns] = dims(fused, &format!("[n, {width}]"))?;
    if columns != width {
        return Err(wrong_shape(fused, format!("[{rows}, {width}]")));
    }
    has_shape(positions, &Shape::new([rows]))?;
    is_cache(cache, heads)?;
    Ok(OutputType { dtype: DTypeRule::Exactly(fused.dtype), shape: Shape::new([rows, Dim::fixed(heads.queries())]) })
}

fn attention(inputs: &[&Tensor], heads: Heads) -> Result<OutputType, SemanticsError> {
    let &[queries, cache] = inputs else {
        return arity("two: queries and the KV cache", inputs);
    };
    heads.check()?;
    float(queries)?;
    let width = Dim::fixed(heads.queries());
    let [rows, columns] = dims(queries, &format!("[n, {width}]"))?;
    if columns != width {
        return Err(wrong_shape(queries, format!("[{rows}, {width}]")));
    }
    is_cache(cache, heads)?;
    Ok(like(queries))
}

fn swiglu(inputs: &[&Tensor]) -> Result<OutputType, SemanticsError> {
    let &[x] = inputs else {
        return arity("one: gate and up side by side", inputs);
    };
    float(x)?;
    let columns = last(x)?;
    if columns.coefficient % 2 != 0 {
        return Err(wrong_shape(x, "[.., an even number]".to_owned()));
    }
    let half = Dim { coefficient: columns.coefficient / 2, ..columns };
    let outer = x.shape.dims().len() - 1;
    Ok(OutputType {
        dtype: DTypeRule::Exactly(x.dtype),
        shape: Shape::new(x.shape.dims()[..outer].iter().copied().chain([half])),
    })
}

fn gather(inputs: &[&Tensor]) -> Result<OutputType, SemanticsError> {
    let &[x, numbers] = inputs else {
        return arity("two: rows and row numbers", inputs);
    };
    integer(numbers)?;
    let [_, columns] = dims(x, "[n, m]")?;
    let [rows] = dims(numbers, "[r]")?;
    Ok(OutputType { dtype: DTypeRule::Exactly(x.dtype), shape: Shape::new([rows, columns]) })
}

fn sample(inputs: &[&Tensor]) -> Result<OutputType, SemanticsError> {
    let &[logits] = inputs else {
        return arity("one: logits", inputs);
    };
    float(logits)?;
    let [rows, _] = dims(logits, "[n, m]")?;
    Ok(OutputType { dtype: DTypeRule::AnyInteger, shape: Shape::new([rows]) })
}

fn add(inputs: &[&Tensor]) -> Result<OutputType, SemanticsError> {
    let &[left, right] = inputs else {
        return arity("two of equal shape", inputs);
    };
    float(left)?;
    has_dtype(right, left.dtype)?;
    has_shape(right, &left.shape)?;
    Ok(like(left))
}

fn softmax(inputs: &[&Tensor]) -> Result<OutputType, SemanticsError> {
    let &[x] = inputs else {
        return arity("one", inputs);
    };
    float(x)?;
    last(x)?;
    Ok(like(x))
}

fn like(x: &Tensor) -> OutputType {
    OutputType { dtype: DTypeRule::Exactly(x.dtype), shape: x.shape.clone() }
}

fn arity<T>(expected: &'static str, inputs: &[&Tensor]) -> Result<T, SemanticsError> {
    Err(SemanticsError::Arity { expected, found: inputs.len() })
}

fn wrong_shape(input: &Tensor, expected: String) -> SemanticsError {
    SemanticsError::Shape { input: input.name.to_string(), dtype: input.dtype, shape: input.shape.clone(), expected }
}

fn dims<const N: usize>(input: &Tensor, expected: &str) -> Result<[Dim; N], SemanticsError> {
    <[Dim; N]>::try_from(input.shape.dims()).map_err(|_| wrong_shape(input, expected.to_owned()))
}

fn last(input: &Tensor) -> Result<Dim, SemanticsError> {
    input.shape.dims().last().copied().ok_or_else(|| wrong_shape(input, "[.., m]".to_owned()))
}

fn has_shape(input: &Tensor, expected: &Shape) -> Result<(), SemanticsError> {
    if input.shape == *expected { Ok(()) } else { Err(wrong_shape(input, expected.to_string())) }
}

fn wrong_dtype(input: &Tensor, expected: DTypeRule) -> SemanticsError {
    SemanticsError::DType { input: input.name.to_string(), dtype: input.dtype, shape: input.shape.clone(), expected }
}

fn has_dtype(input: &Tensor, expected: DType) -> Result<(), SemanticsError> {
    if input.dtype == expected { Ok(()) } else { Err(wrong_dtype(input, DTypeRule::Exactly(expected))) }
}

fn float(input: &Tensor) -> Result<(), SemanticsError> {
    // Only weights and the cache are stored quantized; activations are plain floats.
    let quantizable = matches!(input.role, Role::Weight | Role::KvCache);
    if DTypeRule::AnyFloat.allows(input.dtype) || (quantizable && input.dtype.is_float()) {
        return Ok(());
    }
    Err(wrong_dtype(input, DTypeRule::AnyFloat))
}

fn integer(input: &Tensor) -> Result<(), SemanticsError> {
    if input.dtype.is_integer() { Ok(()) } else { Err(wrong_dtype(input, DTypeRule::AnyInteger)) }
}

fn is_cache(input: &Tensor, heads: Heads) -> Result<(), SemanticsError> {
    if input.role != Role::KvCache {
        return Err(SemanticsError::Role {
            input: input.name.to_string(),
            found: input.role.in_words(),
            expected: Role::KvCache.in_words(),
        });
    }
    float(input)?;
    let width = Dim::fixed(heads.keys_and_values());
    let [tokens, columns] = dims(input, &format!("[context, {width}]"))?;
    if columns == width { Ok(()) } else { Err(wrong_shape(input, format!("[{tokens}, {width}]"))) }
}
