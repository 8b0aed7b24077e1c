//! Numbers of bytes in words.

use std::fmt;
use std::str::FromStr;

/// A number of bytes as people read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        match UNITS.iter().find(|(_, size)| self.0 >= *size) {
            Some((unit, size)) => write!(f, "{:.1} {unit}", self.0 as f64 / *size as f64),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

/// Sizes as settings have them: `1073741824`, `1Gi`, `1GiB`, `512M` or `512MB`.
impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let needed = || "a size such as 512M, 4Gi or 1073741824 is needed".to_owned();
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let factor: u64 = match unit.trim().trim_end_matches(['B', 'b']) {
            "" => 1,
            "k" | "K" => 1000,
            "M" => 1000 * 1000,
            "G" => 1000 * 1000 * 1000,
            "T" => 1000 * 1000 * 1000 * 1000,
            "Ki" => 1 << 10,
            "Mi" => 1 << 20,
            "Gi" => 1 << 30,
            "Ti" => 1 << 40,
            _ => return Err(needed()),
        };
        let bytes = match number.parse::<u64>() {
            Ok(whole) => whole.checked_mul(factor).ok_or_else(needed)?,
            Err(_) => (number.parse::<f64>().map_err(|_| needed())? * factor as f64) as u64,
        };
        if bytes == 0 { Err(needed()) } else { Ok(Self(bytes)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("1073741824", 1 << 30),
            ("1Gi", 1 << 30),
            ("1GiB", 1 << 30),
            ("512M", 512_000_000),
            ("512MB", 512_000_000),
            ("0.5Ki", 512),
            ("2k", 2000),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for text in ["", "Gi", "1X", "-1", "0", "1.2.3G", "99999999999Ti"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
        assert_eq!(Bytes(3 << 29).to_string(), "1.5 GiB");
    }
}
