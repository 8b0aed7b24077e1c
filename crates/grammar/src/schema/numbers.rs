//! Bounds and steps of numbers for which the library allows too much or too little.

use serde_json::{Map, Number, Value, json};

use super::exact::ANNOTATIONS;
use crate::{Error, Result};

/// The inclusive bound in place of an exclusive bound of zero, unless a tenth of the other bound is smaller. Other exclusive bounds
/// are replaced by the next number in double precision.
const SMALLEST: f64 = 1e-20;
/// The keywords of bounds.
const BOUNDS: [&str; 4] = ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"];
/// The largest integer with the usual number of digits (`lexemes.rs`).
const LONGEST: i128 = 10_i128.pow(20) - 1;
/// Maximum digits after the point of a step.
const MAX_DIGITS: u32 = 9;

/// Takes bounds and steps out of a schema and returns equivalent schemas. Ranges of large integers stay for `exact.rs`.
pub(super) fn exact(schema: &mut Map<String, Value>) -> Vec<Value> {
    if large_range(schema).is_some() {
        return Vec::new();
    }
    supported(schema)
}

/// The same for all ranges.
pub(super) fn supported(schema: &mut Map<String, Value>) -> Vec<Value> {
    let change = match schema.get("type") == Some(&json!("integer")) {
        true => inclusive_integer,
        false => inclusive,
    };
    change(schema, Side::Least);
    change(schema, Side::Most);
    representable(schema, Side::Least);
    representable(schema, Side::Most);
    step(schema).into_iter().collect()
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Least,
    Most,
}

impl Side {
    const fn keyword(self) -> &'static str {
        match self {
            Self::Least => "minimum",
            Self::Most => "maximum",
        }
    }

    const fn exclusive(self) -> &'static str {
        match self {
            Self::Least => "exclusiveMinimum",
            Self::Most => "exclusiveMaximum",
        }
    }
}

/// An exclusive bound that is a whole number, as the inclusive bound next to it. The library would allow the bound itself
/// if both bounds have the same digits before the point.
fn inclusive(schema: &mut Map<String, Value>, side: Side) {
    let inclusive = schema.get(side.keyword()).and_then(Value::as_f64);
    let exclusive = match schema.get(side.exclusive()) {
        // The form of draft 4, in which `exclusiveMinimum` is a flag beside `minimum`.
        Some(Value::Bool(true)) => inclusive,
        Some(Value::Number(number)) => number.as_f64(),
        _ => None,
    };
    // With the sign, an upper bound is a lower bound of the negated numbers, so one rule serves both.
    let sign = if side == Side::Least { 1.0 } else { -1.0 };
    // On the other side of zero the library is correct.
    let Some(bound) = exclusive.map(|bound| sign * bound) else { return };
    if bound < 0.0 || bound.fract() != 0.0 {
        return;
    }
    let other = if side == Side::Least { Side::Most } else { Side::Least };
    let other = [other.keyword(), other.exclusive()].into_iter().filter_map(|keyword| {
        schema.get(keyword).and_then(Value::as_f64).map(f64::abs).filter(|bound| *bound > 0.0)
    });
    // With bounds of 0 and 1e-25, the usual smallest number would lie beyond the other bound.
    let smallest = other.map(|bound| bound / 10.0).fold(SMALLEST, f64::min);
    let next = if bound == 0.0 { smallest } else { bound.next_up() };
    let next = inclusive.map_or(next, |inclusive| next.max(sign * inclusive));
    let Some(next) = Number::from_f64(sign * next) else { return };
    schema.shift_remove(side.exclusive());
    schema.insert(side.keyword().to_owned(), Value::Number(next));
}

/// An exclusive bound of integers beyond 2^53, as the inclusive bound next to it, which the library would round. Its exclusive
/// bounds of smaller integers are correct.
fn inclusive_integer(schema: &mut Map<String, Value>, side: Side) {
    let exclusive = schema.get(side.exclusive()).and_then(integer);
    let Some(bound) = exclusive.filter(|bound| bound.abs() >= 1 << f64::MANTISSA_DIGITS) else {
        return;
    };
    let next = if side == Side::Least { bound + 1 } else { bound - 1 };
    let inclusive = schema.get(side.keyword());
    let inclusive =
        inclusive.and_then(|found| integer(found).or(found.as_f64().map(|found| found as i128)));
    let is_tighter = |inclusive: i128| match side {
        Side::Least => inclusive > next,
        Side::Most => inclusive < next,
    };
    if inclusive.is_some_and(is_tighter) {
        schema.shift_remove(side.exclusive());
        return;
    }
    let whole = i64::try_from(next).map(Value::from);
    // Beyond 64 bits no integer is left, and the library says so.
    let Ok(next) = whole.or_else(|_| u64::try_from(next).map(Value::from)) else { return };
    schema.shift_remove(side.exclusive());
    schema.insert(side.keyword().to_owned(), next);
}

