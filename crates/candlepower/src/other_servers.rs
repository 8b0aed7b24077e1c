//! Translates flags and commands of other servers. A flag with an equivalent becomes ours, a flag for default behaviour is dropped with
//! a note, and any other is refused with a hint.
//!
//! The translation runs before the command line is parsed. It never touches a flag that the parser knows, except for values that
//! other servers spell differently.

mod table;

use std::ffi::OsString;

use candlepower_server::ServeConfig;
use clap::{Args, Command};

use table::{COMMANDS, FLAGS, Foreign, Meaning, VALUES, Value};

/// The commands that have the flags of a server.
const SERVERS: [&str; 2] = ["serve", "config"];

/// A translated command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Translated {
    pub(crate) args: Vec<OsString>,
    /// Notes for the user.
    pub(crate) notes: Vec<String>,
}

/// Translates a command line, the program's name included.
///
/// # Errors
/// The flag or command does not exist; the error names an alternative.
pub(crate) fn translate(args: impl IntoIterator<Item = OsString>) -> Result<Translated, String> {
    let mut args = args.into_iter();
    let mut translated = Translated::default();
    translated.args.extend(args.next());
    let Some(name) = args.next() else { return Ok(translated) };
    if let Some((_, hint)) = COMMANDS.iter().find(|(foreign, _)| name == *foreign) {
        return Err(format!("candlepower has no command `{}`: {hint}", name.display()));
    }
    let takes_flags_of_servers = SERVERS.iter().any(|server| name == *server);
    translated.args.push(name);
    if !takes_flags_of_servers {
        translated.args.extend(args);
        return Ok(translated);
    }
    let own = ServeConfig::augment_args(Command::new("serve"));
    let mut line = Line { rest: args.collect::<Vec<_>>().into_iter().peekable(), own, translated };
    while let Some(word) = line.rest.next() {
        if word == "--" {
            line.translated.args.push(word);
            line.translated.args.extend(line.rest.by_ref());
            break;
        }
        match word.to_str().filter(|word| word.starts_with('-')) {
            Some(flag) => line.flag(flag)?,
            None => line.translated.args.push(word),
        }
    }
    Ok(line.translated)
}

/// A command line that is being translated.
struct Line {
    rest: std::iter::Peekable<std::vec::IntoIter<OsString>>,
    own: Command,
    translated: Translated,
}

