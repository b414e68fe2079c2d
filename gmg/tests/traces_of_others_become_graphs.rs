//! Real traces, read whole. Expected figures were counted in the files by other means: a JSON
//! library and a few lines that walk the records.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by them, in its helpers too")]

use std::fs::File;
use std::path::PathBuf;

use slicescheduler_gmg::export::{self, Source};
use slicescheduler_gmg::import::{self, Format, Import, ImportError, Options, Pattern, Reason};
use slicescheduler_gmg::shape::Binding;
use slicescheduler_gmg::units::{Bytes, Flops, Nanos};

/// The file called `name`, or [`None`] with a line that says so where traces need not be there.
fn trace(name: &str) -> Option<File> {
    let data = std::env::var_os("SLICESCHEDULER_DATA").map(PathBuf::from);
    let data = data.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/data"));
    let path = data.join("graphs").join(name);
    match File::open(&path) {
        Ok(file) => Some(file),
        Err(error) if std::env::var_os("CI").is_some() => panic!("{}: {error}", path.display()),
        Err(_) => {
            println!("skipped: {} is not there", path.display());
            None
        }
    }
}

fn read(name: &str, options: &Options) -> Option<Import> {
    trace(name).map(|file| import::read(file, name, options).unwrap())
}

fn dropped(import: &Import, reason: Reason) -> u64 {
    import.account.dropped.get(&reason).copied().unwrap_or_default()
}

fn critical(import: &Import) -> Nanos {
    Nanos(import.graph.critical_path(|op| import.ops[op.index()].duration.unwrap_or_default().get()).length)
}

#[test]
fn a_chakra_trace_in_json() {
    let Some(import) = read("chakra.0.json.gz", &Options::default()) else { return };
    assert_eq!(import.account.format, Format::ChakraJson);
    assert_eq!((import.account.records, import.graph.op_count()), (3664, 3664));
    assert_eq!(import.account.edges, 181_878);
    assert_eq!(import.measured(), Nanos::us(381_795));
    assert_eq!(critical(&import), Nanos::us(46_140));
    assert_eq!(import.ops.iter().filter(|op| op.communication.is_some()).count(), 21);
    let lossless = |reason: &Reason| matches!(reason, Reason::Repeated | Reason::NameTail);
    assert!(import.account.dropped.keys().all(lossless), "{:?}", import.account.dropped);
}

#[test]
fn a_chakra_trace_in_protobuf_with_data_dependencies_only() {
    let options = Options { data_only: true, ..Options::default() };
    let Some(import) = read("chakra_feeder.0.et.gz", &options) else { return };
    assert_eq!(import.account.format, Format::Chakra);
    assert_eq!((import.account.records, import.graph.op_count()), (3664, 3664));
    assert_eq!(import.account.edges, 181_878);
    assert_eq!(dropped(&import, Reason::Control), 3664);
    assert_eq!(import.measured(), Nanos::us(381_795));
    assert_eq!(critical(&import), Nanos::us(46_140));
    let sizes = import.ops.iter().filter_map(|op| op.communication.as_ref()).filter(|c| c.bytes > Bytes::ZERO);
    let first = sizes.min_by_key(|communication| communication.bytes).unwrap();
    assert_eq!(first.pattern, Some(Pattern::Broadcast));
}

#[test]
fn control_dependencies_of_a_chakra_trace_are_kept_where_they_agree_with_data() {
    let Some(import) = read("chakra_feeder.0.et.gz", &Options::default()) else { return };
    // 1277 of the 3664 name nodes that are not there.
    assert_eq!(dropped(&import, Reason::Dangling), 1277);
    assert!(dropped(&import, Reason::Contradicting) >= 383, "at least those on the node itself");
    let kept = import.account.edges - 181_878;
    let control = kept + dropped(&import, Reason::Contradicting) + dropped(&import, Reason::Repeated);
    assert_eq!(control + 1277, 3664);
    let refused = Options { refuse_dangling: true, ..Options::default() };
    let Some(file) = trace("chakra_feeder.0.et.gz") else { return };
    assert!(matches!(import::read(file, "strict", &refused), Err(ImportError::Dangling { .. })));
}

#[test]
fn a_single_collective_for_astra_sim() {
    let Some(import) = read("chakra_all_reduce_8npus_1MB.0.et", &Options::default()) else { return };
    assert_eq!((import.graph.op_count(), import.account.edges), (1, 0));
    let communication = import.ops[0].communication.as_ref().unwrap();
    assert_eq!((communication.pattern, communication.bytes), (Some(Pattern::AllReduce), Bytes::mib(1)));
    let op = import.graph.ops().next().unwrap();
    assert_eq!((op.name().to_string(), op.kind().to_string()), ("all_reduce_8npus_1MB".into(), "all_reduce".into()));
}

