//! The two-step form for scripts: `acquire` prints a token, `extend` and `release` take it from
//! anywhere but argv.

mod support;

use std::process::Stdio;

use support::{Ending, Home, eventually, names};

#[test]
fn a_token_extends_and_releases_what_acquire_took() {
    let home = Home::new();
    let printed = home.call("acquire deploy --ttl 10s").succeeded().out;
    let token = printed.trim_end();
    assert!(token.starts_with("ht1_") && printed == format!("{token}\n"), "one word: {token}");

    assert_eq!(home.call("status deploy").code, 0);
    let extended = home.call_on("extend --ttl 1h -", token).succeeded();
    assert_eq!(extended.out, "", "nothing to say on success");
    let status = home.call("status deploy").succeeded();
    assert!(status.out.contains("(in 59 min"), "{}", status.out);

    home.call_on("release -", token).succeeded();
    assert_eq!(home.call("status deploy").code, 1);
    home.call_on("release -", token).refused(74, &["\"deploy\"", "acquire it again"]);
    home.call_on("extend -", token).refused(74, &["\"deploy\""]);
}

#[test]
fn the_token_comes_from_standard_input_a_file_or_the_environment_as_text_or_json() {
    let home = Home::new();
    let json = home.acquire("a").to_string();
    home.call_on("release -", &json).succeeded();

    home.write("token", home.acquire("b")["token"].as_str().unwrap());
    home.call("release @token").succeeded();

    let token = home.acquire("c")["token"].as_str().unwrap().to_owned();
    let home = home.with("HOLDTIGHT_TOKEN", token);
    home.call("release").succeeded();
    assert_eq!(home.call("ls").succeeded().out, "");
}

#[test]
fn a_token_on_the_command_line_is_refused_and_never_repeated() {
    let home = Home::new();
    let token = home.acquire("k")["token"].as_str().unwrap().to_owned();
    for line in [
        format!("release {token}"),
        format!("extend {token}"),
        format!("extend --ttl 5s - {token}"),
        format!("release - {token} more"),
        format!("extend --ttl {token} -"),
    ] {
        let answer = home.call(&line).refused(64, &["HOLDTIGHT_TOKEN", "`@FILE`"]);
        assert!(!answer.err.contains(&token), "{}", answer.err);
    }
    assert_eq!(home.call("status k").code, 0, "nothing was released");
}

#[test]
fn what_is_no_token_is_bad_data() {
    let home = Home::new();
    for text in ["", "sesame", "{\"token\":\"sesame\"}", "{\"key\":\"sesame\"}"] {
        let answer = home.call_on("release -", text).refused(65, &["acquire"]);
        assert!(!answer.err.contains("sesame"), "{}", answer.err);
    }
    home.call("release").refused(64, &["HOLDTIGHT_TOKEN", "`-`", "`@FILE`"]);
    home.call("release @nowhere").refused(64, &["nowhere"]);
    home.with("HOLDTIGHT_TOKEN", "sesame").call("extend").refused(65, &["whole"]);
}

#[test]
fn the_shapes_of_json_are_stable_and_fences_are_strings() {
    let home = Home::new();
    let taken = home.acquire("job:7");
    assert_eq!(names(&taken), ["expires_at", "fence", "key", "token"]);
    assert_eq!(taken["key"], "job:7");
    assert!(taken["fence"].as_str().unwrap().parse::<u64>().unwrap() > 0);
    assert!(taken["expires_at"].as_str().unwrap().ends_with('Z'));

    let home = home.with("HOLDTIGHT_TOKEN", taken["token"].as_str().unwrap());
    let extended = home.call("extend --ttl 2h --json").succeeded().json();
    assert_eq!(names(&extended), ["expires_at", "fence", "key"]);
    assert_eq!(extended["fence"], taken["fence"]);
    assert!(extended["expires_at"].as_str() > taken["expires_at"].as_str());

    let released = home.call("release --json").succeeded().json();
    assert_eq!(released, serde_json::json!({ "key": "job:7", "released": true }));
    let lost = home.call("release --json");
    assert_eq!((lost.code, &lost.error_json()["exit"]), (74, &74.into()));
    assert_eq!(lost.error_json()["key"], "job:7");
}

#[test]
fn a_busy_key_is_75_with_all_that_is_known_about_its_holder() {
    let home = Home::new();
    home.call("acquire deploy --reason release-42 --ttl 1h").succeeded();
    for line in ["acquire -n deploy", "acquire -w 0 deploy", "acquire -w 50ms deploy"] {
        let answer = home.call(line);
        assert_eq!((answer.code, answer.out.as_str()), (75, ""), "{line}");
        for part in ["\"deploy\" is busy", "Host:", "PID:", "User:    ann", "Command:"] {
            assert!(answer.err.contains(part), "{part} is missing in:\n{}", answer.err);
        }
        for part in ["Reason:  release-42", "Since:", "Expires:", "Fence:", "force-release --fence"]
        {
            assert!(answer.err.contains(part), "{part} is missing in:\n{}", answer.err);
        }
    }
    let busy = home.call("acquire -n deploy --json");
    let json = busy.error_json();
    assert_eq!((busy.code, json["error"].as_str()), (75, Some("busy")));
    assert_eq!(json["holder"]["reason"], "release-42");
    assert_eq!(names(&json), ["error", "exit", "holder", "key", "waited_ms"]);
}

