//! The checker of histories under test: sound histories pass, and whatever is planted in one is
//! found.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdtight_core::{DistributedLock, MemoryStore};
use holdtight_testkit::history::{Broken, History, Load, Recorder, Report, Rules, check};
use proptest::prelude::*;

fn history(lines: &[&str]) -> History {
    let mut history = History { label: "planted, seed 7".to_owned(), ..History::default() };
    for line in lines {
        history.merge(&format!("{line}\n")).unwrap();
    }
    history
}

fn checked(lines: &[&str]) -> Report {
    check(&history(lines), Rules::CALM)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_goes_on_beyond_its_grants_while_it_is_told_to() {
    let lock = DistributedLock::builder(MemoryStore::new()).build().unwrap();
    let (recorder, more) = (Recorder::new("memory"), Arc::new(AtomicBool::new(true)));
    let load = Load::rush(7).grants(1).while_set(&more);
    let playing = tokio::spawn({
        let (load, recorder) = (load.clone(), recorder.clone());
        async move { load.run(&[lock], &recorder).await }
    });
    // More than fifty tasks get with one move each.
    while recorder.grants() < 200 {
        assert!(!playing.is_finished(), "over after {} grants", recorder.grants());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    more.store(false, Ordering::SeqCst);
    playing.await.unwrap();
}

/// The one kind of violation in a history.
fn found(lines: &[&str]) -> Option<Broken> {
    let mut kinds: Vec<_> = checked(lines).violations.iter().map(|broken| broken.kind).collect();
    kinds.dedup();
    assert!(kinds.len() <= 1, "{}", checked(lines));
    kinds.pop()
}

#[test]
fn one_after_the_other_is_sound() {
    let report = checked(&[
        "10 1 asked acquire endless k",
        "20 1 granted 5 1000",
        "12 2 asked try limited k",
        "13 2 refused busy",
        "14 3 asked acquire endless k",
        "30 1 seen 990",
        "30 1 letting-go release",
        "31 3 granted 6 1000",
        "32 1 gone done",
        "40 3 letting-go drop",
        "50 0 over",
    ]);
    assert!(report.is_clean(), "{report}");
    let counts = report.counts;
    assert_eq!((counts.claims, counts.grants, counts.busy, counts.hand_overs), (3, 2, 1, 1));
}

#[test]
fn two_certain_holders_are_found_and_told() {
    let report = checked(&[
        "1000 1 asked acquire limited k",
        "2000 1 granted 5 1000000",
        "1000 2 asked run limited k",
        "3000 2 granted 6 1000000",
        "4000 1 seen 999000",
        "5000 1 letting-go release",
    ]);
    assert!(report.found(Broken::TwoHolders), "{report}");
    let text = report.to_string();
    for part in ["seed 7", "\"k\"", "claim 1 (acquire)", "claim 2 (run)", "fence 5", "+0.000002 s"]
    {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
}

#[test]
fn a_third_holder_inside_the_first_is_found_behind_a_short_second() {
    let report = checked(&[
        "1 1 asked acquire limited k",
        "2 1 granted 5 1000",
        "90 1 seen 1000",
        "1 2 asked acquire limited k",
        "10 2 granted 6 1000",
        "1 3 asked acquire limited k",
        "50 3 granted 7 1000",
    ]);
    let overlaps = report.violations.iter().filter(|broken| broken.kind == Broken::TwoHolders);
    assert_eq!(overlaps.count(), 2, "{report}");
}

#[test]
fn what_is_not_certain_is_no_violation() {
    // Nobody asked the first handle after 10; another key; a lock that was lost before anybody
    // could look.
    assert_eq!(
        found(&[
            "1 1 asked try limited k",
            "10 1 granted 5 9",
            "1 2 asked try limited k",
            "20 2 granted 6 9"
        ]),
        None
    );
    assert_eq!(
        found(&[
            "1 1 asked try limited k",
            "2 1 granted 5 9",
            "9 1 seen 9",
            "1 2 asked try limited j",
            "5 2 granted 5 9"
        ]),
        None
    );
    assert_eq!(
        found(&[
            "1 1 asked try limited k",
            "2 1 granted 5 9",
            "9 1 seen 9",
            "1 2 asked try limited k",
            "5 2 granted 6 0"
        ]),
        None
    );
}

#[test]
fn a_claim_that_somebody_else_ends_is_certain_until_then() {
    let lines = |ending: &'static str| {
        [
            "1 1 asked acquire limited k",
            "2 1 granted 5 1000",
            ending,
            "8 1 ended done",
            "3 2 asked resume limited k",
            "7 2 granted 6 1000",
            "20 1 seen 900",
            "20 1 letting-go release",
            "21 1 gone lost",
            "22 2 letting-go drop",
        ]
    };
    for how in ["6 1 ending resume", "6 1 ending release-token", "6 1 ending force"] {
        assert_eq!(found(&lines(how)), None);
    }
    // Begun after the second was granted, it explains nothing.
    assert_eq!(found(&lines("9 1 ending force")), Some(Broken::TwoHolders));
}

#[test]
fn fences_are_unique_and_rise_in_real_time() {
    let second = |fence: &str, asked: &str| {
        let asked = format!("{asked} 2 asked try limited k");
        let granted = format!("30 2 granted {fence} 9");
        found(&["1 1 asked try limited k", "10 1 granted 5 1", &asked, &granted])
    };
    assert_eq!(second("6", "20"), None);
    assert_eq!(second("5", "20"), Some(Broken::SameFence));
    assert_eq!(second("4", "20"), Some(Broken::FenceFell));
    // Asked for before the first was granted: either order is right.
    assert_eq!(second("4", "9"), None);
}

#[test]
fn a_lock_that_is_gone_without_a_cause_is_found() {
    let ends = |lines: &[&str]| {
        let begin = ["1 1 asked try limited k", "2 1 granted 5 100"];
        found(&[&begin, lines].concat())
    };
    assert_eq!(ends(&["5 1 letting-go release", "9 1 gone lost"]), Some(Broken::FoundGone));
    assert_eq!(ends(&["5 1 extending", "9 1 extended lost"]), Some(Broken::FoundGone));
    assert_eq!(ends(&["9 1 told taken-away"]), Some(Broken::FoundGone));
    // Its lease was over, or may have been; or nobody knows.
    assert_eq!(ends(&["5 1 letting-go release", "200 1 gone lost"]), None);
    assert_eq!(ends(&["150 1 told expired", "150 1 letting-go drop"]), None);
    assert_eq!(ends(&["5 1 letting-go release", "9 1 gone unknown"]), None);
    let lost =
        ["1 1 asked try limited k", "2 1 granted 5 100", "5 1 letting-go release", "9 1 gone lost"];
    let lenient = Rules { kept: false, ..Rules::CALM };
    assert!(check(&history(&lost), lenient).is_clean());
}

#[test]
fn a_token_is_resumed_once() {
    let begin = ["1 1 asked try limited k", "2 1 granted 5 100", "3 1 letting-go detach"];
    let resumed = |second: &str| {
        let again = ["4 1 ending resume", "5 1 ended done", "6 1 ending resume", second];
        found(&[&begin[..], &again[..]].concat())
    };
    assert_eq!(resumed("7 1 ended done"), Some(Broken::ResumedAgain));
    assert_eq!(resumed("7 1 ended lost"), None);
    assert_eq!(resumed("7 1 ended unknown"), None);
}

#[test]
fn work_without_its_lock_is_not_done() {
    let work = |lost: &[&str], answer: &str| {
        let begin = ["1 1 asked run limited k", "2 1 granted 5 100"];
        found(&[&begin[..], lost, &["50 1 letting-go work", answer]].concat())
    };
    let forced = ["10 1 ending force", "11 1 ended done"];
    assert_eq!(work(&forced, "51 1 worked done"), Some(Broken::WorkedWithout));
    assert_eq!(work(&forced, "51 1 worked lost"), None);
    let lossy = |lost: &[&str]| {
        let begin = ["1 1 asked run limited k", "2 1 granted 5 100"];
        let end = ["50 1 letting-go work", "51 1 worked done"];
        check(&history(&[&begin[..], lost, &end].concat()), Rules::FAULTS).is_clean()
    };
    assert!(lossy(&forced) && !lossy(&["49 1 told expired"]));
    assert_eq!(work(&["49 1 told expired"], "51 1 worked done"), Some(Broken::WorkedWithout));
    assert_eq!(work(&["10 1 ending force", "11 1 ended unsupported"], "51 1 worked done"), None);
    assert_eq!(work(&[], "51 1 worked done"), None);
}

#[test]
fn what_stays_behind_is_found() {
    assert_eq!(found(&["1 0 left k"]), Some(Broken::Left));
}

#[test]
fn errors_that_nobody_may_get_are_found() {
    assert_eq!(
        found(&["1 1 asked try limited k", "2 1 refused unexpected:internal"]),
        Some(Broken::Unexpected)
    );
    let gone = [
        "1 1 asked try limited k",
        "2 1 granted 5 9",
        "3 1 letting-go release",
        "4 1 gone unexpected:internal",
    ];
    assert_eq!(found(&gone), Some(Broken::Unexpected));
}

#[test]
fn a_waiter_that_is_never_served_is_found() {
    let waits = ["1 1 asked acquire endless k", "50 0 over"];
    assert_eq!(found(&waits), Some(Broken::Starved));
    // Its process was killed; another one came to its end.
    assert_eq!(found(&["1 1 asked acquire endless k", "50 4294967296 over"]), None);
    assert_eq!(found(&["1 1 asked acquire limited k", "50 0 over"]), None);
    // Given up because the history was closed.
    assert_eq!(
        found(&["1 1 asked acquire endless k", "50 0 over", "60 1 refused cancelled"]),
        Some(Broken::Starved)
    );
    assert_eq!(
        found(&["1 1 asked acquire endless k", "40 1 refused cancelled", "50 0 over"]),
        None
    );
}

#[test]
fn a_wait_out_of_all_proportion_is_found() {
    let of = |millis: u64| millis * 1_000_000;
    let mut lines = Vec::new();
    for claim in 1..10 {
        lines.push(format!("1 {claim} asked acquire endless k"));
        lines.push(format!("{} {claim} granted {claim} 9", of(claim)));
        // Others wait long for another key, because it is held long.
        lines.push(format!("1 {} asked acquire endless j", claim + 10));
        lines.push(format!("{} {} granted {claim} 9", of(10_000 * claim), claim + 10));
    }
    let with = |wait: u64| {
        let mut lines = lines.clone();
        lines.push("1 99 asked acquire endless k".to_owned());
        lines.push(format!("{} 99 granted 99 9", of(wait)));
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        (found(&lines), check(&history(&lines), Rules::FAULTS).is_clean())
    };
    assert_eq!(with(19_000), (None, true));
    assert_eq!(with(21_000), (Some(Broken::Starved), true));
}

#[test]
fn the_longest_wait_for_each_key_is_told() {
    let report = checked(&[
        "10 1 asked acquire endless k",
        "30 1 granted 5 1000",
        "40 1 letting-go release",
        "35 2 asked acquire endless k",
        "45 2 granted 6 1000",
        "10 3 asked acquire limited k",
        "90 3 granted 7 1000",
        "10 4 asked acquire endless j",
    ]);
    let waits: Vec<_> = report.longest_waits.into_iter().collect();
    let nanos = Duration::from_nanos;
    assert_eq!(waits, [("j".to_owned(), nanos(0)), ("k".to_owned(), nanos(20))]);
}

#[test]
fn successions_are_counted_for_what_they_are() {
    let report = checked(&[
        "1 1 asked try limited k",
        "2 1 granted 5 10",
        "3 2 asked acquire endless k",
        "20 2 granted 6 100",
        "21 1 told expired",
        "22 1 letting-go drop",
        "30 2 ending force",
        "31 2 ended done",
        "32 3 asked acquire endless k",
        "33 3 granted 7 100",
        "40 2 letting-go drop",
    ]);
    assert!(report.is_clean(), "{report}");
    let counts = report.counts;
    assert_eq!((counts.takeovers, counts.hand_overs, counts.forced, counts.losses), (1, 0, 1, 1));
}

#[test]
fn a_line_that_was_cut_off_is_left_out() {
    let mut history = History::default();
    history.merge("1 1 asked try limited k\n2 1 grant").unwrap();
    assert_eq!(history.events.len(), 1);
    assert!(history.merge("2 1 grant\n").is_err(), "a whole line must be an event");
}

/// A sound history of one key: holders one after the other, each with a span and a pause behind it.
fn sound(spans: &[(u64, u64)]) -> Vec<String> {
    let (mut at, mut lines) = (1000, Vec::new());
    for ((claim, fence), (span, pause)) in (1..).zip(500..).zip(spans) {
        // Asked for some time before: waiting overlaps, holding does not.
        lines.push(format!("{} {claim} asked acquire endless k", at - 900));
        lines.push(format!("{at} {claim} granted {fence} 1000000"));
        at += span;
        lines.push(format!("{at} {claim} seen 1000000"));
        lines.push(format!("{at} {claim} letting-go release"));
        lines.push(format!("{} {claim} gone done", at + 1));
        at += 2 + pause;
    }
    lines.push(format!("{at} 0 over"));
    lines
}

fn check_lines(lines: &[String]) -> Report {
    checked(&lines.iter().map(String::as_str).collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sound_histories_pass_and_planted_violations_do_not(
        spans in proptest::collection::vec((1_u64..50, 0_u64..200), 2..40),
        chosen in any::<prop::sample::Index>(),
        order in any::<u64>(),
    ) {
        let lines = sound(&spans);
        let report = check_lines(&lines);
        prop_assert!(report.is_clean(), "{}", report);
        prop_assert_eq!(report.counts.grants, spans.len() as u64);

        // In whatever order processes wrote their lines.
        let mut mixed = lines.clone();
        fastrand::Rng::with_seed(order).shuffle(&mut mixed);
        prop_assert!(check_lines(&mixed).is_clean());

        let grants: Vec<usize> = (0..lines.len()).filter(|n| lines[*n].contains("granted")).collect();
        let victim = 1 + chosen.index(grants.len() - 1);
        let (line, before) = (grants[victim], &lines[grants[victim - 1]]);
        let words: Vec<&str> = lines[line].split(' ').collect();
        let before: Vec<&str> = before.split(' ').collect();

        // Granted while the one before was still seen to hold.
        let mut planted = lines.clone();
        planted[line] = [&before[..1], &words[1..]].concat().join(" ");
        prop_assert!(check_lines(&planted).found(Broken::TwoHolders));

        // The fence of the one before.
        let mut planted = lines.clone();
        planted[line] = [&words[..3], &before[3..]].concat().join(" ");
        prop_assert!(check_lines(&planted).found(Broken::SameFence));

        // Gone at the end.
        let mut planted = lines.clone();
        planted[line + 3] = planted[line + 3].replace("done", "lost");
        let report = check_lines(&planted);
        prop_assert!(report.found(Broken::FoundGone) && report.violations.len() == 1);
    }
}
