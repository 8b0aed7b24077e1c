//! The effect of a splitting rule (a regular expression) at the border between two characters, for any text around
//! them.
//!
//! Each place of the rule that consumes a character is a position (Glushkov's construction). A match that consumes
//! two neighbours goes from a position that takes the first to one that may follow and takes the second. If there are
//! no two such positions, then no match, no attempt at one and no look-ahead reaches across the border.

use tokenizers::utils::SysRegex;

use super::syntax::{Look, Node, One, parse};

/// A set of positions as bits.
type Positions = u128;

/// Highest count of repetitions that is represented exactly. Higher counts are treated as any number.
const MAX_COPIES: u32 = 8;

/// The positions of a splitting rule.
pub(super) struct Rule {
    matchers: Vec<Matcher>,
    kinds: Vec<Kind>,
    /// For each position the positions that may come next in a match.
    follow: Vec<Positions>,
    /// Positions with which a match may begin.
    first: Positions,
    /// Positions within a look-ahead or look-behind, which consume nothing.
    looked_at: Positions,
    /// Positions that are a whole match by themselves in any context.
    whole: Positions,
    /// An alternative that is one class, repeated up to a number of times: its positions and that number.
    counted: Option<(Positions, usize)>,
}

enum Kind {
    /// Consumes a character that this matcher matches.
    One(usize),
    /// Looks ahead, with the positions with which its content begins.
    Ahead(Positions),
    /// Looks at the character before, by the position of its content.
    Behind(Positions),
    Edge,
}

/// The set of characters that a position takes.
struct Matcher {
    one: One,
    regex: SysRegex,
}

/// The positions that take one character. They are computed once for each character, since that is costly.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Taken {
    /// Positions that may take it.
    may: Positions,
    /// Positions that take it for certain.
    must: Positions,
}

/// Positions of a part of the rule.
#[derive(Clone, Copy)]
struct Part {
    can_be_empty: bool,
    first: Positions,
    last: Positions,
}

const EMPTY: Part = Part { can_be_empty: true, first: 0, last: 0 };

impl Rule {
    /// Returns `None` for a rule that is not understood, or that may match the empty text.
    pub(super) fn new(rule: &str) -> Option<Self> {
        let alternatives = match parse(rule)? {
            Node::Alternatives(all) => all,
            one => vec![one],
        };
        let mut made = Self {
            matchers: Vec::new(),
            kinds: Vec::new(),
            follow: Vec::new(),
            first: 0,
            looked_at: 0,
            whole: 0,
            counted: None,
        };
        for alternative in &alternatives {
            let before = made.kinds.len();
            let part = made.add(alternative)?;
            // An empty match may lie at any border, where no position shows it.
            if part.can_be_empty {
                return None;
            }
            made.first |= part.first;
            if is_certain(alternative) {
                made.whole |= part.first & part.last;
                if let Some(most) = most_of_one(alternative) {
                    made.counted = Some((bits(before..made.kinds.len()), most));
                }
            }
        }
        Some(made)
    }

    /// The positions that take this character.
    pub(super) fn taken(&self, character: char) -> Taken {
        let mut text = [0; 4];
        let text = character.encode_utf8(&mut text);
        let matched: Vec<_> = self.matchers.iter().map(|matcher| matcher.matches(text)).collect();
        let mut taken = Taken::default();
        for (position, kind) in self.kinds.iter().enumerate() {
            if let Kind::One(matcher) = kind {
                let ignores_case = self.matchers[*matcher].one.ignores_case;
                // If case is ignored, one character may match several: `ß` is `ss`.
                let may = matched[*matcher] || ignores_case && has_foreign_case(character);
                taken.may |= Positions::from(may) << position;
                taken.must |= Positions::from(matched[*matcher] && !ignores_case) << position;
            }
        }
        taken
    }

    /// Whether the rule matches the same on both sides of a border as in the whole text, and never across it.
    pub(super) fn is_blind_across(&self, before: Taken, after: Taken) -> bool {
        !self.crosses(before, after)
            && positions(before.may).all(|position| self.is_blind_to_end(position, after))
            && positions(self.first).all(|position| self.is_blind_to_beginning(position, before))
    }

    /// Whether a match may contain both neighbours of a border.
    fn crosses(&self, before: Taken, after: Taken) -> bool {
        positions(before.may).any(|position| self.follow[position] & after.may != 0)
    }

    /// Whether every look-ahead after this position has the same result before `after` as at the end of a text.
    fn is_blind_to_end(&self, position: usize, after: Taken) -> bool {
        positions(self.follow[position]).all(|next| match self.kinds[next] {
            Kind::One(_) | Kind::Behind(_) => true,
            // The look-ahead sees the next character in the whole text, and nothing at the end of a piece. Both must
            // fail alike.
            Kind::Ahead(content) => content & (after.may | self.looks()) == 0,
            Kind::Edge => false,
        })
    }