#[test]
fn a_kineto_trace_with_collectives() {
    let Some(import) = read("kineto_nccl_a100.json.gz", &Options::default()) else { return };
    assert_eq!(import.account.format, Format::Kineto);
    assert_eq!(import.account.records, 40_573);
    assert_eq!((import.graph.op_count(), import.account.edges), (2 * 3774, 11_318));
    assert_eq!(import.lanes.len(), 2 + 2);
    assert_eq!(import.measured(), Nanos(201_050_614));
    assert_eq!(import.graph.bytes(&Binding::new()), Bytes(1_023_787_197));
    let collectives: Vec<_> = import.ops.iter().filter_map(|op| op.communication.as_ref()).collect();
    assert_eq!(collectives.len(), 21);
    assert_eq!(collectives.iter().map(|collective| collective.bytes).sum::<Bytes>(), Bytes(307_323_096));
    assert!(collectives.iter().all(|collective| collective.ranks == Some(2)));
    let of = |pattern| collectives.iter().filter(|collective| collective.pattern == Some(pattern)).count();
    assert_eq!((of(Pattern::AllReduce), of(Pattern::Broadcast)), (15, 6));
}

#[test]
fn a_kineto_trace_of_an_old_profiler() {
    let Some(import) = read("kineto_resnet_2080ti.json.gz", &Options::default()) else { return };
    assert_eq!(import.account.records, 111_631);
    assert_eq!((import.graph.op_count(), import.account.edges), (2 * 10_113, 30_334));
    assert_eq!(import.measured(), Nanos(7_696_305_000));
    assert_eq!(import.graph.bytes(&Binding::new()), Bytes(4_909_887_176));
    let options = Options { devices_only: true, ..Options::default() };
    let Some(devices) = read("kineto_resnet_2080ti.json.gz", &options) else { return };
    assert_eq!((devices.graph.op_count(), devices.account.edges), (10_113, 10_113 - 3));
}

#[test]
fn a_pytorch_execution_trace_in_an_archive() {
    let Some(import) = read("pytorch_et_gpt2.json.tar.gz", &Options::default()) else { return };
    assert_eq!((import.account.format, import.account.records), (Format::PyTorch, 27_156));
    // 651 products, by the shapes of their inputs.
    assert_eq!(import.graph.flops(&Binding::new()), Flops(2_516_900_904_960));
    let kinds = |kind: &str| import.graph.ops().filter(|op| op.kind().to_string() == kind).count();
    assert_eq!((kinds("aten::mm"), kinds("aten::addmm"), kinds("aten::bmm")), (291, 144, 216));
    assert_eq!(kinds("aten::view") + kinds("aten::empty") + kinds("aten::transpose"), 0);
    let kept = import.account.ops;
    let dropped: u64 =
        import.account.dropped.iter().filter(|(r, _)| !matches!(r, Reason::Repeated)).map(|(_, n)| n).sum();
    assert_eq!(kept + dropped, 27_156);
}

/// What an import says about its operators, with lanes by name.
fn operators(import: &Import) -> Vec<String> {
    let lane = |lane: Option<u32>| lane.map_or("device", |lane| &*import.lanes[lane as usize]);
    let of = |(op, record): (slicescheduler_gmg::graph::OpView<'_>, &import::OpRecord)| {
        let mut before: Vec<_> = import.graph.predecessors(op.index()).collect();
        before.sort_unstable();
        let (cost, on) = (op.cost(&Binding::new()), lane(record.lane));
        let import::OpRecord { id, duration, start, communication, .. } = record;
        let (name, kind) = (op.name(), op.kind());
        format!("{id} {name} {kind} {cost:?} {before:?} {duration:?} {start:?} {on} {communication:?}")
    };
    import.graph.ops().zip(&import.ops).map(of).collect()
}

#[test]
fn every_trace_that_is_exported_for_astra_sim_comes_back_equal() {
    for name in [
        "chakra.0.json.gz",
        "chakra_all_reduce_8npus_1MB.0.et",
        "chakra_feeder.0.et.gz",
        "kineto_nccl_a100.json.gz",
        "kineto_resnet_2080ti.json.gz",
        "pytorch_et_gpt2.json.tar.gz",
    ] {
        let Some(import) = read(name, &Options::default()) else { continue };
        let mut file = Vec::new();
        export::chakra(Source::from(&import), &mut file).unwrap();
        let back = import::read(&file[..], name, &Options::default()).unwrap();
        assert!(back.account.dropped.is_empty(), "{name}: {:?}", back.account.dropped);
        assert_eq!(back.account.edges, import.account.edges, "{name}");
        for (number, (back, given)) in operators(&back).into_iter().zip(operators(&import)).enumerate() {
            assert_eq!(back, given, "{name}, operator {number}");
        }
    }
}
