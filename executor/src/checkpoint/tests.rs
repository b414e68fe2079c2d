use super::*;

#[derive(Debug)]
struct Memory(Vec<(&'static str, Vec<usize>, Vec<u8>)>);

impl TensorFile for Memory {
    fn tensor(&self, name: &str) -> Option<StoredTensor<'_>> {
        let (_, shape, bytes) = self.0.iter().find(|(found, ..)| *found == name)?;
        Some(StoredTensor { dtype: DType::F32, shape: shape.as_slice().into(), bytes })
    }
}

fn tensor(name: &'static str, rows: usize, columns: usize) -> (&'static str, Vec<usize>, Vec<u8>) {
    let values = (0..rows * columns).map(|at| (at / columns) as f32);
    (name, vec![rows, columns], values.flat_map(f32::to_le_bytes).collect())
}

/// The rows of the fused projection, of which every element is the number of the row in its part.
fn fused(naming: impl Naming, names: [&'static str; 3]) -> Result<Vec<f32>> {
    let file = Memory(vec![tensor(names[0], 8, 2), tensor(names[1], 4, 2), tensor(names[2], 4, 2)]);
    let mut into = vec![0.0; 32];
    CheckpointWeights::new(file, naming)
        .fill(Shard { name: "layers.3.attn.qkv.weight", shape: &[16, 2] }, &mut into)?;
    Ok(into.into_iter().step_by(2).collect())
}

/// llama.cpp keeps element `i` of the first half of a head at row `2 i` and its partner of the second
/// half behind it; here two heads of queries and one of keys, of four elements each.
#[test]
fn rows_of_rotated_heads_come_back_in_the_order_of_halves() {
    let naming = GgufLlama { heads: 2, kv_heads: 1 };
    let names = ["blk.3.attn_q.weight", "blk.3.attn_k.weight", "blk.3.attn_v.weight"];
    let rows = fused(naming, names).unwrap();
    assert_eq!(rows, [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0, 0.0, 2.0, 1.0, 3.0, 0.0, 1.0, 2.0, 3.0]);
    let layer = "model.layers.3.self_attn";
    let names = ["q_proj", "k_proj", "v_proj"].map(|name| &*format!("{layer}.{name}.weight").leak());
    let rows = fused(HfLlama, names).unwrap();
    assert_eq!(rows[..8], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
}

#[test]
fn what_the_file_lacks_or_has_in_another_shape_is_named() {
    let naming = || GgufLlama { heads: 2, kv_heads: 1 };
    let error = fused(naming(), ["blk.3.attn_q.weight", "x", "y"]).unwrap_err().to_string();
    assert!(error.contains("layers.3.attn.qkv.weight") && error.contains("blk.3.attn_k.weight"), "{error}");
    let weights = CheckpointWeights::new(Memory(vec![tensor("blk.0.attn_output.weight", 3, 2)]), naming());
    for shape in [[2, 2], [4, 2], [3, 3]] {
        let mut into = vec![0.0; shape[0] * shape[1]];
        assert!(weights.fill(Shard { name: "layers.0.attn.o.weight", shape: &shape }, &mut into).is_err());
    }
    assert!(weights.fill(Shard { name: "layers.0.attn.x.weight", shape: &[3, 2] }, &mut [0.0; 6]).is_err());
}

#[test]
fn weights_of_another_type_than_the_file_has_are_rounded() {
    let weights = CheckpointWeights::new(
        Memory(vec![tensor("blk.0.attn_output.weight", 2, 32)]),
        GgufLlama { heads: 1, kv_heads: 1 },
    );
    let shard = Shard { name: "layers.0.attn.o.weight", shape: &[2, 32] };
    let mut blocks = vec![0; 68];
    weights.fill_stored(shard, DType::Q8_0, &mut blocks).unwrap();
    let mut values = [0.0; 64];
    dequantize(QuantFormat::Q8_0, &blocks, &mut values).unwrap();
    assert!((values[0], values[63]) == (0.0, 1.0) || (values[63] - 1.0).abs() < 1e-3);
    let mut halves = vec![0; 128];
    weights.fill_stored(shard, DType::BF16, &mut halves).unwrap();
    assert_eq!(halves[126..], [0x80, 0x3f]);
}

/// Biases of fused projections lie side by side, as the rows of their weights do.
#[test]
fn a_vector_of_several_parts_has_them_in_order() {
    let bias = |name: &'static str, first: f32| {
        let bytes = [first, first + 1.0].into_iter().flat_map(f32::to_le_bytes).collect();
        (name, vec![2], bytes)
    };
    let weights = CheckpointWeights::new(
        Memory(vec![
            bias("bert.encoder.layer.3.attention.self.query.bias", 1.0),
            bias("bert.encoder.layer.3.attention.self.key.bias", 3.0),
            bias("bert.encoder.layer.3.attention.self.value.bias", 5.0),
        ]),
        HfBert { prefix: "bert." },
    );
    let mut into = [0.0; 6];
    weights.fill(Shard { name: "layers.3.attn.qkv.bias", shape: &[6] }, &mut into).unwrap();
    assert_eq!(into, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    for length in [4, 5, 7, 8] {
        let mut into = vec![0.0; length];
        assert!(weights.fill(Shard { name: "layers.3.attn.qkv.bias", shape: &[length] }, &mut into).is_err());
    }
}

/// Element `(row, column)` of matrix `index` is `100 index + 10 row + column`.
fn matrices(name: &'static str, shape: [usize; 3]) -> (&'static str, Vec<usize>, Vec<u8>) {
    let [count, rows, columns] = shape;
    let at = |index| move |row| (0..columns).map(move |column| (100 * index + 10 * row + column) as f32);
    let values = (0..count).flat_map(|index| (0..rows).flat_map(at(index)));
    (name, shape.to_vec(), values.flat_map(f32::to_le_bytes).collect())
}

#[test]
fn experts_that_share_a_tensor_are_found_in_it_and_fused() {
    let naming = WithExperts { rest: GgufQwen, names: ExpertNames::Gguf };
    let stored = vec![
        matrices("blk.1.ffn_gate_exps.weight", [3, 2, 2]),
        matrices("blk.1.ffn_up_exps.weight", [3, 2, 2]),
        matrices("blk.1.ffn_down_exps.weight", [3, 2, 4]),
        tensor("blk.1.ffn_gate_inp.weight", 3, 2),
        tensor("blk.1.attn_output.weight", 2, 2),
    ];
    let weights = CheckpointWeights::new(Memory(stored), naming);
    let read = |name: &str, shape: &[usize]| {
        let mut into = vec![-1.0; shape.iter().product()];
        weights.fill(Shard { name, shape }, &mut into).map(|()| into)
    };
    let gate_up = read("layers.1.mlp.gate_up.weight.2", &[4, 2]).unwrap();
    assert_eq!(gate_up, [200.0, 201.0, 210.0, 211.0, 200.0, 201.0, 210.0, 211.0]);
    let down = read("layers.1.mlp.down.weight.1", &[2, 4]).unwrap();
    assert_eq!(down, [100.0, 101.0, 102.0, 103.0, 110.0, 111.0, 112.0, 113.0]);
    assert_eq!(read("layers.1.mlp.router.weight", &[3, 2]).unwrap(), [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]);
    assert_eq!(read("layers.1.attn.o.weight", &[2, 2]).unwrap(), [0.0, 0.0, 1.0, 1.0]);
    for (name, shape) in [
        ("layers.1.mlp.down.weight.3", [2, 4]),
        ("layers.1.mlp.down.weight.0", [3, 4]),
        ("layers.1.mlp.down.weight.0", [4, 2]),
        ("layers.2.mlp.down.weight.0", [2, 4]),
        ("layers.1.mlp.other.weight.0", [2, 4]),
    ] {
        let refused = read(name, &shape).unwrap_err();
        assert!(matches!(refused, ExecutorError::Weight { .. }), "{name} {shape:?}");
    }
}

#[test]
fn experts_of_all_families_have_their_names() {
    let named = |names, weight| {
        let parts = WithExperts { rest: HfLlama, names }.parts(weight).unwrap_or_default();
        parts.into_iter().map(|part| part.tensor).collect::<Vec<_>>()
    };
    let (gate_up, router) = ("layers.4.mlp.gate_up.weight.11", "layers.4.mlp.router.weight");
    assert_eq!(named(ExpertNames::GgufApart, gate_up), ["blk.4.ffn_gate.11.weight", "blk.4.ffn_up.11.weight"]);
    assert_eq!(
        named(ExpertNames::HfMixtral, gate_up),
        ["w1", "w3"].map(|name| format!("model.layers.4.block_sparse_moe.experts.11.{name}.weight"))
    );
    assert_eq!(
        named(ExpertNames::HfQwen, gate_up),
        ["gate_proj", "up_proj"].map(|name| format!("model.layers.4.mlp.experts.11.{name}.weight"))
    );
    assert_eq!(named(ExpertNames::Gguf, router), ["blk.4.ffn_gate_inp.weight"]);
    assert_eq!(named(ExpertNames::HfMixtral, router), ["model.layers.4.block_sparse_moe.gate.weight"]);
    assert_eq!(named(ExpertNames::HfQwen, router), ["model.layers.4.mlp.gate.weight"]);
    let rest = "layers.4.attn.k_norm.weight";
    assert_eq!(named(ExpertNames::HfQwen, rest), ["model.layers.4.self_attn.k_norm.weight"]);
    assert_eq!(GgufQwen.parts(rest).unwrap()[0].tensor, "blk.4.attn_k_norm.weight");
}
