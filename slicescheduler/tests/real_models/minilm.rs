//! all-MiniLM-L6-v2, F32.

use slicescheduler::gmg::units::Bytes;
use slicescheduler::scheduler::batching::BatchOptions;
use slicescheduler::text::Tokenizer;
use slicescheduler::{Bert, Model, SliceScheduler, Tenant};

use crate::model;

/// A text, its tokens, and of its vector the first eight elements, the last eight and every 48th.
type Golden = (&'static str, &'static [u32], [f32; 8], [f32; 8], [f32; 8]);

/// Computed once with candle-transformers 0.11.1 (`models::bert`, the mean over all tokens, then divided by
/// its length) from the same files, and tokens with the `tokenizers` crate.
#[rustfmt::skip]
const GOLDEN: [Golden; 3] = [
    (
        "The cat sits outside",
        &[101, 1996, 4937, 7719, 2648, 102],
        [0.13919108, 0.003029063, 0.047014758, 0.03957377, -0.047998514, -0.0068114977, 0.015052692, 0.033376593],
        [0.01822487, -0.022930607, 7.829719e-6, 0.042679712, -0.05872017, 0.06407328, -0.016251614, 0.06362093],
        [0.13919108, 0.06639655, 0.019186955, -0.006542494, 0.050308168, -0.08149681, -0.09970834, -0.04091376],
    ),
    (
        "A man is playing guitar",
        &[101, 1037, 2158, 2003, 2652, 2858, 102],
        [0.022661304, -0.0013885169, -0.0056133796, -0.067021646, -0.15560067, -0.002701932, 0.07891056, -0.012957039],
        [-0.031233927, 0.09917122, -0.04595922, -0.11333299, -0.049243912, -0.02249008, 0.084583975, -0.028260699],
        [0.022661304, 0.016720228, -0.014280074, -0.0023666301, 0.001686818, -0.17286067, 0.03548662, -0.030166183],
    ),
    (
        "The new movie is awesome, isn't it? Überraschung: 42 naïve cafés.",
        &[101, 1996, 2047, 3185, 2003, 12476, 1010, 3475, 1005, 1056, 2009, 1029, 19169, 8180, 20760, 3070, 1024, 4413, 15743, 23812, 1012, 102],
        [0.060853284, -0.061584607, 0.009360638, 0.025681302, 0.001478417, -0.016271563, 0.011521106, -0.059173614],
        [0.001042939, -0.020078855, 0.014209353, 0.047343973, 0.087163165, 0.03622097, 0.028429976, -0.04768131],
        [0.060853284, 0.034526784, -0.057366166, -0.046136238, 0.033402346, 0.043182183, -0.0014628933, 0.10892997],
    ),
];

fn scheduler(folder: &std::path::Path, token_budget: u32) -> SliceScheduler {
    let batching = BatchOptions { token_budget, max_sequences: 8, ..BatchOptions::default() };
    let builder = SliceScheduler::builder().device_memory(Bytes::mib(128)).batching(batching);
    builder.tenant(Tenant::latency_sensitive("embed"), Bert::from_safetensors(folder).unwrap()).build().unwrap()
}

#[test]
fn vectors_are_those_of_an_independent_implementation() {
    let Some(folder) = model("minilm") else { return };
    let slices = scheduler(&folder, 256);
    for (text, tokens, first, last, spread) in GOLDEN {
        let vector = slices.embed("embed", tokens).unwrap().wait().unwrap().vector;
        assert_eq!(vector.len(), 384);
        let found = [&vector[..8], &vector[376..], &vector.iter().step_by(48).copied().collect::<Vec<_>>()].concat();
        for (found, expected) in found.iter().zip([first, last, spread].concat()) {
            assert!((found - expected).abs() < 1e-4, "{text:?}: {found} instead of {expected}");
        }
    }
}

#[test]
fn the_vector_of_a_text_does_not_depend_on_its_company() {
    let Some(folder) = model("minilm") else { return };
    let (alone, together) = (scheduler(&folder, 64), scheduler(&folder, 256));
    let texts = || (0..4).flat_map(|_| GOLDEN).map(|(_, tokens, ..)| tokens);
    let pending: Vec<_> = texts().map(|tokens| together.embed("embed", tokens).unwrap()).collect();
    for (tokens, pending) in texts().zip(pending) {
        let expected = alone.embed("embed", tokens).unwrap().wait().unwrap().vector;
        assert!(pending.wait().unwrap().vector == expected);
    }
}

#[test]
fn its_folder_says_what_the_model_is_and_makes_tokens_of_texts() {
    let Some(folder) = model("minilm") else { return };
    let model = Bert::from_safetensors(&folder).unwrap();
    // As published, 22,713,216 parameters, without the pooling layer's 384 x 384 + 384, which are not used.
    assert_eq!(model.spec().parameters(), 22_713_216 - 384 * 385);
    assert_eq!((model.name(), model.vocabulary(), model.max_context()), ("minilm", 30_522, 512));
    let tokenizer = Tokenizer::from_file(folder.join("tokenizer.json")).unwrap();
    for (text, tokens, ..) in GOLDEN {
        assert_eq!(tokenizer.encode_framed(text).unwrap(), tokens);
        assert_eq!(tokenizer.encode(text).unwrap(), tokens[1..tokens.len() - 1]);
    }
}
