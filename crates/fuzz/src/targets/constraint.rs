//! Schemas that are deep through references, wide, or both, in every kind of constraint that contains one.

use candlepower_grammar::Constraint;
use fastrand::Rng;
use serde_json::{Map, Value, json};

use super::grammar::compiler;
use crate::{Round, Verdict};

pub(super) fn open() -> Round {
    let compiler = compiler();
    Box::new(move |random| {
        let schema = schema(random);
        let constraint = match random.usize(..4) {
            0 => Constraint::Lark(format!("start: %json {schema}")),
            1 => Constraint::StructuralTag(json!({
                "structures": [{"begin": "<f>", "schema": schema, "end": "</f>"}],
                "triggers": ["<f"],
            })),
            _ => Constraint::JsonSchema(schema),
        };
        Verdict::of(compiler.compile(&constraint).and_then(|mut grammar| grammar.allowed()))
    })
}

fn schema(random: &mut Rng) -> Value {
    // From 4 to 4,096, each power of two with equal chance: costs that grow faster than the schema show at the
    // upper end.
    let num = 1 << random.u32(2..13);
    match random.usize(..10) {
        0..3 => references(num, 1, random),
        // There are as many paths as subsets.
        3 => references(num.min(64), 2, random),
        4 => {
            let properties = named("p", num, |_| leaf(random));
            let required: Vec<String> = properties.keys().cloned().collect();
            json!({"type": "object", "properties": properties, "required": required})
        }
        5 => json!({"type": "object", "patternProperties": named("^p", num, |_| leaf(random))}),
        6 => json!({"enum": [named("p", num, |index| index.into())]}),
        7 => {
            let keyword = *random.choice(&["allOf", "anyOf", "oneOf", "prefixItems"]).unwrap();
            let values: Vec<Value> = (0..num).map(|_| leaf(random)).collect();
            json!({ keyword: values })
        }
        // The nested repetition has the square of `num` states if it is expanded.
        8 => json!({"type": "string", "pattern": format!("^(a{{{num}}}|b?){{{num}}}$")}),
        _ => json!({"type": "array", "minItems": num, "items": references(num.min(32), 1, random)}),
    }
}

/// Definitions, each of which refers to the next one `times` times.
fn references(num: usize, times: usize, random: &mut Rng) -> Value {
    let mut definition = |index: usize| {
        let next = json!({"$ref": format!("#/$defs/d{}", index + 1)});
        (format!("d{index}"), within(&vec![next; times], random))
    };
    let mut definitions: Map<String, Value> = (0..num).map(&mut definition).collect();
    // The last definition ends the chain, or closes a cycle.
    let last = if random.bool() { leaf(random) } else { json!({"$ref": "#/$defs/d0"}) };
    definitions.insert(format!("d{num}"), last);
    json!({"$ref": "#/$defs/d0", "$defs": definitions})
}

/// Puts schemas into a keyword.
fn within(schemas: &[Value], random: &mut Rng) -> Value {
    let first = &schemas[0];
    match random.usize(..12) {
        0 => first.clone(),
        1 => json!({"items": first}),
        2 => {
            let mut index = 0..;
            let named = |schema: &Value| (format!("a{}", index.next().unwrap()), schema.clone());
            json!({"type": "object", "properties": schemas.iter().map(named).collect::<Map<_, _>>()})
        }
        3 => json!({ "allOf": schemas }),
        4 => json!({ "anyOf": schemas }),
        5 => json!({ "oneOf": schemas }),
        6 => json!({"additionalProperties": first}),
        7 => json!({ "prefixItems": schemas }),
        8 => json!({"if": first, "then": schemas[schemas.len() - 1], "else": false}),
        9 => json!({"not": {"not": first}}),
        10 => json!({"dependentSchemas": {"a": first}, "propertyNames": {"maxLength": 3}}),
        _ => json!({"$ref": first["$ref"], "minLength": 1, "description": "a"}),
    }
}

fn leaf(random: &mut Rng) -> Value {
    let leaves = [
        json!({}),
        json!({"type": "string"}),
        json!({"type": "integer", "minimum": 3, "exclusiveMaximum": 1e9}),
        json!({"type": "string", "format": "date-time", "minLength": 2}),
        json!({"pattern": "^[a-z]{3,9}(x|y)*$"}),
        json!({"const": "a"}),
        json!(false),
    ];
    random.choice(&leaves).unwrap().clone()
}

fn named(prefix: &str, num: usize, mut value: impl FnMut(usize) -> Value) -> Map<String, Value> {
    (0..num).map(|index| (format!("{prefix}{index}"), value(index))).collect()
}
