//! Stricter lexemes of JSON than the library's.
//!
//! Numbers have a maximum of digits. A name of an additional property has only one spelling: otherwise a model could write a
//! declared name with escapes (`\u0061`), and its value would pass as an additional property's, which may be anything.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::derivre::{ExprRef, RegexAst, RegexBuilder};
use llguidance::earley::lexerspec::{LexemeIdx, LexemeSpec, LexerSpec};
use llguidance::toktrie::TokEnv;

use crate::schema::{Range, text_of_integer};
use crate::{Error, Result};

/// The white space of our schemas and of the library's own. Lexemes between such white space are those of JSON.
const JSON_WHITE_SPACE: [&str; 2] = [crate::constraint::WHITE_SPACE, r"[\x20\x0A\x0D\x09]+"];
/// Strings with one-letter escapes and no others: each text has one spelling.
const ONE_SPELLING: &str = r#""([^"\\\x00-\x1f\x7f]|\\["\\bfnrt])*""#;
/// The library's integers without bounds.
const INTEGER: &str = "-?(0|[1-9][0-9]*)";
/// The library's numbers without bounds.
const NUMBER: &str = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?";
/// Both as the library shows them. Comparing texts is cheaper than making both expressions again for each constraint.
static PLAIN_NUMBERS: LazyLock<[String; 2]> = LazyLock::new(|| {
    [INTEGER, NUMBER].map(|regex| {
        let mut builder = RegexBuilder::new();
        let made = builder.mk(&RegexAst::Regex(regex.to_owned()));
        made.map(|made| shown(&builder, made)).unwrap_or_default()
    })
});
/// The limit of work to find out whether a lexeme matches any text.
const EMPTINESS_FUEL: u64 = 200_000;
/// Maximum lexemes of one constraint for which that is found out, because each check copies the expressions of all of them.
const MAX_CHECKED: usize = 64;
/// Maximum digits for a bound, a step or a literal: double precision has no more before the point.
const MAX_DIGITS: usize = 330;

/// Maximum digits of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digits {
    before_point: usize,
    behind_point: usize,
}

impl Digits {
    /// Enough for every double and every 64-bit integer.
    const USUAL: Self = Self { before_point: 20, behind_point: 20 };

    /// The digits that the numbers in a constraint need, but no fewer than usual.
    pub(crate) fn needed(text: &str) -> Self {
        let mut digits = Self::USUAL;
        let mut rest = text;
        while let Some(begin) = rest.find(|c: char| c.is_ascii_digit()) {
            rest = &rest[begin..];
            let is_part = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-');
            let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
            digits.add(&rest[..end]);
            rest = &rest[end..];
        }
        digits
    }

    fn add(&mut self, number: &str) {
        let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
        let (before, behind) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let Ok(exponent) = exponent.parse::<i64>() else { return };
        let most = |digits: usize, exponent: i64| {
            let shifted = i64::try_from(digits).unwrap_or(i64::MAX).saturating_add(exponent);
            usize::try_from(shifted).unwrap_or(0).min(MAX_DIGITS)
        };
        self.before_point = self.before_point.max(most(before.len(), exponent));
        self.behind_point = self.behind_point.max(most(behind.len(), -exponent));
    }

    /// Numbers with these digits in the range of double precision, and all other lexemes.
    fn lexemes(self) -> RegexAst {
        let others = RegexAst::Regex(r"[^\-0-9](?s:.*)".to_owned());
        either([others, self.numbers(digits(1, self.before_point))])
    }

    /// The library's [`INTEGER`] with these digits.
    fn integer(self) -> RegexAst {
        sequence([optional(byte(b'-')), self.whole()])
    }

    /// The library's [`NUMBER`] with these digits, in the range of double precision.
    fn number(self) -> RegexAst {
        self.numbers(self.whole())
    }

    /// Digits before the point, without zeros at the front.
    fn whole(self) -> RegexAst {
        either([byte(b'0'), sequence([digit(1, 9), digits(0, self.before_point - 1)])])
    }

