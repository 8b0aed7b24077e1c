"""Qwen's families of models for vision.py: 3-D RoPE positions, and interpolated positions of the tower."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
import vision_files
from common import COMMON, write_json
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5VisionRotaryEmbedding
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeVisionRotaryEmbedding
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionRotaryEmbedding
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import Qwen3VLMoeVisionRotaryEmbedding
from vision_files import Family, fill, settings, with_exchanged_rope, with_exchanged_table


class Qwen(Family):
    """A tower with an interpolated table of positions and 2-D RoPE. Squares of patches are merged."""

    placeholder = spelled = "<|image_pad|>"
    written = "<|vision_start|><|image_pad|><|vision_end|>"
    pixels = ("pixel_values", "image_grid_thw")
    final_norm = 0.0
    patch = 4
    # Bounds of the area in pixels, which both change some of the pictures.
    area = dict(shortest_edge=800, longest_edge=2800)

    def __init__(self, kind: str, rope, seed: int, text: dict, vision: dict, rewrite=lambda c: None):
        self.cls = getattr(transformers, kind + "ForConditionalGeneration")
        self.config_class = getattr(transformers, kind + "Config")
        self.rope, self.seed, self.text, self.vision, self.rewrite = rope, seed, text, vision, rewrite
        # Published files do, and transformers reads both forms.
        self.transposes_experts = kind == "Qwen3VLMoe"
        self.tokenizer = vision_files.byte_level([], 64, vision_files.QWEN_SPECIALS, vision_files.QWEN_WORDS)

    def config(self):
        ids = {name: self.tokenizer.token_to_id(f"<|{name}|>") for name in ("endoftext", "im_end")}
        special = dict(bos_token_id=None, eos_token_id=ids["im_end"], pad_token_id=ids["endoftext"])
        text = {**COMMON, **special, "vocab_size": self.tokenizer.get_vocab_size() + 4, **self.text}
        vision = dict(patch_size=self.patch, spatial_merge_size=2, temporal_patch_size=2)
        marks = dict(image="image_pad", video="video_pad", vision_start="vision_start", vision_end="vision_end")
        return self.config_class(
            text_config=text,
            vision_config={**vision, "out_hidden_size": text["hidden_size"], **self.vision},
            tie_word_embeddings=text["tie_word_embeddings"],
            **{f"{name}_token_id": self.tokenizer.token_to_id(f"<|{mark}|>") for name, mark in marks.items()},
        )

    def write_files(self, folder: Path) -> None:
        tokens = dict(eos_token="<|im_end|>", pad_token="<|endoftext|>", bos_token=None)
        vision_files.write_tokenizer(folder, self.tokenizer, tokens, vision_files.QWEN)
        write_json(folder / "preprocessor_config.json", self.preprocessor())

    def preprocessor(self) -> dict:
        return {
            "size": self.area,
            "patch_size": self.patch,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "processor_class": "Qwen3VLProcessor",
            "image_processor_type": "Qwen2VLImageProcessorFast",
        }

    def load_processor(self, tokenizer):
        pil = Qwen2VLImageProcessorPil(**settings(self.preprocessor()))
        return Qwen3VLProcessor(pil, tokenizer, Qwen3VLVideoProcessor())

    def conversations(self) -> dict:
        cases = vision_files.conversations(self.spelled) | {"tool_result": vision_files.tool_result()}
        return {name: (sent, None) for name, sent in cases.items()}

    def expand(self, prompt: str, sizes: list) -> str:
        cell = 2 * self.patch
        counts = [width // cell * (height // cell) for width, height in sizes]
        return fill(prompt, self.placeholder, [count * self.placeholder for count in counts])

    def size(self, inputs: dict) -> list[int]:
        _, rows, columns = inputs["image_grid_thw"][0].tolist()
        return [columns * self.patch, rows * self.patch]

    def beside(self, ids: torch.Tensor) -> dict:
        return dict(mm_token_type_ids=(ids == self.tokenizer.token_to_id(self.placeholder)).int())

    def positions(self, model, arguments: dict) -> dict:
        ids, kinds = arguments["input_ids"], arguments["mm_token_type_ids"]
        grids = arguments.get("image_grid_thw")
        positions, delta = model.model.get_rope_index(ids, mm_token_type_ids=kinds, image_grid_thw=grids)
        return {"position_ids": positions[:, 0].tolist(), "rope_delta": delta[0].item()}

    def more(self, model, name: str, inputs: dict) -> dict:
        if name != "wide" or "deepstack_visual_indexes" not in self.vision:
            return {}
        with torch.no_grad():
            result = model.get_image_features(**{key: inputs[key] for key in self.pixels})
        return {"wide.deepstack": torch.stack([torch.cat(list(level)) for level in result.deepstack_features])}

    def swapped(self, model, run) -> list[torch.Tensor]:
        """Results of `run` where rows and columns are exchanged, in the tower's RoPE or in its table of positions."""
        tower = model.model.visual
        table = with_exchanged_table(tower.pos_embed.weight, tower.num_grid_per_side, run)
        return [with_exchanged_rope(self.rope, run), table]

    def wrong(self, arguments: dict) -> dict:
        plain = torch.arange(arguments["input_ids"].shape[1]).expand(3, 1, -1)
        return {"plain positions": arguments | {"position_ids": plain}}


