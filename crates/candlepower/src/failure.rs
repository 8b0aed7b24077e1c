//! Texts of errors for users.

/// The error and its causes in one line. Many errors name their cause themselves, and no cause is repeated.
pub(crate) fn text(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io::Error;

    use anyhow::anyhow;

    use super::*;

    #[test]
    fn causes_are_named_once() {
        let cause = || Error::other("no space");
        assert_eq!(text(&anyhow!(cause()).context("cannot write a")), "cannot write a: no space");
        let named = anyhow!(cause()).context("cannot write a: no space; delete b");
        assert_eq!(text(&named), "cannot write a: no space; delete b");
    }
}
