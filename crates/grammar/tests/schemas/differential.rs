//! Random schemas, and instances at their edges, judged by the grammar and by another implementation of JSON Schema.
//!
//! An instance that the grammar takes has to be valid. Valid ones that it does not take are counted by kind: a grammar may be
//! narrower than its schema. `CANDLEPOWER_SCHEMA_PAIRS` says how many pairs are tried.

use std::collections::BTreeMap;

use candlepower_grammar::{Constraint, Grammar, GrammarCompiler};
use candlepower_tokenizer::{AddSpecialTokens, Tokenizer};
use fastrand::Rng;
use serde_json::{Map, Value, json};

use crate::{EOS, NUM_LOGITS, TOKENIZER};

const USUAL_PAIRS: usize = 20_000;
/// Valid texts that are not taken, shown for each kind.
const SHOWN: usize = 8;
const INSTANCES: usize = 12;
const NAMES: [&str; 5] = ["a", "b", "名", "a\"b", "k1"];
const NUMBERS: [&str; 26] = [
    "0",
    "-0",
    "0.0",
    "1",
    "1.0",
    "-1",
    "0.5",
    "0.50",
    "0.25",
    "0.125",
    "0.3",
    "-0.5",
    "2",
    "3",
    "7",
    "9",
    "10",
    "10.5",
    "99",
    "100",
    "1e2",
    "1E-1",
    "9007199254740992",
    "9007199254740993",
    "-9007199254740993",
    "1.5",
];
const STRINGS: [&str; 14] = [
    r#""""#,
    r#""a""#,
    r#""ab""#,
    r#""abc""#,
    r#""é""#,
    r#""\u0061""#,
    r#""b""#,
    r#""A1""#,
    r#""2026-02-28""#,
    r#""2026-02-30""#,
    r#""\n""#,
    r#""a b""#,
    r#""1""#,
    r#""null""#,
];

/// Texts of JSON as a client's schema may meet them: written by hand, so that spelling matters.
struct Pairs {
    random: Rng,
}