    /// Whether the look-behind at the start of a match has the same result after `before` as at the beginning of a
    /// text.
    fn is_blind_to_beginning(&self, position: usize, before: Taken) -> bool {
        match self.kinds[position] {
            Kind::One(_) | Kind::Ahead(_) => true,
            Kind::Behind(content) => content & before.may == 0,
            Kind::Edge => false,
        }
    }

    /// Whether a border that no match crosses is certainly the edge of a match.
    pub(super) fn has_edge(&self, before: Taken, after: Taken) -> bool {
        (before.must | after.must) & self.whole != 0
    }

    /// Whether any match may contain this character.
    pub(super) fn may_hold(&self, taken: Taken) -> bool {
        taken.may != 0
    }

    /// The number of characters after which runs of counted characters are split. [`Self::is_counted`] identifies
    /// such characters.
    pub(super) fn counted(&self) -> Option<usize> {
        self.counted.map(|(_, most)| most)
    }

    /// Whether this character is taken by the counted alternative and by no other.
    pub(super) fn is_counted(&self, taken: Taken) -> bool {
        self.counted.is_some_and(|(own, _)| {
            taken.may & !own & !self.looked_at == 0 && taken.must & own & self.whole != 0
        })
    }

    /// Whether a match begins at the start of a run of counted characters, between `before` and `first`.
    pub(super) fn begins_count(&self, before: Option<Taken>, first: Taken) -> bool {
        before.is_none_or(|before| !self.crosses(before, first))
    }

    /// Whether a match that begins after a counted character would be the same at the beginning of a text.
    pub(super) fn goes_on_alike(&self, last: Taken) -> bool {
        positions(self.first).all(|first| self.is_blind_to_beginning(first, last))
    }

    fn looks(&self) -> Positions {
        let is_look = |(position, kind): (usize, &Kind)| match kind {
            Kind::One(_) => 0,
            Kind::Ahead(_) | Kind::Behind(_) | Kind::Edge => (1 as Positions) << position,
        };
        self.kinds.iter().enumerate().map(is_look).fold(0, |all, bit| all | bit)
    }

    fn add(&mut self, node: &Node) -> Option<Part> {
        match node {
            Node::One(one) => {
                let matcher = self.matcher(one)?;
                let position = self.position(Kind::One(matcher))?;
                Some(Part { can_be_empty: false, first: position, last: position })
            }
            Node::Look(look) => {
                let kind = self.look(look)?;
                let position = self.position(kind)?;
                Some(Part { can_be_empty: true, first: position, last: position })
            }
            Node::Greedier(node) => self.add(node),
            Node::Sequence(nodes) => nodes.iter().try_fold(EMPTY, |before, node| {
                let part = self.add(node)?;
                Some(self.chain(before, part))
            }),
            Node::Alternatives(nodes) => {
                let none = Part { can_be_empty: false, first: 0, last: 0 };
                nodes.iter().try_fold(none, |all, node| {
                    let part = self.add(node)?;
                    Some(Part {
                        can_be_empty: all.can_be_empty || part.can_be_empty,
                        first: all.first | part.first,
                        last: all.last | part.last,
                    })
                })
            }
            Node::Repeat { node, min, max } => self.repeat(node, *min, *max),
        }
    }

    fn repeat(&mut self, node: &Node, min: u32, max: Option<u32>) -> Option<Part> {
        // Each repetition has positions of its own, because the last one of `{1,3}` must not lead to a fourth.
        let copies = max.filter(|&max| max <= MAX_COPIES).unwrap_or(min.clamp(1, MAX_COPIES));
        let is_endless = max.is_none_or(|max| max > MAX_COPIES);
        let mut all = EMPTY;
        for copy in 0..copies {
            let mut part = self.add(node)?;
            if is_endless && copy + 1 == copies {
                self.link(part.last, part.first);
            }
            part.can_be_empty |= copy >= min;
            all = self.chain(all, part);
        }
        Some(all)
    }

    fn look(&mut self, look: &Look) -> Option<Kind> {
        let (Look::Ahead(content) | Look::Behind(content)) = look else { return Some(Kind::Edge) };
        let before = self.kinds.len();
        let part = self.add(content)?;
        self.looked_at |= bits(before..self.kinds.len());
        match look {
            Look::Edge => Some(Kind::Edge),
            Look::Ahead(_) => (!part.can_be_empty).then_some(Kind::Ahead(part.first)),
            Look::Behind(_) => {
                // A look-behind of one character sees only the neighbour of the border.
                let is_one = part.first == part.last
                    && part.first.is_power_of_two()
                    && positions(part.first).all(|position| self.follow[position] == 0)
                    && !part.can_be_empty;
                is_one.then_some(Kind::Behind(part.first))
            }
        }
    }

