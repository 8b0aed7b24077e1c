//! Rewrites Python's `"text" % values` in templates, which the engine does not have, to the equivalent filter
//! `format`.

/// The template with the filter in place of each `%` after a string literal.
pub(crate) fn with_format_filters(source: &str) -> String {
    let mut scanner = Scanner { source, at: 0, written: String::with_capacity(source.len()) };
    while scanner.at < source.len() {
        scanner.text();
        scanner.code();
    }
    scanner.written
}

struct Scanner<'a> {
    source: &'a str,
    at: usize,
    written: String,
}

impl<'a> Scanner<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    /// Copies `len` bytes.
    fn copy(&mut self, len: usize) {
        self.written.push_str(&self.rest()[..len]);
        self.at += len;
    }

    /// Copies everything outside of tags, with comments and raw blocks, and the opening mark of the next tag.
    fn text(&mut self) {
        loop {
            let rest = self.rest();
            let Some(open) = rest.find('{').filter(|open| open + 1 < rest.len()) else {
                return self.copy(rest.len());
            };
            match rest.as_bytes()[open + 1] {
                b'#' => {
                    let end = rest[open..].find("#}").map_or(rest.len(), |end| open + end + 2);
                    self.copy(end);
                }
                b'%' if tag_name(&rest[open + 2..]) == "raw" => {
                    let end = end_of_raw(&rest[open..]).map_or(rest.len(), |end| open + end);
                    self.copy(end);
                }
                b'%' | b'{' => return self.copy(open + 2),
                _ => self.copy(open + 1),
            }
        }
    }

    /// Copies the content of a tag and its closing mark.
    fn code(&mut self) {
        while let Some(len) = token_len(self.rest()) {
            let token = &self.rest()[..len];
            if token == "}}" || token == "%}" {
                return self.copy(len);
            }
            let is_text = token.starts_with(['"', '\'']);
            self.copy(len);
            // Only behind a literal is `%` certainly Python's operator for texts. Behind a name it may be the
            // remainder.
            if is_text {
                self.operator();
            }
        }
    }

    /// Writes the filter if the operator is next.
    fn operator(&mut self) {
        let rest = self.rest();
        let at = rest.len() - rest.trim_start().len();
        let behind = rest[at..].strip_prefix('%').filter(|behind| !behind.starts_with('}'));
        let Some(len) = behind.and_then(operand_len) else { return };
        let operand = behind.map_or("", |behind| behind[..len].trim());
        // A tuple is a list of values, and anything else is one value. `(a + 1)` is no tuple.
        let inner = tuple(operand).unwrap_or(operand);
        self.written.push_str("|format(");
        self.written.push_str(&with_format_filters_in(inner));
        self.written.push(')');
        self.at += at + 1 + len;
    }
}

/// The same within an expression.
fn with_format_filters_in(expression: &str) -> String {
    let mut scanner = Scanner { source: expression, at: 0, written: String::new() };
    scanner.code();
    scanner.written
}

/// The name of a tag, after its opening mark.
fn tag_name(rest: &str) -> &str {
    let rest = rest.trim_start_matches(['-', '+']).trim_start();
    &rest[..rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len())]
}

/// Index of the end of a raw block, after its last tag.
fn end_of_raw(rest: &str) -> Option<usize> {
    let mut at = 2;
    loop {
        at += rest[at..].find("{%")? + 2;
        if tag_name(&rest[at..]) == "endraw" {
            return Some(at + rest[at..].find("%}")? + 2);
        }
    }
}

/// Length of the next token within a tag; white space is a token, too. `None` at the end.
fn token_len(rest: &str) -> Option<usize> {
    let first = rest.chars().next()?;
    let until = |is_in: fn(char) -> bool| rest.find(|c| !is_in(c)).unwrap_or(rest.len());
    Some(match first {
        '"' | '\'' => text_len(rest, first),
        _ if first.is_whitespace() => until(char::is_whitespace),
        _ if is_name(first) => until(is_name),
        _ if rest.starts_with("}}") || rest.starts_with("%}") => 2,
        _ => first.len_utf8(),
    })
}

fn is_name(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Length of a string literal, or of all remaining text.
fn text_len(rest: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, character) in rest.char_indices().skip(1) {
        if character == quote && !is_escaped {
            return at + 1;
        }
        is_escaped = character == '\\' && !is_escaped;
    }
    rest.len()
}