impl Pairs {
    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.random.usize(..from.len())]
    }

    fn number(&mut self) -> Value {
        serde_json::from_str(self.pick(&NUMBERS)).unwrap()
    }

    fn schema(&mut self, depth: usize) -> Value {
        let kinds = if depth == 0 { 7 } else { 13 };
        match self.random.usize(..kinds) {
            0 | 1 => self.numeric("number"),
            2 => self.numeric("integer"),
            3 | 4 => self.string(),
            5 => json!({"enum": [self.number(), "a", null, true]}),
            6 => json!({"type": ["null", "boolean"]}),
            7 | 8 => self.object(depth - 1),
            9 => self.array(depth - 1),
            10 => json!({"anyOf": [self.schema(depth - 1), self.schema(depth - 1)]}),
            11 => json!({"allOf": [self.object(depth - 1), self.object(depth - 1)]}),
            _ => json!({"$ref": "#"}),
        }
    }

    fn numeric(&mut self, kind: &str) -> Value {
        let mut schema = json!({"type": kind});
        for keyword in ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"] {
            if self.random.u8(..3) == 0 {
                schema[keyword] = self.number();
            }
        }
        if self.random.u8(..5) == 0 {
            // The other implementation divides in double precision, which is exact for these.
            let steps = ["0.5", "0.125", "2", "3", "10"];
            schema["multipleOf"] = serde_json::from_str(self.pick(&steps)).unwrap();
        }
        schema
    }

    fn string(&mut self) -> Value {
        match self.random.usize(..6) {
            0 => {
                json!({"type": "string", "pattern": self.pick(&["^a", "b$", "^[a-z]+$", "[0-9]", "^$"])})
            }
            1 => json!({"type": "string", "minLength": self.random.usize(..3), "maxLength": 2}),
            2 => json!({"type": "string", "format": self.pick(&["date", "binary", "ulid"])}),
            3 => json!({"type": "string", "enum": ["a", "1", "null"]}),
            4 => json!({"const": "ab"}),
            _ => json!({"type": "string"}),
        }
    }

    fn object(&mut self, depth: usize) -> Value {
        let mut properties = Map::new();
        for name in NAMES {
            if self.random.bool() {
                properties.insert(name.to_owned(), self.schema(depth));
            }
        }
        let mut schema = json!({"type": "object", "properties": properties});
        if self.random.bool() {
            schema["required"] = json!([self.pick(&NAMES)]);
        }
        if self.random.u8(..3) == 0 {
            let pattern = self.pick(&["^a$", "^[ab]$", "^k", "名"]);
            schema["patternProperties"] = json!({pattern: self.schema(depth)});
        }
        match self.random.usize(..4) {
            0 => schema["additionalProperties"] = json!(false),
            1 => schema["additionalProperties"] = self.schema(depth),
            _ => {}
        }
        schema
    }

    fn array(&mut self, depth: usize) -> Value {
        let mut schema = json!({"type": "array", "items": self.schema(depth), "maxItems": 3});
        if self.random.bool() {
            schema["minItems"] = json!(self.random.usize(..3));
        }
        if self.random.u8(..4) == 0 {
            schema["items"] = json!({"enum": ["a", 1]});
            schema["uniqueItems"] = json!(true);
        }
        schema
    }

    /// A text that may be an instance of a schema.
    fn instance(&mut self, root: &Value, schema: &Value, depth: usize) -> String {
        let schema = match schema.get("$ref") {
            Some(_) => root,
            None => schema,
        };
        if self.random.u8(..12) == 0 || depth == 0 {
            return self.any();
        }
        for keyword in ["anyOf", "allOf"] {
            if let Some(Value::Array(arms)) = schema.get(keyword) {
                let arm = &arms[self.random.usize(..arms.len())];
                return self.instance(root, arm, depth - 1);
            }
        }
        if let Some(Value::Array(literals)) = schema.get("enum") {
            return literals[self.random.usize(..literals.len())].to_string();
        }
        match schema.get("type").and_then(Value::as_str) {
            Some("object") => self.members(root, schema, depth),
            Some("array") => {
                let items = &schema["items"];
                let all: Vec<String> = (0..self.random.usize(..4))
                    .map(|_| self.instance(root, items, depth - 1))
                    .collect();
                format!("[{}]", all.join(","))
            }
            Some("string") => self.pick(&STRINGS).to_owned(),
            Some("number" | "integer") => self.pick(&NUMBERS).to_owned(),
            _ => self.any(),
        }
    }

    fn members(&mut self, root: &Value, schema: &Value, depth: usize) -> String {
        let mut members = Vec::new();
        for (name, property) in schema["properties"].as_object().unwrap() {
            let required = schema.get("required").is_some_and(|names| names[0] == name.as_str());
            if required || self.random.u8(..3) > 0 {
                let value = self.instance(root, property, depth - 1);
                members.push(format!("{}:{value}", json!(name)));
            }
        }
        if self.random.u8(..3) == 0 {
            let key =
                self.pick(&[r#""z""#, r#""\u0061""#, r#""\u540d""#, r#""k1""#, r#""b""#, r#""a""#]);
            let value = self.any();
            members.push(format!("{key}:{value}"));
        }
        format!("{{{}}}", members.join(","))
    }

    fn any(&mut self) -> String {
        match self.random.usize(..5) {
            0 => self.pick(&["null", "true", "[]", "{}"]).to_owned(),
            1 | 2 => self.pick(&NUMBERS).to_owned(),
            _ => self.pick(&STRINGS).to_owned(),
        }
    }
}

/// Whether the grammar takes a text as a whole. It must not lead to a place where nothing may follow.
fn takes(tokenizer: &Tokenizer, mut grammar: Grammar, schema: &Value, text: &str) -> bool {
    let allows = |grammar: &mut Grammar, id: u32| {
        let mask = grammar.allowed().unwrap_or_else(|error| panic!("{error}: {text} of {schema}"));
        mask.allows(id)
    };
    for id in tokenizer.encode(text, AddSpecialTokens::No).unwrap() {
        if grammar.is_finished() || !allows(&mut grammar, id) {
            return false;
        }
        grammar.accept(id).unwrap();
    }
    grammar.is_finished() || allows(&mut grammar, EOS)
}

/// Names of an object that come twice, which other implementations see the last of only.
fn is_ambiguous(text: &str, value: &Value) -> bool {
    let keys = |value: &Value| -> usize {
        fn count(value: &Value) -> usize {
            match value {
                Value::Object(object) => object.len() + object.values().map(count).sum::<usize>(),
                Value::Array(items) => items.iter().map(count).sum(),
                _ => 0,
            }
        }
        count(value)
    };
    text.matches(':').count() != keys(value)
}

#[test]
fn what_the_grammar_takes_is_valid() {
    let pairs = std::env::var("CANDLEPOWER_SCHEMA_PAIRS").ok();
    let pairs = pairs.map_or(USUAL_PAIRS, |pairs| pairs.parse().unwrap());
    let tokenizer = Tokenizer::from_bytes(TOKENIZER, None).unwrap();
    let compiler = GrammarCompiler::new(&tokenizer, &[EOS], NUM_LOGITS).unwrap();
    let mut source = Pairs { random: Rng::with_seed(38) };
    let (mut tried, mut valid, mut refused, mut not_compiled) = (0, 0, BTreeMap::new(), 0);
    while tried < pairs {
        let schema = source.schema(3);
        let Ok(validator) = jsonschema::options().should_validate_formats(true).build(&schema)
        else {
            continue;
        };
        let Ok(grammar) = compiler.compile(&Constraint::JsonSchema(schema.clone())) else {
            not_compiled += 1;
            continue;
        };
        for _ in 0..INSTANCES {
            let text = source.instance(&schema, &schema, 4);
            let value: Value = serde_json::from_str(&text).unwrap();
            let is_valid = validator.is_valid(&value);
            let is_taken = takes(&tokenizer, grammar.clone(), &schema, &text);
            let is_ambiguous = is_ambiguous(&text, &value);
            tried += 1;
            valid += usize::from(is_valid && is_taken);
            assert!(!is_taken || is_valid, "{text} is no instance of {schema}");
            if is_valid && !is_taken && !is_ambiguous {
                let (count, shown): &mut (usize, Vec<String>) =
                    refused.entry(kind_of(&text)).or_default();
                *count += 1;
                if shown.len() < SHOWN {
                    shown.push(format!("{text} of {schema}"));
                }
            }
        }
    }
    println!(
        "{tried} pairs, {valid} valid and taken; {not_compiled} schemas refused; valid and not taken:"
    );
    for (kind, (count, shown)) in &refused {
        println!("- {count} with {kind}:\n    {}", shown.join("\n    "));
    }
    assert!(valid * 5 > tried, "{valid} of {tried} are valid and taken");
}

/// Why a valid text may be refused.
fn kind_of(text: &str) -> &'static str {
    match text {
        _ if text.contains("\\u") => "a character as an escape",
        _ if text.contains(['e', 'E']) && !text.contains('"') => "a number with an exponent",
        _ if text.contains(".0") || text.contains("0.50") => "a number with zeros at its end",
        _ if text.contains('{') => "an object",
        _ => "another one",
    }
}