#[test]
fn the_holder_of_a_token_is_the_calling_script_and_outlives_nobody() {
    let home = Home::new();
    home.call("acquire k --ttl 1h").succeeded();
    // `acquire` has ended, and still the key is held: by its lease, in the name of this process.
    let status = home.call("status k --json").succeeded().json();
    assert_eq!(status["pid"], std::process::id());
}

#[test]
fn a_waiter_gets_the_key_when_the_token_is_released() {
    let home = Home::new();
    let token = home.acquire("k")["token"].as_str().unwrap().to_owned();
    let mut waiter = home.command(["acquire", "k"]);
    let mut waiter = Ending(waiter.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    home.call_on("release -", &token).succeeded();
    eventually("the waiter has it", || waiter.0.try_wait().unwrap().is_some());
    assert!(waiter.0.wait().unwrap().success());
    assert_eq!(home.call("status k").code, 0);
}

#[test]
fn a_token_that_cannot_be_written_gives_the_lock_back() {
    let home = Home::new();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let status =
        home.command(["acquire", "k"]).stdout(full).stderr(Stdio::null()).status().unwrap();
    assert_eq!(status.code(), Some(74));
    assert_eq!(home.call("status k").code, 1, "held by nobody");
}

#[cfg(target_os = "linux")]
#[test]
fn a_waiter_that_is_interrupted_dies_of_the_signal_and_leaves_nothing() {
    use std::os::unix::process::ExitStatusExt as _;
    let home = Home::new();
    let token = home.acquire("k")["token"].as_str().unwrap().to_owned();
    for line in [["acquire", "k"], ["wait", "k"]] {
        let mut waiter = home.command(line);
        let mut waiter = Ending(waiter.stdout(Stdio::null()).spawn().unwrap());
        eventually("the waiter waits", || signals(&waiter.0, "SigBlk:").contains(&2));
        send(&waiter.0, rustix::process::Signal::INT);
        eventually("the waiter has ended", || waiter.0.try_wait().unwrap().is_some());
        assert_eq!(waiter.0.wait().unwrap().signal(), Some(2), "{line:?}");
    }
    home.call_on("release -", &token).succeeded();
    assert_eq!(home.call("status k").code, 1, "the waiter must not have got it");
}

#[cfg(target_os = "linux")]
#[test]
fn a_waiter_under_nohup_survives_the_hangup() {
    let home = Home::new();
    let token = home.acquire("k")["token"].as_str().unwrap().to_owned();
    let waiter = home.command(["acquire", "k"]);
    let mut nohup = std::process::Command::new("nohup");
    nohup.arg(waiter.get_program()).args(waiter.get_args()).env_clear();
    nohup.envs(waiter.get_envs().filter_map(|(name, value)| Some((name, value?))));
    nohup.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut waiter = Ending(nohup.spawn().unwrap());
    eventually("the waiter waits", || signals(&waiter.0, "SigBlk:").contains(&2));
    assert!(signals(&waiter.0, "SigIgn:").contains(&1), "nohup works");
    send(&waiter.0, rustix::process::Signal::HUP);
    home.call_on("release -", &token).succeeded();
    eventually("the waiter has it", || waiter.0.try_wait().unwrap().is_some());
    assert!(waiter.0.wait().unwrap().success());
}

#[cfg(target_os = "linux")]
fn send(process: &std::process::Child, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(process), signal).unwrap();
}

/// The signals in one of the masks that the kernel shows of a process.
#[cfg(target_os = "linux")]
fn signals(process: &std::process::Child, mask: &str) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix(mask)).unwrap();
    let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
    (1..=64).filter(|signal| mask >> (signal - 1) & 1 == 1).collect()
}

#[test]
fn a_store_that_ends_with_the_command_is_refused() {
    let home = Home::new().with("HOLDTIGHT_STORE", "memory:");
    home.call("acquire k").refused(64, &["memory:", "file:"]);
}

#[test]
fn a_lock_is_not_taken_if_nobody_could_read_its_token() {
    let home = Home::new();
    let holdtight = env!("CARGO_BIN_EXE_holdtight");
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &format!("{holdtight} acquire k >&-")]).env("HOME", home.path(""));
    let output = shell.env_remove("HOLDTIGHT_STORE").output().unwrap();
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    assert_eq!(home.call("status k").code, 1, "it is free");
}

#[test]
fn a_token_that_others_can_read_is_warned_of() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = Home::new();
    let token = home.acquire("k")["token"].as_str().unwrap().to_owned();
    let path = home.write("token", &token);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let answer = home.call("extend @token");
    assert_eq!(answer.code, 0, "{}", answer.err);
    assert!(answer.err.contains("others can read this token"), "{}", answer.err);
    assert!(!answer.err.contains(&token));
}
