//! Blanks out comments and literals of Rust source, so that rules about code see only code.

/// A scanned source: its code, and the comments and literals that were blanked out.
pub(crate) struct Scan {
    /// The source with every comment and literal replaced by spaces; lines stay where they are.
    pub(crate) code: String,
    pub(crate) blanks: Vec<Blank>,
}

/// One comment or literal, as it is written.
pub(crate) struct Blank {
    /// Its start in `code`, in bytes.
    pub(crate) at: usize,
    /// Counted from 1.
    pub(crate) line: usize,
    pub(crate) text: String,
}

/// The source with every comment and string replaced by spaces. Lines keep their numbers.
pub(super) fn only_code(source: &str) -> String {
    scan(source).code
}

/// The source without comments, blank lines and trailing spaces: only what is compiled.
pub(crate) fn without_comments(source: &str) -> String {
    let scan = scan(source);
    let mut text = String::with_capacity(source.len());
    let mut at = 0;
    for blank in &scan.blanks {
        text.push_str(&scan.code[at..blank.at]);
        let is_comment = blank.text.starts_with("//") || blank.text.starts_with("/*");
        // A comment separates the words around it.
        text.push_str(if is_comment { " " } else { &blank.text });
        // Blanks have one space for each character.
        at = blank.at + blank.text.chars().count();
    }
    text.push_str(&scan.code[at..]);
    let lines = text.lines().map(str::trim_end).filter(|line| !line.is_empty());
    lines.fold(String::new(), |code, line| code + line + "\n")
}

/// Scans Rust source, or source of a language with the same comment syntax.
pub(crate) fn scan(source: &str) -> Scan {
    let chars: Vec<char> = source.chars().collect();
    let mut scan = Scan { code: String::with_capacity(source.len()), blanks: Vec::new() };
    let (mut at, mut line) = (0, 1);
    while at < chars.len() {
        let len = blank_len(&chars, at);
        if len == 0 {
            line += usize::from(chars[at] == '\n');
            scan.code.push(chars[at]);
            at += 1;
            continue;
        }
        let blank = &chars[at..(at + len).min(chars.len())];
        scan.blanks.push(Blank { at: scan.code.len(), line, text: blank.iter().collect() });
        line += blank.iter().filter(|&&c| c == '\n').count();
        scan.code.extend(blank.iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
        at += blank.len();
    }
    scan
}

/// The length of the comment or literal that begins here; 0 if none does.
fn blank_len(chars: &[char], at: usize) -> usize {
    let rest = &chars[at..];
    let in_word = at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_');
    match rest {
        ['/', '/', ..] => rest.iter().position(|&c| c == '\n').unwrap_or(rest.len()),
        ['/', '*', ..] => block_comment_len(rest),
        ['"', ..] => quoted_len(rest),
        // An identifier may end with `r`, `br` or `cr` before a string in a macro.
        ['r', '"' | '#', ..] if !in_word => raw_string_len(rest, 1),
        ['b' | 'c', 'r', '"' | '#', ..] if !in_word => raw_string_len(rest, 2),
        ['\'', '\\', ..] => {
            // The character behind the backslash may itself be a quote.
            2 + rest[2..].iter().skip(1).position(|&c| c == '\'').map_or(0, |i| i + 2)
        }
        // A lifetime has no quote two characters later.
        ['\'', _, '\'', ..] => 3,
        _ => 0,
    }
}

fn block_comment_len(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match &rest[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] if depth == 1 => return at + 2,
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    rest.len()
}

fn quoted_len(rest: &[char]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// `prefix` characters, hashes, a quote .. a quote, as many hashes. 0 for a raw identifier.
fn raw_string_len(rest: &[char], prefix: usize) -> usize {
    let hashes = rest[prefix..].iter().take_while(|&&c| c == '#').count();
    if rest.get(prefix + hashes) != Some(&'"') {
        return 0;
    }
    let body = prefix + hashes + 1;
    let closes = |at: usize| {
        rest[at] == '"' && rest[at + 1..].iter().take_while(|&&c| c == '#').count() >= hashes
    };
    (body..rest.len()).find(|&at| closes(at)).map_or(rest.len(), |at| at + 1 + hashes)
}

/// Whether `word` is in `line` as a word of its own.
pub(super) fn has_word(line: &str, word: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_code_stays() {
        for (source, code) in [
            ("a // unsafe\nb", "a          \nb"),
            ("a /* x /* y */ z */ b", "a                   b"),
            (r#"f("un\"safe", 'x')"#, "f(          ,    )"),
            (r##"f(r#"a " b"#, c)"##, "f(          , c)"),
            (r"let c = '\''; d", "let c =     ; d"),
            (r"let c = '\u{1f}'; d", "let c =         ; d"),
            ("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)"),
            ("let r#type = for_r;", "let r#type = for_r;"),
        ] {
            assert_eq!(only_code(source), code, "{source}");
        }
    }

    #[test]
    fn what_is_blanked_is_kept_with_its_line() {
        let scan = scan("a // é\nb(\"x\ny\") // z");
        let blanks: Vec<(usize, usize, &str)> =
            scan.blanks.iter().map(|blank| (blank.at, blank.line, blank.text.as_str())).collect();
        assert_eq!(blanks, [(2, 1, "// é"), (9, 2, "\"x\ny\""), (16, 3, "// z")]);
    }

    #[test]
    fn code_without_comments_keeps_its_literals() {
        for (source, code) in [
            ("a // b\n\n  // c\nd  \n", "a\nd\n"),
            ("f(/* é */\"// é\", x)", "f( \"// é\", x)\n"),
            ("a/* x\ny */b", "a b\n"),
            ("'\"' // \"", "'\"'\n"),
        ] {
            assert_eq!(without_comments(source), code, "{source}");
        }
    }

    #[test]
    fn an_unclosed_literal_reaches_to_the_end() {
        assert_eq!(only_code("a \"b"), "a   ");
        assert_eq!(only_code("a /* b"), "a     ");
    }

    #[test]
    fn words_are_whole() {
        assert!(has_word("let x = unsafe { y };", "unsafe"));
        assert!(!has_word("fn unsafe_code()", "unsafe"));
    }
}
