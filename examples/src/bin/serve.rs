//! Serves real models to several tenants on the cores of this machine.
//!
//! ```text
//! cargo run --release --bin serve -- --tenant chat=smollm2 --prompt "What is the capital of France?"
//! cargo run --release --bin serve -- --tenant embed=minilm --prompt "The cat sits outside"
//! cargo run --release --bin serve -- --tenant chat=smollm2 --tenant embed=minilm --load 1
//! cargo run --release --bin serve -- --tenant chat=smollm2 --tenant batch=smollm2,best-effort --load 1
//! cargo run --release --bin serve -- --tenant chat=smollm2 --tenant batch=smollm2,best-effort --compare
//! cargo run --release --bin serve -- --tenant a=tiny --tenant b=tiny,best-effort --duration 5s
//! ```

mod serve {
    pub(crate) mod arguments;
    pub(crate) mod load;
    pub(crate) mod memory;
    pub(crate) mod tenant;
    pub(crate) mod watch;
}

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use slicescheduler::replay::core_scaling;
use slicescheduler::report::USEFUL_SCALING;
use slicescheduler::{Request, SliceScheduler, SystemClock};
use slicescheduler_examples::output::{self, Output};
use slicescheduler_examples::{Failure, conclude};
use slicescheduler_gmg::units::{Bytes, Nanos};

use serve::arguments::{Arguments, PolicyName};
use serve::load::{self, Outcome};
use serve::memory;
use serve::tenant::Served;
use serve::watch::Watch;

fn main() -> ExitCode {
    conclude(run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    memory::check(arguments.devices.unwrap_or(arguments.tenants.len() as u32), arguments.memory_mib)?;
    let served = arguments.tenants.iter().map(|wish| Served::load(wish, &arguments.models));
    let served = served.collect::<Result<Vec<_>, _>>()?;
    if let Some(text) = &arguments.prompt {
        let slices = scheduler(arguments, &served, arguments.policy, &Watch::default())?;
        return answer(&slices, &served, text, arguments.max_tokens);
    }
    if !arguments.compare {
        return Ok(output::print(under_load(arguments, &served, arguments.policy)?.0)?);
    }
    let scaling = core_scaling(&SystemClock::start(), 2)?;
    let mut outcomes = Vec::new();
    for policy in [PolicyName::Static, arguments.policy] {
        let (text, outcome) = under_load(arguments, &served, policy)?;
        output::print(format_args!("{policy:?}\n{text}\n"))?;
        outcomes.push(outcome);
    }
    let [apart, shared] = &outcomes[..] else { return Ok(()) };
    let (same, compared) = shared.same_answers(apart);
    let mut text = format!("two cores did {scaling:.2}x the work of one\n");
    if scaling < USEFUL_SCALING {
        writeln!(text, "that is below {USEFUL_SCALING}: the ratio is void, other work is on the machine")?;
    }
    let faster = shared.throughput() / apart.throughput();
    writeln!(text, "tokens per second: {faster:.2}x {:?}", PolicyName::Static)?;
    writeln!(text, "answers to the same requests: {same} of {compared} equal, token by token")?;
    let printed = output::print(text);
    if same < compared { Err("answers depend on the policy".into()) } else { Ok(printed?) }
}

fn scheduler(
    arguments: &Arguments,
    served: &[Served],
    policy: PolicyName,
    watch: &Watch,
) -> Result<SliceScheduler, Failure> {
    let mut builder = SliceScheduler::builder()
        .clock(Arc::new(SystemClock::start()))
        .device_memory(Bytes::mib(arguments.memory_mib))
        .forecasts_memory(true)
        .prefix_caching(arguments.prefix_caching)
        .devices(arguments.devices.unwrap_or(served.len() as u32))
        .observer(watch.observer());
    builder = policy.apply(builder);
    for tenant in served {
        builder = builder.tenant(tenant.tenant(), tenant.model()?);
    }
    Ok(builder.build()?)
}

/// What came of the load under a policy, and all that is to be said of it.
fn under_load(arguments: &Arguments, served: &[Served], policy: PolicyName) -> Result<(String, Outcome), Failure> {
    let watch = Watch::default();
    let slices = scheduler(arguments, served, policy, &watch)?;
    let outcome = load::run(&slices, served, arguments)?;
    let status = slices.status()?;
    drop(slices);
    let mut text = format!("{outcome}{watch}{}\n", status.predictions);
    for device in &status.devices {
        let (peak, weights, usable) = (device.peak, device.weights, device.usable);
        let forecast = device.forecast_peak.map(|peak| format!(", forecast {peak}")).unwrap_or_default();
        writeln!(text, "device {}: at most {peak} of {usable} in use{forecast}; {weights} of it weights", device.name)?;
    }
    Ok((text, outcome))
}

/// Asks the first tenant: streams its answer, or prints its vector.
fn answer(slices: &SliceScheduler, served: &[Served], text: &str, max_tokens: u32) -> Result<(), Failure> {
    let Some(first) = served.first() else { return Err("there is no tenant to ask".into()) };
    let prompt = first.prompt(text)?;
    let asked = slices.now();
    if first.is_encoder() {
        let embedding = slices.embed(&first.name, &prompt)?.wait()?;
        let numbers: Vec<String> = embedding.vector.iter().map(f32::to_string).collect();
        output::print(format_args!("{}\n", numbers.join(" ")))?;
        let took = (embedding.at - asked).as_secs_f64() * 1e3;
        let (tokens, size) = (prompt.len(), numbers.len());
        output::complain(format_args!("[{tokens} tokens, a vector of {size} after {took:.0} ms]"));
        return Ok(());
    }
    let Some(tokenizer) = &first.tokenizer else { return Err("the first tenant has no tokenizer".into()) };
    let answer = slices.submit(&first.name, Request::prompt_tokens(&prompt).max_tokens(max_tokens))?;
    let (mut stream, mut out) = (tokenizer.stream(), Output::lock());
    let (mut times, mut count) = ((Nanos::ZERO, Nanos::ZERO), 0u32);
    for token in answer {
        let token = token?;
        times = if count == 0 { (token.at, token.at) } else { (times.0, token.at) };
        count += 1;
        if let Some(piece) = stream.step(token.id)? {
            out.write_all(piece.as_bytes())?;
            out.flush()?;
        }
    }
    let ttft = times.0 - asked;
    let pace = (times.1 - times.0).as_secs_f64() / f64::from(count.saturating_sub(1).max(1));
    writeln!(out)?;
    out.flush()?;
    output::complain(format_args!(
        "[{} prompt tokens, first token after {:.0} ms; {count} tokens, {:.1} per second]",
        prompt.len(),
        ttft.as_secs_f64() * 1e3,
        if pace > 0.0 { 1.0 / pace } else { 0.0 },
    ));
    Ok(())
}
