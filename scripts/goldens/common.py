"""Common parts of the scripts in this folder: arguments, random models, and expected results."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import seeded_weights
import torch
import transformers
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parents[2]
GOLDENS = ROOT / "tests" / "golden"
PROMPT_LEN = 48
NEW_TOKENS = 32
# Rows that golden.safetensors has of a dequantized matrix.
DEQUANTIZED_ROWS = 8

# The folders in the repository must be small. Heads and KV heads are divisible by two, for tensor parallelism.
COMMON = dict(
    vocab_size=320,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    rms_norm_eps=1e-5,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
    tie_word_embeddings=False,
)
TWO_LAYERS = {**COMMON, "num_hidden_layers": 2}
ALTERNATING = ["sliding_attention", "full_attention", "sliding_attention"]


def arguments(doc: str, out: Path = GOLDENS) -> argparse.ArgumentParser:
    """The arguments of each script. One thread makes torch's results equal in every run."""
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--out", type=Path, default=out)
    parser.add_argument("--only", help="one folder's name")
    return parser


def wanted(recipes: dict, only: str | None, first_seed: int) -> Iterator[tuple]:
    """Name, recipe and seed of each requested folder."""
    for i, (name, recipe) in enumerate(recipes.items()):
        if only in (None, name):
            yield name, recipe, first_seed + i * 100


def empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def write_json(path: Path, content) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def rewrite_json(path: Path, edit) -> None:
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")


def forget_version(folder: Path) -> None:
    """Removes the version of transformers, with which the files should not change. The requirements have it."""
    for path in (folder / "config.json", folder / "generation_config.json"):
        if path.exists():
            rewrite_json(path, lambda c: c.pop("transformers_version", None))


def random_model(recipe: dict, common: dict, seed: int) -> torch.nn.Module:
    """A decoder of the recipe's class. Its configuration is `common` with the recipe's differences."""
    kind = "TextConfig" if recipe.get("text") else "Config"
    config_class = getattr(transformers, recipe["cls"] + kind)
    model_class = getattr(transformers, recipe["cls"] + recipe.get("head", "ForCausalLM"))
    config = {**common, **recipe.get("config", {})}
    if "vision" in recipe:  # a model for text and images
        whole = dict(text_config=config, vision_config=recipe["vision"])
        config = {**whole, "tie_word_embeddings": config["tie_word_embeddings"]}
    config = config_class(**config)
    config._attn_implementation = "eager"
    model = model_class(config).to(torch.float32).eval()
    randomise(model, seed)
    return model


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Fills the weights. They are large enough for uneven attention, for the curved part of GELU, and for clearly
    different logits.
    """
    generator = torch.Generator().manual_seed(seed)
    kind = type(model).__name__
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1 or "_norm." in name:
            is_norm = name.endswith("weight") and ("norm" in name.lower() or "ln_" in name)
            is_factor = is_norm or name.endswith("scale")
            from_zero = "Gemma" in kind and "Gemma4" not in kind
            value = (1.0 if is_factor and not from_zero else 0.0) + 0.2 * noise
            if "Gemma4" in kind and name.endswith(("q_norm.weight", "k_norm.weight")):
                # Attention scores are products of the two, without any scaling.
                value *= parameter.shape[0] ** -0.25
        elif "embed_tokens_per_layer" in name:
            value = noise * 0.3
        elif "embed" in name and ("Falcon" in kind or "OPT" in kind):
            value = noise * 0.1
        elif "embed" in name:
            # Gemma multiplies the embedding by sqrt(hidden_size), and the tied logits must not saturate.
            value = noise * (0.03 if "Gemma" in kind else 0.5)
        elif "wpe" in name or "wte" in name:
            value = noise * 0.2
        else:  # experts like a single matrix; GPT-2's matrices are transposed
            value = noise * 1.5 * parameter.shape[0 if "GPT2" in kind else -1] ** -0.5
            if "GPTNeoFor" in kind and name.endswith(("q_proj.weight", "k_proj.weight")):
                value *= 0.5  # attention scores are not scaled
        parameter.data.copy_(value)
    for name, buffer in sorted(model.named_buffers()):
        if name.endswith(("e_score_correction_bias", "feed_forward.expert_bias")):  # about as large as sigmoids
            buffer.copy_(0.4 * torch.randn(buffer.shape, generator=generator))
        if name.endswith("layer_scalar"):
            buffer.copy_(0.6 + 0.8 * torch.rand(buffer.shape, generator=generator))


def read_back(model_class: type, folder: Path) -> torch.nn.Module:
    """The model, loaded from the files, since these have the golden values."""
    seeded_weights.write_weights(folder)
    return model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def inv_freq(model: torch.nn.Module) -> torch.Tensor:
    """The inverse frequencies of all layers, or of those without a window; empty without RoPE."""
    if not hasattr(model, "model"):
        return torch.zeros(0)
    rope = getattr(getattr(model.model, "language_model", model.model), "rotary_emb", None)
    if rope is None:
        return torch.zeros(0)
    return rope.inv_freq if hasattr(rope, "inv_freq") else rope.full_attention_inv_freq


def write_golden(
    folder: Path,
    model: torch.nn.Module,
    seed: int,
    short_prompt: int | None = None,
    dequantized: dict[str, torch.Tensor] | None = None,
) -> None:
    """Writes the results of a decoder for a random prompt, with dequantized values if there are any."""
    generator = torch.Generator().manual_seed(seed)
    prompt = torch.randint(4, model.config.get_text_config().vocab_size, (PROMPT_LEN,), generator=generator)
    with torch.no_grad():
        logits = model(prompt[None]).logits[0]
        ids, greedy_leads = prompt, []
        for _ in range(NEW_TOKENS):  # without a cache, as the reference
            last = model(ids[None]).logits[0, -1]
            greedy_leads.append(lead(last))
            ids = torch.cat([ids, last.argmax()[None]])
    golden = {
        "prompt": prompt.to(torch.int32),
        "logits": logits.to(torch.float32).contiguous(),
        "greedy": ids[PROMPT_LEN:].to(torch.int32).contiguous(),
        "inv_freq": inv_freq(model).clone(),
    }
    if short_prompt:
        with torch.no_grad():
            golden["short_logits"] = model(prompt[None, :short_prompt]).logits[0].contiguous()
        golden["short_inv_freq"] = inv_freq(model).clone()
    save(
        folder,
        golden | (dequantized or {}),
        f"logits {logits.min():.2f} to {logits.max():.2f}, "
        f"smallest lead {min(map(lead, logits)):.4f}, of the greedy tokens {min(greedy_leads):.4f}, "
        f"{len(set(ids[PROMPT_LEN:].tolist()))} different greedy tokens, "
        f"{len(dequantized or {})} unpacked",
    )


def lead(logits: torch.Tensor) -> float:
    """Difference between the two largest logits. If it is small, choose another seed for the golden."""
    best, next_one = logits.topk(2).values.tolist()
    return best - next_one


def save(folder: Path, golden: dict[str, torch.Tensor], summary: str) -> None:
    """Writes a folder's last file, and prints a summary."""
    save_file(golden, folder / "golden.safetensors")
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and not is_generated(file))
    print(f"{folder.name}: {size / 1e3:.0f} kB, {summary}")


def is_generated(file: Path) -> bool:
    """Whether a file is generated and not part of the repository."""
    return file.name == seeded_weights.WEIGHTS and (file.parent / seeded_weights.SEEDED).exists()
