//! Oracle: every schedule of tiny cases, one by one, without any bound.

use super::*;
use proptest::prelude::*;

/// An iteration takes 10 us, 1 us for every token and 100 ns for every token of context; tenant 1 twice that.
struct Affine;

impl Durations for Affine {
    fn iteration(&self, _: usize, tenant: usize, batch: &Batch) -> Nanos {
        Nanos(10_000 + batch.tokens * 1000 + batch.context * 100).times(tenant as u64 + 1)
    }

    fn least(&self, _: usize, tenant: usize, needs: &Needs) -> Nanos {
        Nanos((needs.tokens * 1000.0 + needs.context * 100.0) as u64).times(tenant as u64 + 1)
    }
}

fn place(tenants: &[usize]) -> Place {
    Place { tenants: tenants.to_vec(), cache: 100, token_budget: 64, max_sequences: 4 }
}

fn known(tenant: usize, arrival: Nanos, prompt: u32, output: u32) -> Known {
    Known { tenant, arrival, sizes: Sizes { prompt, output }, slo: None }
}

/// The best value by trying everything: which device decides, every choice of rows, waiting included.
fn exhaustive(case: &Case, state: &State) -> u64 {
    let search = Search {
        case,
        durations: &Affine,
        best: 0,
        left_out: 0,
        states: 0,
        most_states: 0,
        seen: HashMap::new(),
        alike: false,
    };
    let device = (0..state.free.len()).min_by_key(|&device| state.free[device]).unwrap();
    let now = state.free[device];
    if now >= case.horizon {
        return state.tokens;
    }
    let mut best = state.tokens;
    for tenant in case.devices[device].tenants.clone() {
        for chosen in 1..1u32 << case.requests.len() {
            let rows: Vec<usize> = (0..case.requests.len()).filter(|request| chosen >> request & 1 == 1).collect();
            let may_run = |&request: &usize| match state.requests[request] {
                Progress::Waiting => case.requests[request].arrival <= now,
                Progress::Running { device: on, .. } => on == device,
                Progress::Over => false,
            };
            let must_run = |request: usize| {
                matches!(state.requests[request], Progress::Running { device: on, .. } if on == device)
                    && case.requests[request].tenant == tenant
            };
            let complete = (0..case.requests.len()).filter(|&request| must_run(request)).all(|one| rows.contains(&one));
            let allowed = rows.iter().all(|row| may_run(row) && case.requests[*row].tenant == tenant);
            if let Some(next) = search.run(state, device, tenant, &rows).filter(|_| complete && allowed) {
                best = best.max(exhaustive(case, &next));
            }
        }
    }
    let later = case.requests.iter().map(|request| request.arrival).filter(|&arrival| arrival > now).min();
    let mut waits = state.clone();
    waits.free[device] = later.unwrap_or(Nanos::MAX);
    best.max(exhaustive(case, &waits))
}

/// Two prompts of 10 tokens and one of 30. Alone: 10 + 10 + 1 = 21 us and 43 us. Together they take
/// 10 + 50 + 5 = 65 us.
#[test]
fn what_does_not_fit_into_the_time_is_left_out_by_value() {
    let requests = vec![known(0, Nanos::ZERO, 10, 1), known(0, Nanos::ZERO, 30, 1), known(0, Nanos::ZERO, 10, 1)];
    let case = |micros| Case { requests: requests.clone(), devices: vec![place(&[0])], horizon: Nanos::us(micros) };
    let best = |micros| case(micros).best(&Affine, 1 << 20).unwrap().tokens;
    assert_eq!(best(20), 0);
    assert_eq!(best(32), 22, "both short ones: 10 + 20 + 2 us");
    assert_eq!(best(43), 31);
    assert_eq!(best(54), 42, "the long one and a short one: 10 + 40 + 4 us");
    assert_eq!(best(65), 53);
}

