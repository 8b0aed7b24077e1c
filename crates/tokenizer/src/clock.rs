//! The local time that a chat template may write into a prompt. The caller passes it, and it is formatted here.

use std::fmt::Write;

/// A point in time with the local offset from UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalTime {
    /// Seconds since 1970-01-01 00:00 UTC.
    pub unix_s: i64,
    /// Seconds that the local clock is ahead of UTC; 0 for a server that keeps UTC.
    pub utc_offset_s: i32,
}

/// Directives that write one number with leading zeros or spaces.
const PADDED: &str = "ymdejHIMS";

const DAYS: [&str; 7] =
    ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

impl LocalTime {
    /// Formats like Python's `datetime.now().strftime(format)` in the C locale.
    ///
    /// # Errors
    /// The unknown directive, such as `%Q`.
    pub(crate) fn strftime(self, format: &str) -> Result<String, String> {
        let fields = Fields::new(self);
        let mut text = String::with_capacity(format.len() + 16);
        let mut rest = format.chars();
        while let Some(character) = rest.next() {
            if character != '%' {
                text.push(character);
                continue;
            }
            match rest.next() {
                None => text.push('%'),
                // glibc's flag for no padding, which Python passes on.
                Some('-') => match rest.next() {
                    None => text.push_str("%-"),
                    Some(directive) if PADDED.contains(directive) => {
                        let mut padded = String::new();
                        fields.write(directive, &mut padded)?;
                        let digits = padded.trim_start_matches(['0', ' ']);
                        text.push_str(if digits.is_empty() { "0" } else { digits });
                    }
                    // glibc ignores the flag for names and for directives that stand for several.
                    Some(directive) => fields.write(directive, &mut text)?,
                },
                Some(directive) => fields.write(directive, &mut text)?,
            }
        }
        Ok(text)
    }
}

/// Calendar fields of a local time.
struct Fields {
    year: i64,
    /// From 1 to 12.
    month: usize,
    day: i64,
    /// 0 is Monday.
    weekday: usize,
    /// From 1 to 366.
    day_of_year: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

impl Fields {
    /// Source: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
    fn new(time: LocalTime) -> Self {
        let local_s = time.unix_s.saturating_add(i64::from(time.utc_offset_s));
        // Euclidean division rounds down, so that times before 1970 are right, too.
        let (days, second_of_day) = (local_s.div_euclid(86_400), local_s.rem_euclid(86_400));
        // Days from 0000-03-01 to 1970-01-01. Years begin in March here, so that the leap day is the last one.
        let shifted = days + 719_468;
        let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year_of_era =
            (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_from_march = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_from_march + 2) / 153;
        let day = day_from_march - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let day_of_year = if month <= 2 {
            day_from_march - 305
        } else {
            day_from_march + 60 + i64::from(is_leap)
        };
        Self {
            year,
            month: usize::try_from(month).expect("a month is 1 to 12"),
            day,
            // 1970-01-01 was a Thursday.
            weekday: usize::try_from((days + 3).rem_euclid(7)).expect("a weekday is 0 to 6"),
            day_of_year,
            hour: second_of_day / 3600,
            minute: second_of_day / 60 % 60,
            second: second_of_day % 60,
        }
    }

