//! Traces and generated load: what is read, what is refused and how it is said, and that memory
//! stays bounded whatever the input is. Randomized tests compare with an oracle in memory, or
//! assert that no input makes a reader panic.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::io::{self, BufReader, Read, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use slicescheduler::workload::servegen::{self, ClientWindow, Gaps};
use slicescheduler::workload::transform::Transform;
use slicescheduler::workload::{
    ArrivalRecord, AzureReader, Backlog, Generator, MooncakeReader, PrefixBlocks, Preset, Shift, TraceFile,
    TraceFormat, WorkloadError,
};
use slicescheduler_gmg::units::Nanos;

const AZURE: &str = "TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:18:03.9799601,1,1
";

fn azure(text: impl AsRef<[u8]>) -> Result<Vec<ArrivalRecord>, WorkloadError> {
    AzureReader::new(text.as_ref(), "code.csv").collect()
}

fn mooncake(text: impl AsRef<[u8]>) -> Result<Vec<ArrivalRecord>, WorkloadError> {
    MooncakeReader::new(text.as_ref(), "moon.jsonl").collect()
}

fn record(at: u64, prompt: u32, output: u32) -> ArrivalRecord {
    ArrivalRecord { at: Nanos(at), prompt, output, prefix: None }
}

/// A file that is gone when the test is over.
struct TempFile(PathBuf);

impl TempFile {
    fn new(content: impl AsRef<[u8]>) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("workload-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::write(&path, content).unwrap();
        Self(path)
    }

    fn trace(&self, format: TraceFormat) -> TraceFile {
        TraceFile { path: self.0.clone(), format }
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        fs::remove_file(&self.0).ok();
    }
}

#[test]
fn azure_times_are_counted_from_the_first_row() {
    let expected = [record(0, 4808, 10), record(52_000_000, 3180, 8), record(60_000_000_100, 1, 1)];
    assert_eq!(azure(AZURE).unwrap(), expected);
}

#[test]
fn azure_files_may_have_a_byte_order_mark_windows_line_ends_blank_lines_quotes_and_no_last_newline() {
    let text = AZURE.trim_end().replace('\n', "\r\n\r\n");
    assert_eq!(azure(format!("\u{feff}{text}")).unwrap(), azure(AZURE).unwrap());
    let quoted = "\"TIMESTAMP\",\"ContextTokens\",\"GeneratedTokens\"\n\"2023-11-16 18:17:03\",\"5\",\"6\"\n";
    assert_eq!(azure(quoted).unwrap(), [record(0, 5, 6)]);
}

#[test]
fn azure_columns_are_found_by_name() {
    let text = "id,GeneratedTokens,TIMESTAMP,ContextTokens\n0,7,2024-05-10 00:00:00.009930+00:00,9\n";
    assert_eq!(azure(text).unwrap(), [record(0, 9, 7)]);
}

#[test]
fn azure_errors_name_line_column_value_and_what_would_be_right() {
    let row = |line: &str| format!("{AZURE}{line}\n");
    for (text, message) in [
        (
            row("2023-11-16 18:19:00,8,-3"),
            r#"code.csv:5: GeneratedTokens is "-3": expected a whole number from 1 to 10000000"#,
        ),
        (
            row("2023-11-16 18:19:00,0,3"),
            r#"code.csv:5: ContextTokens is "0": expected a whole number from 1 to 10000000"#,
        ),
        (
            row("2023-11-16 18:19:00,10000001,3"),
            r#"code.csv:5: ContextTokens is "10000001": expected a whole number from 1 to 10000000"#,
        ),
        (
            row("2023-11-16 18:19:00,99999999999999999999,3"),
            r#"code.csv:5: ContextTokens is "99999999999999999999": expected a whole number from 1 to 10000000"#,
        ),
        (
            row("2023-11-16 18:19:00,8,2.5"),
            r#"code.csv:5: GeneratedTokens is "2.5": expected a whole number from 1 to 10000000"#,
        ),
        (
            row("2023-11-16 18:19:00,8"),
            r#"code.csv:5: no GeneratedTokens in "2023-11-16 18:19:00,8": expected TIMESTAMP,ContextTokens,GeneratedTokens"#,
        ),
        (
            row("yesterday,8,3"),
            r#"code.csv:5: TIMESTAMP is "yesterday": expected a time like 2023-11-16 18:17:03.9799600"#,
        ),
        (
            row("2023-11-16 18:17:00,8,3"),
            r#"code.csv:5: TIMESTAMP is "2023-11-16 18:17:00": expected a time that is not before that of the row above"#,
        ),
        (
            "TIMESTAMP,Prompt\n".into(),
            r#"code.csv:1: no column ContextTokens in the header "TIMESTAMP,Prompt": expected TIMESTAMP,ContextTokens,GeneratedTokens"#,
        ),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n".into(), "code.csv: no records: expected at least one"),
        (String::new(), "code.csv: no records: expected at least one"),
    ] {
        assert_eq!(azure(text).unwrap_err().to_string(), message);
    }
}

