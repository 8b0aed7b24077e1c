#!/usr/bin/env python3
"""Serves POST /v1/completions with streaming for mistral.rs' Python package, which has no server of its own."""

from __future__ import annotations

import argparse
import json
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from mistralrs import ChatCompletionRequest, ModelDType, Runner, Which

# The package streams chats only. A prompt becomes a chat of one message, without any text around it.
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


class Handler(BaseHTTPRequestHandler):
    runner: Runner

    def do_GET(self) -> None:
        self.answer(200, {"data": [{"id": "m"}]})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not isinstance(request["prompt"], str):
            return self.answer(400, {"error": {"message": "prompt: only text"}})
        chunks = self.runner.send_chat_completion_request(
            ChatCompletionRequest(
                messages=request["prompt"],
                model="default",
                max_tokens=request.get("max_tokens", 16),
                temperature=0.0,
                stream=True,
                ignore_eos=True,
            )  # fmt: skip
        )
        if request.get("stream"):
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
        texts, usage = [], None
        for chunk in chunks:
            texts.append("".join(choice.delta.content or "" for choice in chunk.choices))
            usage = chunk.usage or usage
            if request.get("stream"):
                self.send({"choices": [{"index": 0, "text": texts[-1]}]})
        if usage is None:
            return self.answer(500, {"error": {"message": "no tokens were counted"}})
        counts = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
        usage = {**counts, "total_tokens": sum(counts.values())}
        if not request.get("stream"):
            return self.answer(200, {"choices": [{"index": 0, "text": "".join(texts)}], "usage": usage})
        self.send({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def send(self, chunk: dict[str, object]) -> None:
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.flush()

    def answer(self, status: int, body: dict[str, object]) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dtype", choices=["F32", "BF16"], default="F32")
    args = parser.parse_args()
    model = Which.Plain(model_id=args.model, dtype=getattr(ModelDType, args.dtype))
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
        template.write(TEMPLATE)
        template.flush()
        Handler.runner = Runner(which=model, jinja_explicit=template.name)
    ThreadingHTTPServer(("127.0.0.1", args.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
