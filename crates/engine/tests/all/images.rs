//! Prompts with images: whatever the chunks, the batch, the caches and the ranks, the tokens are those of transformers.

use std::{collections::HashMap, sync::Arc};

use candlepower_checkpoint::Checkpoint;
use candlepower_engine::{EngineConfig, EngineHandle, PromptImage, Request};
use candlepower_media::{Deadline, Detail, ImageBudget, Limits, Processor, WaitingImage, decode};
use candlepower_testing::goldens::{VISION, VisionCase, VisionGolden, picture};

use super::{
    Collected, LoadDtype, LoadOptions, checkpoint, collect, config, greedy, images_of, request, run,
};

/// A model that takes images, and the processed pictures of its goldens.
struct Fixture {
    name: &'static str,
    checkpoint: Checkpoint,
    processor: Processor,
    golden: VisionGolden,
    images: HashMap<String, Arc<WaitingImage>>,
    budget: ImageBudget,
}

impl Fixture {
    fn new(name: &'static str) -> Self {
        let checkpoint = checkpoint(name);
        let processor = checkpoint.image_processor().unwrap().unwrap();
        Self {
            name,
            checkpoint,
            processor,
            golden: VisionGolden::read(name),
            images: HashMap::new(),
            budget: ImageBudget::new(1 << 20),
        }
    }

    fn image(&mut self, name: &str) -> Arc<WaitingImage> {
        if let Some(image) = self.images.get(name) {
            return Arc::clone(image);
        }
        let limits = Limits::default();
        let bytes = std::fs::read(picture(name)).unwrap();
        let decoded = decode(&bytes, &limits, &Deadline::default()).unwrap();
        let processed = self.processor.process(&decoded, Detail::Full, &limits).unwrap();
        let image = Arc::new(self.budget.keep(processed).unwrap());
        self.images.insert(name.to_owned(), Arc::clone(&image));
        image
    }

    fn case(&self, name: &str) -> VisionCase {
        self.golden.cases[name].clone()
    }

    /// A request for the greedy tokens of a case.
    fn request(&mut self, case: &VisionCase) -> Request {
        let image = |(name, start, len): &(String, usize, usize)| PromptImage {
            start: *start,
            len: *len,
            image: self.image(name),
        };
        let images = case.images.iter().map(image).collect();
        Request { images, ..request(case.input_ids.clone(), greedy(32)) }
    }

    fn start(&self, config: EngineConfig) -> EngineHandle {
        EngineHandle::start(&self.checkpoint, config, &mut |_| ()).unwrap()
    }

    /// Runs all cases at the same time, and compares their tokens.
    fn run_together(&mut self, engine: &EngineHandle) {
        let cases = self.cases();
        let requests: Vec<_> = cases.iter().map(|(_, case)| self.request(case)).collect();
        let streams: Vec<_> =
            requests.into_iter().map(|r| engine.submit(r).unwrap().remove(0)).collect();
        for (stream, (name, case)) in streams.into_iter().zip(cases) {
            assert_eq!(collect(stream).tokens, case.greedy, "{} {name}", self.name);
        }
    }

    /// All cases, in the order of their names.
    fn cases(&self) -> Vec<(String, VisionCase)> {
        self.golden.cases.iter().map(|(name, case)| (name.clone(), case.clone())).collect()
    }
}

/// In f32, as transformers computed the goldens.
fn exact() -> EngineConfig {
    let load =
        LoadOptions { dtype: LoadDtype::F32, max_model_len: Some(256), ..config().load.clone() };
    EngineConfig { load, num_threads: Some(2), ..config() }
}

fn fixtures() -> impl Iterator<Item = Fixture> {
    VISION.iter().map(|name| Fixture::new(name))
}

