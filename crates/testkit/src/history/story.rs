//! The events of a history, told claim by claim.

use std::collections::HashMap;
use std::time::Duration;

use holdtight_core::{Fence, Loss, Moment};

use super::event::{Answer, Foreign, Form, LetGo, Patience, Refusal, What};
use super::record::History;

/// Everything known of one claim.
#[derive(Clone, Debug)]
pub(super) struct Story {
    pub(super) id: u64,
    pub(super) key: String,
    pub(super) form: Form,
    pub(super) patience: Patience,
    pub(super) asked: Moment,
    pub(super) refused: Option<(Moment, Refusal)>,
    pub(super) granted: Option<(Moment, Fence)>,
    /// The last moment at which the holder was told that it holds.
    pub(super) seen: Option<Moment>,
    /// No earlier than this does its lease end, as far as the holder was told.
    pub(super) valid_until: Moment,
    pub(super) told: Option<(Moment, Loss)>,
    pub(super) endings: Vec<Ending>,
    pub(super) letting_go: Option<(Moment, LetGo)>,
    pub(super) gone: Option<(Moment, Answer)>,
    pub(super) extended: Vec<(Moment, Answer)>,
    pub(super) worked: Option<Answer>,
}

/// Somebody else's attempt to end a claim.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ending {
    pub(super) begun: Moment,
    pub(super) how: Foreign,
    pub(super) answered: Option<(Moment, Answer)>,
}

impl Story {
    /// The span during which this claim was certainly valid.
    pub(super) fn certain(&self) -> Option<(Moment, Moment)> {
        let ((start, _), seen) = (self.granted?, self.seen?);
        let bounds = [self.letting_go.map(|(at, _)| at), self.first_ending()];
        let end = bounds.into_iter().flatten().fold(seen, Moment::min);
        (start <= end).then_some((start, end))
    }

    /// When somebody else first began to end it.
    pub(super) fn first_ending(&self) -> Option<Moment> {
        self.endings.iter().map(|ending| ending.begun).min()
    }

    /// Whether it was certainly its holder's at `at`: nobody else touched it, and its lease was not
    /// over.
    pub(super) fn undisturbed_at(&self, at: Moment) -> bool {
        self.first_ending().is_none_or(|begun| begun > at) && at < self.valid_until
    }

    /// Whether it certainly was not its holder's any more when the holder ended its work.
    pub(super) fn was_lost_before_the_end(&self, heard: bool) -> bool {
        let Some((end, _)) = self.letting_go else { return false };
        let taken =
            |ending: &Ending| matches!(ending.answered, Some((at, Answer::Done)) if at < end);
        self.told.is_some_and(|(at, _)| at < end) || heard && self.endings.iter().any(taken)
    }

    pub(super) fn waited(&self) -> Option<Duration> {
        self.granted.map(|(at, _)| at.since(self.asked))
    }
}

/// What belongs to each claim, which keys were left behind, and which processes came to their end.
pub(super) fn stories(history: &History) -> (Vec<Story>, Vec<String>, HashMap<u64, Moment>) {
    let mut events: Vec<_> = history.events.iter().collect();
    // Stable: events of one claim at one moment stay in the order in which they were written,
    // behind its beginning.
    events.sort_by_key(|event| (event.at, !matches!(event.what, What::Asked { .. })));
    let (mut stories, mut index) = (Vec::<Story>::new(), HashMap::new());
    let (mut left, mut over) = (Vec::new(), HashMap::new());
    for event in events {
        let (at, id) = (event.at, event.claim);
        match &event.what {
            What::Asked { key, form, patience } => {
                index.insert(id, stories.len());
                stories.push(Story {
                    id,
                    key: key.clone(),
                    form: *form,
                    patience: *patience,
                    asked: at,
                    refused: None,
                    granted: None,
                    seen: None,
                    valid_until: Moment::from_nanos(0),
                    told: None,
                    endings: Vec::new(),
                    letting_go: None,
                    gone: None,
                    extended: Vec::new(),
                    worked: None,
                });
                continue;
            }
            What::Left { key } => {
                left.push(key.clone());
                continue;
            }
            What::Over => {
                over.insert(id >> 32, at);
                continue;
            }
            _ => {}
        }
        // An event without its beginning: of a process whose first lines are missing.
        let Some(story) = index.get(&id).map(|at: &usize| &mut stories[*at]) else { continue };
        match &event.what {
            What::Refused(why) => story.refused = Some((at, *why)),
            What::Granted { fence, left } => {
                story.granted = Some((at, *fence));
                story.sighted(at, *left);
            }
            What::Seen { left } => story.sighted(at, *left),
            What::Told(loss) => story.told = story.told.or(Some((at, *loss))),
            What::Extended(answer) => story.extended.push((at, *answer)),
            What::Ending(how) => {
                story.endings.push(Ending { begun: at, how: *how, answered: None });
            }
            What::Ended(answer) => {
                let open = story.endings.iter_mut().find(|ending| ending.answered.is_none());
                if let Some(ending) = open {
                    ending.answered = Some((at, *answer));
                }
            }
            What::LettingGo(how) => story.letting_go = story.letting_go.or(Some((at, *how))),
            What::Gone(answer) => story.gone = Some((at, *answer)),
            What::Worked(answer) => story.worked = Some(*answer),
            _ => {}
        }
    }
    (stories, left, over)
}

impl Story {
    pub(super) fn sighted(&mut self, at: Moment, left: Duration) {
        if left > Duration::ZERO {
            self.seen = self.seen.max(Some(at));
            self.valid_until = self.valid_until.max(at.after(left));
        }
    }
}
