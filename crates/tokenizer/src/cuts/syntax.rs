//! The parts of a splitting rule: the part of the syntax of regular expressions that tokenizers use.
//!
//! A rule with any other syntax is not understood, and then no text is cut. A class keeps its source, since only the
//! regex engine itself knows its characters.

/// The syntax tree of a splitting rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Node {
    /// One character of a class, or a literal character.
    One(One),
    /// A look-around or an anchor, which consumes nothing.
    Look(Look),
    Sequence(Vec<Node>),
    Alternatives(Vec<Node>),
    Repeat {
        node: Box<Node>,
        min: u32,
        /// `None` is unlimited.
        max: Option<u32>,
    },
    /// A possessive or atomic part. It consumes the same as its content, but may fail where its content alone would
    /// match.
    Greedier(Box<Node>),
}

/// A part that matches exactly one character.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct One {
    /// The part of the rule that describes it.
    pub(super) source: String,
    pub(super) ignores_case: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Look {
    Ahead(Box<Node>),
    Behind(Box<Node>),
    /// Edges of lines and words.
    Edge,
}

/// The syntax tree of a rule; `None` if it is not understood.
pub(super) fn parse(rule: &str) -> Option<Node> {
    let mut parser = Parser { rest: rule, depth: 0 };
    let node = parser.alternatives(false)?;
    parser.rest.is_empty().then_some(node)
}

/// Deepest nesting of groups. Rules of tokenizers have two or three levels.
const MAX_DEPTH: usize = 16;

struct Parser<'a> {
    rest: &'a str,
    depth: usize,
}

impl Parser<'_> {
    fn take(&mut self, wanted: &str) -> bool {
        let rest = self.rest.strip_prefix(wanted);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn next(&mut self) -> Option<char> {
        let character = self.rest.chars().next()?;
        self.rest = &self.rest[character.len_utf8()..];
        Some(character)
    }

    fn alternatives(&mut self, ignores_case: bool) -> Option<Node> {
        let mut all = vec![self.sequence(ignores_case)?];
        while self.take("|") {
            all.push(self.sequence(ignores_case)?);
        }
        Some(if all.len() == 1 { all.remove(0) } else { Node::Alternatives(all) })
    }

    fn sequence(&mut self, ignores_case: bool) -> Option<Node> {
        let mut parts = Vec::new();
        while !self.rest.is_empty() && !self.rest.starts_with(['|', ')']) {
            let part = self.part(ignores_case)?;
            parts.push(self.repeated(part)?);
        }
        Some(Node::Sequence(parts))
    }

    fn part(&mut self, ignores_case: bool) -> Option<Node> {
        let before = self.rest;
        let is_one = match self.next()? {
            '(' => return self.group(ignores_case),
            '^' | '$' => return Some(Node::Look(Look::Edge)),
            '[' => self.class(),
            '\\' => match self.escape()? {
                Escape::One => Some(()),
                Escape::Edge => return Some(Node::Look(Look::Edge)),
            },
            '*' | '+' | '?' | ')' => None,
            _ => Some(()),
        };
        is_one?;
        let source = before[..before.len() - self.rest.len()].to_owned();
        Some(Node::One(One { source, ignores_case }))
    }

    fn group(&mut self, ignores_case: bool) -> Option<Node> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let wrap: fn(Node) -> Node = if self.take("?:") || !self.rest.starts_with('?') {
            |node| node
        } else if self.take("?>") {
            |node| Node::Greedier(Box::new(node))
        } else if self.take("?=") || self.take("?!") {
            |node| Node::Look(Look::Ahead(Box::new(node)))
        } else if self.take("?<=") || self.take("?<!") {
            |node| Node::Look(Look::Behind(Box::new(node)))
        } else if self.take("?i:") {
            // Case is ignored within this group only, so that no state has to be restored.
            let node = self.alternatives(true)?;
            self.depth -= 1;
            return self.take(")").then_some(node);
        } else {
            return None;
        };
        let node = self.alternatives(ignores_case)?;
        self.depth -= 1;
        self.take(")").then(|| wrap(node))
    }

    /// Reads the rest of a class, after its `[`. Classes may contain classes.
    fn class(&mut self) -> Option<()> {
        let mut depth = 1;
        self.take("^");
        // Some engines allow a literal bracket here, which is not understood.
        if self.rest.starts_with(']') {
            return None;
        }
        while depth > 0 {
            match self.next()? {
                '[' => depth += 1,
                ']' => depth -= 1,
                '\\' => match self.escape()? {
                    Escape::One => {}
                    Escape::Edge => return None,
                },
                _ => {}
            }
        }
        Some(())
    }

    fn escape(&mut self) -> Option<Escape> {
        match self.next()? {
            's' | 'S' | 'd' | 'D' | 'w' | 'W' | 'n' | 'r' | 't' | 'f' => Some(Escape::One),
            'p' | 'P' if self.take("{") => self.until_brace(),
            'x' if self.take("{") => self.until_brace(),
            'u' => self.hex_digits(4),
            'x' => self.hex_digits(2),
            'A' | 'b' | 'B' | 'G' | 'z' | 'Z' => Some(Escape::Edge),
            // References to groups, sequences of several characters, and letters without a meaning here.
            character if character.is_alphanumeric() => None,
            _ => Some(Escape::One),
        }
    }

    fn until_brace(&mut self) -> Option<Escape> {
        let (name, rest) = self.rest.split_once('}')?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '^' | '=' | ' ');
        self.rest = rest;
        name.chars().all(is_name).then_some(Escape::One)
    }

    fn hex_digits(&mut self, count: usize) -> Option<Escape> {
        let digits = self.rest.get(..count)?;
        self.rest = &self.rest[count..];
        digits.chars().all(|c| c.is_ascii_hexdigit()).then_some(Escape::One)
    }

    fn repeated(&mut self, mut node: Node) -> Option<Node> {
        loop {
            let (min, max) = match self.rest.chars().next() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    let (min, max) = self.counts()?;
                    node = Node::Repeat { node: Box::new(node), min, max };
                    // The engine repeats the whole part, and makes one with an exact number optional.
                    if self.take("+") {
                        node = Node::Repeat { node: Box::new(node), min: 1, max: None };
                    } else if self.take("?") && max == Some(min) {
                        node = Node::Repeat { node: Box::new(node), min: 0, max: Some(1) };
                    }
                    continue;
                }
                _ => return Some(node),
            };
            self.next();
            node = Node::Repeat { node: Box::new(node), min, max };
            if self.take("+") {
                node = Node::Greedier(Box::new(node));
            } else {
                self.take("?");
            }
        }
    }

    /// `{2}`, `{2,}` or `{2,3}`.
    fn counts(&mut self) -> Option<(u32, Option<u32>)> {
        let (counts, rest) = self.rest.strip_prefix('{')?.split_once('}')?;
        self.rest = rest;
        match counts.split_once(',') {
            None => counts.parse().ok().map(|count| (count, Some(count))),
            Some((min, "")) => min.parse().ok().map(|min| (min, None)),
            Some((min, max)) => Some((min.parse().ok()?, Some(max.parse().ok()?))),
        }
    }
}

