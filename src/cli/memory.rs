//! Memory sizes in options (`64MiB`, `2GiB`) and in messages (2.5 GB).

use llama_trace_runs::replay::LEAST_MEMORY;

/// The units and their bytes.
const UNITS: [(&str, usize); 3] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];

/// Parses a memory budget. The command line's parser prints the error text.
pub(super) fn parse(text: &str) -> Result<usize, String> {
    match any(text)? {
        size if size >= LEAST_MEMORY => Ok(size),
        _ => Err(format!("at least {} is needed", written(LEAST_MEMORY))),
    }
}

/// Parses a size.
pub(super) fn any(text: &str) -> Result<usize, String> {
    let unit = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, bytes)));
    let unit = unit.map(|(number, bytes)| (number.trim(), bytes));
    let is_whole = |number: &str| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let Some((number, &bytes)) = unit.filter(|(number, _)| is_whole(number)) else {
        return Err("expected a whole number of KiB, MiB or GiB, such as 64MiB".to_owned());
    };
    let size = number.parse::<usize>().ok().and_then(|number| number.checked_mul(bytes));
    size.ok_or_else(|| format!("the size is too large: at most {}GiB can be counted", usize::MAX >> 30))
}

/// A size in the largest unit that divides it without remainder.
pub(super) fn written(bytes: usize) -> String {
    match UNITS.iter().rev().find(|(_, size)| bytes.is_multiple_of(*size)) {
        Some((unit, size)) => format!("{}{unit}", bytes / size),
        None => format!("{bytes} bytes"),
    }
}

/// A number of bytes in a suitable unit.
pub(super) fn size(bytes: usize) -> String {
    let (mut value, mut unit) = (bytes as f64, "B");
    for next in ["KB", "MB", "GB", "TB"] {
        if value < 1000.0 {
            break;
        }
        value /= 1000.0;
        unit = next;
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        assert_eq!(
            (parse("64MiB"), parse("2 GiB"), parse("65536KiB")),
            (Ok(64 << 20), Ok(2 << 30), Ok(64 << 20))
        );
        assert_eq!(
            (written(64 << 20), written(3 << 30), written(5)),
            ("64MiB".into(), "3GiB".into(), "5 bytes".into())
        );
        for wrong in ["", "64", "MiB", "1.5GiB", "-1GiB", "64MB"] {
            assert!(parse(wrong).unwrap_err().contains("KiB, MiB or GiB"), "{wrong}");
        }
        for large in ["99999999999GiB", "99999999999999999999GiB", "18446744073709551615KiB"] {
            assert!(parse(large).unwrap_err().contains("too large: at most "), "{large}");
        }
        assert!(parse("1MiB").unwrap_err().contains("16MiB"));
    }
}
