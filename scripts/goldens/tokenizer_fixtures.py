"""Trains the small tokenizers under crates/tokenizer/tests/data, one for each model family.

Each tokenizes 1,000 strings. The results of the `tokenizers` package are written to tokenization.json.

    .venv/bin/python scripts/goldens/tokenizer_fixtures.py

Among merges of equal count, the trainer chooses differently in each run. So an existing tokenizer is kept. Delete its
file to train it again.
"""

import json
import pathlib
import random
import struct

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

OUT = pathlib.Path(__file__).resolve().parents[2] / "crates" / "tokenizer" / "tests" / "data"

CORPUS = [
    "The scheduler gives each sequence its tokens, and the engine runs them in one step.",
    "A block of the cache holds sixteen positions; two sequences may share it.",
    "What is the capital of France? The capital of France is Paris.",
    "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\n",
    '{"name": "get_weather", "arguments": {"city": "Bern", "days": 2}}',
    "Zürich, São Paulo, Kraków, İstanbul, Ελλάδα, Москва, القاهرة, नमस्ते",
    "日本語のテキストと中文文本,한국어 문장。",
    "I'm here, you're there; we'll see 12 of 345 and 6,789.00!",
    "Emoji 🎈 and 👩‍👩‍👧 and 🇨🇭, combining e\u0301 and n\u0303.",
    "  indented\n\n\ttabbed   spaces  \r\n",
] * 4

