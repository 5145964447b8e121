//! Watches the one entry before ours in a lock's queue, and rings when it is gone.
//!
//! A broken stream is opened again, on another member if need be, from the revision where it broke, so that no event is
//! missed; one that cannot be continued because etcd has compacted its history rings at once. Rings are hints: the
//! waiter asks again anyway, now and then.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio_stream::StreamExt as _;
use tonic::Status;

use crate::error::Fault;
use crate::line::Line;
use crate::link::Link;
use crate::proto::event::EventType;
use crate::proto::watch_client::WatchClient;
use crate::proto::watch_create_request::FilterType;
use crate::proto::{WatchCreateRequest, WatchRequest, watch_request};

/// How soon a broken stream is opened again, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

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
    /// The entry is gone, or nobody can tell any more.
    Ring,
    /// The member or the connection failed.
    Broken(Status),
}

impl Watch {
    /// Runs until the entry is gone or cannot be watched.
    pub(crate) async fn run(mut self) {
        let mut pause = PAUSE.0;
        loop {
            let before = self.from;
            let Ok(wire) = self.link.wire().await else {
                rest(&mut pause).await;
                continue;
            };
            match self.follow(&wire).await {
                End::Ring => {
                    if let Some(line) = self.line.upgrade() {
                        line.ring(&self.lock);
                    }
                    return;
                }
                End::Broken(status) => {
                    let fault = Fault::read(&status);
                    self.link.blame(&wire, fault);
                    tracing::debug!(?fault, "a watch broke");
                    if let Fault::Final(..) = fault {
                        // It would be refused again; the waiter's timer does without.
                        return;
                    }
                }
            }
            if self.from > before {
                pause = PAUSE.0;
            }
            rest(&mut pause).await;
        }
    }

    /// Follows one stream to its end.
    async fn follow(&mut self, wire: &Arc<crate::link::Wire>) -> End {
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
            Err(status) => return End::Broken(status),
        };
        loop {
            let answer = match stream.message().await {
                Ok(Some(answer)) => answer,
                Ok(None) => return End::Broken(Status::unavailable("the watch ended")),
                Err(status) => return End::Broken(status),
            };
            let gone = |event: &crate::proto::Event| event.r#type() == EventType::Delete;
            if answer.compact_revision > 0 || answer.events.iter().any(gone) {
                return End::Ring;
            }
            if answer.canceled {
                let reason = answer.cancel_reason;
                return End::Broken(if reason.contains("permission denied") {
                    Status::permission_denied(reason)
                } else {
                    Status::unavailable(reason)
                });
            }
            // All events up to this revision have been sent.
            if let Some(header) = answer.header
                && !answer.created
            {
                self.from = self.from.max(header.revision + 1);
            }
        }
    }
}

/// Sleeps, longer each time, and not in step with others.
async fn rest(pause: &mut Duration) {
    tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
    *pause = (*pause * 2).min(PAUSE.1);
}
