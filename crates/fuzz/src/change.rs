//! Random changes of files and texts, accidental or malicious ones alike.

use std::ops::Range;

use fastrand::Rng;
use serde_json::Value;

/// Replaces one inner value by one of `strange`, or removes it.
pub(crate) fn json(value: &mut Value, strange: &[Value], random: &mut Rng) {
    let inside = match value {
        Value::Object(entries) if !entries.is_empty() => {
            let at = random.usize(..entries.len());
            if random.usize(..8) == 0 {
                let key = entries.keys().nth(at).unwrap().clone();
                entries.remove(&key);
                return;
            }
            // Entries and elements are chosen with equal chance at each level, so deep values change more rarely
            // than shallow ones.
            entries.values_mut().nth(at)
        }
        Value::Array(values) if !values.is_empty() => {
            let at = random.usize(..values.len());
            values.get_mut(at)
        }
        _ => None,
    };
    // Three of four times the change goes deeper. The fourth replaces a whole object or array.
    let goes_on = |inside: &Value| inside.is_object() || inside.is_array();
    match inside {
        Some(inside) if goes_on(inside) && random.usize(..4) != 0 => json(inside, strange, random),
        Some(inside) => *inside = random.choice(strange).unwrap().clone(),
        None => *value = random.choice(strange).unwrap().clone(),
    }
}

/// Changes a file whose header is at `header`.
pub(crate) fn file(bytes: &mut Vec<u8>, header: Range<usize>, random: &mut Rng) {
    let flip = |bytes: &mut Vec<u8>, at: usize, random: &mut Rng| {
        bytes[at] ^= 1 << random.usize(..8);
    };
    match random.usize(..6) {
        0 => {
            let at = header.start + random.usize(..header.len());
            flip(bytes, at, random);
        }
        1 => {
            let at = random.usize(..bytes.len());
            flip(bytes, at, random);
        }
        // The end is missing, or extra bytes follow.
        2 => bytes.truncate(random.usize(..bytes.len())),
        3 => bytes.extend((0..random.usize(..100)).map(|i| i as u8)),
        // Another number at a place that may hold one.
        4 => {
            let numbers =
                [0, 1, u64::MAX, 1 << 40, 1 << 63, bytes.len() as u64, u64::from(u32::MAX)];
            let number = random.choice(&numbers).unwrap().to_le_bytes();
            let len = if random.usize(..2) == 0 { 4 } else { 8 };
            // The length may exceed the header of a tiny file. The zip below ends with the file.
            let at = header.start + random.usize(..header.len().saturating_sub(len).max(1));
            for (byte, new) in bytes[at..].iter_mut().zip(&number[..len]) {
                *byte = *new;
            }
        }
        // Another digit in a text.
        _ => {
            let digits: Vec<usize> = header.filter(|&at| bytes[at].is_ascii_digit()).collect();
            if !digits.is_empty() {
                bytes[*random.choice(&digits).unwrap()] = b'0' + random.usize(..10) as u8;
            }
        }
    }
}

/// Changes a text: some characters are removed, doubled, moved, or replaced.
pub(crate) fn text(text: &str, pieces: &[&str], random: &mut Rng) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for _ in 0..=random.usize(..3) {
        let at = random.usize(..chars.len() + 1);
        let end = (at + random.usize(..6)).min(chars.len());
        match random.usize(..4) {
            0 => drop(chars.drain(at..end)),
            1 => {
                let again: Vec<char> = chars[at..end].to_vec();
                drop(chars.splice(at..at, again));
            }
            // A replacement need not have the length of the part that it replaces, so all later offsets move.
            2 => drop(chars.splice(at..end, random.choice(pieces).unwrap().chars())),
            _ => {
                let to = random.usize(..chars.len() + 1 - (end - at));
                let moved: Vec<char> = chars.drain(at..end).collect();
                drop(chars.splice(to..to, moved));
            }
        }
    }
    chars.into_iter().collect()
}
