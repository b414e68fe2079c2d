//! Golden: two real runs of vLLM 0.19, predicted from profiles of their devices.
//!
//! The bounds are those of the project's targets, or what was reached and half a percent more where that is less.
//! Data: LLMServingSim (MIT), `bench/examples` and `profiler/perf`; looked for in `$SLICESCHEDULER_DATA`, else in
//! `shared/data` beside the workspace.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use slicescheduler::fidelity::{
    Case, Comparison, EngineLimits, EngineRequest, FidelityError, PrefixBlocks, Run, cases, compare, engine, predict,
};
use slicescheduler::gmg::job::Row;
use slicescheduler::gmg::units::Nanos;
use slicescheduler::scheduler::batching::BatchOptions;

fn data() -> Option<PathBuf> {
    let folder = std::env::var_os("SLICESCHEDULER_DATA")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data"), PathBuf::from);
    if folder.join("vllm-runs").is_dir() {
        return Some(folder);
    }
    assert!(std::env::var_os("CI").is_none(), "no vllm-runs in {}: set SLICESCHEDULER_DATA", folder.display());
    eprintln!("skipped: no vllm-runs in {}", folder.display());
    None
}

fn comparison(data: &Path, device: &str) -> Comparison {
    let mut run = Run::read(&data.join(format!("vllm-runs/{device}-Llama-3.1-8B"))).unwrap();
    let prefixes = data.join("vllm-runs/sharegpt-llama-3.1-8b-300.prefix-blocks.jsonl.gz");
    PrefixBlocks::read(&prefixes).unwrap().describe(&mut run).unwrap();
    let profile = data.join(format!("profiles/llmservingsim/{device}/Llama-3.1-8B"));
    let case = Case::read(run, &profile, None).unwrap();
    let prediction = predict(&case.run, case.profile, &case.shape).unwrap();
    compare(&case.run, &prediction)
}

/// `bounds` by metric: of the mean, of the 90th and of the 99th percentile, in percent.
fn assert_within(comparison: &Comparison, bounds: [[f64; 3]; 3]) {
    for (compared, bounds) in comparison.metrics.iter().zip(bounds) {
        let [mean, _, p90, _, p99] = compared.errors();
        for (what, error, bound) in [("mean", mean, bounds[0]), ("p90", p90, bounds[1]), ("p99", p99, bounds[2])] {
            let name = compared.metric.name();
            assert!(error.abs() <= bound, "{name} {what} is off by {error:.2} %: at most {bound} %");
        }
    }
}

#[test]
fn a_run_that_is_short_of_kv_blocks_is_predicted() {
    let Some(data) = data() else { return };
    let comparison = comparison(&data, "RTX4090");
    assert_within(&comparison, [[1.1, 1.1, 0.6], [0.8, 2.2, 1.1], [1.0, 0.7, 0.9]]);
    let [Some(recorded), Some(derived)] = comparison.kv_blocks else { panic!("{:?}", comparison.kv_blocks) };
    let off = f64::from(derived) / f64::from(recorded) - 1.0;
    assert!(off.abs() < 0.02, "derived {derived} blocks, the engine had {recorded}");
    let load = comparison.load.unwrap();
    assert!(load.running < 1.5 && load.waiting < 2.0 && load.kv.unwrap() < 2.5, "{load:?}");
    assert!(comparison.preemptions > 100, "{}", comparison.preemptions);
}

#[test]
fn a_run_that_is_bound_by_its_batch_size_is_predicted() {
    let Some(data) = data() else { return };
    let comparison = comparison(&data, "RTXPRO6000");
    assert_within(&comparison, [[4.4, 4.5, 2.4], [1.3, 0.6, 0.6], [2.0, 2.1, 1.9]]);
    assert_eq!(comparison.preemptions, 0);
    let load = comparison.load.unwrap();
    assert!(load.running < 2.0 && load.waiting < 2.0, "{load:?}");
}

#[test]
fn shared_beginnings_and_unequal_lengths_matter() {
    let Some(data) = data() else { return };
    let folder = data.join("vllm-runs/RTX4090-Llama-3.1-8B");
    let case = Case::read(Run::read(&folder).unwrap(), &data.join("profiles/llmservingsim/RTX4090/Llama-3.1-8B"), None);
    let case = case.unwrap();
    let prediction = predict(&case.run, case.profile, &case.shape).unwrap();
    let without = compare(&case.run, &prediction);
    let with = comparison(&data, "RTX4090");
    // Shared blocks leave room, so fewer sequences lose theirs; those that do find some of them again, in both cases.
    assert!(without.preemptions > with.preemptions, "{} {}", without.preemptions, with.preemptions);
    let mean = |comparison: &Comparison| comparison.metrics[2].errors()[0];
    assert!(mean(&without) > mean(&with) + 0.5, "{} {}", mean(&without), mean(&with));
}

