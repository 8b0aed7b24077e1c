//! A bound on the depth of the expressions of a chat template, before the template engine parses it.
//!
//! The engine bounds brackets and blocks. It does not bound chains (`a + 1 + 1`, `not not a`, `a.b.b`, `a|f|f`), and
//! recurses once for each link. Without this bound a template could overflow the stack.

/// Most operators, dots, filters, brackets and keywords in one tag. Models' templates have about twenty.
const MAX_IN_TAG: usize = 500;

/// Most `elif` in one template, since each is one more level. Models' templates have about ten.
const MAX_ELIF: usize = 200;

/// Returns the line of the first tag that is too deep, and the reason.
///
/// Text and comments are skipped as the engine skips them. A `raw` block is checked like the rest, since no real
/// template exceeds the bound there.
pub(crate) fn too_deep(source: &str) -> Option<(usize, String)> {
    let mut num_elif = 0;
    let mut rest = source;
    while let Some(start) = next_tag(rest) {
        let (opening, inside) = rest[start..].split_at(2);
        let line = || 1 + source[..source.len() - inside.len()].matches('\n').count();
        let closing = match opening {
            "{{" => "}}",
            "{%" => "%}",
            // A comment, `{#`.
            _ => {
                rest = inside.split_once("#}").map_or("", |(_, behind)| behind);
                continue;
            }
        };
        let tag = Tag::read(inside, closing);
        num_elif += usize::from(tag.is_elif);
        if tag.num_links > MAX_IN_TAG {
            return Some((line(), format!("a tag has more than {MAX_IN_TAG} operators")));
        }
        if num_elif > MAX_ELIF {
            return Some((line(), format!("there are more than {MAX_ELIF} elif")));
        }
        rest = &inside[tag.len..];
    }
    None
}

/// Index of the next tag or comment.
fn next_tag(text: &str) -> Option<usize> {
    // Three separate searches would scan to the end of the text for each tag.
    text.as_bytes().windows(2).position(|pair| matches!(pair, b"{{" | b"{%" | b"{#"))
}

struct Tag {
    /// Number of bytes, with its closing mark.
    len: usize,
    num_links: usize,
    is_elif: bool,
}

impl Tag {
    fn read(text: &str, closing: &str) -> Self {
        let mut tag = Self { len: text.len(), num_links: 0, is_elif: false };
        let mut at = 0;
        let mut is_first_word = true;
        while let Some(character) = text[at..].chars().next() {
            if text[at..].starts_with(closing) {
                tag.len = at + closing.len();
                break;
            }
            let length = match character {
                '\'' | '"' => string_len(&text[at..], character),
                _ if is_word(character) => {
                    text[at..].find(|c| !is_word(c)).unwrap_or(text.len() - at)
                }
                _ => character.len_utf8(),
            };
            let token = &text[at..at + length];
            if is_word(character) {
                tag.is_elif |= is_first_word && token == "elif";
                is_first_word = false;
                let is_link = matches!(token, "not" | "and" | "or" | "in" | "is" | "if" | "else");
                tag.num_links += usize::from(is_link);
            } else {
                let is_link = character.is_ascii_punctuation()
                    // Items of lists and closing brackets make nothing deeper. Lists of data may be long.
                    && !matches!(character, '\'' | '"' | ',' | ':' | ')' | ']' | '}');
                tag.num_links += usize::from(is_link);
            }
            at += length;
        }
        tag
    }
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Number of bytes of a string literal with its quotes.
fn string_len(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            _ if character == quote => return at + character.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jinja::environment;

    /// Links of chains by which expressions become deep: the text before, the link, and the text after.
    const CHAINS: [(&str, &str, &str); 24] = [
        ("{{ ", "-", "1 }}"),
        ("{{ ", "- ", "1 }}"),
        ("{{ ", "not ", "1 }}"),
        ("{{ 1", " + 1", " }}"),
        ("{{ 1", "-1", " }}"),
        ("{{ 1", " ~ 'x'", " }}"),
        ("{{ 1", " * 1", " }}"),
        ("{{ 1", " // 1", " }}"),
        ("{{ 1", " ** 1", " }}"),
        ("{{ 1", " and 1", " }}"),
        ("{{ 1", " or 1", " }}"),
        ("{{ 1", " == 1", " }}"),
        ("{{ 1", " in 1", " }}"),
        ("{{ 1", " is string", " }}"),
        ("{{ 1", " if 1", " }}"),
        ("{{ 1", " if 1 else 1", " }}"),
        ("{{ a", "|upper", " }}"),
        ("{{ a", ".b", " }}"),
        ("{{ a", "['b']", " }}"),
        ("{{ a", "()", " }}"),
        ("{{ a", "[1:]", " }}"),
        ("{% set a = 1", " + 1", " %}"),
        ("{% if a %}", "{% elif a %}", "{% endif %}"),
        ("{%- if a -%}", "{%- elif 1 -%}x{# {{ #}", "{% endif %}"),
    ];

    /// The engine parses each accepted template with much less stack than a thread has. The bound is reached for
    /// every kind of chain.
    #[test]
    fn chains_are_refused_before_they_are_too_deep_for_the_engine() {
        for (before, link, behind) in CHAINS {
            let chain = |times: usize| format!("{before}{}{behind}", link.repeat(times));
            assert!(too_deep(&chain(10_000)).is_some(), "{link}");
            let longest = (1..1000).rev().find(|&times| too_deep(&chain(times)).is_none()).unwrap();
            // No real template has as many links.
            assert!(longest >= 100, "{link} {longest}");
            let source = chain(longest);
            let parse = move || {
                let _ = environment(1000)
                    .template_from_str(&source)
                    .map(|template| template.render(()));
            };
            // Half of the stack of tokio's threads.
            std::thread::Builder::new().stack_size(1 << 20).spawn(parse).unwrap().join().unwrap();
        }
    }

    #[test]
    fn text_comments_and_strings_are_no_links() {
        let many = "-".repeat(1000);
        for source in [
            format!("{many}{{# {many} #}}{many}"),
            format!("{{{{ '{many}' }}}}"),
            format!("{{{{ \"it\\\"s {many}\" }}}}{many}"),
            "{{ a.b + 1 }}\n".repeat(1000),
            format!("{{{{ [{}] }}}}", "1, ".repeat(1000)),
        ] {
            assert_eq!(too_deep(&source), None, "{source:.40}");
        }
        assert_eq!(too_deep(&format!("a\n{{{{ b }}}}\n{{{{ {many}1 }}}}")).unwrap().0, 3);
        assert!(too_deep(&format!("{{{{ '}}}}' {many}1")).is_some());
        assert!(
            too_deep("{{").is_none() && too_deep("{#").is_none() && too_deep("{{ 'é").is_none()
        );
    }
}
