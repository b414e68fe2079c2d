//! Readers of profiles against the files' own rows, by hand, and against damaged files: every
//! input gives a profile or an error, never a panic.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may fail by them, in its helpers too"
)]

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use slicescheduler_gmg::cluster::DeviceSpec;
use slicescheduler_gmg::dtype::DType;
use slicescheduler_simulator::cost::Confidence;
use slicescheduler_simulator::profile::{
    AttentionShape, Collective, Columns, DeviceProfile, Measure, ProfileError, Scaling, own, splitwise, vidur,
};

/// The published file at `path`, if it is there.
fn published(path: &str) -> Option<PathBuf> {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
    let folder = std::env::var_os("SLICESCHEDULER_DATA").map_or_else(default, PathBuf::from);
    let found = folder.join(path);
    if found.exists() {
        return Some(found);
    }
    assert!(
        std::env::var_os("CI").is_none(),
        "{} is missing; its source is named in the data's README",
        found.display()
    );
    eprintln!("skipped: {} is missing", found.display());
    None
}

/// The duration of `measure` at `point` in milliseconds, and how it came about.
fn read_ms(profile: &DeviceProfile, measure: &Measure, point: &[f64]) -> (f64, Confidence) {
    let reading = profile.table(measure).expect("the table is there").read(point);
    (reading.nanos / 1e6, reading.confidence)
}

fn assert_ms(found: (f64, Confidence), ms: f64, confidence: Confidence) {
    assert!(
        (found.0 - ms).abs() < 1e-6 * ms.max(1.0) && found.1 == confidence,
        "{found:?} instead of {ms} {confidence:?}"
    );
}

/// The first two rows of the file, both of 4096 tokens on one device: attn_pre_proj 0.584 and
/// 0.593 ms, mlp_down_proj 0.441 and 0.435 ms. Norms are not sharded, so those of all eight rows of
/// 4096 tokens are of one size: 0.062 to 0.067 ms, the eighth and ninth of sixteen 0.065.
#[test]
fn vidur_layers_have_the_durations_of_their_rows() {
    let Some(path) = published("profiles/vidur/vidur_h100_Llama-2-7b_mlp.csv") else { return };
    let profile = vidur::read_mlp(&path, &DeviceSpec::h100_sxm()).unwrap();
    let matmul = Measure::MatMul { weight: DType::F16, scaling: Scaling::Whole };
    assert_ms(read_ms(&profile, &matmul, &[4096.0, 12_288.0, 4096.0]), 0.5885, Confidence::Measured);
    assert_ms(read_ms(&profile, &matmul, &[4096.0, 4096.0, 11_008.0]), 0.438, Confidence::Measured);
    let norm = read_ms(&profile, &Measure::Elementwise("rms_norm".into()), &[4096.0 * 2.0 * 4096.0 * 2.0]);
    assert_ms(norm, 0.065, Confidence::Measured);
}

/// The file's first rows: one sequence with 32 cached tokens decodes in 0.015 ms, two in 0.014 ms.
#[test]
fn vidur_attention_has_the_durations_of_its_rows() {
    let Some(path) = published("profiles/vidur/vidur_a100_Llama-2-70b_tp2_attention.csv") else { return };
    let profile = vidur::read_attention(&path, &DeviceSpec::a100_sxm_80()).unwrap();
    let shape = AttentionShape { head_dim: 128, kv: DType::F16, window: 0 };
    let decode = Measure::Decode(shape);
    assert_ms(read_ms(&profile, &decode, &[1.0, 33.0, 32.0, 4.0]), 0.015, Confidence::Measured);
    assert_ms(read_ms(&profile, &decode, &[2.0, 33.0, 32.0, 4.0]), 0.014, Confidence::Measured);
    let (_, beyond) = read_ms(&profile, &decode, &[1.0, 100_000.0, 32.0, 4.0]);
    assert!(matches!(beyond, Confidence::Extrapolated { percent: 2000.. }), "{beyond:?}");
}

