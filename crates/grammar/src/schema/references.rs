//! References by identifiers, anchors and escaped pointers, as plain pointers into `$defs`. References to other documents stay.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use serde_json::{Map, Value};

use super::{DEFINITIONS, LITERAL, NAMED};

/// The base URI of a schema without an identifier.
const NOWHERE: &str = "schema:///";
/// The prefix of the names of targets in `$defs`.
const PREFIX: &str = "referenced-";

/// Keywords that only references by identifiers and anchors need.
const IDENTIFIERS: [&str; 3] = ["$id", "$anchor", "$dynamicAnchor"];

/// The schema with plain references.
pub(super) fn plain(root: &Value, is_old: bool) -> Value {
    written(root, is_old, Targets::Anywhere)
}

/// The schema with plain references, each to a definition, so that a part of it can be used elsewhere together with the
/// definitions.
pub(super) fn to_definitions(root: &Value, is_old: bool) -> Value {
    written(root, is_old, Targets::Definitions)
}

/// The schema without unused definitions. All its references must point to definitions.
pub fn without_unused_definitions(root: &Value) -> Value {
    let mut used: HashSet<&str> = HashSet::new();
    let mut rest = vec![root];
    while let Some(schema) = rest.pop() {
        match schema {
            Value::Array(schemas) => rest.extend(schemas),
            Value::Object(object) => {
                for (keyword, value) in object {
                    match value {
                        Value::String(reference) if keyword == "$ref" => {
                            let target =
                                reference.strip_prefix('#').and_then(|to| root.pointer(to));
                            if let Some(target) = target
                                && used.insert(reference)
                            {
                                rest.push(target);
                            }
                        }
                        _ if DEFINITIONS.contains(&keyword.as_str()) => {}
                        Value::Object(named) if NAMED.contains(&keyword.as_str()) => {
                            rest.extend(named.values());
                        }
                        _ if LITERAL.contains(&keyword.as_str()) => {}
                        other => rest.push(other),
                    }
                }
            }
            _ => {}
        }
    }
    let Value::Object(object) = root else { return root.clone() };
    let mut kept = Map::new();
    for (keyword, value) in object {
        let Some(named) = value.as_object().filter(|_| DEFINITIONS.contains(&keyword.as_str()))
        else {
            kept.insert(keyword.clone(), value.clone());
            continue;
        };
        let is_used = |name: &String| used.contains(format!("#/{keyword}/{name}").as_str());
        let named = named.iter().filter(|(name, _)| is_used(name));
        let named: Map<_, _> = named.map(|(name, schema)| (name.clone(), schema.clone())).collect();
        if !named.is_empty() {
            kept.insert(keyword.clone(), Value::Object(named));
        }
    }
    Value::Object(kept)
}

/// The allowed targets of references.
#[derive(Clone, Copy, PartialEq)]
enum Targets {
    Anywhere,
    /// Only schemas in `$defs` or `definitions` of the root.
    Definitions,
}

fn written(root: &Value, is_old: bool, allowed: Targets) -> Value {
    let mut index = Index {
        is_old,
        places: HashMap::new(),
        resources: HashMap::new(),
        anchors: HashMap::new(),
        dynamic: HashMap::new(),
    };
    index.add(root, &NOWHERE.into());
    let mut writer =
        Writer { index: &index, root, allowed, names: HashMap::new(), waiting: Vec::new() };
    let mut plain = writer.schema(root);
    let mut targets = Map::new();
    while let Some((name, target)) = writer.waiting.pop() {
        let mut target = writer.schema(target);
        if let (Targets::Definitions, Value::Object(target)) = (allowed, &mut target) {
            // No reference points to them there any more.
            DEFINITIONS.iter().for_each(|keyword| drop(target.shift_remove(*keyword)));
        }
        targets.insert(name, target);
    }
    if let (false, Value::Object(plain)) = (targets.is_empty(), &mut plain) {
        let defs = plain.entry("$defs").or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(defs) = defs {
            defs.extend(targets);
        }
    }
    plain
}

