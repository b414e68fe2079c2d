//! Answers beside prompts of the same tenant.

use std::fmt::Write;
use std::path::Path;

use slicescheduler::scenario::Scenario;
use slicescheduler_gmg::units::Nanos;
use slicescheduler_scheduler::batching::Completed;

use crate::rig::{driven, simulated};

const ONE_TENANT: &str = r#"
seed = 0
duration = "20s"
policies = ["slice-fill"]
[cluster]
usable = 0.9
[[cluster.nodes]]
devices = 1
kind = "h100-sxm"
[[tenants]]
name = "chat"
class = "latency-sensitive"
model = "llama3-8b"
slo = { ttft = "200ms", tpot = "20ms" }
container = { devices = [0] }
workload = { trace = "answers.csv", format = "azure" }
"#;

/// One answer under way, and 56,000 tokens of prompts at once: 27 iterations of the token budget, each more than
/// twice as long as the time between two tokens of the answer, against a slack of about 400 ms.
fn trace() -> String {
    let mut trace = String::from("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:00.0000000,200,400\n");
    for _ in 0..8 {
        writeln!(trace, "2023-11-16 18:17:00.1000000,7000,4").unwrap();
    }
    trace
}

#[test]
fn an_answer_keeps_its_due_times_beside_a_burst_of_prompts() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("answers");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("answers.csv"), trace()).unwrap();
    let scenario = Scenario::parse(ONE_TENANT, &folder.join("answers.toml"), None).unwrap();
    let under = |policy: &str| {
        let run = driven(&scenario, policy, |setup| simulated(&scenario, setup), Nanos::secs(20), |_| {});
        assert_eq!(run.completed.len(), 9, "{policy}: all come to their end");
        run.completed
    };
    let answer = |done: &[Completed]| *done.iter().find(|done| done.prompt == 200).unwrap();
    let prompts = |done: &[Completed]| done.iter().map(|done| done.first_token).max().unwrap();
    let (whole, cut) = (under("static"), under("slice-fill"));
    let violates = |done: &Completed| done.late * 20 > done.produced;
    assert!(violates(&answer(&whole)), "whole budgets make it late, or nothing is shown: {:?}", answer(&whole));
    assert!(!violates(&answer(&cut)), "{:?}", answer(&cut));
    let (whole, cut) = (prompts(&whole), prompts(&cut));
    assert!(cut < whole + whole.scale(25, 100), "prompts hardly lose by it: the last after {cut}, {whole} uncut");
}
