//! What this database means for locks: whether it is really Firestore, and whether it answers with
//! its own times.

use holdtight_core::{Finding, Guarantees, Level, LockError};
use serde_json::{Value, json};

use crate::error::{Fault, nonsense};
use crate::store::FirestoreStore;
use crate::time::Micros;

impl FirestoreStore {
    /// Reads a document that does not exist: shows that credentials, database and times are right.
    pub(crate) async fn examine(&self) -> Result<Guarantees, LockError> {
        let place = &self.place;
        let nobody = json!({ "documents": [format!("{}/probe", place.collection)] });
        let answer = place.client.read("batchGet", &nobody).await.map_err(|fault| match fault {
            Fault::Failed(error) => error,
            _ => LockError::unavailable("Firestore is too busy to answer; try again"),
        })?;
        let time = answer.pointer("/0/readTime").and_then(Value::as_str).and_then(Micros::parse);
        place.memory.saw(time.ok_or_else(|| nonsense("it has no time"))?);
        let mut findings = Vec::new();
        match &place.emulator {
            Some(address) => findings.push(
                Finding::new(
                    Level::Unsafe,
                    "emulator",
                    format!("locks are kept in an emulator at {address}, which forgets them when it ends"),
                )
                .fix("unset FIRESTORE_EMULATOR_HOST, and leave emulator= out of the URL"),
            ),
            None => findings.push(Finding::new(
                Level::Good,
                "replication",
                "every commit is on a majority of replicas before it is answered",
            )),
        }
        findings.push(Finding::new(
            Level::Good,
            "clock",
            "leases end by Firestore's own times; the clocks of clients decide nothing",
        ));
        let name = if place.emulator.is_some() { "Firestore emulator" } else { "Firestore" };
        Ok(Guarantees::new(name, findings))
    }
}