/// Keywords that say nothing about which values are valid.
const ANNOTATIONS: [&str; 8] = [
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$comment",
];

fn is_annotation(keyword: &str) -> bool {
    ANNOTATIONS.contains(&keyword)
}

/// Replaces a composition of a reference alone by the reference. pydantic 1 writes one to give a reference a description. The
/// library cannot combine a schema that contains itself with anything, even with nothing.
fn make_sole_reference(schema: &mut Map<String, Value>) {
    let mut said = schema.iter().filter(|(keyword, _)| !is_annotation(keyword));
    let (Some((keyword, Value::Array(arms))), None) = (said.next(), said.next()) else { return };
    let [Value::Object(arm)] = &arms[..] else { return };
    let is_composition = ["allOf", "anyOf", "oneOf"].contains(&keyword.as_str());
    let is_reference = arm.contains_key("$ref")
        && arm.keys().all(|keyword| keyword == "$ref" || is_annotation(keyword));
    if is_composition && is_reference {
        let (keyword, reference) = (keyword.clone(), arm["$ref"].clone());
        schema.shift_remove(&keyword);
        schema.insert("$ref".to_owned(), reference);
    }
}

/// Whether a schema has a reference and a type, and nothing else.
fn says_type_and_reference(schema: &Map<String, Value>) -> bool {
    let says = |keyword: &str| schema.contains_key(keyword);
    says("$ref")
        && says("type")
        && schema
            .keys()
            .all(|keyword| ["$ref", "type"].contains(&keyword.as_str()) || is_annotation(keyword))
}

/// All schemas within one, by their URIs.
struct Index<'a> {
    is_old: bool,
    /// The base URI of each schema, by its address in memory.
    places: HashMap<usize, Rc<str>>,
    resources: HashMap<Rc<str>, &'a Value>,
    anchors: HashMap<String, &'a Value>,
    /// The targets of dynamic references by name: their URIs and schemas.
    dynamic: HashMap<String, Vec<(Rc<str>, &'a Value)>>,
}

fn address(value: &Value) -> usize {
    // Addresses identify schemas: two equal schemas at different positions may have different base URIs. The root is
    // not changed or moved meanwhile.
    std::ptr::from_ref(value).addr()
}

impl<'a> Index<'a> {
    fn add(&mut self, schema: &'a Value, base: &Rc<str>) {
        let object = match schema {
            Value::Object(object) => object,
            Value::Array(schemas) => {
                return schemas.iter().for_each(|schema| self.add(schema, base));
            }
            _ => return,
        };
        let mut base = Rc::clone(base);
        // In older drafts, keywords beside a reference are ignored.
        let counts = !(self.is_old && object.contains_key("$ref"));
        if let Some(Value::String(id)) = object.get("$id").filter(|_| counts) {
            match id.strip_prefix('#') {
                Some(anchor) => drop(self.anchors.insert(format!("{base}#{anchor}"), schema)),
                None => {
                    // No reference can point to a schema with an unknown base.
                    base = joined(&base, id)
                        .unwrap_or_else(|| format!("{NOWHERE}{}", self.places.len()))
                        .into();
                    self.resources.insert(base.clone(), schema);
                }
            }
        }
        // The first schema is the root, which is a resource also without an identifier.
        if self.places.is_empty() {
            self.resources.insert(base.clone(), schema);
        }
        for keyword in ["$anchor", "$dynamicAnchor"] {
            if let Some(Value::String(anchor)) = object.get(keyword) {
                self.anchors.insert(format!("{base}#{anchor}"), schema);
            }
        }
        if let Some(Value::String(anchor)) = object.get("$dynamicAnchor") {
            self.dynamic.entry(anchor.clone()).or_default().push((base.clone(), schema));
        }
        self.places.insert(address(schema), base.clone());
        for (keyword, value) in
            object.iter().filter(|(keyword, _)| !LITERAL.contains(&keyword.as_str()))
        {
            match value {
                Value::Object(named) if NAMED.contains(&keyword.as_str()) => {
                    named.values().for_each(|schema| self.add(schema, &base));
                }
                other => self.add(other, &base),
            }
        }
    }

