//! Durations of the jobs that are launched.

use std::collections::HashMap;
use std::sync::Arc;

use slicescheduler_gmg::cluster::DeviceSpec;
use slicescheduler_gmg::graph::OpGraph;
use slicescheduler_gmg::shape::Binding;

use crate::cost::{CostModel, CostTable, JobCost};

/// The cost model of a world, compiled for each template and kind of device when it is first used.
#[derive(Debug)]
pub(super) struct BoundCosts {
    model: Arc<dyn CostModel>,
    version: u64,
    /// By the addresses of template and device; a table keeps both alive.
    tables: HashMap<(usize, usize), CostTable>,
}

impl BoundCosts {
    pub(super) fn new(model: Arc<dyn CostModel>) -> Self {
        Self { version: model.version(), model, tables: HashMap::new() }
    }

    /// The durations of a job of `template` on `device`.
    pub(super) fn bind(&mut self, template: &Arc<OpGraph>, binding: &Binding, device: &Arc<DeviceSpec>) -> JobCost {
        if self.version != self.model.version() {
            self.version = self.model.version();
            self.tables.clear();
        }
        let key = (Arc::as_ptr(template).addr(), Arc::as_ptr(device).addr());
        let compile = || CostTable::new(self.model.clone(), template.clone(), device.clone());
        self.tables.entry(key).or_insert_with(compile).bind(binding)
    }
}
