//! The ways in which users take a lock and give it back, and how often a load goes each of them.

/// One way to take a lock and give it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    /// Wait a few milliseconds, hold for half a one.
    Rush,
    /// One attempt.
    Try,
    /// Wait a few milliseconds.
    ShortWait,
    /// Wait for seconds.
    LongWait,
    /// Wait for ever.
    EndlessWait,
    /// Go away after a while.
    CancelLater,
    /// Go away after so many polls.
    CancelAtPoll,
    /// Work under the lock.
    Run,
    /// Work under the lock if it is free.
    TryRun,
    /// Go away in the middle of the work.
    CancelRun,
    /// Work under a lock that is taken away by force in the middle.
    RunForced,
    /// Several keys at once.
    Set,
    /// Work under several keys.
    SetRun,
    /// Several keys at once, and go away.
    CancelSet,
    /// Be elected, and step down.
    Campaign,
    /// Be elected now, or soon, or not at all.
    CampaignWithin,
    /// Go away from an election.
    CancelCampaign,
    /// Work as a leader.
    Lead,
    /// Go away from leading, or from wanting to.
    CancelLead,
    /// Once per period.
    Turn,
    /// Let a lease run out, while somebody waits for the lock.
    Expire,
    /// Work for longer than the lease.
    RunExpired,
    /// Detach; several resume.
    Detach,
    /// Resume the token of a lock that is held.
    ResumeHeld,
    /// Release the token of a lock that is held.
    ReleaseHeld,
    /// Detach, extend by the token, release by the token.
    ReleaseDetached,
    /// Go away from detaching, or from resuming: the lock goes back, to all or to its token.
    CancelToken,
    /// Leave a lock held for a while.
    Keep,
    /// Release a held lock by force.
    Force,
}

impl Move {
    pub(super) const RUSH: &[(Self, u32)] = &[(Self::Rush, 1)];

    pub(super) const TOKENS: &[(Self, u32)] = &[
        (Self::Detach, 4),
        (Self::ResumeHeld, 4),
        (Self::ReleaseHeld, 2),
        (Self::ReleaseDetached, 2),
        (Self::CancelToken, 2),
        (Self::Force, 1),
        (Self::EndlessWait, 2),
    ];

    /// Those that take as long as a lease are done once each by the tour, and rarely after it.
    pub(super) const MIXED: &[(Self, u32)] = &[
        (Self::Rush, 200),
        (Self::Try, 100),
        (Self::ShortWait, 100),
        (Self::LongWait, 50),
        (Self::EndlessWait, 50),
        (Self::CancelLater, 100),
        (Self::CancelAtPoll, 100),
        (Self::Run, 100),
        (Self::TryRun, 50),
        (Self::CancelRun, 50),
        (Self::RunForced, 20),
        (Self::Set, 50),
        (Self::SetRun, 50),
        (Self::CancelSet, 50),
        (Self::Campaign, 50),
        (Self::CampaignWithin, 50),
        (Self::CancelCampaign, 50),
        (Self::Lead, 50),
        (Self::CancelLead, 50),
        (Self::Turn, 2),
        (Self::Keep, 2),
        (Self::Expire, 1),
        (Self::RunExpired, 1),
        (Self::Detach, 40),
        (Self::ResumeHeld, 40),
        (Self::ReleaseHeld, 20),
        (Self::ReleaseDetached, 20),
        (Self::CancelToken, 40),
        (Self::Force, 20),
    ];
}

impl Move {
    /// Whether it takes as long as a lease.
    pub(super) fn is_slow(self) -> bool {
        matches!(self, Self::Expire | Self::RunExpired)
    }
}
