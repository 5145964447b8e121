//! Every published package on its own and every feature of it alone: what compiles only because a
//! neighbour turned a feature on is found here, not by the user who depends on one crate.

use crate::process::{Outcome, cargo, output, run};
use crate::workspace::{Package, Workspace};

pub(crate) fn check(workspace: &Workspace) -> Outcome {
    for package in workspace.packages.iter().filter(|package| package.published) {
        for selection in selections(package) {
            let clippy = ["clippy", "--locked", "--quiet", "--package", &package.name];
            run(cargo().args(clippy).args(selection).args(["--", "-D", "warnings"]))?;
        }
    }
    without_tls(workspace)
}

/// The package that users depend on, of which TLS can be switched off.
const FACADE: &str = "holdtight";

/// Whoever switches TLS off builds none, with whichever store.
fn without_tls(workspace: &Workspace) -> Outcome {
    let facade = workspace.packages.iter().find(|package| package.name == FACADE);
    let features = facade.map_or(&[][..], |package| &package.features);
    for feature in features.iter().filter(|feature| !matches!(&***feature, "default" | "tls")) {
        let tree =
            ["tree", "--locked", "--package", FACADE, "--edges", "normal", "--prefix", "none"];
        let only = ["--no-default-features", "--features", feature];
        let told = output(cargo().args(tree).args(only))?;
        if let Some(line) = told.lines().find(|line| line.starts_with("rustls ")) {
            return Err(format!("{FACADE} with {feature} alone depends on {line}"));
        }
    }
    Ok(())
}

/// The flags of each build: nothing on, each feature alone, the default, everything on.
fn selections(package: &Package) -> Vec<Vec<String>> {
    let mut builds = vec![Vec::new()];
    if package.features.is_empty() {
        return builds;
    }
    let none = "--no-default-features".to_owned();
    builds.push(vec![none.clone()]);
    for feature in &package.features {
        builds.push(vec![none.clone(), "--features".to_owned(), feature.clone()]);
    }
    builds.push(vec!["--all-features".to_owned()]);
    builds
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(features: &[&str]) -> Package {
        let features = features.iter().map(ToString::to_string).collect();
        Package {
            name: "a".to_owned(),
            features,
            doctests: false,
            published: true,
            roots: Vec::new(),
        }
    }

    #[test]
    fn a_package_without_features_is_built_once() {
        assert_eq!(selections(&package(&[])), [Vec::<String>::new()]);
    }

    #[test]
    fn each_feature_is_built_alone() {
        let built: Vec<String> =
            selections(&package(&["file", "redis"])).iter().map(|flags| flags.join(" ")).collect();
        assert_eq!(
            built,
            [
                "",
                "--no-default-features",
                "--no-default-features --features file",
                "--no-default-features --features redis",
                "--all-features",
            ]
        );
    }
}
