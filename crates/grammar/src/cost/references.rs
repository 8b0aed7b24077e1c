//! The maximum depth of a schema with its references followed, in any order.
//!
//! The library enters each target of a reference once, and recursively from the schemas on the path to it. Targets that refer to
//! each other may then all be nested, so each of them counts.

use std::collections::HashMap;

use serde_json::Value;

use crate::schema::{LITERAL, NAMED};

/// An upper bound of the nesting of schemas.
pub(super) fn depth(root: &Value) -> usize {
    let mut graph = Graph { root, targets: Vec::new(), numbers: HashMap::new() };
    graph.add("#", root);
    // Visiting a target may find further ones.
    let mut next = 0;
    while next < graph.targets.len() {
        graph.look_through(next);
        next += 1;
    }
    deepest(&graph.targets)
}

/// The root, or the target of a reference.
struct Target<'a> {
    schema: &'a Value,
    /// Nesting of schemas, without following references.
    height: usize,
    /// The indices of the targets of references in it.
    leads_to: Vec<usize>,
}

struct Graph<'a> {
    root: &'a Value,
    targets: Vec<Target<'a>>,
    numbers: HashMap<&'a str, usize>,
}

impl<'a> Graph<'a> {
    fn add(&mut self, reference: &'a str, schema: &'a Value) -> usize {
        let number = self.targets.len();
        self.targets.push(Target { schema, height: 0, leads_to: Vec::new() });
        self.numbers.insert(reference, number);
        number
    }

    fn look_through(&mut self, number: usize) {
        let (mut height, mut leads_to) = (0, Vec::new());
        // A list instead of recursion: this code must bear the depth that it is here to limit.
        let mut rest = vec![(self.targets[number].schema, 1)];
        while let Some((schema, depth)) = rest.pop() {
            height = height.max(depth);
            match schema {
                Value::Array(schemas) => {
                    rest.extend(schemas.iter().map(|schema| (schema, depth + 1)));
                }
                Value::Object(object) => {
                    for (keyword, value) in object {
                        match value {
                            Value::String(reference)
                                if matches!(keyword.as_str(), "$ref" | "$dynamicRef") =>
                            {
                                leads_to.extend(self.target(reference));
                            }
                            Value::Object(named) if NAMED.contains(&keyword.as_str()) => {
                                // Definitions are entered only through references.
                                let is_entered =
                                    !matches!(keyword.as_str(), "$defs" | "definitions");
                                let named = named.values().filter(|_| is_entered);
                                rest.extend(named.map(|schema| (schema, depth + 1)));
                            }
                            _ if LITERAL.contains(&keyword.as_str()) => {}
                            other => rest.push((other, depth + 1)),
                        }
                    }
                }
                _ => {}
            }
        }
        self.targets[number].height = height;
        self.targets[number].leads_to = leads_to;
    }

    /// The index of a reference's target; `None` if the reference is not plain.
    fn target(&mut self, reference: &'a str) -> Option<usize> {
        if let Some(number) = self.numbers.get(reference) {
            return Some(*number);
        }
        // A reference to another document leads nowhere: the library refuses it.
        let schema = self.root.pointer(reference.strip_prefix('#')?)?;
        Some(self.add(reference, schema))
    }
}

/// The sum of heights on the deepest path. Targets that refer to each other form a component and all count. Tarjan's algorithm
/// finds each component after all that are reachable from it.
fn deepest(targets: &[Target<'_>]) -> usize {
    const UNSEEN: usize = usize::MAX;
    let mut order = vec![UNSEEN; targets.len()];
    let mut lowest = vec![0; targets.len()];
    // The depth from each target on, after its component is known.
    let mut depths: Vec<Option<usize>> = vec![None; targets.len()];
    // `way` has each target of the path with the number of its references followed so far. It stands for recursion.
    let (mut open, mut way, mut count) = (Vec::new(), vec![(0, 0)], 0);
    while let Some((target, next)) = way.last_mut() {
        let target = *target;
        if *next == 0 {
            order[target] = count;
            lowest[target] = count;
            count += 1;
            open.push(target);
        }
        if let Some(&other) = targets[target].leads_to.get(*next) {
            *next += 1;
            if order[other] == UNSEEN {
                way.push((other, 0));
                // A known depth means that the other target is in a finished component, to which no path leads back.
            } else if depths[other].is_none() {
                lowest[target] = lowest[target].min(order[other]);
            }
            continue;
        }
        way.pop();
        if let Some((before, _)) = way.last() {
            lowest[*before] = lowest[*before].min(lowest[target]);
        }
        if lowest[target] == order[target] {
            let begin = open.iter().rposition(|open| *open == target).unwrap_or_default();
            let component = open.split_off(begin);
            let leads_to = component.iter().flat_map(|target| &targets[*target].leads_to);
            let beyond = leads_to.filter_map(|other| depths[*other]).max().unwrap_or(0);
            // All targets of a component may be nested in any order, so their heights add up.
            let own: usize = component.iter().map(|target| targets[*target].height).sum();
            component.iter().for_each(|target| depths[*target] = Some(own + beyond));
        }
    }
    depths.first().copied().flatten().unwrap_or(0)
}