impl Line {
    fn flag(&mut self, word: &str) -> Result<(), String> {
        let (name, given) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (word, None),
        };
        if let Some(key) = self.own_key(name) {
            return self.own_flag(word, name, &key, given);
        }
        let found = FLAGS.iter().find(|foreign| foreign.names.contains(&name));
        let Some(Foreign { meaning, .. }) = found else {
            // An unknown flag is left to clap, which refuses it and names a similar one.
            self.translated.args.push(word.into());
            return Ok(());
        };
        match meaning {
            Meaning::Flag(ours) => {
                let value = self.value(name, given)?;
                // The value was taken from the line already, so it is passed as part of the word.
                self.own_flag(&format!("--{ours}={value}"), name, ours, Some(value.clone()))
            }
            Meaning::Model => {
                let model = self.value(name, given)?;
                self.translated.args.push(model.into());
                Ok(())
            }
            Meaning::Needless(why) => {
                self.note(name, why);
                Ok(())
            }
            Meaning::NeedlessAs { values, why, hint } => {
                let value = self.optional_value(given, values);
                match value {
                    Some(value) if !values.contains(&value.as_str()) => Err(refused(word, hint)),
                    _ => {
                        self.note(name, why);
                        Ok(())
                    }
                }
            }
            Meaning::Layers => {
                let value = self.value(name, given)?;
                self.layers(name, &value)
            }
            Meaning::Not(hint) => Err(refused(name, hint)),
        }
    }

    /// Passes a flag of ours on. Its value is translated if another server spells it differently.
    fn own_flag(
        &mut self,
        word: &str,
        name: &str,
        key: &str,
        given: Option<String>,
    ) -> Result<(), String> {
        let next = self.rest.peek().and_then(|next| next.to_str().map(str::to_owned));
        let value = given.clone().or(next).unwrap_or_default();
        let found = VALUES.iter().find(|(flag, foreign, _)| *flag == key && *foreign == value);
        let ours = match found {
            Some((_, _, Value::Is(ours))) => Some((*ours).to_owned()),
            Some((_, _, Value::Default)) => None,
            Some((_, _, Value::Not(hint))) => {
                return Err(refused(&format!("--{key} {value}"), hint));
            }
            None => match length(key, &value) {
                Some(tokens) => Some(tokens),
                None => {
                    self.translated.args.push(word.into());
                    return Ok(());
                }
            },
        };
        if given.is_none() {
            self.rest.next();
        }
        match ours {
            Some(ours) => self.translated.args.push(format!("--{key}={ours}").into()),
            None => self.note(&format!("{name} {value}"), "it is the default"),
        }
        Ok(())
    }

    /// Translates a number of layers on a GPU: all or none.
    fn layers(&mut self, name: &str, value: &str) -> Result<(), String> {
        match value.parse::<i64>() {
            Ok(0) => self.translated.args.push("--device=cpu".into()),
            // Users of llama.cpp write 99 or more for all layers, and newer versions take -1.
            Ok(number) if (0..99).contains(&number) => {
                let hint = "layers cannot be divided between GPU and CPU; leave the flag out, or give --device cpu";
                return Err(refused(&format!("{name} {value}"), hint));
            }
            _ => self.note(name, "all layers are on the GPU if the machine has one"),
        }
        Ok(())
    }

    /// The long name of a flag that the parser knows.
    fn own_key(&self, name: &str) -> Option<String> {
        // These are all short flags that the parser has, so each other one is another server's.
        let known = ["-h", "--help", "-V", "--version"];
        let long = name.strip_prefix("--");
        let arg = self.own.get_arguments().find(|arg| match long {
            Some(long) => {
                arg.get_long() == Some(long)
                    || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&long))
            }
            None => false,
        });
        match arg {
            Some(arg) => arg.get_long().map(str::to_owned),
            None if known.contains(&name) => Some(String::new()),
            None => None,
        }
    }

    fn value(&mut self, name: &str, given: Option<String>) -> Result<String, String> {
        let next = given.or_else(|| self.rest.next().and_then(|next| next.into_string().ok()));
        next.ok_or_else(|| format!("{name} needs a value"))
    }

    /// An optional value. The next word is the value if it is among `values`, a switch or a number; otherwise it may be the model.
    fn optional_value(&mut self, given: Option<String>, values: &[&str]) -> Option<String> {
        const SWITCHES: [&str; 6] = ["on", "off", "0", "1", "true", "false"];
        let is_value = |next: &&str| {
            values.contains(next) || SWITCHES.contains(next) || next.parse::<i64>().is_ok()
        };
        if given.is_some() {
            return given;
        }
        let next = self.rest.peek().and_then(|next| next.to_str()).filter(is_value)?.to_owned();
        self.rest.next();
        Some(next)
    }

    fn note(&mut self, flag: &str, why: &str) {
        self.translated.notes.push(format!("{flag} is not needed: {why}"));
    }
}

fn refused(flag: &str, hint: &str) -> String {
    format!("`{flag}` is not a flag of candlepower: {hint}")
}