    /// Numbers whose digits before the point match `before_point`. They are not written as text, since parsing it takes a fifth of the
    /// time to compile a small schema with a number.
    fn numbers(self, before_point: RegexAst) -> RegexAst {
        let fraction = |digits| optional(sequence([byte(b'.'), digits]));
        let power = |exponent| sequence([either([byte(b'e'), byte(b'E')]), exponent]);
        let number =
            |parts: Vec<RegexAst>| sequence([optional(byte(b'-')), RegexAst::Concat(parts)]);
        let sign = |allowed: &[u8]| optional(either(allowed.iter().copied().map(byte)));
        let behind_point = fraction(digits(1, self.behind_point));
        // With more digits, the range of exponents depends on the mantissa and is not limited exactly.
        if self != Self::USUAL {
            let power = power(sequence([sign(b"+-"), digits(1, 3)]));
            return number(vec![before_point, behind_point, optional(power)]);
        }
        // 20 digits with an exponent of at most 287 are below 1e308. Beyond it, one digit is allowed up to 307, and
        // at 308 no more than 1.69.
        let small = either([
            sequence([byte(b'-'), up_to([3, 0, 8])]),
            sequence([sign(b"+"), up_to([2, 8, 7])]),
        ]);
        let from_288 = either([
            sequence([byte(b'2'), byte(b'8'), digit(8, 9)]),
            sequence([byte(b'2'), byte(b'9'), digit(0, 9)]),
            sequence([byte(b'3'), byte(b'0'), digit(0, 7)]),
        ]);
        let large = sequence([sign(b"+"), from_288]);
        let largest = sequence([sign(b"+"), RegexAst::Literal("308".to_owned())]);
        let below_7 = fraction(sequence([digit(0, 6), digits(0, self.behind_point - 1)]));
        either([
            number(vec![before_point, behind_point.clone(), optional(power(small))]),
            number(vec![digit(0, 9), behind_point, power(large)]),
            number(vec![digit(0, 1), below_7, power(largest)]),
        ])
    }
}

/// One to three digits of a number of at most `max`, with zeros at the front or without them.
fn up_to([hundreds, tens, ones]: [u8; 3]) -> RegexAst {
    let exactly = |digit: u8| byte(b'0' + digit);
    let mut parts = vec![
        digits(1, 2),
        sequence([digit(0, hundreds - 1), digits(2, 2)]),
        sequence([exactly(hundreds), exactly(tens), digit(0, ones)]),
    ];
    if let Some(below) = tens.checked_sub(1) {
        parts.push(sequence([exactly(hundreds), digit(0, below), digit(0, 9)]));
    }
    RegexAst::Or(parts)
}

fn byte(byte: u8) -> RegexAst {
    RegexAst::Byte(byte)
}

/// One digit between these two.
fn digit(from: u8, to: u8) -> RegexAst {
    let mut set = vec![0; 256 / 32];
    for byte in b'0' + from..=b'0' + to {
        set[usize::from(byte / 32)] |= 1 << (byte % 32);
    }
    RegexAst::ByteSet(set)
}

/// Between `least` and `most` digits.
fn digits(least: usize, most: usize) -> RegexAst {
    RegexAst::Repeat(Box::new(digit(0, 9)), least as u32, most as u32)
}

fn optional(part: RegexAst) -> RegexAst {
    RegexAst::Repeat(Box::new(part), 0, 1)
}

fn sequence<const N: usize>(parts: [RegexAst; N]) -> RegexAst {
    RegexAst::Concat(parts.into())
}

fn either(parts: impl IntoIterator<Item = RegexAst>) -> RegexAst {
    RegexAst::Or(parts.into_iter().collect())
}

