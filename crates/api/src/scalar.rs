//! Integers in JSON: `1.0` is accepted as `1`; `1.5`, `"1"` and `true` are not integers.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};

/// Floats above this cannot represent every integer, so they are refused.
const EXACT_LIMIT: f64 = 9_007_199_254_740_992.0;

/// An integer that may be written with a fraction of zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Integer(pub(crate) i64);

/// A token id: an [`Integer`] in the range of `u32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokenId(pub(crate) u32);

impl<'de> Deserialize<'de> for Integer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(IntegerVisitor).map(Integer)
    }
}

impl<'de> Deserialize<'de> for TokenId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        token_id(deserializer.deserialize_any(IntegerVisitor)?).map(TokenId)
    }
}

/// `value` as a token id.
pub(crate) fn token_id<E: Error>(value: i64) -> Result<u32, E> {
    u32::try_from(value).map_err(|_| E::custom(format_args!("{value} is not a token id")))
}

/// `value` as an integer, if it is one.
pub(crate) fn integral<E: Error>(value: f64) -> Result<i64, E> {
    if value.fract() == 0.0 && value.abs() <= EXACT_LIMIT {
        Ok(value as i64)
    } else {
        Err(E::invalid_value(Unexpected::Float(value), &"an integer of at most 64 bits"))
    }
}

struct IntegerVisitor;

impl Visitor<'_> for IntegerVisitor {
    type Value = i64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an integer")
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<i64, E> {
        Ok(value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<i64, E> {
        i64::try_from(value).map_err(|_| {
            E::invalid_value(
                Unexpected::Unsigned(value),
                &"an integer of at most 63 bits and a sign",
            )
        })
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<i64, E> {
        integral(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn integer(text: &str) -> Option<i64> {
        serde_json::from_str::<Integer>(text).ok().map(|i| i.0)
    }

    #[test]
    fn integral_floats_are_integers() {
        assert_eq!(integer("1.0"), Some(1));
        assert_eq!(integer("-3e2"), Some(-300));
        assert_eq!(integer("9223372036854775807"), Some(i64::MAX));
        assert_eq!(integer("-9223372036854775808"), Some(i64::MIN));
    }

    #[test]
    fn other_things_are_not() {
        for text in [
            "1.5",
            "\"1\"",
            "true",
            "1e300",
            "18446744073709551615",
            "99999999999999999999999",
            "[]",
            "NaN",
        ] {
            assert_eq!(integer(text), None, "{text}");
        }
    }

    #[test]
    fn token_ids_are_not_negative() {
        assert_eq!(serde_json::from_str::<TokenId>("7.0").unwrap(), TokenId(7));
        assert!(serde_json::from_str::<TokenId>("-1").is_err());
        assert!(serde_json::from_str::<TokenId>("4294967296").is_err());
    }
}
