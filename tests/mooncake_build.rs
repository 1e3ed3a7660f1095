//! When a Mooncake is linked in, and what stops such a build: the decision of the build script, without building.

#[path = "../build/plan.rs"]
mod plan;

use std::path::{Path, PathBuf};

use plan::{Linked, Plan, VARIABLES};

/// The plan with these variables; files are there by name.
fn plan(variables: &[(&str, &str)], files: &[&str]) -> Result<Plan, String> {
    for (name, _) in variables {
        assert!(
            VARIABLES.contains(name),
            "{name} makes cargo run the script again"
        );
    }
    let variable = |name: &str| {
        let (_, value) = variables.iter().find(|(n, _)| *n == name)?;
        Some((*value).to_owned())
    };
    plan::plan(variable, |path| {
        files.iter().any(|file| path == Path::new(file))
    })
}

const INCLUDE: (&str, &str) = ("MOONCAKE_INCLUDE_DIR", "/m/include");
const LIB: (&str, &str) = ("MOONCAKE_LIB_DIR", "/m/lib");
const FILES: [&str; 2] = ["/m/include/real_client.h", "/m/lib/libmooncake_store.so"];

#[track_caller]
fn on(variables: &[(&str, &str)], files: &[&str]) -> Linked {
    match plan(variables, files) {
        Ok(Plan::On(linked)) => linked,
        other => panic!("{other:?}"),
    }
}

#[test]
fn zero_wins_over_all_and_unset_follows_the_include_folder() {
    assert_eq!(plan(&[], &[]), Ok(Plan::Off(None)));
    assert_eq!(
        plan(&[("BUILD_MOONCAKE", "0"), INCLUDE, LIB], &FILES),
        Ok(Plan::Off(None))
    );
    assert_eq!(plan(&[LIB], &FILES), Ok(Plan::Off(None)));
    assert_eq!(
        plan(&[("MOONCAKE_INCLUDE_DIR", "")], &FILES),
        Ok(Plan::Off(None))
    );
    on(&[INCLUDE, LIB], &FILES);
    on(&[("BUILD_MOONCAKE", "1"), INCLUDE, LIB], &FILES);
}

#[test]
fn any_other_value_is_off_with_a_warning() {
    for value in ["", "2", "true", "on", "ON", "yes", " 1"] {
        match plan(&[("BUILD_MOONCAKE", value), INCLUDE, LIB], &FILES) {
            Ok(Plan::Off(Some(warning))) => {
                assert!(
                    warning.contains("BUILD_MOONCAKE") && warning.contains(&format!("\"{value}\"")),
                    "{warning}"
                );
            }
            other => panic!("{value:?}: {other:?}"),
        }
    }
}

#[test]
fn a_linked_build_gets_all_folders_flags_and_libraries() {
    let linked = on(
        &[
            ("MOONCAKE_INCLUDE_DIR", "/m/include;/m/te"),
            ("MOONCAKE_LIB_DIR", "/other; /m/lib;"),
            ("MOONRING_MOONCAKE_INCLUDES", "/ylt;/json"),
            ("MOONRING_MOONCAKE_CXXFLAGS", "-fcoroutines  -DA=1"),
            ("MOONRING_MOONCAKE_LIBS", "static=transfer_engine;glog"),
        ],
        &FILES,
    );
    let paths = |list: &[&str]| list.iter().map(PathBuf::from).collect::<Vec<_>>();
    assert_eq!(
        linked.includes,
        paths(&["/m/include", "/m/te", "/ylt", "/json"])
    );
    assert_eq!(linked.lib_dirs, paths(&["/other", "/m/lib"]));
    assert_eq!(linked.flags, ["-fcoroutines", "-DA=1"]);
    assert_eq!(
        linked.libs,
        ["dylib=mooncake_store", "static=transfer_engine", "glog"]
    );
    let files = ["/m/include/real_client.h", "/m/lib/libmooncake_store.a"];
    assert_eq!(on(&[INCLUDE, LIB], &files).libs, ["static=mooncake_store"]);
}

#[test]
fn what_is_missing_stops_the_build_with_one_sentence() {
    let one = ("BUILD_MOONCAKE", "1");
    for (variables, files, parts) in [
        (
            &[one][..],
            &FILES[..],
            ["MOONCAKE_INCLUDE_DIR is not set", "real_client.h"],
        ),
        (
            &[one, INCLUDE],
            &FILES,
            ["MOONCAKE_LIB_DIR is not set", "libmooncake_store.so"],
        ),
        (
            &[INCLUDE],
            &FILES,
            ["MOONCAKE_LIB_DIR is not set", "BUILD_MOONCAKE=0"],
        ),
        (
            &[INCLUDE, LIB],
            &FILES[1..],
            ["no real_client.h in /m/include", "MOONCAKE_INCLUDE_DIR"],
        ),
        (
            &[INCLUDE, LIB],
            &FILES[..1],
            [
                "no libmooncake_store.so or libmooncake_store.a in /m/lib",
                "MOONCAKE_LIB_DIR",
            ],
        ),
    ] {
        let sentence = plan(variables, files).unwrap_err();
        assert!(!sentence.contains('\n'));
        for part in parts {
            assert!(sentence.contains(part), "{sentence}");
        }
    }
}

/// Each sentence of a build that stops, or a warning, with its cause and what to do.
#[test]
fn the_page_about_errors_has_each_sentence() {
    let page = include_str!("../docs/errors.md");
    let (_, section) = page.split_once("\n## A linked build\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let lines = section.lines().filter(|line| line.starts_with('|'));
    let mut rows: Vec<(Vec<&str>, bool)> = Vec::new();
    for line in lines.skip(2) {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        assert!(cells.len() == 4 && cells.iter().all(|cell| !cell.is_empty()));
        rows.push((cells[1].split("{}").collect(), false));
    }
    let one = ("BUILD_MOONCAKE", "1");
    for (variables, files) in [
        (&[one][..], &FILES[..]),
        (&[INCLUDE], &FILES),
        (&[INCLUDE, LIB], &FILES[1..]),
        (&[INCLUDE, LIB], &FILES[..1]),
        (&[("BUILD_MOONCAKE", "yes")], &FILES),
    ] {
        let sentence = match plan(variables, files) {
            Err(sentence) | Ok(Plan::Off(Some(sentence))) => sentence,
            other => panic!("{other:?}"),
        };
        let is_it = |(parts, _): &&mut (Vec<&str>, bool)| {
            let mut rest = sentence.as_str();
            let all = parts.iter().all(|part| match rest.find(part) {
                Some(at) => {
                    rest = &rest[at + part.len()..];
                    true
                }
                None => false,
            });
            all && sentence.starts_with(parts[0])
        };
        let row = rows.iter_mut().find(is_it);
        row.unwrap_or_else(|| panic!("no row for: {sentence}")).1 = true;
    }
    assert!(rows.iter().all(|(_, caused)| *caused), "{rows:?}");
}
