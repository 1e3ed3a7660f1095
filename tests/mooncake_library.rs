//! Finding Mooncake's library: what is missing is named, with what to do.

mod standin;

use std::path::Path;
use std::process::{Command, Output};

use moonring::store::mooncake::MooncakeLibrary;
use moonring::store::{MooncakeError, MooncakeStore, OpenOptions, Store};
use standin::{Kind, Master, StandIn, config};

#[test]
fn a_missing_symbol_is_named_with_its_library() {
    let Some(library) = StandIn::compile(Kind::FaultyWithoutBatchGet) else {
        return;
    };
    let path = library.path.display().to_string();
    let error = library.open(&Master::listen().config("")).unwrap_err();
    let wanted = MooncakeError::MissingSymbol {
        path: path.clone(),
        origin: "the library option",
        symbol: "mooncake_store_batch_get_into",
    };
    assert_eq!(error, wanted);
    let text = error.to_string();
    assert!(
        text.contains(&path)
            && text.contains("mooncake_store_batch_get_into")
            && text.contains("WITH_STORE_C_SHARED")
    );
}

#[test]
fn what_is_no_library_is_named_with_the_loaders_reason() {
    let no_library = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let missing = Path::new("/nowhere/libmooncake_store.so");
    for (path, reason) in [
        (no_library.as_path(), "invalid ELF header"),
        (missing, "No such file"),
    ] {
        let options = OpenOptions::default().library(path);
        let error = MooncakeStore::open(&config(r#""local_hostname": "h""#), &options).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, MooncakeError::Library { .. }), "{text}");
        assert!(
            text.contains(&path.display().to_string()) && text.contains(reason),
            "{text}"
        );
        assert!(text.contains("libmooncake_store.so"), "{text}");
        assert_eq!(MooncakeLibrary::find(Some(path)).unwrap_err(), error);
    }
}

/// Runs a test of this file, marked `ignore`, in a process of its own with these variables and no others of ours.
fn child(test: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("a test"));
    command.args(["--exact", test, "--ignored", "--nocapture"]);
    for name in [
        "MOONCAKE_STORE_LIBRARY",
        "MOONRING_MOONCAKE_BRIDGE",
        "XDG_DATA_HOME",
        "MOONRING_MOONCAKE_DIR",
        "MC_MAX_MR_SIZE",
    ] {
        command.env_remove(name);
    }
    command
        .envs(variables.iter().copied())
        .output()
        .expect("it runs")
}

#[track_caller]
fn passes(test: &str, variables: &[(&str, &str)]) {
    let output = child(test, variables);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
#[ignore = "run by no_library_at_all_says_what_to_do"]
fn child_without_a_library() {
    let error = MooncakeStore::open(&config(r#""local_hostname": "h""#), &OpenOptions::default())
        .unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, MooncakeError::NoLibrary { .. }), "{text}");
    for part in [
        "libmooncake_store.so on the loader's path",
        "/nowhere/moonring/libmoonring_wheel_bridge.so",
        "MOONCAKE_STORE_LIBRARY",
        "tools/mooncake setup",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn no_library_at_all_says_what_to_do() {
    if cfg!(mooncake_linked) {
        println!("SKIPPED: a Mooncake is linked in");
        return;
    }
    passes("child_without_a_library", &[("XDG_DATA_HOME", "/nowhere")]);
}

#[test]
#[ignore = "run by the_environment_names_the_library"]
fn child_with_a_library() {
    let store = MooncakeStore::open(&Master::listen().config(""), &OpenOptions::default());
    let store = store.expect("it opens");
    assert_eq!(store.library().path, std::env::var("TEST_WANTS").unwrap());
    let max = std::env::var("MC_MAX_MR_SIZE").ok().map(|_| 65_536);
    assert_eq!(store.capabilities().max_registration, max);
}

#[test]
fn the_environment_names_the_library() {
    let Some(library) = StandIn::compile(Kind::Store) else {
        return;
    };
    let path = library.path.to_str().unwrap();
    let wants = ("TEST_WANTS", path);
    passes(
        "child_with_a_library",
        &[wants, ("MOONCAKE_STORE_LIBRARY", path)],
    );
    passes(
        "child_with_a_library",
        &[wants, ("MOONRING_MOONCAKE_BRIDGE", path)],
    );
    passes(
        "child_with_a_library",
        &[
            wants,
            ("MOONCAKE_STORE_LIBRARY", path),
            ("MC_MAX_MR_SIZE", "65536"),
        ],
    );
    // What was asked for and is not there is not replaced by another.
    let output = child(
        "child_with_a_library",
        &[
            wants,
            ("MOONCAKE_STORE_LIBRARY", "/nowhere.so"),
            ("MOONRING_MOONCAKE_BRIDGE", path),
        ],
    );
    assert!(!output.status.success());
}

#[test]
fn a_bridge_that_is_set_up_is_found() {
    if cfg!(mooncake_linked) {
        println!("SKIPPED: a Mooncake is linked in");
        return;
    }
    let Some(library) = StandIn::compile(Kind::Store) else {
        return;
    };
    let data = library.path.with_extension("data");
    let bridge = data.join("moonring/libmoonring_wheel_bridge.so");
    std::fs::create_dir_all(bridge.parent().unwrap()).unwrap();
    std::fs::copy(&library.path, &bridge).unwrap();
    let (data, bridge) = (data.to_str().unwrap(), bridge.to_str().unwrap());
    passes(
        "child_with_a_library",
        &[("XDG_DATA_HOME", data), ("TEST_WANTS", bridge)],
    );
    std::fs::remove_dir_all(data).unwrap();
}
