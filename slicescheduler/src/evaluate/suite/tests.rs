//! Suites that are read, and how a wrong one is refused.

use super::*;

const SMALL: &str = r#"
        seeds = [1, 2]

        [tuning]
        scenarios = ["a"]
        seeds = [101]
        evaluations = 3
        duration = "1m"

        [[experiments]]
        name = "one"
        group = "workload"
        scenario = "a"
        rates = [1.0, 2.0]
        seeds = 1
        policies = ["static", "slice-fill"]
        capacity = { least = 0.5, most = 4.0 }
        variants = [{ name = "tight", ttft_ms = 100 }]

        [[experiments]]
        name = "two"
        group = "ablation"
        scenario = "b"

        [[small_cases]]
        name = "three"
        scenario = "c"
        requests = 4
        duration = "2s"
        policies = ["slice-fill"]
    "#;

fn parse(text: &str) -> Result<Suite, String> {
    Suite::parse(text, Path::new("small.toml")).map_err(|error| error.to_string())
}

#[test]
fn what_is_absent_is_every_policy_every_seed_and_the_own_rate() {
    let suite = parse(SMALL).unwrap();
    let [one, two] = suite.experiments.as_slice() else { panic!("two experiments") };
    assert_eq!((one.seeds_of(&suite.seeds), two.seeds_of(&suite.seeds)), (&[1][..], &[1, 2][..]));
    assert_eq!((one.policies().len(), two.policies().len()), (2, policy_names().len()));
    assert_eq!((two.rates.as_slice(), two.variants.len()), (&[1.0][..], 1));
}

#[test]
fn what_cannot_be_run_is_refused_with_its_experiment() {
    for (old, new, message) in [
        ("seeds = [1, 2]", "seeds = [1, 2, 1]", "small.toml: seed 1 is there twice: expected each once"),
        ("seeds = [101]", "seeds = [101, 101]", "tuning: seed 101 is there twice: expected each once"),
        ("[\"a\"]", "[\"a\", \"a\"]", "tuning: scenario \"a\" is there twice: expected each once"),
        ("rates = [1.0, 2.0]", "rates = [2, 2.0]", "experiment \"one\": rate 2.0 is there twice"),
        ("\"static\", ", "\"slice-fill\", ", "policy \"slice-fill\" is there twice: expected each once"),
        (
            "requests = 4",
            "requests = 13",
            "small case \"three\": 13 requests of each tenant: expected at most 12 of all",
        ),
        (
            "requests = 4",
            "requests = 4\nstates = 20000001",
            "small case \"three\": 20000001 states: expected at most 20000000, which are kept in memory",
        ),
        ("seeds = [101]", "seeds = [2]", "small.toml: tuning has seed 2, which is reported: expected others"),
        ("name = \"two\"", "name = \"one\"", "there are two experiments \"one\": expected names of their own"),
        ("rates = [1.0, 2.0]", "rates = [0.0]", "experiment \"one\": rate 0: expected a number from 0.001 to 1000"),
        ("least = 0.5", "least = 5.0", "capacity from 5 to 4: expected least below most"),
        ("\"static\"", "\"magic\"", "policy \"magic\": expected one of static,"),
        ("ttft_ms = 100", "ttft_ms = 0", "variant \"tight\": times are from 1 ms to one hour"),
        ("ttft_ms = 100", "tfft_ms = 100", "unknown field `tfft_ms`"),
        ("ttft_ms = 100", "drift = { answers = -1.0 }", "variant \"tight\": drift has numbers from 0.0001 to 10000"),
        ("seeds = 1\n", "seeds = 3\n", "expected at most the 2 seeds of the suite"),
        ("requests = 4", "requests = 0", "small case \"three\": expected a name, a request of each tenant"),
        ("[\"slice-fill\"]", "[\"magic\"]", "small case \"three\": policy \"magic\": expected one of static,"),
        ("\"2s\"", "\"2s\"\nttft_ms = 0", "small case \"three\": times are from 1 ms to one hour"),
        ("name = \"three\"", "name = \"two\"", "there are two experiments \"two\": expected names of their own"),
    ] {
        assert!(SMALL.contains(old), "{old}");
        let refusal = parse(&SMALL.replace(old, new)).unwrap_err();
        assert!(refusal.contains(message), "{refusal}");
    }
}

#[test]
fn experiments_are_kept_by_name_and_by_group() {
    let kept = |name: &str| {
        let mut suite = parse(SMALL).unwrap();
        let kept = suite.keep_only(name, Path::new("small.toml"));
        kept.map(|()| (suite.experiments.len(), suite.small_cases.len()))
    };
    assert_eq!((kept("two").unwrap(), kept("workload").unwrap()), ((1, 0), (1, 0)));
    assert_eq!((kept("three").unwrap(), kept("small cases").unwrap()), ((0, 1), (0, 1)));
    let refusal = kept("four").unwrap_err().to_string();
    assert_eq!(
        refusal,
        "small.toml: there is no experiment \"four\": expected workload, regime, ablation, small cases or one of one, two, three"
    );
}