/// The weights of tenant 1 are on the second device only, where tenant 0 could run as well.
#[test]
fn a_device_that_one_tenant_needs_is_left_to_it() {
    let requests = vec![known(0, Nanos::ZERO, 20, 1), known(1, Nanos::ZERO, 20, 1)];
    let devices = vec![place(&[0]), place(&[0, 1])];
    let case = Case { requests, devices, horizon: Nanos::us(64) };
    assert_eq!(case.best(&Affine, 1 << 20).unwrap().tokens, 42, "32 us on the first, 64 us on the second");
}

#[test]
fn a_request_whose_first_token_would_be_late_does_not_count() {
    let slo = Some(Slo { ttft: Nanos::us(30), tpot: Nanos::us(30) });
    let urgent = Known { slo, ..known(0, Nanos::us(20), 10, 2) };
    let case =
        |horizon| Case { requests: vec![known(0, Nanos::ZERO, 30, 1), urgent], devices: vec![place(&[0])], horizon };
    // Begun at 0, the long prompt ends at 43 us, and the urgent one after it at 64 us instead of 50 us.
    assert_eq!(case(Nanos::us(65)).best(&Affine, 1 << 20).unwrap().tokens, 31);
    // With time for both, the long one waits: 20 + 21 us, 12.1 us for the second token, due at 80 us, and 43 us.
    assert_eq!(case(Nanos::us(96)).best(&Affine, 1 << 20).unwrap().tokens, 31);
    assert_eq!(case(Nanos::us(97)).best(&Affine, 1 << 20).unwrap().tokens, 31 + 12);
}

#[test]
fn cases_that_can_not_be_searched_are_refused() {
    let case = Case { requests: vec![known(0, Nanos::ZERO, 1, 0)], devices: vec![place(&[0])], horizon: Nanos::us(1) };
    assert_eq!(case.best(&Affine, 1).unwrap_err(), CaseError::NoOutput { request: 0 });
    let case = Case { devices: vec![place(&[0]); 4], ..case };
    assert_eq!(case.best(&Affine, 1).unwrap_err().to_string(), "1 requests on 4 devices: expected at most 12 on 3");
}

fn cases() -> impl Strategy<Value = Case> {
    let request = (0usize..2, 0u64..4, 1u32..20, 1u32..3, prop::option::of(1u64..6));
    let place = (1u8..4, 20u64..80, 10u64..40, 1u64..4);
    (prop::collection::vec(request, 1..4), prop::collection::vec(place, 1..3), 20u64..120, any::<bool>()).prop_map(
        |(requests, devices, micros, alike)| {
            let requests = requests.into_iter().map(|(tenant, arrival, prompt, output, slo)| Known {
                slo: slo.map(|tens| Slo { ttft: Nanos::us(10 * tens), tpot: Nanos::us(15) }),
                ..known(tenant, Nanos::us(arrival * 12), prompt, output)
            });
            let devices = devices.into_iter().map(|(tenants, cache, token_budget, max_sequences)| Place {
                tenants: (0..2).filter(|tenant| tenants >> tenant & 1 == 1).collect(),
                cache,
                token_budget,
                max_sequences,
            });
            let mut devices: Vec<Place> = devices.collect();
            if alike {
                let first = devices[0].clone();
                devices.fill(first);
            }
            Case { requests: requests.collect(), devices, horizon: Nanos::us(micros) }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_best_schedule_is_that_of_an_exhaustive_search(case in cases()) {
        let best = case.best(&Affine, u64::MAX).unwrap();
        prop_assert!(best.is_proven());
        prop_assert_eq!(best.tokens, exhaustive(&case, &State::new(case.requests.len(), case.devices.len())));
    }

    #[test]
    fn a_search_that_is_cut_short_says_how_much_better_it_could_be(case in cases(), states in 0u64..20) {
        let (short, whole) = (case.best(&Affine, states).unwrap(), case.best(&Affine, u64::MAX).unwrap());
        prop_assert!(short.tokens <= whole.tokens && whole.tokens <= short.at_most);
        prop_assert!(short.states <= states);
    }
}
