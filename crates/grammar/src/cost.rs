//! The size of a constraint, computed in one pass: limits for every kind, and its class.
//!
//! The library compiles schemas and rules by recursion, so depth is limited before anything is compiled. A small constraint
//! compiles in about a millisecond. Others are compiled in a child process first (`trial`).

mod references;

use serde_json::{Map, Value};

use crate::schema::{COUNTS, LITERAL, NAMED, with_plain_references};
use crate::{Constraint, Error, Result, lark};

/// Maximum bytes of a constraint, including all its schemas.
const MAX_BYTES: usize = 2 << 20;
/// Maximum number of schemas and literals in a constraint.
const MAX_NODES: usize = 200_000;
/// Maximum nesting of schemas, with references followed. The library needs about 9 KiB of stack for each level.
const MAX_DEPTH: usize = 4000;
/// Maximum members of one object or array: properties, required names, alternatives, items of a literal.
const MAX_MEMBERS: usize = 20_000;
/// Maximum bytes of an identifier or a reference.
const MAX_REFERENCE_BYTES: usize = 2048;

/// Limits of a small constraint.
const SMALL: Size = Size {
    bytes: 8 << 10,
    nodes: 200,
    members: 64,
    depth: 40,
    repeats: 1000,
    operators: 64,
    products: 8,
};

/// Limits of a plain schema.
const PLAIN: Size = Size {
    bytes: 4 << 10,
    nodes: 100,
    members: 32,
    depth: 20,
    repeats: 64,
    operators: 0,
    products: 0,
};

/// How a constraint is compiled, by its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// A schema without patterns and intersections, none of whose states can be too complex. It is compiled at once.
    Plain,
    /// It is compiled at once, and then advanced by some tokens as a test.
    Small,
    /// It is compiled in a child process first.
    Large,
}

/// The size of a constraint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Size {
    /// Bytes of all strings: names, literals, regular expressions, rules.
    bytes: usize,
    /// Values in the schemas.
    nodes: usize,
    /// The members of the largest object or array.
    members: usize,
    /// Nesting of schemas, with references followed.
    depth: usize,
    /// The largest repetition: of items, of characters, in regular expressions.
    repeats: usize,
    /// Operators of regular expressions and rules: choices, repetitions, groups.
    operators: usize,
    /// Schemas that are intersected with others, and patterns of names. Some of them compile in worse than cubic time.
    products: usize,
}

impl Size {
    fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.nodes += other.nodes;
        self.members = self.members.max(other.members);
        self.depth = self.depth.max(other.depth);
        self.repeats = self.repeats.max(other.repeats);
        self.operators += other.operators;
        self.products += other.products;
    }

    fn is_within(&self, most: &Self) -> bool {
        self.bytes <= most.bytes
            && self.nodes <= most.nodes
            && self.members <= most.members
            && self.depth <= most.depth
            && self.repeats <= most.repeats
            && self.operators <= most.operators
            && self.products <= most.products
    }

    /// # Errors
    /// [`Error::Constraint`] with the exceeded limit.
    fn check(&self) -> Result<()> {
        let limits = [
            (self.bytes, MAX_BYTES, "bytes of text"),
            (self.nodes, MAX_NODES, "schemas and literals"),
            (self.members, MAX_MEMBERS, "members of one object or array"),
            (self.depth, MAX_DEPTH, "levels of nested schemas, with references followed"),
        ];
        match limits.iter().find(|(size, most, _)| size > most) {
            None => Ok(()),
            Some((size, most, what)) => Err(too_large(*size, what, *most)),
        }
    }
}

fn too_large(size: usize, what: &str, most: usize) -> Error {
    Error::Constraint(format!("it has {size} {what}, but the maximum is {most}"))
}

/// The class of a constraint.
///
/// # Errors
/// [`Error::Constraint`] with the exceeded limit.
pub(crate) fn class(constraint: &Constraint) -> Result<Class> {
    let size = match constraint {
        Constraint::JsonObject => Size::default(),
        Constraint::JsonSchema(schema) => of_schema(schema)?,
        Constraint::Regex(regex) => of_expression(regex),
        Constraint::Choice(texts) => Size {
            bytes: texts.iter().map(String::len).sum(),
            members: texts.len(),
            ..Size::default()
        },
        Constraint::Lark(grammar) | Constraint::Composed(grammar) => of_lark(grammar)?,
        Constraint::Gbnf(grammar) => of_expression(grammar),
        Constraint::StructuralTag(tag) => of_tag(tag)?,
    };
    size.check()?;
    let is_schema = matches!(constraint, Constraint::JsonObject | Constraint::JsonSchema(_));
    Ok(if is_schema && size.is_within(&PLAIN) {
        Class::Plain
    } else if size.is_within(&SMALL) {
        Class::Small
    } else {
        Class::Large
    })
}

/// The size of a structural tag: of its schemas, and of the rest as strings.
fn of_tag(tag: &Value) -> Result<Size> {
    let mut size = Size::default();
    add_tag(tag, &mut size, 0)?;
    Ok(size)
}

fn add_tag(value: &Value, size: &mut Size, depth: usize) -> Result<()> {
    size.nodes += 1;
    size.depth = size.depth.max(depth);
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                match name.as_str() {
                    "json_schema" | "schema" => size.add(of_schema(value)?),
                    "grammar" => size.add(value.as_str().map_or(Ok(Size::default()), of_lark)?),
                    _ => add_tag(value, size, depth + 1)?,
                }
            }
        }
        Value::Array(values) => {
            size.members = size.members.max(values.len());
            // Each tag is a rule of its own, with strings that end it.
            size.products += values.len() / 8;
            values.iter().try_for_each(|value| add_tag(value, size, depth + 1))?;
        }
        Value::String(text) => size.add(of_expression(text)),
        _ => {}
    }
    Ok(())
}

