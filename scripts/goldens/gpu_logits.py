"""Writes what transformers computes on this GPU: gpu_logits.py GOLDENS OUT, with GOLDENS like tests/golden.

OUT/NAME.safetensors is written for each folder whose model transformers supports. It has `prompts` [prompts, tokens],
the golden's prompt in other orders, and the logits of each position, `exact` in f32 and `rounded` in bf16. The test
`a_gpu_rounds_as_transformers_does` compares ours with them. Weights that a golden keeps as a seed are generated
first.
"""

import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import seeded_weights

PROMPTS = 11
PROCESSES = 8
DEVICE = os.environ.get("GPU_GOLDENS_DEVICE", "cuda")


def logits(folder, prompts, dtype):
    """The logits of all positions, from the class that config.json names."""
    import torch
    import transformers

    config = json.loads((folder / "config.json").read_text())
    model_class = getattr(transformers, config["architectures"][0])
    model, found = model_class.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", output_loading_info=True
    )
    if found["missing_keys"]:
        raise ValueError(f"has other names, such as {sorted(found['missing_keys'])[0]}")
    with torch.no_grad():
        model = model.eval().to(DEVICE)
        return torch.cat([model(prompt[None].to(DEVICE), use_cache=False).logits for prompt in prompts]).float().cpu()


def compute(folder, out):
    """The reason that this folder has no result, or None."""
    import torch
    from safetensors.torch import load_file, save_file

    golden = load_file(folder / "golden.safetensors")
    prompt = golden["prompt"].long()
    orders = torch.Generator().manual_seed(0)
    prompts = torch.stack([prompt[torch.randperm(len(prompt), generator=orders)] for _ in range(PROMPTS)])
    try:
        # The GPU machine may have another version of transformers than the one that made the goldens, and it may
        # compute a model differently, as with Bamba and MiniMax-M2. A comparison with such a model would mean
        # nothing.
        apart = (logits(folder, prompt[None], torch.float32)[0] - golden["logits"]).abs().max()
        if apart > 0.01 * golden["logits"].abs().max():
            return f"this version computes something else: logits differ by {apart:.3f}"
        of = {
            "exact": logits(folder, prompts, torch.float32),
            "rounded": logits(folder, prompts, torch.bfloat16),
        }
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:120]}"
    save_file({"prompts": prompts.int(), **of}, out / f"{folder.name}.safetensors")
    return None


def main(goldens, out):
    out.mkdir(parents=True, exist_ok=True)
    for seeded in goldens.glob(f"*/{seeded_weights.SEEDED}"):
        seeded_weights.write_weights(seeded.parent)
    folders = [path.parent for path in sorted(goldens.glob("*/model.safetensors")) if (path.parent / "config.json").exists()]
    folders = [folder for folder in folders if "quantization_config" not in (folder / "config.json").read_text()]
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as processes:
        reasons = dict(zip(folders, processes.map(compute, folders, [out] * len(folders))))
    without = [(folder.name, reason) for folder, reason in reasons.items() if reason]
    for name, reason in without:
        print(f"{name}: {reason}")
    print(f"transformers computed {len(folders) - len(without)} of {len(folders)} models")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
