"""Pictures, tokenizers, chat templates and conversations of the checkpoints that vision.py makes, and the base of their
families.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy
from common import ROOT, write_json
from media_files import png
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

FIXTURES = ROOT / "crates" / "tokenizer" / "tests" / "data"
# Name, with width and height. `square` and `other` differ in their pixels only.
PICTURES = {
    "square": (32, 32),
    "other": (32, 32),
    "wide": (53, 20),
    "tall": (17, 44),
    "odd": (31, 23),
    "alpha": (26, 38),
    "large": (120, 70),
}


def picture(name: str) -> bytes:
    """A PNG with a disc and stripes over a gradient; `alpha` has transparent pixels with colours of their own."""
    width, height = PICTURES[name]
    turn = list(PICTURES).index(name)
    y, x = numpy.mgrid[0:height, 0:width]
    across, down = x * 8 // width, y * 8 // height
    pixels = numpy.stack([across * 32, down * 32, (across + down) * 16], axis=-1)
    disc = (4 * x - (turn % 3 + 1) * width) ** 2 + (4 * y - (3 - turn % 3) * height) ** 2 < (1.2 * min(width, height)) ** 2
    stripes = ((x + y * (turn % 2)) // 3 % 3 == 0) & (x * 2 > width)
    pixels[stripes] = [(40 * turn) % 256, 250 - 30 * turn, 200]
    pixels[disc] = [230, (70 * turn) % 256, 30]
    if name == "alpha":
        alpha = numpy.where(disc, 255, across * 20)[..., None]
        return png(numpy.concatenate([pixels, alpha], axis=-1), 8, 6)
    return png(pixels, 8, 2)


def byte_level(first: list[str], merges: int, last: list[str] = (), words: list[str] = ()) -> Tokenizer:
    """The fixture `byte_level` with its first merges only, between special tokens with the lowest ids and others with
    the highest ids. Behind them are `words`, added tokens that are not special.
    """
    whole = json.loads((FIXTURES / "byte_level.tokenizer.json").read_text())
    order = sorted(whole["model"]["vocab"], key=whole["model"]["vocab"].get)
    pairs = [tuple(pair) for pair in whole["model"]["merges"][:merges]]
    letters = [token for token in order if len(token) == 1]
    joined = ["".join(pair) for pair in pairs]
    vocabulary = {token: at for at, token in enumerate(first + letters + joined)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=True))
    split = whole["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in [*first, *last]])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in words])
    return tokenizer


def settings(preprocessor: dict) -> dict:
    """The arguments of an image processor's class."""
    return {key: value for key, value in preprocessor.items() if not key.endswith(("_type", "_class"))}


def fill(prompt: str, mark: str, images: list[str]) -> str:
    """The prompt with an image's tokens in place of each mark."""
    parts = prompt.split(mark)
    assert len(parts) == len(images) + 1
    return parts[0] + "".join(image + part for image, part in zip(images, parts[1:]))


