//! Looking and meddling: `status`, `ls`, `wait`, `force-release`, `doctor`, `config`.

mod support;

use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::time::Instant;

use support::{DEADLINE, Ending, Home, eventually, names};

#[test]
fn status_exits_0_if_held_and_1_if_free() {
    let home = Home::new();
    let free = home.call("status k");
    assert_eq!((free.code, free.out.as_str(), free.err.as_str()), (1, "\"k\" is free\n", ""));
    let free = home.call("status k --json");
    assert_eq!((free.code, free.json()), (1, serde_json::json!({ "key": "k", "held": false })));

    let taken = home.acquire("k");
    let held = home.call("status k").succeeded();
    assert!(held.out.starts_with("\"k\" is held\n  Host:    "), "{}", held.out);
    let json = home.call("status k --json").succeeded().json();
    assert_eq!(
        names(&json),
        [
            "acquired_at",
            "command",
            "expires_at",
            "fence",
            "held",
            "host",
            "key",
            "pid",
            "reason",
            "user"
        ]
    );
    assert_eq!((&json["fence"], &json["held"]), (&taken["fence"], &true.into()));
    assert_eq!(json["reason"], serde_json::Value::Null, "what is not known is null");
}

#[test]
fn ls_shows_what_is_held_sorted_and_by_prefix() {
    let home = Home::new();
    assert_eq!(home.call("ls").succeeded().out, "");
    assert_eq!(home.call("ls --json").succeeded().json(), serde_json::json!([]));
    for key in ["job:b", "job:a", "user:1"] {
        home.acquire(key);
    }
    let text = home.call("ls").succeeded().out;
    let first: Vec<_> = text.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(first, ["KEY", "job:a", "job:b", "user:1"]);
    let json = home.call("ls job: --json").succeeded().json();
    let keys: Vec<_> = json.as_array().unwrap().iter().map(|one| &one["key"]).collect();
    assert_eq!(keys, ["job:a", "job:b"]);
    assert!(json[0]["fence"].is_string());
}

#[test]
fn a_record_that_cannot_be_read_is_shown_by_ls_status_and_doctor() {
    let home = Home::new();
    home.acquire("broken");
    let path = one_record(&home);
    home.acquire("fine");
    std::fs::write(&path, [0xEE; 4096]).unwrap();
    let path = path.to_str().unwrap();

    let ls = home.call("ls");
    assert_eq!(ls.code, 70, "an incomplete list is no success: {}", ls.err);
    assert!(ls.out.contains("fine"), "{}", ls.out);
    assert!(ls.err.starts_with("holdtight: ") && ls.err.contains(path), "{}", ls.err);
    // Its key is not known, so it may be any.
    let ls = home.call("ls nothing-begins-so");
    assert!(ls.code == 70 && ls.err.contains(path), "{}", ls.err);

    let json = home.call("ls --json");
    assert_eq!((json.code, json.err.as_str()), (70, ""));
    let json = json.json();
    let list = json.as_array().unwrap();
    assert_eq!((list.len(), &list[0]["key"]), (2, &"fine".into()));
    assert_eq!(list[1]["key"], serde_json::Value::Null);
    assert_eq!(list[1]["held"], serde_json::Value::Null, "nobody knows");
    assert!(list[1]["damaged"].as_str().unwrap().contains(path), "{json}");

    home.call("status broken").refused(70, &["\"broken\"", path]);
    let status = home.call("status broken --json");
    assert_eq!((status.code, &status.error_json()["key"]), (70, &"broken".into()));
    assert!(status.error_json()["error"].as_str().unwrap().contains(path));
    assert_eq!(status.out, "", "neither held nor free");
    assert_eq!(home.call("wait broken -w 1s").code, 70, "not taken for free");

    let doctor = home.call("doctor").succeeded().out;
    assert!(doctor.contains("warning  records: ") && doctor.contains(path), "{doctor}");
    let doctor = home.call("doctor --json").succeeded().json();
    let records =
        doctor["findings"].as_array().unwrap().iter().find(|one| one["subject"] == "records");
    assert!(records.unwrap()["found"].as_str().unwrap().contains(path), "{doctor}");
}

