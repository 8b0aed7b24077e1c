#!/usr/bin/env python3
"""Makes the golden checkpoints tests/golden/vision_*: tiny random models for text and images.

    .venv/bin/python scripts/goldens/vision.py

Each folder has a Hugging Face checkpoint with its tokenizer, chat template and processor, and what transformers
computes from it on the CPU in f32 (eager attention, image processors with `backend="pil"`). The pictures of all
folders are in tests/golden/vision_pictures.

cases.json:

    sampled_ids  token ids of the logits that are stored at every position
    pictures     by name:
        source, processed   [width, height] in pixels, before and after the processor
        shape               of the pixel values that the processor gives for this picture
        sha256              of these values, f32 in little-endian order
        samples             64 of them, as hexadecimal little-endian bits: elements i * length // 64
        embeddings          their number
    cases        by name:
        messages            as a client of the chat API sends them; a URL is the name of the picture's file
        rendered_messages   those for the template, where its images stand in other messages than the client's
        input_ids           token ids of the prompt, with every image expanded
        images              of each image: name, position of its first embedding, and the number of positions up to
                            its last embedding. Within them, the placeholder's positions take the embeddings in order
        greedy              32 tokens that greedy decoding appends
        position_ids        three lists, for models with 3-D RoPE positions, and
        rope_delta          the next position less the number of tokens

golden.safetensors, all in f32:

    PICTURE.embeddings [embeddings, hidden]              the projector's output for this picture alone
    wide.deepstack [levels, embeddings, hidden]          what is added behind the first decoder layers (Qwen3-VL)
    CASE.logits [positions, sampled_ids]                 at every position of the prompt
    CASE.last_logits [vocab]                             at its last position

A text that spells out a special token is text, but transformers' processor takes a placeholder there for an image. So
this script makes the ids of all prompts. It expands the images, splits the prompt at the template's special tokens, and
encodes the texts between them without recognizing any special token. Where no text has one, the ids must equal those of
the processor.

The script fails if the pictures hardly change the logits. It fails, too, if one of these errors would go unnoticed: a
tower that exchanges rows and columns, a decoder that sees an image one way only, plain positions instead of 3-D ones.

The weights come from seeded_weights.py. Two runs write the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import common
import numpy
import torch
import transformers
import vision_families
import vision_files
from safetensors.torch import load_file, save_file
from seeded_weights import seed_weights
from transformers.image_utils import load_image

PICTURES = "vision_pictures"
SAMPLES = 64
SAMPLED_LOGITS = 8
NEW_TOKENS = 32
# Stands for a placeholder that a text spells out, until the text is encoded.
SPELLED = "\ue000"
# Differences that a comparison within 1e-4 cannot miss.
CLEAR = 0.05


class Golden:
    """A checkpoint in its folder, with the expected results so far."""

    def __init__(self, folder: Path, family, pictures: dict):
        self.folder, self.family, self.pictures = folder, family, pictures
        self.model = common.read_back(family.cls, folder)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.processor = family.load_processor(self.tokenizer)
        self.placeholder = self.tokenizer.convert_tokens_to_ids(family.placeholder)
        vocab = self.model.config.get_text_config().vocab_size
        self.sampled_ids = [(2 * i + 1) * vocab // (2 * SAMPLED_LOGITS) for i in range(SAMPLED_LOGITS)]
        self.embeddings, self.leads, self.changes, self.sampled_placeholders = {}, [], [], 0
        self.tensors: dict[str, torch.Tensor] = {}

    def processed(self, text: str, names: list[str]) -> dict:
        images = [self.pictures[name] for name in names] or None
        return dict(self.processor(text=text, images=images, return_tensors="pt", add_special_tokens=False))

    def picture(self, name: str) -> dict:
        """The entry of a picture, whose embeddings become a tensor."""
        inputs = self.processed(self.family.written, [name])
        values = numpy.ascontiguousarray(inputs["pixel_values"].numpy(), dtype="<f4")
        values = values[0] if values.ndim == 4 else values
        flat = values.reshape(-1)
        embeddings = self.embed(inputs)
        for swapped in self.family.swapped(self.model, lambda: self.embed(inputs)):
            difference = (embeddings - swapped).abs().max().item()
            assert difference > CLEAR, f"{name}: exchanged rows and columns would go unnoticed, {difference}"
        self.embeddings[name] = len(embeddings)
        self.tensors[f"{name}.embeddings"] = embeddings.contiguous()
        self.tensors |= self.family.more(self.model, name, inputs)
        return {
            "source": list(self.pictures[name].size),
            "processed": self.family.size(inputs),
            "shape": list(values.shape),
            "sha256": hashlib.sha256(values.tobytes()).hexdigest(),
            "samples": flat[numpy.arange(SAMPLES) * len(flat) // SAMPLES].tobytes().hex(),
            "embeddings": len(embeddings),
        }

    def embed(self, inputs: dict) -> torch.Tensor:
        """The projector's output for all images of a prompt."""
        pixels = {key: value for key, value in inputs.items() if key in self.family.pixels}
        with torch.no_grad():
            features = self.model.get_image_features(**pixels).pooler_output
        return torch.cat(list(features))

    def case(self, name: str, messages: list, rendered_messages: list | None) -> dict:
        """The entry of a case, whose logits become tensors."""
        shown = marked(rendered_messages or messages, self.family)
        prompt = self.tokenizer.apply_chat_template(shown, tokenize=False, add_generation_prompt=True)
        names = pictures_of(messages)
        inputs = self.processed(prompt, names)
        sizes = [self.pictures_expected[one]["processed"] for one in names]
        ids = encoded(self.tokenizer, self.family.expand(prompt, sizes), self.family.spelled)
        if SPELLED not in prompt:
            assert ids == inputs["input_ids"][0].tolist(), f"{name}: other ids than the processor's"
        positions = [at for at, token in enumerate(ids) if token == self.placeholder]
        logits = self.logits(inputs, ids)
        if names:
            self.changes.append((logits[-1] - self.logits(negated(inputs), ids)[-1]).abs().max().item())
            for what, wrong in self.family.wrong(self.family.whole(inputs, torch.tensor([ids]))).items():
                with torch.no_grad():
                    difference = (self.model(**wrong).logits[0] - logits).abs().max().item()
                assert difference > CLEAR, f"{name}: {what} would go unnoticed, difference {difference}"
        self.tensors[f"{name}.logits"] = logits[:, self.sampled_ids].contiguous()
        self.tensors[f"{name}.last_logits"] = logits[-1].clone()
        entry = {"messages": messages}
        entry |= {"rendered_messages": rendered_messages} if rendered_messages else {}
        entry |= {"input_ids": ids, "images": self.runs(names, positions), "greedy": self.decode(inputs, ids)}
        return entry | self.family.positions(self.model, self.family.whole(inputs, torch.tensor([ids])))

    def runs(self, names: list[str], positions: list[int]) -> list:
        """Name, start and length of each image."""
        found, at = [], 0
        for name in names:
            first, last = positions[at], positions[at + self.embeddings[name] - 1]
            found.append([name, first, last + 1 - first])
            at += self.embeddings[name]
        assert at == len(positions), "a placeholder without an embedding"
        return found

    def logits(self, inputs: dict, ids: list[int]) -> torch.Tensor:
        """Logits at the positions of a prompt, and further tokens."""
        with torch.no_grad():
            return self.model(**self.family.whole(inputs, torch.tensor([ids]))).logits[0]

    def decode(self, inputs: dict, ids: list[int]) -> list[int]:
        """The tokens that greedy decoding appends. A cache is used, because a sampled placeholder is text. In a
        prompt, the model would take it for a part of an image.
        """
        self.model.model.rope_deltas = None  # which Qwen's models keep from the prompt before
        with torch.no_grad():
            result = self.model(**self.family.whole(inputs, torch.tensor([ids])), use_cache=True)
            drawn = []
            for _ in range(NEW_TOKENS):
                last = result.logits[0, -1]
                self.leads.append(common.lead(last))
                drawn.append(last.argmax().item())
                result = self.model(torch.tensor([drawn[-1:]]), past_key_values=result.past_key_values, use_cache=True)
        if self.placeholder in drawn:
            self.sampled_placeholders += 1
        else:
            error = (self.logits(inputs, ids + drawn)[-1] - result.logits[0, -1]).abs().max().item()
            assert error < 1e-4, f"decoding with a cache differs by {error}"
        return drawn

    def write(self) -> None:
        self.pictures_expected = {name: self.picture(name) for name in self.pictures}
        cases = {}
        for name, (messages, rendered) in self.family.conversations().items():
            cases[name] = self.case(name, messages, rendered)
        first = [self.tensors[f"image_first{other}.last_logits"] for other in ("", "_other")]
        self.changes.append((first[0] - first[1]).abs().max().item())
        assert min(self.changes) > CLEAR, f"pictures hardly change the logits: {self.changes}"
        parts = {"sampled_ids": self.sampled_ids, "pictures": self.pictures_expected, "cases": cases}
        (self.folder / "cases.json").write_text(lines(parts), encoding="utf-8")
        tokens = {token for case in cases.values() for token in case["greedy"]}
        lead, change = min(self.leads), min(self.changes)
        summary = f"smallest lead {lead:.4f}, change by pictures {change:.2f}, {len(tokens)} different greedy tokens"
        summary += f", {self.sampled_placeholders} cases with a placeholder among them"
        common.save(self.folder, self.tensors, summary)


