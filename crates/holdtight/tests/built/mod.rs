//! The examples as programs. A test run builds them only as tests, or not at all, so they are built
//! here, once.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// Where the example `name` is, built from this tree.
pub(crate) fn example(name: &str) -> PathBuf {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let build = ["build", "--quiet", "--package", "holdtight", "--examples"];
        let output = Command::new(cargo)
            .args(build)
            .args(["--features", "metrics"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    });
    let tests = std::env::current_exe().unwrap();
    tests.parent().unwrap().parent().unwrap().join("examples").join(name)
}
