//! SmolLM2-135M-Instruct, Q4_1 with a Q8_0 table.

use std::path::Path;

use slicescheduler::gmg::dtype::DType;
use slicescheduler::gmg::units::Bytes;
use slicescheduler::scheduler::batching::BatchOptions;
use slicescheduler::text::{Message, Tokenizer};
use slicescheduler::{Llama, Model, Request, SliceScheduler, Tenant};

use crate::model;

const FILE: &str = "smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";

/// "Once upon a time, in a small village by the sea,", and how candle-transformers 0.11.1 goes on
/// greedily from the same file (`models::quantized_llama`, one thread), " there was a wise old": both with
/// its own rounding of activations to eight bits, where its best logit leads by 0.31 and more, and
/// with all weights widened to F32.
const STORY: [u32; 13] = [6403, 1980, 253, 655, 28, 281, 253, 1165, 6560, 411, 260, 3426, 28];
const STORY_GOES_ON: [u32; 5] = [665, 436, 253, 9357, 1573];

const QUESTION: &str = "What is the capital of France?";
/// The prompt that the file's chat template makes of the question, and its tokens by byte-pair merges
/// in the order of the file, computed by a program of its own.
const CHAT: [u32; 37] = [
    1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2, 198,
    1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198,
];

/// The greedy answer with the weights of the file as they are, in double precision by a program of its own,
/// and candle's with all weights widened to F32 (CANDLE_DEQUANTIZE_ALL): "The capital of France is Paris."
/// and the end. The best logit leads by 0.08 and more, so activations that are rounded to eight bits, which
/// moves logits by 0.6, do not give it.
const CHAT_ANSWER: [u32; 8] = [504, 3575, 282, 4649, 314, 7042, 30, 2];

fn scheduler(path: &Path, token_budget: u32, block_tokens: u32) -> SliceScheduler {
    serve(Llama::from_gguf(path).unwrap(), 256, token_budget, block_tokens)
}

fn serve(model: Llama, mib: u64, token_budget: u32, block_tokens: u32) -> SliceScheduler {
    let batching = BatchOptions { token_budget, max_sequences: 8, block_tokens, ..BatchOptions::default() };
    let builder = SliceScheduler::builder().devices(1).device_memory(Bytes::mib(mib)).batching(batching);
    builder.tenant(Tenant::best_effort("chat"), model).build().unwrap()
}

fn answer(slices: &SliceScheduler, prompt: &[u32], tokens: u32) -> Vec<u32> {
    let answer = slices.submit("chat", Request::prompt_tokens(prompt).max_tokens(tokens)).unwrap();
    answer.map(|token| token.unwrap().id).collect()
}

#[test]
fn the_file_says_what_the_model_is() {
    let Some(path) = model(FILE) else { return };
    let model = Llama::from_gguf(path).unwrap();
    let spec = model.spec();
    // As published: 134,515,008 parameters.
    assert_eq!(spec.parameters(), 134_515_008);
    assert_eq!((spec.layers, spec.heads, spec.kv_heads, spec.head_dim), (30, 9, 3, 64));
    assert_eq!((model.vocabulary(), model.max_context(), model.end_of_sequence()), (49_152, 8192, Some(2)));
    let template = model.template().unwrap();
    // What the tensors take in the file.
    assert_eq!(model.weight_bytes(&template).unwrap(), spec.weight_bytes());
    assert_eq!(spec.weight_bytes(), Bytes(98_362_432 - 1_785_664));
}

#[test]
fn it_goes_on_as_an_independent_implementation_does() {
    let Some(path) = model(FILE) else { return };
    let slices = scheduler(&path, 256, 16);
    assert_eq!(answer(&slices, &STORY, 5), STORY_GOES_ON);
}

#[test]
fn it_answers_as_double_precision_does_with_packed_and_with_widened_weights() {
    let Some(path) = model(FILE) else { return };
    assert_eq!(answer(&scheduler(&path, 256, 16), &CHAT, 20), CHAT_ANSWER);
    let widened = serve(Llama::from_gguf(&path).unwrap().weights_as(DType::F32), 768, 256, 16);
    assert_eq!(answer(&widened, &CHAT, 20), CHAT_ANSWER);
}

#[test]
fn tokens_do_not_depend_on_chunks_blocks_and_company() {
    let Some(path) = model(FILE) else { return };
    let alone = scheduler(&path, 256, 16);
    let expected = answer(&alone, &CHAT, 16);
    let chunked = scheduler(&path, 9, 8);
    let others: Vec<_> = (1..4)
        .map(|skip| chunked.submit("chat", Request::prompt_tokens(&STORY[skip..]).max_tokens(12)).unwrap())
        .collect();
    assert_eq!(answer(&chunked, &CHAT, 16), expected);
    for (skip, other) in (1..4).zip(others) {
        let other: Vec<u32> = other.map(|token| token.unwrap().id).collect();
        assert_eq!(other, answer(&alone, &STORY[skip..], 12));
    }
}

#[test]
fn its_tokenizer_and_chat_template_are_in_the_file() {
    let Some(path) = model(FILE) else { return };
    let tokenizer = Tokenizer::from_gguf(path).unwrap();
    assert_eq!(tokenizer.encode("Once upon a time, in a small village by the sea,").unwrap(), STORY);
    let prompt = tokenizer.chat(&[Message::user(QUESTION)]).unwrap();
    let tokens = tokenizer.encode(&prompt).unwrap();
    assert_eq!(tokens, CHAT);
    assert_eq!(tokenizer.decode(&STORY_GOES_ON).unwrap(), " there was a wise old");
    assert_eq!(tokenizer.decode(&CHAT_ANSWER).unwrap(), "The capital of France is Paris.");
    let text = "Zwölf Boxkämpfer: 12 + 34 = 46 🙂\n";
    let tokens = tokenizer.encode(text).unwrap();
    assert_eq!(tokenizer.decode(&tokens).unwrap(), text);
    let mut stream = tokenizer.stream();
    let pieces: String = tokens.iter().filter_map(|&token| stream.step(token).unwrap()).collect();
    assert_eq!(pieces, text);
}
