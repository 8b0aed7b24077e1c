//! Every architecture with the names that files of published models have: of the rule of splitting, and of tokens that end turns.
//! Source: `convert_hf_to_gguf_update.py` of llama.cpp, which names a model for each rule; the tokens are those of the models'
//! own configurations.

use super::*;

/// A model as its file describes its vocabulary.
struct Published {
    arch: &'static str,
    golden: &'static str,
    /// `tokenizer.ggml.model`, and `tokenizer.ggml.pre` where there is one.
    vocabulary: (&'static str, Option<&'static str>),
    /// The token that `eos_token_id` names.
    eos: &'static str,
    /// Other ends of turns: GLM's are named by keys, those of others by nothing.
    turns: &'static [&'static str],
}

const fn of(
    arch: &'static str,
    golden: &'static str,
    pre: &'static str,
    eos: &'static str,
    turns: &'static [&'static str],
) -> Published {
    Published { arch, golden, vocabulary: ("gpt2", Some(pre)), eos, turns }
}

const fn pieces(
    arch: &'static str,
    golden: &'static str,
    eos: &'static str,
    turns: &'static [&'static str],
) -> Published {
    Published { arch, golden, vocabulary: ("llama", None), eos, turns }
}

const QWEN: &[&str] = &["<|im_end|>"];

