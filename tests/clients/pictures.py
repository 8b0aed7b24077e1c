"""The golden model that takes images: its pictures, and the answers that transformers gives to a prompt with them."""

import base64
import json
from pathlib import Path

GOLDENS = Path(__file__).resolve().parent.parent / "golden"
CASES = json.loads((GOLDENS / "vision_mistral3/cases.json").read_text(encoding="utf-8"))["cases"]


def path(name):
    """The file of a picture."""
    return (GOLDENS / "vision_pictures" / name).with_suffix(".png")


def encoded(name):
    """A picture in base64."""
    return base64.b64encode(path(name).read_bytes()).decode()


def url(name):
    """A picture as a data URL."""
    return f"data:image/png;base64,{encoded(name)}"


def messages(name, image, text=lambda text: {"type": "text", "text": text}):
    """The messages of a golden. `image` makes a part of a picture's name, and `text` one of a text."""
    part = lambda part: image(part["image_url"]["url"]) if part["type"] == "image_url" else text(part["text"])
    return [
        {**message, "content": content if isinstance(content, str) else [part(found) for found in content]}
        for message in CASES[name]["messages"]
        for content in (message["content"],)
    ]
