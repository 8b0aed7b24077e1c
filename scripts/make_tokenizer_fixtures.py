"""Trains the small tokenizers under crates/tokenizer/tests/data, each in the manner of a family of models.

Needs: pip install tokenizers==0.23.3
Among merges of equal count the trainer chooses differently in each run, so the files change.

Run from the repository's root: python scripts/make_tokenizer_fixtures.py
"""

import json
import pathlib

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

OUT = pathlib.Path("crates/tokenizer/tests/data")

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

# The splitting rule of Llama 3 and, but for the digits, of Qwen 2 and 3.
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level() -> Tokenizer:
    """Byte-level BPE with a begin-of-sequence token, as Llama 3 has it."""
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
    """SentencePiece BPE with byte fallback and a leading space that decoding strips, as Llama 2 has it."""
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
    """A unigram model with the Metaspace decoder, as T5 and XGLM have it."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=400, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    for make in (byte_level, byte_fallback, metaspace):
        path = OUT / f"{make.__name__}.tokenizer.json"
        compact = json.dumps(json.loads(make().to_str()), ensure_ascii=False, separators=(",", ":"))
        path.write_text(compact + "\n", encoding="utf-8")
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
