//! Results of a suite as tables in Markdown.

use std::collections::BTreeMap;
use std::fmt;

use crate::causes::Cause;

/// Maximum number of refusals shown one by one.
const MAX_SHOWN: usize = 200;

/// An instance with another result than the suite's.
pub(crate) struct Wrong {
    pub(crate) file: String,
    pub(crate) group: String,
    pub(crate) test: String,
    pub(crate) instance: String,
}

#[derive(Default)]
pub(crate) struct Table {
    files: BTreeMap<String, Counts>,
    /// The number of refused schemas by reason.
    refusals: BTreeMap<String, usize>,
    causes: BTreeMap<Cause, usize>,
    /// Instances that are invalid only by the content of a string, which is an annotation here.
    annotated: usize,
    unsound: Vec<Wrong>,
    /// Schemas that are satisfiable only with open objects: their position and the reason.
    closed: Vec<(String, String)>,
    incomplete: Vec<(Cause, Wrong)>,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    compiled: usize,
    refused: usize,
    /// Refused schemas without a valid instance.
    unsatisfiable: usize,
    valid_accepted: usize,
    valid_refused: usize,
    invalid_refused: usize,
    invalid_accepted: usize,
}

impl Table {
    pub(crate) fn compiled(&mut self, file: &str) {
        self.of(file).compiled += 1;
    }

    pub(crate) fn refused(&mut self, file: &str, reason: &str, is_unsatisfiable: bool) {
        let counts = self.of(file);
        counts.refused += 1;
        counts.unsatisfiable += usize::from(is_unsatisfiable);
        *self.refusals.entry(reason.to_owned()).or_default() += 1;
    }

    pub(crate) fn valid_accepted(&mut self, file: &str) {
        self.of(file).valid_accepted += 1;
    }

    pub(crate) fn valid_refused(&mut self, file: &str, cause: Cause, wrong: Wrong) {
        self.of(file).valid_refused += 1;
        *self.causes.entry(cause).or_default() += 1;
        self.incomplete.push((cause, wrong));
    }

    pub(crate) fn invalid_refused(&mut self, file: &str) {
        self.of(file).invalid_refused += 1;
    }

    pub(crate) fn invalid_accepted(&mut self, file: &str, wrong: Wrong) {
        self.of(file).invalid_accepted += 1;
        self.unsound.push(wrong);
    }

    pub(crate) fn annotated(&mut self, file: &str) {
        self.of(file);
        self.annotated += 1;
    }

    pub(crate) fn closed_refused(&mut self, place: String, reason: String) {
        self.closed.push((place, reason));
    }

    /// Whether no invalid instance was accepted, and no schema is satisfiable only with open objects.
    pub(crate) fn is_sound(&self) -> bool {
        self.unsound.is_empty() && self.closed.is_empty()
    }

    fn of(&mut self, file: &str) -> &mut Counts {
        self.files.entry(file.to_owned()).or_default()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| file | schemas compiled | refused | valid accepted | refused | invalid refused | accepted |"
        )?;
        writeln!(f, "|---|--:|--:|--:|--:|--:|--:|")?;
        let mut all = Counts::default();
        for (file, counts) in &self.files {
            row(f, file, counts)?;
            all.add(counts);
        }
        row(f, "**all**", &all)?;
        let by_format = self.causes.get(&Cause::Format).copied().unwrap_or_default();
        let percent = |part: usize, rest: usize| 100.0 * part as f64 / (part + rest).max(1) as f64;
        writeln!(
            f,
            "\nCompiled: {:.1} % of the schemas; {} of the refused ones have no valid instance, so that refusing them is correct. Valid instances \
            refused: {:.1} %; without those refused by `format`: {:.1} %.",
            percent(all.compiled, all.refused),
            all.unsatisfiable,
            percent(all.valid_refused, all.valid_accepted),
            percent(all.valid_refused - by_format, all.valid_accepted),
        )?;
        writeln!(f, "\n| schemas refused | why |\n|--:|---|")?;
        let mut refusals: Vec<_> = self.refusals.iter().collect();
        refusals.sort_by_key(|(reason, count)| (std::cmp::Reverse(**count), reason.as_str()));
        for (reason, count) in refusals {
            writeln!(f, "| {count} | {} |", reason.replace('|', "\\|"))?;
        }
        writeln!(f, "\n| valid instances refused | why |\n|--:|---|")?;
        for (cause, count) in &self.causes {
            writeln!(f, "| {count} | {} |", cause.as_str())?;
        }
        if self.annotated > 0 {
            let count = self.annotated;
            writeln!(
                f,
                "\n{count} instances are invalid only by `contentMediaType`, `contentEncoding` or the format `regex`, which are annotations here."
            )?;
        }
        if !self.closed.is_empty() {
            writeln!(f, "\nSchemas that are refused only with closed objects:\n")?;
            let mut closed = self.closed.iter();
            closed.try_for_each(|(place, reason)| writeln!(f, "- {place}: {reason}"))?;
        }
        if !self.unsound.is_empty() {
            writeln!(f, "\nInvalid instances accepted:\n")?;
            self.unsound.iter().try_for_each(|wrong| writeln!(f, "- {wrong}"))?;
        }
        writeln!(f, "\nValid instances refused:\n")?;
        for (cause, wrong) in self.incomplete.iter().take(MAX_SHOWN) {
            writeln!(f, "- {cause:?}: {wrong}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let instance: String = self.instance.chars().take(80).collect();
        write!(f, "{}: {} / {}: `{instance}`", self.file, self.group, self.test)
    }
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.compiled += other.compiled;
        self.refused += other.refused;
        self.unsatisfiable += other.unsatisfiable;
        self.valid_accepted += other.valid_accepted;
        self.valid_refused += other.valid_refused;
        self.invalid_refused += other.invalid_refused;
        self.invalid_accepted += other.invalid_accepted;
    }
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, counts: &Counts) -> fmt::Result {
    let Counts {
        compiled,
        refused,
        valid_accepted,
        valid_refused,
        invalid_refused,
        invalid_accepted,
        ..
    } = counts;
    writeln!(
        f,
        "| {name} | {compiled} | {refused} | {valid_accepted} | {valid_refused} | {invalid_refused} | {invalid_accepted} |"
    )
}
