//! Files written here after the specifications of GGUF and safetensors, and with the names that llama.cpp and the
//! transformers library give tensors, hold the weights of a seeded model: it answers as it does without a file.

#![allow(clippy::unwrap_used, reason = "a test may fail by them, in its helpers too")]

use std::path::PathBuf;

use slicescheduler_executor::cpu_world::Direct;
use slicescheduler_executor::model::{Shard, WeightSource};
use slicescheduler_executor::registry::KernelRegistry;
use slicescheduler_gmg::dtype::DType;

use super::*;

/// A tensor of a file: its dimensions outermost first, and its bytes.
struct Tensor {
    name: String,
    dims: Vec<usize>,
    dtype: DType,
    bytes: Vec<u8>,
}

/// How files call what the templates have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    /// GGUF of Mixtral, the experts of a layer together or apart.
    Llama {
        apart: bool,
    },
    /// GGUF of Qwen 3.
    Qwen,
    HfMixtral,
    HfQwen,
}

/// Writes the weights of a seeded model as tensors of a file.
struct Writer<'a> {
    spec: &'a MoeSpec,
    names: Names,
    weights: SeededWeights,
    tensors: Vec<Tensor>,
}

impl Writer<'_> {
    fn vector(&mut self, weight: &str, name: String, length: usize) {
        let mut values = vec![0.0; length];
        self.weights.fill(Shard { name: weight, shape: &[length] }, &mut values).unwrap();
        let bytes = values.into_iter().flat_map(f32::to_le_bytes).collect();
        self.tensors.push(Tensor { name, dims: vec![length], dtype: DType::F32, bytes });
    }

    /// The rows of a matrix of the model, as bytes.
    fn rows(&self, weight: &str, rows: usize, columns: usize, dtype: DType) -> Vec<Vec<u8>> {
        let shard = Shard { name: weight, shape: &[rows, columns] };
        let mut bytes = vec![0; dtype.bytes((rows * columns) as u64).get() as usize];
        if dtype == DType::F32 {
            let mut values = vec![0.0; rows * columns];
            self.weights.fill(shard, &mut values).unwrap();
            bytes = values.into_iter().flat_map(f32::to_le_bytes).collect();
        } else {
            self.weights.fill_stored(shard, dtype, &mut bytes).unwrap();
        }
        bytes.chunks(bytes.len() / rows).map(<[u8]>::to_vec).collect()
    }

    fn push(&mut self, name: String, columns: usize, dtype: DType, rows: &[Vec<u8>]) {
        self.tensors.push(Tensor { name, dims: vec![rows.len(), columns], dtype, bytes: rows.concat() });
    }

    fn matrix(&mut self, weight: &str, name: String, rows: usize, columns: usize, dtype: DType) {
        let rows = self.rows(weight, rows, columns, dtype);
        self.push(name, columns, dtype, &rows);
    }

    /// As `convert_hf_to_gguf.py` permutes the rows of each head: reshape to (2, dim / 2), swap these axes.
    fn paired(rows: &[Vec<u8>], head_dim: usize) -> Vec<Vec<u8>> {
        let half = head_dim / 2;
        let of_head =
            |head: &[Vec<u8>]| (0..head_dim).map(|at| head[at % 2 * half + at / 2].clone()).collect::<Vec<_>>();
        rows.chunks(head_dim).flat_map(of_head).collect()
    }

    fn layer(&mut self, layer: u32) {
        let (base, dtype) = (self.spec.base.clone(), self.spec.base.dtype);
        let (hidden, width, head_dim) = (base.hidden as usize, base.intermediate as usize, base.head_dim as usize);
        let (queries, keys) = (base.heads as usize * head_dim, base.kv_heads as usize * head_dim);
        let here = |name: &str| format!("layers.{layer}.{name}");
        let gguf = matches!(self.names, Names::Llama { .. } | Names::Qwen);
        let named = |gguf_name: &str, hf_name: &str| {
            if gguf {
                format!("blk.{layer}.{gguf_name}.weight")
            } else {
                format!("model.layers.{layer}.{hf_name}.weight")
            }
        };
        self.vector(&here("attn.norm.weight"), named("attn_norm", "input_layernorm"), hidden);
        self.vector(&here("mlp.norm.weight"), named("ffn_norm", "post_attention_layernorm"), hidden);
        if base.qk_norm {
            self.vector(&here("attn.q_norm.weight"), named("attn_q_norm", "self_attn.q_norm"), head_dim);
            self.vector(&here("attn.k_norm.weight"), named("attn_k_norm", "self_attn.k_norm"), head_dim);
        }
        let fused = self.rows(&here("attn.qkv.weight"), queries + 2 * keys, hidden, dtype);
        let (of_queries, rest) = fused.split_at(queries);
        let (of_keys, of_values) = rest.split_at(keys);
        let rotated = |rows: &[Vec<u8>]| match self.names {
            Names::Llama { .. } => Self::paired(rows, head_dim),
            _ => rows.to_vec(),
        };
        let (of_queries, of_keys) = (rotated(of_queries), rotated(of_keys));
        self.push(named("attn_q", "self_attn.q_proj"), hidden, dtype, &of_queries);
        self.push(named("attn_k", "self_attn.k_proj"), hidden, dtype, &of_keys);
        self.push(named("attn_v", "self_attn.v_proj"), hidden, dtype, of_values);
        self.matrix(&here("attn.o.weight"), named("attn_output", "self_attn.o_proj"), hidden, queries, dtype);
        let plain = if dtype == DType::Q8_0 { DType::F32 } else { dtype };
        let router = if self.names == Names::HfMixtral { "block_sparse_moe.gate" } else { "mlp.gate" };
        let experts = self.spec.experts as usize;
        self.matrix(&here("mlp.router.weight"), named("ffn_gate_inp", router), experts, hidden, plain);
        let mut together: [Vec<Vec<u8>>; 3] = Default::default();
        for expert in 0..experts {
            let gate_up = self.rows(&here(&format!("mlp.gate_up.weight.{expert}")), 2 * width, hidden, dtype);
            let down = self.rows(&here(&format!("mlp.down.weight.{expert}")), hidden, width, dtype);
            let parts = [&gate_up[..width], &gate_up[width..], &down[..]];
            for (part, rows) in parts.into_iter().enumerate() {
                let columns = if part == 2 { width } else { hidden };
                let of_gguf = ["ffn_gate", "ffn_up", "ffn_down"][part];
                let name = match self.names {
                    Names::Llama { apart: true } => format!("blk.{layer}.{of_gguf}.{expert}.weight"),
                    Names::Llama { apart: false } | Names::Qwen => {
                        together[part].extend(rows.iter().cloned());
                        continue;
                    }
                    Names::HfMixtral => {
                        let of_hf = ["w1", "w3", "w2"][part];
                        format!("model.layers.{layer}.block_sparse_moe.experts.{expert}.{of_hf}.weight")
                    }
                    Names::HfQwen => {
                        let of_hf = ["gate_proj", "up_proj", "down_proj"][part];
                        format!("model.layers.{layer}.mlp.experts.{expert}.{of_hf}.weight")
                    }
                };
                self.push(name, columns, dtype, rows);
            }
        }
        for (name, rows) in ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"].iter().zip(&together) {
            if !rows.is_empty() {
                let (columns, bytes) = (if *name == "ffn_down_exps" { width } else { hidden }, rows.concat());
                let (name, dims) = (named(name, ""), vec![experts, rows.len() / experts, columns]);
                self.tensors.push(Tensor { name, dims, dtype, bytes });
            }
        }
    }

    fn model(mut self) -> Vec<Tensor> {
        let (base, dtype) = (self.spec.base.clone(), self.spec.base.dtype);
        let (vocab, hidden) = (base.vocab as usize, base.hidden as usize);
        let names = match self.names {
            Names::Llama { .. } | Names::Qwen => ["token_embd.weight", "output_norm.weight", "output.weight"],
            _ => ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"],
        };
        self.matrix("embed.weight", names[0].to_owned(), vocab, hidden, dtype);
        self.vector("norm.weight", names[1].to_owned(), hidden);
        self.matrix("lm_head.weight", names[2].to_owned(), vocab, hidden, dtype);
        (0..base.layers).for_each(|layer| self.layer(layer));
        self.tensors
    }
}

