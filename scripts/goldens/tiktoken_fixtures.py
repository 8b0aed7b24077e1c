"""Writes a small vocabulary in tiktoken's format, as in Kimi's models, and tokenizes strings with it.

The strings are those of tokenizer_fixtures.py. The results of the `tiktoken` package are written to
crates/tokenizer/tests/data/kimi.

    .venv/bin/python scripts/goldens/tiktoken_fixtures.py
"""

import base64
import json

import tiktoken
from tokenizer_fixtures import OUT, digest, strings

# The splitting rule is in `tokenization_kimi.py` only, and in no other file of the models.
LOWER, UPPER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
RULE = "|".join(
    [
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{SUFFIX}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{SUFFIX}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
NAMED = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 11: "<|tool_calls_section_begin|>"}
RESERVED = 256


def bytes_of_characters() -> dict[str, int]:
    """The bytes for the characters of byte-level vocabularies."""
    seen = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + i): byte for i, byte in enumerate(others)}


def main() -> None:
    original = json.loads((OUT / "byte_level.tokenizer.json").read_text())["model"]
    by_character = bytes_of_characters()
    token = lambda spelled: bytes(by_character[character] for character in spelled)
    tokens = [bytes([byte]) for byte in range(256)] + [token("".join(merge)) for merge in original["merges"]]
    ranks = {token: rank for rank, token in enumerate(dict.fromkeys(tokens))}
    special = {NAMED.get(i, f"<|reserved_token_{len(ranks) + i}|>"): len(ranks) + i for i in range(RESERVED)}
    encoding = tiktoken.Encoding("kimi", pat_str=RULE, mergeable_ranks=ranks, special_tokens=special)
    folder = OUT / "kimi"
    folder.mkdir(exist_ok=True)
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()]
    (folder / "tiktoken.model").write_text("".join(lines))
    added = {str(len(ranks) + i): {"content": content, "special": True} for i, content in NAMED.items()}
    config = {"tokenizer_class": "TikTokenTokenizer", "bos_token": "[BOS]", "added_tokens_decoder": added}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    ids = [encoding.encode(text, allowed_special="all") for text in strings()]
    (folder / "ids.json").write_text(json.dumps({"digests": "".join(map(digest, ids))}) + "\n")
    print(f"{folder}: {len(ranks)} tokens, {len(ids)} strings")


if __name__ == "__main__":
    main()
