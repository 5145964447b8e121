//! Reads from the cluster what decides how safe its locks are, and says what follows from it.

use std::collections::HashSet;

use holdtight_core::{Finding, Guarantees, Level, LockError};

use crate::error::{Effect, Fault};
use crate::link::{Open, TWO_CLUSTERS};
use crate::proto::cluster_client::ClusterClient;
use crate::proto::maintenance_client::MaintenanceClient;
use crate::proto::{MemberListRequest, MemberListResponse, StatusRequest, StatusResponse};
use crate::store::EtcdStore;

/// `(major, minor, patch)`.
type Version = (u32, u32, u32);

/// In each line the first release in which all known faults that can lose or keep a lock wrongly
/// are mended: a paused leader that ends live leases, revisions that go back, keep-alives of leases
/// that are gone.
const MENDED: &[Version] = &[(3, 4, 38), (3, 5, 23), (3, 6, 5)];

impl EtcdStore {
    /// All that can be found out with the rights there are.
    pub(crate) async fn examine(&self) -> Result<Guarantees, LockError> {
        let members = self.link.members().len();
        let asked = futures_util::future::join_all((0..members).map(|member| self.status(member)));
        let mut statuses = Vec::new();
        let mut failure = None;
        for status in asked.await {
            match status {
                Ok(status) => statuses.push(status),
                Err(error) => failure = Some(error),
            }
        }
        let mut findings = Vec::new();
        if let Some(error) = failure {
            if statuses.is_empty() {
                return Err(error);
            }
            let silent = members - statuses.len();
            let found = format!("{silent} of {members} named members do not answer: {error}");
            findings.push(
                Finding::new(Level::Warning, "members", found)
                    .fix("start them, or take them out of the store URL"),
            );
        }
        let clusters: HashSet<_> = statuses.iter().filter_map(cluster).collect();
        if clusters.len() > 1 {
            findings.push(
                Finding::new(Level::Unsafe, "members", TWO_CLUSTERS)
                    .fix("see `etcdctl member list` at each of them"),
            );
        }
        let oldest =
            statuses.iter().map(|status| version(&status.version)).min().unwrap_or_default();
        findings.push(release(oldest));
        findings.extend(statuses.iter().flat_map(alarms));
        findings.push(self.size().await);
        findings.push(Finding::new(
            Level::Good,
            "lease",
            format!("etcd grants leases of at least {:?}, in whole seconds", self.min_ttl),
        ));
        findings.push(match self.config.epoch {
            0 => Finding::new(
                Level::Good,
                "fence",
                "revisions of this cluster; raise `epoch` when it is rebuilt or restored without bumping revisions",
            ),
            epoch => Finding::new(Level::Good, "fence", format!("revisions of this cluster in epoch {epoch}")),
        });
        Ok(Guarantees::new(named(oldest), findings))
    }

    /// What the member that we are connected to says: enough to refuse or warn at once.
    pub(crate) async fn first_look(&self) -> Result<Guarantees, LockError> {
        let status = self.status_on(&*self.link.wire().await?).await?;
        let version = version(&status.version);
        let findings = std::iter::once(release(version)).chain(alarms(&status)).collect();
        Ok(Guarantees::new(named(version), findings))
    }

    async fn status(&self, member: usize) -> Result<StatusResponse, LockError> {
        self.status_on(&self.link.open(member).await?).await
    }

    async fn status_on(&self, wire: &Open) -> Result<StatusResponse, LockError> {
        let mut client = MaintenanceClient::new(wire.channel.clone());
        match self.link.timely(client.status(wire.request(StatusRequest {}))).await {
            Ok(status) => Ok(status.into_inner()),
            Err(status) => Err(Fault::read(&status).explain(Effect::Reads, &status)),
        }
    }

