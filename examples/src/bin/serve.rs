//! Serves real models to several tenants on the cores of this machine.
//!
//! ```text
//! cargo run --release --bin serve -- --tenant chat=smollm2 --prompt "What is the capital of France?"
//! cargo run --release --bin serve -- --tenant chat=smollm2 --tenant batch=smollm2,best-effort --load 1
//! cargo run --release --bin serve -- --tenant a=tiny --tenant b=tiny,best-effort --duration 5s
//! ```

mod serve {
    pub(crate) mod arguments;
    pub(crate) mod load;
    pub(crate) mod tenant;
    pub(crate) mod watch;
}

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use slicescheduler::text::Message;
use slicescheduler::{Request, SliceScheduler, SystemClock};
use slicescheduler_examples::{Failure, conclude};
use slicescheduler_gmg::units::{Bytes, Nanos};

use serve::arguments::Arguments;
use serve::load;
use serve::tenant::Served;
use serve::watch::Watch;

fn main() -> ExitCode {
    conclude(run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    let served = arguments.tenants.iter().map(|wish| Served::load(wish, &arguments.models));
    let served = served.collect::<Result<Vec<_>, _>>()?;
    let watch = Watch::default();
    let mut builder = SliceScheduler::builder()
        .clock(Arc::new(SystemClock::start()))
        .device_memory(Bytes::mib(arguments.memory_mib))
        .devices(arguments.devices.unwrap_or(served.len() as u32))
        .observer(watch.observer());
    builder = arguments.policy.apply(builder);
    for tenant in &served {
        builder = builder.tenant(tenant.tenant(), tenant.model()?);
    }
    let slices = builder.build()?;
    match &arguments.prompt {
        Some(text) => answer(&slices, &served, text, arguments.max_tokens),
        None => {
            let outcome = load::run(&slices, &served, arguments)?;
            drop(slices);
            print!("{outcome}{watch}");
            Ok(())
        }
    }
}

/// Streams the answer of the first tenant.
fn answer(slices: &SliceScheduler, served: &[Served], text: &str, max_tokens: u32) -> Result<(), Failure> {
    let Some(first) = served.first() else { return Err("there is no tenant to ask".into()) };
    let tokenizer = first.tokenizer.as_ref();
    let tokenizer =
        tokenizer.ok_or_else(|| format!("model {:?} has no tokenizer; --prompt needs one", first.model_name))?;
    let prompt = tokenizer.encode(&tokenizer.chat(&[Message::user(text)])?)?;
    let asked = slices.now();
    let answer = slices.submit(&first.name, Request::prompt_tokens(&prompt).max_tokens(max_tokens))?;
    let (mut stream, mut out) = (tokenizer.stream(), std::io::stdout().lock());
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
    eprintln!(
        "[{} prompt tokens, first token after {:.0} ms; {count} tokens, {:.1} per second]",
        prompt.len(),
        ttft.as_secs_f64() * 1e3,
        if pace > 0.0 { 1.0 / pace } else { 0.0 },
    );
    Ok(())
}