def marked(messages: list, family) -> list:
    """The messages for the template, where spelled placeholders and images have the template's form."""
    whole = json.loads(json.dumps(messages).replace(json.dumps(family.spelled)[1:-1], json.dumps(SPELLED)[1:-1]))
    for message in whole:
        for part in message["content"] if isinstance(message["content"], list) else []:
            if part["type"] == "image_url":
                part.clear()
                part["type"] = "image"
    return whole


def pictures_of(messages: list) -> list[str]:
    return re.findall(r'"url": "(\w+)\.png"', json.dumps(messages))


def encoded(tokenizer, prompt: str, spelled: str) -> list[int]:
    """Token ids of a prompt whose special tokens come from the template, and whose texts have none."""
    whole = tokenizer.backend_tokenizer
    special = {token.content: at for at, token in whole.get_added_tokens_decoder().items()}
    ids = []
    whole.encode_special_tokens = True
    for part in re.split("(" + "|".join(map(re.escape, special)) + ")", prompt):
        text = part.replace(SPELLED, spelled)
        ids += [special[part]] if part in special else whole.encode(text, add_special_tokens=False).ids
    whole.encode_special_tokens = False
    return ids


def negated(inputs: dict) -> dict:
    """The inputs with other pictures of the same sizes."""
    return inputs | {"pixel_values": -inputs["pixel_values"]}


