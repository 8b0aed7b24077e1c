"""Parses the server's documents with independent parsers: `validate.py openapi|metrics URL`."""

import json
import sys
import urllib.request

from openapi_spec_validator import validate
from prometheus_client.parser import text_string_to_metric_families


def fetch(url):
    with urllib.request.urlopen(url) as response:
        return response.headers, response.read().decode()


def openapi(url):
    _, text = fetch(f"{url}/openapi.json")
    document = json.loads(text)
    assert document["openapi"].startswith("3."), document["openapi"]
    validate(document)


def metrics(url):
    headers, text = fetch(f"{url}/metrics")
    assert headers["Content-Type"].startswith("text/plain"), headers["Content-Type"]
    families = {family.name: family for family in text_string_to_metric_families(text)}
    # The parser removes `_total` from the names of counters.
    expected = {
        "num_requests_running": "gauge", "num_requests_waiting": "gauge", "kv_cache_usage_ratio": "gauge",
        "kv_blocks_total": "gauge", "kv_blocks_free": "gauge", "prefix_cache_queries": "counter",
        "prefix_cache_hits": "counter", "prompt_tokens": "counter", "generation_tokens": "counter",
        "request_success": "counter", "num_preemptions": "counter", "time_to_first_token_seconds": "histogram",
        "inter_token_latency_seconds": "histogram", "e2e_request_latency_seconds": "histogram",
        "request_queue_time_seconds": "histogram", "request_prompt_tokens": "histogram",
        "request_generation_tokens": "histogram", "iteration_tokens_total": "histogram",
        "http_requests": "counter", "http_request_duration_seconds": "histogram",
    }
    for name, kind in expected.items():
        family = families.get(f"candlepower_{name}")
        assert family is not None, f"{name} is missing: {sorted(families)}"
        assert family.type == kind, (name, family.type)
        assert family.documentation, f"{name} has no help"
        assert family.samples, f"{name} has no samples"


if __name__ == "__main__":
    what, url = sys.argv[1:]
    {"openapi": openapi, "metrics": metrics}[what](url)