enum Escape {
    One,
    Edge,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(source: &str) -> Node {
        Node::One(One { source: source.into(), ignores_case: false })
    }

    #[test]
    fn parts_of_rules_are_found() {
        let repeat = |node, min, max| Node::Repeat { node: Box::new(node), min, max };
        let class = r"[^\s\p{L}[a-z&&[^b]]\]]";
        assert_eq!(
            parse(&format!(" ?{class}+|\\p{{N}}{{1,3}}")).unwrap(),
            Node::Alternatives(vec![
                Node::Sequence(vec![repeat(one(" "), 0, Some(1)), repeat(one(class), 1, None)]),
                Node::Sequence(vec![repeat(one(r"\p{N}"), 1, Some(3))]),
            ])
        );
        let ahead = Node::Look(Look::Ahead(Box::new(Node::Sequence(vec![one(r"\S")]))));
        assert_eq!(
            parse(r"\s+(?!\S)").unwrap(),
            Node::Sequence(vec![repeat(one(r"\s"), 1, None), ahead])
        );
        let any_case = |source: &str| Node::One(One { source: source.into(), ignores_case: true });
        assert_eq!(
            parse("(?i:'s)").unwrap(),
            Node::Sequence(vec![Node::Sequence(vec![any_case("'"), any_case("s")])])
        );
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for rule in [
            "(",
            ")",
            "[a",
            "a**)",
            "(?i)a",
            "(?<name>a)",
            r"\1",
            r"\X",
            r"\R",
            "*",
            "[]a]",
            r"\p{",
            "(?#c)",
            r"\k<a>",
            r"[\b]",
            r"a{x}",
            "(?m:.)",
        ] {
            assert_eq!(parse(rule), None, "{rule}");
        }
        assert_eq!(parse(&("(".repeat(1000) + &")".repeat(1000))), None);
    }
}
