//! Watches the one entry before ours in a lock's queue, and rings when it is gone.
//!
//! Before a broken stream is opened again, on another member if need be, the entry is read: what
//! happened meanwhile may no longer be in etcd's history, and servers before 3.4.36, 3.5.19 and 3.6
//! lose the deletion that stands exactly where the history begins. Rings are hints: the waiter asks
//! again anyway, now and then.

use std::sync::{Arc, Weak};
use std::time::Duration;

use holdtight_kit::pause;
use tokio_stream::StreamExt as _;
use tonic::Status;

use crate::error::Fault;
use crate::line::Line;
use crate::link::{Link, Wire};
use crate::proto::event::EventType;
use crate::proto::watch_client::WatchClient;
use crate::proto::watch_create_request::FilterType;
use crate::proto::{WatchCreateRequest, WatchRequest, watch_request};
use crate::txn::single;

/// A stream that lived so long was a good one.
const GOOD_AGE: Duration = Duration::from_secs(1);

/// One watch: which key, and from which revision on.
pub(crate) struct Watch {
    pub(crate) link: Arc<Link>,
    pub(crate) line: Weak<Line>,
    /// The start of the lock's range, whose bells to ring.
    pub(crate) lock: Vec<u8>,
    pub(crate) entry: Vec<u8>,
    pub(crate) from: i64,
}

/// Why a stream ended.
enum End {
    /// The entry is gone.
    Gone,
    /// This user may not watch it.
    Refused,
    /// The member or the connection failed, or the history has been compacted.
    Broken,
}

impl Watch {
    /// Runs until the entry is gone or cannot be watched.
    pub(crate) async fn run(mut self) {
        let mut failures = 0;
        loop {
            let opened = tokio::time::Instant::now();
            let end = match self.link.wire().await {
                Ok(wire) => self.follow(&wire).await,
                Err(_) => End::Broken,
            };
            match end {
                End::Gone => return self.ring(),
                // It would be refused again; the waiter's timer does without.
                End::Refused => return,
                End::Broken => {}
            }
            if opened.elapsed() > GOOD_AGE {
                failures = 0;
            }
            loop {
                failures += 1;
                tokio::time::sleep(pause(failures)).await;
                let Ok(mut answer) = self.link.read(vec![single(&self.entry)]).await else {
                    continue;
                };
                match answer.key() {
                    Ok(Some(_)) => {
                        self.from = answer.revision + 1;
                        break;
                    }
                    _ => return self.ring(),
                }
            }
        }
    }

    fn ring(&self) {
        if let Some(line) = self.line.upgrade() {
            line.ring(&self.lock);
        }
    }

    /// Follows one stream to its end.
    async fn follow(&self, wire: &Arc<Wire>) -> End {
        let create = WatchCreateRequest {
            key: self.entry.clone(),
            start_revision: self.from,
            filters: vec![FilterType::Noput.into()],
        };
        let create = watch_request::RequestUnion::CreateRequest(create);
        let question = WatchRequest { request_union: Some(create) };
        // The stream of questions stays open: its end would end the watch.
        let questions = tokio_stream::once(question).chain(tokio_stream::pending());
        let mut client = WatchClient::new(wire.channel.clone());
        let opening = client.watch(wire.request(questions));
        let mut stream = match self.link.timely(opening).await {
            Ok(stream) => stream.into_inner(),
            Err(status) => return self.broken(wire, &status),
        };
        loop {
            let answer = match stream.message().await {
                Ok(Some(answer)) => answer,
                Ok(None) => return self.broken(wire, &Status::unavailable("the watch ended")),
                Err(status) => return self.broken(wire, &status),
            };
            if answer.events.iter().any(|event| event.r#type() == EventType::Delete) {
                return End::Gone;
            }
            if answer.canceled && answer.cancel_reason.contains("permission denied") {
                return End::Refused;
            }
            // Compacted, or the member is about to go.
            if answer.canceled {
                return End::Broken;
            }
        }
    }

    fn broken(&self, wire: &Arc<Wire>, status: &Status) -> End {
        let fault = Fault::read(status);
        tracing::debug!(?fault, "a watch broke");
        self.link.blame(wire, fault);
        if let Fault::Final(..) = fault { End::Refused } else { End::Broken }
    }
}
