//! Golden and refusals: a small profile whose step time is summed by hand, and what becomes of damaged ones.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use slicescheduler_gmg::units::Nanos;
use slicescheduler_simulator::cost::Coverage;
use slicescheduler_simulator::profile::ProfileError;
use slicescheduler_simulator::profile::llmservingsim::{Block, Exchange, Profile, Step, StepModel};

const META: &str = "gpu: NVIDIA Test\nhardware: TEST\nmodel: org/tiny\nvariant: bf16\ntp_degrees: [1]\n\
    skew_profile:\n  enabled: true\nskew_fit:\n  enabled: false\n";
const DENSE: &str = "layer,tokens,time_us\n\
    embedding,1,1\nembedding,100,10\n\
    final_layernorm,1,2\nfinal_layernorm,100,2\n\
    layernorm,1,3\nlayernorm,100,3\n\
    qkv_proj,1,10\nqkv_proj,100,30\n\
    o_proj,1,5\no_proj,100,5\n\
    down_proj,1,20\ndown_proj,100,20\n";
const PER_SEQUENCE: &str = "layer,sequences,time_us\nlm_head,1,100\nlm_head,11,200\nsampler,1,7\nsampler,11,7\n";
const ATTENTION: &str = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n\
    100,0,0,0,40\n100,100,0,0,60\n\
    0,0,2,100,10\n0,0,2,1000,28\n0,0,10,100,50\n0,0,10,1000,140\n\
    100,0,2,100,70\n100,100,2,100,80\n100,0,10,100,90\n100,100,10,100,99\n\
    100,0,2,1000,170\n100,100,2,1000,180\n100,0,10,1000,190\n100,100,10,1000,199\n";

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("llmservingsim").join(name)
}

/// Writes a profile; `changed` replaces a file, or removes it if empty.
fn write(name: &str, changed: &[(&str, &str)]) -> PathBuf {
    let folder = folder(name);
    let tables = folder.join("tp1");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&tables).unwrap();
    fs::write(folder.join("meta.yaml"), META).unwrap();
    let files = [("dense.csv", DENSE), ("per_sequence.csv", PER_SEQUENCE), ("attention.csv", ATTENTION)];
    for (file, text) in files.into_iter().chain(changed.iter().copied()) {
        match (file, text) {
            ("meta.yaml", text) => fs::write(folder.join(file), text).unwrap(),
            (file, "") => fs::remove_file(tables.join(file)).unwrap(),
            (file, text) => fs::write(tables.join(file), text).unwrap(),
        }
    }
    folder
}

fn block() -> Block {
    Block { layers: 3, experts: None, expert_ranks: 1, kv_heads: 2, multiprocessors: None }
}

fn nanos(profile: Profile, mut step: Step) -> u64 {
    StepModel::new(profile, block(), None).unwrap().parts(&mut step).total().0
}

/// 51 tokens lie half-way between 1 and 101; here 100 is the last, so 1 + 99/2 = 50.5 tokens are half-way.
#[test]
fn a_decode_step_is_the_sum_of_its_kernels() {
    let profile = Profile::read(&write("sum", &[]), 1).unwrap();
    let step = Step { tokens: 100, expert_tokens: 100, sequences: 6, chunks: vec![], decodes: vec![550; 6] };
    // Once: embedding 10, final norm 2. Per layer: two norms of 3, 30, 5, 20 and attention: 6 decodes of 550 tokens are
    // half-way between 2 and 10 and between 100 and 1000: (10 + 28 + 50 + 140) / 4 = 57. Head: 150 and 7.
    let per_layer = 2 * 3 + 30 + 5 + 20 + 57;
    assert_eq!(nanos(profile, step), (10 + 2 + 3 * per_layer + 150 + 7) * 1000);
}

