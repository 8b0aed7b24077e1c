//! Division of a grammar into lexemes.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::automaton::Automaton;
use super::chars::CharSet;
use super::parse::{Grammar, Node};
use crate::{Error, Result};

/// Maximum rounds of dividing greedy lexemes.
const MAX_ROUNDS: usize = 100;

/// A grammar over lexemes.
pub(super) struct Plan {
    /// The lexemes, all of them regular.
    pub(super) lexemes: Vec<Lexeme>,
    /// The rules outside lexemes.
    pub(super) rules: BTreeMap<usize, Piece>,
    pub(super) root: Piece,
}

pub(super) struct Lexeme {
    pub(super) node: Node,
    pub(super) is_nullable: bool,
}

/// A [`Node`] over lexemes.
pub(super) enum Piece {
    Lexeme(usize),
    Rule(usize),
    Sequence(Vec<Piece>),
    Choice(Vec<Piece>),
    Repeat(Box<Piece>, u32, Option<u32>),
}

impl Plan {
    /// Begins with the largest lexemes, and divides those that could match characters of the next part.
    ///
    /// # Errors
    /// The grammar is too complex.
    pub(super) fn new(grammar: &Grammar) -> Result<Self> {
        let regular = regular_rules(grammar);
        let root = Node::Rule(grammar.root);
        if regular[grammar.root] {
            // A single lexeme ends at the end of the text.
            let lexeme = Lexeme { node: root, is_nullable: false };
            return Ok(Self {
                lexemes: vec![lexeme],
                rules: BTreeMap::new(),
                root: Piece::Lexeme(0),
            });
        }
        let mut divided = HashSet::new();
        for _ in 0..MAX_ROUNDS {
            // Each round plans anew: dividing one lexeme changes what follows the others.
            let mut planner = Planner::new(grammar, &regular, &divided);
            let root = planner.whole(&root);
            let automaton = Automaton::new(grammar, &planner.lexemes)?;
            let follow = Follow::new(&automaton, &planner, &root).lexemes;
            let Some(greedy) = automaton.greedy(&follow)? else {
                let is_nullable = |lexeme| automaton.is_nullable(lexeme);
                let nodes = planner.lexemes.into_iter().enumerate();
                let lexemes =
                    nodes.map(|(i, node)| Lexeme { node, is_nullable: is_nullable(i) }).collect();
                return Ok(Self { lexemes, rules: planner.rules, root });
            };
            // Single characters cannot be greedy, so this loop ends once everything is divided.
            divided.extend(greedy.into_iter().map(|lexeme| planner.lexemes[lexeme].clone()));
        }
        Err(Error::Constraint(
            "the grammar is too ambiguous to convert from GBNF; simplify its rules".to_owned(),
        ))
    }
}

/// Whether each rule is regular: neither it nor any rule reachable from it is recursive.
fn regular_rules(grammar: &Grammar) -> Vec<bool> {
    let mut regular = vec![false; grammar.rules.len()];
    loop {
        let mut grew = false;
        for (number, rule) in grammar.rules.iter().enumerate() {
            let mut all = true;
            rule.body.for_each_rule(&mut |mentioned| all &= regular[mentioned]);
            if all && !regular[number] {
                (regular[number], grew) = (true, true);
            }
        }
        if !grew {
            return regular;
        }
    }
}

struct Planner<'a> {
    grammar: &'a Grammar,
    regular: &'a [bool],
    /// Regular nodes that must not be lexemes.
    divided: &'a HashSet<Node>,
    lexemes: Vec<Node>,
    numbers: HashMap<Node, usize>,
    rules: BTreeMap<usize, Piece>,
}

impl<'a> Planner<'a> {
    fn new(grammar: &'a Grammar, regular: &'a [bool], divided: &'a HashSet<Node>) -> Self {
        let (lexemes, numbers, rules) = (Vec::new(), HashMap::new(), BTreeMap::new());
        Self { grammar, regular, divided, lexemes, numbers, rules }
    }

    /// The piece for a node, after adding all rules reachable from it.
    fn whole(&mut self, node: &Node) -> Piece {
        let mut waiting = Vec::new();
        let piece = self.piece(node, &mut waiting);
        while let Some(rule) = waiting.pop() {
            if !self.rules.contains_key(&rule) {
                let body = self.piece(&self.grammar.rules[rule].body, &mut waiting);
                self.rules.insert(rule, body);
            }
        }
        piece
    }

    fn is_regular(&self, node: &Node) -> bool {
        let mut all = true;
        node.for_each_rule(&mut |rule| all &= self.regular[rule]);
        all
    }

    /// The piece for a node. The rules in it are added to `waiting`.
    fn piece(&mut self, node: &Node, waiting: &mut Vec<usize>) -> Piece {
        if self.is_regular(node) {
            return self.regular_piece(node, waiting);
        }
        match node {
            Node::Rule(rule) => {
                waiting.push(*rule);
                Piece::Rule(*rule)
            }
            Node::Sequence(nodes) => {
                let both_regular = |a: &Node, b: &Node| self.is_regular(a) && self.is_regular(b);
                // Neighbouring regular nodes become one lexeme: fewer lexemes are less work for the parser.
                let runs: Vec<Node> =
                    nodes.chunk_by(both_regular).map(|run| Node::sequence(run.to_vec())).collect();
                Piece::Sequence(runs.iter().map(|node| self.piece(node, waiting)).collect())
            }
            Node::Choice(nodes) => {
                let (regular, others): (Vec<Node>, Vec<Node>) =
                    nodes.iter().cloned().partition(|node| self.is_regular(node));
                let regular = (!regular.is_empty()).then(|| Node::choice(regular));
                Piece::Choice(
                    others.iter().chain(&regular).map(|node| self.piece(node, waiting)).collect(),
                )
            }
            Node::Repeat(node, least, most) => {
                Piece::Repeat(Box::new(self.piece(node, waiting)), *least, *most)
            }
            Node::Chars(_) => unreachable!("it is regular"),
        }
    }

