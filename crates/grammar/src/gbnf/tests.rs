//! Compares converted grammars with a naive recognizer that follows the definition of GBNF.

use std::collections::{BTreeSet, HashMap};

use proptest::prelude::*;

use super::parse::{self, Grammar, Node};
use super::{is_gbnf, to_lark};
use crate::tests::{compiler, take};
use crate::{Constraint, Error, GrammarCompiler};

const JSON: &str = r##"
# A JSON value, as llama.cpp writes it.
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
"##;

const ARITHMETIC: &str = r##"
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"##;

const MOVES: &str = r##"
root    ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move    ::= (pawn | nonpawn | castle) [+#]?
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn    ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle  ::= "O-O" "-O"?
"##;

const LIST: &str =
    "root ::= item+\nitem ::= \"- \" [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ \"\\n\"";

/// Keywords that are also identifiers, and tail recursion for white space.
const PROGRAM: &str = r#"
root ::= statement root | statement
statement ::= "if" ws "(" name ")" ws statement | name "=" [0-9]+ ";" ws
name ::= [a-z]+
ws ::= ([ \n] ws)?
"#;

fn compile(compiler: &GrammarCompiler, grammar: &str) -> crate::Grammar {
    compiler
        .compile(&Constraint::Gbnf(grammar.into()))
        .unwrap_or_else(|error| panic!("{error}: {grammar}"))
}

#[test]
fn texts_of_grammars_as_they_are_written_are_allowed() {
    let compiler = compiler();
    for (grammar, whole, partial, not) in [
        (
            JSON,
            "{\"a\": [1, -2.5e1, {\"\\u00e9\": \"é\"}], \"b\":null}",
            "{\"a\": [t",
            "{\"a\": [tx",
        ),
        (JSON, "{}\n  ", "{\"a\":", "{,"),
        (ARITHMETIC, "(a +3)= 7\n", "a*(b-c", "a b"),
        (ARITHMETIC, "x1=2\n\n\ny=3\n", "x1 = (", "1x"),
        (MOVES, "1. e4 e5\n2. Nf3 O-O-O\n", "1. e4 e5\n10. Qxd8+ ", "1. e4 e9"),
        (LIST, "- one\n- два\n", "- one", "- one\n\n"),
        (PROGRAM, "if (x) iffy=12;\n a=1;", "i", "if (if) 1"),
        (PROGRAM, "iff=1;", "if ", "if="),
        ("root ::= [a-z]* \"end\"", "sendend", "sen", "en1"),
        ("root ::= \"(\" root \")\" | [a-z]+ \"a\"", "((bbaa))", "((b", "(a)"),
        ("root::=\"é\"{2}|.\nx::=\"\"", "éé", "é", "éb"),
    ] {
        let state = compile(&compiler, grammar);
        assert_eq!(take(state.clone(), whole), Some(true), "{whole:?} of {grammar}");
        assert!(take(state.clone(), partial).is_some(), "{partial:?} of {grammar}");
        assert_ne!(take(state, not), Some(true), "{not:?} of {grammar}");
    }
    assert_eq!(take(compile(&compiler, ARITHMETIC), "a b"), None);
    assert_eq!(take(compile(&compiler, JSON), "{\"a\": [tx"), None);
}

#[test]
fn what_is_wrong_is_said_with_its_line_and_rule() {
    for (grammar, message) in [
        ("root ::= \"a", "line 1, rule `root`: a string does not end in its line"),
        ("root ::= [a\n]", "line 2, rule `root`: a class does not end in its line"),
        (
            "root ::= \"a\"\n\nb ::= other | [z-a]",
            "line 3, rule `b`: the range `z-a` is reversed: write the smaller character first",
        ),
        ("root ::= b\n", "line 1, rule `root`: there is no rule `b`"),
        ("start ::= \"a\"", "there is no rule `root`"),
        (
            "root ::= (\"a\"\n\nb ::= \"c\"",
            "line 3, rule `root`: `)` for the `(` of line 1 is expected, not `b`",
        ),
        ("root ::= \"a\"\nroot ::= \"b\"", "line 2, rule `root`: it is defined twice"),
        (
            "root ::= \"\\q\"",
            "line 1, rule `root`: an escape is unknown: use one of \\n \\r \\t \\\\ \\\" \\[ \\] \\xNN \\uNNNN \\UNNNNNNNN",
        ),
        (
            "root ::= \"\\ud800\"",
            "line 1, rule `root`: an escape with \\x, \\u or \\U needs the hexadecimal code of a character",
        ),
        ("root ::= [^\\x00-\\U0010FFFF]", "line 1, rule `root`: a class has no characters"),
        (
            "root ::= [^\\x00-\\uD7FF\\uE000-\\U0010FFFF]",
            "line 1, rule `root`: a class has no characters",
        ),
        (
            "root ::= \"a\"{\n3\n,2}",
            "line 1, rule `root`: `{\\n3\\n,2}` has a minimum above its maximum",
        ),
        (
            "root ::= \"a\"{\n1,\n2}\n  \"\\q",
            "line 4, rule `root`: an escape is unknown: use one of \\n \\r \\t \\\\ \\\" \\[ \\] \\xNN \\uNNNN \\UNNNNNNNN",
        ),
        ("root ::= \"a\"{3,2}", "line 1, rule `root`: `{3,2}` has a minimum above its maximum"),
        (
            "root ::= \"a\"{99999}",
            "line 1, rule `root`: `{99999}` needs one or two counts up to 10000",
        ),
        (
            "root ::= \"a\"**",
            "line 1, rule `root`: a repetition is repeated: put it into parentheses",
        ),
        (
            "root ::= (=\"a\")",
            "line 1, rule `root`: `)` for the `(` of line 1 is expected, not `=`",
        ),
        (
            "root ::= \"a\" )",
            "line 1, rule `root`: a string, a class, a rule or a group is expected, not `)`",
        ),
        (
            "root ::= b\nb ::= \"x\" b",
            "line 1, rule `root`: it always calls itself, so that no text can end; add an alternative without it",
        ),
        ("root = \"a\"\nb ::= \"a\"", "line 1: `::=` after `root` is expected, not `=`"),
    ] {
        assert_eq!(to_lark(grammar).unwrap_err(), Error::Constraint(message.into()), "{grammar}");
    }
    let deep = format!("root ::= {}\"a\"{}", "(".repeat(100_000), ")".repeat(100_000));
    assert!(to_lark(&deep).unwrap_err().to_string().contains("more than 32 levels"));
    let many: String = (0..501).map(|i| format!("r{i} ::= r{}\n", i + 1)).collect();
    assert!(to_lark(&many).unwrap_err().to_string().contains("more than 500 rules"));
    // Each rule doubles the next one: 2^40 copies in an automaton without a limit.
    let wide: String = (0..40).map(|i| format!("r{i} ::= r{} r{}\n", i + 1, i + 1)).collect();
    let wide = format!("root ::= \"(\" root \")\" | r0\n{wide}r40 ::= \"a\"");
    assert!(to_lark(&wide).unwrap_err().to_string().contains("too complex"));
}

#[test]
fn the_two_notations_are_told_apart() {
    for grammar in [JSON, ARITHMETIC, "root ::=\n \"a\"", "a-b ::= c"] {
        assert!(is_gbnf(grammar), "{grammar}");
    }
    for grammar in
        ["start: \"a\"", "start: \"x ::= y\"", "%llguidance {}\nstart::_ : a::incr(_)", ""]
    {
        assert!(!is_gbnf(grammar), "{grammar}");
    }
}

/// The positions where a node that begins at `at` can end, by trying everything; `ends` has the known ends of rules.
fn ends(
    node: &Node,
    text: &[char],
    at: usize,
    known: &HashMap<(usize, usize), BTreeSet<usize>>,
) -> BTreeSet<usize> {
    let after = |from: BTreeSet<usize>, node: &Node| -> BTreeSet<usize> {
        from.into_iter().flat_map(|at| ends(node, text, at, known)).collect()
    };
    match node {
        Node::Chars(chars) => text
            .get(at)
            .filter(|c| chars.contains(u32::from(**c)))
            .map(|_| at + 1)
            .into_iter()
            .collect(),
        Node::Rule(rule) => known.get(&(*rule, at)).cloned().unwrap_or_default(),
        Node::Sequence(nodes) => nodes.iter().fold(BTreeSet::from([at]), after),
        Node::Choice(nodes) => nodes.iter().flat_map(|node| ends(node, text, at, known)).collect(),
        Node::Repeat(node, least, most) => {
            let (mut reached, mut all) = (BTreeSet::from([at]), BTreeSet::new());
            for count in 0..=most.unwrap_or(least + text.len() as u32 + 1) {
                if count >= *least {
                    all.extend(&reached);
                }
                reached = after(reached, node);
            }
            all
        }
    }
}

/// Whether a text matches the grammar.
fn is_text_of(grammar: &Grammar, text: &str) -> bool {
    let text: Vec<char> = text.chars().collect();
    let mut known = HashMap::new();
    loop {
        let mut grew = false;
        for (number, rule) in grammar.rules.iter().enumerate() {
            for at in 0..=text.len() {
                let found = ends(&rule.body, &text, at, &known);
                grew |=
                    known.insert((number, at), found.clone()).is_none_or(|before| before != found);
            }
        }
        if !grew {
            return known[&(grammar.root, 0)].contains(&text.len());
        }
    }
}

/// A random element of two characters and three rules.
fn element() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("\"a\"".to_owned()),
        Just("\"ab\"".to_owned()),
        Just("\"b\"".to_owned()),
        Just("[ab]".to_owned()),
        Just("root".to_owned()),
        Just("x".to_owned()),
        Just("y".to_owned()),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..4)
                .prop_map(|parts| format!("({})", parts.join(" "))),
            prop::collection::vec(inner.clone(), 1..3)
                .prop_map(|parts| format!("({})", parts.join(" | "))),
            (inner, prop::sample::select(vec!["*", "+", "?", "{2}", "{1,2}"]))
                .prop_map(|(part, op)| format!("({part}){op}")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_short_text_is_allowed_exactly_if_the_grammar_has_it(root in element(), x in element(), y in element()) {
        let text = format!("root ::= {root}\nx ::= {x} | \"b\"\ny ::= \"a\" | {y}");
        let Ok(_) = to_lark(&text) else {
            // The grammar never ends, or is refused as too complex.
            return Ok(());
        };
        let grammar = parse::parse(&text).unwrap();
        let compiler = compiler();
        let state = match compiler.compile(&Constraint::Gbnf(text.clone())) {
            Ok(state) => state,
            Err(Error::Constraint(reason)) => {
                prop_assert!(reason.contains("no output can satisfy"), "{reason}: {text}");
                return Ok(());
            }
            Err(other) => panic!("{other}"),
        };
        // All 63 texts of at most five letters are compared, so that nothing depends on a choice of texts.
        for length in 0..=5 {
            for bits in 0..1_u32 << length {
                let word: String = (0..length).map(|i| if bits >> i & 1 == 0 { 'a' } else { 'b' }).collect();
                let is_allowed = take(state.clone(), &word) == Some(true);
                prop_assert_eq!(is_allowed, is_text_of(&grammar, &word), "{:?} of {}", word, text);
            }
        }
    }
}
