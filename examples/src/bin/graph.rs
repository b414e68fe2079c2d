//! Reads operator graphs out of other people's traces, and writes them for other people's tools.
//!
//! ```text
//! cargo run --release --bin graph -- import trace.json.gz
//! cargo run --release --bin graph -- export --template llama3-8b --to perfetto --out llama.json
//! cargo run --release --bin graph -- export --import trace.0.et --to dot --out trace.dot
//! ```
//!
//! A file is written whole or not at all. Traces: Chakra (protobuf and JSON), Kineto, PyTorch; plain, .gz or .tar.gz; told apart by content.
//! A file that is no graph gives one line on standard error and exit status 1, wrong usage 2.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use serde_json::json;
use slicescheduler::report::write_whole;
use slicescheduler::simulator::cost::{CostModel, Operation, Roofline};
use slicescheduler_examples::Failure;
use slicescheduler_examples::output::{self, Output};
use slicescheduler_gmg::cluster::DeviceSpec;
use slicescheduler_gmg::export::{self, Source};
use slicescheduler_gmg::graph::{CriticalPath, OpGraph};
use slicescheduler_gmg::id::OpIndex;
use slicescheduler_gmg::import::{self, Format, Import, ImportError, Limits, OpRecord, Options};
use slicescheduler_gmg::semantics::OpCost;
use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::templates::{DenseSpec, EncoderSpec, MoeSpec, dense, encoder, moe};
use slicescheduler_gmg::units::{Bytes, Flops, Nanos};

