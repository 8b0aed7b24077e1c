//! The ways in which files and texts are found changed, or are changed on purpose.

use std::ops::Range;

use serde_json::Value;

use crate::random::Random;

/// Changes one value somewhere inside to one of `strange`, or takes it out.
pub(crate) fn json(value: &mut Value, strange: &[Value], random: &mut Random) {
    let inside = match value {
        Value::Object(entries) if !entries.is_empty() => {
            let at = random.below(entries.len());
            if random.below(8) == 0 {
                let key = entries.keys().nth(at).unwrap().clone();
                entries.remove(&key);
                return;
            }
            entries.values_mut().nth(at)
        }
        Value::Array(values) if !values.is_empty() => {
            let at = random.below(values.len());
            values.get_mut(at)
        }
        _ => None,
    };
    let goes_on = |inside: &Value| inside.is_object() || inside.is_array();
    match inside {
        Some(inside) if goes_on(inside) && random.below(4) != 0 => json(inside, strange, random),
        Some(inside) => *inside = random.one_of(strange).clone(),
        None => *value = random.one_of(strange).clone(),
    }
}

/// Changes a file whose header lies at `header`.
pub(crate) fn file(bytes: &mut Vec<u8>, header: Range<usize>, random: &mut Random) {
    let flip = |bytes: &mut Vec<u8>, at: usize, random: &mut Random| {
        bytes[at] ^= 1 << random.below(8);
    };
    match random.below(6) {
        0 => {
            let at = header.start + random.below(header.len());
            flip(bytes, at, random);
        }
        1 => {
            let at = random.below(bytes.len());
            flip(bytes, at, random);
        }
        // The end is missing, or there is more.
        2 => bytes.truncate(random.below(bytes.len())),
        3 => bytes.extend((0..random.below(100)).map(|i| i as u8)),
        // Another number where one may stand.
        4 => {
            let numbers =
                [0, 1, u64::MAX, 1 << 40, 1 << 63, bytes.len() as u64, u64::from(u32::MAX)];
            let number = random.one_of(&numbers).to_le_bytes();
            let len = if random.below(2) == 0 { 4 } else { 8 };
            let at = header.start + random.below(header.len().saturating_sub(len).max(1));
            for (byte, new) in bytes[at..].iter_mut().zip(&number[..len]) {
                *byte = *new;
            }
        }
        // Another digit in a text.
        _ => {
            let digits: Vec<usize> = header.filter(|&at| bytes[at].is_ascii_digit()).collect();
            if !digits.is_empty() {
                bytes[*random.one_of(&digits)] = b'0' + random.below(10) as u8;
            }
        }
    }
}

/// Changes a text: some of its characters are taken out, doubled, moved, or others put in their places.
pub(crate) fn text(text: &str, pieces: &[&str], random: &mut Random) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for _ in 0..=random.below(3) {
        let at = random.below(chars.len() + 1);
        let end = (at + random.below(6)).min(chars.len());
        match random.below(4) {
            0 => drop(chars.drain(at..end)),
            1 => {
                let again: Vec<char> = chars[at..end].to_vec();
                drop(chars.splice(at..at, again));
            }
            2 => drop(chars.splice(at..end, random.one_of(pieces).chars())),
            _ => {
                let to = random.below(chars.len() + 1 - (end - at));
                let moved: Vec<char> = chars.drain(at..end).collect();
                drop(chars.splice(to..to, moved));
            }
        }
    }
    chars.into_iter().collect()
}