/// The size of a grammar in Lark syntax, or of another one that may be in it.
fn of_lark(grammar: &str) -> Result<Size> {
    let mut size = Size { bytes: grammar.len(), ..Size::default() };
    let mut rest = String::with_capacity(grammar.len());
    for part in lark::parts(grammar)? {
        match part {
            lark::Part::Text(text) => rest.push_str(text),
            lark::Part::Json(schema) => size.add(Size { bytes: 0, ..of_schema(&schema)? }),
        }
    }
    size.add(Size { bytes: 0, ..of_expression(&rest) });
    size.check()?;
    Ok(size)
}

/// The size of a regular expression, or of rules with some.
fn of_expression(text: &str) -> Size {
    let operators = text.bytes().filter(|byte| b"?*+|{(".contains(byte)).count();
    Size { bytes: text.len(), repeats: repeats(text), operators, ..Size::default() }
}

/// The maximum repetition of the innermost part of an expression: the product of all counts in braces.
fn repeats(text: &str) -> usize {
    let mut product = 1_usize;
    for counts in text.split('{').skip(1) {
        let Some((counts, _)) = counts.split_once('}') else { continue };
        let counts = counts.split(',').filter_map(|count| count.trim().parse::<usize>().ok());
        // Braces may be nested, as in `(a{1000}){1000}`. Multiplying all of them is too high for counts side by side,
        // which only costs a trial.
        product = product.saturating_mul(counts.max().unwrap_or(1).max(1));
    }
    product
}

/// The size of a schema and of all the targets of its references.
fn of_schema(schema: &Value) -> Result<Size> {
    let mut size = Size::default();
    add_schema(schema, &mut size, 0)?;
    size.check()?;
    // The first check bounds the size of the schema, so that following its references cannot take long.
    size.depth = references::depth(&with_plain_references(schema));
    size.check()?;
    Ok(size)
}

fn add_schema(schema: &Value, size: &mut Size, depth: usize) -> Result<()> {
    size.nodes += 1;
    size.depth = size.depth.max(depth);
    match schema {
        Value::Object(object) => {
            size.members = size.members.max(object.len());
            object.iter().try_for_each(|(keyword, value)| add_keyword(keyword, value, size, depth))
        }
        Value::Array(schemas) => {
            size.members = size.members.max(schemas.len());
            schemas.iter().try_for_each(|schema| add_schema(schema, size, depth + 1))
        }
        Value::String(text) => {
            size.bytes += text.len();
            Ok(())
        }
        _ => Ok(()),
    }
}

fn add_keyword(keyword: &str, value: &Value, size: &mut Size, depth: usize) -> Result<()> {
    size.bytes += keyword.len();
    // The bytes of texts are counted below, for all keywords.
    match (keyword, value) {
        ("$ref" | "$dynamicRef" | "$id" | "$anchor" | "$dynamicAnchor", Value::String(text))
            if text.len() > MAX_REFERENCE_BYTES =>
        {
            let what = format!("bytes in a `{keyword}`");
            return Err(too_large(text.len(), &what, MAX_REFERENCE_BYTES));
        }
        ("pattern", Value::String(pattern)) => {
            size.add(Size { bytes: 0, ..of_expression(pattern) });
        }
        ("allOf" | "oneOf", Value::Array(schemas)) => size.products += schemas.len(),
        ("not" | "if" | "contains" | "propertyNames" | "dependentSchemas" | "multipleOf", _) => {
            size.products += 1;
        }
        (_, Value::Number(count)) if COUNTS.contains(&keyword) => {
            let count = count.as_f64().unwrap_or_default();
            size.repeats = size.repeats.max(count as usize);
        }
        _ => {}
    }
    match value {
        Value::Object(literal) if LITERAL.contains(&keyword) => add_literals(literal, size),
        Value::Object(named) if NAMED.contains(&keyword) => add_named(keyword, named, size, depth),
        Value::Object(_) | Value::Array(_) => add_schema(value, size, depth + 1),
        Value::String(text) => {
            size.bytes += text.len();
            Ok(())
        }
        _ => Ok(()),
    }
}

fn add_named(
    keyword: &str,
    named: &Map<String, Value>,
    size: &mut Size,
    depth: usize,
) -> Result<()> {
    // Many definitions do not make a wide object.
    if !matches!(keyword, "$defs" | "definitions") {
        size.members = size.members.max(named.len());
    }
    for (name, schema) in named {
        size.bytes += name.len();
        if keyword == "patternProperties" {
            size.add(Size { bytes: 0, products: 2, ..of_expression(name) });
        }
        add_schema(schema, size, depth + 1)?;
    }
    Ok(())
}

/// Adds a literal, whose names are strings, not keywords.
fn add_literals(literal: &Map<String, Value>, size: &mut Size) -> Result<()> {
    size.members = size.members.max(literal.len());
    for (name, value) in literal {
        size.bytes += name.len();
        match value {
            Value::Object(literal) => {
                size.nodes += 1;
                add_literals(literal, size)?;
            }
            other => add_schema(other, size, 0)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
