//! The parts of the page that need no script: headings, tables, bars, legends and definitions.

use std::io::{self, Write};

use slicescheduler_gmg::memory::ByteKind;

use super::text::{Escaped, Tenants};
use crate::report::figure::{self, NOTHING, OF_POLICY, OF_TENANT};
use crate::report::{PolicySummary, RunRecord, Summary, TenantSummary};

/// The rate of violations that the bars mark: what a tenant is held to.
const SLA_LIMIT: f64 = 0.09;

/// What was replayed, and the result in a sentence per policy.
pub(super) fn header(out: &mut impl Write, summary: &Summary, runs: &[RunRecord]) -> io::Result<()> {
    let provenance = figure::provenance(summary);
    let explained = if summary.measured {
        "Real kernels ran; throughput and latencies are wall-clock time of this machine."
    } else {
        "No kernel ran: throughput and latencies are those of a simulated cluster. Times of decisions and \
         forecasts are measured."
    };
    write!(
        out,
        "<header>\n<p class=\"badge {provenance}\"><strong>{provenance}</strong> {explained}</p>\n\
         <h1>Replay of {}</h1>\n<p class=\"facts\">",
        Escaped(&summary.scenario)
    )?;
    let devices = runs.iter().map(|run| run.devices.len()).max().unwrap_or(0);
    if devices > 0 {
        write!(out, "<span>{} devices</span> ", figure::grouped(devices as u64))?;
    }
    writeln!(
        out,
        "<span>{} tenants</span> <span>window {} s</span> <span>rate scale {}</span> <span>seed {}</span></p>",
        figure::tenant_names(summary).len(),
        figure::given(summary.duration_s),
        figure::given(summary.rate_scale),
        summary.seed
    )?;
    if let Some((first, others)) = summary.policies.split_first()
        && !others.is_empty()
    {
        writeln!(out, "<ul class=\"lead\">")?;
        for policy in others {
            lead(out, policy, first)?;
        }
        writeln!(out, "</ul>")?;
    }
    writeln!(out, "</header>")
}

fn lead(out: &mut impl Write, policy: &PolicySummary, first: &PolicySummary) -> io::Result<()> {
    let ratio = policy.token_throughput / first.token_throughput;
    write!(out, "<li><b>{}</b> ", Escaped(&policy.name))?;
    if ratio.is_finite() {
        write!(out, "completes <b>{ratio:.2}x</b> the tokens of {}; ", Escaped(&first.name))?;
    }
    writeln!(
        out,
        "its worst tenant violates {} of its requests, against {}.</li>",
        percent(policy.sla_violation_rate),
        percent(first.sla_violation_rate)
    )
}

/// The table of all policies.
pub(super) fn policies(out: &mut impl Write, summary: &Summary) -> io::Result<()> {
    writeln!(out, "<section>\n<h2>Policies</h2>")?;
    let Some(first) = summary.policies.first() else {
        return writeln!(out, "<p class=\"note\">No policy ran.</p>\n</section>");
    };
    write!(out, "<div class=\"wide\"><table class=\"policies\">\n<thead><tr><td></td>")?;
    for policy in &summary.policies {
        write!(out, "<th scope=\"col\" colspan=\"2\">{}</th>", Escaped(&policy.name))?;
    }
    writeln!(out, "</tr></thead>\n<tbody>")?;
    for row in OF_POLICY {
        if row.optional && summary.policies.iter().all(|policy| (row.text)(policy).is_none()) {
            continue;
        }
        let class = if row.part { " class=\"part\"" } else { "" };
        write!(out, "<tr{class}><th scope=\"row\">{}</th>", row.label)?;
        for (index, policy) in summary.policies.iter().enumerate() {
            let text = (row.text)(policy);
            let ratio = if index > 0 { row.ratio(policy, first) } else { None };
            write!(
                out,
                "<td>{}</td><td class=\"ratio\">{}</td>",
                Escaped(text.as_deref().unwrap_or(NOTHING)),
                ratio.unwrap_or_default()
            )?;
        }
        writeln!(out, "</tr>")?;
    }
    writeln!(
        out,
        "</tbody></table></div>\n<p class=\"note\">Ratios are to {}. Times of decisions, forecasts and the replay are \
         measured on the machine that wrote this page.</p>\n</section>",
        Escaped(&first.name)
    )
}

