//! Determines the kind of a literal's text, from the calls and attributes around it.

use super::passage::Kind;

/// Limits of the search: enclosing brackets, and bytes of code.
const MAX_DEPTH: usize = 5;
const MAX_BYTES: usize = 3000;

/// Names before a bracket, and the kind of the literals within it.
const CALLS: [(&[&str], Kind); 6] = [
    (&["describe"], Kind::Metrics),
    (&["arg", "command", "value"], Kind::Help),
    (&["utoipa::path", "responses", "params", "schema", "openapi", "info"], Kind::OpenApi),
    (&["trace!", "debug!", "info!", "warn!", "error!"], Kind::Logs),
    (
        &["assert!", "assert_eq!", "debug_assert!", "panic!", "unreachable!", ".expect"],
        Kind::Panics,
    ),
    (&["error", "bail!", "anyhow!", "ensure!", ".context", ".with_context", "Err"], Kind::Errors),
];

/// The kind of a literal after this code, in which comments and literals are blank.
pub(crate) fn of_literal(code: &str, of_crate: &str) -> Kind {
    let before = code.trim_end();
    // The help's constants have no call around them.
    if before.ends_with("HELP: &str =") || before.ends_with("USAGE: &str =") {
        return Kind::Help;
    }
    if before.ends_with("reason =") {
        return Kind::Comments(of_crate.to_owned());
    }
    let names = enclosing(before);
    let named = names.iter().find_map(|name| {
        let of_error =
            name.contains("Error::") || name.ends_with("Error") || name.ends_with("message =");
        CALLS
            .iter()
            .find(|(calls, _)| calls.contains(&name.as_str()))
            .map(|(_, kind)| kind.clone())
            .or_else(|| of_error.then_some(Kind::Errors))
    });
    named.unwrap_or(match before.ends_with("message =") {
        true => Kind::Errors,
        false => Kind::Texts,
    })
}

/// The names before all brackets that are open at the end of the code, innermost first.
fn enclosing(code: &str) -> Vec<String> {
    let (mut names, mut depth) = (Vec::new(), 0_usize);
    let bytes = code.as_bytes();
    for i in (bytes.len().saturating_sub(MAX_BYTES)..bytes.len()).rev() {
        match bytes[i] {
            b')' | b']' | b'}' => depth += 1,
            b'(' | b'[' | b'{' if depth > 0 => depth -= 1,
            b'(' | b'[' | b'{' => names.push(name_before(bytes, i)),
            _ => {}
        }
        // A semicolon outside of all brackets ends the statement before, so nothing in front of it encloses the
        // literal.
        if names.len() == MAX_DEPTH || depth == 0 && bytes[i] == b';' {
            break;
        }
    }
    names
}

/// The path or name before a bracket. For `format!` it is the name that its result is bound to.
fn name_before(bytes: &[u8], bracket: usize) -> String {
    let of_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"_:!.".contains(byte);
    let len = bytes[..bracket].iter().rev().take_while(|byte| of_name(byte)).count();
    let name = String::from_utf8_lossy(&bytes[bracket - len..bracket]).into_owned();
    if name == "format!" {
        // 40 bytes have room for `let message =` and white space.
        let before = String::from_utf8_lossy(&bytes[bracket.saturating_sub(40)..bracket - len]);
        if before.trim_end().ends_with("message =") {
            return "message =".to_owned();
        }
    }
    // A method keeps its point but not its receiver. A macro loses its path.
    match (name.rfind('.'), name.rfind("::")) {
        (Some(at), _) => name[at..].to_owned(),
        (None, Some(at)) if name.ends_with('!') => name[at + 2..].to_owned(),
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_call_that_says_a_kind_decides() {
        for (code, kind) in [
            ("#[error(", "errors"),
            ("error!(", "logs"),
            ("bail!(", "errors"),
            ("file.read().with_context(|| format!(", "errors"),
            ("Err(ApiError::invalid(   , format!(", "errors"),
            ("return Err(Error::Wide { name, message: ", "errors"),
            ("let message = format!(", "errors"),
            ("let message = ", "errors"),
            ("info!(model = name, ", "logs"),
            ("tracing::warn!(", "logs"),
            ("describe(  ,  , Kind::Gauge, ", "metrics"),
            ("#[arg(long, help = ", "help"),
            ("const AFTER_HELP: &str = ", "help"),
            ("#[utoipa::path(get, responses((status = 200, description = ", "openapi"),
            ("x.expect(", "panics"),
            ("#[expect(clippy::x, reason = ", "comments:api"),
            ("bail!(   ); const X: &str = ", "texts"),
        ] {
            assert_eq!(of_literal(code, "api").to_string(), kind, "{code}");
        }
    }
}