    /// The target of a reference in a schema with this base.
    fn target(&self, reference: &str, base: &str) -> Option<&'a Value> {
        let url = joined(base, reference)?;
        let fragment = reference.split_once('#').map_or("", |(_, fragment)| fragment);
        if !fragment.is_empty() && !fragment.starts_with('/') {
            return self.anchors.get(&format!("{url}#{fragment}")).copied();
        }
        let pointer = decoded(fragment)?;
        let target = self.resources.get(url.as_str())?.pointer(&pointer)?;
        // A value that is not at the position of a schema was not indexed.
        (target.is_boolean() || self.places.contains_key(&address(target))).then_some(target)
    }

    /// The target of a dynamic reference, if it does not depend on the path of evaluation: evaluation begins at the root, whose
    /// anchor precedes all others.
    ///
    /// Source: JSON Schema Core 2020-12, section 8.2.3.2.
    fn dynamic_target(&self, reference: &str, base: &str, root: &Value) -> Option<&'a Value> {
        let target = self.target(reference, base)?;
        let name = reference.split_once('#').map_or("", |(_, fragment)| fragment);
        let anchors = self.dynamic.get(name).map_or(&[][..], Vec::as_slice);
        // Only a target that is a dynamic anchor itself makes the reference dynamic.
        if !anchors.iter().any(|(_, anchor)| address(anchor) == address(target)) {
            return Some(target);
        }
        let root = self.places.get(&address(root))?;
        let first = anchors.iter().find(|(place, _)| place == root);
        match (first, anchors) {
            // A single anchor leaves no choice either.
            (Some((_, anchor)), _) | (None, [(_, anchor)]) => Some(*anchor),
            (None, _) => None,
        }
    }
}

/// Whether a reference points to an entry of the root's `$defs` or `definitions`.
fn is_definition(reference: &str) -> bool {
    let path = reference.strip_prefix("#/").and_then(|path| path.split_once('/'));
    path.is_some_and(|(keyword, name)| DEFINITIONS.contains(&keyword) && !name.contains('/'))
}

/// The URI of a reference without its fragment. `None` if its path would need normalization.
///
/// Source: RFC 3986, section 5.2.
fn joined(base: &str, reference: &str) -> Option<String> {
    let path = reference.split('#').next().unwrap_or_default();
    let scheme = path.split(':').next().unwrap_or_default();
    let is_absolute = path.contains(':')
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    if path.is_empty() || is_absolute {
        return Some(if path.is_empty() { base.to_owned() } else { path.to_owned() });
    }
    if path.contains("./") || path.starts_with("//") || path.starts_with('?') {
        return None;
    }
    let authority = base.find("://")? + "://".len();
    let begin = authority + base[authority..].find('/')?;
    let end = if path.starts_with('/') { begin } else { base.rfind('/')? + 1 };
    Some(format!("{}{path}", &base[..end]))
}

/// `%25` as `%`.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte == b'%' {
            let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &rest[2..];
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

struct Writer<'a, 'i> {
    index: &'i Index<'a>,
    root: &'a Value,
    allowed: Targets,
    names: HashMap<usize, String>,
    waiting: Vec<(String, &'a Value)>,
}

impl<'a> Writer<'a, '_> {
    fn schema(&mut self, schema: &'a Value) -> Value {
        match schema {
            Value::Object(object) => {
                let base = self.index.places.get(&address(schema));
                let allowed = self.allowed;
                let mut entries: Map<String, Value> = object
                    .iter()
                    // No reference uses these names any more.
                    .filter(|(keyword, _)| match allowed {
                        Targets::Anywhere => *keyword != "$dynamicAnchor",
                        Targets::Definitions => !IDENTIFIERS.contains(&keyword.as_str()),
                    })
                    .map(|(keyword, value)| (keyword.clone(), self.value(keyword, value, base)))
                    .collect();
                if let Some(target) = base.and_then(|base| self.dynamic_target(object, base)) {
                    entries.shift_remove("$dynamicRef");
                    entries.insert("$ref".to_owned(), self.pointer_to(target).into());
                }
                make_sole_reference(&mut entries);
                if let Some(base) = base.filter(|_| says_type_and_reference(object)) {
                    let target = object["$ref"].as_str().and_then(|to| self.index.target(to, base));
                    if target.is_some_and(|target| target.get("type") == object.get("type")) {
                        entries.shift_remove("type");
                    }
                }
                Value::Object(entries)
            }
            Value::Array(schemas) => schemas.iter().map(|schema| self.schema(schema)).collect(),
            other => other.clone(),
        }
    }