#[test]
fn azure_rows_that_are_no_text_are_refused_with_their_line() {
    let mut bytes = AZURE.as_bytes().to_vec();
    bytes.extend_from_slice(b"2023-11-16 18:19:00,\xff\xfe,3\n");
    let message = azure(bytes).unwrap_err().to_string();
    assert_eq!(
        message,
        "code.csv:5: ContextTokens is \"\u{fffd}\u{fffd}\": expected a whole number from 1 to 10000000"
    );
}

#[test]
fn a_reader_ends_after_its_first_error() {
    let text = format!("{AZURE}bad,1,1\n2023-11-16 18:19:00,8,3\n");
    let results: Vec<_> = AzureReader::new(text.as_bytes(), "code.csv").collect();
    assert_eq!(results.len(), 4);
    assert!(results[..3].iter().all(Result::is_ok) && results[3].is_err());
}

#[test]
fn mooncake_lines_carry_times_lengths_and_prefix_blocks() {
    let text = r#"{"timestamp": 1000, "input_length": 600, "output_length": 500, "hash_ids": [0, 14]}
{"timestamp": 1027.5, "input_length": 2, "output_length": 1, "other": [{}]}
"#;
    let mut first = record(0, 600, 500);
    first.prefix = Some(PrefixBlocks { block_tokens: 512, blocks: [0, 14].into() });
    assert_eq!(mooncake(text).unwrap(), [first, record(27_500_000, 2, 1)]);
}

#[test]
fn mooncake_errors_name_line_key_value_and_what_would_be_right() {
    let good = r#"{"timestamp": 10, "input_length": 6, "output_length": 5, "hash_ids": [0]}"#;
    for (line, message) in [
        (
            r#"{"timestamp": 9, "input_length": 6, "output_length": 5}"#,
            r#"moon.jsonl:2: timestamp is "9": expected a time that is not before that of the line above"#,
        ),
        (
            r#"{"timestamp": -1, "input_length": 6, "output_length": 5}"#,
            r#"moon.jsonl:2: timestamp is "-1": expected milliseconds from 0 to 9007000000"#,
        ),
        (
            r#"{"timestamp": 11, "input_length": 0, "output_length": 5}"#,
            r#"moon.jsonl:2: input_length is "0": expected a whole number from 1 to 10000000"#,
        ),
        (
            r#"{"timestamp": 11, "input_length": 4, "output_length": "many"}"#,
            r#"moon.jsonl:2: output_length is "many": expected a whole number from 1 to 10000000"#,
        ),
        (
            r#"{"timestamp": 11, "input_length": 513, "output_length": 5, "hash_ids": [1, 2, 3]}"#,
            r#"moon.jsonl:2: hash_ids is "3 blocks": expected at most 2 for a prompt of 513 tokens"#,
        ),
        (
            "timestamp",
            r#"moon.jsonl:2: expected ident at line 1 column 2 in "timestamp": expected {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}"#,
        ),
    ] {
        assert_eq!(mooncake(format!("{good}\n{line}\n")).unwrap_err().to_string(), message);
    }
    assert_eq!(mooncake("\n\n").unwrap_err().to_string(), "moon.jsonl: no records: expected at least one");
}

/// Gives `line` again and again, and counts what was taken.
struct Endless<'a> {
    line: &'a [u8],
    taken: &'a AtomicUsize,
}

impl Read for Endless<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let start = self.taken.load(Ordering::Relaxed);
        for (index, byte) in buffer.iter_mut().enumerate() {
            *byte = self.line[(start + index) % self.line.len()];
        }
        self.taken.fetch_add(buffer.len(), Ordering::Relaxed);
        Ok(buffer.len())
    }
}

const CLIENT: &str = "0,0,0,,0,0
600,3.5,0.9,Gamma,1.18,0.06
1200,6.25,27.1,Weibull,0.25,0.018
";

fn client(text: impl AsRef<[u8]>) -> Result<servegen::ClientWindows, WorkloadError> {
    servegen::from_rows(text.as_ref(), std::path::Path::new("chunk-3-trace.csv"))
}

