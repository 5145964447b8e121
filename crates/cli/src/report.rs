//! How a failure is told: in words or as JSON, a busy key with its holder, a dead store with its
//! name.

use holdtight::{ErrorKind, StoreUrl};

use crate::config::Setting;
use crate::exit::{Failure, UNAVAILABLE, What};
use crate::{conflict, output};

impl Failure {
    /// Adds which store it was, if it was the store: people forget which one they have set.
    pub(crate) fn at(mut self, store: &Setting<StoreUrl>) -> Self {
        if self.code == UNAVAILABLE {
            self.store = Some(format!("{} (from {})", store.value, store.origin));
        }
        self
    }

    /// Tells the user on standard error, if there is something to tell.
    pub(crate) fn report(&self, json: bool) {
        match &self.what {
            What::Silent => {}
            What::Said(message) if json => {
                output::complain_json(&serde_json::json!({ "error": message, "exit": self.code }));
            }
            What::Said(message) => output::complain(message),
            What::Lock(error) if error.kind() == ErrorKind::Timeout => {
                conflict::report(error, self.code, json);
            }
            What::Lock(error) if json => {
                output::complain_json(&serde_json::json!({
                    "error": error.to_string(),
                    "key": error.key().map(holdtight::Key::as_str),
                    "store": self.store,
                    "exit": self.code,
                }));
            }
            What::Lock(error) => {
                output::complain(error);
                if let Some(store) = &self.store {
                    output::complain(format_args!("the store is {store}"));
                }
            }
        }
    }
}