def write_tokenizer(folder: Path, tokenizer: Tokenizer, config: dict, template: str) -> None:
    """tokenizer.json and tokenizer_config.json."""
    compact = json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":"))
    (folder / "tokenizer.json").write_text(compact + "\n", encoding="utf-8")
    config = {**config, "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
    write_json(folder / "tokenizer_config.json", config)


# The ids of Mistral's special tokens, which have the published order.
MISTRAL_SPECIALS = [
    *["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"],
    *["[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]"],
    *["[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"],
]

MISTRAL = """\
{%- macro parts(content) %}
    {%- if content is string %}{{- content }}{%- else %}
        {%- for part in content %}
            {%- if part.type == "text" %}{{- part.text }}
            {%- elif part.type in ["image", "image_url"] %}{{- "[IMG]" }}
            {%- else %}{{- raise_exception("A part of a message is a text or an image.") }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- set users = messages | selectattr("role", "equalto", "user") | list %}
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == "system" %}
        {{- "[SYSTEM_PROMPT]" + parts(message.content) + "[/SYSTEM_PROMPT]" }}
    {%- elif message.role == "user" %}
        {%- if tools and message == users[-1] %}
            {{- "[AVAILABLE_TOOLS]" + (tools | tojson) + "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {{- "[INST]" + parts(message.content) + "[/INST]" }}
    {%- elif message.role == "assistant" %}
        {%- if message.content %}{{- parts(message.content) }}{%- endif %}
        {%- if message.tool_calls %}
            {{- "[TOOL_CALLS][" }}
            {%- for call in message.tool_calls %}
                {{- '{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) }}
                {{- ', "id": "' + call.id + '"}' }}
                {%- if not loop.last %}{{- ", " }}{%- endif %}
            {%- endfor %}
            {{- "]" }}
        {%- endif %}
        {{- eos_token }}
    {%- elif message.role == "tool" %}
        {{- '[TOOL_RESULTS]{"content": ' + (message.content | tojson) + ', "call_id": "' + message.tool_call_id + '"}' }}
        {{- "[/TOOL_RESULTS]" }}
    {%- else %}
        {{- raise_exception("A message is of the system, a user, an assistant or a tool.") }}
    {%- endif %}
{%- endfor %}
"""


def text(words: str) -> dict:
    return {"type": "text", "text": words}


def image(name: str) -> dict:
    return {"type": "image_url", "image_url": {"url": f"{name}.png"}}


def user(*parts) -> dict:
    """A user's message of texts and parts."""
    return {"role": "user", "content": [text(part) if isinstance(part, str) else part for part in parts]}


CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "call00001", "type": "function", "function": {"name": "look", "arguments": {"at": "it"}}}
    ],
}


def conversations(placeholder: str) -> dict[str, list[dict]]:
    """Messages as a client of the chat API sends them, by the case's name. `placeholder` is spelled out in texts."""
    return {
        "text_only": [{"role": "user", "content": "What is the capital of France?"}],
        "image_first": [user(image("square"), "What is it?")],
        # The same text with other pixels of the same size.
        "image_first_other": [user(image("other"), "What is it?")],
        "image_middle": [user("Is the", image("wide"), "of ice?")],
        "image_last": [user("Tell me of the ", image("tall"))],
        "large_image": [user(image("large"), "What is it?")],
        "three_images": [user(image("wide"), "or", image("tall"), " or ", image("odd"), "\nIs it one?")],
        "adjacent_images": [user(image("odd"), image("tall"), "Is it one?")],
        "earlier_turn": [
            {"role": "system", "content": "See the cat."},
            user(image("alpha"), "What is it?"),
            {"role": "assistant", "content": "It is the cat."},
            {"role": "user", "content": "And then?"},
        ],
        "same_twice": [user(image("square"), "and", image("square"), "are the same.")],
        "spelled": [{"role": "user", "content": f"What is {placeholder} in the text?"}],
        "spelled_beside": [user(f"{placeholder} is ", image("odd"), f" and{placeholder}{placeholder}")],
    }


def tool_result() -> list[dict]:
    """A picture in a tool's result."""
    return [
        user("See it."),
        CALL,
        {"role": "tool", "tool_call_id": "call00001", "content": [text("Seen: "), image("odd")]},
    ]