/// A length of tokens with a unit, as vLLM takes it: `32k` is 32,000 and `32K` is 32,768.
fn length(key: &str, value: &str) -> Option<String> {
    const UNITS: [(char, f64); 6] = [
        ('k', 1e3),
        ('m', 1e6),
        ('g', 1e9),
        ('K', 1024.0),
        ('M', 1_048_576.0),
        ('G', 1_073_741_824.0),
    ];
    if !["max-model-len", "max-num-batched-tokens"].contains(&key) {
        return None;
    }
    let unit = value.chars().last()?;
    let (_, factor) = UNITS.iter().find(|(known, _)| *known == unit)?;
    let tokens = value[..value.len() - 1].parse::<f64>().ok()? * factor;
    (1.0..1e15).contains(&tokens).then(|| format!("{tokens:.0}"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn translated(line: &str) -> Result<(String, Vec<String>), String> {
        let args = line.split_whitespace().map(OsString::from);
        let translated = translate(args)?;
        let args: Vec<String> =
            translated.args.into_iter().map(|arg| arg.into_string().unwrap()).collect();
        Ok((args.join(" "), translated.notes))
    }

    #[test]
    fn habits_of_others_mean_the_same_here() {
        for (line, expected) in [
            ("c serve --model demo", "c serve demo"),
            (
                "c serve -m a.gguf -c 4096 -np 4 -t 8 -a x",
                "c serve a.gguf --max-model-len=4096 --max-num-seqs=4 --threads=8 --served-model-name=x",
            ),
            ("c serve -hf owner/x:Q4_K_M", "c serve owner/x:Q4_K_M"),
            (
                "c serve --model-path x --context-length 512 --tp 2",
                "c serve x --max-model-len=512 --tensor-parallel-size=2",
            ),
            (
                "c serve x -tp=2 --kv-cache-dtype fp8_e4m3",
                "c serve x --tensor-parallel-size=2 --kv-cache-dtype=fp8",
            ),
            (
                "c serve x --kv-cache-dtype=fp8_e4m3 --port 1",
                "c serve x --kv-cache-dtype=fp8 --port 1",
            ),
            ("c config x --max-model-len 1k", "c config x --max-model-len=1000"),
            (
                "c serve x --max-model-len=1.5K --port 80",
                "c serve x --max-model-len=1536 --port 80",
            ),
            ("c serve x --tool-call-parser openai", "c serve x --tool-call-parser=gpt_oss"),
            ("c serve x -ngl 0", "c serve x --device=cpu"),
            // Candlepower's own flags stay unchanged.
            (
                "c serve x --max-model-len 512 --api-key m",
                "c serve x --max-model-len 512 --api-key m",
            ),
            ("c serve x --mem-fraction-static 0.5", "c serve x --mem-fraction-static 0.5"),
            ("c serve -h", "c serve -h"),
            ("c serve x -- --model y", "c serve x -- --model y"),
            ("c bench serve --model y", "c bench serve --model y"),
            ("c", "c"),
        ] {
            assert_eq!(translated(line).unwrap(), (expected.to_owned(), Vec::new()), "{line}");
        }
    }

    #[test]
    fn what_happens_anyway_is_taken_with_a_word() {
        for (line, expected) in [
            ("c serve x --enable-auto-tool-choice --port 1", "c serve x --port 1"),
            ("c serve --jinja x", "c serve x"),
            ("c serve x --trust-remote-code", "c serve x"),
            ("c serve x -fa", "c serve x"),
            ("c serve -fa on x", "c serve x"),
            // The word behind `-fa` is the model here, since it is no value of the flag.
            ("c serve -fa x", "c serve x"),
            ("c serve x -ngl 99", "c serve x"),
            ("c serve x --max-model-len auto --port 1", "c serve x --port 1"),
            ("c serve x --pipeline-parallel-size 1", "c serve x"),
            ("c serve x --task=generate", "c serve x"),
        ] {
            let (args, notes) = translated(line).unwrap();
            assert_eq!((args.as_str(), notes.len()), (expected, 1), "{line}: {notes:?}");
        }
    }

    #[test]
    fn what_cannot_be_says_what_to_do() {
        for (line, word) in [
            ("c serve x --root-path /a", "--host"),
            ("c serve x --pipeline-parallel-size 2", "--tensor-parallel-size"),
            ("c serve x -ngl 20", "--device cpu"),
            ("c serve x --kv-cache-dtype fp8_e5m2", "fp8"),
            ("c serve x --quantization compressed-tensors", "leave"),
            ("c serve x -fa off", "attention"),
            ("c serve --model", "needs a value"),
            ("c stop x", "candlepower delete"),
            ("c ps", "candlepower ls"),
            ("c list", "candlepower models"),
            ("c show x", "candlepower doctor"),
        ] {
            let error = translated(line).unwrap_err();
            assert!(error.contains(word), "{line}: {error}");
        }
    }

    #[test]
    fn every_flag_that_is_meant_is_one_of_ours() {
        let serve = ServeConfig::augment_args(Command::new("serve"));
        let is_ours = |name: &str| serve.get_arguments().any(|arg| arg.get_long() == Some(name));
        for Foreign { names, meaning } in FLAGS {
            for name in *names {
                assert!(!name.strip_prefix("--").is_some_and(is_ours), "{name} is ours by now");
                // A flag in both lists would never reach the table, because ours come first.
            }
            if let Meaning::Flag(ours) = meaning {
                assert!(is_ours(ours), "{ours}");
            }
        }
        for (flag, _, value) in VALUES {
            assert!(is_ours(flag), "{flag}");
            if let Value::Is(value) = value {
                let line = ["serve".to_owned(), "x".to_owned(), format!("--{flag}={value}")];
                serve.clone().try_get_matches_from(line).unwrap();
            }
        }
        let command = crate::Cli::command();
        for (name, _) in COMMANDS {
            assert!(command.find_subcommand(name).is_none(), "{name}");
        }
    }
}
