//! Lists the held locks whose keys begin with a prefix: a query in the order of keys, page by page.

use holdtight_core::{Holder, Key, KeyForm, LockError};
use serde_json::{Value, json};

use crate::document::Found;
use crate::error::{Fault, nonsense};
use crate::place::Place;
use crate::steps::holder;
use crate::time::Micros;

/// Documents asked for at once.
const PAGE: usize = 300;

/// Pages read at most: leases that are over are skipped, and there may be many.
const PAGES: usize = 100;

impl Place {
    pub(crate) async fn list(&self, prefix: &str, limit: usize) -> Result<Vec<Holder>, LockError> {
        let (mut held, mut after) = (Vec::new(), None);
        for _ in 0..PAGES {
            let page = self.page(prefix, after.as_ref()).await.map_err(|fault| match fault {
                Fault::Failed(error) => error,
                _ => LockError::unavailable("Firestore is too busy to list locks; try again"),
            })?;
            let count = page.len();
            for (name, found) in page {
                // Keys come in the order of their bytes, so all with the prefix stand together at
                // the front.
                let key =
                    found.held.as_ref().map(|held| held.record.key.clone()).unwrap_or_default();
                if !key.starts_with(prefix) || held.len() == limit {
                    return Ok(held);
                }
                if let (Ok(valid), false) =
                    (Key::with_form(&key, KeyForm::Verbatim), found.is_over())
                {
                    held.push(holder(valid, &found));
                }
                after = Some(json!([{ "stringValue": key }, { "referenceValue": name }]));
            }
            if count < PAGE {
                break;
            }
        }
        Ok(held)
    }

    async fn page(
        &self,
        prefix: &str,
        after: Option<&Value>,
    ) -> Result<Vec<(String, Found)>, Fault> {
        let mut query = json!({
            "from": [{ "collectionId": self.collection_id }],
            "where": { "fieldFilter": {
                "field": { "fieldPath": "key" }, "op": "GREATER_THAN_OR_EQUAL", "value": { "stringValue": prefix },
            }},
            "orderBy": [{ "field": { "fieldPath": "key" } }, { "field": { "fieldPath": "__name__" } }],
            "limit": PAGE,
        });
        if let Some(after) = after {
            query["startAt"] = json!({ "values": after, "before": false });
        }
        let answer = self.client.read("runQuery", &json!({ "structuredQuery": query })).await?;
        let entries = answer.as_array().ok_or_else(|| nonsense("a query has no list"))?;
        let mut page = Vec::new();
        for entry in entries {
            // The last entry may have only a time.
            let Some(document) = entry.get("document") else { continue };
            let read = entry.get("readTime").and_then(Value::as_str).and_then(Micros::parse);
            let name = document.get("name").and_then(Value::as_str);
            let found = read.and_then(|read| Found::from_json(document, read, self.layout));
            match (name, found) {
                (Some(name), Some(found)) => page.push((name.to_owned(), found)),
                _ => return Err(nonsense("a document in a list has no name or time").into()),
            }
        }
        Ok(page)
    }
}
