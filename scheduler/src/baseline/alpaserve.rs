//! A placement that a simulation of the load finds.

use slicescheduler_gmg::id::TenantId;
use slicescheduler_gmg::plan::{Event, Plan};
use slicescheduler_gmg::tenant::Class;
use slicescheduler_gmg::units::Bytes;

use crate::baseline::join_shortest_queue::JoinShortestQueue;
use crate::baseline::room::RESERVE;
use crate::baseline::turns::BEST_EFFORT_EVERY;
use crate::baseline::{Baseline, Parameter, Settings, add_best_effort, fits};
use crate::policy::{Context, Policy, Residency, TenantShape, owners_only};

const LOAD: Parameter = Parameter {
    name: "load_percent",
    what: "the load that is simulated, as a share of what the tenants' own devices can serve",
    default: 80,
    least: 1,
    most: 1000,
    grid: &[50, 80, 120],
};

const BURST: Parameter = Parameter {
    name: "burst",
    what: "requests that arrive together in the simulated load",
    default: 4,
    least: 1,
    most: 1000,
    grid: &[1, 4, 16],
};

const SLO_SCALE: Parameter = Parameter {
    name: "slo_scale",
    what: "due times in the simulated load, as a multiple of the service time",
    default: 5,
    least: 1,
    most: 1000,
    grid: &[2, 5, 10],
};

pub(super) const ENTRY: Baseline = Baseline {
    name: "alpaserve",
    rule: "copies of models are placed one by one where a simulated load misses most due times; then as jsq-edf",
    source: "Li et al., AlpaServe: statistical multiplexing with model parallelism for deep learning serving, OSDI 2023",
    parameters: &[LOAD, BURST, SLO_SCALE, BEST_EFFORT_EVERY, RESERVE],
    build: |settings| Box::new(AlpaServe::new(settings)),
};

/// AlpaServe-like placement: starting from the containers, the load is simulated, a copy of the model with the most
/// unserved requests goes to the device with the least work on which it fits, and so on until nothing fits; of all
/// placements seen, the one that serves most requests in time wins, the one with fewer copies among equals
/// (AlpaServe's fast heuristic of algorithm 1). Requests are then dispatched to the shortest queue.
///
/// The load of a real trace is not known before a run, so what is simulated is an even load in bursts: a request of
/// a model takes time in proportion to its weights, and every tenant brings a share of what its own devices can
/// serve. Groups of devices with pipelines or tensor ranks are not searched: how a model is spread over devices is
/// its container's.
#[derive(Debug)]
pub struct AlpaServe {
    load: Load,
    dispatch: JoinShortestQueue,
}

impl Default for AlpaServe {
    fn default() -> Self {
        Self::new(&Settings::default())
    }
}

#[derive(Clone, Copy, Debug)]
struct Load {
    percent: u64,
    burst: u64,
    slo_scale: u64,
}

impl AlpaServe {
    fn new(settings: &Settings) -> Self {
        let load =
            Load { percent: settings.get(&LOAD), burst: settings.get(&BURST), slo_scale: settings.get(&SLO_SCALE) };
        Self { load, dispatch: JoinShortestQueue::new(settings) }
    }
}

