//! Mutates schemas, regular expressions and grammars. A constraint that compiles must allow a first token.

use std::process::Command;

use candlepower_grammar::{CompileLimits, Constraint, GrammarCompiler, TRIAL_COMMAND};
use candlepower_tokenizer::Tokenizer;
use fastrand::Rng;
use serde_json::{Value, json};

use super::repository;
use crate::{Round, Verdict, change};

/// The demo model's end-of-sequence token, and the width of its logits.
const EOS: u32 = 1275;
// The logits are wider than the vocabulary, as in models that pad them. A mask must never allow the rest.
pub(super) const NUM_LOGITS: usize = 1280;

const REGEXES: [&str; 4] = [
    r"(\+|-)?\d{1,3}(\.\d+)?",
    r"[^a-y]{0,6}|\w+@\w+\.(com|org)",
    r"(?i:yes|no)\s*$",
    r"^([01]\d|2[0-3]):[0-5]\d$",
];
const LARK: [&str; 2] = [
    "start: a | b\na: \"x\" b?\nb: /[0-9]+/\n",
    "start: \"{\" pair (\",\" pair)* \"}\"\npair: NAME \":\" NAME\nNAME: /[a-z]{1,5}/\n%ignore \" \"\n",
];
const GBNF: [&str; 2] = [
    "root ::= \"x\" item{2,3} | [a-z]+ \"!\"\nitem ::= [0-9] (\"-\" item)?\n",
    "root ::= object\nobject ::= \"{\" (string \":\" value)* \"}\"\nstring ::= \"\\\"\" [^\"]* \"\\\"\"\nvalue ::= object | string\n",
];
const PIECES: [&str; 18] = [
    "(", ")", "[", "]", "{", "}", "|", "*", "+", "?", "{9999}", "\\", "\"", "::=", "\n", "(?=a)",
    "\\p{L}", "é",
];

pub(super) fn open() -> Round {
    let (compiler, constraints) = (compiler(), Constraints::new());
    Box::new(move |random| {
        let constraint = constraints.changed(random);
        Verdict::of(compiler.compile(&constraint).and_then(|mut grammar| grammar.allowed()))
    })
}

/// A compiler for the demo model's vocabulary. It tries constraints in child processes, as the server does.
pub(super) fn compiler() -> GrammarCompiler {
    let tokenizer = std::fs::read(repository("crates/server/demo/tokenizer.json")).unwrap();
    let tokenizer = Tokenizer::from_bytes(&tokenizer, None).unwrap();
    let compiler = GrammarCompiler::new(&tokenizer, &[EOS], NUM_LOGITS).unwrap();
    let child = || {
        // The link stays valid if a build replaces the program meanwhile.
        let mut program = Command::new("/proc/self/exe");
        program.arg(TRIAL_COMMAND);
        program
    };
    compiler.with_trials(child, CompileLimits::default())
}

/// Constraints of every kind, with values to replace parts of them.
pub(super) struct Constraints {
    schemas: Vec<Value>,
    strange: Vec<Value>,
}

impl Constraints {
    pub(super) fn new() -> Self {
        Self { schemas: schemas(), strange: strange() }
    }

    /// A mutated constraint.
    pub(super) fn changed(&self, random: &mut Rng) -> Constraint {
        match random.usize(..6) {
            0 => Constraint::Regex(changed(&REGEXES, random)),
            1 => Constraint::Lark(changed(&LARK, random)),
            2 => Constraint::Gbnf(changed(&GBNF, random)),
            3 => {
                let mut tag = json!({"structures": [{"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}],
                    "triggers": ["<f"]});
                change::json(&mut tag, &self.strange, random);
                Constraint::StructuralTag(tag)
            }
            _ => {
                let mut schema = random.choice(&self.schemas).unwrap().clone();
                (0..=random.usize(..2))
                    .for_each(|_| change::json(&mut schema, &self.strange, random));
                Constraint::JsonSchema(schema)
            }
        }
    }

    /// An unchanged constraint.
    pub(super) fn unchanged(&self, random: &mut Rng) -> Constraint {
        match random.usize(..4) {
            0 => Constraint::Regex((*random.choice(&REGEXES).unwrap()).to_owned()),
            1 => Constraint::Lark((*random.choice(&LARK).unwrap()).to_owned()),
            2 => Constraint::Gbnf((*random.choice(&GBNF).unwrap()).to_owned()),
            _ => Constraint::JsonSchema(random.choice(&self.schemas).unwrap().clone()),
        }
    }
}

fn changed(texts: &[&str], random: &mut Rng) -> String {
    let text = *random.choice(texts).unwrap();
    change::text(text, &PIECES, random)
}

fn schemas() -> Vec<Value> {
    vec![
        json!({"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9},
            "b": {"type": "string", "pattern": "^[a-z]{2,5}$", "minLength": 2}}, "required": ["a"],
            "additionalProperties": false}),
        json!({"type": "array", "prefixItems": [{"type": "boolean"}, {"const": "x"}], "items": {"type": "number"},
            "minItems": 1, "maxItems": 4}),
        json!({"anyOf": [{"type": "null"}, {"oneOf": [{"enum": ["a", 1]}, {"type": "string", "format": "date"}]}]}),
        json!({"$defs": {"t": {"type": "object", "properties": {"next": {"$ref": "#/$defs/t"}}}}, "$ref": "#/$defs/t"}),
        json!({"type": "object", "patternProperties": {"^k[0-9]$": {"type": "integer", "multipleOf": 5}},
            "not": {"required": ["z"]}, "if": {"required": ["k1"]}, "then": {"required": ["k2"]}}),
    ]
}

fn strange() -> Vec<Value> {
    vec![
        json!(null),
        json!(true),
        json!(false),
        json!(0),
        json!(-1),
        json!(100_000),
        json!(1e300),
        json!(0.1),
        json!(""),
        json!("string"),
        json!("#/$defs/t"),
        json!("#"),
        json!("("),
        json!("x".repeat(500)),
        json!([]),
        json!(["a", "a"]),
        json!([{"type": "string"}, false]),
        json!({}),
        json!({"$ref": "#"}),
        json!({"not": {}}),
    ]
}
