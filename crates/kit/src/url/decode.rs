//! Percent-decoding.

use holdtight_core::LockError;

/// The error for a URL that cannot be read. It never repeats the URL.
pub(super) fn wrong(what: &str) -> LockError {
    LockError::invalid_config(format!("the store URL is wrong: {what}"))
}

/// Decodes `%20` and the like.
///
/// ```
/// assert_eq!(holdtight_kit::url::percent_decode("p%40ss").unwrap(), "p@ss");
/// ```
///
/// # Errors
/// [`InvalidConfig`](holdtight_core::ErrorKind::InvalidConfig) for a `%` without two hexadecimal
/// digits and for what is not UTF-8 when decoded. It does not repeat the text.
pub fn percent_decode(text: &str) -> Result<String, LockError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
        bytes.push(match byte {
            b'%' => digit()
                .zip(digit())
                .and_then(|(high, low)| u8::try_from(high * 16 + low).ok())
                .ok_or_else(|| wrong("a '%' is not followed by two hexadecimal digits"))?,
            byte => byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| wrong("a percent-encoded part is not UTF-8"))
}