/// Token throughput per policy, split by tenant.
pub(super) fn throughput(out: &mut impl Write, summary: &Summary, tenants: &Tenants<'_>) -> io::Result<()> {
    let sum = |policy: &PolicySummary| policy.tenants.iter().map(|t| amount(t.token_throughput)).sum::<f64>();
    let largest = summary.policies.iter().map(sum).fold(0.0, f64::max);
    if largest <= 0.0 {
        return Ok(());
    }
    writeln!(out, "<section>\n<h2>Token throughput by tenant</h2>")?;
    legend(out, tenants)?;
    writeln!(out, "<div class=\"bars\">")?;
    for policy in &summary.policies {
        write!(out, "<div class=\"who\">{}</div><div class=\"bar\">", Escaped(&policy.name))?;
        for tenant in &policy.tenants {
            let tokens = amount(tenant.token_throughput);
            let colour = Tenants::colour(tenants.index(&tenant.name).unwrap_or_default());
            if tokens > 0.0 {
                write!(
                    out,
                    "<i style=\"width:{:.3}%;background:{colour}\" title=\"{}: {} tokens/s\"></i>",
                    100.0 * tokens / largest,
                    Escaped(&tenant.name),
                    number(tokens)
                )?;
            }
        }
        writeln!(out, "</div><div class=\"value\">{} tokens/s</div>", number(sum(policy)))?;
    }
    writeln!(out, "</div>\n</section>")
}

/// Violations and latencies of every tenant under every policy.
pub(super) fn service_levels(out: &mut impl Write, summary: &Summary, tenants: &Tenants<'_>) -> io::Result<()> {
    let names = figure::tenant_names(summary);
    if names.is_empty() {
        return Ok(());
    }
    let largest = summary
        .policies
        .iter()
        .flat_map(|policy| &policy.tenants)
        .map(|tenant| amount(tenant.sla_violation_rate))
        .fold(SLA_LIMIT / 0.9, f64::max);
    write!(
        out,
        "<section>\n<h2>Service level and latency by tenant</h2>\n<p class=\"note\">The tick in a bar is at {} %.</p>\n\
         <div class=\"wide\"><table class=\"tenants\">\n<thead><tr><td></td>",
        figure::given(SLA_LIMIT * 100.0)
    )?;
    for column in OF_TENANT {
        write!(out, "<th scope=\"col\">{}</th>", column.label)?;
    }
    writeln!(out, "</tr></thead>")?;
    for name in names {
        let class = summary.policies.iter().find_map(|policy| figure::tenant_of(policy, name)).map(|t| &t.class);
        let colour = Tenants::colour(tenants.index(name).unwrap_or_default());
        writeln!(
            out,
            "<tbody><tr class=\"tenant\"><th scope=\"rowgroup\" colspan=\"{}\"><i class=\"swatch\" \
             style=\"background:{colour}\"></i>{} <small>{}</small></th></tr>",
            OF_TENANT.len() + 1,
            Escaped(name),
            Escaped(class.map_or("", String::as_str))
        )?;
        for policy in &summary.policies {
            write!(out, "<tr><th scope=\"row\">{}</th>", Escaped(&policy.name))?;
            let tenant = figure::tenant_of(policy, name);
            for (index, column) in OF_TENANT.iter().enumerate() {
                let text = tenant.and_then(column.text);
                let text = text.as_deref().unwrap_or(NOTHING);
                match tenant {
                    Some(tenant) if index == 0 && figure::has_sla(tenant) => {
                        violations(out, tenant, text, largest, &colour)?;
                    }
                    _ => write!(out, "<td>{}</td>", Escaped(text))?,
                }
            }
            writeln!(out, "</tr>")?;
        }
        writeln!(out, "</tbody>")?;
    }
    writeln!(out, "</table></div>\n</section>")
}

