//! Serde, behind the feature of that name: fences, keys, tokens, and what is known about a lock.
//!
//! The forms are those of the command's JSON: a fence is a string, because numbers of JSON lose
//! digits; times are RFC 3339 in UTC; what is not known is null.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, SerializeStruct as _, Serializer};

use crate::model::error::LockError;
use crate::model::fence::Fence;
use crate::model::holder::LockInfo;
use crate::model::key::{Key, KeyForm};
use crate::model::token::LockToken;

/// As a decimal string.
impl Serialize for Fence {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// From a decimal string, or from a number.
impl<'de> Deserialize<'de> for Fence {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl Visitor<'_> for Reader {
            type Value = Fence;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a fence: a decimal number, as a string or as it is")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Fence, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Fence, E> {
                Ok(Fence::new(number))
            }
        }

        deserializer.deserialize_any(Reader)
    }
}

/// As text.
impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// From text, byte for byte: it was normalised when the key was made, where it is.
impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Verbatim(Key);

        impl FromStr for Verbatim {
            type Err = LockError;

            fn from_str(text: &str) -> Result<Self, LockError> {
                Key::with_form(text, KeyForm::Verbatim).map(Self)
            }
        }

        from_text(deserializer, "the key of a lock").map(|Verbatim(key)| key)
    }
}

/// **The right to a lock**, as [`LockToken::expose`] writes it: whoever reads it can release it.
impl Serialize for LockToken {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.expose())
    }
}

impl<'de> Deserialize<'de> for LockToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer, "the token of a lock")
    }
}

/// In the form that `holdtight status --json` prints.
impl Serialize for LockInfo {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut info = serializer.serialize_struct("LockInfo", 10)?;
        info.serialize_field("key", &self.key)?;
        info.serialize_field("held", &self.is_held)?;
        info.serialize_field("fence", &self.fence)?;
        info.serialize_field("host", &self.owner.host)?;
        info.serialize_field("pid", &self.owner.pid)?;
        info.serialize_field("user", &self.owner.user)?;
        info.serialize_field("command", &self.owner.command)?;
        info.serialize_field("reason", &self.owner.reason)?;
        info.serialize_field("acquired_at", &self.acquired_at.and_then(rfc3339))?;
        info.serialize_field("expires_at", &self.expires_at.and_then(rfc3339))?;
        info.end()
    }
}

fn from_text<'de, D, T>(deserializer: D, what: &'static str) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    struct Text<T>(&'static str, PhantomData<T>);

    impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for Text<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
            text.parse().map_err(E::custom)
        }
    }

    deserializer.deserialize_str(Text(what, PhantomData))
}

/// `2026-03-01T04:05:06.789Z`; `None` before 1970 and after the year 9999.
fn rfc3339(time: SystemTime) -> Option<String> {
    let since = time.duration_since(UNIX_EPOCH).ok()?;
    let (seconds, millis) = (since.as_secs(), since.subsec_millis());
    let (mut days, second) = (seconds / 86_400, seconds % 86_400);
    if days >= 2_932_897 {
        return None;
    }
    // Years that begin in March, so that a leap day is the last of its year.
    days += 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, (month + 2) % 12 + 1);
    let year = 400 * era + year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    Some(format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{from_value, json, to_value};

    use super::*;
    use crate::model::owner::Owner;
    use crate::model::secret::Secret;

    #[test]
    fn fences_are_strings_and_lose_no_digit() {
        let fence = Fence::new(u64::MAX);
        assert_eq!(to_value(fence).unwrap(), json!("18446744073709551615"));
        assert_eq!(from_value::<Fence>(json!("18446744073709551615")).unwrap(), fence);
        assert_eq!(from_value::<Fence>(json!(7)).unwrap(), Fence::new(7));
        for bad in [json!(-1), json!(1.5), json!("1e3"), json!(null)] {
            assert!(from_value::<Fence>(bad).is_err());
        }
    }

    #[test]
    fn keys_and_tokens_come_back_and_bad_ones_are_refused_without_being_repeated() {
        let key = Key::with_form("cafe\u{301}", KeyForm::Verbatim).unwrap();
        assert_eq!(from_value::<Key>(to_value(&key).unwrap()).unwrap(), key);
        assert!(from_value::<Key>(json!("two\nlines")).is_err());
        let token = LockToken::new(key, Secret::generate().unwrap());
        assert_eq!(to_value(&token).unwrap(), json!(token.expose()));
        assert_eq!(from_value::<LockToken>(to_value(&token).unwrap()).unwrap(), token);
        let error = from_value::<LockToken>(json!("ht1_5_tiger")).unwrap_err().to_string();
        assert!(!error.contains("tiger"), "{error}");
    }

    #[test]
    fn what_is_known_about_a_lock_has_the_form_of_the_command() {
        let info = LockInfo {
            key: Key::new("job:7").unwrap(),
            fence: Some(Fence::new(42)),
            acquired_at: Some(UNIX_EPOCH + Duration::from_millis(1_709_164_799_025)),
            expires_at: None,
            is_held: true,
            owner: Owner::from_text("host=web-1 pid=9 user=ann").with_reason("month end"),
        };
        let expected = json!({
            "key": "job:7", "held": true, "fence": "42", "host": "web-1", "pid": 9, "user": "ann",
            "command": null, "reason": "month end", "acquired_at": "2024-02-28T23:59:59.025Z",
            "expires_at": null,
        });
        assert_eq!(to_value(&info).unwrap(), expected);
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (951_868_800, "2000-03-01T00:00:00.000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000Z"),
            (1_735_689_600, "2025-01-01T00:00:00.000Z"),
            (253_402_300_799, "9999-12-31T23:59:59.000Z"),
        ] {
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(rfc3339(time).as_deref(), Some(text));
        }
        assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(253_402_300_800)), None);
    }
}