/// The run on an RTX 4090 in a folder of its own, with `file` as `change` makes it of its lines.
fn changed_run(data: &Path, name: &str, file: &str, change: impl Fn(&mut Vec<String>)) -> Result<Run, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("changed-runs").join(name);
    fs::create_dir_all(&folder).unwrap();
    for name in ["meta.json", "config.json", "requests.jsonl", "timeseries.csv"] {
        let text = fs::read_to_string(data.join("vllm-runs/RTX4090-Llama-3.1-8B").join(name)).unwrap();
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        if name == file {
            change(&mut lines);
        }
        fs::write(folder.join(name), lines.join("\n")).unwrap();
    }
    Run::read(&folder).map_err(|error| error.to_string())
}

#[test]
fn a_run_that_contradicts_itself_is_refused_with_its_line() {
    let Some(data) = data() else { return };
    assert_eq!(changed_run(&data, "same", "", |_| ()).unwrap().requests.len(), 300);
    let requests = |name, change: fn(&mut Vec<String>)| changed_run(&data, name, "requests.jsonl", change).unwrap_err();
    let error = requests("copied", |lines| (0..50).for_each(|_| lines.push(lines[7].clone())));
    assert!(
        error.contains("requests.jsonl, line 301: request_id ") && error.contains("on line 8: expected"),
        "{error}"
    );
    let error = requests("twice", |lines| lines[20] = lines[19].clone());
    assert!(error.contains("requests.jsonl, line 21: ") && error.contains("on line 20: expected"), "{error}");
    let error = requests("fewer", |lines| drop(lines.remove(7)));
    assert!(error.ends_with("line 299: 299 requests end here: expected 300, num_requests of meta.json"), "{error}");
    let error = requests("broken", |lines| lines[218] = "{\"request_id\": 3}".into());
    assert!(error.contains("requests.jsonl, line 219, column 16: invalid type"), "{error}");
    assert!(!error.contains("line 1"), "{error}");
    let loads = |name, change: fn(&mut Vec<String>)| changed_run(&data, name, "timeseries.csv", change).unwrap_err();
    let error = loads("short", |lines| lines[101] = "1,2".into());
    assert!(error.contains("timeseries.csv, line 102: 2 cells: expected "), "{error}");
    let error = loads("word", |lines| lines[101] = lines[101].replacen(|_| true, "x", 1));
    assert!(error.ends_with("timeseries.csv, line 102: cell 1: invalid float literal"), "{error}");
    let error = loads("back", |lines| lines[101] = lines[100].clone());
    assert!(error.contains("timeseries.csv, line 102: t = ") && error.ends_with("expected a later time"), "{error}");
}

#[test]
fn a_form_that_is_not_known_and_times_before_the_run_are_refused() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("forms-and-times");
    fs::create_dir_all(&folder).unwrap();
    // The engine's clock is 100 s behind that of arrivals; `queued` is what it says of the first request.
    let read = |version: &str, queued: &str| {
        fs::write(folder.join("meta.json"), format!("{{\"schema_version\": {version}, \"model\": \"m\"}}")).unwrap();
        let line = |id: u32, arrival: f64, queued: &str, end: f64| {
            format!(
                "{{\"request_id\": \"{id}\", \"input_toks\": 5, \"output_toks\": 2, \"arrival_time\": {arrival}, \"queued_ts\": \
                 {queued}, \"scheduled_ts\": {end}, \"first_token_ts\": {end}, \"last_token_ts\": {end}}}\n"
            )
        };
        let lines = line(1, 20_000.0, queued, 19_901.0) + &line(2, 20_001.0, "19901.5", 19_902.0);
        fs::write(folder.join("requests.jsonl"), lines).unwrap();
        Run::read(&folder).map_err(|error| error.to_string())
    };
    assert_eq!(read("1", "19900").unwrap().requests.len(), 2);
    for (version, queued, message) in [
        ("2", "19900", "schema_version 2 (expected 1) of run"),
        ("-1", "19900", "schema_version -1 (expected 1) of run"),
        ("1", "0", "requests.jsonl, line 1: queued_ts 0 of 1: expected a time of the engine's clock"),
        ("1", "-5", "requests.jsonl, line 1: queued_ts -5 of 1: expected a time of the engine's clock"),
        // 19,899 s before the second request, which differs by -99.5 s.
        (
            "1",
            "1.5",
            "line 1: queued_ts is 19899 s before that of all others, by their arrivals: expected at most 3600 s",
        ),
    ] {
        let refused = read(version, queued).unwrap_err();
        assert!(refused.contains(message), "{refused}");
    }
}

