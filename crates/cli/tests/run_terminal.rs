//! `holdtight run` on a terminal, under an interactive shell: job control, interactive commands,
//! and the spinner.

#![cfg(target_os = "linux")]

mod run_harness;

use std::time::Duration;

use run_harness::terminal::{CTRL_BACKSLASH, CTRL_C, CTRL_Z, Terminal};
use run_harness::{Bench, code, eventually, guardian_of, runs};

/// Counts up in the file `ticks`, so that it can be seen whether it runs. It ends when the file
/// `go` is there.
///
/// It starts no process: a shell that Ctrl-Z catches in the middle of a `vfork` cannot stop, with
/// or without us.
const COUNT: &str = "bash -c 'echo $$ > child; mkfifo pause; exec 9<>pause; \
                     while [ ! -e go ]; do echo >> ticks; read -t 0.02 -u 9; done; echo counted; exit 4'";

fn ticks(bench: &Bench) -> usize {
    bench.read("ticks").len()
}

/// Waits until it is seen to run.
fn is_counting(bench: &Bench) {
    let before = ticks(bench);
    eventually("another tick", || ticks(bench) > before + 1);
}

/// Makes sure that it does not run.
fn stands_still(bench: &Bench) {
    let before = ticks(bench);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(ticks(bench), before);
}

#[test]
fn an_interactive_command_reads_what_is_typed() {
    let bench = Bench::new();
    let mut terminal = Terminal::new(&bench);
    terminal.enter("$H run k -- sh -c 'read a; echo got:$a:; read b; echo got:$b:'");
    terminal.press("hello\n");
    terminal.expect("got:hello:");
    terminal.press("again\n");
    terminal.expect("got:again:");
    terminal.expect("ready> ");
    assert_eq!(terminal.status(), "0");
    terminal.close();
}

#[test]
fn a_shell_inside_has_job_control_of_its_own() {
    let bench = Bench::new();
    let mut terminal = Terminal::new(&bench);
    terminal.enter("$H run k -- env PS1='inner> ' bash --norc --noprofile -i");
    terminal.expect("inner> ");
    // What it prints is not what was typed, so the job runs when it is seen.
    terminal.enter("sh -c 'echo go$((1 + 1)); exec sleep 60'");
    terminal.expect("go2");
    terminal.press(CTRL_Z);
    terminal.expect("Stopped");
    terminal.expect("inner> ");
    // A shell does not leave while it knows of a stopped job, so it has to hear of its end first.
    terminal.enter("kill -KILL %1; while [ -n \"$(jobs -s)\" ]; do sleep 0.01; done; echo $HOLDTIGHT_KEY-is-held");
    terminal.expect("k-is-held");
    terminal.enter("exit 6");
    terminal.expect("ready> ");
    assert_eq!(terminal.status(), "6");
    terminal.close();
}

#[test]
fn ctrl_c_ends_the_command_and_the_shell_has_its_terminal_back() {
    let bench = Bench::new();
    let mut terminal = Terminal::new(&bench);
    terminal.enter(&format!("$H run k -- {COUNT}"));
    is_counting(&bench);
    terminal.press(CTRL_C);
    terminal.expect("ready> ");
    assert_eq!(terminal.status(), "130");
    assert!(!runs(bench.pid("child")));
    assert_eq!(code(&bench.output(&["run", "-n", "k", "true"])), 0);
    terminal.close();
}

#[test]
fn ctrl_c_ends_a_loop_around_the_command_too() {
    let bench = Bench::new();
    let mut terminal = Terminal::new(&bench);
    terminal
        .enter("for i in 1 2 3; do $H run k -- sh -c 'echo round >> rounds; exec sleep 60'; done");
    bench.line("rounds");
    terminal.press(CTRL_C);
    terminal.expect("ready> ");
    terminal.enter("echo out of the loop");
    terminal.expect("out of the loop\r\n");
    assert_eq!(bench.read("rounds").lines().count(), 1);
    terminal.close();
}

#[test]
fn ctrl_z_stops_both_and_fg_continues_both() {
    let bench = Bench::new();
    let mut terminal = Terminal::new(&bench);
    terminal.enter(&format!("$H run k -- {COUNT}"));
    is_counting(&bench);
    for _ in 0..2 {
        terminal.press(CTRL_Z);
        terminal.expect("Stopped");
        terminal.expect("ready> ");
        stands_still(&bench);
        terminal.enter("fg");
        is_counting(&bench);
    }
    std::fs::write(bench.path("go"), "").unwrap();
    terminal.expect("counted");
    terminal.expect("ready> ");
    assert_eq!(terminal.status(), "4");
    terminal.close();
}

