//! The kernels of mixtures of experts as operators.

use std::sync::Arc;

use slicescheduler_gmg::semantics::OpKind;

use super::{BoundKernel, Call, Site, columns, start_from};
use crate::error::Result;
use crate::kernels::{combine_rows, grouped_matmul, permute_rows, top_k};

/// The operator at `site`, if mixtures of experts have its kind and it is all here: experts that are
/// spread over ranks are not.
pub(super) fn bind(site: &Site<'_>) -> Result<Option<Arc<dyn BoundKernel>>> {
    Ok(Some(match *site.op.kind() {
        OpKind::TopK { top } => Arc::new(TopK { experts: columns(site.input(0))?, top: top as usize }),
        OpKind::Permute => Arc::new(Permute { width: columns(site.input(0))? }),
        OpKind::GroupedMatMul { ranks: 1, .. } => Arc::new(GroupedMatMul),
        OpKind::Combine => Arc::new(Combine { width: columns(site.input(0))? }),
        _ => return Ok(None),
    }))
}

#[derive(Debug)]
struct TopK {
    experts: usize,
    top: usize,
}

impl BoundKernel for TopK {
    fn run(&self, call: &mut Call<'_>) -> Result<()> {
        top_k(call.input(0)?, self.experts, self.top, call.output(0)?, call.output(1)?)
    }
}

#[derive(Debug)]
struct Permute {
    width: usize,
}

impl BoundKernel for Permute {
    fn run(&self, call: &mut Call<'_>) -> Result<()> {
        permute_rows(call.input(0)?, self.width, call.input(1)?, call.output(0)?)
    }
}

#[derive(Debug)]
struct GroupedMatMul;

impl BoundKernel for GroupedMatMul {
    fn run(&self, call: &mut Call<'_>) -> Result<()> {
        let (x, chosen, experts, y) = (call.input(0)?, call.input(1)?, call.experts(2)?, call.output(0)?);
        grouped_matmul(x, chosen, experts, y, call.parts())
    }
}

/// A sum onto a residual if there is one.
#[derive(Debug)]
struct Combine {
    width: usize,
}

impl BoundKernel for Combine {
    fn run(&self, call: &mut Call<'_>) -> Result<()> {
        let y = call.output::<f32>(0)?;
        if call.inputs() > 3 {
            start_from("combine", call.input(3)?, y)?;
        } else {
            y.fill(0.0);
        }
        combine_rows(call.input(0)?, call.input(1)?, call.input(2)?, self.width, y)
    }
}