/// A compressed archive with the file of client 3, and another one before it.
fn archive(rows: &str) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, content) in [("language/chunk-1-trace.csv", "0,1,1,,0,0\n"), ("language/chunk-3-trace.csv", rows)] {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, content.as_bytes()).unwrap();
    }
    let options = lzma_rust2::XzOptions::default();
    let mut packed = lzma_rust2::XzWriter::new(Vec::new(), options).unwrap();
    io::Write::write_all(&mut packed, &tar.into_inner().unwrap()).unwrap();
    packed.finish().unwrap()
}

#[test]
fn servegen_windows_are_rates_and_shapes_of_one_client_in_the_archive() {
    let windows = servegen::from_archive(&archive(CLIENT)[..], std::path::Path::new("language.tar.xz"), 3).unwrap();
    let window = |rate, gaps| ClientWindow { rate, gaps };
    let expected = [window(0.0, Gaps::Exponential), window(3.5, Gaps::Gamma(1.18)), window(6.25, Gaps::Weibull(0.25))];
    assert_eq!(*windows, expected);
    let missing = servegen::from_archive(&archive(CLIENT)[..], std::path::Path::new("language.tar.xz"), 4);
    assert_eq!(
        missing.unwrap_err().to_string(),
        "language.tar.xz: no chunk-4-trace.csv in it: expected that of a client"
    );
}

#[test]
fn servegen_errors_name_line_column_value_and_what_would_be_right() {
    for (rows, message) in [
        ("", "chunk-3-trace.csv: no records: expected at least one"),
        ("0,1,1,Gamma,0,1", "chunk-3-trace.csv:1: shape is \"0\": expected a number from 0.01 to 10000"),
        ("0,1,1,,0,0\n0,1,1,,0,0", "chunk-3-trace.csv:2: time is \"0\": expected a time after that of the row above"),
        ("0,-1,1,,0,0", "chunk-3-trace.csv:1: rate is \"-1\": expected a number from 0 to 1000000000"),
        ("0,1,1,Pareto,1,1", "chunk-3-trace.csv:1: pattern is \"Pareto\": expected Gamma, Weibull or nothing"),
        (
            "0,1,1",
            "chunk-3-trace.csv:1: \"0,1,1\": expected time,rate,cv,pattern,shape,scale such as \
             1800,6.4,27.2,Weibull,0.248,0.018",
        ),
    ] {
        assert_eq!(client(rows).unwrap_err().to_string(), message);
    }
}

#[test]
fn a_line_without_an_end_is_given_up_at_the_limit_of_its_format() {
    let taken = AtomicUsize::new(0);
    let input = || BufReader::new(Endless { line: b"x", taken: &taken });
    let error = AzureReader::new(input(), "code.csv").next().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "code.csv:1: longer than 4096 bytes: expected one record per line");
    assert!(taken.swap(0, Ordering::Relaxed) <= 16 << 10);

    let error = MooncakeReader::new(input(), "moon.jsonl").next().unwrap().unwrap_err();
    assert!(matches!(error, WorkloadError::LongLine { line: 1, limit: 1_048_576, .. }));
    assert!(taken.load(Ordering::Relaxed) <= (1 << 20) + (16 << 10));
}

#[test]
fn a_reader_takes_no_more_of_its_input_than_the_records_asked_for() {
    let line = b"{\"timestamp\": 1, \"input_length\": 6, \"output_length\": 5}\n";
    let taken = AtomicUsize::new(0);
    let reader = MooncakeReader::new(BufReader::new(Endless { line, taken: &taken }), "moon.jsonl");
    assert_eq!(reader.take(10_000).filter(Result::is_ok).count(), 10_000);
    assert!(taken.load(Ordering::Relaxed) <= 10_000 * line.len() + (16 << 10));
}

#[test]
fn input_that_fails_is_reported_with_the_line_being_read() {
    struct Failing;
    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("the cable is out"))
        }
    }
    let input = BufReader::new(AZURE.as_bytes().chain(Failing));
    let error = AzureReader::new(input, "code.csv").collect::<Result<Vec<_>, _>>().unwrap_err();
    assert_eq!(error.to_string(), "code.csv:5: can not be read: the cable is out");
}

#[test]
fn a_packed_trace_is_read_like_the_same_trace_unpacked() {
    let packed = |text: &str| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    let records = |bytes: &[u8]| {
        let file = TempFile::new(bytes);
        file.trace(TraceFormat::Azure).records().unwrap().collect::<Result<Vec<_>, _>>()
    };
    let whole = packed(AZURE);
    assert_eq!(records(&whole).unwrap(), azure(AZURE).unwrap());
    // Two files of gzip behind each other are one.
    let (head, tail) = AZURE.split_at(60);
    let both = [packed(head), packed(tail)].concat();
    assert_eq!(records(&both).unwrap(), azure(AZURE).unwrap());
    let cut = records(&whole[..whole.len() - 12]).unwrap_err().to_string();
    assert!(cut.contains("workload-"), "the file is named: {cut}");
}

