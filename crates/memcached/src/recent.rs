//! What this process wrote on one connection, and under which CAS numbers: a release of it needs no
//! look before.
//!
//! A connection leads to one process of the server, where no CAS number is given twice. An item
//! that still has the number of our write *is* our write, so the number says as much as the secret
//! does. After a reconnect it does not, and nothing is remembered.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use holdtight_core::Secret;
use holdtight_kit::lock;

/// How many writes are remembered. More cost a look each.
const MOST: usize = 65_536;

/// The last write to each item.
#[derive(Default)]
pub(crate) struct Recent(Mutex<HashMap<String, (Secret, u64)>>);

impl Recent {
    /// `secret` wrote the item `name`, which got this CAS number.
    pub(crate) fn wrote(&self, name: &str, secret: &Secret, cas: u64) {
        let mut writes = self.writes();
        if writes.len() >= MOST {
            writes.clear();
        }
        writes.insert(name.to_owned(), (secret.clone(), cas));
    }

    /// The CAS number under which `secret` wrote the item `name` last; it is forgotten.
    pub(crate) fn take(&self, name: &str, secret: &Secret) -> Option<u64> {
        let mut writes = self.writes();
        writes.get(name).filter(|(owner, _)| owner == secret)?;
        writes.remove(name).map(|(_, cas)| cas)
    }

    /// Nothing can panic while this is held.
    fn writes(&self) -> MutexGuard<'_, HashMap<String, (Secret, u64)>> {
        lock(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_write_of_an_owner_is_given_out_once_and_to_nobody_else() {
        let (recent, ann, bob) =
            (Recent::default(), Secret::parse("ann").unwrap(), Secret::parse("bob").unwrap());
        recent.wrote("n", &ann, 4);
        recent.wrote("n", &ann, 7);
        assert_eq!((recent.take("n", &bob), recent.take("m", &ann)), (None, None));
        assert_eq!((recent.take("n", &ann), recent.take("n", &ann)), (Some(7), None));
        for n in 0..=MOST {
            recent.wrote(&n.to_string(), &ann, 1);
        }
        assert!(recent.writes().len() <= MOST);
    }
}