impl Policy for AlpaServe {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn residency(&self, tenants: &[TenantShape<'_>], memory: &[Bytes]) -> Residency {
        let mut residency = place(tenants, memory, self.load);
        add_best_effort(&mut residency, tenants, memory);
        residency
    }

    fn on_event(&mut self, context: &mut Context<'_>, event: &Event) -> Plan {
        self.dispatch.on_event(context, event)
    }
}

/// Bursts of every tenant that are simulated.
const BURSTS: u64 = 100;

fn place(tenants: &[TenantShape<'_>], memory: &[Bytes], load: Load) -> Residency {
    let mut placement = owners_only(tenants, memory.len());
    let arrivals = arrivals(tenants, load);
    let mut best = (0, placement.clone());
    loop {
        let Served { in_time, unserved, busy } = serve(&placement, tenants, &arrivals, load);
        if in_time > best.0 {
            best = (in_time, placement.clone());
        }
        let mut needy: Vec<TenantId> = (0..tenants.len() as u32).map(TenantId).collect();
        needy.retain(|tenant| unserved[tenant.index()] > 0 && tenants[tenant.index()].can_be_guest());
        needy.sort_by_key(|tenant| (std::cmp::Reverse(unserved[tenant.index()]), *tenant));
        let device_for = |tenant: TenantId| {
            let weights = tenants[tenant.index()].weights;
            let free = |&device: &usize| {
                let models = &placement[device];
                !models.contains(&tenant) && fits(models, weights, tenants, memory[device])
            };
            (0..memory.len()).filter(free).min_by_key(|&device| (busy[device], device))
        };
        let Some((tenant, device)) = needy.iter().find_map(|&tenant| Some((tenant, device_for(tenant)?))) else {
            return best.1;
        };
        placement[device].push(tenant);
    }
}

/// The service time of a request, in ticks.
fn service(tenant: &TenantShape<'_>) -> u64 {
    (tenant.weights.get() >> 20).max(1)
}

/// Arrivals of latency-sensitive tenants in the order of their times. Gaps between bursts are uniform from zero
/// to twice their mean, by a generator of Lehmer's kind, so that the same placement is found on every machine.
fn arrivals(tenants: &[TenantShape<'_>], load: Load) -> Vec<(u64, TenantId)> {
    let mut arrivals = Vec::new();
    for (tenant, shape) in (0..).map(TenantId).zip(tenants).filter(|(_, shape)| shape.class == Class::LatencySensitive)
    {
        let gap = service(shape) * load.burst * 100 / (load.percent * shape.devices.len().max(1) as u64).max(1);
        let (mut at, mut random) = (0u64, u64::from(tenant.0) + 1);
        for _ in 0..BURSTS {
            random = random * 48_271 % 0x7fff_ffff;
            at += random % (2 * gap).max(1);
            arrivals.extend((0..load.burst).map(|_| (at, tenant)));
        }
    }
    arrivals.sort_unstable();
    arrivals
}

struct Served {
    in_time: u64,
    /// By tenant.
    unserved: Vec<u64>,
    /// By device, in ticks.
    busy: Vec<u64>,
}

/// Every request goes to the device that is free first; one that would be late there is not served.
fn serve(placement: &Residency, tenants: &[TenantShape<'_>], arrivals: &[(u64, TenantId)], load: Load) -> Served {
    let mut free = vec![0u64; placement.len()];
    let mut served = Served { in_time: 0, unserved: vec![0; tenants.len()], busy: vec![0; placement.len()] };
    for &(at, tenant) in arrivals {
        let service = service(&tenants[tenant.index()]);
        let devices = (0..placement.len()).filter(|&device| placement[device].contains(&tenant));
        let first = devices.min_by_key(|&device| (free[device], device));
        match first.map(|device| (device, free[device].max(at) + service)) {
            Some((device, finish)) if finish <= at + service * load.slo_scale => {
                free[device] = finish;
                served.busy[device] += service;
                served.in_time += 1;
            }
            _ => served.unserved[tenant.index()] += 1,
        }
    }
    served
}

#[cfg(test)]
mod tests {
    use super::*;
    use slicescheduler_gmg::id::DeviceId;
    use slicescheduler_gmg::tenant::LendingMode;

    fn shape(class: Class, weights: Bytes, devices: &[DeviceId]) -> TenantShape<'_> {
        TenantShape { class, lending: LendingMode::SloSlack, weights, devices, ranks: 1 }
    }

    /// Bursts of four requests with due times of twice the service time: one device serves two of them in time,
    /// so two devices serve a whole burst.
    #[test]
    fn copies_go_where_bursts_can_be_served_together() {
        let homes: Vec<DeviceId> = (0..4).map(DeviceId).collect();
        let tenants: Vec<_> =
            (0..4).map(|at| shape(Class::LatencySensitive, Bytes::gb(16), &homes[at..at + 1])).collect();
        let load = Load { percent: 50, burst: 4, slo_scale: 2 };
        let memory = [Bytes::gb(50); 4];
        let (owners, placed) = (owners_only(&tenants, 4), place(&tenants, &memory, load));
        let in_time = |placement| serve(placement, &tenants, &arrivals(&tenants, load), load).in_time;
        assert_eq!(in_time(&owners), in_time(&owners).min(4 * BURSTS * 2), "two of four at most");
        assert!(in_time(&placed) > in_time(&owners) * 5 / 4, "{} of {}", in_time(&placed), in_time(&owners));
        assert!(placed.iter().all(|models| models.len() <= 2), "35 of 50 GB hold two models");
    }

    #[test]
    fn a_load_that_the_containers_serve_needs_no_copies() {
        let homes: Vec<DeviceId> = (0..2).map(DeviceId).collect();
        let tenants = [
            shape(Class::LatencySensitive, Bytes::gb(16), &homes[..1]),
            shape(Class::LatencySensitive, Bytes::gb(16), &homes[1..]),
        ];
        let load = Load { percent: 10, burst: 1, slo_scale: 1000 };
        assert_eq!(place(&tenants, &[Bytes::gb(72); 2], load), owners_only(&tenants, 2));
    }
}