    fn write(&self, directive: char, text: &mut String) -> Result<(), String> {
        let hour12 = (self.hour + 11) % 12 + 1;
        let (day_name, month_name) = (DAYS[self.weekday], MONTHS[self.month - 1]);
        let written = match directive {
            'Y' => write!(text, "{}", self.year),
            'y' => write!(text, "{:02}", self.year.rem_euclid(100)),
            'm' => write!(text, "{:02}", self.month),
            'd' => write!(text, "{:02}", self.day),
            'e' => write!(text, "{:2}", self.day),
            'j' => write!(text, "{:03}", self.day_of_year),
            'H' => write!(text, "{:02}", self.hour),
            'I' => write!(text, "{hour12:02}"),
            'M' => write!(text, "{:02}", self.minute),
            'S' => write!(text, "{:02}", self.second),
            // Microseconds. The time has seconds only.
            'f' => write!(text, "000000"),
            'p' => write!(text, "{}", if self.hour < 12 { "AM" } else { "PM" }),
            'A' => write!(text, "{day_name}"),
            'a' => write!(text, "{}", &day_name[..3]),
            'B' => write!(text, "{month_name}"),
            'b' | 'h' => write!(text, "{}", &month_name[..3]),
            'u' => write!(text, "{}", self.weekday + 1),
            'w' => write!(text, "{}", (self.weekday + 1) % 7),
            'n' => writeln!(text),
            't' => write!(text, "\t"),
            '%' => write!(text, "%"),
            // Python's datetime.now() has no time zone and writes nothing for these.
            'z' | 'Z' => Ok(()),
            'F' => return self.write_all("Y-m-d", text),
            'T' => return self.write_all("H:M:S", text),
            'R' => return self.write_all("H:M", text),
            'D' | 'x' => return self.write_all("m/d/y", text),
            'X' => return self.write_all("H:M:S", text),
            'c' => return self.write_all("a b e H:M:S Y", text),
            unknown => return Err(format!("strftime_now does not know the directive %{unknown}")),
        };
        written.map_err(|error| error.to_string())
    }

    /// Directives without their `%`, between separators.
    fn write_all(&self, directives: &str, text: &mut String) -> Result<(), String> {
        for character in directives.chars() {
            if character.is_ascii_alphabetic() {
                self.write(character, text)?;
            } else {
                text.push(character);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(unix_s: i64, utc_offset_s: i32, format: &str) -> String {
        LocalTime { unix_s, utc_offset_s }.strftime(format).unwrap()
    }

    #[test]
    fn formats_as_python_does() {
        // Python: datetime.fromtimestamp(1709210096, timezone.utc).strftime(..)
        let leap_day = 1_709_210_096;
        assert_eq!(at(leap_day, 0, "%Y-%m-%d %H:%M:%S %j %u %w"), "2024-02-29 12:34:56 060 4 4");
        assert_eq!(at(leap_day, 0, "%d %b %Y, %A %-I %p %%"), "29 Feb 2024, Thursday 12 PM %");
        assert_eq!(
            at(leap_day, 12 * 3600, "%B %-d, %y %a %e|%c"),
            "March 1, 24 Fri  1|Fri Mar  1 00:34:56 2024"
        );
        assert_eq!(at(0, 0, "%F %T %j"), "1970-01-01 00:00:00 001");
        assert_eq!(at(-1, 0, "%D %R %-H"), "12/31/69 23:59 23");
        // Python: datetime(2024, 3, 5, 0, 5, 9).strftime(..)
        let early = 1_709_597_109;
        assert_eq!(at(early, 0, "%-T %-R %-X %-F %-Y"), "00:05:09 00:05 00:05:09 2024-03-05 2024");
        assert_eq!(at(early, 0, "%-D %-x|%-c"), "03/05/24 03/05/24|Tue Mar  5 00:05:09 2024");
        assert_eq!(
            at(early, 0, "%-H:%-M:%-S %-d %-e %-m %-j %-I %-u %-w %-y"),
            "0:5:9 5 5 3 65 12 2 2 24"
        );
        assert_eq!(at(early, 0, "%-p %-A %-b %-z%-Z%-%%-n%-t|%-"), "AM Tuesday Mar %\n\t|%-");
        // The last days of leap years: 2000, which is divisible by 400, and 2024.
        assert_eq!(at(978_220_800, 0, "%j %-M"), "366 0");
        assert_eq!(at(1_735_603_200, 0, "%F %j"), "2024-12-31 366");
    }

    #[test]
    fn an_unknown_directive_is_named() {
        let error = LocalTime { unix_s: 0, utc_offset_s: 0 }.strftime("%Q").unwrap_err();
        assert!(error.contains("%Q"), "{error}");
    }
}