#[test]
fn a_missing_file_is_named() {
    let trace = TraceFile { path: "no/such.csv".into(), format: TraceFormat::Azure };
    let error = trace.records().err().unwrap().to_string();
    assert!(error.starts_with("no/such.csv: can not be opened: "), "{error}");
}

#[test]
fn a_shift_of_half_the_length_starts_in_the_middle_and_goes_round() {
    let file = TempFile::new(
        "TIMESTAMP,ContextTokens,GeneratedTokens
2024-01-01 00:00:00,1,1
2024-01-01 00:00:03,2,1
2024-01-01 00:00:05,3,1
2024-01-01 00:00:10,4,1
",
    );
    let trace = file.trace(TraceFormat::Azure);
    let seconds = |shift| -> Vec<(u64, u32)> {
        let records = trace.shifted(&[shift]).unwrap().map(Result::unwrap);
        records.map(|record| (record.at.0 / 1_000_000_000, record.prompt)).collect()
    };
    assert_eq!(trace.length().unwrap(), Nanos::secs(10));
    assert_eq!(seconds(Shift::Fraction(0.5)), [(0, 3), (5, 4), (5, 1), (8, 2)]);
    assert_eq!(seconds(Shift::Span(Nanos::secs(15))), [(0, 3), (5, 4), (5, 1), (8, 2)]);
    assert_eq!(seconds(Shift::NONE), [(0, 1), (3, 2), (5, 3), (10, 4)]);
    assert_eq!(Shift::seeded(0), Shift::NONE);
    assert_ne!(Shift::seeded(1), Shift::seeded(2));
}

// Pins the bits, so that a change of any of them, on any machine, is noticed: FNV-1a over times
// and lengths of the first 10,000 records.
#[test]
fn generated_records_are_the_same_bits_on_every_machine() {
    let fingerprint = |records: &mut dyn Iterator<Item = ArrivalRecord>| {
        records.take(10_000).fold(0xCBF2_9CE4_8422_2325_u64, |hash, record| {
            [record.at.0, u64::from(record.prompt), u64::from(record.output)]
                .iter()
                .fold(hash, |hash, value| (hash ^ value).wrapping_mul(0x100_0000_01B3))
        })
    };
    assert_eq!(fingerprint(&mut Generator::new(Preset::AzureCode, 1)), CODE_FINGERPRINT);
    assert_eq!(fingerprint(&mut Generator::new(Preset::AzureConv, 1)), CONV_FINGERPRINT);
}
const CODE_FINGERPRINT: u64 = 12_766_553_760_025_757_177;
const CONV_FINGERPRINT: u64 = 9_815_526_304_939_286_520;

#[test]
fn different_seeds_give_different_arrivals_in_order() {
    for preset in Preset::ALL {
        let one: Vec<_> = Generator::new(preset, 1).take(1000).collect();
        let two: Vec<_> = Generator::new(preset, 2).take(1000).collect();
        assert_ne!(one, two);
        assert!(one.is_sorted_by_key(|record| record.at));
        assert!(one.iter().all(|record| record.prompt >= 1 && record.output >= 1 && record.prefix.is_none()));
    }
}

#[test]
fn a_rate_scale_of_three_brings_the_same_requests_in_a_third_of_the_time() {
    let generate = || Generator::new(Preset::AzureCode, 4).take(2000).map(Ok);
    let transform = Transform { rate_scale: 3.0, ..Transform::default() };
    for (plain, scaled) in generate().zip(transform.apply(generate())) {
        let (plain, scaled): (ArrivalRecord, ArrivalRecord) = (plain.unwrap(), scaled.unwrap());
        assert_eq!((plain.prompt, plain.output), (scaled.prompt, scaled.output));
        assert!(plain.at.0.abs_diff(scaled.at.0 * 3) <= 2);
    }
}

// Mean lengths of the Azure conversation trace: 1154.7 and 211.1 tokens.
#[test]
fn a_backlog_has_the_lengths_of_its_preset_and_does_not_run_out() {
    let requests = 50_000;
    let (prompt, output) = Backlog::new(Preset::AzureConv, 3)
        .take(requests)
        .fold((0_u64, 0_u64), |sum, (prompt, output)| (sum.0 + u64::from(prompt), sum.1 + u64::from(output)));
    assert!((prompt as f64 / requests as f64 / 1154.7 - 1.0).abs() < 0.03);
    assert!((output as f64 / requests as f64 / 211.1 - 1.0).abs() < 0.03);
}

