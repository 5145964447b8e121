//! What people get wrong: each mistake has its exit code, and one or two lines that say what to do
//! next.

mod support;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;

use support::Home;

#[test]
fn wrong_stores_are_named_and_so_are_the_right_ones() {
    let home = Home::new();
    for (url, parts) in [
        ("zookeeper://h", ["`zookeeper:`", "file:"]),
        ("/var/lib/locks", ["not by a path", "file:/directory"]),
        ("locks", ["scheme", "file:/var/lib/locks"]),
        ("file:locks", ["absolute path", "file:/"]),
        ("file://server/locks", ["this machine", "file:/"]),
        ("file:/tmp/x?fsync=1", ["`fsync`", "`sync`"]),
        ("withheld:", ["--pass-store", "HOLDTIGHT_STORE"]),
    ] {
        for command in ["status k", "acquire k", "run k true"] {
            home.call(&format!("--store {url} {command}")).refused(64, &parts);
        }
        let home = Home::new().with("HOLDTIGHT_STORE", url);
        home.call("ls").refused(64, &parts);
    }
    home.call_with(["--store", "", "ls"]).refused(64, &["empty"]);
    home.with("HOLDTIGHT_STORE", "").call("ls").refused(64, &["HOLDTIGHT_STORE", "empty"]);
}

#[test]
fn without_a_home_there_is_no_default_store() {
    let home = Home::new().without("HOME");
    home.call("run k true").refused(64, &["HOME", "file:/"]);
    home.call("status k").refused(64, &["HOME", "file:/"]);
    let store = home.path("locks").display().to_string();
    assert_eq!(home.with("HOLDTIGHT_STORE", format!("file:{store}")).call("run k true").code, 0);
}

#[test]
fn a_directory_that_cannot_be_used_is_an_error_that_names_it() {
    let home = Home::new();
    let file = home.write("plain", "");
    let answer = home.call(&format!("--store file:{} ls", file.display()));
    assert!([64, 69].contains(&answer.code), "{}", answer.err);
    assert!(answer.err.contains("plain"), "{}", answer.err);

    let under = home.call(&format!("--store file:{}/locks run k true", file.display()));
    under.refused(64, &["plain/locks", "a file stands where a directory is needed"]);

    std::os::unix::fs::symlink(home.path("nothing"), home.path("link")).unwrap();
    let link = home.path("link");
    let dangling = home.call(&format!("--store file:{} run k true", link.display()));
    dangling.refused(64, &["link", "leads nowhere"]);

    let open = home.path("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    let answer = home.call(&format!("--store file:{} run k true", open.display()));
    assert!([64, 69].contains(&answer.code), "{}", answer.err);
    assert!(answer.err.contains("open"), "{}", answer.err);
}

#[cfg(target_os = "linux")]
#[test]
fn a_store_that_cannot_serve_is_69_and_named_with_its_origin() {
    // Nobody can make directories there, not even root.
    let home = Home::new().with("HOLDTIGHT_STORE", "file:/proc/nowhere");
    let answer = home.call("status k").refused(69, &["cannot create /proc/nowhere"]);
    assert!(answer.err.ends_with("the store is file:/proc/nowhere (from HOLDTIGHT_STORE)\n"));
    let json = home.call("status k --json");
    assert_eq!((json.code, &json.error_json()["exit"]), (69, &69.into()));
    assert!(json.error_json()["store"].as_str().unwrap().starts_with("file:/proc/nowhere"));
    assert!(!answer.err.contains("gone"), "nothing was ever there: {}", answer.err);
    let run = home.call("run k true").refused(69, &["cannot create /proc/nowhere"]);
    assert_eq!(run.err, answer.err);
}

#[test]
fn a_server_that_is_not_there_is_69_and_its_password_stays_hidden() {
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for scheme in ["redis", "postgres"] {
        let url = format!("{scheme}://ann:tiger@127.0.0.1:{port}/0");
        let home = Home::new().with("HOLDTIGHT_STORE", &url);
        for line in ["status k", "acquire -n k", "run -n k true", "doctor", "migrate"] {
            let shown = format!("the store is {scheme}://ann:***@127.0.0.1:{port}/0");
            let answer = home.call(line).refused(69, &[&shown]);
            assert!(!answer.err.contains("tiger"), "{line}: {}", answer.err);
        }
    }
}

#[test]
fn passwords_in_urls_that_are_wrong_are_not_shown() {
    for url in [
        "redis:/u:tiger@127.0.0.1",
        "u:tiger@127.0.0.1:45001",
        "redis+sentinel://a/main?sentinel_pasword=tiger",
        "postgres://h/d?pasword=tiger",
    ] {
        let home = Home::new().with("HOLDTIGHT_STORE", url);
        for line in ["config", "config --json", "status k", "status k --json", "doctor", "ls"] {
            let answer = home.call(line);
            let told = format!("{}{}", answer.out, answer.err);
            assert!(!told.contains("tiger"), "{url}, {line}: {told}");
            assert!(told.contains("***") || !line.contains("config"), "{url}, {line}: {told}");
        }
    }
}

#[test]
fn a_forgotten_emulator_is_warned_of() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let emulator = format!("127.0.0.1:{port}");
    let home = Home::new().with("HOLDTIGHT_STORE", "firestore://p");
    let home = home.with("FIRESTORE_EMULATOR_HOST", &emulator);
    for line in ["status k", "run -n k true"] {
        let answer = home.call(line);
        assert_eq!(answer.code, 69, "{}", answer.err);
        assert!(answer.err.contains("warning: FIRESTORE_EMULATOR_HOST"), "{}", answer.err);
    }
    let meant = home.call(&format!("--store firestore://p?emulator={emulator} status k"));
    assert!(!meant.err.contains("warning"), "{}", meant.err);
}