    fn value(&mut self, keyword: &str, value: &'a Value, base: Option<&Rc<str>>) -> Value {
        match value {
            Value::String(reference) if keyword == "$ref" => base
                .and_then(|base| self.reference(reference, base))
                .unwrap_or_else(|| reference.clone())
                .into(),
            Value::Object(named) if NAMED.contains(&keyword) => {
                named.iter().map(|(name, schema)| (name.clone(), self.schema(schema))).collect()
            }
            Value::Object(_) | Value::Array(_) if !LITERAL.contains(&keyword) => self.schema(value),
            other => other.clone(),
        }
    }

    /// The plain form of a reference; `None` if it is plain already, or points outside the schema.
    fn reference(&mut self, reference: &str, base: &str) -> Option<String> {
        // `%` and `~` are escapes, which the library does not decode, and `#` means the resource, which need not be
        // the root.
        let is_plain =
            reference.starts_with('#') && !reference.contains(['%', '~']) && reference != "#";
        let is_of_root =
            self.index.places.get(&address(self.root)).is_some_and(|root| **root == *base);
        let is_allowed = match self.allowed {
            Targets::Anywhere => true,
            Targets::Definitions => is_definition(reference),
        };
        if is_plain && is_allowed && is_of_root && self.root.pointer(&reference[1..]).is_some() {
            return None;
        }
        let target = self.index.target(reference, base)?;
        Some(self.pointer_to(target))
    }