/// The grammar with stricter lexemes.
///
/// # Errors
/// [`Error::Constraint`] with the library's message, or if a part of the grammar matches no text.
pub(crate) fn tightened(
    top: TopLevelGrammar,
    env: &TokEnv,
    limits: &ParserLimits,
    digits: Digits,
    integers: Vec<String>,
) -> Result<GrammarInit> {
    let internal = GrammarInit::Serialized(top).to_internal(Some(env.clone()), limits.clone());
    let (grammar, mut spec) = internal.map_err(|error| refused(&error))?;
    let is_of_json: Vec<bool> = (0..spec.skip_by_class.len())
        .map(|class| {
            let skip = spec.skip_by_class[class];
            // The library does not tell which part of a grammar a lexeme comes from. Its class of white space shows
            // it.
            let text = spec.lexeme_spec(skip).to_string(1 << 10, None);
            JSON_WHITE_SPACE.iter().any(|white_space| text.contains(white_space))
        })
        .collect();
    if is_of_json.contains(&true) {
        Tightening::new(digits, integers).run(&mut spec, &is_of_json)?;
    }
    Ok(GrammarInit::Internal(grammar, spec))
}

fn refused(error: &impl std::fmt::Display) -> Error {
    Error::Constraint(crate::compiler::reason(&error.to_string()))
}

struct Tightening {
    limits: Digits,
    /// [`Digits::regex`], once a number needs it. It is large, and most schemas have none.
    digits: Option<ExprRef>,
    /// [`ONE_SPELLING`], once an object allows additional properties.
    one_spelling: Option<ExprRef>,
    /// Integers and ranges whose texts are in the schemas (`schema/exact.rs`).
    integers: Vec<String>,
    /// Those of them that were found in a lexeme.
    found: BTreeSet<String>,
    /// The number of further lexemes that may be checked for texts.
    left: usize,
}

impl Tightening {
    fn new(limits: Digits, integers: Vec<String>) -> Self {
        Self {
            limits,
            digits: None,
            one_spelling: None,
            integers,
            found: BTreeSet::new(),
            left: MAX_CHECKED,
        }
    }

    /// Adds each lexeme again, in order, so that it keeps its index.
    fn run(mut self, spec: &mut LexerSpec, is_of_json: &[bool]) -> Result<()> {
        let class = spec.current_class;
        for lexeme in std::mem::take(&mut spec.lexemes) {
            let place = spec.lexemes.len();
            let is_skip = spec.skip_by_class.contains(&LexemeIdx::new(place));
            let is_of_json = is_of_json.get(lexeme.class().as_usize()) == Some(&true);
            let old = expression(&lexeme).filter(|_| is_of_json && !is_skip);
            let stricter = match old {
                Some(old) => self.stricter(spec, old)?,
                None => None,
            };
            let Some(stricter) = stricter else {
                spec.lexemes.push(lexeme);
                continue;
            };
            spec.current_class = lexeme.class();
            let made = spec.add_greedy_lexeme(
                String::new(),
                RegexAst::ExprRef(stricter),
                false,
                None,
                lexeme.max_tokens(),
            );
            let made = made.map_err(|error| refused(&error))?;
            if made.as_usize() != place {
                // The library knows the lexeme under another index already.
                spec.lexemes.push(lexeme);
            }
        }
        spec.current_class = class;
        match self.integers.iter().find(|digits| !self.found.contains(*digits)) {
            None => Ok(()),
            Some(digits) => Err(Error::Constraint(format!(
                "{digits}, which double precision would round, cannot be held beside texts of any kind: leave one of \
                 them out"
            ))),
        }
    }

