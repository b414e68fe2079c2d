//! Files made by hand after the specification, and what becomes of them when they are damaged.

use proptest::prelude::*;

use super::*;

/// What makes up a small file.
struct Plan {
    version: u32,
    alignment: Option<u32>,
    tensors: Vec<(&'static str, Vec<u64>, u32, u64)>,
    data: usize,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            version: 3,
            alignment: None,
            tensors: vec![("a", vec![4, 2], 0, 0), ("b", vec![32, 3], 3, 32)],
            data: 32 + 60,
        }
    }
}

fn text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

fn pair(bytes: &mut Vec<u8>, key: &str, kind: u32, value: &[u8]) {
    text(bytes, key);
    bytes.extend(kind.to_le_bytes());
    bytes.extend(value);
}

fn file(plan: &Plan) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(plan.version.to_le_bytes());
    bytes.extend((plan.tensors.len() as u64).to_le_bytes());
    bytes.extend((5 + u64::from(plan.alignment.is_some())).to_le_bytes());
    let mut name = Vec::new();
    text(&mut name, "tiny");
    pair(&mut bytes, "general.name", 8, &name);
    pair(&mut bytes, "layers", 4, &7u32.to_le_bytes());
    pair(&mut bytes, "below", 5, &(-7i32).to_le_bytes());
    pair(&mut bytes, "epsilon", 6, &0.5f32.to_le_bytes());
    let mut words = 8u32.to_le_bytes().to_vec();
    words.extend(2u64.to_le_bytes());
    text(&mut words, "he");
    text(&mut words, "llo");
    pair(&mut bytes, "words", 9, &words);
    if let Some(alignment) = plan.alignment {
        pair(&mut bytes, "general.alignment", 4, &alignment.to_le_bytes());
    }
    for (name, dims, kind, offset) in &plan.tensors {
        text(&mut bytes, name);
        bytes.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|dim| bytes.extend(dim.to_le_bytes()));
        bytes.extend(kind.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(plan.alignment.unwrap_or(32) as usize), 0);
    bytes.extend((0..plan.data).map(|i| i as u8));
    bytes
}

fn refusal(plan: &Plan) -> GgufError {
    GgufFile::from_bytes(file(plan)).unwrap_err()
}

#[test]
fn a_file_gives_back_what_was_put_into_it() {
    let file = GgufFile::from_bytes(file(&Plan::default())).unwrap();
    assert_eq!(file.text("general.name"), Ok("tiny"));
    assert_eq!(file.number("layers"), Ok(7));
    assert_eq!(file.value("below"), Some(GgufValue::Signed(-7)));
    assert_eq!(file.float("epsilon"), Ok(0.5));
    assert_eq!(file.texts("words"), Ok(vec!["he", "llo"]));
    let a = file.tensor("a").unwrap();
    assert_eq!((a.dtype, &*a.shape, a.bytes[0], a.bytes.len()), (DType::F32, &[2, 4][..], 0, 32));
    let b = file.tensor("b").unwrap();
    assert_eq!((b.dtype, &*b.shape, b.bytes[0], b.bytes.len()), (DType::Q4_1, &[3, 32][..], 32, 60));
    assert_eq!(file.tensor("c"), None);
}

#[test]
fn what_is_asked_for_and_not_there_is_named() {
    let file = GgufFile::from_bytes(file(&Plan::default())).unwrap();
    assert_eq!(file.number("nobody"), Err(GgufError::Missing { key: "nobody".into() }));
    for error in
        [file.number("below").unwrap_err(), file.number("words").unwrap_err(), file.text("layers").unwrap_err()]
    {
        assert!(matches!(error, GgufError::Value { .. }), "{error}");
    }
}