def with_bytes(specials: list[str], behind: list[str], merges: int) -> Tokenizer:
    """SentencePiece's BPE with byte fallback as in Gemma: no space before the text, and tokens of several line breaks.
    Special tokens `specials` come first; those of `behind` come last, and the last one is not in the model's vocabulary.
    """
    whole = json.loads((FIXTURES / "byte_fallback.tokenizer.json").read_text())
    letters = ["▁" if letter == " " else letter for letter in map(chr, range(32, 127))]
    vocabulary = [*specials, "\n", "\n\n", "\n\n\n", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    pairs = [("\n", "\n"), ("\n\n", "\n"), ("\n", "\n\n")]
    for pair in map(tuple, whole["model"]["merges"]):
        if len(pairs) < merges and set(pair) <= set(vocabulary) and "".join(pair) not in vocabulary:
            pairs.append(pair)
            vocabulary.append("".join(pair))
    vocabulary += behind[:-1]
    ids = {token: at for at, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=pairs, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    marks = [AddedToken(token, special=True, normalized=False) for token in specials + behind]
    tokenizer.add_special_tokens(marks)
    return tokenizer


GEMMA_SPECIALS = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
GEMMA_BEHIND = ["<start_of_image>", "<end_of_image>", "<image_soft_token>"]

GEMMA = """\
{{- bos_token }}
{%- set ns = namespace(before="") %}
{%- if messages[0].role == "system" %}
    {%- set system = messages[0].content %}
    {%- set ns.before = (system if system is string else system[0].text) + "\\n\\n" %}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
    {%- if message.role not in ["user", "assistant"] or (message.role == "user") != (loop.index0 % 2 == 0) %}
        {{- raise_exception("A user and an assistant take turns.") }}
    {%- endif %}
    {{- "<start_of_turn>" + ("model" if message.role == "assistant" else "user") + "\\n" + ns.before }}
    {%- set ns.before = "" %}
    {%- if message.content is string %}
        {{- message.content | trim }}
    {%- else %}
        {%- for part in message.content %}
            {%- if part.type == "image" %}
                {{- "<start_of_image>" }}
            {%- elif part.type == "text" %}
                {{- part.text | trim }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- "<end_of_turn>\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<start_of_turn>model\\n" }}{%- endif %}
"""


# Special tokens, and added tokens that are not special. They have the highest ids.
QWEN_SPECIALS = [
    *["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"],
    *["<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"],
]
QWEN_WORDS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]

QWEN = """\
{%- macro parts(content) %}
    {%- if content is string %}{{- content }}{%- else %}
        {%- for part in content %}
            {%- if part.type in ["image", "image_url"] %}
                {{- "<|vision_start|><|image_pad|><|vision_end|>" }}
            {%- elif "text" in part %}
                {{- part.text }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- if tools %}
    {{- "<|im_start|>system\\n" }}
    {%- if messages[0].role == "system" %}{{- parts(messages[0].content) + "\\n\\n" }}{%- endif %}
    {{- "Call these in <tool_call></tool_call> as JSON with name and arguments:" }}
    {%- for tool in tools %}{{- "\\n" + (tool | tojson) }}{%- endfor %}
    {{- "<|im_end|>\\n" }}
{%- elif messages[0].role == "system" %}
    {{- "<|im_start|>system\\n" + parts(messages[0].content) + "<|im_end|>\\n" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "user" %}
        {{- "<|im_start|>user\\n" + parts(message.content) + "<|im_end|>\\n" }}
    {%- elif message.role == "assistant" %}
        {{- "<|im_start|>assistant\\n" }}
        {%- if message.content %}{{- parts(message.content) }}{%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if not loop.first or message.content %}{{- "\\n" }}{%- endif %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + "}\\n</tool_call>" }}
        {%- endfor %}
        {{- "<|im_end|>\\n" }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or messages[loop.index0 - 1].role != "tool" %}{{- "<|im_start|>user" }}{%- endif %}
        {{- "\\n<tool_response>\\n" + parts(message.content) + "\\n</tool_response>" }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- "<|im_end|>\\n" }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|im_start|>assistant\\n" }}{%- endif %}
"""


class Family:
    """Defaults of a family of models."""

    def whole(self, inputs: dict, ids) -> dict:
        """The model's arguments for these token ids."""
        pixels = {key: inputs[key] for key in self.pixels if key in inputs}
        return dict(input_ids=ids, **self.beside(ids), **pixels)

    def positions(self, model, arguments: dict) -> dict:
        """Entries of a case about the positions of its tokens."""
        return {}

    def more(self, model, name: str, inputs: dict) -> dict:
        """Further tensors of a picture."""
        return {}

    def wrong(self, arguments: dict) -> dict:
        """Arguments with an error that the results must show."""
        return {}


def with_exchanged_rope(rope, run):
    """The result of `run` where this class of RoPE exchanges rows and columns."""
    forward = rope.forward
    rope.forward = lambda own, x, at: forward(own, x, at.flip(-1))
    try:
        return run()
    finally:
        rope.forward = forward


def with_exchanged_table(table, side: int, run):
    """The result of `run` where this table of `side * side` positions exchanges rows and columns."""
    kept = table.data
    table.data = kept.view(side, side, -1).transpose(0, 1).reshape(kept.shape)
    result = run()
    table.data = kept
    return result
