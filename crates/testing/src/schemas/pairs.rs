//! Random schemas, and texts close to the limits of their instances.

use fastrand::Rng;
use serde_json::{Map, Value, json};

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

/// Schemas and JSON texts, built as strings, because the spelling of values matters.
pub struct Pairs {
    random: Rng,
}

impl Pairs {
    /// A source of schemas and texts, the same for the same seed.
    pub fn new(seed: u64) -> Self {
        Self { random: Rng::with_seed(seed) }
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.random.usize(..from.len())]
    }

    fn number(&mut self) -> Value {
        serde_json::from_str(self.pick(&NUMBERS)).expect("each of them is JSON")
    }

    /// A schema of at most this depth.
    pub fn schema(&mut self, depth: usize) -> Value {
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
            // The other implementation divides in double precision, which is exact for these numbers.
            let steps = ["0.5", "0.125", "2", "3", "10"];
            schema["multipleOf"] =
                serde_json::from_str(self.pick(&steps)).expect("each step is JSON");
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
    pub fn instance(&mut self, root: &Value, schema: &Value, depth: usize) -> String {
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
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
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