/// 2 KiB among eight devices: 0.037 ms; 64 MiB between two of a node move at 349 GB/s: 0.192 ms.
#[test]
fn vidur_collectives_have_the_durations_of_their_rows() {
    let Some(reduce) = published("profiles/vidur/vidur_net_h100_dgx_all_reduce.csv") else { return };
    let Some(send) = published("profiles/vidur/vidur_net_h100_dgx_send_recv.csv") else { return };
    let device = DeviceSpec::h100_sxm();
    let profile = vidur::read_network(&reduce, &device).unwrap().with_all(vidur::read_network(&send, &device).unwrap());
    let of = |kind, ranks| Measure::Collective { kind, ranks, across_nodes: false };
    assert_ms(read_ms(&profile, &of(Collective::AllReduce, 8), &[2048.0]), 0.037, Confidence::Measured);
    let (send, _) = read_ms(&profile, &of(Collective::SendRecv, 2), &[f64::from(64 << 20)]);
    assert!((0.19..0.20).contains(&send), "{send}");
}

/// Prompts of 512 tokens, one at a time on two A100, were measured 45 times; sorted, the 23rd row
/// is 195.48006 ms. Then 128 tokens take 54.85629 ms each, the 8th of 15.
#[test]
fn splitwise_iterations_have_the_durations_of_their_rows() {
    let Some(path) = published("profiles/splitwise_sim_perf_model.csv") else { return };
    let profiles = splitwise::read(&path, splitwise::known_device).unwrap();
    assert_eq!(profiles.keys().collect::<Vec<_>>(), ["a100-80gb", "h100-80gb"]);
    let of = |prompt| Measure::Iteration { model: "llama2-70b".into(), tensor_parallel: 2, prompt };
    let (prompt, _) = read_ms(&profiles["a100-80gb"], &of(true), &[1.0, 512.0]);
    assert!((195.4800..195.4801).contains(&prompt), "{prompt}");
    let (token, _) = read_ms(&profiles["a100-80gb"], &of(false), &[1.0, 512.0 + 64.0]);
    assert!((54.8562..54.8563).contains(&token), "{token}");
}

/// Times of a kernel of LLMServingSim, in microseconds, on an RTX 4090: 165 TFLOP/s, 1008 GB/s, 72 MiB of cache.
mod llmservingsim_times {
    use super::*;
    use slicescheduler_simulator::profile::llmservingsim::{LayerShape, Profile, Yardstick};

    fn yardstick() -> Yardstick {
        let layer = LayerShape {
            hidden: 4096,
            heads: 32,
            kv_heads: 8,
            head_dim: 128,
            intermediate: 14_336,
            has_experts: false,
            vocabulary: 128_256,
        };
        Yardstick { device: DeviceSpec::rtx_4090(), layer }
    }

