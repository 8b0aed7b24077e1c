"""Decodes requests of OTLP strictly, and prints their spans as JSON: `traces.py FILE..`."""

import json
import sys

from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


def check_known(message):
    """Fails for fields that the definition does not have, which a decoder keeps without a word."""
    assert not list(UnknownFieldSet(message)), f"unknown fields in {message.DESCRIPTOR.name}: {message}"
    for field, value in message.ListFields():
        if field.message_type:
            for part in value if field.is_repeated else [value]:
                check_known(part)


def plain(value):
    kind = value.WhichOneof("value")
    assert kind, value
    inner = getattr(value, kind)
    return [plain(part) for part in inner.values] if kind == "array_value" else inner


def attributes(message):
    names = [pair.key for pair in message.attributes]
    assert len(names) == len(set(names)), f"an attribute twice: {names}"
    return {pair.key: plain(pair.value) for pair in message.attributes}


def spans_of(path):
    with open(path, "rb") as file:
        body = file.read()
    request = ExportTraceServiceRequest.FromString(body)
    assert request.SerializeToString() and request.ByteSize() == len(body), "the encoding is not the shortest"
    check_known(request)
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                assert len(span.trace_id) == 16 and len(span.span_id) == 8 and len(span.parent_span_id) in (0, 8)
                assert 1_600_000_000 * 10**9 < span.start_time_unix_nano <= span.end_time_unix_nano
                yield {
                    "resource": attributes(resource.resource),
                    "scope": scope.scope.name,
                    "trace": span.trace_id.hex(),
                    "span": span.span_id.hex(),
                    "parent": span.parent_span_id.hex(),
                    "state": span.trace_state,
                    "flags": span.flags,
                    "name": span.name,
                    "kind": span.kind,
                    "start": span.start_time_unix_nano,
                    "end": span.end_time_unix_nano,
                    "attributes": attributes(span),
                    "status": span.status.code,
                }


if __name__ == "__main__":
    json.dump([span for path in sys.argv[1:] for span in spans_of(path)], sys.stdout)
