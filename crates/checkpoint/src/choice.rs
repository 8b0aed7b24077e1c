//! The values that a setting may have, by the names that people write.
//!
//! Each list stands beside the type of its values. The command line, the checks of deployments and their errors read it from there.

use candlepower_layout::Dtype;

/// A value of a setting, and how people write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice<T> {
    /// The value that the name stands for.
    pub value: T,
    /// Its name.
    pub name: &'static str,
    /// Other names, which are taken and not shown in help.
    pub aliases: &'static [&'static str],
    /// Its line in the help; empty where the name says it all.
    pub help: &'static str,
}

impl<T: Copy> Choice<T> {
    /// A value with one name.
    pub const fn new(value: T, name: &'static str, help: &'static str) -> Self {
        Self { value, name, aliases: &[], help }
    }

    /// With other names beside it.
    pub(crate) const fn or(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }

    /// The value that is written so.
    pub fn find(choices: &[Self], text: &str) -> Option<T> {
        let is_called = |choice: &&Self| choice.name == text || choice.aliases.contains(&text);
        choices.iter().find(is_called).map(|choice| choice.value)
    }

    /// All names in order, each value's aliases behind its own.
    pub fn names(choices: &[Self]) -> Vec<&'static str> {
        choices.iter().flat_map(|choice| [&[choice.name], choice.aliases].concat()).collect()
    }
}

/// The values of `--dtype`: the types that weights may be kept in; `None` keeps them as stored.
pub const DTYPES: [Choice<Option<Dtype>>; 4] = [
    Choice::new(None, "auto", "As stored"),
    Choice::new(Some(Dtype::F32), Dtype::F32.as_str(), "IEEE single").or(&["float"]),
    Choice::new(Some(Dtype::F16), Dtype::F16.as_str(), "IEEE half").or(&["half"]),
    Choice::new(Some(Dtype::Bf16), Dtype::Bf16.as_str(), "bfloat16"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KvDtype, OnLoad, Pooling};

    #[test]
    fn a_value_is_found_by_each_of_its_names() {
        assert_eq!(Choice::find(&DTYPES, "auto"), Some(None));
        assert_eq!(Choice::find(&DTYPES, "half"), Some(Some(Dtype::F16)));
        assert_eq!(Choice::find(&DTYPES, "HALF"), None);
        let names = ["auto", "float32", "float", "float16", "half", "bfloat16"];
        assert_eq!(Choice::names(&DTYPES), names);
        assert_eq!(Choice::find(&KvDtype::CHOICES, "fp8_e4m3"), Some(Some(KvDtype::Fp8)));
    }

    #[test]
    fn a_name_stands_for_one_value() {
        fn check<T: Copy + PartialEq + std::fmt::Debug>(choices: &[Choice<T>]) {
            for choice in choices {
                for name in [&[choice.name], choice.aliases].concat() {
                    assert_eq!(Choice::find(choices, name), Some(choice.value), "{name}");
                }
            }
        }
        check(&DTYPES);
        check(&KvDtype::CHOICES);
        check(&OnLoad::CHOICES);
        check(&Pooling::CHOICES);
    }
}
