//! Parser for GBNF.

use std::collections::HashMap;

use super::chars::CharSet;
use crate::{Error, Result};

/// The start rule.
const ROOT: &str = "root";
/// Maximum nesting of groups.
const MAX_DEPTH: usize = 32;
/// Maximum rules of a grammar.
const MAX_RULES: usize = 500;
/// Maximum count of a repetition.
const MAX_COUNT: u32 = 10_000;

/// The error for tokens.
const TOKENS: &str = "tokens (`<[1]>`, `<name>`, `!<[1]>`) are not supported, because GBNF is enforced character by character: write the token's text as a string";

/// An expression of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Node {
    /// One of these characters.
    Chars(CharSet),
    /// The rule with this index.
    Rule(usize),
    /// One after the other; an empty sequence is the empty text.
    Sequence(Vec<Node>),
    /// One of them.
    Choice(Vec<Node>),
    /// A node with its minimum and maximum number of repetitions.
    Repeat(Box<Node>, u32, Option<u32>),
}

impl Node {
    /// Calls `seen` with each referenced rule.
    pub(super) fn for_each_rule(&self, seen: &mut impl FnMut(usize)) {
        match self {
            Self::Chars(_) => {}
            Self::Rule(rule) => seen(*rule),
            Self::Sequence(nodes) | Self::Choice(nodes) => {
                nodes.iter().for_each(|node| node.for_each_rule(seen));
            }
            Self::Repeat(node, _, _) => node.for_each_rule(seen),
        }
    }

    /// A sequence of nodes, or the only one.
    pub(super) fn sequence(mut nodes: Vec<Self>) -> Self {
        if nodes.len() == 1 { nodes.remove(0) } else { Self::Sequence(nodes) }
    }

    /// A choice of nodes, or the only one.
    pub(super) fn choice(mut nodes: Vec<Self>) -> Self {
        if nodes.len() == 1 { nodes.remove(0) } else { Self::Choice(nodes) }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) name: String,
    /// The line of its definition.
    pub(super) line: usize,
    pub(super) body: Node,
}

#[derive(Clone, Debug)]
pub(super) struct Grammar {
    pub(super) rules: Vec<Rule>,
    pub(super) root: usize,
}

/// Whether a rule's name may have a character.
pub(super) fn is_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || "-_.".contains(character)
}

/// Parses a grammar.
pub(super) fn parse(text: &str) -> Result<Grammar> {
    let mut parser = Parser {
        chars: text.chars().collect(),
        at: 0,
        line: 1,
        numbers: HashMap::new(),
        uses: Vec::new(),
        rules: Vec::new(),
        rule: String::new(),
        depth: 0,
    };
    parser.skip_space();
    while parser.peek().is_some() {
        parser.definition()?;
    }
    let Parser { rules, uses, mut numbers, .. } = parser;
    let mut defined = Vec::with_capacity(rules.len());
    for (rule, (name, line, user)) in rules.into_iter().zip(uses) {
        // `uses` and `rules` grow together, so the first mention of the missing rule has the same index.
        let Some(rule) = rule else {
            return Err(wrong(line, &user, &format!("there is no rule `{name}`")));
        };
        defined.push(rule);
    }
    let root = numbers
        .remove(ROOT)
        .ok_or_else(|| Error::Constraint(format!("there is no rule `{ROOT}`")))?;
    Ok(Grammar { rules: defined, root })
}

fn wrong(line: usize, rule: &str, what: &str) -> Error {
    // The message may quote the grammar, which may contain line breaks.
    let what = what.replace('\n', "\\n").replace('\r', "\\r");
    match rule {
        "" => Error::Constraint(format!("line {line}: {what}")),
        rule => Error::Constraint(format!("line {line}, rule `{rule}`: {what}")),
    }
}

struct Parser {
    chars: Vec<char>,
    at: usize,
    line: usize,
    numbers: HashMap<String, usize>,
    /// The name of each rule, with the line and the rule of its first mention.
    uses: Vec<(String, usize, String)>,
    rules: Vec<Option<Rule>>,
    /// The current rule.
    rule: String,
    depth: usize,
}

