//! The output of `cargo xtask prose`: a row of figures for each kind of text, or the breaches themselves.

use std::collections::BTreeMap;

use anyhow::{Result, bail};

use super::Judged;
use super::blocks::Place;
use super::rules::{MAX_WORDS, OPENER, OPENERS, WORD, opener};

/// First words that are counted with the forbidden ones, but allowed.
const WATCHED: [&str; 4] = ["how", "whether", "where", "its"];

/// The figures of one kind of text.
#[derive(Default)]
struct Figures {
    sentences: Lengths,
    /// Sentences that end only at points, as most tools count them.
    whole: Lengths,
    openers: usize,
    watched: usize,
    words: usize,
}

/// Words of each sentence, without table cells and headings.
#[derive(Default)]
struct Lengths(Vec<usize>);

impl Figures {
    fn add(&mut self, judged: &Judged) {
        let length = judged.sentence.words.len();
        if judged.sentence.place == Place::Running {
            self.sentences.0.push(length);
            // A sentence that began behind a semicolon or a dash extends the one before.
            match self.whole.0.last_mut().filter(|_| !judged.sentence.is_opening) {
                Some(last) => *last += length,
                None => self.whole.0.push(length),
            }
        }
        let count =
            |rule: &str| judged.breaches.iter().filter(|breach| breach.rule == rule).count();
        self.openers += count(OPENER);
        self.words += count(WORD);
        let first = opener(&judged.sentence);
        self.watched += usize::from(first.is_some_and(|first| WATCHED.contains(&first.as_str())));
    }

    fn row(&mut self, name: &str) -> String {
        let (sentences, whole) = (self.sentences.figures(), self.whole.figures());
        format!(
            "{name:<27}{sentences} {whole} {:>8} {:>8} {:>6}",
            self.openers, self.watched, self.words
        )
    }
}

impl Lengths {
    /// Count, mean, 90th percentile and share above the limit.
    fn figures(&mut self) -> String {
        self.0.sort_unstable();
        let count = self.0.len();
        let total: usize = self.0.iter().sum();
        let long = self.0.iter().filter(|&&words| words > MAX_WORDS).count();
        let share = |part: usize| part as f64 / count.max(1) as f64;
        let p90 = self.0.get(count * 9 / 10).copied().unwrap_or(0);
        format!("{count:>6} {:>5.1} {p90:>4} {:>4.0} %", share(total), 100.0 * share(long))
    }
}

/// Prints the figures of every kind, and of all.
pub(super) fn table(judged: &[Judged]) {
    let mut kinds: BTreeMap<_, Figures> = BTreeMap::new();
    let mut all = Figures::default();
    for sentence in judged {
        kinds.entry(&sentence.kind).or_default().add(sentence);
        all.add(sentence);
    }
    let lengths = format!("{:>6} {:>5} {:>4} {:>6}", "count", "mean", "p90", "long");
    println!("{:<27}{:^24} {:^24}", "", "sentences", "ended by points only");
    println!("{:<27}{lengths} {lengths} {:>8} {:>8} {:>6}", "text", "openers", "watched", "words");
    for (kind, figures) in &mut kinds {
        println!("{}", figures.row(&kind.to_string()));
    }
    println!("{}", all.row("all"));
    println!(
        "\nPoints, semicolons and dashes end a sentence; the second four figures let points alone do so.\n\
         Headings, code and cells of tables are not counted there. long: above {MAX_WORDS} words.\n\
         openers: {}. watched, but allowed: {}. words: private ones.",
        OPENERS.join(", "),
        WATCHED.join(", ")
    );
}

/// Prints the breaches in files whose path begins with one of the words, or in texts of that kind.
pub(super) fn breaches(judged: &[Judged], wanted: &[String]) -> Result<()> {
    let is_wanted = |judged: &&Judged| {
        let kind = judged.kind.to_string();
        wanted.iter().any(|word| judged.path.starts_with(word.as_str()) || kind == *word)
    };
    let found: Vec<&Judged> = judged.iter().filter(is_wanted).collect();
    if found.is_empty() {
        bail!("no text in {}: name a path, or a kind of text as the table does", wanted.join(", "));
    }
    for judged in found {
        for breach in &judged.breaches {
            println!("{}:{}: {}", judged.path, judged.sentence.line, judged.message(breach));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn a_row_counts_whole_sentences_and_leaves_cells_and_headings_out() {
        let long = "word ".repeat(36);
        let text = format!(
            "# What is a heading\n\nOne two. Of three; as four. How?\n\n{long}\n\n| What |\n|---|\n| as |\n"
        );
        let mut figures = Figures::default();
        sample("docs/a.md", &text).iter().for_each(|judged| figures.add(judged));
        let row: Vec<String> = figures.row("x").split_whitespace().map(str::to_owned).collect();
        // Five sentences, of 2, 2, 2, 1 and 36 words. They are four if a semicolon ends none.
        assert_eq!(
            row,
            ["x", "5", "8.6", "36", "20", "%", "4", "10.8", "36", "25", "%", "3", "1", "0"]
        );
    }

    #[test]
    fn a_kind_without_text_is_refused() {
        let judged = sample("docs/a.md", "One two.");
        assert!(breaches(&judged, &["docs/".to_owned()]).is_ok());
        assert!(breaches(&judged, &["docs:api".to_owned()]).is_err());
    }
}
