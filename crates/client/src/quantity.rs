//! Parses Kubernetes quantities.

/// Bytes of a memory quantity: `16Gi`, `512M`, `1.5G`, `1e9`, `1073741824`.
///
/// Source: "Quantity" in Kubernetes' API reference. Millibytes (`m`) are refused, since they are always a mistake.
pub(crate) fn memory_bytes(text: &str) -> Option<u64> {
    const UNITS: [(&str, f64); 12] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("Ei", 1_152_921_504_606_846_976.0),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
        ("E", 1e18),
    ];
    let unit = UNITS.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)));
    let (number, factor) = unit.unwrap_or((text, 1.0));
    let begins = number.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    // Kubernetes allows an exponent only in place of a unit.
    let exponent_and_unit = factor != 1.0 && number.contains(['e', 'E']);
    if !begins
        || exponent_and_unit
        || !number.chars().all(|c| c.is_ascii_digit() || "+-.eE".contains(c))
    {
        return None;
    }
    let bytes = number.parse::<f64>().ok()? * factor;
    // The limit is below `i64::MAX`, since a cluster counts bytes in signed 64-bit numbers.
    (1.0..9e18).contains(&bytes).then_some(bytes.ceil() as u64)
}

/// Most CPUs of one server.
const MAX_CPUS: f64 = 1e6;

/// Thousandths of CPUs of a quantity: `4`, `0.5`, `500m`. A finer quantity is refused, as Kubernetes does.
pub(crate) fn cpu_millis(text: &str) -> Option<u64> {
    let (number, factor) = match text.strip_suffix('m') {
        Some(number) => (number, 1.0),
        None => (text, 1000.0),
    };
    let begins = number.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    if !begins || !number.chars().all(|c| c.is_ascii_digit() || c == '.') {
        return None;
    }
    let millis = number.parse::<f64>().ok()? * factor;
    // Decimal fractions such as 1.001 are not exact in binary.
    let is_whole = (millis - millis.round()).abs() < 1e-6;
    (is_whole && (1.0..=MAX_CPUS * 1000.0).contains(&millis)).then_some(millis.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_counted_in_thousandths() {
        for (text, millis) in
            [("4", 4000), ("0.5", 500), (".25", 250), ("500m", 500), ("1.001", 1001)]
        {
            assert_eq!(cpu_millis(text), Some(millis), "{text}");
        }
        for text in
            ["", "m", "0", "0m", "-1", "1e3", "0.0001", "0.5m", "4 cores", "4k", "9999999", "1.2.3"]
        {
            assert_eq!(cpu_millis(text), None, "{text}");
        }
    }

    #[test]
    fn quantities_are_those_of_kubernetes() {
        for (text, bytes) in [
            ("16Gi", 16 << 30),
            ("512M", 512_000_000),
            ("1.5Gi", 3 << 29),
            ("1e9", 1_000_000_000),
            ("1073741824", 1 << 30),
            ("2k", 2000),
        ] {
            assert_eq!(memory_bytes(text), Some(bytes), "{text}");
        }
        for text in
            ["", "Gi", "16GB", "16GiB", "16 Gi", "-1Gi", "0", "100m", "1e3Gi", "lots", "inf"]
        {
            assert_eq!(memory_bytes(text), None, "{text}");
        }
    }
}
