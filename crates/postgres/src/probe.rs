//! What this server really promises: the settings that decide whether a grant survives, read and
//! judged.

use holdtight_core::{Finding, Guarantees, Level, LockError};

use crate::config::{PostgresConfig, TlsMode};
use crate::connect::forgetful;
use crate::error::Phase;
use crate::pool::Pool;
use crate::rows::{get, one};

const SETTINGS: &str = "SELECT pg_catalog.current_setting('server_version'), \
     pg_catalog.current_setting('fsync'), pg_catalog.current_setting('full_page_writes'), \
     pg_catalog.current_setting('synchronous_commit'), pg_catalog.current_setting('synchronous_standby_names'), \
     (SELECT pg_catalog.count(*) FILTER (WHERE r.sync_state IN ('sync', 'quorum')) FROM pg_catalog.pg_stat_replication AS r), \
     (SELECT pg_catalog.count(*) FILTER (WHERE r.sync_state IS NULL) FROM pg_catalog.pg_stat_replication AS r), \
     pg_catalog.pg_notification_queue_usage(), $1::bigint";

pub(crate) async fn probe(pool: &Pool, config: &PostgresConfig) -> Result<Guarantees, LockError> {
    let row = one(pool.step("", Phase::Read, SETTINGS, &[]).await?)?;
    let version: &str = get(&row, 0)?;
    let settings = Settings {
        fsync: get::<&str>(&row, 1)? == "on",
        full_page_writes: get::<&str>(&row, 2)? == "on",
        synchronous_commit: get(&row, 3)?,
        standbys: get(&row, 4)?,
        // Whoever may not see the state of a standby sees that there is one.
        standby_is_there: get::<i64>(&row, 5)? > 0 || get::<i64>(&row, 6)? > 0,
        notes: get(&row, 7)?,
        plain: matches!(config.tls, TlsMode::Disable | TlsMode::Prefer | TlsMode::Require)
            && !config.is_local(),
        listen: config.listen,
    };
    Ok(Guarantees::new(format!("PostgreSQL {version} at {}", config.shown()), judge(&settings)))
}

#[expect(clippy::struct_excessive_bools, reason = "independent facts, not states")]
struct Settings<'a> {
    fsync: bool,
    full_page_writes: bool,
    synchronous_commit: &'a str,
    standbys: &'a str,
    standby_is_there: bool,
    /// How full the queue of notifications is, from 0 to 1.
    notes: f64,
    plain: bool,
    listen: bool,
}

fn judge(settings: &Settings<'_>) -> Vec<Finding> {
    let mut findings =
        vec![Finding::new(Level::Good, "role", "the server is a primary and takes writes")];
    findings.push(if settings.fsync {
        Finding::new(
            Level::Good,
            "durability",
            format!(
                "grants and extensions wait for the disk (synchronous_commit is {} for others, on for locks)",
                settings.synchronous_commit
            ),
        )
    } else {
        forgetful()
    });
    if !settings.full_page_writes {
        findings.push(
            Finding::new(
                Level::Warning,
                "torn pages",
                "full_page_writes is off: unless the file system never tears a page (ZFS does not), a crash of the machine \
                 can damage the table",
            )
            .fix("set full_page_writes = on, or keep the data on a file system that writes pages whole"),
        );
    }
    findings.push(if settings.standbys.is_empty() {
        Finding::new(
            Level::Warning,
            "failover",
            "replication is asynchronous: a standby that is promoted may lack the last grants. Fences still grow if its \
             clock is right",
        )
        .fix("set synchronous_standby_names if you fail over, or check fences where it matters")
    } else if settings.standby_is_there {
        Finding::new(
            Level::Good,
            "failover",
            "grants wait for a synchronous standby; promote only such a one",
        )
    } else {
        Finding::new(
            Level::Warning,
            "failover",
            "grants wait for a synchronous standby, and none is connected: nothing is granted until one is",
        )
        .fix("start the standby, or take it out of synchronous_standby_names")
    });
    if settings.notes > 0.5 {
        findings.push(
            Finding::new(
                Level::Warning,
                "wake-ups",
                format!(
                    "the server's queue of notifications is {:.0} % full: some session listens and stays in a transaction. \
                     From 90 % on nobody is woken, and waiters ask by the timer",
                    settings.notes * 100.0
                ),
            )
            .fix("end that session: see pg_stat_activity for the oldest xact_start"),
        );
    }
    findings.push(Finding::new(
        Level::Warning,
        "clock",
        "leases end by the server's wall clock: a jump forward ends them early. Fences stay in order",
    ).fix("let NTP slew the server's clock, not step it"));
    findings.push(if settings.listen {
        Finding::new(Level::Good, "wake-ups", "a release wakes the next waiter by NOTIFY")
    } else {
        Finding::new(Level::Good, "wake-ups", "off: waiters ask again by the timer")
    });
    if settings.plain {
        findings.push(
            Finding::new(
                Level::Warning,
                "transport",
                "the server's certificate is not checked: whoever stands in between can answer for it",
            )
            .fix("say sslmode=verify-full in the URL"),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: Settings<'static> = Settings {
        fsync: true,
        full_page_writes: true,
        synchronous_commit: "off",
        standbys: "s1",
        standby_is_there: true,
        notes: 0.0,
        plain: false,
        listen: true,
    };

    #[test]
    fn a_server_that_does_not_wait_for_its_disk_is_unsafe() {
        let level =
            |settings: &Settings<'_>| judge(settings).iter().map(|finding| finding.level).max();
        assert_eq!(level(&Settings { fsync: false, ..SOUND }), Some(Level::Unsafe));
        assert_eq!(level(&Settings { full_page_writes: false, ..SOUND }), Some(Level::Warning));
        assert_eq!(level(&SOUND), Some(Level::Warning), "only the clock is left to warn about");
    }

    #[test]
    fn a_standby_that_is_away_and_a_queue_that_fills_up_are_told() {
        let told = |settings: &Settings<'_>, subject: &str| {
            judge(settings).into_iter().filter(|f| f.subject == subject).map(|f| f.level).max()
        };
        let away = Settings { standby_is_there: false, ..SOUND };
        assert_eq!(told(&away, "failover"), Some(Level::Warning));
        assert_eq!(told(&SOUND, "failover"), Some(Level::Good));
        assert_eq!(told(&Settings { notes: 0.7, ..SOUND }, "wake-ups"), Some(Level::Warning));
        assert_eq!(told(&SOUND, "wake-ups"), Some(Level::Good));
    }

    #[test]
    fn every_warning_says_what_to_do() {
        let worst = Settings {
            fsync: false,
            full_page_writes: false,
            standbys: "",
            plain: true,
            listen: false,
            notes: 1.0,
            ..SOUND
        };
        for finding in judge(&worst) {
            assert_eq!(finding.level > Level::Good, finding.fix.is_some(), "{}", finding.subject);
        }
    }
}
