//! A policy on a case of the oracle: the same requests in the simulated world, with its tokens counted alike.

use std::sync::Arc;

use slicescheduler_gmg::delta::NewRequest;
use slicescheduler_gmg::id::TenantId;
use slicescheduler_gmg::plan::{Command, Event, Observer};
use slicescheduler_gmg::units::Nanos;
use slicescheduler_gmg::{GmgView, View};
use slicescheduler_scheduler::policy::Policy;
use slicescheduler_simulator::cost::Roofline;
use slicescheduler_simulator::timeline::{Horizon, Timeline};
use slicescheduler_simulator::world::{SimWorld, WorldCost, WorldOptions};

use crate::bound::oracle::{Case, Known};
use crate::driver::{Arrival, Driver, DriverOptions};
use crate::replay::{ReplayError, violates};
use crate::scenario::Scenario;
use crate::setup::Setup;

/// Links bring the weights of guests before the first request arrives, as the oracle has them from the start.
const WEIGHTS_COME: Nanos = Nanos::secs(60);

/// Input and output tokens of the requests of `case` that count under `policy`: they end before the horizon, and those
/// with a service level keep it. The world has no noise, so its iterations last as long as the oracle's; the policy
/// knows neither arrivals nor lengths beforehand.
///
/// # Errors
/// If the scenario is impossible or the world is broken.
pub fn tokens_of(scenario: &Scenario, policy: Box<dyn Policy>, case: &Case) -> Result<u64, ReplayError> {
    let setup = Setup::new(scenario, &*policy)?;
    let cluster = Arc::new(setup.gmg.view().cluster().clone());
    let world_options =
        WorldOptions { seed: scenario.seed, operator_noise: 0, iteration_noise: 0, ..WorldOptions::default() };
    let world = SimWorld::new(cluster, Box::new(WorldCost::default()), world_options);
    let what_if = Timeline::of(setup.gmg.view(), Arc::new(Roofline::default()), Horizon::secs(2))
        .launched_window(world_options.launched_window);
    let options = DriverOptions { shares_slots: true, ..DriverOptions::default() };
    let mut driver = Driver::new(setup.gmg, setup.batching, policy, Box::new(what_if), world, options)?;
    driver.prefetch(setup.prefetch, &mut Nobody)?;
    let mut requests: Vec<&Known> = case.requests.iter().collect();
    requests.sort_by_key(|known| known.arrival);
    for known in requests {
        let arrival = WEIGHTS_COME + known.arrival;
        while driver.now() < arrival {
            driver.step(arrival, &mut Nobody)?;
        }
        let request = driver.gmg().next_request_id();
        driver.world_mut().reveal(request, known.sizes.output);
        let tenant = TenantId(known.tenant as u32);
        let prompt = known.sizes.prompt;
        let request = NewRequest { tenant, arrival, prompt, max_output: u32::MAX };
        driver.submit(Arrival::from(request).slo(setup.levels.of(tenant, prompt)), &mut Nobody)?;
    }
    let end = WEIGHTS_COME + case.horizon;
    while driver.now() < end {
        driver.step(end, &mut Nobody)?;
    }
    let mut completed = Vec::new();
    driver.take_completed(&mut completed);
    let counts = completed.iter().filter(|done| done.last_token <= end && !violates(done));
    Ok(counts.map(|done| u64::from(done.prompt) + u64::from(done.produced)).sum())
}

struct Nobody;

impl Observer for Nobody {
    fn on_event(&mut self, _: &Event, _: View<'_>) {}
    fn on_command(&mut self, _: Nanos, _: &Command, _: View<'_>) {}
}
