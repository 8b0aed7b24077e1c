//! Paths, parameters, schemas and their enums, as the OpenAPI document lists them.

use serde_json::Value;

use super::Names;
use super::live::Servers;

pub(super) fn collect(servers: &Servers, names: &mut Names) {
    let document = servers.document();
    for (path, methods) in object(&document["paths"]) {
        for (method, operation) in object(methods) {
            let route = format!("{} {path}", method.to_uppercase());
            names.add(route.clone());
            names.add(format!("{route} is {}", text(&operation["operationId"])));
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                names.add(format!(
                    "{route} {} {}",
                    text(&parameter["in"]),
                    text(&parameter["name"])
                ));
            }
            content(&operation["requestBody"], &format!("{route} takes"), names);
            for (status, response) in object(&operation["responses"]) {
                names.add(format!("{route} answers {status}"));
                content(response, &format!("{route} answers {status}"), names);
            }
        }
    }
    for (name, schema) in object(&document["components"]["schemas"]) {
        describe(name, schema, names);
    }
    for (name, _) in object(&document["components"]["securitySchemes"]) {
        names.add(format!("security {name}"));
    }
}

fn object(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn content(part: &Value, prefix: &str, names: &mut Names) {
    for (media_type, content) in object(&part["content"]) {
        names.add(format!("{prefix} {media_type}"));
        describe(&format!("{prefix} {media_type}"), &content["schema"], names);
    }
}

/// Lists the properties of a schema for the value at `path`, without its type and limits.
fn describe(path: &str, schema: &Value, names: &mut Names) {
    names.add(path);
    if let Some(reference) = schema["$ref"].as_str() {
        names.add(format!("{path} is {}", reference.rsplit('/').next().unwrap()));
    }
    for value in schema["enum"].as_array().into_iter().flatten().chain(schema.get("const")) {
        names.add(format!("{path} = {value}"));
    }
    for (name, property) in object(&schema["properties"]) {
        describe(&format!("{path}.{name}"), property, names);
    }
    for one_of in ["allOf", "anyOf", "oneOf"] {
        for schema in schema[one_of].as_array().into_iter().flatten() {
            describe(path, schema, names);
        }
    }
    if schema["items"].is_object() {
        describe(&format!("{path}[]"), &schema["items"], names);
    }
    if schema["additionalProperties"].is_object() {
        describe(&format!("{path}.*"), &schema["additionalProperties"], names);
    }
}