    fn chain(&mut self, before: Part, after: Part) -> Part {
        self.link(before.last, after.first);
        Part {
            can_be_empty: before.can_be_empty && after.can_be_empty,
            first: before.first | if before.can_be_empty { after.first } else { 0 },
            last: after.last | if after.can_be_empty { before.last } else { 0 },
        }
    }

    fn link(&mut self, from: Positions, to: Positions) {
        for position in positions(from) {
            self.follow[position] |= to;
        }
    }

    fn position(&mut self, kind: Kind) -> Option<Positions> {
        let position = u32::try_from(self.kinds.len()).ok()?;
        self.kinds.push(kind);
        self.follow.push(0);
        // More than 128 positions do not fit, and the rule is not understood. GPT-2's rule has 27.
        (1 as Positions).checked_shl(position)
    }

    fn matcher(&mut self, one: &One) -> Option<usize> {
        let known = self.matchers.iter().position(|matcher| matcher.one == *one);
        known.or_else(|| {
            let source = &one.source;
            // If case is ignored, a class of one character may match two characters unless it is ASCII.
            if one.ignores_case && (!source.is_ascii() || source.contains('\\')) {
                return None;
            }
            let case = if one.ignores_case { "i" } else { "" };
            // The library's own regex engine decides which characters a class has, because engines differ in
            // Unicode's tables.
            let regex = SysRegex::new(&format!(r"\A(?{case}:{source})\z")).ok()?;
            self.matchers.push(Matcher { one: one.clone(), regex });
            Some(self.matchers.len() - 1)
        })
    }
}

impl Matcher {
    fn matches(&self, character: &str) -> bool {
        self.regex.find_iter(character).next().is_some()
    }
}

/// Whether the character has another form in another case, which may be several characters.
fn has_foreign_case(character: char) -> bool {
    !character.is_ascii()
        && (character.to_lowercase().ne([character]) || character.to_uppercase().ne([character]))
}

fn positions(bits: Positions) -> impl Iterator<Item = usize> {
    let mut left = bits;
    std::iter::from_fn(move || {
        let position = left.trailing_zeros() as usize;
        left &= left.checked_sub(1)?;
        Some(position)
    })
}

fn bits(range: std::ops::Range<usize>) -> Positions {
    range.fold(0, |bits, position| bits | (1 as Positions) << position)
}

/// Whether the part matches every text that its positions allow, in any context.
fn is_certain(node: &Node) -> bool {
    match node {
        Node::One(_) => true,
        Node::Look(_) | Node::Greedier(_) => false,
        Node::Sequence(nodes) | Node::Alternatives(nodes) => nodes.iter().all(is_certain),
        // With more copies than are represented, fewer copies are not a match.
        Node::Repeat { node, min, .. } => *min <= MAX_COPIES && is_certain(node),
    }
}

/// Largest number of characters of a part that is one class, repeated one to that many times.
fn most_of_one(node: &Node) -> Option<usize> {
    match node {
        Node::Sequence(nodes) if nodes.len() == 1 => most_of_one(&nodes[0]),
        Node::Repeat { node, min: 1, max: Some(max) } if *max <= MAX_COPIES => {
            matches!(**node, Node::One(_)).then_some(*max as usize)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_border_is_safe_where_nothing_looks_across_it() {
        let behind = r"(?<![a-z])\d+|\p{L}+|[^\p{L}]";
        let ahead = r"\p{L}+(?= *!)|.|\n";
        for (rule, before, after, is_blind) in [
            (r"\p{L}+|\P{L}", 'a', ' ', true),
            (r"\p{L}+|\P{L}", 'a', 'b', false),
            (behind, 'a', '1', false),
            (behind, '!', '1', true),
            (ahead, 'a', ' ', false),
            (ahead, 'a', ',', true),
            (r"\b\w+|\W", '!', 'a', false),
            (r"\w+$|\w|\W", 'a', '!', false),
            // `ß` matches `ss` without regard to case, so the match could begin with it.
            (r"(?i:ss)|\w|\W", 'ß', 's', false),
        ] {
            let rule = Rule::new(rule).unwrap();
            let found = rule.is_blind_across(rule.taken(before), rule.taken(after));
            assert_eq!(found, is_blind, "{before}{after}");
        }
        assert!(Rule::new(r"a*").is_none() && Rule::new(r"(?<=ab)c").is_none());
    }
}