#[test]
fn whatever_stands_in_the_place_of_a_record_is_the_same_error() {
    let home = Home::new();
    home.acquire("k");
    let path = one_record(&home);
    let ledger = home.path(".local/state/holdtight/store");
    for what in ["a symbolic link", "a socket", "a pipe", "a directory"] {
        let away = home.path("away");
        let put = |path: &std::path::Path| {
            std::fs::rename(path, &away).unwrap();
            match what {
                "a symbolic link" => std::os::unix::fs::symlink(&away, path).unwrap(),
                "a socket" => {
                    // The address of a socket is shorter than a path may be.
                    let short = home.path("s");
                    drop(std::os::unix::net::UnixListener::bind(&short).unwrap());
                    std::fs::rename(short, path).unwrap();
                }
                "a directory" => std::fs::create_dir(path).unwrap(),
                _ => assert!(Command::new("mkfifo").arg(path).status().unwrap().success()),
            }
        };
        let put_back = |path: &std::path::Path| {
            if what == "a directory" {
                std::fs::remove_dir(path).unwrap();
            } else {
                std::fs::remove_file(path).unwrap();
            }
            std::fs::rename(&away, path).unwrap();
        };
        put(&path);
        for line in ["status k", "run -n k true", "acquire -n k", "wait k -w 1s"] {
            home.call(line).refused(70, &[path.to_str().unwrap(), "is not a file but ", what]);
        }
        put_back(&path);
        // Without the ledger there is no store.
        put(&ledger);
        let told = home.call("status k").refused(64, &[ledger.to_str().unwrap(), what]);
        assert_eq!(told.err.matches("is not a file").count(), 1, "{}", told.err);
        let doctor = home.call("doctor");
        assert!(doctor.code == 1 && doctor.out.contains(what), "{}{}", doctor.out, doctor.err);
        put_back(&ledger);
        assert_eq!(home.call("status k").code, 0);
    }
}

