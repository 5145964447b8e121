//! Firestore's timestamps: read from text, written as text, counted in microseconds since 1970.
//!
//! All times here are the server's. Firestore keeps microseconds; anything finer is cut off.

use std::time::Duration;

/// A moment of the server's clock, in microseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Micros(pub(crate) u64);

const DAY: u64 = 86_400;

impl Micros {
    /// Reads `2026-11-15T21:33:44.123456Z`, with no to nine digits of a second. `None` for anything
    /// else.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.strip_suffix('Z').filter(|_| text.is_ascii() && text.len() <= 30)?;
        let (date, clock) = text.split_once('T')?;
        let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
        let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
        let [hour, minute, second] = numbers(clock, ':', [2, 2, 2])?;
        let sensible = (1970..=9999).contains(&year) && (1..=12).contains(&month);
        if !sensible
            || day == 0
            || day > month_days(year, month)
            || hour > 23
            || minute > 59
            || second > 60
        {
            return None;
        }
        if fraction.is_empty()
            || fraction.len() > 9
            || !fraction.bytes().all(|b| b.is_ascii_digit())
        {
            return None;
        }
        let micros: u64 = format!("{fraction:0<6}")[..6].parse().ok()?;
        let days: u64 = (1970..year).map(year_days).sum::<u64>()
            + (1..month).map(|month| month_days(year, month)).sum::<u64>()
            + (day - 1);
        let seconds = days * DAY + hour * 3600 + minute * 60 + second;
        Some(Self(seconds * 1_000_000 + micros))
    }

    /// The same as text.
    pub(crate) fn to_text(self) -> String {
        let (seconds, micros) = (self.0 / 1_000_000, self.0 % 1_000_000);
        let (mut days, clock) = (seconds / DAY, seconds % DAY);
        let (mut year, mut month) = (1970, 1);
        while days >= year_days(year) {
            days -= year_days(year);
            year += 1;
        }
        while days >= month_days(year, month) {
            days -= month_days(year, month);
            month += 1;
        }
        let (hour, minute, second) = (clock / 3600, clock / 60 % 60, clock % 60);
        format!(
            "{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z",
            days + 1
        )
    }

    pub(crate) fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_micros()).unwrap_or(u64::MAX)))
    }

    /// How much later this is than `earlier`; zero if it is not.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

fn numbers(text: &str, between: char, digits: [usize; 3]) -> Option<[u64; 3]> {
    let mut parts = text.split(between);
    let mut numbers = [0; 3];
    for (number, digits) in numbers.iter_mut().zip(digits) {
        let part = parts.next().filter(|part| part.len() == digits)?;
        *number = part.parse().ok().filter(|_| part.bytes().all(|byte| byte.is_ascii_digit()))?;
    }
    parts.next().is_none().then_some(numbers)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn year_days(year: u64) -> u64 {
    365 + u64::from(is_leap(year))
}

fn month_days(year: u64, month: u64) -> u64 {
    match month {
        2 => 28 + u64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_moments_are_read() {
        for (text, micros) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01T00:00:00.5Z", 500_000),
            ("2000-02-29T12:00:00.000001Z", 951_825_600_000_001),
            ("2026-11-15T21:33:44.123456Z", 1_794_778_424_123_456),
            ("2026-11-15T21:33:44.123456789Z", 1_794_778_424_123_456),
        ] {
            assert_eq!(Micros::parse(text), Some(Micros(micros)), "{text}");
        }
    }

    #[test]
    fn what_is_no_moment_is_refused() {
        for text in [
            "",
            "Z",
            "2026-11-15",
            "2026-11-15T21:33:44",
            "2026-11-15T21:33:44+01:00",
            "2026-13-15T21:33:44Z",
            "2026-11-31T21:33:44Z",
            "2026-02-29T21:33:44Z",
            "2026-00-01T00:00:00Z",
            "1969-12-31T23:59:59Z",
            "2026-11-15T24:33:44Z",
            "2026-11-15T21:33:44.Z",
            "2026-11-15T21:33:44.1234567890Z",
            "2026-11-15T21:33:44.12-4Z",
            "+026-11-15T21:33:44Z",
            "2026-11-15-01T21:33:44Z",
        ] {
            assert_eq!(Micros::parse(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(micros in 0u64..253_402_300_800_000_000) {
            prop_assert_eq!(Micros::parse(&Micros(micros).to_text()), Some(Micros(micros)));
        }

        #[test]
        fn arbitrary_text_is_read_without_panic(text: String, near in "[0-9]{0,5}-[0-9]{0,3}-[0-9]{0,3}T[0-9:.]{0,20}Z") {
            let _ = Micros::parse(&text);
            let _ = Micros::parse(&near);
        }
    }
}