/// A file of GGUF, version 3.
fn gguf(spec: &MoeSpec, names: Names, tensors: &[Tensor]) -> Vec<u8> {
    let architecture = if names == Names::Qwen { "qwen3moe" } else { "llama" };
    let text = |bytes: &mut Vec<u8>, text: &str| {
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
    };
    let base = &spec.base;
    let width = if names == Names::Qwen { "expert_feed_forward_length" } else { "feed_forward_length" };
    let numbers = [
        ("block_count", base.layers),
        ("embedding_length", base.hidden as u32),
        ("attention.head_count", base.heads),
        ("attention.head_count_kv", base.kv_heads),
        ("attention.key_length", base.head_dim),
        (width, base.intermediate as u32),
        ("expert_count", spec.experts),
        ("expert_used_count", spec.top),
        ("context_length", base.max_context),
    ];
    let floats = [("rope.freq_base", base.rope_theta), ("attention.layer_norm_rms_epsilon", base.norm_epsilon)];
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3u32.to_le_bytes());
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend(((numbers.len() + floats.len() + 2) as u64).to_le_bytes());
    text(&mut bytes, "general.architecture");
    bytes.extend(8u32.to_le_bytes());
    text(&mut bytes, architecture);
    text(&mut bytes, "tokenizer.ggml.eos_token_id");
    bytes.extend(4u32.to_le_bytes());
    bytes.extend(9u32.to_le_bytes());
    for (key, value) in numbers {
        text(&mut bytes, &format!("{architecture}.{key}"));
        bytes.extend(4u32.to_le_bytes());
        bytes.extend(value.to_le_bytes());
    }
    for (key, value) in floats {
        text(&mut bytes, &format!("{architecture}.{key}"));
        bytes.extend(6u32.to_le_bytes());
        bytes.extend(value.to_le_bytes());
    }
    let mut offset = 0u64;
    for tensor in tensors {
        text(&mut bytes, &tensor.name);
        bytes.extend((tensor.dims.len() as u32).to_le_bytes());
        tensor.dims.iter().rev().for_each(|&dim| bytes.extend((dim as u64).to_le_bytes()));
        bytes.extend(if tensor.dtype == DType::Q8_0 { 8u32 } else { 0 }.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
        offset = (offset + tensor.bytes.len() as u64).next_multiple_of(32);
    }
    for tensor in tensors {
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend(&tensor.bytes);
    }
    bytes
}