#[test]
fn prompts_that_are_there_twice_are_refused() {
    let Some(data) = data() else { return };
    let run = Run::read(&data.join("vllm-runs/RTX4090-Llama-3.1-8B")).unwrap();
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("twice.prefix-blocks.jsonl");
    let line = format!("{{\"request_id\": \"{}\", \"input_toks\": 3, \"block_hashes\": []}}\n", run.requests[0].id);
    fs::write(&file, line.repeat(2)).unwrap();
    let error = PrefixBlocks::read(&file).unwrap_err().to_string();
    assert!(
        error.contains("jsonl, line 2: request_id ") && error.contains("on line 1: expected every request once"),
        "{error}"
    );
}

/// Weights of 235 MB are read in a nanosecond, or in two and a half hours.
#[test]
fn a_profile_that_contradicts_its_device_predicts_nothing() {
    let Some(data) = data() else { return };
    let source = data.join("profiles/llmservingsim/RTXPRO6000/Llama-3.1-8B");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("changed-profile");
    fs::create_dir_all(folder.join("tp1")).unwrap();
    for file in ["meta.yaml", "tp1/dense.csv", "tp1/per_sequence.csv", "tp1/attention.csv", "tp1/skew.csv"] {
        fs::copy(source.join(file), folder.join(file)).unwrap();
    }
    let text = fs::read_to_string(source.join("tp1/dense.csv")).unwrap();
    for (us, expected) in
        [("0.001", "1 ns from start to end"), ("20", "its memory traffic"), ("9e9", "expected at most 1000 times")]
    {
        let changed = text.lines().map(|line| match line.starts_with("gate_up_proj,1,") {
            true => format!("gate_up_proj,1,{us}\n"),
            false => format!("{line}\n"),
        });
        fs::write(folder.join("tp1/dense.csv"), changed.collect::<String>()).unwrap();
        let run = Run::read(&data.join("vllm-runs/RTXPRO6000-Llama-3.1-8B")).unwrap();
        let error = Case::read(run, &folder, None).unwrap_err().to_string();
        assert!(error.contains("dense.csv, row ") && error.contains(expected), "{error}");
    }
}

/// Copies a folder of files, or one of them.
fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        fs::create_dir_all(to).unwrap();
        let entries = fs::read_dir(from).unwrap().map(Result::unwrap);
        entries.for_each(|entry| copy(&entry.path(), &to.join(entry.file_name())));
    } else {
        fs::copy(from, to).unwrap();
    }
}

/// Beside a run and its profile: another profile and other hashes that are no such thing, and a run that is cut short.
#[test]
fn what_cannot_be_read_keeps_no_other_run_from_being_predicted() {
    let Some(data) = data() else { return };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("partly-broken");
    let _ = fs::remove_dir_all(&folder);
    copy(&data.join("vllm-runs/RTX4090-Llama-3.1-8B"), &folder.join("good"));
    copy(&data.join("vllm-runs/RTX4090-Llama-3.1-8B"), &folder.join("cut"));
    copy(&data.join("profiles/llmservingsim/RTX4090/Llama-3.1-8B"), &folder.join("profile"));
    let prefixes = "sharegpt-llama-3.1-8b-300.prefix-blocks.jsonl.gz";
    copy(&data.join("vllm-runs").join(prefixes), &folder.join(prefixes));
    let lines = fs::read_to_string(folder.join("cut/requests.jsonl")).unwrap();
    fs::write(folder.join("cut/requests.jsonl"), &lines[..lines.len() / 2]).unwrap();
    fs::create_dir_all(folder.join("another-profile/tp1")).unwrap();
    fs::write(folder.join("another-profile/meta.yaml"), "model: [").unwrap();
    fs::write(folder.join("another.prefix-blocks.jsonl"), "{}").unwrap();

    let found = cases::find(&folder).unwrap();
    let [(_, cut), (at, good)] = &found.cases[..] else { panic!("{:?}", found.cases) };
    let good = good.as_ref().unwrap();
    assert!(at.ends_with("good") && good.run.requests.iter().all(|request| request.hashes.is_some()));
    assert!(cut.as_ref().unwrap_err().to_string().contains("cut/requests.jsonl, line "), "{cut:?}");
    let unreadable: Vec<_> = found.unreadable.iter().map(FidelityError::to_string).collect();
    let [profile, prefixes] = &unreadable[..] else { panic!("{unreadable:?}") };
    assert!(profile.contains("another-profile/meta.yaml"), "{profile}");
    assert!(prefixes.contains("another.prefix-blocks.jsonl, line 1"), "{prefixes}");
}

