//! Cases of the oracle from scenarios, with the durations of a cost model.

use std::sync::Arc;

use slicescheduler_gmg::GmgView;
use slicescheduler_gmg::cluster::DeviceSpec;
use slicescheduler_gmg::graph::OpGraph;
use slicescheduler_gmg::id::{DeviceId, ModelId, TenantId};
use slicescheduler_gmg::plan::Action;
use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::units::Nanos;
use slicescheduler_scheduler::policy::Policy;
use slicescheduler_simulator::JobCost;
use slicescheduler_simulator::cost::CostModel;

use crate::bound::needs::{Needs, Sizes};
use crate::bound::oracle::{Batch, Case, Durations, Known, MOST_REQUESTS, Place};
use crate::bound::work::{NoRoofline, Work, work};
use crate::scenario::{Scenario, Source};
use crate::setup::{Setup, SetupError};
use crate::workload::WorkloadError;

/// Why a scenario is no case.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioCaseError {
    /// It cannot be set up.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// A trace is damaged.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The cost model is not made of rooflines.
    #[error(transparent)]
    NoRoofline(#[from] NoRoofline),
    /// The oracle computes prompts whole, and no device can.
    #[error(
        "a request of tenant {tenant} with a prompt of {prompt} tokens fits no device whole, which take {budget} at a time: \
         expected a token_budget of as many, or a max_prompt"
    )]
    NeverWhole {
        /// Whose request.
        tenant: usize,
        /// Tokens of its prompt.
        prompt: u32,
        /// The most that a device of its tenant takes.
        budget: u64,
    },
}

/// Iterations by a cost model, operator by operator: [`Durations`] of replicas, one device each.
#[derive(Debug)]
pub struct Modelled<'m> {
    model: &'m dyn CostModel,
    /// By tenant.
    templates: Vec<Arc<OpGraph>>,
    devices: Vec<DeviceSpec>,
    /// By device, then by tenant.
    works: Vec<Vec<Vec<Work>>>,
}

impl<'m> Modelled<'m> {
    /// The durations of `model` for one template per tenant.
    ///
    /// # Errors
    /// If `model` is not made of rooflines.
    pub fn new(
        model: &'m dyn CostModel,
        templates: Vec<Arc<OpGraph>>,
        devices: Vec<DeviceSpec>,
    ) -> Result<Self, NoRoofline> {
        let of = |device: &DeviceSpec| templates.iter().map(|template| work(model, template, device)).collect();
        let works = devices.iter().map(of).collect::<Result<_, _>>()?;
        Ok(Self { model, templates, devices, works })
    }
}

impl Durations for Modelled<'_> {
    fn iteration(&self, device: usize, tenant: usize, batch: &Batch) -> Nanos {
        let (Some(device), Some(template)) = (self.devices.get(device), self.templates.get(tenant)) else {
            return Nanos::MAX;
        };
        let binding = Binding::iteration(batch.tokens, batch.sequences, batch.context, batch.pairs);
        let cost = JobCost::bind(self.model, template, &binding, device);
        cost.total(0..cost.op_count())
    }

    /// Arithmetic of products and memory traffic of all else: of either, every operator's time is at least the sum
    /// over the rows.
    fn least(&self, device: usize, tenant: usize, needs: &Needs) -> Nanos {
        let works = self.works.get(device).and_then(|tenants| tenants.get(tenant));
        let seconds: f64 = works.into_iter().flatten().map(|work| work.marginal(needs)).sum();
        Nanos((seconds * 1e9) as u64)
    }
}