/// `multipleOf` with digits after the point, as one alternative for each number of digits, because the library only allows
/// numbers with as many digits as the step.
fn step(schema: &mut Map<String, Value>) -> Option<Value> {
    // Rust writes the shortest digits that mean this double, and no exponent.
    let text = schema.get("multipleOf")?.as_f64()?.abs().to_string();
    let (whole, behind) = text.split_once('.')?;
    let digits = u32::try_from(behind.len()).ok().filter(|digits| *digits <= MAX_DIGITS)?;
    let step: u64 = format!("{whole}{behind}").parse().ok()?;
    let arms: Vec<Value> = (0..=digits)
        .map(|kept| {
            // Numbers with `kept` digits are multiples of 10^-kept, too. So this arm has the least common multiple of
            // both steps.
            let factor = step / greatest_divisor(step, 10_u64.pow(digits - kept));
            match kept {
                0 => json!({"multipleOf": factor}),
                _ => json!({"multipleOf": factor as f64 / 10_f64.powi(kept as i32)}),
            }
        })
        .collect();
    schema.shift_remove("multipleOf");
    Some(json!({"anyOf": arms}))
}

fn greatest_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_divisor(b, a % b) }
}

/// An integer bound that double precision would round outwards, as the next number inside.
fn representable(schema: &mut Map<String, Value>, side: Side) {
    let Some(bound) = schema.get(side.keyword()).and_then(integer) else { return };
    // The library's integers have 64 bits, and negating the smallest one overflows.
    let is_least = bound == i64::MIN.into();
    if is_exact(bound) && !is_least || bound == i64::MAX.into() {
        return;
    }
    let rounded = bound as f64;
    let inner = match side {
        Side::Least if is_least || (rounded as i128) < bound => rounded.next_up(),
        Side::Most if (rounded as i128) > bound => rounded.next_down(),
        _ => rounded,
    };
    schema.insert(side.keyword().to_owned(), json!(inner));
}

fn integer(value: &Value) -> Option<i128> {
    value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from))
}

/// The least and the largest integer that a schema allows, if it has nothing but bounds of integers, and the library would round them.
/// Without a bound, integers have as many digits as other integers.
pub(super) fn large_range(schema: &Map<String, Value>) -> Option<(i128, i128)> {
    let is_known = |keyword: &String| {
        let keyword = keyword.as_str();
        keyword == "type" || BOUNDS.contains(&keyword) || ANNOTATIONS.contains(&keyword)
    };
    if schema.get("type") != Some(&json!("integer")) || !schema.keys().all(is_known) {
        return None;
    }
    let given = BOUNDS.map(|keyword| schema.get(keyword));
    if !given.iter().flatten().any(|bound| is_large(bound)) {
        return None;
    }
    let (mut least, mut most) = (-LONGEST, LONGEST);
    for (keyword, value) in BOUNDS.into_iter().zip(given) {
        // Flags of draft 4 are no numbers, and a bound with more digits is left to the library.
        let Some(value) = value else { continue };
        let bound = |round: fn(f64) -> f64| {
            let float = || value.as_f64().map(|value| round(value) as i128);
            integer(value).or_else(float).filter(|bound| bound.abs() <= LONGEST)
        };
        match keyword {
            "minimum" => least = least.max(bound(f64::ceil)?),
            "exclusiveMinimum" => least = least.max(bound(f64::floor)? + 1),
            "maximum" => most = most.min(bound(f64::floor)?),
            _ => most = most.min(bound(f64::ceil)? - 1),
        }
    }
    Some((least, most))
}

/// Whether the library would not hold a bound exactly: double precision rounds it, or it has more than 64 bits.
fn is_large(bound: &Value) -> bool {
    let bound = integer(bound).or_else(|| bound.as_f64().map(|bound| bound as i128));
    bound.is_some_and(|bound| {
        let fits = bound > i64::MIN.into() && bound <= i64::MAX.into();
        !fits || !is_exact(bound) && bound != i64::MAX.into()
    })
}

/// Whether double precision, in which the library computes, has an integer.
fn is_exact(integer: i128) -> bool {
    (integer as f64) as i128 == integer
}

/// Whether a value is an integer that the library would round.
pub(super) fn is_rounded(value: &Value) -> bool {
    let is = |integer: i128| !is_exact(integer) && integer != i64::MAX.into();
    integer(value).is_some_and(is)
}

