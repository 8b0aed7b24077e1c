"""Cases for the command-line program `llm`: `llm_client.py CASE URL` fails if the case does."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pictures
from openai import OpenAI

URL = ""
MODELS = """
- model_id: golden
  model_name: demo
  api_base: {url}/v1
  vision: true
"""


def ask(settings, *arguments):
    """The answer of the program, and the number of tokens of the prompt."""
    command = [sys.executable, "-m", "llm", "-m", "golden", "-u", "-o", "temperature", "0", "-o", "max_tokens", "32", *arguments]
    # The environment of the tests has a package that is a plugin of the program, without what the plugin needs.
    own = {"LLM_USER_PATH": settings, "LLM_LOAD_PLUGINS": "", "OPENAI_API_KEY": "unused"}
    environment = {**os.environ, **own}
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    used = re.search(rb"Token usage: (\d+) input", done.stderr)
    # The program ends an answer by a newline.
    return done.stdout.decode().removesuffix("\n"), int(used[1])


def images():
    """A picture in a streamed answer, two in a whole one, and a further question about these."""
    prompt = pictures.CASES["image_last"]["messages"][0]["content"][0]["text"]
    image = lambda name: {"type": "image_url", "image_url": {"url": pictures.url(name)}}
    user = lambda *content: {"role": "user", "content": [*content]}
    client = OpenAI(base_url=f"{URL}/v1", api_key="unused", max_retries=0)
    create = lambda messages: client.chat.completions.create(model="demo", messages=messages, temperature=0, max_tokens=32)
    with tempfile.TemporaryDirectory() as settings:
        Path(settings, "extra-openai-models.yaml").write_text(MODELS.format(url=URL), encoding="utf-8")
        for names, flags in ((["tall"], []), (["tall", "odd"], ["--no-stream"])):
            attached = [argument for name in names for argument in ("-a", str(pictures.path(name)))]
            answer, tokens = ask(settings, *flags, *attached, prompt)
            turn = user({"type": "text", "text": prompt}, *map(image, names))
            expected = create([turn])
            assert (answer, tokens) == (expected.choices[0].message.content, expected.usage.prompt_tokens), names
            if names == ["tall"]:
                assert tokens == len(pictures.CASES["image_last"]["input_ids"]), tokens
        _, tokens = ask(settings, "-c", "And then?")
        earlier = {"role": "assistant", "content": answer}
        again = create([turn, earlier, {"role": "user", "content": "And then?"}])
        assert tokens == again.usage.prompt_tokens, (tokens, again.usage)


if __name__ == "__main__":
    case, URL = sys.argv[1:]
    globals()[case]()