    /// A lexeme with integers in place of their texts, if it has such a text.
    ///
    /// # Errors
    /// The constraint has too many lexemes to look for them.
    fn with_integers(&mut self, spec: &mut LexerSpec, old: ExprRef) -> Result<Option<ExprRef>> {
        if self.integers.is_empty() {
            return Ok(None);
        }
        let too_many = || {
            Error::Constraint(format!(
                "integers beyond 2^53 are in a schema with too many other values: use fewer than {MAX_CHECKED} lists of \
                 values, or no integers beyond 2^53"
            ))
        };
        self.left = self.left.checked_sub(1).ok_or_else(too_many)?;
        let regex = spec.regex_builder.to_regex_limited(old, EMPTINESS_FUEL);
        let mut regex = regex.map_err(|_| too_many())?;
        let quoted = |text: &str| format!("\"{text}\"");
        // A lexeme of any text also matches another text of the same length.
        let mut is_own = |digits: &String| {
            let text = text_of_integer(digits);
            let other = format!("{}x", &text[..text.len() - 1]);
            regex.is_match(&quoted(&text)) && !regex.is_match(&quoted(&other))
        };
        let own: Vec<&String> = self.integers.iter().filter(|digits| is_own(digits)).collect();
        self.found.extend(own.iter().map(|digits| (*digits).clone()));
        if own.is_empty() {
            return Ok(None);
        }
        let texts = own.iter().map(|digits| RegexAst::Literal(quoted(&text_of_integer(digits))));
        let others = RegexAst::Not(Box::new(RegexAst::Or(texts.collect())));
        let mut all = vec![RegexAst::And(vec![RegexAst::ExprRef(old), others])];
        all.extend(own.into_iter().map(|digits| match Range::of(digits) {
            Some(range) => RegexAst::Regex(range.regex()),
            None => RegexAst::Literal(digits.clone()),
        }));
        spec.regex_builder.mk(&RegexAst::Or(all)).map(Some).map_err(|error| refused(&error))
    }

    /// A stricter expression in place of a lexeme's, if it needs one.
    fn stricter(&mut self, spec: &mut LexerSpec, old: ExprRef) -> Result<Option<ExprRef>> {
        let exact = self.with_integers(spec, old)?;
        let expression = exact.unwrap_or(old);
        if is_additional_name(spec, old) {
            let one_spelling =
                or_make(self.one_spelling, spec, || RegexAst::Regex(ONE_SPELLING.to_owned()))?;
            self.one_spelling = Some(one_spelling);
            let both = both(spec, expression, one_spelling)?;
            if !self.has_text(spec, both) {
                return Err(Error::Constraint(
                    "an object allows additional properties, but no name is left for them: change its \
                     `patternProperties` or `properties`"
                        .to_owned(),
                ));
            }
            return Ok(Some(both));
        }
        // Strings, brackets and literals begin with these bytes. This is much cheaper than the search for a digit.
        let expressions = spec.regex_builder.exprset();
        let forced = |byte: &u8| expressions.has_simply_forced_bytes(old, &[*byte]);
        if b"\"{}[],:tfn".iter().any(forced) {
            return Ok(exact);
        }
        if let Some(plain) = self.plain_number(spec, old)? {
            return Ok(Some(plain));
        }
        if self.begins_without_digit(spec, old) {
            return Ok(exact);
        }
        let digits = or_make(self.digits, spec, || self.limits.lexemes())?;
        self.digits = Some(digits);
        both(spec, expression, digits).map(Some)
    }

    /// The stricter expression of a number without bounds. It is much smaller than an intersection with [`Digits::regex`].
    fn plain_number(&self, spec: &mut LexerSpec, old: ExprRef) -> Result<Option<ExprRef>> {
        let text = shown(&spec.regex_builder, old);
        let [integer, number] = &*PLAIN_NUMBERS;
        let stricter = match () {
            () if text == *integer => self.limits.integer(),
            () if text == *number => self.limits.number(),
            () => return Ok(None),
        };
        make(spec, stricter).map(Some)
    }

    /// Whether a lexeme certainly is not a number.
    fn begins_without_digit(&mut self, spec: &LexerSpec, lexeme: ExprRef) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        let regex = spec.regex_builder.to_regex_limited(lexeme, EMPTINESS_FUEL);
        regex.is_ok_and(|mut regex| {
            let initial = regex.initial_state();
            b"-0123456789".iter().all(|byte| regex.transition(initial, *byte).is_dead())
        })
    }

    /// Whether a lexeme matches any text; also true if that cannot be found out.
    fn has_text(&mut self, spec: &LexerSpec, lexeme: ExprRef) -> bool {
        if self.left == 0 {
            return true;
        }
        self.left -= 1;
        let regex = spec.regex_builder.to_regex_limited(lexeme, EMPTINESS_FUEL);
        !regex.is_ok_and(|mut regex| regex.always_empty())
    }
}