/// Refuses bounds of integers beyond 64 bits, which the library would take as the last one of 64 bits.
///
/// # Errors
/// [`Error::Constraint`] with the bound.
pub(super) fn check_bounds(schema: &Map<String, Value>) -> Result<()> {
    if schema.get("type") != Some(&json!("integer")) {
        return Ok(());
    }
    for keyword in BOUNDS {
        let Some(bound) = schema.get(keyword).and_then(Value::as_f64) else { continue };
        // 2^63, which is the first double beyond.
        let beyond = 9_223_372_036_854_775_808.0;
        let is_beyond = match keyword {
            "minimum" | "exclusiveMinimum" => bound >= beyond,
            _ => bound <= -beyond,
        };
        // The largest integer of 64 bits is this double, too.
        if is_beyond && schema[keyword].as_i64() != Some(i64::MAX) {
            return Err(Error::Constraint(format!(
                "`{keyword}` of {bound} leaves integers of more than 64 bits only, beside other keywords for the same value: \
                 leave those out, or use another bound"
            )));
        }
    }
    Ok(())
}

/// Refuses integers in `const` and `enum` that the library would round, and that are not replaced by `exact.rs`.
///
/// # Errors
/// [`Error::Constraint`] with the number.
pub(super) fn check_literal(keyword: &str, literal: &Value) -> Result<()> {
    match literal {
        Value::Array(items) => items.iter().try_for_each(|item| check_literal(keyword, item)),
        Value::Object(object) => {
            object.values().try_for_each(|value| check_literal(keyword, value))
        }
        number if is_rounded(number) => Err(Error::Constraint(format!(
            "`{keyword}` has {number}, which double precision would round, because other schemas apply to the same value: \
             leave those schemas out, or use an integer up to 2^53"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(schema: Value) -> (Value, Vec<Value>) {
        let Value::Object(mut object) = schema else { panic!("no object") };
        let more = supported(&mut object);
        (object.into(), more)
    }

    #[test]
    fn exclusive_whole_bounds_become_the_next_number() {
        for (schema, expected) in [
            (
                json!({"exclusiveMinimum": 0, "maximum": 0.5}),
                json!({"maximum": 0.5, "minimum": 1e-20}),
            ),
            (json!({"exclusiveMaximum": 0}), json!({"maximum": -1e-20})),
            (json!({"exclusiveMaximum": -1}), json!({"maximum": -1.000_000_000_000_000_2})),
            (json!({"exclusiveMinimum": 1, "minimum": 2}), json!({"minimum": 2.0})),
            (
                json!({"exclusiveMinimum": true, "minimum": 1}),
                json!({"minimum": 1.000_000_000_000_000_2}),
            ),
        ] {
            assert_eq!(said(schema.clone()).0, expected, "{schema}");
        }
        for kept in [
            json!({"type": "integer", "exclusiveMinimum": 0}),
            json!({"exclusiveMinimum": 0.5}),
            json!({"exclusiveMinimum": -1}),
            json!({"exclusiveMinimum": false, "minimum": 1}),
        ] {
            assert_eq!(said(kept.clone()), (kept, vec![]));
        }
    }

    #[test]
    fn steps_allow_fewer_digits() {
        let arms = |step: f64| said(json!({"multipleOf": step})).1;
        assert_eq!(
            arms(0.125),
            [
                json!({"anyOf": [{"multipleOf": 1}, {"multipleOf": 0.5}, {"multipleOf": 0.25}, {"multipleOf": 0.125}]})
            ]
        );
        assert_eq!(arms(2.5), [json!({"anyOf": [{"multipleOf": 5}, {"multipleOf": 2.5}]})]);
        assert_eq!(
            arms(0.03),
            [json!({"anyOf": [{"multipleOf": 3}, {"multipleOf": 0.3}, {"multipleOf": 0.03}]})]
        );
        assert!(arms(3.0).is_empty());
    }

    #[test]
    fn large_bounds_are_rounded_inwards() {
        for (schema, expected) in [
            (
                json!({"maximum": 9_007_199_254_740_999_i64}),
                json!({"maximum": 9_007_199_254_740_998.0}),
            ),
            (
                json!({"minimum": 9_007_199_254_740_993_i64}),
                json!({"minimum": 9_007_199_254_740_994.0}),
            ),
            (json!({"minimum": i64::MIN}), json!({"minimum": -9_223_372_036_854_774_784.0})),
            (
                json!({"minimum": -9_007_199_254_740_999_i64}),
                json!({"minimum": -9_007_199_254_740_998.0}),
            ),
        ] {
            assert_eq!(said(schema.clone()).0, expected, "{schema}");
        }
        for kept in [json!({"minimum": 9_007_199_254_740_992_i64}), json!({"maximum": i64::MAX})] {
            assert_eq!(said(kept.clone()).0, kept);
        }
    }

    #[test]
    fn literals_that_would_be_rounded_are_refused() {
        for exact in [json!([1, 9_007_199_254_740_992_i64, 0.1, "a"]), json!({"a": i64::MAX})] {
            check_literal("enum", &exact).unwrap();
        }
        let error =
            check_literal("enum", &json!([1, {"a": [9_007_199_254_740_993_i64]}])).unwrap_err();
        assert!(error.to_string().contains("`enum` has 9007199254740993"), "{error}");
    }
}
