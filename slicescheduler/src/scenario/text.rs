//! Quantities with units, as a scenario writes them: `"40ms"`, `"450GB/s"`, `"1TiB"`, `"50%"`.

use slicescheduler_gmg::units::{Bandwidth, Bytes, Nanos};

/// What was expected where a time was not understood.
pub(super) const TIME: &str =
    "a time with its unit, such as \"400ms\", \"90s\" or \"1h\" (ns, us, ms, s, m, h), at most 584 years";
/// What was expected where an amount of memory was not understood.
pub(super) const MEMORY: &str = "an amount of memory with its unit, such as \"512GiB\" (B, KiB, MiB, GiB, TiB, KB, MB, GB, TB), below 16,777,216 TiB";
/// What was expected where a bandwidth was not understood.
pub(super) const RATE: &str = "a bandwidth with its unit, such as \"450GB/s\" (KB/s, MB/s, GB/s, TB/s)";

/// A time: a number and ns, us, ms, s, m or h. [`None`] if it is not one, or too long to express.
pub(super) fn time(text: &str) -> Option<Nanos> {
    quantity(text, |unit| {
        Some(match unit {
            "ns" => 1,
            "us" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        })
    })
    .map(Nanos)
}

/// An amount of memory: a number and a unit of bytes, decimal or binary.
pub(super) fn memory(text: &str) -> Option<Bytes> {
    quantity(text, bytes_of).map(Bytes)
}

/// A bandwidth: a number and a unit of bytes per second.
pub(super) fn bandwidth(text: &str) -> Option<Bandwidth> {
    quantity(text, |unit| bytes_of(unit.strip_suffix("/s")?)).map(Bandwidth)
}

/// A share: a number and `%`, as a fraction.
pub(super) fn percent(text: &str) -> Option<f64> {
    let number = text.trim().strip_suffix('%')?.trim_end();
    if !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return None;
    }
    number.parse::<f64>().ok().map(|percent| percent / 100.0)
}

fn bytes_of(unit: &str) -> Option<u64> {
    Some(match unit {
        "B" => 1,
        "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return None,
    })
}

/// Exact: digits before and after the point are whole numbers of the unit and of its parts.
fn quantity(text: &str, size_of: impl Fn(&str) -> Option<u64>) -> Option<u64> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(split);
    let size = u128::from(size_of(unit.trim_start())?);
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || part.is_empty() || part.len() > 18 || part.contains('.') {
        return None;
    }
    let whole = whole.parse::<u64>().ok()?;
    let scaled_part = u128::from(part.parse::<u64>().ok()?) * size / 10_u128.pow(part.len() as u32);
    u64::try_from(u128::from(whole) * size + scaled_part).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_exactly() {
        assert_eq!(time("400ms"), Some(Nanos::ms(400)));
        assert_eq!(time(" 1.5 h "), Some(Nanos::secs(5400)));
        assert_eq!(time("0.000000001s"), Some(Nanos(1)));
        assert_eq!(memory("1.5GiB"), Some(Bytes::mib(1536)));
        assert_eq!(memory("80GB"), Some(Bytes::gb(80)));
        assert_eq!(bandwidth("450 GB/s"), Some(Bandwidth::gb_per_s(450)));
        assert_eq!(percent("50%"), Some(0.5));
        assert_eq!(percent("12.5 %"), Some(0.125));
    }

    #[test]
    fn anything_else_is_refused() {
        for text in
            ["", "s", "10", "-1s", "1.s", ".5s", "1..5s", "1e9s", "10 parsecs", "99999999999h", "NaNs", "1.5.2s"]
        {
            assert_eq!(time(text), None, "{text}");
        }
        assert_eq!(bandwidth("450GB"), None);
        assert_eq!(memory("80gb"), None);
        for text in ["50", "-1%", "NaN%", "inf%", "%", "1e3%"] {
            assert_eq!(percent(text), None, "{text}");
        }
    }
}