/// An expression as text, which has its whole structure if it is not longer than a plain number's.
fn shown(builder: &RegexBuilder, expression: ExprRef) -> String {
    builder.exprset().expr_to_string_max_len(expression, 1 << 10)
}

fn make(spec: &mut LexerSpec, regex: RegexAst) -> Result<ExprRef> {
    spec.regex_builder.mk(&regex).map_err(|error| refused(&error))
}

/// An expression that was made before, or a new one.
fn or_make(
    made: Option<ExprRef>,
    spec: &mut LexerSpec,
    regex: impl FnOnce() -> RegexAst,
) -> Result<ExprRef> {
    made.map_or_else(|| make(spec, regex()), Ok)
}

/// The intersection of two expressions.
fn both(spec: &mut LexerSpec, one: ExprRef, other: ExprRef) -> Result<ExprRef> {
    let parts = vec![RegexAst::ExprRef(one), RegexAst::ExprRef(other)];
    spec.regex_builder.mk(&RegexAst::And(parts)).map_err(|error| refused(&error))
}

/// Whether a lexeme is a name of additional properties. The library writes them as "any string, but none of these".
fn is_additional_name(spec: &LexerSpec, lexeme: ExprRef) -> bool {
    let parts = spec.regex_builder.exprset().get_args(lexeme);
    has_tag(spec, lexeme, "And") && parts.iter().any(|part| has_tag(spec, *part, "Not"))
}

fn has_tag(spec: &LexerSpec, expression: ExprRef, name: &str) -> bool {
    format!("{:?}", spec.regex_builder.exprset().get_tag(expression)) == name
}

/// The expression of a lexeme. The library shows it only as text: `(ExprRef 39)` after the lexeme's name.
fn expression(lexeme: &LexemeSpec) -> Option<ExprRef> {
    let text = lexeme.to_string(1 << 10, None);
    let number = text.strip_suffix(')')?.rsplit_once("(ExprRef ")?.1;
    number.parse().ok().map(ExprRef::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_constraint_say_how_many_digits_are_needed() {
        let needed = |before_point, behind_point| Digits { before_point, behind_point };
        for (text, digits) in [
            (r#"{"minimum":12,"multipleOf":0.5}"#, Digits::USUAL),
            (r#"{"minimum":1e30}"#, needed(31, 20)),
            (r#"{"enum":[-123456789012345678901234]}"#, needed(24, 20)),
            (r#"{"multipleOf":1e-25}"#, needed(20, 25)),
            (r#"{"maximum":1e999999999999999999999}"#, Digits::USUAL),
            (r#"{"maximum":1e99999}"#, needed(MAX_DIGITS, 20)),
        ] {
            assert_eq!(Digits::needed(text), digits, "{text}");
        }
    }

    #[test]
    fn numbers_without_bounds_have_the_digits_of_others() {
        for digits in [Digits::USUAL, Digits { before_point: 24, behind_point: 25 }] {
            for (library, own) in [(INTEGER, digits.integer()), (NUMBER, digits.number())] {
                let mut builder = RegexBuilder::new();
                let library = RegexAst::Regex(library.to_owned());
                let [library, limited, own] =
                    [library, digits.lexemes(), own].map(|regex| builder.mk(&regex).unwrap());
                let mut without = |parts: &[ExprRef], excluded: &[ExprRef]| {
                    let and = |parts: &[ExprRef]| {
                        RegexAst::And(parts.iter().copied().map(RegexAst::ExprRef).collect())
                    };
                    let excluded = RegexAst::Not(Box::new(and(excluded)));
                    let rest = builder.mk(&RegexAst::And(vec![and(parts), excluded])).unwrap();
                    builder.to_regex_limited(rest, 10_000_000).unwrap().always_empty()
                };
                assert!(without(&[own], &[library, limited]), "more");
                assert!(without(&[library, limited], &[own]), "fewer");
                assert!(!without(&[library], &[own]), "no limit");
            }
        }
    }
}