const PUBLISHED: &[Published] = &[
    // Published files of one architecture come with different rules and ends, so several rows share one golden.
    of("llama", "gguf-yarn", "llama-bpe", "<|end_of_text|>", &["<|eot_id|>", "<|eom_id|>"]),
    of("llama", "gguf-yarn", "smollm", "<|endoftext|>", QWEN),
    of("llama", "gguf-yarn", "tekken", "</s>", &[]),
    of("llama", "gguf-yarn", "midm-2.0", "<|end_of_text|>", &["<|eot_id|>"]),
    of("llama", "gguf-yarn", "minerva-7b", "</s>", &["<|eot_id|>"]),
    of("llama", "gguf-yarn", "viking", "</s>", &["<|im_end|>"]),
    pieces("llama", "gguf-yarn", "</s>", &[]),
    pieces("llama", "gguf-mixtral", "</s>", &[]),
    of("qwen2", "gguf-qwen2", "qwen2", "<|endoftext|>", QWEN),
    of("qwen2", "gguf-qwen2", "deepseek-r1-qwen", "<｜end▁of▁sentence｜>", &[]),
    of("qwen2", "gguf-qwen2", "a.x-4.0", "<|endoftext|>", QWEN),
    of("qwen3", "gguf-qwen3", "qwen2", "<|endoftext|>", QWEN),
    of("qwen3", "gguf-qwen3", "f2llmv2", "<|endoftext|>", QWEN),
    of("qwen2moe", "gguf-qwen2-moe", "qwen2", "<|endoftext|>", QWEN),
    of("qwen3moe", "gguf-qwen3-moe", "qwen2", "<|endoftext|>", QWEN),
    of("qwen3next", "gguf-qwen3-next", "qwen2", "<|endoftext|>", QWEN),
    of("qwen35", "gguf-qwen3_5", "qwen35", "<|endoftext|>", QWEN),
    of("qwen35moe", "gguf-qwen3_5-moe", "qwen35", "<|endoftext|>", QWEN),
    pieces("phi3", "gguf-phi3", "<|endoftext|>", &["<|end|>"]),
    of("phi3", "gguf-phi3", "gpt-4o", "<|endoftext|>", &["<|end|>"]),
    of("granite", "gguf-granite", "refact", "<|end_of_text|>", &[]),
    of("granitemoe", "gguf-granite-moe", "refact", "<|end_of_text|>", &[]),
    of("granitehybrid", "gguf-granite-hybrid", "dbrx", "<|end_of_text|>", &[]),
    of("mistral3", "gguf-ministral3", "tekken", "</s>", &[]),
    of("glm4", "gguf-glm4", "glm4", "<|endoftext|>", &["<|user|>", "<|observation|>"]),
    of("glm4moe", "gguf-glm4-moe", "glm4", "<|endoftext|>", &["<|user|>", "<|observation|>"]),
    of("olmo2", "gguf-olmo3", "superbpe", "<|endoftext|>", &[]),
    of("olmo2", "gguf-olmo3", "dbrx", "<|endoftext|>", QWEN),
    of("olmoe", "gguf-olmoe", "olmo", "<|endoftext|>", &[]),
    of("smollm3", "gguf-smollm3", "smaug-bpe", "<|end_of_text|>", QWEN),
    of("seed_oss", "gguf-seed-oss", "seed-coder", "<seed:eos>", &[]),
    pieces("ernie4_5", "gguf-ernie4_5", "</s>", &[]),
    pieces("ernie4_5-moe", "gguf-ernie4_5-moe", "</s>", &[]),
    of("exaone4", "gguf-exaone4", "exaone4", "[|endofturn|]", &[]),
    of("starcoder2", "gguf-starcoder2", "starcoder", "<|endoftext|>", &[]),
    of("command-r", "gguf-cohere", "command-r", "<|END_OF_TURN_TOKEN|>", &[]),
    of("cohere2", "gguf-cohere2", "command-r", "<|END_OF_TURN_TOKEN|>", &[]),
    of("cohere2", "gguf-cohere2", "tiny_aya", "<|END_OF_TURN_TOKEN|>", &[]),
    of("arcee", "gguf-arcee", "llama-bpe", "<|end_of_text|>", QWEN),
    pieces("gemma", "gguf-gemma", "<eos>", &["<end_of_turn>"]),
    pieces("gemma2", "gguf-gemma2", "<eos>", &["<end_of_turn>"]),
    pieces("gemma3", "gguf-gemma3", "<eos>", &["<end_of_turn>"]),
    pieces("gemma-embedding", "gguf-gemma3", "<eos>", &["<end_of_turn>"]),
    Published {
        vocabulary: ("gemma4", None),
        ..pieces("gemma4", "gguf-gemma4", "<eos>", &["<turn|>"])
    },
    of("gpt-oss", "gguf-gpt-oss", "gpt-4o", "<|return|>", &["<|call|>"]),
    of("minimax-m2", "gguf-minimax-m2", "minimax-m2", "[e~[", &[]),
    of("dots1", "gguf-dots1", "qwen2", "<|endofresponse|>", &["<|endoftext|>"]),
    of("afmoe", "gguf-afmoe", "afmoe", "<|im_end|>", &[]),
    of("deepseek2", "gguf-deepseek2", "deepseek-v3", "<｜end▁of▁sentence｜>", &[]),
    of("deepseek2", "gguf-deepseek2", "kimi-k2", "[EOS]", QWEN),
    of("deepseek2", "gguf-deepseek2", "youtu", "<|end_of_text|>", &[]),
    of("deepseek2", "gguf-deepseek2", "joyai-llm", "<|end_of_text|>", &[]),
    of("deepseek2", "gguf-deepseek2", "gigachat", "</s>", &[]),
    of("deepseek2", "gguf-deepseek2", "glm4", "<|endoftext|>", &["<|user|>", "<|observation|>"]),
    of("deepseek2", "gguf-deepseek2-lite", "deepseek-llm", "<｜end▁of▁sentence｜>", &[]),
    of("lfm2", "gguf-lfm2", "lfm2", "<|im_end|>", &["<|endoftext|>"]),
    of("lfm2moe", "gguf-lfm2-moe", "lfm2", "<|im_end|>", &["<|endoftext|>"]),
    of("nemotron_h", "gguf-nemotron-h", "pixtral", "<SPECIAL_12>", &[]),
    of("nemotron_h_moe", "gguf-nemotron-h-moe", "pixtral", "<|im_end|>", &[]),
];

#[test]
fn every_architecture_is_read_with_the_names_of_published_files() {
    for published in PUBLISHED {
        // Special tokens are control tokens, or in some files such as a user defined.
        for kind in [3, 4] {
            check(published, kind);
        }
    }
}

#[test]
fn every_architecture_has_such_names() {
    for arch in arch::names() {
        // An architecture that is added must get a row above.
        assert!(PUBLISHED.iter().any(|published| published.arch == arch), "{arch}");
    }
}

/// Gives a file the name of another architecture that has the same keys.
fn renamed(m: &mut Map<String, Value>, arch: &str) {
    let own = m["general.architecture"].as_str().unwrap().to_owned();
    if own != arch {
        let keys: Vec<String> = m.keys().filter(|key| key.starts_with(&own)).cloned().collect();
        for key in keys {
            let value = m.remove(&key).unwrap();
            m.insert(key.replacen(&own, arch, 1), value);
        }
        m["general.architecture"] = arch.into();
    }
}

