//! Prints the settings in force as a config file, each line with its source.

use std::fmt::Write as _;

use clap::Arg;

use super::resolve::{FLAG_ONLY, SECRET, TOKEN, command, is_negation};
use super::{Effective, Setting};

impl Effective {
    /// The settings in force as TOML, which is itself a config file with the same effect. Each line ends with a comment
    /// that names the source of the value. Settings without a value and secrets are written as comments.
    pub fn to_toml(&self) -> String {
        let mut text =
            "# The settings in force, each with its source. This is a config file itself:\n\
                        # candlepower serve --config FILE.\n"
                .to_owned();
        let mut heading = None;
        for arg in command().get_arguments() {
            let key = arg.get_id().as_str();
            if FLAG_ONLY.contains(&key) || key == TOKEN || is_negation(key) {
                continue;
            }
            if arg.get_help_heading() != heading.as_deref() {
                heading = arg.get_help_heading().map(str::to_owned);
                let _ = writeln!(text, "\n# {}\n", heading.as_deref().unwrap_or("Other")); // a String takes everything
            }
            text.push_str(&self.line(arg));
            text.push('\n');
        }
        text
    }

    fn line(&self, arg: &Arg) -> String {
        let key = arg.get_id().as_str();
        match self.settings.iter().find(|setting| setting.name == key) {
            Some(setting) if SECRET.contains(&key) => {
                let value = setting.value.trim_matches(['(', ')']);
                format!("# {key} is set and {value}  # {}", origin(setting))
            }
            Some(setting) => {
                let parts: Vec<String> = setting.parts.iter().map(|part| literal(part)).collect();
                let value = match (arg.get_value_delimiter(), parts.as_slice()) {
                    (None, [value]) => value.clone(),
                    _ => format!("[{}]", parts.join(", ")),
                };
                format!("{key} = {value}  # {}", origin(setting))
            }
            None if key == "port" => format!("port = {}  # default", self.config.port()),
            None => match default_in_words(arg) {
                Some(words) => format!("# {key} =  # not set; default: {words}"),
                None => format!("# {key} =  # not set"),
            },
        }
    }
}

/// The source of a value, with the name of the variable or the path of the file.
fn origin(setting: &Setting) -> String {
    match &setting.place {
        // A line break in a path would end the comment, and the rest of the path would be read as a setting.
        Some(place) => format!("{} ({})", setting.source, place.escape_debug()),
        None => setting.source.to_string(),
    }
}

/// The value as TOML: a number or a Boolean if the text is one in TOML, otherwise a string.
fn literal(text: &str) -> String {
    let is_bare = matches!(text, "true" | "false")
        || text.parse::<i64>().is_ok_and(|number| number.to_string() == text)
        || (text.contains('.')
            && text.parse::<f64>().is_ok_and(|number| number.to_string() == text));
    if is_bare { text.to_owned() } else { toml::Value::from(text).to_string() }
}

/// The text of `[default: ..]` in the help.
fn default_in_words(arg: &Arg) -> Option<String> {
    let help = arg.get_help()?.to_string();
    let words = help.split_once("[default: ")?.1;
    Some(words.strip_suffix(']')?.to_owned())
}
