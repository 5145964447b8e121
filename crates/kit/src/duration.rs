//! Durations as people type them: `30s`, `5m`, `1h30m`, `250ms`, `1.5h`, or plain seconds.
//!
//! Read with integers only, so that no duration is off by a rounding.

use std::time::Duration;

const NANOS: u128 = 1_000_000_000;

/// Names and lengths of the units, in nanoseconds.
const UNITS: [(&str, u128); 5] = [
    ("ms", NANOS / 1000),
    ("s", NANOS),
    ("m", 60 * NANOS),
    ("h", 3600 * NANOS),
    ("d", 86_400 * NANOS),
];

/// The longest duration: more than any lease or wait can use.
const MOST: Duration = Duration::from_secs(10 * 365 * 86_400);

const HOW: &str = "write it like 30s, 5m, 1h30m, 250ms, or as plain seconds";

/// Reads a duration.
///
/// ```
/// use holdtight_kit::duration;
/// assert_eq!(duration::parse("1h30m").unwrap().as_secs(), 5400);
/// assert!(duration::parse("5 minutes").unwrap_err().contains("write it like 30s"));
/// ```
///
/// # Errors
/// A sentence that says what is wrong and how to write a duration.
pub fn parse(text: &str) -> Result<Duration, String> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(format!("a duration is missing; {HOW}"));
    }
    if rest.starts_with('-') {
        return Err(format!("a duration cannot be negative; {HOW}"));
    }
    let mut total: u128 = 0;
    let mut parts = 0;
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(number_end);
        let unit_end = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        if number.is_empty() {
            return Err(format!("this is not a duration; {HOW}"));
        }
        let scale = match (unit, parts, tail) {
            // Without a unit only when it stands alone: `1h30` is a guess we do not make.
            ("", 0, "") => NANOS,
            ("", ..) => return Err(HOW.to_owned()),
            _ => UNITS
                .iter()
                .find(|(name, _)| *name == unit)
                .map(|(_, scale)| *scale)
                .ok_or_else(|| format!("there is no unit {unit:?}; use ms, s, m, h or d"))?,
        };
        total = scaled(number, scale)
            .and_then(|part| total.checked_add(part))
            .filter(|total| *total <= MOST.as_nanos())
            .ok_or_else(|| format!("{number:?} is not a number that fits; {HOW}"))?;
        parts += 1;
        rest = tail;
    }
    let seconds = u64::try_from(total / NANOS).map_err(|_| HOW.to_owned())?;
    let nanos = u32::try_from(total % NANOS).map_err(|_| HOW.to_owned())?;
    Ok(Duration::new(seconds, nanos))
}

/// `number`, digits with at most one point and nine decimals, times `scale`.
fn scaled(number: &str, scale: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let digits = u32::try_from(fraction.len()).ok().filter(|digits| *digits <= 9)?;
    let part: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    whole.checked_mul(scale)?.checked_add(part.checked_mul(scale)? / 10_u128.pow(digits))
}

/// Writes a duration as [`parse`] reads it, in the largest unit that needs no fraction.
///
/// ```
/// assert_eq!(holdtight_kit::duration::text(std::time::Duration::from_secs(300)), "5m");
/// ```
pub fn text(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    if nanos == 0 {
        return "0s".to_owned();
    }
    for (name, scale) in UNITS.iter().rev() {
        if nanos.is_multiple_of(*scale) {
            return format!("{}{name}", nanos / scale);
        }
    }
    format!("{}s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_type_is_understood() {
        for (typed, millis) in [
            ("0", 0),
            ("30", 30_000),
            ("30s", 30_000),
            ("250ms", 250),
            ("5m", 300_000),
            ("1h", 3_600_000),
            ("1h30m", 5_400_000),
            ("1d", 86_400_000),
            ("1.5", 1500),
            (".5s", 500),
            ("1.5h", 5_400_000),
            (" 2s ", 2000),
            ("2.s", 2000),
        ] {
            assert_eq!(parse(typed), Ok(Duration::from_millis(millis)), "{typed}");
        }
        assert_eq!(parse("0.000000001"), Ok(Duration::from_nanos(1)));
    }

    #[test]
    fn what_is_no_span_is_refused_and_the_message_says_how_to_write_one() {
        for typed in [
            "",
            " ",
            "-5s",
            "s",
            "5x",
            "5 s",
            "1h30",
            "1.2.3s",
            ".",
            "1e3",
            "0x10",
            "∞",
            "5S",
            "5min",
            "99999999999999999999999999999999999999999",
            "20000d",
            "1.0000000001s",
        ] {
            let message = parse(typed).expect_err(typed);
            assert!(message.contains("ms"), "{typed:?}: {message}");
        }
    }

    #[test]
    fn what_is_printed_is_read_back() {
        for millis in [0, 1, 250, 1000, 90_000, 3_600_000, 86_400_000, 86_401_001] {
            let span = Duration::from_millis(millis);
            assert_eq!(parse(&text(span)), Ok(span), "{}", text(span));
        }
        assert_eq!(text(Duration::from_secs(90)), "90s");
        assert_eq!(text(Duration::from_secs(300)), "5m");
    }
}