/// EmbeddingGemma's file: Gemma 3's layers with what the safetensors' configuration says of attention, and the mean.
#[test]
fn embedding_gemma_sees_both_ways() {
    let gguf = edited("gguf-gemma3", &|m| {
        renamed(m, "gemma-embedding");
        m.insert("gemma-embedding.attention.causal".into(), false.into());
        m.insert("gemma-embedding.pooling_type".into(), 1.into());
    });
    let checkpoint = Checkpoint::open(CheckpointFiles::Gguf(Arc::new(gguf.unwrap()))).unwrap();
    checkpoint.check_keys(&[]).unwrap();
    assert_eq!(checkpoint.sentence().pooling, Some(crate::Pooling::Mean));
    let (both, causal) = (checkpoint.spec(), super::checkpoint("gguf-gemma3"));
    let windows = |spec: &ModelSpec| spec.attentions().map(|a| a.window).collect::<Vec<_>>();
    assert!(both.sees_both_ways() && checkpoint.gives_vectors());
    assert_eq!(windows(causal.spec()), [Some(10), None, Some(10)]);
    // transformers halves the window of both directions and adds the token itself: 10 / 2 + 1.
    assert_eq!(windows(both), [Some(6), None, Some(6)]);
}

#[track_caller]
fn check(published: &Published, kind: u32) {
    let Published { arch, golden, vocabulary: (model, pre), eos, turns } = *published;
    let what = format!("{arch} {pre:?} {kind}");
    let ends: Vec<&str> = [eos].into_iter().chain(turns.iter().copied()).collect();
    let tokens: Vec<&str> =
        ["<unk>", "<s>", "a", "b", "ab"].into_iter().chain(ends.clone()).collect();
    let kinds = [2, 3, 1, 1, 1].into_iter().chain(ends.iter().map(|_| kind)).collect::<Vec<u32>>();
    let at = |name: &str| tokens.iter().position(|token| *token == name).unwrap();
    let gguf = edited(golden, &|m| {
        renamed(m, arch);
        // The golden's tensors and sizes stay, and its vocabulary is replaced by a small one.
        m.retain(|key, _| !key.starts_with("tokenizer."));
        let mut set =
            |key: &str, value: Value| drop(m.insert(format!("tokenizer.ggml.{key}"), value));
        set("model", model.into());
        if let Some(pre) = pre {
            set("pre", pre.into());
        }
        set("tokens", tokens.clone().into());
        set("token_type", kinds.clone().into());
        set("scores", (0..tokens.len()).map(|i| -(i as f64)).collect::<Vec<_>>().into());
        set("merges", json!(["a b"]));
        set("bos_token_id", 1.into());
        set("eos_token_id", at(eos).into());
        set("unknown_token_id", 0.into());
        for (role, name) in [("eot", "<|user|>"), ("eom", "<|observation|>")] {
            if tokens.contains(&name) {
                set(&format!("{role}_token_id"), at(name).into());
            }
        }
        set("add_bos_token", true.into());
    });
    let gguf = gguf.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(gguf.arch.name, arch, "{what}");
    assert!(gguf.remarks().is_empty(), "{what}: {:?}", gguf.remarks());
    let tokenizer = gguf.tokenizer().unwrap_or_else(|error| panic!("{what}: {error}"));
    let added = tokenizer["added_tokens"].as_array().unwrap();
    for name in &ends {
        let token = added.iter().find(|token| token["content"] == **name);
        let token = token.unwrap_or_else(|| panic!("{what}: {name} is not found in texts"));
        assert_eq!(token["id"], at(name), "{what}");
    }
    let mut expected: Vec<usize> = ends.iter().map(|name| at(name)).collect();
    let found = gguf.config().unwrap().0["eos_token_id"].clone();
    let mut found: Vec<usize> = serde_json::from_value(found).unwrap();
    expected.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, expected, "{what}: ends are {tokens:?}");
    let checkpoint = Checkpoint::open(CheckpointFiles::Gguf(Arc::new(gguf)));
    let checkpoint = checkpoint.unwrap_or_else(|error| panic!("{what}: {error}"));
    checkpoint.check_keys(&[]).unwrap_or_else(|error| panic!("{what}: {error}"));
}