/// Reads operator graphs out of traces and writes them for other tools.
///
/// `import` reads a Chakra, Kineto or PyTorch trace (plain, .gz or .tar.gz, told apart by content) and says what it has:
/// operators, edges, work, times, the critical path, what was dropped and why. `export` writes such a trace, or one rank
/// of a model that is built in, as DOT for Graphviz, as a timeline for Perfetto or as Chakra for ASTRA-sim. Only Chakra
/// can be imported again.
///
/// Exit status: 0 done, 1 a file that cannot be read or written, 2 wrong usage.
#[derive(Debug, Parser)]
#[command(
    name = "graph",
    version,
    about = "Reads operator graphs out of traces and writes them for other tools",
    verbatim_doc_comment
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print what a trace has: operators, edges, work, times, the critical path, what was dropped.
    Import {
        /// The trace; - for standard input.
        file: PathBuf,
        #[command(flatten)]
        reading: Reading,
        /// Kinds and operators of the critical path that are listed.
        #[arg(long, allow_negative_numbers = true, value_name = "N", default_value_t = 10)]
        top: usize,
        /// Print JSON instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Write a graph for Graphviz, Perfetto or ASTRA-sim.
    Export {
        #[command(flatten)]
        source: From,
        #[command(flatten)]
        reading: Reading,
        /// The format to write.
        #[arg(long, value_enum)]
        to: Target,
        /// The file to write; - for standard output.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        /// Tokens of the iteration, for templates.
        #[arg(long, allow_negative_numbers = true, value_name = "N", default_value_t = 512, conflicts_with = "import", value_parser = clap::value_parser!(u64).range(1..))]
        tokens: u64,
        /// Tokens of each sequence that are cached already, for templates.
        #[arg(long, allow_negative_numbers = true, value_name = "N", default_value_t = 0, conflicts_with = "import")]
        cached: u64,
        /// Ranks that a template is sharded over; one rank's graph is written.
        #[arg(long, allow_negative_numbers = true, value_name = "N", default_value_t = 1, conflicts_with = "import", value_parser = clap::value_parser!(u32).range(1..))]
        tensor_parallel: u32,
        /// Print JSON instead of text.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct From {
    /// A model that is built in.
    #[arg(long, value_enum)]
    template: Option<Template>,
    /// A trace.
    #[arg(long, value_name = "FILE")]
    import: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Reading {
    /// The trace's format; found out by content if absent.
    #[arg(long, value_enum)]
    format: Option<TraceFormat>,
    /// Refuse dependencies on nodes that the trace does not have.
    #[arg(long)]
    strict: bool,
    /// Chakra: data dependencies only, as ASTRA-sim does.
    #[arg(long)]
    data_only: bool,
    /// Kineto: only what ran on devices, without the calls that launched it.
    #[arg(long)]
    devices_only: bool,
    /// Operators that a trace may have.
    #[arg(long, allow_negative_numbers = true, value_name = "N", default_value_t = Limits::default().ops)]
    max_ops: u64,
    /// Dependencies that a trace may have.
    #[arg(long, allow_negative_numbers = true, value_name = "N", default_value_t = Limits::default().edges)]
    max_edges: u64,
    /// Bytes that one record (a node, an event, a field between them) may have.
    #[arg(long, allow_negative_numbers = true, value_name = "BYTES", default_value_t = Limits::default().record_bytes)]
    max_record_bytes: u64,
    /// Bytes that the whole trace may have, unpacked.
    #[arg(long, allow_negative_numbers = true, value_name = "BYTES", default_value_t = Limits::default().total_bytes)]
    max_bytes: u64,
    /// Bytes of a name that are kept.
    #[arg(long, allow_negative_numbers = true, value_name = "BYTES", default_value_t = Limits::default().name_bytes)]
    max_name_bytes: usize,
    /// Seconds that an operator may take; a longer time is taken for damage.
    #[arg(long, allow_negative_numbers = true, value_name = "SECONDS", default_value_t = Limits::default().duration.get() / 1_000_000_000)]
    max_duration: u64,
}

/// The arguments that say how a trace is read.
const READING: [&str; 10] = [
    "format",
    "strict",
    "data_only",
    "devices_only",
    "max_ops",
    "max_edges",
    "max_record_bytes",
    "max_bytes",
    "max_name_bytes",
    "max_duration",
];

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TraceFormat {
    Chakra,
    ChakraJson,
    Kineto,
    Pytorch,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Target {
    Dot,
    Perfetto,
    Chakra,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "verbatim")]
enum Template {
    #[value(name = "tiny")]
    Tiny,
    #[value(name = "smollm2-135m")]
    Smollm2,
    #[value(name = "llama2-7b")]
    Llama2Small,
    #[value(name = "llama2-13b")]
    Llama2Large,
    #[value(name = "llama3-8b")]
    Llama3Small,
    #[value(name = "llama3-70b")]
    Llama3Large,
    #[value(name = "codellama-34b")]
    CodeLlama,
    #[value(name = "yi-34b")]
    Yi,
    #[value(name = "bert-base")]
    BertBase,
    #[value(name = "all-minilm-l6-v2")]
    MiniLm,
    #[value(name = "mixtral-8x7b")]
    Mixtral,
    #[value(name = "qwen3-30b-a3b")]
    Qwen3,
}

fn main() -> ExitCode {
    // A template is not read: what says how to read is refused with it.
    let command = Arguments::command().mut_subcommand("export", |export| {
        READING.iter().fold(export, |export, name| export.mut_arg(name, |arg| arg.conflicts_with("template")))
    });
    let arguments = Arguments::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit());
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads has read enough.
        Err(failure) if output::is_closed(&*failure) => ExitCode::SUCCESS,
        Err(failure) => {
            output::complain(format_args!("error: {}", failure.to_string().replace('\n', " ")));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut out = Output::lock();
    match &arguments.command {
        Command::Import { file, reading, top, json } => {
            let import = read(file, reading)?;
            let summary = Summary::of(&import, *top);
            if *json { writeln!(out, "{:#}", summary.json())? } else { summary.print(&mut out)? }
        }
        Command::Export { source, reading, to, out: path, tokens, cached, tensor_parallel, json } => {
            let exported = match (&source.template, &source.import) {
                (Some(template), _) => Exported::template(*template, *tensor_parallel, *tokens, *cached)?,
                (None, Some(file)) => Exported::trace(read(file, reading)?),
                (None, None) => return Err("expected --template or --import".into()),
            };
            let written = exported.write(*to, path)?;
            let name = exported.graph.name();
            if path.as_os_str() == "-" {
                return Ok(());
            }
            let (ops, tensors) = (exported.graph.op_count(), exported.graph.tensor_count());
            let to = format!("{to:?}").to_lowercase();
            if *json {
                let left_out = json!({ "tensors": tensors });
                let report = json!({ "graph": name, "operators": ops, "to": to, "file": path, "bytes": written, "left_out": left_out });
                writeln!(out, "{report:#}")?;
            } else {
                writeln!(out, "{name}: {ops} operators, {written} bytes of {to} in {}", path.display())?;
                if tensors > 0 {
                    writeln!(out, "  left out     {tensors} tensors, for which {to} has no place; edges are kept")?;
                }
            }
        }
    }
    Ok(out.flush()?)
}

fn read(file: &Path, reading: &Reading) -> Result<Import, Failure> {
    let options = Options {
        format: reading.format.map(|format| match format {
            TraceFormat::Chakra => Format::Chakra,
            TraceFormat::ChakraJson => Format::ChakraJson,
            TraceFormat::Kineto => Format::Kineto,
            TraceFormat::Pytorch => Format::PyTorch,
        }),
        refuse_dangling: reading.strict,
        data_only: reading.data_only,
        devices_only: reading.devices_only,
        limits: Limits {
            record_bytes: reading.max_record_bytes,
            total_bytes: reading.max_bytes,
            ops: reading.max_ops,
            edges: reading.max_edges,
            name_bytes: reading.max_name_bytes,
            duration: Nanos::secs(reading.max_duration),
        },
    };
    let import = if file.as_os_str() == "-" {
        import::read(io::stdin().lock(), "standard input", &options)
    } else {
        let opened = File::open(file).map_err(|error| format!("{}: {error}", file.display()))?;
        let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
        import::read(BufReader::new(opened), &name, &options)
    };
    Ok(import.map_err(|error| format!("{}: {error}{}", file.display(), option_of(&error)))?)
}

/// The option with which a limit that was reached is raised.
fn option_of(error: &ImportError) -> &'static str {
    match error {
        ImportError::Limit { limit: "record_bytes", .. } => " (--max-record-bytes)",
        ImportError::Limit { limit: "total_bytes", .. } => " (--max-bytes)",
        ImportError::Limit { limit: "ops", .. } => " (--max-ops)",
        ImportError::Limit { limit: "edges", .. } => " (--max-edges)",
        _ => "",
    }
}

/// A graph that is written.
struct Exported {
    graph: OpGraph,
    binding: Binding,
    ops: Vec<OpRecord>,
    lanes: Vec<Box<str>>,
}

impl Exported {
    /// One rank of a built-in model, one sequence, with the durations that a roofline gives for an H100.
    fn template(template: Template, ranks: u32, tokens: u64, cached: u64) -> Result<Self, Failure> {
        let decoder = |spec: DenseSpec| dense(&spec.tensor_parallel(ranks));
        let experts = |spec: MoeSpec| moe(&spec.tensor_parallel(ranks));
        let whole = |spec: EncoderSpec| match ranks {
            1 => Ok(encoder(&spec)?),
            _ => Err(Failure::from("encoders are not sharded: expected --tensor-parallel 1")),
        };
        let graph = match template {
            Template::Tiny => decoder(DenseSpec::tiny())?,
            Template::Smollm2 => decoder(DenseSpec::smollm2_135m())?,
            Template::Llama2Small => decoder(DenseSpec::llama2_7b())?,
            Template::Llama2Large => decoder(DenseSpec::llama2_13b())?,
            Template::Llama3Small => decoder(DenseSpec::llama3_8b())?,
            Template::Llama3Large => decoder(DenseSpec::llama3_70b())?,
            Template::CodeLlama => decoder(DenseSpec::codellama_34b())?,
            Template::Yi => decoder(DenseSpec::yi_34b())?,
            Template::BertBase => whole(EncoderSpec::bert_base())?,
            Template::MiniLm => whole(EncoderSpec::all_minilm_l6_v2())?,
            Template::Mixtral => experts(MoeSpec::mixtral_8x7b())?,
            Template::Qwen3 => experts(MoeSpec::qwen3_30b_a3b())?,
        };
        let mut binding = Binding::new();
        binding.add_chunk(tokens, cached, true);
        let work = graph.total_cost(&binding);
        if work.flops == Flops::MAX || work.bytes() == Bytes::MAX {
            let what = "work that has no place in 64 bits: expected fewer --tokens or less --cached";
            return Err(format!("{}: {tokens} tokens after {cached} are {what}", graph.name()).into());
        }
        let (device, model) = (DeviceSpec::h100_sxm(), Roofline::default());
        let record = |op: slicescheduler_gmg::graph::OpView<'_>| {
            let (template, cost) = (&graph, op.cost(&binding));
            let operation = Operation { template, op, kind: op.kind(), cost, binding: &binding, device: &device };
            let duration = model.estimate(&operation).duration;
            OpRecord { id: u64::from(op.index().0), duration: Some(duration), lane: Some(0), ..OpRecord::default() }
        };
        let ops = graph.ops().map(record).collect();
        Ok(Self { graph, binding, ops, lanes: vec!["device".into()] })
    }

    fn trace(import: Import) -> Self {
        let Import { graph, ops, lanes, .. } = import;
        Self { graph, binding: Binding::new(), ops, lanes }
    }

    /// Writes the file and gives its size.
    fn write(&self, to: Target, path: &Path) -> Result<u64, Failure> {
        let source = Source::new(&self.graph, &self.binding).with_records(&self.ops, &self.lanes);
        let encode = |out: &mut dyn Write| match to {
            Target::Dot => export::dot(source, out),
            Target::Perfetto => export::perfetto(source, out),
            Target::Chakra => export::chakra(source, out),
        };
        if path.as_os_str() == "-" {
            let mut out = io::BufWriter::new(Output::lock());
            encode(&mut out)?;
            out.flush()?;
            return Ok(0);
        }
        Ok(write_whole(path, |file| encode(file)).map_err(|error| format!("{}: {error}", path.display()))?)
    }
}