    /// How many members may fail.
    async fn size(&self) -> Finding {
        let answer: Result<MemberListResponse, _> = self
            .link
            .ask(Effect::Reads, |wire| {
                let question = wire.request(MemberListRequest {});
                async move { ClusterClient::new(wire.channel.clone()).member_list(question).await }
            })
            .await;
        match answer {
            Ok(answer) => {
                let voters = answer.members.iter().filter(|member| !member.is_learner).count();
                redundancy(voters)
            }
            Err(error) => Finding::new(Level::Warning, "redundancy", format!("unknown: {error}")),
        }
    }
}

fn redundancy(voters: usize) -> Finding {
    let spare = voters.saturating_sub(1) / 2;
    let found =
        format!("{voters} members vote: locks are served while at most {spare} of them fail");
    if spare == 0 {
        Finding::new(Level::Warning, "redundancy", found).fix("run three or five members")
    } else {
        Finding::new(Level::Good, "redundancy", found)
    }
}

fn cluster(status: &StatusResponse) -> Option<u64> {
    status.header.as_ref().map(|header| header.cluster_id)
}

fn alarms(status: &StatusResponse) -> impl Iterator<Item = Finding> {
    status.errors.iter().map(|alarm| alarmed(alarm))
}

fn alarmed(alarm: &str) -> Finding {
    let alarm: String = alarm.chars().filter(|c| !c.is_control()).take(200).collect();
    if alarm.to_ascii_uppercase().contains("CORRUPT") {
        Finding::new(Level::Unsafe, "alarm", format!("etcd reports damaged data: {alarm}"))
            .fix("replace the damaged member, then disarm the alarm")
    } else {
        Finding::new(Level::Warning, "alarm", format!("etcd reports: {alarm}"))
            .fix("see `etcdctl alarm list`")
    }
}

fn version(text: &str) -> Version {
    let mut parts = text.split(['.', '-', '+']).map(|part| part.parse().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    (next(), next(), next())
}

fn named((major, minor, patch): Version) -> String {
    format!("etcd {major}.{minor}.{patch}")
}

fn release(version: Version) -> Finding {
    let (name, (major, minor, _)) = (named(version), version);
    if version < (3, 4, 0) {
        return Finding::new(
            Level::Unsafe,
            "version",
            format!("{name} is too old: locks need transactions and streams of etcd 3.4"),
        )
        .fix("use etcd 3.5.23, 3.6.5 or newer");
    }
    let mended = MENDED.iter().find(|mended| (mended.0, mended.1) == (major, minor));
    if mended.is_some_and(|mended| version < *mended) {
        return Finding::new(
            Level::Warning,
            "version",
            format!(
                "{name} has known faults: after a pause of its leader it may end a live lease or keep a dead \
                 one alive, so two holders may meet; fences still rise"
            ),
        )
        .fix("use etcd 3.4.38, 3.5.23, 3.6.5 or newer, or check fences at the resource");
    }
    Finding::new(Level::Good, "version", name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faulty_releases_are_warned_of() {
        for (text, level) in [
            ("3.3.25", Level::Unsafe),
            ("nonsense", Level::Unsafe),
            ("3.4.23", Level::Warning),
            ("3.4.37", Level::Warning),
            ("3.4.38", Level::Good),
            ("3.5.22", Level::Warning),
            ("3.5.23", Level::Good),
            ("3.6.4", Level::Warning),
            ("3.6.5", Level::Good),
            ("3.7.0-alpha.0", Level::Good),
            ("4.0.0", Level::Good),
        ] {
            assert_eq!(release(version(text)).level, level, "{text}");
        }
    }

    #[test]
    fn one_member_is_not_enough_and_damage_is_unsafe() {
        let level = |voters| redundancy(voters).level;
        assert_eq!((level(1), level(2), level(3)), (Level::Warning, Level::Warning, Level::Good));
        assert_eq!(alarmed("memberID:1 alarm:CORRUPT ").level, Level::Unsafe);
        assert_eq!(alarmed("etcdserver: no space\u{1b}[2J").level, Level::Warning);
        assert!(!alarmed("\u{1b}[2J").found.contains('\u{1b}'));
    }
}