#[test]
fn tensors_that_can_not_be_are_refused() {
    let plan = |tensors| Plan { tensors, ..Plan::default() };
    let refused = |tensors, words: &str| {
        let error = refusal(&plan(tensors)).to_string();
        assert!(error.contains(words), "{error}");
    };
    refused(vec![("a", vec![4], 0, 0), ("b", vec![4], 0, 0)], "shares bytes");
    refused(vec![("a", vec![16], 0, 0), ("b", vec![4], 0, 32)], "shares bytes");
    refused(vec![("a", vec![4], 0, 0), ("a", vec![4], 0, 32)], "twice");
    refused(vec![("a", vec![4], 0, 8)], "boundary of 32");
    refused(vec![("a", vec![24], 0, 0)], "ends beyond");
    refused(vec![("a", vec![u64::MAX, u64::MAX], 0, 0)], "larger than the file");
    refused(vec![("a", vec![u64::MAX / 4], 0, 0)], "ends beyond");
    refused(vec![("a", vec![4], 0, u64::MAX - 31)], "ends beyond");
    refused(vec![("a", vec![33], 3, 0)], "blocks of 32");
    refused(vec![("a", vec![4], 4, 0)], "ggml does not have");
    refused(vec![("a", vec![1; 5], 0, 0)], "dimensions");
    refused(vec![("a", vec![], 0, 0)], "dimensions");
}

#[test]
fn headers_that_can_not_be_are_refused() {
    assert_eq!(GgufFile::from_bytes(b"GGML0000".to_vec()).unwrap_err(), GgufError::Magic { found: *b"GGML" });
    assert_eq!(refusal(&Plan { version: 1, ..Plan::default() }), GgufError::Version { found: 1 });
    assert_eq!(refusal(&Plan { version: 3 << 24, ..Plan::default() }), GgufError::Version { found: 3 << 24 });
    let mut huge = file(&Plan::default());
    huge[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(matches!(GgufFile::from_bytes(huge), Err(GgufError::Count { what: "tensors", .. })));
    let mut huge = file(&Plan::default());
    huge[16..24].copy_from_slice(&(u64::MAX / 13).to_le_bytes());
    assert!(matches!(GgufFile::from_bytes(huge), Err(GgufError::Count { what: "keys", .. })));
    // Alignments: a tensor at 32 is on a boundary of 16.
    assert!(GgufFile::from_bytes(file(&Plan { alignment: Some(16), ..Plan::default() })).is_ok());
}

#[test]
fn an_alignment_that_is_none_is_refused() {
    let mut bytes = file(&Plan { alignment: Some(16), ..Plan::default() });
    let at = bytes.windows(17).position(|window| window == b"general.alignment").unwrap() + 17 + 4;
    for found in [0u32, 24] {
        bytes[at..at + 4].copy_from_slice(&found.to_le_bytes());
        let error = GgufFile::from_bytes(bytes.clone()).unwrap_err();
        assert_eq!(error, GgufError::Alignment { found: found.into() });
    }
}

proptest! {
    #[test]
    fn a_file_that_ends_early_is_refused(cut in 0usize..1000) {
        let whole = file(&Plan::default());
        let cut = cut % whole.len();
        prop_assert!(GgufFile::from_bytes(whole[..cut].to_vec()).is_err());
    }

    #[test]
    fn a_damaged_file_is_read_or_refused_and_what_is_read_is_within_it(
        damage in prop::collection::vec((0usize..1000, any::<u8>()), 1..6),
        huge in prop::option::of((0usize..1000, prop::sample::select(vec![u64::MAX, 1 << 63, 1 << 40, 1 << 32, 0]))),
    ) {
        let mut bytes = file(&Plan::default());
        for (at, byte) in damage {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        if let Some((at, value)) = huge {
            let at = at % (bytes.len() - 8);
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        if let Ok(file) = GgufFile::from_bytes(bytes) {
            for name in file.tensor_names() {
                if let Some(tensor) = file.tensor(name) {
                    let elements: usize = tensor.shape.iter().product();
                    prop_assert_eq!(tensor.bytes.len() as u64, tensor.dtype.bytes(elements as u64).get());
                }
            }
            for key in file.keys() {
                if let Some(GgufValue::Array(array)) = file.value(key) {
                    prop_assert!(array.texts().is_none_or(|texts| texts.len() as u64 == array.len()));
                    prop_assert!(array.numbers().is_none_or(|numbers| numbers.len() as u64 == array.len()));
                }
            }
        }
    }

    #[test]
    fn noise_is_refused(noise in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(GgufFile::from_bytes(noise).is_err());
    }
}
