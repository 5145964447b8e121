//! What cargo says about this workspace: where it is, which packages it has, which features they
//! have.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::process::{Outcome, cargo};

/// This workspace as `cargo metadata` describes it.
#[derive(Debug)]
pub struct Workspace {
    /// The directory of the root Cargo.toml.
    pub root: PathBuf,
    /// Where cargo builds.
    pub target: PathBuf,
    /// The members, by name.
    pub packages: Vec<Package>,
    /// The oldest Rust that all members promise.
    pub rust_version: String,
}

/// One member of the workspace.
#[derive(Debug)]
pub struct Package {
    /// Its name, as `-p` takes it.
    pub name: String,
    /// Its features without `default`, sorted.
    pub features: Vec<String>,
    /// Whether it has a library whose documentation examples are tests.
    pub doctests: bool,
    /// Whether others can depend on it.
    pub published: bool,
    /// The files in which its libraries and programs begin.
    pub roots: Vec<PathBuf>,
}

impl Workspace {
    /// Asks cargo. Needs no network, since dependencies are left out.
    ///
    /// # Errors
    /// cargo could not be run, or its answer was not understood.
    pub fn load() -> Outcome<Self> {
        let output = cargo()
            .args(["metadata", "--format-version", "1", "--no-deps"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .map_err(|error| format!("cargo metadata could not start: {error}"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("cargo metadata failed: {}", said.trim()));
        }
        let json = serde_json::from_slice(&output.stdout)
            .map_err(|error| format!("cargo metadata printed no JSON: {error}"))?;
        Self::parse(&json).ok_or_else(|| "cargo metadata answers in an unknown form".to_owned())
    }

    /// The member called `name`.
    pub fn package(&self, name: &str) -> Option<&Package> {
        self.packages.iter().find(|package| package.name == name)
    }

    /// The names of the members that others can depend on.
    pub(crate) fn published(&self) -> impl Iterator<Item = &str> {
        self.packages
            .iter()
            .filter(|package| package.published)
            .map(|package| package.name.as_str())
    }

    /// Where tools that only our tests need are installed.
    pub(crate) fn tools(&self) -> PathBuf {
        self.target.join("tools")
    }

    fn parse(json: &Value) -> Option<Self> {
        let path = |name: &str| Some(Path::new(json.get(name)?.as_str()?).to_owned());
        let packages = json.get("packages")?.as_array()?;
        let mut packages = packages.iter().map(Package::parse).collect::<Option<Vec<_>>>()?;
        packages.sort_by(|a, b| a.name.cmp(&b.name));
        let rust_version = json["packages"][0]["rust_version"].as_str()?.to_owned();
        let (root, target) = (path("workspace_root")?, path("target_directory")?);
        Some(Self { root, target, packages, rust_version })
    }
}

impl Package {
    fn parse(json: &Value) -> Option<Self> {
        let features = json.get("features")?.as_object()?.keys();
        let mut features: Vec<String> =
            features.filter(|name| *name != "default").cloned().collect();
        features.sort();
        let targets = json.get("targets")?.as_array()?;
        let doctests = targets.iter().any(|target| target["doctest"] == Value::Bool(true));
        // Without limits cargo says null; `publish = false` is an empty list of registries.
        let published = json["publish"].as_array().is_none_or(|list| !list.is_empty());
        let name = json.get("name")?.as_str()?.to_owned();
        let product = |target: &&Value| {
            let kinds = target["kind"].as_array();
            kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind == "lib" || kind == "bin"))
        };
        let roots = targets.iter().filter(product);
        let roots = roots.filter_map(|target| Some(PathBuf::from(target["src_path"].as_str()?)));
        let roots = roots.collect();
        Some(Self { name, features, doctests, published, roots })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_workspace_is_read() {
        let workspace = Workspace::load().unwrap();
        assert!(workspace.root.join("xtask/Cargo.toml").is_file());
        assert!(workspace.package("xtask").is_some());
        assert!(workspace.package("holdtight-core").unwrap().doctests);
        assert_eq!(workspace.rust_version, env!("CARGO_PKG_RUST_VERSION"));
    }

    #[test]
    fn features_are_sorted_and_default_is_left_out() {
        let json = serde_json::json!({
            "name": "a", "targets": [{"doctest": false}],
            "features": {"tls": [], "default": ["tls"], "metrics": ["dep:metrics"]},
        });
        let package = Package::parse(&json).unwrap();
        assert_eq!(package.features, ["metrics", "tls"]);
        assert!(!package.doctests);
    }
}
