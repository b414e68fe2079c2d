//! The kernels of encoders as operators.

use std::sync::Arc;

use slicescheduler_gmg::semantics::OpKind;

use super::{BoundKernel, Call, Site, columns, start_from};
use crate::error::Result;
use crate::kernels::{
    Output, add_bias, gelu, layer_norm, matmul_in_parts, mean_pool, normalize_rows, self_attention_in_parts, tanh,
};

/// The operator at `site`, if encoders have its kind.
pub(super) fn bind(site: &Site<'_>) -> Result<Option<Arc<dyn BoundKernel>>> {
    Ok(Some(match *site.op.kind() {
        OpKind::Add => Arc::new(Add),
        OpKind::LayerNorm { epsilon } => Arc::new(LayerNorm { epsilon }),
        OpKind::Linear => Arc::new(Linear),
        OpKind::Gelu => Arc::new(Gelu),
        OpKind::Tanh => Arc::new(Tanh),
        OpKind::SelfAttention { heads, head_dim } => {
            Arc::new(SelfAttention { heads: heads as usize, head_dim: head_dim as usize })
        }
        OpKind::MeanPool => Arc::new(MeanPool { width: columns(site.input(0))? }),
        OpKind::Normalize => Arc::new(Normalize { width: columns(site.input(0))? }),
        _ => return Ok(None),
    }))
}

#[derive(Debug)]
struct Add;

impl BoundKernel for Add {
    fn run(&self, call: &mut Call<'_>) -> Result<()> {
        let y = call.output::<f32>(0)?;
        start_from("add", call.input(0)?, y)?;
        // One "row" as long as the whole: the sum of two equal shapes.
        if y.is_empty() { Ok(()) } else { add_bias(y, call.input(1)?) }
    }
}

#[derive(Debug)]
struct LayerNorm {
    epsilon: f32,
}

impl BoundKernel for LayerNorm {
    fn run(&self, call: &mut Call<'_>) -> Result<()> {
        layer_norm(call.input(0)?, call.vector(1)?, call.vector(2)?, self.epsilon, call.output(0)?)
    }
}

/// A product onto a bias, and onto a residual if there is one.
#[derive(Debug)]
struct Linear;

impl BoundKernel for Linear {
    fn run(&self, call: &mut Call<'_>) -> Result<()> {
        let (x, weights, y) = (call.input(0)?, call.matrix(1)?, call.output::<f32>(0)?);
        if call.parts().first() == 0 {
            if call.inputs() > 3 {
                start_from("linear", call.input(3)?, y)?;
            } else {
                y.fill(0.0);
            }
            add_bias(y, call.vector(2)?)?;
        }
        let rows = y.len() / weights.n().max(1);
        matmul_in_parts(x, rows, weights, Output::Accumulate, y, call.parts())
    }
}

#[derive(Debug)]
struct Gelu;

impl BoundKernel for Gelu {
    fn run(&self, call: &mut Call<'_>) -> Result<()> {
        gelu(call.input(0)?, call.output(0)?)
    }
}

#[derive(Debug)]
struct Tanh;

impl BoundKernel for Tanh {
    fn run(&self, call: &mut Call<'_>) -> Result<()> {
        tanh(call.input(0)?, call.output(0)?)
    }
}

#[derive(Debug)]
struct SelfAttention {
    heads: usize,
    head_dim: usize,
}

impl BoundKernel for SelfAttention {
    fn run(&self, call: &mut Call<'_>) -> Result<()> {
        let (qkv, lengths, out) = (call.input(0)?, call.input(1)?, call.output(0)?);
        self_attention_in_parts(qkv, lengths, self.heads, self.head_dim, out, call.parts())
    }
}

#[derive(Debug)]
struct MeanPool {
    width: usize,
}

impl BoundKernel for MeanPool {
    fn run(&self, call: &mut Call<'_>) -> Result<()> {
        mean_pool(call.input(0)?, call.input(1)?, self.width, call.output(0)?)
    }
}

#[derive(Debug)]
struct Normalize {
    width: usize,
}

impl BoundKernel for Normalize {
    fn run(&self, call: &mut Call<'_>) -> Result<()> {
        normalize_rows(call.input(0)?, self.width, call.output(0)?)
    }
}
