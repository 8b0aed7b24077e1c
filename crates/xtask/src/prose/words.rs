//! Private words of this project, each with the field's term, and with the sentences in which it is plain English.

/// A private word and the field's term.
pub(crate) struct PrivateWord {
    /// A pattern over ASCII, without regard to case.
    pub(crate) word: &'static str,
    /// The word is English in a sentence that this pattern matches. Empty: in none.
    pub(crate) unless: &'static str,
    /// Prefixes of the paths for which the row counts. Empty: all.
    pub(crate) only_in: &'static [&'static str],
    /// The field's term, between asterisks as in `docs/glossary.md`.
    pub(crate) instead: &'static str,
}

impl PrivateWord {
    pub(crate) fn applies_to(&self, path: &str) -> bool {
        let is_in = |folders: &[&str]| folders.iter().any(|folder| path.starts_with(folder));
        !is_in(&NAMED_IN) && (self.only_in.is_empty() || is_in(self.only_in))
    }
}

const fn row(
    word: &'static str,
    unless: &'static str,
    only_in: &'static [&'static str],
    instead: &'static str,
) -> PrivateWord {
    PrivateWord { word, unless, only_in, instead }
}

/// Files that must name the private words.
const NAMED_IN: [&str; 2] = ["docs/glossary.md", "crates/xtask/src/prose"];

const EVERYWHERE: &[&str] = &[];

/// Paths of texts about tensors and models.
const TENSORS: &[&str] = &[
    "ARCHITECTURE.md",
    "docs/design/",
    "crates/checkpoint/",
    "crates/gpu/",
    "crates/kernels/",
    "crates/layout/",
    "crates/models/",
];

/// Paths of texts about sequences, their cache and their states.
const STEPS: &[&str] = &[
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "README.md",
    "configs/",
    "docs/",
    "crates/engine/",
    "crates/gpu/",
    "crates/kernels/",
    "crates/models/",
    "crates/scheduler/",
];

/// Paths of texts about constrained output.
const CONSTRAINTS: &[&str] = &[
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "README.md",
    "docs/",
    "crates/api/",
    "crates/dialect/",
    "crates/grammar/",
    "crates/server/",
];

