//! Every tenant alone on its devices.

use slicescheduler_gmg::id::DeviceId;
use slicescheduler_gmg::plan::{Event, Plan};

use crate::baseline::Baseline;
use crate::batching::Iteration;
use crate::placing::{is_free, run_owner, touched};
use crate::policy::{Context, Policy};

pub(super) const ENTRY: Baseline = Baseline {
    name: "static",
    rule: "every tenant on its own devices, and nowhere else",
    source: "continuous batching: Yu et al., Orca, OSDI 2022; Kwon et al., vLLM, SOSP 2023",
    parameters: &[],
    build: |_| Box::new(StaticContainers::default()),
};

/// Static containers: every tenant on its own devices, with continuous batching, and nowhere else.
#[derive(Debug, Default)]
pub struct StaticContainers {
    scratch: Iteration,
}

impl Policy for StaticContainers {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn on_event(&mut self, context: &mut Context<'_>, event: &Event) -> Plan {
        let mut plan = context.plan();
        match touched(context.view, event) {
            Some(device) => self.fill(context, device, &mut plan),
            None => context.devices().for_each(|device| self.fill(context, device, &mut plan)),
        }
        plan
    }
}

impl StaticContainers {
    fn fill(&mut self, context: &Context<'_>, device: DeviceId, plan: &mut Plan) {
        if is_free(context.view, device) {
            run_owner(context, device, &mut self.scratch, plan);
        }
    }
}
