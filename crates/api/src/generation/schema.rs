//! OpenAPI schemas of [`GenerationFields`](super::GenerationFields).

use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, OneOfBuilder, SchemaType, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::{GenerationFields, MAX_STOP_STRINGS, StopStrings};

/// A schema or a reference to one.
type AnySchema = RefOr<Schema>;

impl PartialSchema for StopStrings {
    fn schema() -> AnySchema {
        let string = ObjectBuilder::new()
            .schema_type(SchemaType::Type(Type::String))
            .min_length(Some(1))
            .build();
        let list = ArrayBuilder::new().items(string.clone()).max_items(Some(MAX_STOP_STRINGS));
        let either = OneOfBuilder::new().item(string).item(list);
        let text = "Strings that end the text. The text ends before the first of them.";
        Schema::OneOf(either.description(Some(text)).build()).into()
    }
}

impl ToSchema for StopStrings {}

/// The fields that /v1/messages supports.
pub(crate) struct MessagesSampling;

impl PartialSchema for MessagesSampling {
    fn schema() -> AnySchema {
        const NAMES: [(&str, &str); 6] = [
            ("max_tokens", "max_tokens"),
            ("temperature", "temperature"),
            ("top_p", "top_p"),
            ("top_k", "top_k"),
            ("stop", "stop_sequences"),
            ("stream", "stream"),
        ];
        let mut schema = renamed(|known| {
            let (_, own) = NAMES.iter().find(|(name, _)| *name == known)?;
            Some((*own).to_owned())
        });
        if let RefOr::T(Schema::Object(object)) = &mut schema {
            object.required.push("max_tokens".to_owned());
        }
        schema
    }
}

impl ToSchema for MessagesSampling {
    fn schemas(schemas: &mut Vec<(String, AnySchema)>) {
        GenerationFields::schemas(schemas);
    }
}

/// The fields that /v1/responses supports.
pub(crate) struct ResponsesSampling;

impl PartialSchema for ResponsesSampling {
    fn schema() -> AnySchema {
        const NONE: [&str; 3] = ["n", "prompt_logprobs", "return_token_ids"];
        renamed(|name| (!NONE.contains(&name.as_str())).then_some(name))
    }
}

impl ToSchema for ResponsesSampling {
    fn schemas(schemas: &mut Vec<(String, AnySchema)>) {
        GenerationFields::schemas(schemas);
    }
}

/// The fields for which `name` returns a name, under that name.
fn renamed(name: impl Fn(String) -> Option<String>) -> AnySchema {
    let mut schema = GenerationFields::schema();
    if let RefOr::T(Schema::Object(object)) = &mut schema {
        let properties = std::mem::take(&mut object.properties).into_iter();
        object.properties =
            properties.filter_map(|(known, schema)| Some((name(known)?, schema))).collect();
    }
    schema
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{EmbeddingsRequest, MessagesRequest, ResponsesRequest};

    /// The names of a schema's properties, and of its required ones, including those of its parts.
    fn described<T: ToSchema>() -> (Vec<String>, Vec<String>) {
        let mut known = vec![(T::name().into_owned(), T::schema())];
        T::schemas(&mut known);
        let known: serde_json::Map<String, Value> =
            known.into_iter().map(|(name, schema)| (name, json!(schema))).collect();
        let (mut properties, mut required) = (Vec::new(), Vec::new());
        let mut left = vec![&known[&*T::name()]];
        while let Some(schema) = left.pop() {
            if let Some(reference) = schema["$ref"].as_str() {
                left.push(&known[reference.rsplit('/').next().unwrap()]);
            }
            left.extend(schema["allOf"].as_array().into_iter().flatten());
            properties.extend(
                schema["properties"].as_object().into_iter().flatten().map(|p| p.0.clone()),
            );
            let names = schema["required"].as_array().into_iter().flatten();
            required.extend(names.map(|name| name.as_str().unwrap().to_owned()));
        }
        properties.sort();
        required.sort();
        (properties, required)
    }

    #[test]
    fn endpoints_describe_the_fields_that_they_have() {
        let (properties, required) = described::<MessagesRequest>();
        assert_eq!(
            properties,
            [
                "max_tokens",
                "messages",
                "model",
                "output_config",
                "stop_sequences",
                "stream",
                "system",
                "temperature",
                "thinking",
                "tool_choice",
                "tools",
                "top_k",
                "top_p",
            ]
        );
        assert_eq!(required, ["max_tokens", "messages"]);
        let (properties, required) = described::<ResponsesRequest>();
        let has = |name: &str| properties.iter().any(|property| property == name);
        for name in ["reasoning", "max_output_tokens", "temperature", "tools", "text", "stop"] {
            assert!(has(name), "{name}");
        }
        for name in ["reasoning_effort", "n", "prompt_logprobs", "return_token_ids"] {
            assert!(!has(name), "{name}");
        }
        assert_eq!(required, ["input"]);
        assert_eq!(described::<EmbeddingsRequest>().1, ["input"]);
    }
}
