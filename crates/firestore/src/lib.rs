//! Locks in Firestore.
