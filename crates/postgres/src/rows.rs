//! What goes to the server and comes back, value by value: hashes of secrets, spans, leases, holders.

use std::time::Duration;

use holdtight_core::{Fence, Holder, Key, Lease, LockError, Owner, Secret};
use sha2::{Digest as _, Sha256};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use crate::error::malformed;

/// The longest holder text that is read; ours has at most about 1.6 KiB.
const OWNER_BYTES: usize = 4096;

/// What the server knows of a secret: half its SHA-256. That is enough to compare, and what a
/// server writes to its log of slow statements, or shows to whoever may read the table, opens no
/// token.
pub(crate) fn hashed(secret: &Secret) -> String {
    let digit = |four: u8| char::from(if four < 10 { b'0' + four } else { b'a' + four - 10 });
    let mut text = String::with_capacity(32);
    for byte in &Sha256::digest(secret.expose().as_bytes())[..16] {
        text.push(digit(byte >> 4));
        text.push(digit(byte & 15));
    }
    text
}

/// A span as the functions take it. Leases are at most a day, so it always fits.
pub(crate) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX / 4)
}

pub(crate) fn get<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Result<T, LockError> {
    row.try_get(column).map_err(|_| malformed("a column of another type"))
}

pub(crate) fn one(mut rows: Vec<Row>) -> Result<Row, LockError> {
    match (rows.pop(), rows.is_empty()) {
        (Some(row), true) => Ok(row),
        _ => Err(malformed("another number of rows than one")),
    }
}

/// The place in the request that a row answers, from the one-based number in its first column.
pub(crate) fn place(row: &Row, places: usize) -> Result<usize, LockError> {
    usize::try_from(get::<i32>(row, 0)?)
        .ok()
        .and_then(|number| number.checked_sub(1))
        .filter(|&place| place < places)
        .ok_or_else(|| malformed("an answer to nothing that was asked"))
}

/// A span that the server measured; a clock that stepped back makes it zero, never negative.
pub(crate) fn span(us: i64) -> Duration {
    Duration::from_micros(u64::try_from(us).unwrap_or(0))
}

/// A fence and what is left, from two columns.
pub(crate) fn lease(row: &Row, column: usize) -> Result<Lease, LockError> {
    Ok(Lease::new(fence(get(row, column)?)?, span(get(row, column + 1)?)))
}

pub(crate) fn fence(number: i64) -> Result<Fence, LockError> {
    u64::try_from(number).map(Fence::new).map_err(|_| malformed("a negative fence"))
}

/// Fence, rest, age and owner, from four columns.
pub(crate) fn holder(key: Key, row: &Row, column: usize) -> Result<Holder, LockError> {
    let lease = lease(row, column)?;
    let owner: &str = get(row, column + 3)?;
    let owner = if owner.len() <= OWNER_BYTES { Owner::from_text(owner) } else { Owner::unknown() };
    Ok(Holder::of(key)
        .fence(lease.fence)
        .remaining(lease.ttl)
        .age(span(get(row, column + 2)?))
        .owner(owner))
}