impl Parser {
    /// `name ::= alternatives`
    fn definition(&mut self) -> Result<()> {
        let line = self.line;
        self.rule.clear();
        let Some(name) = self.name() else { return Err(self.unexpected("the name of a rule")) };
        self.skip_space();
        if !self.take("::=") {
            return Err(self.unexpected(&format!("`::=` after `{name}`")));
        }
        self.rule.clone_from(&name);
        let number = self.number_of(&name)?;
        if self.rules[number].is_some() {
            return Err(self.wrong("it is defined twice"));
        }
        let body = self.alternatives()?;
        // GBNF has no sign for the end of a rule. The next definition ends it.
        if self.peek().is_some() && !self.at_definition() {
            return Err(self.unexpected("a string, a class, a rule or a group"));
        }
        self.rules[number] = Some(Rule { name, line, body });
        Ok(())
    }

    fn alternatives(&mut self) -> Result<Node> {
        let mut alternatives = vec![self.sequence()?];
        while self.take("|") {
            alternatives.push(self.sequence()?);
        }
        Ok(Node::choice(alternatives))
    }

    fn sequence(&mut self) -> Result<Node> {
        let mut nodes = Vec::new();
        loop {
            self.skip_space();
            let node = match self.peek() {
                Some('"') => self.string()?,
                Some('[') => self.class()?,
                Some('(') => self.group()?,
                Some('<' | '!') => return Err(self.wrong(TOKENS)),
                Some('.') => {
                    self.at += 1;
                    Node::Chars(CharSet::all())
                }
                Some(character) if is_name(character) && !self.at_definition() => {
                    let name = self.name().expect("a character of a name is next");
                    Node::Rule(self.number_of(&name)?)
                }
                _ => return Ok(Node::sequence(nodes)),
            };
            nodes.push(self.repeated(node)?);
        }
    }