def lines(parts: dict) -> str:
    """JSON with a line for each picture and each part of a case."""
    compact = lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    entries = lambda group: ",\n".join(f"{compact(key)}:{compact(value)}" for key, value in group.items())
    cases = ",\n".join(f"{compact(key)}:{{\n{entries(case)}\n}}" for key, case in parts["cases"].items())
    sampled, pictures = compact(parts["sampled_ids"]), entries(parts["pictures"])
    return f'{{"sampled_ids":{sampled},\n"pictures":{{\n{pictures}\n}},\n"cases":{{\n{cases}\n}}}}\n'


def randomise_tower(model: torch.nn.Module, seed: int, final_norm: float) -> None:
    """Fills the weights of the tower and the projector, such that embeddings differ as much as those of tokens.
    `final_norm` is added to the weights of the decoder's last norm, which makes logits differ more.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        if name.endswith("language_model.norm.weight"):
            parameter.data.add_(final_norm)
        if "language_model" in name or "lm_head" in name:
            continue
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1:
            from_zero = "mm_soft_emb_norm" in name
            value = 0.2 * noise + (1.0 if "norm" in name and name.endswith("weight") and not from_zero else 0.0)
        elif "position_embedding" in name or "pos_embed" in name:
            value = 0.7 * noise
        else:
            fan_in = parameter.shape[0] if "mm_input_projection" in name else parameter[0].numel()
            value = noise * 1.5 * fan_in**-0.5
        parameter.data.copy_(value)


def transpose_experts(weights: Path) -> None:
    """Stores the matrices of experts as published files do. transformers transposes them where their shape says so."""
    transposed = lambda name, tensor: tensor.transpose(1, 2).contiguous() if ".experts." in name else tensor
    tensors = {name: transposed(name, tensor) for name, tensor in load_file(weights).items()}
    save_file(tensors, weights, metadata={"format": "pt"})


def make(name: str, family, seed: int, out: Path, pictures: dict) -> None:
    folder = common.empty(out / name)
    config = family.config()
    config._attn_implementation = "eager"
    model = family.cls(config).to(torch.float32).eval()
    common.randomise(model, seed)
    randomise_tower(model, seed + 1, family.final_norm)
    model.save_pretrained(folder)
    if getattr(family, "transposes_experts", False):
        transpose_experts(folder / "model.safetensors")
    common.rewrite_json(folder / "config.json", family.rewrite)
    seed_weights(folder, seed)
    common.forget_version(folder)
    family.write_files(folder)
    Golden(folder, family, pictures).write()


def main() -> None:
    args = common.arguments(__doc__).parse_args()
    folder = common.empty(args.out / PICTURES)
    pictures = {}
    for name in vision_files.PICTURES:
        path = folder / f"{name}.png"
        path.write_bytes(vision_files.picture(name))
        pictures[name] = load_image(str(path))
    for name, family, seed in common.wanted(vision_families.FAMILIES, args.only, 7000):
        make(name, family, getattr(family, "seed", seed), args.out, pictures)


if __name__ == "__main__":
    main()