/// Of the step above, dense operators are at samples: 10 + 2 + 3 * (2 * 3 + 30 + 5 + 20) = 195; attention, 3 * 57, and
/// the head, 157, lie between samples. With 150 tokens dense operators are half of the last sample beyond it.
#[test]
fn a_step_says_how_its_time_is_known() {
    let profile = Profile::read(&write("coverage", &[]), 1).unwrap();
    let model = StepModel::new(profile, block(), None).unwrap();
    let mut step = Step { tokens: 100, expert_tokens: 100, sequences: 6, chunks: vec![], decodes: vec![550; 6] };
    let (parts, coverage) = model.covered_parts(&mut step);
    let expected = Coverage { measured: Nanos(195_000), interpolated: Nanos(328_000), ..Coverage::default() };
    assert_eq!((coverage, coverage.total()), (expected, parts.total()));
    let (_, coverage) = model.covered_parts(&mut Step { tokens: 150, ..step });
    assert!(coverage.measured.is_zero() && (50..=51).contains(&coverage.farthest_percent), "{coverage}");
    assert_eq!(coverage.interpolated, expected.interpolated);
}

/// Two chunks of 50 tokens, one of them behind 100 others: on average a token looks back (25 + 125) / 2 = 75 tokens, as in
/// one chunk of 100 behind 25; a quarter of the way from 40 to 60.
#[test]
fn chunks_count_as_one_that_looks_back_as_far() {
    let profile = Profile::read(&write("chunks", &[]), 1).unwrap();
    let step = Step { tokens: 1, expert_tokens: 1, sequences: 1, chunks: vec![(50, 0), (50, 100)], decodes: vec![] };
    assert_eq!(nanos(profile, step), (1 + 2 + 3 * (2 * 3 + 10 + 5 + 20 + 45) + 100 + 7) * 1000);
}

#[test]
fn ranks_wait_for_what_they_exchange() {
    let profile = Profile::read(&write("exchange", &[]), 1).unwrap();
    let exchange =
        Exchange { token_bytes: 10.0, reductions: 2, gathers: 0, times: vec![(100.0, 1000.0), (300.0, 2000.0)] };
    let model = StepModel::new(profile, block(), Some(exchange)).unwrap();
    let exchanged = |tokens| model.parts(&mut Step { tokens, decodes: vec![100; 2], ..Step::default() }).exchange;
    assert_eq!(exchanged(20), 3.0 * 2.0 * 1500.0);
    assert_eq!(exchanged(1), 3.0 * 2.0 * 1000.0, "below the smallest message it is latency");
    assert_eq!(exchanged(40), 3.0 * 2.0 * 2500.0, "beyond the largest the line goes on");
}

const MOE: &str = "tokens,activated_experts,time_us\n1,2,10\n1,8,10\n1000,2,20\n1000,8,80\n";

/// With 8 experts of which a token takes 2, a thousand tokens activate all of them.
#[test]
fn experts_cost_by_how_many_are_activated() {
    let dense: String =
        DENSE.lines().filter(|line| !line.starts_with("down")).map(|line| format!("{line}\n")).collect();
    let folder = write("experts", &[("dense.csv", &dense), ("moe.csv", MOE)]);
    let block = Block { experts: Some((8, 2)), ..block() };
    let model = StepModel::new(Profile::read(&folder, 1).unwrap(), block, None).unwrap();
    let experts = |expert_tokens| model.parts(&mut Step { expert_tokens, tokens: 1, ..Step::default() }).experts;
    assert_eq!(experts(1000), 3.0 * 80_000.0);
    assert_eq!(experts(1), 3.0 * 10_000.0);
    let dense = StepModel::new(Profile::read(&folder, 1).unwrap(), self::block(), None);
    assert!(matches!(dense, Err(ProfileError::MissingOperator { operator, .. }) if operator == "down_proj"));
}