#[test]
fn greedy_tokens_are_those_of_transformers_in_chunks_of_any_size() {
    for mut fixture in fixtures() {
        for budget in [7, 64, 1024] {
            let max_num_batched_tokens = Some(budget);
            let engine = fixture.start(EngineConfig { max_num_batched_tokens, ..exact() });
            for (name, case) in fixture.cases() {
                let got = run(&engine, fixture.request(&case)).remove(0);
                assert_eq!(got.tokens, case.greedy, "{} {name}, chunks of {budget}", fixture.name);
            }
        }
    }
}

#[test]
fn tokens_are_the_same_in_a_batch_of_texts_and_images() {
    for mut fixture in fixtures() {
        for enable_prefix_caching in [true, false] {
            let engine = fixture.start(EngineConfig {
                max_num_batched_tokens: Some(48),
                enable_prefix_caching,
                ..exact()
            });
            fixture.run_together(&engine);
        }
    }
}

#[test]
fn preempted_sequences_encode_their_images_again() {
    for mut fixture in fixtures() {
        let probe = fixture.start(exact());
        let block_bytes = probe.info().kv_cache_bytes / probe.info().num_blocks as u64;
        drop(probe);
        // The longest case fits with its answer, and little beside it.
        let cases = fixture.cases();
        let longest = cases.iter().map(|(_, case)| case.input_ids.len() + 32).max().unwrap();
        let blocks = longest.div_ceil(16);
        let mut load = exact().load;
        load.max_model_len = Some(blocks * 16);
        let kv_cache_bytes = Some(block_bytes * blocks as u64);
        let tiny = EngineConfig { load, kv_cache_bytes, ..exact() };
        let engine = fixture.start(EngineConfig { max_num_batched_tokens: Some(64), ..tiny });
        fixture.run_together(&engine);
    }
}

#[test]
fn choices_share_the_images_of_their_prompt() {
    for mut fixture in fixtures() {
        let engine = fixture.start(exact());
        let case = fixture.case("three_images");
        let three = Request { n: 3, ..fixture.request(&case) };
        for choice in run(&engine, three) {
            assert_eq!(choice.tokens, case.greedy, "{}", fixture.name);
        }
    }
}

#[test]
fn ranks_compute_what_one_rank_computes() {
    for mut fixture in fixtures() {
        let engine = fixture.start(EngineConfig { tensor_parallel_size: 2, ..exact() });
        for (name, case) in fixture.cases() {
            let got = run(&engine, fixture.request(&case)).remove(0);
            assert_eq!(got.tokens, case.greedy, "{} {name}", fixture.name);
        }
    }
}

/// The prompts differ in the pixels alone, so only a digest tells them apart.
#[test]
fn two_images_under_one_text_have_two_answers() {
    for mut fixture in fixtures() {
        let engine = fixture.start(exact());
        let scored = |fixture: &mut Fixture, name: &str| {
            let case = fixture.case(name);
            let mut request = fixture.request(&case);
            request.sampling.logprobs = Some(4);
            request
        };
        let first = |engine: &EngineHandle, request| run(engine, request).remove(0).logprobs;
        for name in ["image_first", "image_first_other", "image_first"] {
            let request = scored(&mut fixture, name);
            let fresh = fixture.start(exact());
            let want = first(&fresh, request.clone());
            assert_eq!(first(&engine, request), want, "{} {name}", fixture.name);
        }
        let (one, other) = (fixture.case("image_first"), fixture.case("image_first_other"));
        assert_eq!(one.input_ids, other.input_ids);
        assert_ne!(one.greedy, other.greedy);
    }
}