const LIMITS: EngineLimits = EngineLimits { blocks: 100, has_prefix_cache: true, host: Nanos::ZERO, ranks: 1 };

fn request(arrival: Nanos, prompt: u32, output: u32) -> EngineRequest {
    EngineRequest { arrival, prompt, output, hashes: None }
}

/// Iterations take 1 ms. Two are formed at once when the first request arrives. The second arrives while the second
/// iteration runs and is taken in when that ends, at 2 ms; the third one runs already, so it is in the fourth.
#[test]
fn a_request_that_arrives_during_an_iteration_is_in_the_one_after_the_next() {
    let requests = [request(Nanos::ZERO, 10, 100), request(Nanos::us(1500), 10, 5)];
    let served = engine::replay(&requests, &BatchOptions::vllm(), LIMITS, |_| Nanos::ms(1)).unwrap();
    let second = served.outcomes[1];
    assert_eq!((second.queued, second.scheduled, second.first_token), (Nanos::ms(2), Nanos::ms(2), Nanos::ms(4)));
    assert_eq!(second.last_token, Nanos::ms(8));
    assert_eq!((served.outcomes[0].first_token, served.outcomes[0].last_token), (Nanos::ms(1), Nanos::ms(100)));
    let apart = BatchOptions { ahead: 0, ..BatchOptions::vllm() };
    let served = engine::replay(&requests, &apart, LIMITS, |_| Nanos::ms(1)).unwrap();
    assert_eq!(served.outcomes[1].first_token, Nanos::ms(3), "nothing is formed ahead");
}

#[test]
fn ranks_share_the_requests_and_go_in_step() {
    let requests: Vec<_> = (0..4).map(|_| request(Nanos::ZERO, 10, 3)).collect();
    let limits = EngineLimits { ranks: 2, ..LIMITS };
    let served = engine::replay(&requests, &BatchOptions::vllm(), limits, |ranks| {
        assert_eq!((ranks.len(), ranks[0].len(), ranks[1].len()), (2, 2, 2));
        Nanos::ms(1)
    });
    let served = served.unwrap();
    assert_eq!((served.steps, served.decode_steps), (3, 2));
    assert!(served.outcomes.iter().all(|outcome| outcome.last_token == Nanos::ms(3)));
}

#[test]
fn a_request_that_never_fits_is_refused() {
    let refused = engine::replay(&[request(Nanos::ZERO, 1500, 200)], &BatchOptions::vllm(), LIMITS, |_| Nanos::ms(1));
    assert!(matches!(refused, Err(FidelityError::TooLong { request: 0, needed: 107, blocks: 100 })));
}

proptest! {
    /// Differential: with a prefix cache every iteration is formed, without one those that nothing disturbs are not. Where
    /// prompts have nothing in common and blocks suffice, a cache changes nothing else.
    #[test]
    fn iterations_that_nothing_disturbs_are_as_if_they_were_formed(
        requests in prop::collection::vec((0u64..60_000, 1u32..200, 1u32..60), 1..20),
        max_sequences in 1u32..8,
        (per_token, host) in (0u64..2_000, 0u64..300),
    ) {
        let mut at = Nanos::ZERO;
        let requests: Vec<_> = requests.into_iter().map(|(gap, prompt, output)| {
            at += Nanos::us(gap);
            request(at, prompt, output)
        }).collect();
        let options = BatchOptions { token_budget: 64, max_sequences, ahead: 0, ..BatchOptions::vllm() };
        let time = |ranks: &[&[Row]]| {
            let context: u64 = ranks[0].iter().map(|row| u64::from(row.position + row.tokens)).sum();
            Nanos::us(500) + Nanos(per_token * context)
        };
        let limits = EngineLimits { blocks: 10_000, host: Nanos::us(host), ..LIMITS };
        let formed = engine::replay(&requests, &options, limits, time).unwrap();
        let limits = EngineLimits { has_prefix_cache: false, ..limits };
        let passed = engine::replay(&requests, &options, limits, time).unwrap();
        prop_assert_eq!(&passed, &formed);
        prop_assert!(passed.outcomes.iter().all(|outcome| !outcome.last_token.is_zero()));
    }
}
