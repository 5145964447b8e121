//! The database and the collections in it, as every step needs them.

use crate::client::Client;
use crate::config::Layout;
use crate::memory::Memory;

/// Where the documents are, and the way there.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) client: Client,
    pub(crate) memory: Memory,
    /// `projects/…/documents/COLLECTION`.
    pub(crate) collection: String,
    pub(crate) collection_id: String,
    /// The same for the counters of syncguard.
    pub(crate) counters: String,
    pub(crate) layout: Layout,
    pub(crate) emulator: Option<String>,
}