# The splitting rule of Llama 3 and, except for digits, of Qwen 2 and 3.
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level() -> Tokenizer:
    """Byte-level BPE with a begin-of-sequence token, as in Llama 3."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens(["<|begin|>", "<|end|>", "<|role|>"])
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False)])
    begin = tokenizer.token_to_id("<|begin|>")
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", begin)]),
        ]
    )
    return tokenizer


def byte_fallback() -> Tokenizer:
    """SentencePiece BPE with byte fallback and a leading space that decoding strips, as in Llama 2."""
    control = ["<unk>", "<s>", "</s>"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trained = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    trainer = trainers.BpeTrainer(
        vocab_size=1000, special_tokens=control + byte_tokens, limit_alphabet=80, show_progress=False
    )
    trained.train_from_iterator([text.replace("\n", " ") for text in CORPUS], trainer)
    model = json.loads(trained.to_str())["model"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab=model["vocab"],
            merges=[tuple(merge) for merge in model["merges"]],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(control)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def metaspace() -> Tokenizer:
    """A unigram model with the Metaspace decoder, as in T5 and XGLM."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=400, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def metaspace_first() -> Tokenizer:
    """SentencePiece BPE as in Mistral's later models and Phi-3: byte fallback, a space before the first word only,
    and special tokens that consume the white space around them."""
    control = ["<unk>", "<s>", "</s>"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trained = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=control + byte_tokens, limit_alphabet=80, show_progress=False
    )
    trained.train_from_iterator([text.replace("\n", " ") for text in CORPUS], trainer)
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = Tokenizer(
        models.BPE(vocab=model["vocab"], merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(
        [
            *control,
            AddedToken("<|user|>", rstrip=True, normalized=False),
            AddedToken("<|end|>", lstrip=True, normalized=False),
            AddedToken("<|word|>", single_word=True, normalized=False),
        ]
    )
    tokenizer.add_tokens([AddedToken("</think>", normalized=False)])
    return tokenizer


def word_piece() -> Tokenizer:
    """Lower-case WordPiece, as in BERT."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    control = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=500, special_tokens=control, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ["[CLS]", "[SEP]"]],
    )
    return tokenizer


NUM_STRINGS = 1000
NUM_FULL = 20

# Parts of the strings: special tokens of all tokenizers and near misses, words, code, white space.
SPELLED = (
    "<|begin|> <|end|> <|role|> <tool_call> </tool_call> <s> </s> <unk> <pad> [PAD] [UNK] [CLS] [SEP] [MASK] [cls] <|user|> "
    "<|word|> </think> <|End|> <|end <|| < |> <0x0A> <S> ＜s＞ ▁<s> [INST]"
).split()
WORDS = " ".join(CORPUS[:10]).split() + (
    "straße ﬁne Ⅷ ½ e\u0301 n\u0303 \u0301 ﷺ ẞ İi ǅ 𝕏 한글 ハロー ภาษาไทย עברית मराठी 🏳️‍🌈 👍🏽 🇫🇷🇩🇪 \u200b \u200d \u00ad \ufeff \u202e "
    "\x00 \x7f \x85 \ufffd \ufdd0 \U0010ffff 3.14159 1,000,000 0x7fff 1e-9 don't I'll x_y camelCase HTTP/2 a@b.c https://e.org/?q=1&r=%20"
).split(" ")
CODE = [
    "fn main() {\n    println!(\"{}\", 1 << 3);\n}\n",
    "for i in range(10):\n\tif i % 2 == 0: continue\n\tprint(f'{i:>3}')",
    "SELECT * FROM t WHERE a <> 'b' -- c",
    "#include <stdio.h>\r\nint x[3] = {1, 2, 3};",
    '<a href="/x?y=1&amp;z">t</a><!-- c -->',
    "$ ls -l | grep '^d' && echo \"$HOME\"",
    "\\frac{a}{b} \\le \\sum_{i=0}^n x_i",
]
SPACES = ["", "", " ", " ", "  ", "\n", "\n\n", "\t", "\r\n", " \n ", "\u00a0", "\u3000", "\u2028", "    ", "▁"]
EDGES = ["", " ", "  ", "\n", "\t\n", "a", " a", "a ", "▁", "▁▁a", "\u0301", "🎈", "\ufffd", "a" * 300, " " * 100, "ab " * 100, "é" * 101]


def strings() -> list[str]:
    chance = random.Random(20250708)
    ranges = [(0x20, 0x7F), (0xA0, 0x250), (0x370, 0x530), (0x590, 0x700), (0x900, 0xA00), (0x3040, 0x3100), (0x4E00, 0x5000), (0xAC00, 0xAE00), (0x1F300, 0x1F700)]

    def part() -> str:
        kind = chance.random()
        if kind < 0.25:
            return chance.choice(SPELLED)
        if kind < 0.75:
            return chance.choice(WORDS)
        if kind < 0.85:
            return chance.choice(CODE)
        low, high = chance.choice(ranges)
        return "".join(chr(chance.randrange(low, high)) for _ in range(chance.randint(1, 6)))

    made = EDGES + SPELLED + CODE
    while len(made) < NUM_STRINGS:
        made.append("".join(part() + chance.choice(SPACES) for _ in range(chance.randint(1, 7))))
    return made


def digest(ids: list[int]) -> str:
    """32-bit FNV-1a over the ids as little-endian 32-bit integers."""
    state = 0x811C9DC5
    for byte in struct.pack(f"<{len(ids)}I", *ids):
        state = (state ^ byte) * 0x01000193 & 0xFFFFFFFF
    return f"{state:08x}"


def tokenization(texts: list[str], tokenizer: Tokenizer) -> dict:
    """Digests of the ids of each string, with special tokens recognized and as text. Some ids are stored in full."""
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    with_added = [tokenizer.encode(text, add_special_tokens=True).ids for text in texts]
    tokenizer.encode_special_tokens = True
    as_text = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    step = len(texts) // NUM_FULL
    return {
        "ids": "".join(map(digest, ids)),
        "with_added": digest([one for some in with_added for one in some]),
        "as_text": "".join(map(digest, as_text)),
        "full": {index: ids[index] for index in range(0, len(texts), step)},
    }


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    texts = strings()
    expected = {}
    for make in (byte_level, byte_fallback, metaspace, metaspace_first, word_piece):
        path = OUT / f"{make.__name__}.tokenizer.json"
        if not path.exists():
            compact = json.dumps(json.loads(make().to_str()), ensure_ascii=False, separators=(",", ":"))
            path.write_text(compact + "\n", encoding="utf-8")
        expected[make.__name__] = tokenization(texts, Tokenizer.from_file(str(path)))
        print(f"{path}: {path.stat().st_size} bytes")
    path = OUT / "tokenization.json"
    document = {"strings": texts, "expected": expected}
    path.write_text(json.dumps(document, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    print(f"{path}: {path.stat().st_size} bytes, {len(texts)} strings")


if __name__ == "__main__":
    main()
