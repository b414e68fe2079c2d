//! Who may depend on whom in the family, and who may use `unsafe`.
//!
//! The rule is what makes each crate useful alone, so development dependencies count as well.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by them, in its helpers too")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

const FAMILY: [(&str, &str); 5] = [
    ("gmg", "slicescheduler-gmg"),
    ("simulator", "slicescheduler-simulator"),
    ("scheduler", "slicescheduler-scheduler"),
    ("executor", "slicescheduler-executor"),
    ("slicescheduler", "slicescheduler"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn manifest(directory: &str) -> Table {
    let path = root().join(directory).join("Cargo.toml");
    fs::read_to_string(&path).unwrap().parse().unwrap()
}

/// The packages that a manifest names in any table of dependencies, those of targets included.
fn dependencies(table: &Table, found: &mut BTreeSet<String>) {
    for (key, value) in table {
        let Value::Table(inner) = value else { continue };
        if ["dependencies", "dev-dependencies", "build-dependencies"].contains(&key.as_str()) {
            for (name, dependency) in inner {
                let package = dependency.get("package").and_then(Value::as_str);
                found.insert(package.unwrap_or(name).to_owned());
            }
        } else {
            dependencies(inner, found);
        }
    }
}

fn family_of(directory: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    dependencies(&manifest(directory), &mut found);
    found.retain(|package| FAMILY.iter().any(|(_, name)| name == package));
    found
}

#[test]
fn only_the_facade_depends_on_more_than_the_graph() {
    let graph = BTreeSet::from(["slicescheduler-gmg".to_owned()]);
    assert_eq!(family_of("gmg"), BTreeSet::new());
    for directory in ["simulator", "scheduler", "executor"] {
        assert_eq!(family_of(directory), graph, "{directory}/Cargo.toml");
    }
    assert_eq!(family_of("slicescheduler").len(), 4);
}

/// A dependency under another name would slip past a check of names.
#[test]
fn the_workspace_names_every_crate_of_the_family_by_its_own_name() {
    let workspace = manifest("");
    let table = workspace["workspace"]["dependencies"].as_table().unwrap();
    for (directory, package) in FAMILY {
        assert_eq!(manifest(directory)["package"]["name"].as_str(), Some(package));
        let dependency = &table[package];
        assert_eq!(dependency["path"].as_str(), Some(directory));
        assert!(dependency["version"].is_str(), "{package} can be published");
    }
    for (name, dependency) in table {
        let path = dependency.get("path").and_then(Value::as_str);
        assert!(path.is_none() || FAMILY.contains(&(path.unwrap(), name.as_str())), "{name} is a family crate");
        assert_eq!(dependency.get("package"), None, "{name} is renamed");
    }
}

#[test]
fn unsafe_code_is_forbidden_outside_of_the_executor() {
    for (directory, _) in FAMILY.into_iter().filter(|(directory, _)| *directory != "executor") {
        let library = fs::read_to_string(root().join(directory).join("src/lib.rs")).unwrap();
        assert!(library.lines().any(|line| line == "#![forbid(unsafe_code)]"), "{directory}/src/lib.rs");
    }
}