/// The table. A row stays narrow: a missed use does less harm than a refusal of plain English.
pub(crate) const PRIVATE_WORDS: &[PrivateWord] = &[
    // Quantization.
    row(
        r"\bcodes\b|\b(a|each|every|one|which) code\b",
        r"\b(error|status|exit|source|machine|country|language|response) codes?\b|code of|[45]\d\d",
        EVERYWHERE,
        "*quantized weights*, or *quantized values*",
    ),
    row(
        r"\bnumbers\b",
        r"numbers of [a-z]+s\b|\blist of numbers\b|\b(random|line|version|odd|even|serial|two|port|block) numbers\b",
        TENSORS,
        "*values*; of quantized weights *dequantized values*",
    ),
    row(
        r"\bminima\b|\bminimums?\b",
        r"maxim|\bminimum of (a|two|all)\b",
        TENSORS,
        "*offset*, or *zero-point*",
    ),
    row(
        r"\bmultiples\b",
        r"\bmultiples of (\d|the|a|`)|\bnot? multiples\b",
        TENSORS,
        "*sub-scales* of a *super-block*",
    ),
    // Layers.
    row(
        r"\bturned\b|\bturns? (neighbours|pairs|half|the others|their heads)\b",
        r"\bturn(s|ed)? (\w+ )?(away|down|in|into|off|on|out|round)\b|\breversed\b",
        TENSORS,
        "*rotated* (RoPE)",
    ),
    row(
        r"\brecurrences?\b",
        r"\brecurrence relation\b|\brecurrence\.(cu|rs)\b",
        EVERYWHERE,
        "*linear attention*, or *SSM* of Mamba-2",
    ),
    row(
        r"\brules?\b",
        r"\b(delta|update) rule\b",
        &["crates/gpu/", "crates/kernels/", "crates/models/"],
        "*update rule*",
    ),
    row(r"\btaps?\b", "", TENSORS, "*conv kernel weights*"),
    row(
        r"\bwhat steers\b|\bsteers? (its|the|their) states?\b",
        "",
        EVERYWHERE,
        "*decay* and *beta* inputs",
    ),
    row(
        r"\bthe ones? beside\b|\bexperts beside (a|one|some|that)\b|\bthat every token goes to\b",
        "",
        EVERYWHERE,
        "*shared expert*",
    ),
    row(r"\blayers? of experts\b", "", EVERYWHERE, "*MoE layer*"),
    row(
        r"\bvectors? of (each token|tokens) for (all|each) layers?\b|\bvectors of tokens for\b",
        "",
        EVERYWHERE,
        "*per-layer embeddings*",
    ),
    row(
        r"\bscores? of (the )?sinks?\b|\bsinks?'?s?'? scores?\b",
        "",
        EVERYWHERE,
        "*attention sink logits*",
    ),
    row(r"\bheld to (-?\d|`)", "", TENSORS, "*clamped*"),
    row(
        r"\bdefinitions?\b",
        r"\b(function|ref|rule|schema|tool|type)s?\b|^definitions$|\bby definition\b",
        STEPS,
        "*reference* implementation",
    ),
    row(
        r"\branks?'s? parts?\b|\branks' parts?\b|\bparts? of (a|each|one) rank\b",
        "",
        EVERYWHERE,
        "*shard*",
    ),
    // Steps.
    row(
        r"\b(draws?|drawn|drew)\b",
        r"\b(bars?|chart|diagram|lines?|picture|screen|terminal)\b|\bdraws? (on|upon|from)\b|\bpower\b",
        EVERYWHERE,
        "*sample*, *sampled*",
    ),
    row(
        r"\bbeginnings\b|\b(cached|common|longest|prompt's|same|shared) beginning\b|\bbeginning (that|of (a|its|the|their) (conversation|prompt|sequence))\b",
        r"\b(character|mark|special token|text|path)s?\b",
        STEPS,
        "*prefix*",
    ),
    row(
        r"\bwanted (ones|positions|rows|tokens)\b|\b(logits|nobody's|ones|states|tokens|vectors) (is|are) wanted\b",
        "",
        STEPS,
        "*output tokens*, or *logits indices*",
    ),
    row(
        r"\bplaces? (for|of) (a |each |one |the )?(new )?(sequences?|states?)\b|\bfree places?\b|\bplace to (read|write)\b|\bfrees? the places?\b",
        "",
        STEPS,
        "*slot*",
    ),
    row(r"\btokens a step\b", r"\bhow many\b", EVERYWHERE, "*batch tokens*"),
    row(
        r"\bsequences?( running)? at once\b|\bat once as may run\b",
        "",
        EVERYWHERE,
        "*max sequences*, or *concurrent sequences*",
    ),
    row(r"\bKV of (a|each|one) (context|token)\b", "", EVERYWHERE, "*KV/token*, or *KV/context*"),
    row(
        r"\bmemory of the host\b|\bbrought (out|to the host)\b",
        "",
        EVERYWHERE,
        "*host memory*, to which blocks are *swapped out*",
    ),
    // Answers.
    row(
        r"\bheld (to|by)\b",
        r"\bheld to -?\d|\bheld by (a|the) (group|lock|sequence)|\bheld by (each|its) (collective|lock|sequence)|\bheld by sequences",
        CONSTRAINTS,
        "*constrained by*, or *constrained to*",
    ),
    row(
        r"\bcalls of functions\b|\bfunctions? that (may be|it may|the model may) call(ed)?\b",
        "",
        EVERYWHERE,
        "*tool calls*, *tools*",
    ),
    row(r"\b(answers of thoughts|thoughts)\b", "", EVERYWHERE, "*reasoning*"),
    // Elsewhere.
    row(
        r"\b(are|be|been|being|is|was|were) told\b|\btells (how|the|what|whether|which|why)\b",
        r"\b(told|tells?) [a-z` ]*\b(apart|from)\b",
        EVERYWHERE,
        "*passed*, *reported*, *says*",
    ),
    row(r"\bwish(es)? for GPUs?\b", "", EVERYWHERE, "*GPU request*"),
];