    fn regular_piece(&mut self, node: &Node, waiting: &mut Vec<usize>) -> Piece {
        if !self.divided.contains(node) {
            return self.lexeme(node);
        }
        match node {
            Node::Chars(_) => self.lexeme(node),
            Node::Rule(rule) => {
                waiting.push(*rule);
                Piece::Rule(*rule)
            }
            Node::Sequence(nodes) => Piece::Sequence(
                nodes.iter().map(|node| self.regular_piece(node, waiting)).collect(),
            ),
            Node::Choice(nodes) => {
                Piece::Choice(nodes.iter().map(|node| self.regular_piece(node, waiting)).collect())
            }
            Node::Repeat(node, least, most) => {
                Piece::Repeat(Box::new(self.regular_piece(node, waiting)), *least, *most)
            }
        }
    }

    fn lexeme(&mut self, node: &Node) -> Piece {
        if let Node::Sequence(nodes) = node
            && nodes.is_empty()
        {
            return Piece::Sequence(Vec::new());
        }
        // Equal nodes share a lexeme. So the parser need not decide between lexemes of the same texts.
        let next = self.lexemes.len();
        let number = *self.numbers.entry(node.clone()).or_insert(next);
        if number == next {
            self.lexemes.push(node.clone());
        }
        Piece::Lexeme(number)
    }
}

/// The characters that can come after each lexeme.
struct Follow<'a> {
    lexemes: Vec<CharSet>,
    rules: BTreeMap<usize, CharSet>,
    first: First<'a>,
    grew: bool,
}

/// The characters with which a piece can begin, and whether it can be empty.
struct First<'a> {
    automaton: &'a Automaton<'a>,
    rules: BTreeMap<usize, (CharSet, bool)>,
}

impl<'a> Follow<'a> {
    fn new(automaton: &'a Automaton<'a>, planner: &Planner<'_>, root: &Piece) -> Self {
        let mut first = First { automaton, rules: BTreeMap::new() };
        loop {
            let mut grew = false;
            for (rule, body) in &planner.rules {
                let found = first.of(body);
                // Rules may refer to each other, so their first characters are repeated until nothing changes. The
                // sets only grow.
                grew |= first.rules.insert(*rule, found.clone()) != Some(found);
            }
            if !grew {
                break;
            }
        }
        let lexemes = vec![CharSet::default(); planner.lexemes.len()];
        let mut follow = Self { lexemes, rules: BTreeMap::new(), first, grew: true };
        while std::mem::take(&mut follow.grew) {
            follow.add(root, &CharSet::default());
            for (rule, body) in &planner.rules {
                let after = follow.rules.get(rule).cloned().unwrap_or_default();
                follow.add(body, &after);
            }
        }
        follow
    }

    /// Adds the characters after the lexemes and rules of a piece, which is followed by `after`.
    fn add(&mut self, piece: &Piece, after: &CharSet) {
        match piece {
            Piece::Lexeme(lexeme) => self.grew |= self.lexemes[*lexeme].add(after),
            Piece::Rule(rule) => self.grew |= self.rules.entry(*rule).or_default().add(after),
            Piece::Sequence(pieces) => {
                let mut after = after.clone();
                for piece in pieces.iter().rev() {
                    self.add(piece, &after);
                    let (mut first, is_nullable) = self.first.of(piece);
                    if is_nullable {
                        first.add(&after);
                    }
                    after = first;
                }
            }
            Piece::Choice(pieces) => pieces.iter().for_each(|piece| self.add(piece, after)),
            Piece::Repeat(piece, _, most) => {
                let mut after = after.clone();
                if *most != Some(1) {
                    after.add(&self.first.of(piece).0);
                }
                self.add(piece, &after);
            }
        }
    }
}

impl First<'_> {
    fn of(&self, piece: &Piece) -> (CharSet, bool) {
        match piece {
            Piece::Lexeme(lexeme) => {
                (self.automaton.first(*lexeme), self.automaton.is_nullable(*lexeme))
            }
            Piece::Rule(rule) => self.rules.get(rule).cloned().unwrap_or_default(),
            Piece::Sequence(pieces) => {
                let mut all = CharSet::default();
                for piece in pieces {
                    let (first, is_nullable) = self.of(piece);
                    all.add(&first);
                    if !is_nullable {
                        return (all, false);
                    }
                }
                (all, true)
            }
            Piece::Choice(pieces) => pieces.iter().map(|piece| self.of(piece)).fold(
                (CharSet::default(), false),
                |(mut all, is_nullable), (first, next_is_nullable)| {
                    all.add(&first);
                    (all, is_nullable || next_is_nullable)
                },
            ),
            Piece::Repeat(piece, least, _) => {
                let (first, is_nullable) = self.of(piece);
                (first, is_nullable || *least == 0)
            }
        }
    }
}