#[test]
fn a_bad_key_is_bad_data() {
    let home = Home::new();
    for command in ["acquire", "status", "wait"] {
        home.call_with([command, ""]).refused(65, &["empty"]);
        home.call_with([command, "two\nlines"]).refused(65, &["U+000A", "remove it"]);
        home.call_with([command, &"x".repeat(513)]).refused(65, &["513 bytes"]);
    }
    home.call_with(["run", "two\nlines", "true"]).refused(65, &["U+000A"]);
    let bytes = OsStr::from_bytes(b"\xff");
    home.call_with([OsStr::new("status"), bytes]).refused(65, &["UTF-8"]);
}

#[test]
fn what_is_no_text_is_bad_data_in_a_key_and_a_usage_error_in_an_option() {
    use std::os::unix::ffi::OsStrExt as _;
    let home = Home::new();
    let call = |words: &[&[u8]]| {
        home.call_with(words.iter().map(|word| std::ffi::OsStr::from_bytes(word))).code
    };
    for key in [&[&b"acquire"[..], b"-n", b"\xff"][..], &[b"run", b"-k", b"\xff", b"true"]] {
        assert_eq!(call(key), 65);
    }
    for option in [
        &[&b"acquire"[..], b"--reason", b"\xff", b"k"][..],
        &[b"run", b"--reason=\xff", b"k", b"true"],
        &[b"--store", b"file:/\xff", b"status", b"k"],
        &[b"acquire", b"-w\xff", b"k"],
    ] {
        assert_eq!(call(option), 64);
    }
}

#[test]
fn a_mistake_is_told_before_the_store_is_asked() {
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let home = Home::new().with("HOLDTIGHT_STORE", format!("redis://127.0.0.1:{port}"));
    for command in ["acquire", "status", "wait"] {
        home.call_with([command, "two\nlines"]).refused(65, &["U+000A"]);
    }
    home.call_with(["run", "two\nlines", "true"]).refused(65, &["U+000A"]);
    for command in ["acquire --ttl 48h k", "run --ttl 48h k true"] {
        home.call(command).refused(64, &["24h"]);
    }
}

#[test]
fn a_bad_duration_says_how_to_write_one() {
    let home = Home::new();
    for bad in ["5x", "-5s", "soon", "1h30", ""] {
        for flag in ["--ttl=", "--wait="] {
            home.call_with(["acquire", "k", &format!("{flag}{bad}")])
                .refused(64, &[flag.trim_end_matches('='), "ms"]);
        }
    }
    home.call("acquire k --ttl 48h").refused(64, &["TTL"]);
    home.call("run --kill-after 20s k true").refused(64, &["--kill-after", "half"]);
    Home::new().with("HOLDTIGHT_TTL", "soon").call("ls").refused(64, &["HOLDTIGHT_TTL", "30s"]);
}

#[test]
fn slips_of_the_keyboard_are_usage_errors_with_a_pointer_to_help() {
    let home = Home::new();
    for (line, parts) in [
        ("", ["holdtight run", "--help"]),
        ("stats k", ["'status'", "holdtight --help"]),
        ("status", ["<KEY>", "holdtight status --help"]),
        ("status --jsn k", ["'--json'", "holdtight status --help"]),
        ("run k", ["<COMMAND>", "holdtight run --help"]),
        ("acquire -n -w 5 k", ["--wait", "holdtight acquire --help"]),
        ("run -E 300 k true", ["300", "holdtight run --help"]),
        ("completions tcsh", ["tcsh", "bash"]),
    ] {
        home.call(line).refused(64, &parts);
    }
}

#[test]
fn a_settings_file_is_read_strictly_and_never_quoted() {
    let home = Home::new();
    let name = ".config/holdtight/holdtight.toml";
    for (text, parts) in [
        ("stor = \"redis://:tiger@h\"", ["`stor`", "kill_after"]),
        ("store = 5", ["`store`", "quotes"]),
        ("ttl = \"30s\"\nstore = \"redis://:tiger@h", ["line 2", name]),
        ("store = \"tiger\"", ["scheme", name]),
        ("wait = \"soon\"", ["`wait`: ", "30s"]),
    ] {
        home.write(name, text);
        let answer = home.call("ls").refused(64, &parts);
        assert!(!answer.err.contains("tiger"), "{}", answer.err);
    }
    home.call("completions bash").succeeded();
    home.call("man").succeeded();
}

#[test]
fn a_password_in_argv_is_warned_about_and_shown_nowhere() {
    let home = Home::new();
    let url = "nosuch://ann:tiger@h/0?password=tiger";
    for line in ["status k", "doctor", "config", "acquire k --json", "run k true"] {
        let answer = home.call(&format!("--store {url} {line}"));
        assert!(answer.err.contains("the password in --store"), "{}", answer.err);
        assert!(!format!("{}{}", answer.out, answer.err).contains("tiger"), "{line}");
    }
    let file = home.write(".config/holdtight/holdtight.toml", &format!("store = \"{url}\""));
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let answer = home.call("config");
    assert!(answer.err.contains("chmod o-r") && !answer.err.contains("tiger"), "{}", answer.err);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    home.call("config").succeeded();
    let home = home.with("HOLDTIGHT_STORE", url);
    let config = home.call("config").succeeded();
    assert!(config.out.contains("nosuch://ann:***@h/0?password=***"), "{}", config.out);
    assert!(!home.call("config --json").succeeded().out.contains("tiger"));
}
