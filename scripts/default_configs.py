"""Writes the default configuration of transformers for every architecture that the server knows.

    python scripts/default_configs.py crates/checkpoint/src/unread/default_configs.json

The defaults are those of each family's first published model, with all keys that transformers 5 writes. A test of the crate
`checkpoint` reads them. It fails if a key is unknown. The packages are those of scripts/goldens/requirements.txt.
"""

import json
import re
import sys
from pathlib import Path

import transformers

ROOT = Path(__file__).resolve().parent.parent


def classes():
    """The names of all classes that the server supports, from the table of models."""
    text = (ROOT / "docs/models.md").read_text()
    return list(dict.fromkeys(re.findall(r"`(\w+(?:ForCausalLM|ForConditionalGeneration|LMHeadModel|Model|ForSequenceClassification))`", text)))


def defaults(name):
    """The configuration of a class, as JSON has it; None if transformers does not have the class."""
    model = getattr(transformers, name, None)
    if model is None or getattr(model, "config_class", None) is None:
        return None
    # Infinity is no JSON. A text of this name stands for it.
    text = json.dumps(model.config_class().to_dict(), default=str)
    config = json.loads(re.sub(r"(?<![\w\"])Infinity", '"Infinity"', text))
    config["architectures"] = [name]
    return config


def main():
    found = {name: defaults(name) for name in classes()}
    missing = [name for name, config in found.items() if config is None]
    found = {name: config for name, config in found.items() if config is not None}
    # A value of a key that several architectures have is written once; an architecture is a list of such pairs by their places.
    pairs, places = [], {}

    def place(key, value):
        pair = json.dumps([key, value], separators=(",", ":"))
        if pair not in places:
            places[pair] = len(pairs)
            pairs.append(pair)
        return places[pair]

    def packed(config):
        parts = {key: packed(value) for key, value in config.items() if isinstance(value, dict) and key.endswith("_config")}
        own = [place(key, value) for key, value in config.items() if key not in parts]
        return [own, parts] if parts else own

    # `architectures` is the name itself.
    packed_configs = {name: packed({key: value for key, value in config.items() if key != "architectures"}) for name, config in found.items()}
    lines = [f"{json.dumps(name)}:{json.dumps(places, separators=(',', ':'))}" for name, places in packed_configs.items()]
    head = json.dumps({"transformers": transformers.__version__, "missing": missing}, separators=(",", ":"))
    text = head[:-1] + ',"pairs":[\n' + ",\n".join(pairs) + '\n],"architectures":{\n' + ",\n".join(lines) + "\n}}\n"
    json.loads(text)
    Path(sys.argv[1]).write_text(text)
    print(f"{len(found)} architectures, {len(text)} bytes; not in transformers: {missing}")


if __name__ == "__main__":
    main()