    fn group(&mut self) -> Result<Node> {
        let line = self.line;
        self.at += 1;
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.wrong(&format!("groups are nested more than {MAX_DEPTH} levels deep")));
        }
        let node = self.alternatives()?;
        self.depth -= 1;
        if !self.take(")") {
            return Err(self.unexpected(&format!("`)` for the `(` of line {line}")));
        }
        Ok(node)
    }

    /// A string, as the sequence of its characters.
    fn string(&mut self) -> Result<Node> {
        self.at += 1;
        let mut nodes = Vec::new();
        loop {
            match self.next() {
                Some('"') => return Ok(Node::sequence(nodes)),
                None | Some('\n') => return Err(self.wrong("a string does not end in its line")),
                Some(character) => {
                    let character = self.unescaped(character)?;
                    nodes.push(Node::Chars(CharSet::one(character)));
                }
            }
        }
    }

    fn class(&mut self) -> Result<Node> {
        self.at += 1;
        let is_negated = self.peek() == Some('^');
        self.at += usize::from(is_negated);
        let mut ranges = Vec::new();
        loop {
            let first = match self.next() {
                Some(']') => break,
                None | Some('\n') => return Err(self.wrong("a class does not end in its line")),
                Some(character) => self.unescaped(character)?,
            };
            let mut last = first;
            if self.peek() == Some('-')
                // A hyphen before the closing bracket is a literal hyphen.
                && self.chars.get(self.at + 1).is_some_and(|next| *next != ']')
            {
                self.at += 1;
                let end = self.next().expect("it was looked at");
                last = self.unescaped(end)?;
            }
            if first > last {
                return Err(self.wrong(&format!(
                    "the range `{first}-{last}` is reversed: write the smaller character first"
                )));
            }
            ranges.push((first.into(), last.into()));
        }
        let set = CharSet::new(ranges);
        let set = if is_negated { set.complement() } else { set };
        match set.is_empty() {
            true => Err(self.wrong("a class has no characters")),
            false => Ok(Node::Chars(set)),
        }
    }

    /// A character, or the one of an escape that begins with it.
    fn unescaped(&mut self, character: char) -> Result<char> {
        if character != '\\' {
            return Ok(character);
        }
        let escape = self.next();
        let digits =
            match escape {
                Some('n') => return Ok('\n'),
                Some('r') => return Ok('\r'),
                Some('t') => return Ok('\t'),
                Some('x') => 2,
                Some('u') => 4,
                Some('U') => 8,
                // llama.cpp knows `\\`, `\"`, `\[` and `\]`. Others are accepted as what they can only mean.
                Some(character) if character.is_ascii_punctuation() => return Ok(character),
                _ => return Err(self.wrong(
                    "an escape is unknown: use one of \\n \\r \\t \\\\ \\\" \\[ \\] \\xNN \\uNNNN \\UNNNNNNNN",
                )),
            };
        let code: String = (0..digits).filter_map(|_| self.next()).collect();
        let code = u32::from_str_radix(&code, 16).ok().filter(|_| code.len() == digits);
        code.and_then(char::from_u32).ok_or_else(|| {
            self.wrong("an escape with \\x, \\u or \\U needs the hexadecimal code of a character")
        })
    }

    /// The quantifiers after an element: `*`, `+`, `?`, `{2}`, `{2,}`, `{,3}`, `{2,3}`.
    fn repeated(&mut self, mut node: Node) -> Result<Node> {
        loop {
            self.skip_space();
            let (least, most) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => self.counts()?,
                _ => return Ok(node),
            };
            self.at += 1;
            if matches!(node, Node::Repeat(..)) {
                return Err(self.wrong("a repetition is repeated: put it into parentheses"));
            }
            node = Node::Repeat(Box::new(node), least, most);
        }
    }

    /// The numbers in braces, up to the closing brace.
    fn counts(&mut self) -> Result<(u32, Option<u32>)> {
        let close = self.chars[self.at..].iter().position(|character| *character == '}');
        let text: String = match close {
            Some(close) => self.chars[self.at + 1..self.at + close].iter().collect(),
            None => return Err(self.wrong("a `{` is not closed")),
        };
        let number = |text: &str| match text.trim().parse::<u32>() {
            Ok(number) if number <= MAX_COUNT => Ok(number),
            _ => Err(self.wrong(&format!(
                "`{{{}}}` needs one or two counts up to {MAX_COUNT}",
                excerpt(text)
            ))),
        };
        let counts = match text.split_once(',') {
            None => number(&text).map(|count| (count, Some(count)))?,
            Some((least, most)) => {
                let least = if least.trim().is_empty() { 0 } else { number(least)? };
                (least, if most.trim().is_empty() { None } else { Some(number(most)?) })
            }
        };
        if counts.1.is_some_and(|most| most < counts.0) {
            return Err(self.wrong(&format!("`{{{text}}}` has a minimum above its maximum")));
        }
        // Counts may stand on several lines.
        for _ in 0..close.expect("it was found") {
            self.next();
        }
        Ok(counts)
    }

    fn number_of(&mut self, name: &str) -> Result<usize> {
        if let Some(number) = self.numbers.get(name) {
            return Ok(*number);
        }
        let number = self.rules.len();
        if number == MAX_RULES {
            return Err(self.wrong(&format!("the grammar has more than {MAX_RULES} rules")));
        }
        self.numbers.insert(name.to_owned(), number);
        self.uses.push((name.to_owned(), self.line, self.rule.clone()));
        self.rules.push(None);
        Ok(number)
    }

    fn name(&mut self) -> Option<String> {
        let name: String = self.chars[self.at..].iter().take_while(|c| is_name(**c)).collect();
        self.at += name.len();
        (!name.is_empty()).then_some(name)
    }

    /// Whether a rule's definition begins here.
    fn at_definition(&self) -> bool {
        let rest = &self.chars[self.at..];
        let name = rest.iter().take_while(|c| is_name(**c)).count();
        let mut after = rest[name..].iter().skip_while(|c| c.is_ascii_whitespace());
        name > 0 && [':', ':', '='].iter().all(|expected| after.next() == Some(expected))
    }

    /// Skips white space and comments.
    fn skip_space(&mut self) {
        let mut in_comment = false;
        while let Some(character) = self.peek() {
            in_comment = (in_comment || character == '#') && character != '\n';
            if !in_comment && !character.is_ascii_whitespace() {
                return;
            }
            self.next();
        }
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let character = self.peek()?;
        self.at += 1;
        self.line += usize::from(character == '\n');
        Some(character)
    }

    fn take(&mut self, text: &str) -> bool {
        let is_next =
            text.chars().enumerate().all(|(i, c)| self.chars.get(self.at + i) == Some(&c));
        self.at += if is_next { text.len() } else { 0 };
        is_next
    }

    fn unexpected(&self, wanted: &str) -> Error {
        match self.peek() {
            Some(found) => self.wrong(&format!("{wanted} is expected, not `{found}`")),
            None => self.wrong(&format!("{wanted} is expected, but the grammar ends")),
        }
    }

    fn wrong(&self, what: &str) -> Error {
        wrong(self.line, &self.rule, what)
    }
}

/// The start of a text from a request.
fn excerpt(text: &str) -> String {
    text.chars().take(20).collect()
}
