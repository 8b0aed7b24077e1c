"""Cases for the official `openai` Python client: `embeddings_client.py CASE URL REFERENCE` fails if the case does."""

import base64
import json
import math
import struct
import sys

import openai
from openai import OpenAI

MODEL = "all-minilm"
URL = ""
REFERENCE = []


def client():
    return OpenAI(base_url=f"{URL}/v1", api_key="unused", max_retries=0)


def unpack(text):
    data = base64.b64decode(text)
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def texts():
    return [row["text"] for row in REFERENCE]


def sentence_transformers():
    """50 texts in one batch, compared with the embeddings of sentence-transformers."""
    answer = client().embeddings.create(model=MODEL, input=texts())
    assert answer.object == "list" and answer.model == MODEL
    assert answer.usage.prompt_tokens == sum(row["tokens"] for row in REFERENCE)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens
    assert [entry.index for entry in answer.data] == list(range(50))
    cosines = [cosine(entry.embedding, unpack(row["vector"])) for entry, row in zip(answer.data, REFERENCE, strict=True)]
    print(f"smallest cosine {min(cosines):.8f}")
    assert min(cosines) > 0.9999, min(cosines)
    for entry in answer.data:
        assert entry.object == "embedding"
        assert abs(math.hypot(*entry.embedding) - 1) < 1e-5


def base64_equals_float():
    numbers = client().embeddings.create(model=MODEL, input=texts(), encoding_format="float")
    coded = client().embeddings.create(model=MODEL, input=texts(), encoding_format="base64")
    for number, code in zip(numbers.data, coded.data, strict=True):
        assert isinstance(code.embedding, str)
        # Each number is written so that parsing it gives the same float32.
        singles = [struct.unpack("<f", struct.pack("<f", x))[0] for x in number.embedding]
        assert unpack(code.embedding) == singles


def a_thousand_texts():
    # Their number is tested, not their length, which took this case minutes on two busy cores.
    many = [f"{text[:100]} {i}" for i in range(20) for text in texts()]
    answer = client().embeddings.create(model=MODEL, input=many)
    assert [entry.index for entry in answer.data] == list(range(1000))
    for i in [0, 1, 499, 999]:
        alone = client().embeddings.create(model=MODEL, input=many[i]).data[0].embedding
        assert cosine(alone, answer.data[i].embedding) > 0.999999, i


def token_ids():
    by_text = client().embeddings.create(model=MODEL, input="a cat").data[0].embedding
    by_ids = client().embeddings.create(model=MODEL, input=[101, 1037, 4937, 102]).data[0].embedding
    assert by_text == by_ids
    lists = client().embeddings.create(model=MODEL, input=[[101, 1037, 4937, 102], [101, 102]])
    assert len(lists.data) == 2 and lists.usage.prompt_tokens == 6
    assert cosine(lists.data[0].embedding, by_text) > 0.999999


def dimensions():
    whole = client().embeddings.create(model=MODEL, input="a cat").data[0].embedding
    cut = client().embeddings.create(model=MODEL, input="a cat", dimensions=64).data[0].embedding
    assert len(cut) == 64
    length = math.hypot(*whole[:64])
    assert all(abs(a - b / length) < 1e-6 for a, b in zip(cut, whole[:64], strict=True))


def models():
    (model,) = client().models.list().data
    assert model.id == MODEL
    assert client().models.retrieve(MODEL).id == MODEL


def errors():
    for request, param in [
        ({"input": "rain " * 300}, "input"),
        ({"input": []}, "input"),
        ({"input": "a", "dimensions": 1000}, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
    ]:
        try:
            client().embeddings.create(model=MODEL, **request)
        except openai.BadRequestError as error:
            assert error.param == param, error
        else:
            raise AssertionError(f"{request} was taken")
    try:
        client().chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "a"}])
    except openai.BadRequestError as error:
        assert "embeddings" in error.message, error
    else:
        raise AssertionError("a model that gives vectors generated text")


if __name__ == "__main__":
    case, URL, reference = sys.argv[1:]
    with open(reference, encoding="utf-8") as file:
        REFERENCE = json.load(file)
    globals()[case]()