/// A valid text with some bytes replaced, removed or repeated.
fn mutated(text: &'static str) -> impl Strategy<Value = Vec<u8>> {
    let edit = (any::<prop::sample::Index>(), any::<u8>(), 0..3_u8);
    prop::collection::vec(edit, 1..8).prop_map(move |edits| {
        let mut bytes = text.as_bytes().to_vec();
        for (place, byte, kind) in edits {
            let place = place.index(bytes.len());
            match kind {
                0 => bytes[place] = byte,
                1 if bytes.len() > 1 => drop(bytes.remove(place)),
                _ => bytes.insert(place, byte),
            }
        }
        bytes
    })
}

const MOONCAKE: &str = r#"{"timestamp": 0, "input_length": 600, "output_length": 500, "hash_ids": [0, 14]}
{"timestamp": 27, "input_length": 2, "output_length": 1, "hash_ids": [3]}
"#;

fn check_records(records: impl Iterator<Item = Result<ArrivalRecord, WorkloadError>>) {
    let mut last = Nanos::ZERO;
    let mut failed = false;
    for record in records {
        assert!(!failed, "a record after an error");
        match record {
            Ok(record) => {
                assert!(record.at >= last && record.prompt >= 1 && record.output >= 1);
                last = record.at;
            }
            Err(error) => {
                assert!(error.to_string().len() < 2000);
                failed = true;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_a_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        check_records(AzureReader::new(&bytes[..], "code.csv"));
        check_records(MooncakeReader::new(&bytes[..], "moon.jsonl"));
        let mut rows = b"TIMESTAMP,ContextTokens,GeneratedTokens\n".to_vec();
        rows.extend_from_slice(&bytes);
        check_records(AzureReader::new(&rows[..], "code.csv"));
    }

    #[test]
    fn no_damage_to_a_valid_azure_trace_makes_its_reader_panic(bytes in mutated(AZURE)) {
        check_records(AzureReader::new(&bytes[..], "code.csv"));
    }

    #[test]
    fn no_damage_to_a_valid_mooncake_trace_makes_its_reader_panic(bytes in mutated(MOONCAKE)) {
        check_records(MooncakeReader::new(&bytes[..], "moon.jsonl"));
    }

    #[test]
    fn no_damage_to_a_client_makes_its_reader_panic(bytes in mutated(CLIENT)) {
        match client(&bytes) {
            Ok(windows) => assert!(windows.iter().all(|window| (0.0..=1e9).contains(&window.rate))),
            Err(error) => assert!(error.to_string().len() < 2000),
        }
    }

    #[test]
    fn no_damage_to_an_archive_makes_its_reader_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
        whole in any::<bool>(),
    ) {
        let mut bytes = archive(CLIENT);
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        if !whole {
            bytes.truncate(cut.index(bytes.len()));
        }
        let _ = servegen::from_archive(&bytes[..], std::path::Path::new("language.tar.xz"), 3);
    }

    /// Oracle: the rotation computed in memory.
    #[test]
    fn a_shift_rotates_the_trace(gaps in prop::collection::vec(0..50_u64, 1..40), shift in 0..3000_u64) {
        let mut at = 0;
        let times: Vec<u64> = std::iter::once(0).chain(gaps.iter().map(|gap| { at += gap; at })).collect();
        let text: String = times
            .iter()
            .enumerate()
            .map(|(n, ms)| format!("{{\"timestamp\": {ms}, \"input_length\": {}, \"output_length\": 1}}\n", n + 1))
            .collect();
        let file = TempFile::new(&text);
        let records = file.trace(TraceFormat::Mooncake).shifted(&[Shift::Span(Nanos::ms(shift))]).unwrap();
        let seen: Vec<(u64, u32)> = records.map(|r| r.unwrap()).map(|r| (r.at.0 / 1_000_000, r.prompt)).collect();

        let length = at;
        let offset = if length == 0 { 0 } else { shift % length };
        let numbered = || times.iter().zip(1_u32..);
        let late = numbered().filter(|(ms, _)| **ms >= offset).map(|(ms, n)| (ms - offset, n));
        let early = numbered().filter(|(ms, _)| **ms < offset).map(|(ms, n)| (ms + length - offset, n));
        prop_assert_eq!(seen, late.chain(early).collect::<Vec<_>>());
    }

    #[test]
    fn any_seed_generates_records_in_order(seed in any::<u64>()) {
        for preset in Preset::ALL {
            check_records(Generator::new(preset, seed).take(300).map(Ok));
        }
    }
}
