"""The families of models that vision.py makes: configurations, processors, and the tokens of an image."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import torch
import transformers
import vision_files
from common import COMMON
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.pixtral.modeling_pixtral import PixtralVisionRotaryEmbedding
from transformers.models.pixtral.processing_pixtral import PixtralProcessor


def settings(preprocessor: dict) -> dict:
    """The arguments of an image processor's class."""
    return {key: value for key, value in preprocessor.items() if not key.endswith(("_type", "_class"))}


def write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def fill(prompt: str, mark: str, images: list[str]) -> str:
    """The prompt with an image's tokens in place of each mark."""
    parts = prompt.split(mark)
    assert len(parts) == len(images) + 1
    return parts[0] + "".join(image + part for image, part in zip(images, parts[1:]))


class Mistral3:
    """Pixtral's tower with 2-D RoPE, whose merged patches stand in rows."""

    cls = transformers.Mistral3ForConditionalGeneration
    placeholder = written = spelled = "[IMG]"
    pixels = ("pixel_values", "image_sizes")
    tokens = dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>")
    merges = 64

    def __init__(self, patch: int, longest_edge: int, text: dict, vision: dict, whole: dict, rewrite=lambda c: None):
        self.patch, self.longest_edge, self.rewrite = patch, longest_edge, rewrite
        self.text, self.vision, self.outer = text, vision, whole

    def config(self):
        vocab = len(vision_files.MISTRAL_SPECIALS) + 256 + self.merges
        text = {**COMMON, "vocab_size": vocab, "pad_token_id": 11, **self.text}
        vision = dict(model_type="pixtral", patch_size=self.patch, image_size=self.longest_edge, **self.vision)
        return transformers.Mistral3Config(
            text_config=text, vision_config=vision, image_token_index=10, tie_word_embeddings=False, **self.outer
        )

    def write_files(self, folder: Path) -> None:
        tokenizer = vision_files.byte_level(vision_files.MISTRAL_SPECIALS, self.merges)
        vision_files.write_tokenizer(folder, tokenizer, self.tokens, vision_files.MISTRAL)
        write_json(folder / "preprocessor_config.json", self.preprocessor())
        processor = dict(image_break_token="[IMG_BREAK]", image_end_token="[IMG_END]", image_token="[IMG]")
        processor |= dict(patch_size=self.patch, processor_class="PixtralProcessor", spatial_merge_size=2)
        write_json(folder / "processor_config.json", processor)

    def preprocessor(self) -> dict:
        return {
            "do_convert_rgb": True,
            "do_normalize": True,
            "do_rescale": True,
            "do_resize": True,
            "image_mean": [0.48145466, 0.4578275, 0.40821073],
            "image_processor_type": "PixtralImageProcessorFast",
            "image_std": [0.26862954, 0.26130258, 0.27577711],
            "patch_size": {"height": self.patch, "width": self.patch},
            "processor_class": "PixtralProcessor",
            "resample": 3,
            "rescale_factor": 1 / 255,
            "size": {"longest_edge": self.longest_edge},
        }

    def load_processor(self, tokenizer):
        pil = PixtralImageProcessorPil(**settings(self.preprocessor()))
        return PixtralProcessor(pil, tokenizer, patch_size=self.patch, spatial_merge_size=2)

    def conversations(self) -> dict:
        cases = {name: (sent, None) for name, sent in vision_files.conversations(self.spelled).items()}
        # The template takes no image in a tool's result, so the image follows in a user's turn.
        sent = vision_files.tool_result()
        *earlier, result = copy.deepcopy(sent)
        words, shown = result["content"]
        result["content"] = words["text"]
        return cases | {"tool_result": (sent, [*earlier, result, {"role": "user", "content": [shown]}])}

    def expand(self, prompt: str, sizes: list) -> str:
        cell = 2 * self.patch
        rows = lambda width, height: [width // cell * "[IMG]"] * (height // cell)
        return fill(prompt, "[IMG]", ["[IMG_BREAK]".join(rows(*size)) + "[IMG_END]" for size in sizes])

    def size(self, inputs: dict) -> list[int]:
        height, width = inputs["image_sizes"][0].tolist()
        return [width, height]

    def whole(self, inputs: dict, ids: torch.Tensor) -> dict:
        """The model's arguments for these token ids."""
        pixels = {key: inputs[key] for key in self.pixels if key in inputs}
        return dict(input_ids=ids, attention_mask=torch.ones_like(ids), **pixels)

    def positions(self, model, inputs: dict) -> dict:
        return {}

    def swapped(self, model, run) -> torch.Tensor:
        """The result of `run` where rows and columns are exchanged in the tower's positions."""
        forward = PixtralVisionRotaryEmbedding.forward
        PixtralVisionRotaryEmbedding.forward = lambda rope, x, at: forward(rope, x, at.flip(-1))
        try:
            return run()
        finally:
            PixtralVisionRotaryEmbedding.forward = forward


FAMILIES = {
    # Heads of 24, which is no power of two.
    "vision_mistral3": Mistral3(
        patch=4,
        longest_edge=48,
        text=dict(
            model_type="mistral",
            head_dim=24,
            sliding_window=None,
            rope_parameters=dict(rope_type="default", rope_theta=5000.0),
        ),
        vision=dict(
            hidden_size=48,
            intermediate_size=72,
            num_hidden_layers=3,
            num_attention_heads=2,
            rope_parameters=dict(rope_type="axial", rope_theta=100.0),
        ),
        whole=dict(),
    ),
    # Ministral 3's decoder, with the settings that Mistral Small has not. The RoPE's base is in transformers 4's form.
    "vision_ministral3": Mistral3(
        patch=6,
        longest_edge=60,
        text=dict(
            model_type="ministral3",
            head_dim=16,
            num_hidden_layers=2,
            rope_parameters=dict(
                rope_type="yarn",
                rope_theta=100.0,
                factor=4.0,
                original_max_position_embeddings=16,
                beta_fast=2.0,
                beta_slow=0.5,
                mscale=1.0,
                mscale_all_dim=1.0,
                llama_4_scaling_beta=0.5,
            ),
        ),
        vision=dict(
            hidden_size=64,
            intermediate_size=40,
            num_hidden_layers=2,
            num_attention_heads=4,
            hidden_act="silu",
            rope_parameters=dict(rope_type="axial", rope_theta=50.0),
        ),
        whole=dict(multimodal_projector_bias=True, projector_hidden_act="gelu"),
        rewrite=lambda c: c["vision_config"].update(rope_theta=c["vision_config"].pop("rope_parameters")["rope_theta"]),
    ),
}
