//! The rows of the table of goals, one file each. A new row is a file here and a line in [`all`].
//!
//! A file has one function that builds its [`Comparison`](crate::Comparison)s: ourselves first,
//! then each yardstick or peer on the same work, then the goals.

mod p10_command;
mod p11_file;
mod p12_others;
mod p1_alone;
mod p2_crowd;
mod p3_cost;
mod p4_hand_over;
mod p5_waiting;
mod p6_hand_off;
mod p7_renewal;
mod p8_keys;
mod p9_postgres;

use crate::Row;

/// What we are called in the tables.
const US: &str = "holdtight";

/// Every row that can be measured, in the order of the table.
pub fn all() -> Vec<Row> {
    vec![
        p1_alone::ROW,
        p2_crowd::ROW,
        p3_cost::ROW,
        p4_hand_over::ROW,
        p5_waiting::ROW,
        p6_hand_off::ROW,
        p7_renewal::ROW,
        p8_keys::ROW,
        p9_postgres::ROW,
        p10_command::ROW,
        p11_file::ROW,
        p12_others::ROW,
    ]
}