/// A prompt with an image is found in the prefix cache as a text of that length is. Models with states keep one at a prompt's end only
/// from its second time on.
#[test]
fn a_repeated_image_is_cached_like_text() {
    for mut fixture in fixtures() {
        let engine = fixture.start(exact());
        let case = fixture.case("image_first");
        let len = case.input_ids.len();
        let text: Vec<u32> = (0..len as u32).map(|i| 40 + 7 * i % 200).collect();
        let cached_of_text = |_| run(&engine, request(text.clone(), greedy(32))).remove(0).cached;
        let expected: Vec<usize> = (0..3).map(cached_of_text).collect();
        let image = fixture.request(&case);
        let outputs: Vec<Collected> =
            (0..3).map(|_| run(&engine, image.clone()).remove(0)).collect();
        let cached: Vec<usize> = outputs.iter().map(|output| output.cached).collect();
        assert_eq!(cached, expected, "{}", fixture.name);
        let whole_blocks = (len - 1) / 16 * 16;
        let has_states = engine.info().num_states > 0;
        assert_eq!((cached[0], cached[2]), (0, whole_blocks), "{}", fixture.name);
        assert_eq!(cached[1] == whole_blocks, !has_states, "{}", fixture.name);
        assert!(outputs.iter().all(|output| output.tokens == case.greedy), "{}", fixture.name);
        // The image alone is known in another text, so it is not encoded again.
        let twice = fixture.case("same_twice");
        assert_eq!(run(&engine, fixture.request(&twice)).remove(0).tokens, twice.greedy);
    }
}

/// Without their towers, models answer texts as before, and spelled-out images are texts.
#[test]
fn models_without_their_tower_answer_texts() {
    for mut fixture in fixtures() {
        let mut without = checkpoint(fixture.name);
        without.without_vision();
        let engine = EngineHandle::start(&without, exact(), &mut |_| ()).unwrap();
        for name in ["text_only", "spelled"] {
            let case = fixture.case(name);
            let request = fixture.request(&case);
            assert_eq!(run(&engine, request).remove(0).tokens, case.greedy, "{}", fixture.name);
        }
        let case = fixture.case("image_first");
        let request = fixture.request(&case);
        assert!(engine.submit(request).unwrap_err().to_string().contains("no images"));
    }
}

/// Each level beside the embeddings takes as much of the encoder's cache as they do.
#[test]
fn the_encoders_cache_counts_what_is_added_behind_layers() {
    let encoder_cache_bytes = 1 << 16;
    for fixture in fixtures() {
        let engine =
            fixture.start(EngineConfig { images: images_of(encoder_cache_bytes), ..exact() });
        let levels = fixture.checkpoint.vision().unwrap().deepstack.len();
        let of_token = (1 + levels) * fixture.checkpoint.spec().hidden_size * 4;
        let expected = encoder_cache_bytes as usize / of_token;
        assert_eq!(engine.info().max_image_embeddings, expected, "{}", fixture.name);
    }
}

#[test]
fn images_that_do_not_fit_their_tokens_are_refused() {
    let mut fixture = Fixture::new(VISION[0]);
    let engine = fixture.start(exact());
    let case = fixture.case("three_images");
    let good = fixture.request(&case);
    let refused = |change: &dyn Fn(&mut Request)| {
        let mut request = good.clone();
        change(&mut request);
        engine.submit(request).unwrap_err().to_string()
    };
    let end = case.input_ids.len();
    assert!(refused(&|r| r.images[2].start = end).contains("outside of the prompt"));
    assert!(refused(&|r| r.images[0].len = 0).contains("outside of the prompt"));
    assert!(refused(&|r| r.images.swap(0, 1)).contains("not in order"));
    assert!(refused(&|r| r.images[1].len -= 1).contains("embeddings"));
    let small = fixture.start(EngineConfig { images: images_of(1024), ..exact() });
    assert!(small.submit(good.clone()).unwrap_err().to_string().contains("at most"));
    let mut without = checkpoint(VISION[0]);
    without.without_vision();
    let text_only = EngineHandle::start(&without, exact(), &mut |_| ()).unwrap();
    assert!(text_only.submit(good).unwrap_err().to_string().contains("no images"));
    let text = fixture.case("text_only");
    assert_eq!(run(&text_only, fixture.request(&text)).remove(0).tokens, text.greedy);
}
