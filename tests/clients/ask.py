"""The official Python client asks a model for a completion and a chat.

    python ask.py URL MODEL
"""

import sys

from openai import OpenAI

url, model = sys.argv[1:]
client = OpenAI(base_url=f"{url}/v1", api_key="unused")
assert [found.id for found in client.models.list()] == [model]
completion = client.completions.create(model=model, prompt="to be", max_tokens=3)
assert completion.usage.completion_tokens <= 3 and completion.model == model, completion
messages = [{"role": "user", "content": "go on"}]
chunks = client.chat.completions.create(model=model, messages=messages, max_tokens=3, stream=True)
finish_reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
assert finish_reasons[-1] in {"length", "stop"}, finish_reasons
