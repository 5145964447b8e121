//! The rows of the table of goals, one file each. A new row is a file here and a line in [`all`].
//!
//! A file has one function that builds its [`Comparison`](crate::Comparison)s: ourselves first, then each
//! yardstick or peer on the same work, then the goals.

mod p6_hand_off;
mod p9_postgres;

use crate::Row;

/// Every row that can be measured, in the order of the table.
pub fn all() -> Vec<Row> {
    vec![p6_hand_off::ROW, p9_postgres::ROW]
}
