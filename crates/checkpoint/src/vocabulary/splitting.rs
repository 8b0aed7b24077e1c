//! Rules that split texts before byte-level tokens are merged. GGUF files have a name for each.
//! Source: `src/llama-vocab.cpp` of llama.cpp, where it cites the rules of the models' own tokenizers.

use serde_json::{Value, json};

/// A rule that splits byte-level texts before merging.
pub(crate) struct Splitting {
    /// The names that files have for it.
    pub(crate) names: &'static [&'static str],
    /// Rules, each for what the ones before it left; none for GPT-2's own.
    rules: &'static [&'static str],
    /// Digits are split from each other before.
    digits: bool,
    /// A word that is a token is not merged.
    pub(crate) ignore_merges: bool,
    /// Texts are composed before.
    pub(crate) nfc: bool,
    /// Whether texts begin with a token unless the file says so.
    pub(crate) bos: bool,
}

/// GPT-2's own.
pub(crate) const GPT2: Splitting = Splitting {
    names: &[
        "gpt-2",
        "phi-2",
        "exaone4",
        "mpt",
        "olmo",
        "jais",
        "trillion",
        "mellum",
        "a.x-4.0",
        "gigachat",
        "granite-docling",
        "jina-es",
        "jina-de",
        "jina-v2-es",
        "jina-v2-de",
        "modern-bert",
    ],
    rules: &[],
    digits: false,
    ignore_merges: false,
    nfc: false,
    bos: false,
};

/// Groups of up to three digits are one word.
const LLAMA3: Splitting = Splitting {
    names: &[
        "llama-bpe",
        "llama3",
        "llama-v3",
        "falcon3",
        "falcon-h1",
        "pixtral",
        "midm-2.0",
        "lfm2",
        "jina-v5-nano",
    ],
    rules: &[concat!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )],
    ..GPT2
};

/// Each digit is a word.
const QWEN2: Splitting = Splitting {
    names: &["qwen2", "deepseek-r1-qwen", "kormo", "megrez", "f2llmv2"],
    rules: &[concat!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )],
    ..GPT2
};

/// The rule of Qwen's own models, whose texts are composed.
pub(crate) const QWEN2_COMPOSED: Splitting = Splitting { nfc: true, ..QWEN2 };

/// Kimi's, of which tiktoken's files say nothing.
pub(crate) const KIMI: Splitting = Splitting {
    names: &["kimi-k2"],
    rules: &[concat!(
        r"[\p{Han}]+",
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )],
    ignore_merges: true,
    ..GPT2
};

/// The name of the rule of files that have none.
pub(crate) const UNNAMED: &str = "default";

/// Words and what else is in texts of DeepSeek V3 and of others, apart from digits and ideographs.
const DEEPSEEK_WORDS: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// GPT-4o's, which knows upper from lower case.
const O200K: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// GPT-4's rule, but a number is one word.
const NUMBERS: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

pub(crate) const SPLITTINGS: &[Splitting] = &[
    GPT2,
    KIMI,
    Splitting {
        names: &["smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"],
        digits: true,
        ..GPT2
    },
    Splitting { names: &["command-r"], digits: true, nfc: true, ..GPT2 },
    Splitting { ignore_merges: true, bos: true, ..LLAMA3 },
    Splitting { names: &["dbrx", "smaug-bpe", "chatglm-bpe"], ..LLAMA3 },
    Splitting { names: &["glm4", "glm5"], ignore_merges: true, ..LLAMA3 },
    QWEN2_COMPOSED,
    Splitting { names: &["stablelm2", "hunyuan", "solar-open", "grok-2"], ..QWEN2 },
    Splitting {
        names: &["qwen35"],
        rules: &[concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}",
            r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )],
        nfc: true,
        ..GPT2
    },
    Splitting {
        names: &["seed-coder"],
        rules: &[concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}",
            r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
        )],
        ..GPT2
    },
    Splitting {
        names: &["gpt-4o", "llama4", "kanana2", "minimax-m2", "talkie"],
        rules: &[O200K],
        ..GPT2
    },
    Splitting {
        names: &["tekken"],
        rules: &[concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )],
        ignore_merges: true,
        bos: true,
        ..GPT2
    },
    Splitting {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        rules: &[r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK_WORDS],
        ..GPT2
    },
    // Digits by threes from the right. The models' own rules look at all digits and these at 258, so that long runs take linear time.
    Splitting {
        names: &["afmoe"],
        rules: &[
            r"\p{N}{1,3}(?=(?:\p{N}{3}){0,85}(?!\p{N}))",
            r"[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+",
            DEEPSEEK_WORDS,
        ],
        ..GPT2
    },
    Splitting {
        names: &["tiny_aya", "cohere2moe"],
        rules: &[r"\d{1,3}(?=(?:\d{3}){0,85}\b)", O200K],
        ..GPT2
    },
    Splitting {
        names: &["youtu"],
        rules: &[
            r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
            concat!(
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            ),
        ],
        ignore_merges: true,
        ..GPT2
    },
    Splitting { names: &["superbpe"], rules: &[r"\p{N}+", r"(?=(?:\d{3}){1,85}(?!\d))"], ..GPT2 },
    Splitting {
        names: &["viking"], rules: &[r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}"], ..GPT2
    },
    Splitting {
        names: &["minicpm5"],
        rules: &[r"\p{N}{1,3}", NUMBERS],
        ignore_merges: true,
        ..GPT2
    },
    Splitting {
        names: &[UNNAMED],
        rules: &[
            r"[\p{P}$+<=>^~|]+",
            r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
            r"\p{N}+",
            r"[0-9][0-9][0-9]",
        ],
        ..GPT2
    },
    Splitting {
        names: &["deepseek-llm"],
        rules: &[
            r"[\r\n]",
            concat!(
                r"\s?",
                r"[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙ",
                r"ὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗ",
                r"Ａ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
            ),
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            r"[一-龥ࠀ-一가-퟿]+",
            r"\p{N}",
        ],
        ..GPT2
    },
    Splitting {
        names: &["deepseek-coder"],
        rules: &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
        ..GPT2
    },
];

/// The steps that cut texts before they are merged.
pub(crate) fn byte_level_steps(splitting: &Splitting) -> Vec<Value> {
    let mut steps = Vec::new();
    if splitting.digits {
        steps.push(json!({"type": "Digits", "individual_digits": true}));
    }
    steps.extend(splitting.rules.iter().map(|rule| {
        json!({"type": "Split", "pattern": {"Regex": rule}, "behavior": "Isolated",
            "invert": false})
    }));
    // The step's own expression is GPT-2's, so it is on only where no rule replaces it.
    steps.push(byte_level(splitting.rules.is_empty()));
    steps
}

/// A step of bytes as characters, which decodes them, too.
pub(crate) fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": use_regex})
}