fn safetensors(tensors: &[Tensor]) -> Vec<u8> {
    let (mut entries, mut offset) = (Vec::new(), 0);
    for tensor in tensors {
        let (dtype, end) = (if tensor.dtype == DType::BF16 { "BF16" } else { "F32" }, offset + tensor.bytes.len());
        let Tensor { name, dims, .. } = tensor;
        entries.push(format!(r#""{name}":{{"dtype":"{dtype}","shape":{dims:?},"data_offsets":[{offset},{end}]}}"#));
        offset = end;
    }
    let header = format!("{{{}}}", entries.join(","));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    tensors.iter().for_each(|tensor| bytes.extend(&tensor.bytes));
    bytes
}

/// A place for files of one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("slicescheduler-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The answers to some prompts.
fn answers(model: &MixtureOfExperts) -> Vec<u32> {
    let cpu = model.on_cpu(model.template().unwrap()).unwrap();
    let mut direct = Direct::new(cpu, &KernelRegistry::cpu(), 48, 16).unwrap();
    let mut answers = Vec::new();
    for prompt in [&[72, 101, 108, 108, 111][..], &[1], &[200, 7, 9, 9, 9, 30, 31]] {
        direct.restart();
        let mut next = direct.step(prompt).unwrap();
        for _ in 0..8 {
            answers.push(next);
            next = direct.step(&[next]).unwrap();
        }
    }
    answers
}

fn spec(dtype: DType, qwen: bool) -> MoeSpec {
    let mut spec = MoeSpec::tiny().with_dtype(dtype);
    (spec.base.activation_dtype, spec.base.kv_dtype) = (DType::F32, DType::F32);
    (spec.base.norm_epsilon, spec.base.rope_theta) = (1e-4, 5000.0);
    spec.experts = 5;
    if qwen {
        // Not what hidden elements and heads would make of it.
        (spec.base.qk_norm, spec.base.head_dim) = (true, 32);
    }
    spec
}

fn tensors(spec: &MoeSpec, names: Names) -> Vec<Tensor> {
    Writer { spec, names, weights: SeededWeights::new(11), tensors: Vec::new() }.model()
}

#[test]
fn a_gguf_file_of_experts_answers_as_its_weights_do_without_a_file() {
    let folder = Folder::new("moe-gguf");
    let mut seen = Vec::new();
    for dtype in [DType::F32, DType::Q8_0] {
        for names in [Names::Llama { apart: false }, Names::Llama { apart: true }, Names::Qwen] {
            let spec = spec(dtype, names == Names::Qwen);
            let path = folder.write("model.gguf", gguf(&spec, names, &tensors(&spec, names)));
            let model = MixtureOfExperts::from_gguf(path).unwrap();
            let expected = MixtureOfExperts::from_spec(spec.clone(), SeededWeights::new(11));
            assert_eq!(model.spec(), &named(&spec, "model"), "{names:?}");
            assert_eq!(model.end_of_sequence(), Some(9));
            let found = answers(&model);
            assert_eq!(found, answers(&expected), "{names:?} {dtype}");
            seen.push(found);
        }
    }
    assert!(seen[0] == seen[1] && seen[0] != seen[2], "Qwen's is another model");
}

/// As a file says it, with the name of the file or of its folder.
fn named(spec: &MoeSpec, name: &str) -> MoeSpec {
    let mut spec = spec.clone();
    spec.base.name = name.to_owned().into();
    spec
}

fn config(spec: &MoeSpec, names: Names) -> String {
    let base = &spec.base;
    let own = if names == Names::HfQwen {
        format!(
            r#""model_type":"qwen3_moe","num_experts":{},"moe_intermediate_size":{},"intermediate_size":999,
            "norm_topk_prob":true,"decoder_sparse_step":1,"mlp_only_layers":[],"use_sliding_window":false,
            "sliding_window":null"#,
            spec.experts, base.intermediate
        )
    } else {
        let (experts, width) = (spec.experts, base.intermediate);
        format!(r#""model_type":"mixtral","num_local_experts":{experts},"intermediate_size":{width}"#)
    };
    format!(
        r#"{{{own},"num_experts_per_tok":{},"num_hidden_layers":{},"hidden_size":{},"num_attention_heads":{},
        "num_key_value_heads":{},"head_dim":{},"vocab_size":{},"rope_theta":{:?},"rms_norm_eps":{:?},
        "max_position_embeddings":{},"hidden_act":"silu","eos_token_id":[9,4]}}"#,
        spec.top,
        base.layers,
        base.hidden,
        base.heads,
        base.kv_heads,
        base.head_dim,
        base.vocab,
        base.rope_theta,
        base.norm_epsilon,
        base.max_context
    )
}

#[test]
fn a_folder_of_experts_answers_as_its_weights_do_without_a_file() {
    let folder = Folder::new("moe-safetensors");
    let name = folder.0.file_name().unwrap().to_str().unwrap().to_owned();
    for dtype in [DType::F32, DType::BF16] {
        for names in [Names::HfMixtral, Names::HfQwen] {
            let spec = spec(dtype, names == Names::HfQwen);
            folder.write("model.safetensors", safetensors(&tensors(&spec, names)));
            folder.write("config.json", config(&spec, names));
            let model = MixtureOfExperts::from_safetensors(&folder.0).unwrap();
            let expected = MixtureOfExperts::from_spec(spec.clone(), SeededWeights::new(11));
            assert_eq!(model.spec(), &named(&spec, &name), "{names:?}");
            assert_eq!(model.end_of_sequence(), Some(9));
            assert_eq!(answers(&model), answers(&expected), "{names:?} {dtype}");
        }
    }
}

#[test]
fn mixtures_that_can_not_be_run_are_refused_with_their_reason() {
    let folder = Folder::new("moe-refused");
    let spec = spec(DType::F32, false);
    let names = Names::Llama { apart: false };
    let reason = |tensors: &[Tensor], spec: &MoeSpec| {
        let path = folder.write("model.gguf", gguf(spec, names, tensors));
        MixtureOfExperts::from_gguf(&path).unwrap_err().to_string()
    };
    let whole = || tensors(&spec, names);
    let mut shared = whole();
    shared.push(Tensor {
        name: "blk.0.ffn_up_shexp.weight".into(),
        dims: vec![1],
        dtype: DType::F32,
        bytes: vec![0; 4],
    });
    assert!(reason(&shared, &spec).contains("share"));
    let mut dense = whole();
    dense.retain(|tensor| tensor.name != "blk.1.ffn_gate_inp.weight");
    assert!(reason(&dense, &spec).contains("not each"));
    let mut greedy = spec.clone();
    greedy.top = 6;
    assert!(reason(&whole(), &greedy).contains("of which 6 are chosen"));
    // What a dense decoder is asked to read, and what one of dense decoders says of it.
    let path = folder.write("model.gguf", gguf(&spec, names, &whole()));
    assert!(crate::Llama::from_gguf(path).unwrap_err().to_string().contains("MixtureOfExperts"));

    folder.write("model.safetensors", safetensors(&tensors(&spec, Names::HfQwen)));
    let said = config(&spec, Names::HfQwen).replace("\"norm_topk_prob\":true", "\"norm_topk_prob\":false");
    folder.write("config.json", said);
    let refused = MixtureOfExperts::from_safetensors(&folder.0).unwrap_err().to_string();
    assert!(refused.contains("do not sum to one"), "{refused}");
}

#[test]
fn figures_that_can_not_be_are_refused_with_their_key() {
    let folder = Folder::new("figures-refused");
    let (right, names) = (spec(DType::F32, false), Names::Llama { apart: false });
    let whole = tensors(&right, names);
    type Spoil = fn(&mut MoeSpec);
    let cases: [(Spoil, &str); 10] = [
        (|spec| spec.base.layers = 1, r#""llama.block_count" is 1; it has weights of 2 layers"#),
        (|spec| spec.base.layers = 3, r#""llama.block_count" is 3; it has weights of 2 layers"#),
        (|spec| spec.base.rope_theta = 0.0, r#""llama.rope.freq_base" is 0; a finite number above 0 is wanted"#),
        (|spec| spec.base.rope_theta = -1.0, r#""llama.rope.freq_base" is -1; a finite number above 0 is wanted"#),
        (|spec| spec.base.rope_theta = f32::NAN, r#""llama.rope.freq_base" is NaN; a finite number above 0 is wanted"#),
        (|spec| spec.base.rope_theta = f32::INFINITY, "is inf; a finite number above 0 is wanted"),
        (
            |spec| spec.base.norm_epsilon = f32::NAN,
            "layer_norm_rms_epsilon\" is NaN; at least 0 and less than 1 is wanted",
        ),
        (|spec| spec.base.norm_epsilon = -1.0, "layer_norm_rms_epsilon\" is -1; at least 0 and less than 1 is wanted"),
        (|spec| spec.base.norm_epsilon = f32::INFINITY, "is inf; at least 0 and less than 1 is wanted"),
        (|spec| spec.base.max_context = 0, r#""llama.context_length" is 0; at least 1 is wanted"#),
    ];
    for (spoil, reason) in cases {
        let mut wrong = right.clone();
        spoil(&mut wrong);
        let path = folder.write("model.gguf", gguf(&wrong, names, &whole));
        let refused = MixtureOfExperts::from_gguf(&path).unwrap_err().to_string();
        assert!(refused.starts_with(&path.display().to_string()) && refused.ends_with(reason), "{refused}");
    }
    // The file's answers end with token 9.
    let mut few = right.clone();
    few.base.vocab = 9;
    let path = folder.write("model.gguf", gguf(&few, names, &tensors(&few, names)));
    let refused = MixtureOfExperts::from_gguf(path).unwrap_err().to_string();
    assert!(refused.ends_with(r#""tokenizer.ggml.eos_token_id" is 9; a token, less than 9, is wanted"#), "{refused}");

    let names = Names::HfMixtral;
    folder.write("model.safetensors", safetensors(&tensors(&right, names)));
    for (said, wrong, reason) in [
        (r#"layers":2"#, r#"layers":1"#, r#""num_hidden_layers" is 1; it has weights of 2 layers"#),
        (r#"theta":5000.0"#, r#"theta":0"#, r#""rope_theta" is 0; a finite number above 0 is wanted"#),
        (r#"theta":5000.0"#, r#"theta":1e39"#, r#""rope_theta" is inf; a finite number above 0 is wanted"#),
        (r#"eps":0.0001"#, r#"eps":-0.5"#, r#""rms_norm_eps" is -0.5; at least 0 and less than 1 is wanted"#),
        ("[9,4]", "[9,256]", r#""eos_token_id" is 256; a token, less than 256, is wanted"#),
        ("[9,4]", "4294967295", r#""eos_token_id" is 4294967295; a token, less than 256, is wanted"#),
    ] {
        let config = config(&right, names);
        assert!(config.contains(said), "{config}");
        folder.write("config.json", config.replace(said, wrong));
        let refused = MixtureOfExperts::from_safetensors(&folder.0).unwrap_err().to_string();
        assert!(refused.ends_with(&format!("its config.json says that {reason}")), "{refused}");
    }
}