#[test]
fn bg_continues_in_the_background_and_fg_brings_it_back() {
    let bench = Bench::new();
    let mut terminal = Terminal::new(&bench);
    terminal.enter(&format!("$H run k -- {COUNT}"));
    is_counting(&bench);
    terminal.press(CTRL_Z);
    terminal.expect("ready> ");
    stands_still(&bench);
    terminal.enter("bg");
    is_counting(&bench);
    terminal.enter("echo the shell has the terminal");
    terminal.expect("the shell has the terminal\r\n");
    terminal.expect("ready> ");
    terminal.enter("fg");
    // It counted all the time, so nothing shows when it has the terminal; before that the key
    // reaches the shell.
    let child = bench.pid("child");
    eventually("its end", || {
        terminal.press(CTRL_C);
        std::thread::sleep(Duration::from_millis(50));
        !runs(child)
    });
    terminal.expect("ready> ");
    terminal.close();
}

#[test]
fn a_command_in_the_background_that_reads_is_stopped_until_fg() {
    let bench = Bench::new();
    let mut terminal = Terminal::new(&bench);
    terminal.enter("$H run k -- sh -c 'echo > up; read a; echo got:$a:' &");
    bench.line("up");
    terminal.press("\n");
    // The shell tells of stopped jobs before a prompt.
    eventually("the stop", || {
        terminal.press("\n");
        std::thread::sleep(Duration::from_millis(50));
        terminal.unseen().contains("Stopped")
    });
    terminal.enter("echo mark");
    terminal.expect("mark\r\n");
    terminal.enter("fg");
    terminal.press("typed\n");
    terminal.expect("got:typed:");
    terminal.close();
}

#[test]
fn in_a_pipeline_the_command_gets_the_terminal_when_it_asks() {
    let bench = Bench::new();
    let mut terminal = Terminal::new(&bench);
    terminal.enter("$H run k -- sh -c 'read a < /dev/tty; echo got:$a:' | sed s/got/piped/");
    terminal.press("hello\n");
    terminal.expect("piped:hello:");
    terminal.expect("ready> ");
    // Until then the other members of the pipeline have it.
    terminal.enter("$H run k -- sleep 60 | sh -c 'read a < /dev/tty; echo peer:$a:'");
    terminal.press("hi\n");
    terminal.expect("peer:hi:");
    terminal.press(CTRL_C);
    terminal.expect("ready> ");
    terminal.close();
}

#[test]
fn after_a_long_stop_the_command_does_not_run_again_and_the_loss_is_told() {
    let bench = Bench::new();
    let mut terminal = Terminal::new(&bench);
    terminal.enter(&format!("$H run k --ttl 8s -- {COUNT}"));
    is_counting(&bench);
    terminal.press(CTRL_Z);
    terminal.expect("ready> ");
    stands_still(&bench);
    let before = ticks(&bench);
    // Another one gets it when the lease is over; by then the first is dead, although it was
    // stopped.
    assert_eq!(code(&bench.output(&["run", "k", "--", "true"])), 0);
    assert!(!runs(bench.pid("child")));
    terminal.enter("fg");
    terminal.expect("lost \"k\"");
    terminal.expect("ready> ");
    assert_eq!(terminal.status(), "74");
    assert_eq!(ticks(&bench), before);
    terminal.close();
}

