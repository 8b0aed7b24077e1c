"""The tower of `crates/models/benches/tower.rs` with transformers: seconds of a run over a picture of 896 x 896 pixels.

    OMP_NUM_THREADS=2 python scripts/bench_tower.py

It needs torch and transformers. Both programs print multiply-adds a second of the same work, so that they can be run in turns.
"""

import statistics
import time

import torch
from transformers import SiglipVisionConfig, SiglipVisionModel

LAYERS = 4
SIDE = 896
ROUNDS = 7


def main() -> None:
    config = SiglipVisionConfig(
        hidden_size=1152,
        intermediate_size=4304,
        num_hidden_layers=LAYERS,
        num_attention_heads=16,
        image_size=SIDE,
        patch_size=14,
        vision_use_head=False,
    )
    torch.manual_seed(0)
    model = SiglipVisionModel(config).to(torch.bfloat16).eval()
    pixels = torch.randn(1, 3, SIDE, SIDE, dtype=torch.bfloat16)
    patches = (SIDE // 14) ** 2
    layer = 4 * 1152 * 1152 + 2 * 1152 * 4304 + 2 * patches * 1152
    work = patches * (LAYERS * layer + 3 * 14 * 14 * 1152)
    seconds = []
    with torch.inference_mode():
        model(pixels)
        for _ in range(ROUNDS):
            began = time.perf_counter()
            model(pixels)
            seconds.append(time.perf_counter() - began)
            print(f"transformers {seconds[-1]:.3f} s, {work / seconds[-1] / 1e9:.1f} GMAC/s", flush=True)
    median = statistics.median(seconds)
    print(f"median {median:.3f} s, {work / median / 1e9:.1f} GMAC/s")


if __name__ == "__main__":
    main()
