"""Vocabularies of the goldens that are GGUF files: the tokenizer.json of each, and the same as a file's metadata."""

from __future__ import annotations

import json

import gguf
from gguf import TokenType
from tokenizer_fixtures import LLAMA3_SPLIT, OUT
from transformers.convert_slow_tokenizer import generate_merges

TEMPLATE = (
    "{% for message in messages %}<|role|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|role|>assistant\n{% endif %}"
)

# Splitting rules in tokenizer.json files on the hub: those of Mistral NeMo and of GPT-4o.
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
WORDS = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*%s"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN_SPLIT = WORDS % ("", "") + r"|\p{N}" + REST
GPT_4O_SPLIT = WORDS % (SUFFIX, SUFFIX) + r"|\p{N}{1,3}" + REST

# DeepSeek-V3's rules, which are applied in sequence.
DEEPSEEK_V3_SPLITS = [
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    + r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
]


def tokenizer(name: str) -> dict:
    """The tokenizer.json of SentencePiece or byte-level BPE."""
    return (sentence_piece if name.startswith("spm") else byte_level)(name)


def byte_level(name: str) -> dict:
    """The tokenizer.json of byte-level BPE with a model family's splitting rule."""
    original = json.loads((OUT / "byte_level.tokenizer.json").read_text())
    model, steps = original["model"], original["pre_tokenizer"]["pretokenizers"]
    rules = {
        "llama-bpe": LLAMA3_SPLIT, "qwen2": LLAMA3_SPLIT.replace("{1,3}", ""),
        "tekken": TEKKEN_SPLIT, "gpt-4o": GPT_4O_SPLIT, "glm4": LLAMA3_SPLIT,
    }
    if name == "deepseek-v3":
        split = steps[0]
        steps[:1] = [{**split, "pattern": {"Regex": rule}} for rule in DEEPSEEK_V3_SPLITS]
    elif name in rules:
        steps[0]["pattern"]["Regex"] = rules[name]
    else:
        steps[0] = {"type": "Digits", "individual_digits": True}
        steps[1]["use_regex"] = True
    model["ignore_merges"] = name in ("llama-bpe", "tekken", "glm4")
    if name == "qwen2":
        original["normalizer"] = {"type": "NFC"}
    if name not in ("llama-bpe", "tekken"):
        original["post_processor"] = None
    # A GGUF file has all tokens in one vocabulary.
    model["vocab"] |= {token["content"]: token["id"] for token in original["added_tokens"]}
    return original


def sentence_piece(name: str) -> dict:
    """The tokenizer.json that transformers makes from a SentencePiece vocabulary."""
    original = json.loads((OUT / "byte_fallback.tokenizer.json").read_text())
    model = original["model"]
    if name in ("spm-no-space", "spm-gemma4"):
        original["normalizer"] = original["normalizer"]["normalizers"][1]
        original["decoder"]["decoders"].pop()
    if name == "spm-phi3":
        for content in ["<|user|>", "<|end|>"]:
            token = {**original["added_tokens"][0], "id": len(model["vocab"]), "content": content}
            original["added_tokens"].append(token)
            model["vocab"][content] = token["id"]
        for token in original["added_tokens"]:
            token["rstrip"] = token["content"] not in ("<unk>", "<s>")
    if name == "spm-gemma4":
        # Gemma 4's control tokens. Files store one of them as user-defined. The end-of-turn token is among them.
        for content in ["<turn|>", "<|tool_response>", '<|"|>']:
            token = {**original["added_tokens"][0], "id": len(model["vocab"]), "content": content}
            original["added_tokens"].append(token)
            model["vocab"][content] = token["id"]
    vocab = model["vocab"]
    scores = {token: -float(id) for token, id in vocab.items()}
    skipped = [t["content"] for t in original["added_tokens"]] + [t for t in vocab if t.startswith("<0x")]
    model["merges"] = generate_merges(vocab, scores, skip_tokens=skipped)
    return original


def write_tokenizer(writer: gguf.GGUFWriter, original: dict, name: str) -> None:
    added = {token["content"]: token["special"] for token in original["added_tokens"]}
    vocab = sorted(original["model"]["vocab"].items(), key=lambda entry: entry[1])
    tokens = [token for token, _ in vocab]

    def kind(token: str) -> TokenType:
        if token == "<unk>":
            return TokenType.UNKNOWN
        if token in ("<|tool_response>", '<|"|>'):
            return TokenType.USER_DEFINED
        if token in added:
            return TokenType.CONTROL if added[token] else TokenType.USER_DEFINED
        spm_byte = name.startswith("spm") and token.startswith("<0x")
        return TokenType.BYTE if spm_byte else TokenType.NORMAL

    writer.add_token_list(tokens)
    writer.add_token_types([kind(token) for token in tokens])
    if name.startswith("spm"):
        if name == "spm-gemma4":
            writer.add_tokenizer_model("gemma4")
            writer.add_token_scores([-1000.0] * len(tokens))
            writer.add_token_merges([" ".join(merge) for merge in original["model"]["merges"]])
        else:
            writer.add_tokenizer_model("llama")
            writer.add_tokenizer_pre("default")
            writer.add_token_scores([-float(id) for _, id in vocab])
        writer.add_add_space_prefix(name not in ("spm-no-space", "spm-gemma4"))
        writer.add_bos_token_id(tokens.index("<s>"))
        writer.add_eos_token_id(tokens.index("</s>"))
        writer.add_unk_token_id(tokens.index("<unk>"))
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(name)
        writer.add_token_merges([" ".join(merge) for merge in original["model"]["merges"]])
        writer.add_bos_token_id(tokens.index("<|begin|>"))
        # The file names a wrong end-of-sequence token. The right one is recognized by its name only.
        writer.add_eos_token_id(tokens.index("<|begin|>"))
        writer.add_chat_template(TEMPLATE)