fn violations(out: &mut impl Write, tenant: &TenantSummary, text: &str, largest: f64, colour: &str) -> io::Result<()> {
    write!(
        out,
        "<td class=\"sla\"><span class=\"gauge\"><i style=\"width:{:.2}%;background:{colour}\"></i>\
         <b style=\"left:{:.2}%\"></b></span>{}</td>",
        100.0 * amount(tenant.sla_violation_rate) / largest,
        100.0 * SLA_LIMIT / largest,
        Escaped(text)
    )
}

/// Whose colour is whose.
pub(super) fn legend(out: &mut impl Write, tenants: &Tenants<'_>) -> io::Result<()> {
    write!(out, "<ul class=\"legend\">")?;
    for (index, name) in tenants.names.iter().enumerate() {
        let colour = Tenants::colour(index);
        write!(out, "<li><i class=\"swatch\" style=\"background:{colour}\"></i>{}</li>", Escaped(name))?;
    }
    writeln!(out, "</ul>")
}

/// Which colour is which kind of bytes.
pub(super) fn memory_legend(out: &mut impl Write) -> io::Result<()> {
    write!(out, "<ul class=\"legend\">")?;
    for (index, kind) in ByteKind::ALL.into_iter().enumerate() {
        write!(out, "<li><i class=\"swatch\" style=\"background:var(--m{index})\"></i>{}</li>", kind.name())?;
    }
    writeln!(out, "</ul>")
}

/// What is counted.
pub(super) fn definitions(out: &mut impl Write, summary: &Summary) -> io::Result<()> {
    let world = if summary.measured {
        "Measured: real kernels ran, and times are those of the machine."
    } else {
        "Simulated: the cluster is a second simulator with its own durations and noise. It is not the simulator that \
         policies ask for forecasts, and policies see nothing that has not happened yet."
    };
    write!(out, "<section class=\"definitions\">\n<h2>What is counted</h2>\n<dl>\n<dt>World</dt><dd>{world}</dd>\n")?;
    for (term, definition) in DEFINITIONS {
        writeln!(out, "<dt>{term}</dt><dd>{definition}</dd>")?;
    }
    writeln!(out, "</dl>\n</section>")
}

const DEFINITIONS: &[(&str, &str)] = &[
    (
        "Token throughput",
        "Input and output tokens of the requests that completed inside the measuring window, per second of the window. \
         The window is the same for every policy. FLOP-weighted throughput counts the arithmetic of the same requests.",
    ),
    ("Goodput", "The same, of requests that kept their service level only. Best-effort requests always do."),
    (
        "SLA violation",
        "Token i of a request is due at arrival + TTFT + i * TPOT, with the TTFT and TPOT that its tenant was promised; \
         the first token is i = 0. A request violates if its first token is late, if more than 5 % of its tokens are \
         late, or if it is dropped or never ends. The rate is the share of a tenant's requests; the worst \
         latency-sensitive tenant counts for a policy.",
    ),
    ("TTFT, TPOT", "Time from arrival to the first token, and mean time per output token after it, per request."),
    ("Device busy share", "Share of all device time in which something ran."),
    (
        "Idle-slice recovery",
        "Of the device time that owners left idle on their own devices, the share in which guests ran.",
    ),
    (
        "Memory violation",
        "A reservation that failed at run time because of guests' bytes, or an owner that was preempted or delayed by \
         them.",
    ),
    ("Recall", "A guest's job that was stopped at an operator boundary so that somebody else could run."),
    (
        "Simulated operators",
        "Operators that forecasts covered, per millisecond spent on them. An undisturbed iteration is simulated as one \
         entry and counts with all its operators; entries count it once.",
    ),
];

fn number(value: f64) -> String {
    figure::count(value).unwrap_or_else(|| NOTHING.to_owned())
}

fn percent(value: f64) -> String {
    figure::share(value).unwrap_or_else(|| NOTHING.to_owned())
}

/// A length that can be drawn: finite and not negative.
fn amount(value: f64) -> f64 {
    if value.is_finite() { value.max(0.0) } else { 0.0 }
}