/// What a trace has.
struct Summary<'i> {
    import: &'i Import,
    top: usize,
    cost: OpCost,
    communicated: Bytes,
    path: CriticalPath,
    /// By kind, the most time first: operators, time, work.
    kinds: Vec<(String, Kind)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Kind {
    count: u64,
    /// [`None`] if none of them was measured.
    time: Option<Nanos>,
    cost: OpCost,
}

impl<'i> Summary<'i> {
    fn of(import: &'i Import, top: usize) -> Self {
        let binding = Binding::new();
        let mut kinds: BTreeMap<String, Kind> = BTreeMap::new();
        for (op, record) in import.graph.ops().zip(&import.ops) {
            let kind = kinds.entry(op.kind().to_string()).or_default();
            kind.count += 1;
            if let Some(duration) = record.duration {
                kind.time = Some(kind.time.unwrap_or_default() + duration);
            }
            kind.cost += op.cost(&binding);
        }
        let mut kinds: Vec<_> = kinds.into_iter().collect();
        kinds.sort_by_key(|(_, kind)| std::cmp::Reverse((kind.time, kind.cost.flops, kind.count)));
        let communications = import.ops.iter().filter_map(|op| op.communication.as_ref());
        Self {
            import,
            top,
            cost: import.graph.total_cost(&binding),
            communicated: communications.map(|communication| communication.bytes).sum(),
            path: import.graph.critical_path(|op| if timed(import) { duration(import, op).get() } else { 1 }),
            kinds,
        }
    }