/// Times in the file are those of three calls. 16 decodes of which one has 5,000 tokens and 15 have 1,000: the mean is
/// 1,250, read in 125 us, so 20,000 tokens at 160 per us. The long one takes 75 us more, 4,000 tokens: 18.75 ns of each,
/// and a 160th of a us that was its share of the mean anyway: 25 ns per token.
#[test]
fn a_long_sequence_among_short_ones_lags() {
    let attention = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n\
        100,0,0,0,40\n0,0,16,1000,100\n0,0,16,2000,200\n100,0,16,1000,140\n";
    let skew = "n,nb,pc,kp,kvs,kv_big,kv_mean,t_mean_us,t_skew_us\n16,1,0,0,1000,5000,1250,375,600\n";
    let folder = write("skew", &[("attention.csv", attention), ("skew.csv", skew)]);
    let model = |multiprocessors| {
        StepModel::new(Profile::read(&folder, 1).unwrap(), Block { multiprocessors, ..block() }, None).unwrap()
    };
    let mut decodes = vec![1000; 15];
    decodes.push(5000);
    let step = || Step { tokens: 16, sequences: 16, decodes: decodes.clone(), ..Step::default() };
    let skew = model(None).parts(&mut step()).skew;
    assert!((skew - 3.0 * 75_000.0).abs() < 1.0, "{skew}");
    assert_eq!(model(Some(1)).parts(&mut step()).skew, skew, "0.8 * 2 * 1 multiprocessor / 2 heads: filled");
    assert_eq!(model(Some(100)).parts(&mut step()).skew, 0.0, "16 decodes leave a large device unfilled: split");
    let off = write(
        "skew-off",
        &[("attention.csv", attention), ("skew.csv", "rubbish"), ("meta.yaml", &META.replace("true", "false"))],
    );
    assert!(Profile::read(&off, 1).unwrap().skew.is_none(), "the profile says that the file does not count");
}

#[test]
fn what_is_wrong_is_said_with_file_line_and_column() {
    let refuse = |name, file, text| Profile::read(&write(name, &[(file, text)]), 1).unwrap_err().to_string();
    let message = refuse("bad-time", "dense.csv", "layer,tokens,time_us\nembedding,1,-4\n");
    assert!(
        message.ends_with("dense.csv, row 2, column \"time_us\": \"-4\": expected a time above zero and below 1e12"),
        "{message}"
    );
    let message =
        refuse("bad-number", "attention.csv", "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n1,x,0,0,5\n");
    assert!(message.contains("row 2, column \"kv_prefill\": \"x\": expected a number"), "{message}");
    let message = refuse("no-column", "per_sequence.csv", "layer,batch,time_us\nlm_head,1,5\n");
    assert!(message.contains("no column \"sequences\": expected it among layer, batch, time_us"), "{message}");
    assert!(refuse("empty", "dense.csv", "layer,tokens,time_us\n").contains("no samples"));
    assert!(refuse("meta", "meta.yaml", "model: 3: 4").contains("expected the whole meta.yaml"));
    assert!(refuse("hybrid", "linear_attention.csv", "layer,prefill_tokens\n").contains("not part of the step model"));
    assert!(
        refuse("nothing", "attention.csv", "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n0,0,0,0,5\n")
            .contains("a chunk or decodes above 0")
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_damaged_file_is_an_error_or_a_profile(at in 0usize..400, byte in any::<u8>(), cut in any::<bool>(), which in 0usize..3) {
        let (file, text) = [("dense.csv", DENSE), ("attention.csv", ATTENTION), ("per_sequence.csv", PER_SEQUENCE)][which];
        let mut bytes = text.as_bytes().to_vec();
        let at = at % bytes.len();
        if cut { bytes.truncate(at) } else { bytes[at] = byte }
        let folder = write("damaged", &[]);
        fs::write(folder.join("tp1").join(file), bytes).unwrap();
        let model = Profile::read(&folder, 1).and_then(|profile| StepModel::new(profile, block(), None));
        if let Ok(model) = model {
            let mut step = Step { tokens: 50, sequences: 4, chunks: vec![(40, 3)], decodes: vec![9, 90], ..Step::default() };
            prop_assert!(model.parts(&mut step).total().0 > 0);
        }
    }
}