/// Length of the operator's right side: a value with everything after it that binds tighter.
fn operand_len(rest: &str) -> Option<usize> {
    let mut at = spaces(rest);
    at += usize::from(rest[at..].starts_with(['-', '+']));
    at += spaces(&rest[at..]);
    at += value_len(&rest[at..])?;
    loop {
        let next = at + spaces(&rest[at..]);
        let behind = &rest[next..];
        at = match behind.chars().next() {
            Some('(' | '[') => next + brackets_len(behind)?,
            Some('.' | '|') => {
                let name = next + 1 + spaces(&behind[1..]);
                name + value_len(&rest[name..])?
            }
            _ => return Some(at),
        };
    }
}

fn spaces(rest: &str) -> usize {
    rest.len() - rest.trim_start().len()
}

/// Length of a name, a number, a string literal, or something in brackets.
fn value_len(rest: &str) -> Option<usize> {
    match rest.chars().next()? {
        '(' | '[' | '{' => brackets_len(rest),
        first if is_name(first) || matches!(first, '"' | '\'') => token_len(rest),
        _ => None,
    }
}

/// Length of something in brackets.
fn brackets_len(rest: &str) -> Option<usize> {
    let (mut closing, mut at) = (Vec::new(), 0);
    loop {
        let token = rest[at..].chars().next()?;
        match token {
            '(' => closing.push(')'),
            '[' => closing.push(']'),
            '{' => closing.push('}'),
            ')' | ']' | '}' if closing.pop() != Some(token) => return None,
            _ => {}
        }
        // Two closing braces may end two dictionaries.
        at += if token == '}' { 1 } else { token_len(&rest[at..])? };
        if closing.is_empty() {
            return Some(at);
        }
    }
}

/// The text between the parentheses of a tuple.
fn tuple(operand: &str) -> Option<&str> {
    let inner = operand.strip_prefix('(')?.strip_suffix(')')?;
    if brackets_len(operand)? != operand.len() {
        return None;
    }
    let (mut depth, mut at, mut has_comma) = (0_usize, 0, false);
    while let Some(len) = token_len(&inner[at..]) {
        match inner.as_bytes()[at] {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            b',' => has_comma |= depth == 0,
            _ => {}
        }
        at += if inner.as_bytes()[at] == b'}' { 1 } else { len };
    }
    has_comma.then(|| inner.trim_end().trim_end_matches(','))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operator_becomes_the_filter() {
        for (template, want) in [
            ("{{ '%s' % x }}", "{{ '%s'|format(x) }}"),
            ("{{ \"%s, %d\" % (a, b) }}", "{{ \"%s, %d\"|format(a, b) }}"),
            ("{{ '%s' % (a,) ~ 'b' }}", "{{ '%s'|format(a) ~ 'b' }}"),
            ("{{ '%s' % (a + 1) }}", "{{ '%s'|format((a + 1)) }}"),
            (
                "{%- set a = '%s' % m['x'].y(1, ')')|upper %}",
                "{%- set a = '%s'|format(m['x'].y(1, ')')|upper) %}",
            ),
            (
                "{{ '%s' % -1 }}{{ '%s' % {'a': {}} }}",
                "{{ '%s'|format(-1) }}{{ '%s'|format({'a': {}}) }}",
            ),
            ("{{ '%s' % ('%s' % a, 'b') }}", "{{ '%s'|format('%s'|format(a), 'b') }}"),
            ("{{ f('%s' % a if a else 'b') }}", "{{ f('%s'|format(a) if a else 'b') }}"),
        ] {
            assert_eq!(with_format_filters(template), want, "{template}");
        }
    }

    #[test]
    fn all_else_stays() {
        for template in [
            "100 % '{ }' {",
            "{% if 'a' %}b{% endif %}",
            "{% if a == 'b' -%} % c {%- endif %}",
            "{{ a % 2 }}{{ x % y }}",
            "{# '%s' % x #}{% raw %}{{ '%s' % x }}{% endraw %}",
            "{{ 'a % b' }}{{ '\\'' ~ \" % c\" }}",
            "{{ {'a': {'b': 1}} }}",
            "{{ '%s' % }}",
            "{{ '%s' % (a }}",
            "{{ 'open",
            "{%",
        ] {
            assert_eq!(with_format_filters(template), template);
        }
    }

    #[test]
    fn nothing_panics_where_a_template_is_cut() {
        let template = "é{{- '%é' % (a, {'b': ['é']}, c|d('x')) -}}{% raw %}{% endraw %}{# é #}";
        for (end, _) in template.char_indices() {
            with_format_filters(&template[..end]);
        }
    }
}