    fn name(&self, op: OpIndex) -> String {
        self.import.graph.op(op).map_or_else(String::new, |op| op.name().to_string())
    }

    /// The operators of the critical path that take longest, longest first.
    fn longest(&self) -> Vec<OpIndex> {
        let mut ops = self.path.ops.clone();
        ops.sort_by_key(|&op| (std::cmp::Reverse(duration(self.import, op)), op));
        ops.truncate(self.top);
        ops
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let Import { graph, account, lanes, .. } = self.import;
        writeln!(out, "{}: {} trace", graph.name(), account.format)?;
        writeln!(out, "  records      {}", account.records)?;
        writeln!(out, "  operators    {} on {} lanes", account.ops, lanes.len())?;
        writeln!(out, "  edges        {}", account.edges)?;
        writeln!(out, "  tensors      {}", graph.tensor_count())?;
        writeln!(out, "  arithmetic   {}{:.3} GFLOP", over(self.cost.flops.get()), self.cost.flops.get() as f64 / 1e9)?;
        writeln!(out, "  traffic      {}{}", over(self.cost.bytes().get()), self.cost.bytes())?;
        writeln!(out, "  communicated {}{}", over(self.communicated.get()), self.communicated)?;
        if timed(self.import) {
            writeln!(out, "  measured     {}", time(self.import.measured()))?;
            writeln!(
                out,
                "  critical path {} through {} operators",
                time(Nanos(self.path.length)),
                self.path.ops.len()
            )?;
        } else {
            writeln!(out, "  measured     nothing: the trace has no durations")?;
            writeln!(out, "  critical path {} operators", self.path.ops.len())?;
        }
        for op in self.longest() {
            let measured = self.import.ops.get(op.index()).and_then(|record| record.duration);
            writeln!(out, "    {:>12}  {}", measured.map_or("-".to_owned(), time), shortened(&self.name(op)))?;
        }
        writeln!(out, "  kinds        {}", self.kinds.len())?;
        for (name, kind) in self.kinds.iter().take(self.top) {
            let (time, flops) = (kind.time.map_or("-".to_owned(), time), kind.cost.flops.get() as f64 / 1e9);
            writeln!(out, "    {:>12} {:>10.3} GFLOP {:>7} x {}", time, flops, kind.count, shortened(name))?;
        }
        let dropped: u64 = account.dropped.values().sum();
        writeln!(out, "  dropped      {dropped}")?;
        account.dropped.iter().try_for_each(|(reason, count)| writeln!(out, "    {count:>12}  {reason}"))
    }