def published_rope(config: dict) -> None:
    """Writes the RoPE's settings in transformers 4's form, as Qwen3-VL was published."""
    text = config["text_config"]
    text["rope_scaling"] = text.pop("rope_parameters")
    text["rope_theta"] = text["rope_scaling"].pop("rope_theta")


def rope(sections: list[int], **more) -> dict:
    """Settings of a RoPE whose frequencies are of the frame, the row and the column in turn."""
    return dict(rope_type="default", rope_theta=5000.0, mrope_section=sections, mrope_interleaved=True, **more)


FAMILIES = {
    # A table of 9 x 9 positions, with smaller and larger grids. Heads of 40, which is no power of two.
    "vision_qwen3_vl": Qwen(
        kind="Qwen3VL",
        rope=Qwen3VLVisionRotaryEmbedding,
        seed=7305,
        text=dict(
            head_dim=32,
            rope_parameters=rope([7, 5, 4]),
        ),
        vision=dict(
            depth=3,
            hidden_size=80,
            intermediate_size=96,
            num_heads=2,
            num_position_embeddings=81,
            deepstack_visual_indexes=[0, 2],
        ),
        rewrite=published_rope,
    ),
    # One tensor for all experts of a layer, each transposed as in published files, and a dense layer.
    "vision_qwen3_vl_moe": Qwen(
        kind="Qwen3VLMoe",
        rope=Qwen3VLMoeVisionRotaryEmbedding,
        seed=7501,
        text=dict(
            head_dim=32,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=24,
            mlp_only_layers=[1],
            rope_parameters=rope([6, 6, 4]),
        ),
        vision=dict(
            depth=2,
            hidden_size=48,
            intermediate_size=64,
            num_heads=2,
            num_position_embeddings=121,
            deepstack_visual_indexes=[0, 1],
        ),
        rewrite=published_rope,
    ),
    # A hybrid decoder, where half of a head has RoPE.
    "vision_qwen3_5": Qwen(
        kind="Qwen3_5",
        rope=Qwen3_5VisionRotaryEmbedding,
        seed=7400,
        text=dict(
            head_dim=32,
            num_hidden_layers=4,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=16,
            linear_value_head_dim=16,
            layer_types=["linear_attention", "full_attention", "linear_attention", "full_attention"],
            rope_parameters=rope([3, 3, 2], partial_rotary_factor=0.5),
        ),
        vision=dict(depth=2, hidden_size=48, intermediate_size=64, num_heads=2, num_position_embeddings=81),
    ),
    "vision_qwen3_5_moe": Qwen(
        kind="Qwen3_5Moe",
        rope=Qwen3_5MoeVisionRotaryEmbedding,
        seed=7604,
        text=dict(
            head_dim=32,
            num_hidden_layers=2,
            linear_num_key_heads=2,
            linear_num_value_heads=2,
            linear_key_head_dim=16,
            linear_value_head_dim=16,
            layer_types=["linear_attention", "full_attention"],
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=24,
            shared_expert_intermediate_size=32,
            rope_parameters=rope([4, 2, 2], partial_rotary_factor=0.5),
        ),
        vision=dict(depth=2, hidden_size=48, intermediate_size=64, num_heads=2, num_position_embeddings=121),
    ),
}
