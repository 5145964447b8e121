//! Reads the URL of a store: its parts, and its options with their types.
//!
//! Written by hand because no URL library accepts several hosts, and because no error here may
//! repeat a password. What the parts mean is up to the store.

mod decode;
mod options;
mod parts;

pub use decode::percent_decode;
pub use options::Options;
pub use parts::{Split, UrlParts, split};