    fn json(&self) -> serde_json::Value {
        let Import { graph, account, lanes, .. } = self.import;
        let measured = |op: OpIndex| self.import.ops.get(op.index()).and_then(|record| record.duration);
        let on_path = |&op: &OpIndex| json!({ "name": self.name(op), "ns": measured(op).map(Nanos::get) });
        let kinds = self.kinds.iter().map(|(name, kind)| {
            let (flops, bytes) = (kind.cost.flops.get(), kind.cost.bytes().get());
            json!({ "kind": name, "operators": kind.count, "ns": kind.time.map(Nanos::get), "flops": flops, "bytes": bytes })
        });
        let dropped: serde_json::Map<_, _> =
            account.dropped.iter().map(|(reason, count)| (reason.to_string(), json!(count))).collect();
        json!({
            "graph": graph.name(),
            "format": account.format.name(),
            "records": account.records,
            "operators": account.ops,
            "lanes": lanes,
            "edges": account.edges,
            "tensors": graph.tensor_count(),
            "flops": self.cost.flops.get(),
            "bytes": self.cost.bytes().get(),
            "communicated_bytes": self.communicated.get(),
            "measured_ns": timed(self.import).then(|| self.import.measured().get()),
            "critical_path": {
                "ns": timed(self.import).then_some(self.path.length),
                "operators": self.path.ops.iter().map(on_path).collect::<Vec<_>>(),
            },
            "kinds": kinds.collect::<Vec<_>>(),
            "dropped": dropped,
        })
    }
}

fn timed(import: &Import) -> bool {
    import.ops.iter().any(|op| op.duration.is_some())
}

fn duration(import: &Import, op: OpIndex) -> Nanos {
    import.ops.get(op.index()).and_then(|record| record.duration).unwrap_or_default()
}

/// What stands before a sum that has no place in 64 bits.
fn over(sum: u64) -> &'static str {
    if sum == u64::MAX { "over " } else { "" }
}

/// A time that was measured. A sum that has no place in 64 bits is no "never".
fn time(measured: Nanos) -> String {
    if measured == Nanos::MAX { format!("over {:.0} s", Nanos::MAX.get() as f64 / 1e9) } else { measured.to_string() }
}

/// The beginning of a name that is long, without letters that a terminal would obey.
fn shortened(name: &str) -> String {
    const MOST: usize = 90;
    let mut shown: String =
        name.chars().take(MOST).map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    if name.chars().nth(MOST).is_some() {
        shown.push_str("...");
    }
    shown
}