#[test]
fn waiting_shows_who_holds_it_and_ctrl_c_ends_it_at_once() {
    let bench = Bench::new();
    let script = "echo > up; while [ ! -e go ]; do sleep 0.02; done";
    let holder = bench.start(&["run", "k", "--reason", "release 42", "--", "sh", "-c", script]);
    bench.line("up");
    let mut terminal = Terminal::new(&bench);
    terminal.enter("$H run k -- echo mine");
    terminal.expect("waiting for \"k\": held by pid ");
    let facts = terminal.expect("left");
    let guardian = guardian_of(&holder).unwrap();
    assert!(facts.starts_with(&guardian.to_string()), "{facts}");
    assert!(
        facts.contains("release 42") && facts.contains(" on ") && facts.contains(", for "),
        "{facts}"
    );
    // It moves.
    terminal.expect("\r⠸");
    terminal.press(CTRL_C);
    terminal.expect("\r\x1b[K");
    terminal.expect("ready> ");
    assert_eq!(terminal.status(), "130");
    terminal.enter("$H run k -- echo mine");
    terminal.expect("waiting for");
    // Ctrl-Z works for one who waits, too.
    terminal.press(CTRL_Z);
    terminal.expect("Stopped");
    terminal.expect("ready> ");
    terminal.enter("fg");
    terminal.expect("waiting for");
    std::fs::write(bench.path("go"), "").unwrap();
    terminal.expect("\r\x1b[K");
    terminal.expect("mine\r\n");
    assert_eq!(code(&holder.finish()), 0);
    terminal.close();
}

/// A script of two steps, of which the first waits to be interrupted, as it looks around
/// `holdtight` and around flock.
fn script(shell: &str, lock: &str) -> String {
    format!(
        "{shell} -c '{lock} sh -c \"echo step >> steps; exec sleep 60\"; \
         echo after >> steps; {lock} sh -c \"echo step >> steps\"'"
    )
}

#[test]
fn ctrl_c_and_ctrl_backslash_end_the_script_around_the_command_as_with_flock() {
    let ours = format!("{} run k --", env!("CARGO_BIN_EXE_holdtight"));
    let steps = |shell: &str, lock: &str, key: &str| {
        let bench = Bench::new();
        let mut terminal = Terminal::new(&bench);
        terminal.enter("ulimit -c 0");
        terminal.enter(&script(shell, lock));
        bench.line("steps");
        terminal.press(key);
        terminal.expect("ready> ");
        assert_eq!(code(&bench.output(&["run", "k", "true"])), 0);
        terminal.close();
        bench.read("steps")
    };
    for shell in ["bash", "sh"] {
        assert_eq!(steps(shell, &ours, CTRL_C), "step\n", "{shell}");
        for key in [CTRL_C, CTRL_BACKSLASH] {
            assert_eq!(
                steps(shell, &ours, key),
                steps(shell, "flock lock", key),
                "{shell} {key:?}"
            );
        }
    }
}

#[test]
fn ctrl_c_ends_the_script_also_if_the_command_does_not_have_the_terminal() {
    let bench = Bench::new();
    let mut terminal = Terminal::new(&bench);
    let lock = format!("{} run k --", env!("CARGO_BIN_EXE_holdtight"));
    terminal.enter(&script("bash", &lock).replace("; echo after", " > out; echo after"));
    bench.line("steps");
    terminal.press(CTRL_C);
    terminal.expect("ready> ");
    assert_eq!(bench.read("steps"), "step\n");
    terminal.close();
}

#[test]
fn one_who_waits_in_the_background_does_not_draw_over_the_prompt() {
    let bench = Bench::new();
    let script = "echo > up; while [ ! -e go ]; do sleep 0.02; done";
    let holder = bench.start(&["run", "k", "--", "sh", "-c", script]);
    bench.line("up");
    let mut terminal = Terminal::new(&bench);
    terminal.enter("$H run k -- touch done &");
    // What it prints is not what was typed.
    terminal.enter("sleep 1; echo ty''ped");
    let drawn = terminal.expect("typed\r\n");
    assert!(!drawn.contains("waiting for"), "{drawn:?}");
    terminal.enter("fg");
    terminal.expect("waiting for \"k\"");
    std::fs::write(bench.path("go"), "").unwrap();
    eventually("the command", || bench.path("done").exists());
    assert_eq!(code(&holder.finish()), 0);
    terminal.close();
}

#[test]
fn a_terminal_that_says_it_has_no_columns_shows_the_holder_all_the_same() {
    let bench = Bench::new();
    let held = bench.output(&["acquire", "k", "--ttl", "1h", "--reason", "a reason that is seen"]);
    assert_eq!(code(&held), 0);
    let mut terminal = Terminal::new(&bench);
    terminal.enter("stty cols 0");
    terminal.expect("ready> ");
    terminal.enter("$H run k -- true");
    terminal.expect("held by pid ");
    terminal.press(CTRL_C);
    terminal.expect("ready> ");
    terminal.close();
}
