//! Links the unwinder of GCC into the command where that is at hand, instead of having it loaded at
//! every start.
//!
//! A run starts three copies of the command one after the other, and without loading this library
//! each was ready a tenth of a millisecond earlier. Where it is not found, or another system is
//! built for, all is as Rust does it.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let is_here = variable("HOST") == variable("TARGET");
    let is_gnu = variable("TARGET").ends_with("-linux-gnu");
    let is_static = variable("CARGO_CFG_TARGET_FEATURE").split(',').any(|one| one == "crt-static");
    if !is_here || !is_gnu || is_static || !has_archive("libgcc_eh.a") || !has_archive("libgcc.a") {
        return;
    }
    // Rust asks for the library by its name, so what is found first under that name is what is
    // linked.
    let place = PathBuf::from(variable("OUT_DIR"));
    let script = "INPUT(-l:libgcc_eh.a -l:libgcc.a)\n";
    if std::fs::write(place.join("libgcc_s.so"), script).is_ok() {
        println!("cargo::rustc-link-search=native={}", place.display());
    }
}

/// Whether the compiler that links has this archive; it then answers with a whole path.
fn has_archive(name: &str) -> bool {
    let asked = Command::new("cc").arg(format!("-print-file-name={name}")).output();
    asked.is_ok_and(|told| Path::new(String::from_utf8_lossy(&told.stdout).trim()).is_absolute())
}
