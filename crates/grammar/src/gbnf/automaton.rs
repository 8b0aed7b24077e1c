//! An automaton of all lexemes together, which finds lexemes that could match a character of the part after another lexeme.

use std::collections::{BTreeSet, HashSet};

use super::chars::CharSet;
use super::parse::{Grammar, Node};
use crate::{Error, Result};

/// Maximum number of states, and of visited sets of states.
const MAX_STATES: usize = 50_000;
const MAX_SETS: usize = 5_000;
/// Maximum nesting of nodes and rules.
const MAX_DEPTH: usize = 500;

/// The automaton of several lexemes, which begin at the same time.
pub(super) struct Automaton<'a> {
    grammar: &'a Grammar,
    states: Vec<State>,
    /// The first state of each lexeme.
    starts: Vec<usize>,
}

struct State {
    lexeme: usize,
    accepts: bool,
    edges: Vec<(CharSet, usize)>,
    free_edges: Vec<usize>,
}

impl<'a> Automaton<'a> {
    /// The automaton of these lexemes. It ignores counts, and therefore accepts more texts than the lexemes do.
    pub(super) fn new(grammar: &'a Grammar, lexemes: &[Node]) -> Result<Self> {
        let mut automaton = Self { grammar, states: Vec::new(), starts: Vec::new() };
        for (lexeme, node) in lexemes.iter().enumerate() {
            let start = automaton.state(lexeme)?;
            let end = automaton.build(node, start, 0)?;
            automaton.states[end].accepts = true;
            automaton.starts.push(start);
        }
        Ok(automaton)
    }

    /// The characters with which a lexeme can begin.
    pub(super) fn first(&self, lexeme: usize) -> CharSet {
        let mut first = CharSet::default();
        for state in self.closure([self.starts[lexeme]]) {
            for (set, _) in &self.states[state].edges {
                first.add(set);
            }
        }
        first
    }

    /// Whether a lexeme can be empty.
    pub(super) fn is_nullable(&self, lexeme: usize) -> bool {
        self.closure([self.starts[lexeme]]).iter().any(|state| self.states[*state].accepts)
    }

    /// The lexemes that could continue where another one ends and a character of its `follow` set comes next; `None` if there are none.
    ///
    /// # Errors
    /// There are too many sets of states.
    pub(super) fn greedy(&self, follow: &[CharSet]) -> Result<Option<BTreeSet<usize>>> {
        let start = self.closure(self.starts.iter().copied());
        let mut seen = HashSet::from([start.clone()]);
        let mut waiting = vec![start];
        let mut is_start = true;
        while let Some(set) = waiting.pop() {
            let edges: Vec<(usize, &CharSet, usize)> = set
                .iter()
                .flat_map(|state| {
                    self.states[*state].edges.iter().map(|(chars, to)| (*state, chars, *to))
                })
                .collect();
            let mut after = CharSet::default();
            // At the start, no lexeme has matched a character yet.
            if !std::mem::take(&mut is_start) {
                for state in set.iter().filter(|state| self.states[**state].accepts) {
                    after.add(&follow[self.states[*state].lexeme]);
                }
            }
            let going_on = edges.iter().filter(|(_, chars, _)| chars.meets(&after));
            let greedy: BTreeSet<usize> =
                going_on.map(|(state, ..)| self.states[*state].lexeme).collect();
            if !greedy.is_empty() {
                return Ok(Some(greedy));
            }
            // Between two neighbouring bounds, all characters lead to the same states. So one character of each
            // interval stands for all.
            let bounds: BTreeSet<u32> = edges
                .iter()
                .flat_map(|(_, chars, _)| chars.ranges())
                .flat_map(|(first, last)| [*first, last + 1])
                .collect();
            for code in bounds {
                let to =
                    edges.iter().filter(|(_, chars, _)| chars.contains(code)).map(|(.., to)| *to);
                let next = self.closure(to);
                if !next.is_empty() && seen.insert(next.clone()) {
                    waiting.push(next);
                }
            }
            if seen.len() > MAX_SETS {
                return Err(too_complex());
            }
        }
        Ok(None)
    }

    /// All states that are reachable without a character, in order.
    fn closure(&self, from: impl IntoIterator<Item = usize>) -> Vec<usize> {
        let mut waiting: Vec<usize> = from.into_iter().collect();
        let mut reached: BTreeSet<usize> = waiting.iter().copied().collect();
        while let Some(state) = waiting.pop() {
            let free = self.states[state].free_edges.iter().copied();
            waiting.extend(free.filter(|to| reached.insert(*to)));
        }
        reached.into_iter().collect()
    }

    fn state(&mut self, lexeme: usize) -> Result<usize> {
        if self.states.len() == MAX_STATES {
            return Err(too_complex());
        }
        self.states.push(State {
            lexeme,
            accepts: false,
            edges: Vec::new(),
            free_edges: Vec::new(),
        });
        Ok(self.states.len() - 1)
    }

    /// Adds the states of a node after the state `from`, and returns its last state.
    fn build(&mut self, node: &Node, from: usize, depth: usize) -> Result<usize> {
        if depth > MAX_DEPTH {
            return Err(too_complex());
        }
        let lexeme = self.states[from].lexeme;
        let end = match node {
            Node::Chars(chars) => {
                let end = self.state(lexeme)?;
                self.states[from].edges.push((chars.clone(), end));
                end
            }
            Node::Rule(rule) => {
                let grammar = self.grammar;
                // The rule is copied into the automaton. Lexemes are regular, so no rule leads back to itself.
                self.build(&grammar.rules[*rule].body, from, depth + 1)?
            }
            Node::Sequence(nodes) => {
                let mut end = from;
                for node in nodes {
                    end = self.build(node, end, depth + 1)?;
                }
                end
            }
            Node::Choice(nodes) => {
                let end = self.state(lexeme)?;
                for node in nodes {
                    let start = self.state(lexeme)?;
                    self.states[from].free_edges.push(start);
                    let last = self.build(node, start, depth + 1)?;
                    self.states[last].free_edges.push(end);
                }
                end
            }
            Node::Repeat(_, _, Some(0)) => from,
            Node::Repeat(node, least, most) => {
                let (start, end) = (self.state(lexeme)?, self.state(lexeme)?);
                self.states[from].free_edges.push(start);
                let last = self.build(node, start, depth + 1)?;
                self.states[last].free_edges.push(end);
                if *least == 0 {
                    self.states[start].free_edges.push(end);
                }
                // Counts are dropped here: `{2,5}` becomes a loop. Exact counts would need a state for each
                // repetition.
                if *most != Some(1) {
                    self.states[last].free_edges.push(start);
                }
                end
            }
        };
        Ok(end)
    }
}

fn too_complex() -> Error {
    Error::Constraint(
        "the grammar is too complex to convert from GBNF; simplify its rules".to_owned(),
    )
}
