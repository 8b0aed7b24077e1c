//! Times that people read: how long ago something was.

use std::time::{SystemTime, UNIX_EPOCH};

/// The time since `seconds` after 1970, in words.
pub(super) fn age(seconds: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    words(now.saturating_sub(seconds))
}

fn words(seconds: u64) -> String {
    let (number, unit) = match seconds {
        0..60 => return "just now".to_owned(),
        60..3600 => (seconds / 60, "minute"),
        3600..86_400 => (seconds / 3600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {unit}{plural} ago")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_in_words() {
        for (seconds, expected) in
            [(5, "just now"), (60, "1 minute ago"), (7300, "2 hours ago"), (200_000, "2 days ago")]
        {
            assert_eq!(words(seconds), expected);
        }
    }
}
