//! Arguments of commands that are built when the command is given.

use std::marker::PhantomData;

use clap::builder::Resettable;
use clap::{ArgMatches, Args, Command, Error, FromArgMatches};

/// The arguments `T` of a command, built by clap only for a command line with this command, for help and for completions. Building
/// those of all commands would take longer than the rest of a short command.
pub(crate) struct Later<T>(PhantomData<T>);

impl<T: Args> Args for Later<T> {
    fn augment_args(command: Command) -> Command {
        command.defer(with_args::<T>)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Commands read the values of `T` themselves.
impl<T> FromArgMatches for Later<T> {
    fn from_arg_matches(_: &ArgMatches) -> Result<Self, Error> {
        Ok(Self(PhantomData))
    }

    fn update_from_arg_matches(&mut self, _: &ArgMatches) -> Result<(), Error> {
        Ok(())
    }
}

fn with_args<T: Args>(command: Command) -> Command {
    // A type of arguments has texts about itself, which must not replace those of the command.
    let about = Resettable::from(command.get_about().cloned());
    let long_about = Resettable::from(command.get_long_about().cloned());
    T::augment_args(command).about(about).long_about(long_about)
}

#[cfg(test)]
mod tests {
    use clap::{Parser, Subcommand};

    use super::*;

    /// About the flags
    #[derive(Args)]
    struct Flags {
        /// Times to do it
        #[arg(long)]
        times: usize,
    }

    #[derive(Parser)]
    struct Program {
        #[command(subcommand)]
        task: Task,
    }

    #[derive(Subcommand)]
    enum Task {
        /// Does it
        Work(Later<Flags>),
    }

    #[test]
    fn arguments_are_those_of_the_type_and_the_text_is_the_commands() {
        let parse =
            |words: &[&str]| Program::try_parse_from([&["program", "work"][..], words].concat());
        assert!(matches!(parse(&["--times", "3"]), Ok(Program { task: Task::Work(_) })));
        for (words, expected) in [
            (&["--times", "often"][..], "invalid value 'often' for '--times"),
            (&[][..], "--times"),
            (&["--time", "3"][..], "unexpected argument '--time'"),
            (&["--help"][..], "Times to do it"),
        ] {
            let said = parse(words).err().unwrap().to_string();
            assert!(said.contains(expected), "{words:?}: {said}");
        }
        let help = parse(&["--help"]).err().unwrap().to_string();
        assert!(help.starts_with("Does it") && !help.contains("About the flags"), "{help}");
    }
}