    /// What becomes of the published profile when the time of the rows of `file` that start with `row` is `us`.
    fn with_time(source: &Path, file: &str, row: &str, us: &str, yardstick: Option<&Yardstick>) -> Result<(), String> {
        let folder = std::env::temp_dir().join(format!("slicescheduler-times-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("tp1")).unwrap();
        std::fs::copy(source.join("meta.yaml"), folder.join("meta.yaml")).unwrap();
        for name in ["dense.csv", "per_sequence.csv", "attention.csv"] {
            let text = std::fs::read_to_string(source.join("tp1").join(name)).unwrap();
            let changed = text.lines().map(|line| match line.rsplit_once(',') {
                Some((rest, _)) if name == file && line.starts_with(row) => format!("{rest},{us}\n"),
                _ => format!("{line}\n"),
            });
            std::fs::write(folder.join("tp1").join(name), changed.collect::<String>()).unwrap();
        }
        let read = Profile::read_judged(&folder, 1, yardstick);
        std::fs::remove_dir_all(&folder).unwrap();
        read.map(|_| ()).map_err(|error| error.to_string())
    }

    #[test]
    fn times_that_the_device_cannot_have_are_refused_with_their_row() {
        let Some(source) = published("profiles/llmservingsim/RTX4090/Llama-3.1-8B") else { return };
        let known = yardstick();
        assert_eq!(with_time(&source, "", "", "", Some(&known)), Ok(()));
        let cases = [
            ("dense.csv", "gate_up_proj", "1e-300", "1e-297 ns from start to end: expected at least 100 ns"),
            ("dense.csv", "gate_up_proj", "0.001", "1 ns from start to end"),
            // Of 235 MB of weights the cache holds 75 MB; 4 TB/s of the others are 4 times the memory's.
            ("dense.csv", "gate_up_proj,1,", "40", "for its memory traffic would be 39"),
            // 2 * 2048 * 28672 * 4096 operations in a millisecond instead of three.
            (
                "dense.csv",
                "gate_up_proj,2048",
                "1000",
                "for its arithmetic would be 481 TFLOP/s: expected at most the 165",
            ),
            // 34 MB fit into the cache, which does not give them in a microsecond.
            ("dense.csv", "o_proj,1,", "1", "for its traffic from the cache would be 33"),
            ("dense.csv", "layernorm,2048", "1.5", "for its traffic from the cache"),
            ("dense.csv", "act_fn,1,", "9e9", "times the 10"),
            ("per_sequence.csv", "lm_head,256", "9e9", "expected at most 1000 times"),
            ("per_sequence.csv", "lm_head,256", "200", "for its "),
            ("per_sequence.csv", "sampler,1,", "9e9", "times the"),
            ("attention.csv", "0,0,256,1024", "100", "for its memory traffic"),
            ("attention.csv", "2048,0,0,0", "50", "for its arithmetic"),
            ("attention.csv", "16,0,1,16", "9e9", "times the"),
            ("attention.csv", "16,0,1,16", "1e23", "\"1e23\": expected a time above zero and below 1e12"),
        ];
        for (file, row, us, expected) in cases {
            let error = with_time(&source, file, row, us, Some(&known)).unwrap_err();
            let place = format!("{file}, row ");
            assert!(
                error.contains(&place) && error.contains("\"time_us\": ") && error.contains(expected),
                "{row}: {error}"
            );
            assert!(error.len() < 400, "{error}");
        }
        let error = with_time(&source, "dense.csv", "rotary", "0.001", None).unwrap_err();
        assert!(error.contains("at least 100 ns"), "of an unknown device: {error}");
        assert!(with_time(&source, "dense.csv", "rotary", "9e9", None).unwrap_err().contains("at most 10 s"));
    }

    #[test]
    fn a_description_that_is_cut_is_refused() {
        let Some(source) = published("profiles/llmservingsim/RTX4090/Llama-3.1-8B") else { return };
        let text = std::fs::read_to_string(source.join("meta.yaml")).unwrap();
        let folder = std::env::temp_dir().join(format!("slicescheduler-meta-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let read = |text: &str| {
            std::fs::write(folder.join("meta.yaml"), text).unwrap();
            slicescheduler_simulator::profile::llmservingsim::ProfileMeta::read(&folder)
        };
        let whole = read(&text).unwrap();
        assert!(!whole.has_skew());
        // All that is missing at the end is the file's last line break.
        for end in (0..text.trim_end().len()).step_by(7) {
            let error = read(&text[..end]).unwrap_err().to_string();
            assert!(error.contains("meta.yaml, row "), "{end}: {error}");
        }
        let error = read(&text[..629]).unwrap_err().to_string();
        assert!(error.contains("missing field `skew_profile`") && !error.contains(" at line "), "{error}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

#[test]
fn splitwise_times_that_the_device_cannot_have_are_refused() {
    let refused = |prompt: &str, token: &str| {
        let text = format!(
            "model,hardware,tensor_parallel,prompt_size,batch_size,token_size,prompt_time,token_time\n\
             llama2-70b,h100-80gb,2,512,1,128,{prompt},{token}\n"
        );
        let columns = Columns::from_csv("s.csv", text.as_bytes()).unwrap();
        splitwise::profiles(&columns, splitwise::known_device).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(refused("100", "30"), Ok(()));
    let error = refused("100", "-1").unwrap_err();
    assert_eq!(error, "s.csv, row 2, column \"token_time\": \"-1\": expected a time above zero and below 1e9");
    // Half a byte of each of 35 billion weights: 5.2 ms at 3.35 TB/s.
    assert!(
        refused("100", "4").unwrap_err().contains("row 2, column \"token_time\": 4000000 ns for its memory traffic")
    );
    assert!(refused("2e6", "30").unwrap_err().contains("\"prompt_time\": 2000000000000 ns from start to end"));
}

/// A zero of Vidur is below a microsecond, in which no H100 sends 900 MB.
#[test]
fn zeros_of_vidur_are_left_out_only_where_they_can_be() {
    let (header, row) = ("num_workers,size,collective,devices_per_node,time_stats.all_reduce.median", "8");
    let read = |size: u64, ms: &str| {
        let text = format!("{header}\n{row},2048,all_reduce,8,0.037\n{row},{size},all_reduce,8,{ms}\n");
        vidur::network(&Columns::from_csv("n.csv", text.as_bytes()).unwrap(), &DeviceSpec::h100_sxm())
    };
    assert!(read(4096, "0").is_ok());
    let error = read(1 << 30, "0").unwrap_err().to_string();
    assert!(error.contains("n.csv, row 3") && error.contains("1000 ns for its messages"), "{error}");
    assert!(read(4096, "-1").unwrap_err().to_string().contains("\"-1\": expected a time above zero"));
    assert!(read(4096, "9e8").unwrap_err().to_string().contains("expected at most 1000 times"));
}

#[cfg(feature = "parquet")]
mod parquet {
    use super::*;
    use slicescheduler_simulator::profile::{aiconfigurator, parquet_file};

    /// Rows of the H100's files, as pandas prints them, to six digits.
    ///
    /// A product in bf16, n = k = 4096: m = 33 takes 0.014449 ms and m = 48 takes 0.014829 ms, so
    /// m = 40 takes 0.014449 + 7/15 * 0.000380. Prompts, 32 heads, 8 KV heads of 128: 1536 tokens
    /// 0.058816 ms, 2048 tokens 0.089003 ms. Decoding, 32 sequences: step 1023 0.059819 ms.
    /// All-reduce of 512 MiB between two: 2^28 elements of two bytes take 1.68644 ms, 2^29 of one
    /// byte 1.73400 ms; both are the same message and count with their mean.
    #[test]
    fn aiconfigurator_operators_have_the_durations_of_their_rows() {
        let Some(folder) = published("profiles/aiconfigurator/h100_sxm") else { return };
        let profile = aiconfigurator::read_folder(&folder, &DeviceSpec::h100_sxm()).unwrap();
        let near = |(found, confidence): (f64, Confidence), ms: f64, expected: Confidence| {
            assert!(
                (found / ms - 1.0).abs() < 1e-4 && confidence == expected,
                "{found} {confidence:?} instead of {ms}"
            );
        };
        let matmul = Measure::MatMul { weight: DType::BF16, scaling: Scaling::Whole };
        near(read_ms(&profile, &matmul, &[33.0, 4096.0, 4096.0]), 0.014449, Confidence::Measured);
        near(read_ms(&profile, &matmul, &[40.0, 4096.0, 4096.0]), 0.0146263, Confidence::Interpolated);
        let shape = AttentionShape { head_dim: 128, kv: DType::BF16, window: 0 };
        near(
            read_ms(&profile, &Measure::Prefill(shape), &[1.0, 1792.0, 32.0, 8.0]),
            0.0739095,
            Confidence::Interpolated,
        );
        near(read_ms(&profile, &Measure::Decode(shape), &[32.0, 1024.0, 32.0, 8.0]), 0.059819, Confidence::Measured);
        let reduce = Measure::Collective { kind: Collective::AllReduce, ranks: 2, across_nodes: false };
        near(read_ms(&profile, &reduce, &[f64::from(1 << 29)]), 1.71022, Confidence::Measured);
    }

    #[test]
    fn a_file_of_another_device_or_operator_is_refused() {
        let Some(path) = published("profiles/aiconfigurator/h200_sxm/nccl_perf.parquet") else { return };
        let columns = parquet_file::read_parquet(&path).unwrap();
        let error = aiconfigurator::nccl(&columns, &DeviceSpec::h100_sxm()).unwrap_err().to_string();
        assert!(
            error.ends_with("row 1, column \"device\": \"NVIDIA H200\": expected a name with \"H100\" in it"),
            "{error}"
        );
        let error = aiconfigurator::gemm(&columns, &DeviceSpec::h200_sxm()).unwrap_err().to_string();
        assert!(error.ends_with("column \"op_name\": \"all_gather\": expected gemm"), "{error}");
    }

    #[test]
    fn the_files_of_every_published_device_are_read() {
        let Some(folder) = published("profiles/aiconfigurator/h200_sxm") else { return };
        let profile = aiconfigurator::read_folder(&folder, &DeviceSpec::h200_sxm()).unwrap();
        assert!(profile.tables().len() > 10, "{}", profile.tables().len());
    }

    /// Bytes are changed, blocks of them repeated or cut out, and ends cut off.
    #[test]
    fn damaged_parquet_files_are_refused_or_read() {
        let readers: [(&str, super::Reader, u32); 4] = [
            ("nccl_perf", aiconfigurator::nccl, 200),
            ("gemm_perf", aiconfigurator::gemm, 16),
            ("context_attention_perf", aiconfigurator::context_attention, 16),
            ("generation_attention_perf", aiconfigurator::generation_attention, 16),
        ];
        std::panic::set_hook(Box::new(|_| ()));
        let results = readers.map(|(name, reader, cases)| {
            let path = published(&format!("profiles/aiconfigurator/h100_sxm/{name}.parquet"))?;
            Some((name, damage(&std::fs::read(path).unwrap(), reader, cases)))
        });
        let _ = std::panic::take_hook();
        for (name, result) in results.into_iter().flatten() {
            result.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    /// Half of the changes fall into the last 4 KiB, the description of the file.
    fn damage(bytes: &[u8], reader: super::Reader, cases: u32) -> Result<(), String> {
        let read = |bytes: Vec<u8>| {
            let columns = parquet_file::from_parquet("damaged.parquet", bytes)?;
            reader(&columns, &DeviceSpec::h100_sxm())
        };
        read(bytes.to_vec()).map_err(|error| error.to_string())?;
        let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(cases));
        let edit = (any::<prop::sample::Index>(), any::<bool>(), any::<u8>());
        let block = (any::<prop::sample::Index>(), 1usize..300, any::<bool>());
        let changes = (
            prop::collection::vec(edit, 0..8),
            any::<Option<prop::sample::Index>>(),
            prop::option::weighted(0.3, block),
        );
        let result = runner.run(&changes, |(edits, cut, block)| {
            let mut damaged = bytes.to_vec();
            for (at, is_late, value) in edits {
                let first = if is_late { damaged.len().saturating_sub(4096) } else { 0 };
                let at = first + at.index(damaged.len() - first);
                damaged[at] = value;
            }
            if let Some((at, length, is_repeated)) = &block {
                let at = at.index(damaged.len() - *length);
                let part: Vec<u8> = damaged.drain(at..at + *length).collect();
                if *is_repeated {
                    let twice = part.repeat(2);
                    damaged.splice(at..at, twice);
                }
            }
            if let Some(cut) = cut {
                damaged.truncate(cut.index(damaged.len()));
                // What was repeated may be another end.
                let is_refused = read(damaged).is_err() || block.is_some();
                prop_assert!(is_refused, "a file without its end was read");
                return Ok(());
            }
            match read(damaged) {
                Err(error) => prop_assert!(error.to_string().contains("damaged.parquet"), "{error}"),
                Ok(profile) => {
                    let is_sound = |table: &slicescheduler_simulator::profile::Table| {
                        table.cells().iter().all(|cell| cell.nanos.is_finite() && cell.nanos > 0.0)
                    };
                    prop_assert!(profile.tables().all(|(_, table)| is_sound(table)), "a time that is none was read");
                }
            }
            Ok(())
        });
        result.map_err(|error| error.to_string())
    }
}

type Reader = fn(&Columns, &DeviceSpec) -> Result<DeviceProfile, ProfileError>;

/// A small file for every reader of text.
fn texts() -> Vec<(&'static str, Reader)> {
    vec![
        (
            "device,weight,scaling,m,n,k,time_us\nH100 SXM,bf16,whole,1,4096,4096,15\nH100 SXM,f8,blocks,512,4096,4096,24.5\n",
            own::matmul,
        ),
        (
            "device,head_dim,kv,window,batch,length,heads,kv_heads,time_ms\nH100 SXM,128,bf16,0,1,2048,32,8,0.09\n",
            own::prefill,
        ),
        (
            "device,head_dim,kv,window,length,cached,heads,kv_heads,time_ns\nH100 SXM,128,bf16,0,512,2048,32,8,90000\n",
            own::chunk,
        ),
        (
            "device,head_dim,kv,window,batch,context,heads,kv_heads,time_s\nH100 SXM,64,f8,0,8,2048,32,8,0.00002\n",
            own::decode,
        ),
        ("device,collective,ranks,across_nodes,bytes,time_us\nH100 SXM,all_reduce,4,false,65536,12\n", own::collective),
        ("device,kind,bytes,time_us\nH100 SXM,rms_norm,65536,2\nH100 SXM,rms_norm,131072,3\n", own::elementwise),
        (
            "device,model,tensor_parallel,phase,batch,length,time_ms\nH100 SXM,llama2-70b,2,prompt,1,512,190\n",
            own::iteration,
        ),
        (
            "n_q_head,n_kv_head,n_embd,num_tensor_parallel_workers,batch_size,prefill_chunk_size,kv_cache_size,is_prefill,\
             time_stats.attn_prefill.median,time_stats.attn_decode.median\n64,8,8192,2,1,64,0,True,0.02,\n64,8,8192,2,4,0,128,False,,0.015\n",
            vidur::attention,
        ),
        (
            "num_workers,size,collective,devices_per_node,time_stats.all_reduce.median\n8,2048,all_reduce,8,0.037\n",
            vidur::network,
        ),
    ]
}

#[test]
fn the_small_files_are_read() {
    for (text, reader) in texts() {
        let profile = reader(&Columns::from_csv("small.csv", text.as_bytes()).unwrap(), &DeviceSpec::h100_sxm());
        profile.unwrap_or_else(|error| panic!("{error}\n{text}"));
    }
}

#[test]
fn errors_say_what_would_be_right() {
    let refused = |text: &str| {
        let columns = Columns::from_csv("m.csv", text.as_bytes()).unwrap();
        own::matmul(&columns, &DeviceSpec::h100_sxm()).unwrap_err().to_string()
    };
    let header = "device,weight,scaling,m,n,k,time_us\n";
    let cases = [
        ("H200 SXM,bf16,whole,1,4096,4096,15", "m.csv, row 2, column \"device\": \"H200 SXM\": expected \"H100 SXM\""),
        ("H100 SXM,bf17,whole,1,4096,4096,15", "m.csv, row 2, column \"weight\": \"bf17\": expected f32, f16, bf16"),
        ("H100 SXM,bf16,whole,1,x,4096,15", "m.csv, row 2, column \"n\": \"x\": expected a finite number"),
        ("H100 SXM,bf16,whole,1,4096,4096,-3", "m.csv, row 2, column \"time_us\": \"-3\": expected a time above zero"),
        // 2 * 8192^3 operations in 1.2 us instead of 1.2 ms.
        (
            "H100 SXM,bf16,whole,8192,8192,8192,1.2",
            "m.csv, row 2, column \"time_us\": 1200 ns for its arithmetic would be",
        ),
        ("H100 SXM,bf16,whole,8192,8192,8192,1200000", "m.csv, row 2, column \"time_us\": "),
    ];
    for (row, expected) in cases {
        let error = refused(&format!("{header}{row}\n"));
        assert!(error.starts_with(expected), "{error}");
    }
    assert!(refused(header).starts_with("m.csv: no rows: expected"), "{}", refused(header));
    let error = refused("device,weight,scaling,m,n,k,latency\n");
    assert!(error.starts_with("m.csv: no column \"time_ns\" or \"time_us\""), "{error}");
    let error = refused("device,weight,scaling,m,n,k,time_us,time_ms\n");
    assert!(error.contains("expected one unit of time"), "{error}");
}

#[test]
fn what_is_written_is_read_again_bit_for_bit() {
    let device = DeviceSpec::h100_sxm();
    let mut profile = DeviceProfile::new(device.clone());
    for (text, reader) in texts() {
        profile = profile.with_all(reader(&Columns::from_csv("small.csv", text.as_bytes()).unwrap(), &device).unwrap());
    }
    let folder = std::env::temp_dir().join(format!("slicescheduler-profile-{}", std::process::id()));
    own::write_folder(&folder, &profile).unwrap();
    let again = own::read_folder(&folder, &device);
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(again.unwrap(), profile);
}

proptest! {
    #[test]
    fn damaged_text_is_refused_or_read(
        which in 0usize..9,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
    ) {
        let (text, reader) = texts().swap_remove(which);
        let mut bytes = text.as_bytes().to_vec();
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if is_cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let profile = Columns::from_csv("damaged.csv", &bytes).and_then(|columns| reader(&columns, &DeviceSpec::h100_sxm()));
        match profile {
            Ok(profile) => prop_assert!(profile.tables().all(|(_, table)| table.cells().iter().all(|cell| cell.nanos > 0.0))),
            Err(error) => prop_assert!(error.to_string().contains("damaged.csv"), "{}", error),
        }
    }

    #[test]
    fn numbers_in_any_column_are_refused_or_read(
        which in 0usize..9,
        column in any::<prop::sample::Index>(),
        number in prop_oneof![any::<f64>(), (0u64..1 << 50).prop_map(|whole| whole as f64)],
    ) {
        let (text, reader) = texts().swap_remove(which);
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        let mut cells: Vec<_> = lines[1].split(',').map(str::to_owned).collect();
        let column = column.index(cells.len());
        cells[column] = number.to_string();
        lines[1] = cells.join(",");
        let columns = Columns::from_csv("odd.csv", lines.join("\n").as_bytes()).unwrap();
        if let Ok(profile) = reader(&columns, &DeviceSpec::h100_sxm()) {
            prop_assert!(profile.tables().all(|(_, table)| table.read(&[]).nanos > 0.0));
        }
    }
}
