//! Turns README.md and every page of docs/ into a module whose documentation it is, so that rustdoc
//! compiles their Rust examples. Generated, so that a new page cannot be forgotten.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = Path::new(&env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?).join("..");
    let docs = root.join("docs");
    println!("cargo::rerun-if-changed={}", root.join("README.md").display());
    println!("cargo::rerun-if-changed={}", docs.display());

    let mut pages = Vec::new();
    if root.join("README.md").is_file() {
        pages.push(root.join("README.md"));
    }
    if docs.is_dir() {
        find(&docs, &mut pages)?;
    }
    pages.sort();

    let mut code = String::new();
    for (number, page) in pages.iter().enumerate() {
        let stem = page.file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
        let name: String =
            stem.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        // The number keeps two pages of one name apart.
        let path = page.to_str().ok_or_else(|| io::Error::other("a path that is no text"))?;
        writeln!(code, "#[doc = include_str!({path:?})]\npub mod {name}_{number} {{}}")
            .map_err(io::Error::other)?;
    }
    let out = PathBuf::from(env::var("OUT_DIR").map_err(io::Error::other)?);
    fs::write(out.join("pages.rs"), code)
}

fn find(dir: &Path, pages: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            find(&path, pages)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    Ok(())
}