impl Case {
    /// The first requests of a scenario, at most `most` per tenant and one more than [`MOST_REQUESTS`], with weights as
    /// `policy` places them and the durations of `model`. Weights are taken to be in place from the start.
    ///
    /// # Errors
    /// If the scenario is impossible, a trace is damaged, or `model` is not made of rooflines.
    pub fn of_scenario<'m>(
        scenario: &Scenario,
        policy: &dyn Policy,
        model: &'m dyn CostModel,
        most: usize,
    ) -> Result<(Self, Modelled<'m>), ScenarioCaseError> {
        // More would be refused, and a backlog does not end.
        let most = most.min(MOST_REQUESTS + 1);
        let setup = Setup::new(scenario, policy)?;
        let view = setup.gmg.view();
        let mut requests = Vec::new();
        for tenant in 0..scenario.tenants.len() {
            let slo = view.tenants().get(tenant).and_then(|tenant| tenant.slo);
            let known = |arrival, prompt, output| {
                let own = setup.levels.of(TenantId(tenant as u32), prompt);
                Known { tenant, arrival, sizes: Sizes { prompt, output }, slo: own.or(slo) }
            };
            match scenario.requests(tenant)? {
                Some(Source::Arrivals(stream)) => {
                    for record in stream.take(most) {
                        let record = record?;
                        requests.push(known(record.at, record.prompt, record.output));
                    }
                }
                Some(Source::Backlog { requests: backlog, .. }) => {
                    let taken = backlog.take(most).map(|(prompt, output)| known(Nanos::ZERO, prompt, output));
                    requests.extend(taken);
                }
                None => {}
            }
        }
        let comes = |model: ModelId, device: DeviceId| {
            setup.prefetch.iter().any(|action| {
                matches!(action, Action::Prefetch { model: of, device: to, .. } if (*of, *to) == (model, device))
            })
        };
        let places = view.cluster().devices().iter().map(|device| {
            let is_there = |model: ModelId| view.is_resident(model, device.id) || comes(model, device.id);
            let tenants: Vec<usize> =
                (0..setup.models.len()).filter(|&tenant| is_there(setup.models[tenant])).collect();
            let options = || tenants.iter().filter_map(|&tenant| setup.batching.get(tenant)).map(|one| one.options());
            Place {
                cache: view
                    .memory(device.id)
                    .map_or(0, |memory| u64::from(memory.kv().total()) * u64::from(memory.layout().kv_block_tokens)),
                token_budget: options().map(|options| u64::from(options.token_budget)).max().unwrap_or(0),
                max_sequences: options().map(|options| u64::from(options.max_sequences)).max().unwrap_or(0),
                tenants,
            }
        });
        let case = Self { requests, devices: places.collect(), horizon: scenario.duration };
        case.is_computed_whole()?;
        let template = |&model: &ModelId| view.model(model).map(|model| model.template.clone());
        let templates = setup.models.iter().filter_map(template).collect();
        let devices = view.cluster().devices().iter().map(|device| DeviceSpec::clone(&device.spec)).collect();
        Ok((case, Modelled::new(model, templates, devices)?))
    }
}

impl Case {
    /// An error if the prompt of a request fits no device of its tenant, so that policies, which cut it, could do what the
    /// oracle cannot.
    fn is_computed_whole(&self) -> Result<(), ScenarioCaseError> {
        for &Known { tenant, sizes: Sizes { prompt, .. }, .. } in &self.requests {
            let places = self.devices.iter().filter(|place| place.tenants.contains(&tenant));
            let budget = places.map(|place| place.token_budget.min(place.cache)).max().unwrap_or(0);
            if u64::from(prompt) > budget {
                return Err(ScenarioCaseError::NeverWhole { tenant, prompt, budget });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use slicescheduler_gmg::templates::{DenseSpec, dense};
    use slicescheduler_simulator::world::WorldCost;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn rows_take_at_least_their_share_of_an_iteration(
            rows in prop::collection::vec((1u32..3000, 1u32..200, any::<bool>()), 1..8),
        ) {
            let template = Arc::new(dense(&DenseSpec::llama3_8b()).unwrap());
            let model = WorldCost::default();
            let modelled = Modelled::new(&model, vec![template], vec![DeviceSpec::h100_sxm()]).unwrap();
            let (mut batch, mut shares) = (Batch::default(), Nanos::ZERO);
            for (prompt, produced, answers) in rows {
                let until = |output| Needs::of(Sizes { prompt, output });
                let (before, after) = match answers {
                    true => (until(produced), until(produced + 1)),
                    false => (Needs::default(), until(1)),
                };
                let needs = Needs {
                    tokens: after.tokens - before.tokens,
                    outputs: after.outputs - before.outputs,
                    context: after.context - before.context,
                    pairs: after.pairs - before.pairs,
                };
                batch.tokens += needs.tokens as u64;
                batch.sequences += 1;
                batch.context += needs.context as u64;
                batch.pairs += needs.pairs as u64;
                shares += modelled.least(0, 0, &needs);
            }
            prop_assert!(shares > Nanos::ZERO && shares <= modelled.iteration(0, 0, &batch));
        }
    }
}