/// The one record of the store of this home.
fn one_record(home: &Home) -> std::path::PathBuf {
    let first = |path| std::fs::read_dir(path).unwrap().next().unwrap().unwrap().path();
    first(first(home.path(".local/state/holdtight/keys")))
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let home = Home::new();
    for n in 0..50 {
        home.acquire(&format!("key-{n}"));
    }
    let mut child = home.command(["ls"]);
    let mut child = Ending(child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    drop(child.0.stdout.take());
    let mut complaint = String::new();
    child.0.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
    assert_eq!((child.0.wait().unwrap().code(), complaint.as_str()), (Some(0), ""));
}

#[test]
fn wait_ends_when_the_key_is_free_and_does_not_take_it() {
    let home = Home::new();
    home.call("wait k").succeeded();
    let token = home.acquire("k")["token"].as_str().unwrap().to_owned();
    let busy = home.call("wait k -w 1s");
    assert_eq!(busy.code, 75);
    assert!(busy.err.contains("\"k\" is busy; gave up after") && busy.err.contains("Fence:"));

    let mut waiter = Ending(home.command(["wait", "k"]).spawn().unwrap());
    assert!(waiter.0.try_wait().unwrap().is_none());
    home.call_on("release -", &token).succeeded();
    eventually("the waiter has ended", || waiter.0.try_wait().unwrap().is_some());
    assert!(waiter.0.wait().unwrap().success());
    assert_eq!(home.call("status k").code, 1);
    let json = home.call("wait k --json").succeeded().json();
    assert_eq!(json, serde_json::json!({ "key": "k", "held": false }));
}

#[test]
fn a_lock_is_freed_by_force_only_with_the_fence_it_has_now() {
    let home = Home::new();
    home.call("force-release k --fence 1").refused(1, &["\"k\" is free already"]);
    let taken = home.acquire("k");
    let fence = taken["fence"].as_str().unwrap();

    let wrong = home.call("force-release k --fence 1");
    assert_eq!(wrong.code, 75);
    assert!(wrong.err.contains("not held under fence 1") && wrong.err.contains(fence));
    home.call("force-release k --fence 0x1").refused(64, &["fence", "status"]);
    home.call("force-release k").refused(64, &["--fence"]);
    assert_eq!(home.call("status k").code, 0, "nothing was freed so far");

    let freed = home.call(&format!("force-release k --fence {fence} --json")).succeeded().json();
    assert_eq!(freed, serde_json::json!({ "key": "k", "fence": fence, "released": true }));
    assert_eq!(home.call("status k").code, 1);
    let again = home.acquire("k")["fence"].as_str().unwrap().parse::<u64>().unwrap();
    assert!(again > fence.parse().unwrap(), "fences never go back");
    home.call_on("extend -", &taken.to_string()).refused(74, &["\"k\""]);
}

#[test]
fn doctor_says_what_the_store_promises() {
    let home = Home::new();
    let text = home.call("doctor").succeeded().out;
    assert!(text.starts_with("file store in "), "{text}");
    assert!(text.contains(".local/state/holdtight, from default)"), "{text}");
    assert!(text.lines().skip(1).all(|line| {
        ["ok       ", "warning  ", "         fix: "].iter().any(|start| line.starts_with(start))
    }));
    let json = home.call("doctor --json").succeeded().json();
    assert_eq!(names(&json), ["findings", "level", "origin", "store", "url"]);
    assert_eq!(names(&json["findings"][0]), ["fix", "found", "level", "subject"]);

    let memory = home.call("--store memory: doctor");
    assert!(memory.out.contains("memory"), "{}", memory.out);
}

#[test]
fn doctor_reports_on_a_directory_that_is_refused_as_unsafe() {
    let home = Home::new();
    home.call("status k");
    let store = home.path(".local/state/holdtight");
    let mode = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    for (path, safe) in
        [(&store, 0o700), (&store.join("keys"), 0o700), (&home.path(".local"), 0o755)]
    {
        mode(path, 0o777);
        let named = path.to_str().unwrap();
        home.call("status k").refused(64, &[named, "everybody"]);
        let told = home.call("doctor");
        assert_eq!((told.code, told.err.as_str()), (1, ""), "{named}");
        assert!(told.out.starts_with("file store in "), "{}", told.out);
        assert!(told.out.contains("unsafe   access: "), "{}", told.out);
        assert!(told.out.contains(named) && told.out.contains("fix: "), "{}", told.out);
        let told = home.call("doctor --json");
        let json = told.json();
        assert_eq!((told.code, &json["level"]), (1, &"unsafe".into()), "{json}");
        assert!(json["findings"][0]["found"].as_str().unwrap().contains(named), "{json}");
        assert!(json["findings"][0]["fix"].is_string(), "{json}");
        mode(path, safe);
        home.call("doctor").succeeded();
    }
}

#[test]
fn a_store_without_a_schema_needs_no_migration() {
    let home = Home::new();
    let file = home.path(".local/state/holdtight");
    let told = format!("file:{} needs no schema\n", file.display());
    assert_eq!(home.call("migrate").succeeded().out, told);
    let json = home.call("--store memory: migrate --json").succeeded().json();
    assert_eq!(json, serde_json::json!({ "store": "memory:", "has_schema": false }));
}

#[test]
fn bench_measures_cycles_and_leaves_nothing_behind() {
    let home = Home::new();
    for extra in ["", " --shared-key"] {
        let json = home.call(&format!("bench --for 50ms --tasks 3 --json{extra}"));
        let json = json.succeeded().json();
        assert!(json["cycles"].as_u64().unwrap() >= 3);
        let [p50, p99, max] = ["p50", "p99", "max"].map(|name| json["acquire_ms"][name].as_f64());
        assert!(Some(0.0) < p50 && p50 <= p99 && p99 <= max, "{json}");
    }
    let text = home.call("--store memory: bench --for 10ms").succeeded().out;
    assert!(text.starts_with("memory:, 1 task\n"), "{text}");
    assert_eq!(home.call("ls").succeeded().out, "");
    home.call("bench --tasks 0").refused(64, &["--tasks", "1..=1000"]);
}

#[test]
fn settings_come_from_flags_then_environment_then_the_users_file_then_the_systems() {
    let home = Home::new();
    let origin = |home: &Home, name: &str| {
        let json = home.call("config --json").succeeded().json();
        let line = &json[name];
        (line["value"].as_str().unwrap().to_owned(), line["origin"].as_str().unwrap().to_owned())
    };
    let file = format!("file:{}", home.path(".local/state/holdtight").display());
    let fallback = (file, "default".to_owned());
    assert_eq!(origin(&home, "store"), fallback);

    let system =
        home.write("etc/holdtight/holdtight.toml", "store = \"memory:system\"\nttl = 90\n");
    assert_eq!(origin(&home, "store"), ("memory:system".into(), system.display().to_string()));
    let user = home.write(".config/holdtight/holdtight.toml", "store = \"memory:user\"\n");
    assert_eq!(origin(&home, "store"), ("memory:user".into(), user.display().to_string()));
    assert_eq!(origin(&home, "ttl"), ("90s".into(), system.display().to_string()));

    let home = home.with("HOLDTIGHT_STORE", "memory:environment").with("HOLDTIGHT_TTL", "2m");
    assert_eq!(origin(&home, "store"), ("memory:environment".into(), "HOLDTIGHT_STORE".into()));
    assert_eq!(origin(&home, "ttl"), ("2m".into(), "HOLDTIGHT_TTL".into()));
    let flag = home.call("config --store memory:flag --json").succeeded().json();
    assert_eq!(flag["store"], serde_json::json!({ "value": "memory:flag", "origin": "--store" }));
    let text = home.call("config").succeeded().out;
    assert!(text.contains("wait        for ever") && text.contains("(read)"), "{text}");
}

#[test]
fn settings_are_obeyed() {
    let home = Home::new().with("HOLDTIGHT_TTL", "2h");
    home.call("acquire k").succeeded();
    let status = home.call("status k").succeeded().out;
    assert!(status.contains("(in 1 h 59 min)"), "{status}");
    let home = home.with("HOLDTIGHT_WAIT", "10ms");
    let start = Instant::now();
    assert_eq!(home.call("acquire k").code, 75);
    assert_eq!(home.call("run k true").code, 75);
    assert!(start.elapsed() < DEADLINE);
}