    /// The target of a schema's dynamic reference; `None` without one, if it depends on the path, or beside another reference.
    fn dynamic_target(&self, schema: &Map<String, Value>, base: &str) -> Option<&'a Value> {
        let reference =
            schema.get("$dynamicRef")?.as_str().filter(|_| !schema.contains_key("$ref"))?;
        self.index.dynamic_target(reference, base, self.root)
    }

    /// A plain reference to a schema, which gets a name in `$defs`.
    fn pointer_to(&mut self, target: &'a Value) -> String {
        if self.allowed == Targets::Anywhere && address(target) == address(self.root) {
            return "#".to_owned();
        }
        let next = format!("{PREFIX}{}", self.names.len());
        let name = self.names.entry(address(target)).or_insert_with(|| {
            self.waiting.push((next.clone(), target));
            next
        });
        format!("#/$defs/{name}")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn identifiers_anchors_and_escapes_become_pointers() {
        let schema = json!({
            "$id": "https://example.com/root.json", "$defs": {
                "a~b%": {"type": "null"}, "named": {"$anchor": "here", "type": "string"},
                "inner": {"$id": "inner.json", "$defs": {"x": {"const": 1}}, "$ref": "#/$defs/x"},
            },
            "allOf": [{"$ref": "#/$defs/a~0b%25"}, {"$ref": "#here"}, {"$ref": "inner.json"}, {"$ref": "/root.json#"}],
        });
        let found = plain(&schema, false);
        // The first reference points to the one of `inner`.
        let to = |number: usize| json!({"$ref": format!("#/$defs/referenced-{number}")});
        assert_eq!(found["$defs"]["inner"]["$ref"], to(0)["$ref"]);
        assert_eq!(found["allOf"], json!([to(1), to(2), to(3), {"$ref": "#"}]));
        assert_eq!(found["$defs"]["referenced-1"], json!({"type": "null"}));
        assert_eq!(found["$defs"]["referenced-0"], json!({"const": 1}));
    }

    #[test]
    fn references_lead_to_definitions() {
        let schema = json!({
            "$id": "https://example.com/tool", "$defs": {"n": {"properties": {"r": {"$ref": "#"}}}},
            "properties": {
                "a": {"$id": "#a", "type": "integer"}, "b": {"$ref": "#/properties/a"},
                "c": {"$ref": "#/$defs/n"}, "d": {"$ref": "#/"}, "e": {"$ref": "#/$defs/n/properties/r"},
            },
        });
        let to = |name: &str| json!({"$ref": format!("#/$defs/{name}")});
        let found = to_definitions(&schema, false);
        let mut properties = json!({
            "a": {"type": "integer"}, "b": to("referenced-1"), "c": to("n"), "d": {"$ref": "#/"},
            "e": to("referenced-2"),
        });
        assert_eq!(found["properties"], properties);
        assert_eq!(found["$defs"]["n"]["properties"]["r"], to("referenced-0"));
        assert_eq!(found["$defs"]["referenced-1"], json!({"type": "integer"}));
        assert_eq!(found["$defs"]["referenced-2"], to("referenced-0"));
        // The root is unchanged, except for its definitions.
        assert_eq!(found["$defs"]["referenced-0"], json!({"properties": properties.take()}));
        assert_eq!(found.get("$id"), None);
    }

    #[test]
    fn compositions_of_a_reference_alone_are_references() {
        let to = json!({"$ref": "#", "description": "the next"});
        let node = |next: Value| json!({"type": "object", "properties": {"next": next}});
        for next in [
            json!({"allOf": [{"$ref": "#"}], "description": "the next"}),
            json!({"anyOf": [{"$ref": "#", "title": "T"}], "description": "the next"}),
            json!({"type": "object", "$ref": "#", "description": "the next"}),
        ] {
            let found = plain(&node(next), false);
            let next = found["properties"]["next"].as_object().unwrap();
            assert_eq!(Value::Object(next.clone()), to);
        }
        for next in [
            json!({"allOf": [{"$ref": "#"}, {"minProperties": 1}]}),
            json!({"allOf": [{"$ref": "#", "minProperties": 1}]}),
            json!({"allOf": [{"$ref": "#"}], "minProperties": 1}),
            json!({"type": ["object", "null"], "$ref": "#"}),
        ] {
            assert_eq!(plain(&node(next.clone()), false), node(next));
        }
    }

    #[test]
    fn dynamic_references_are_plain_where_the_way_to_them_says_nothing() {
        let list = json!({"$id": "list", "items": {"$dynamicRef": "#item"}, "$defs": {"any": {"$dynamicAnchor": "item"}}});
        let of_root = json!({
            "$id": "https://example.com/root", "$ref": "list",
            "$defs": {"list": list, "text": {"$dynamicAnchor": "item", "type": "string"}},
        });
        let found = plain(&of_root, false);
        let name = found["$defs"]["list"]["items"]["$ref"].as_str().unwrap();
        assert_eq!(found.pointer(&name[1..]), Some(&json!({"type": "string"})));
        // Either of two others may be first, depending on the path.
        let other = json!({"$id": "other", "$ref": "list", "$defs": {"x": {"$dynamicAnchor": "item", "type": "null"}}});
        let depends =
            json!({"$id": "https://example.com/root", "$defs": {"list": list, "other": other}});
        let found = plain(&depends, false);
        assert_eq!(found["$defs"]["list"]["items"], json!({"$dynamicRef": "#item"}));
    }

    #[test]
    fn plain_references_and_those_that_lead_elsewhere_stay() {
        for schema in [
            json!({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
            json!({"$ref": "https://example.com/other.json"}),
            json!({"properties": {"$ref": {"$ref": "#missing"}}, "enum": [{"$ref": "#/%24defs"}]}),
        ] {
            assert_eq!(plain(&schema, false), schema);
        }
    }
}
