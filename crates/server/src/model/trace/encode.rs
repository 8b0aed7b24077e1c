//! Encodes spans as an `ExportTraceServiceRequest` of OTLP, in protobuf.
//!
//! Source: opentelemetry-proto, `trace/v1/trace.proto`, with its field numbers. The messages are few and only written, so that no
//! generated code is needed.

use super::exporter::Trace;
use super::span::{Span, Value};

/// Wire types of protobuf.
const VARINT: u8 = 0;
const FIXED64: u8 = 1;
const BYTES: u8 = 2;
const FIXED32: u8 = 5;

/// `STATUS_CODE_ERROR`.
const STATUS_ERROR: u64 = 2;
/// The flag that says whether the parent is remote is set, and the parent is remote.
const PARENT_IS_REMOTE: u32 = 0x300;
/// The same, and it is not.
const PARENT_IS_LOCAL: u32 = 0x100;
/// The flag of a sampled trace.
const SAMPLED: u32 = 1;

/// The request with these traces, of one service.
pub(super) fn request(service: &str, version: &str, traces: &[Trace]) -> Vec<u8> {
    let mut spans = Message::default();
    // InstrumentationScope
    let mut scope = Message::default();
    scope.text(1, "candlepower");
    scope.text(2, version);
    // ScopeSpans
    spans.message(1, &scope);
    for trace in traces {
        for span in &trace.spans {
            spans.message(2, &self::span(trace, span));
        }
    }
    // Resource
    let mut resource = Message::default();
    let own = [("service.name", service), ("service.version", version)];
    for (key, value) in own.into_iter().chain([("telemetry.sdk.name", "candlepower")]) {
        resource.message(1, &attribute(key, &Value::Text(value.to_owned())));
    }
    // ResourceSpans
    let mut all = Message::default();
    all.message(1, &resource);
    all.message(2, &spans);
    let mut request = Message::default();
    request.message(1, &all);
    request.0
}

fn span(trace: &Trace, span: &Span) -> Message {
    let mut message = Message::default();
    message.bytes(1, &trace.id);
    message.bytes(2, &span.id);
    if let Some(state) = &trace.state {
        message.text(3, state);
    }
    if let Some(parent) = span.parent {
        message.bytes(4, &parent);
    }
    message.text(5, &span.name);
    message.varint(6, span.kind as u64);
    message.fixed64(7, span.start_ns);
    message.fixed64(8, span.end_ns);
    for (key, value) in &span.attributes {
        message.message(9, &attribute(key, value));
    }
    if let Some(error) = &span.error {
        let mut status = Message::default();
        status.text(2, error);
        status.varint(3, STATUS_ERROR);
        message.message(15, &status);
    }
    // The request's own span is the one without a parent here.
    let is_request = trace.spans.last().is_some_and(|last| last.id == span.id);
    let parent =
        if is_request && span.parent.is_some() { PARENT_IS_REMOTE } else { PARENT_IS_LOCAL };
    message.fixed32(16, parent | SAMPLED);
    message
}

/// `KeyValue`
fn attribute(key: &str, value: &Value) -> Message {
    let mut message = Message::default();
    message.text(1, key);
    message.message(2, &any_value(value));
    message
}

/// `AnyValue`
fn any_value(value: &Value) -> Message {
    let mut message = Message::default();
    match value {
        Value::Text(text) => message.bytes(1, text.as_bytes()),
        Value::Int(number) => message.varint(3, number.cast_unsigned()),
        Value::Float(number) => message.fixed64(4, number.to_bits()),
        Value::List(texts) => {
            let mut list = Message::default();
            for text in texts {
                let mut element = Message::default();
                element.bytes(1, text.as_bytes());
                list.message(1, &element);
            }
            message.message(5, &list);
        }
    }
    message
}

/// A message of protobuf.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn key(&mut self, field: u32, wire_type: u8) {
        self.raw_varint(u64::from(field << 3) | u64::from(wire_type));
    }

    fn raw_varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn varint(&mut self, field: u32, number: u64) {
        self.key(field, VARINT);
        self.raw_varint(number);
    }

    fn fixed32(&mut self, field: u32, number: u32) {
        self.key(field, FIXED32);
        self.0.extend(number.to_le_bytes());
    }

    fn fixed64(&mut self, field: u32, number: u64) {
        self.key(field, FIXED64);
        self.0.extend(number.to_le_bytes());
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.key(field, BYTES);
        self.raw_varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, field: u32, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    fn message(&mut self, field: u32, message: &Self) {
        self.bytes(field, &message.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_encoded_as_protobuf_says() {
        let mut message = Message::default();
        message.varint(1, 150);
        assert_eq!(message.0, [0x08, 0x96, 0x01]);
        let mut message = Message::default();
        message.text(2, "testing");
        assert_eq!(message.0, [0x12, 0x07, 0x74, 0x65, 0x73, 0x74, 0x69, 0x6e, 0x67]);
        let mut message = Message::default();
        message.fixed32(16, 1);
        assert_eq!(message.0, [0x85, 0x01, 1, 0, 0, 0]);
        assert_eq!(any_value(&Value::Int(-1)).0.len(), 11);
    }
}
