"""The families of models that vision.py makes: configurations, processors, and the tokens of an image."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
import transformers
import vision_files
import vision_qwen
from common import COMMON, write_json
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.pixtral.modeling_pixtral import PixtralVisionRotaryEmbedding
from transformers.models.pixtral.processing_pixtral import PixtralProcessor
from vision_files import Family, fill, settings, with_exchanged_rope, with_exchanged_table


class Mistral3(Family):
    """Pixtral's tower with 2-D RoPE, whose merged patches stand in rows."""

    cls = transformers.Mistral3ForConditionalGeneration
    placeholder = written = spelled = "[IMG]"
    pixels = ("pixel_values", "image_sizes")
    tokens = dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>")
    merges = 64
    final_norm = 0.0

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

    def beside(self, ids: torch.Tensor) -> dict:
        return dict(attention_mask=torch.ones_like(ids))

    def swapped(self, model, run) -> list[torch.Tensor]:
        """Results of `run` where rows and columns are exchanged in the tower's positions."""
        return [with_exchanged_rope(PixtralVisionRotaryEmbedding, run)]


class Gemma3(Family):
    """SigLIP's tower over pictures of one size, whose patches are averaged. An image's tokens see each other."""

    cls = transformers.Gemma3ForConditionalGeneration
    placeholder, written = "<image_soft_token>", "<start_of_image>"
    spelled = written + placeholder
    pixels = ("pixel_values",)
    tokens = dict(bos_token="<bos>", eos_token="<eos>", unk_token="<unk>", pad_token="<pad>")
    marks = dict(boi_token="<start_of_image>", eoi_token="<end_of_image>", image_token="<image_soft_token>")
    # Added to the weights of the last norm. Embeddings are small, since large ones would make the model repeat its
    # input: the logits are products with the same matrix.
    final_norm = 5.0

    def __init__(self, patch: int, side: int, count: int, text: dict, vision: dict, seed: int):
        self.seed = seed
        self.patch, self.side, self.count, self.text, self.vision = patch, side, count, text, vision
        self.tokenizer = vision_files.with_bytes(vision_files.GEMMA_SPECIALS, vision_files.GEMMA_BEHIND, 40)

    def config(self):
        begin, end, image = map(self.tokenizer.token_to_id, vision_files.GEMMA_BEHIND)
        ids = dict(pad_token_id=0, eos_token_id=1, bos_token_id=2)
        text = {**COMMON, **ids, "vocab_size": image + 5, "tie_word_embeddings": True, **self.text}
        vision = dict(model_type="siglip_vision_model", patch_size=self.patch, image_size=self.side)
        return transformers.Gemma3Config(
            text_config=text,
            vision_config={**vision, "vision_use_head": False, **self.vision},
            mm_tokens_per_image=self.count,
            boi_token_index=begin,
            eoi_token_index=end,
            image_token_index=image,
            eos_token_id=[1, self.tokenizer.token_to_id("<end_of_turn>")],
        )

    def rewrite(self, config: dict) -> None:
        pass

    def write_files(self, folder: Path) -> None:
        tokens = {**self.tokens, **self.marks, "extra_special_tokens": self.marks}
        vision_files.write_tokenizer(folder, self.tokenizer, tokens, vision_files.GEMMA)
        write_json(folder / "preprocessor_config.json", self.preprocessor())
        processor = dict(image_seq_length=self.count, processor_class="Gemma3Processor")
        write_json(folder / "processor_config.json", processor)

    def preprocessor(self) -> dict:
        return {
            "do_convert_rgb": None,
            "do_normalize": True,
            "do_pan_and_scan": None,
            "do_rescale": True,
            "do_resize": True,
            "image_mean": [0.5, 0.5, 0.5],
            "image_processor_type": "Gemma3ImageProcessor",
            "image_seq_length": self.count,
            "image_std": [0.5, 0.5, 0.5],
            "pan_and_scan_max_num_crops": None,
            "pan_and_scan_min_crop_size": None,
            "pan_and_scan_min_ratio_to_activate": None,
            "processor_class": "Gemma3Processor",
            "resample": 2,
            "rescale_factor": 1 / 255,
            "size": {"height": self.side, "width": self.side},
        }

    def load_processor(self, tokenizer):
        pil = Gemma3ImageProcessorPil(**settings(self.preprocessor()))
        return Gemma3Processor(pil, tokenizer, image_seq_length=self.count)

    def conversations(self) -> dict:
        return {name: (sent, None) for name, sent in vision_files.conversations(self.spelled).items()}

    def expand(self, prompt: str, sizes: list) -> str:
        image = "\n\n<start_of_image>" + self.count * "<image_soft_token>" + "<end_of_image>\n\n"
        return fill(prompt, "<start_of_image>", [image] * len(sizes))

    def size(self, inputs: dict) -> list[int]:
        return [self.side, self.side]

    def beside(self, ids: torch.Tensor) -> dict:
        return dict(token_type_ids=(ids == self.tokenizer.token_to_id(self.placeholder)).long())

    def swapped(self, model, run) -> list[torch.Tensor]:
        """Results of `run` where rows and columns are exchanged in the tower's positions."""
        table = model.model.vision_tower.embeddings.position_embedding.weight
        return [with_exchanged_table(table, self.side // self.patch, run)]

    def wrong(self, arguments: dict) -> dict:
        none = torch.zeros_like(arguments["token_type_ids"])
        return {"a mask that sees an image one way only": arguments | {"token_type_ids": none}}


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
    # SigLIP's heads of 72. A window is smaller than an image, whose tokens reach behind the window only forwards.
    "vision_gemma3": Gemma3(
        seed=7203,
        patch=4,
        side=32,
        count=16,
        text=dict(
            num_hidden_layers=4,
            head_dim=32,
            query_pre_attn_scalar=24,
            sliding_window=6,
            layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
            rope_parameters=dict(
                full_attention=dict(rope_type="linear", rope_theta=20000.0, factor=8.0),
                sliding_attention=dict(rope_type="default", rope_theta=500.0),
            ),
        ),
        vision=dict(hidden_size=144, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2),
    ),
    **vision_qwen.FAMILIES,
}
