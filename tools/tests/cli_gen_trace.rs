//! `moonring gen-trace`, and the trace that the project carries.

mod support;

use std::fs;

use moonring_tools::oracle::{self, Counts};
use moonring_tools::table;
use moonring_tools::trace::Trace;
use support::{folder, moonring, root, sample};

#[test]
fn the_sample_is_what_the_command_in_its_readme_writes() {
    let readme = fs::read_to_string(root().join("traces/README.md")).expect("the README");
    let line = readme.lines().find(|line| line.starts_with("moonring "));
    let args: Vec<_> = line.expect("a command").split(' ').skip(1).collect();
    let [gen_trace, requests, r, seed, s, out, file] = args[..] else {
        panic!("another command: {args:?}");
    };
    assert_eq!((out, file), ("--out", "traces/sample.jsonl"));
    let mine = folder("sample_again").join("sample.jsonl");
    let run = moonring([
        gen_trace,
        requests,
        r,
        seed,
        s,
        out,
        &mine.to_string_lossy(),
    ]);
    assert_eq!(run.code, Some(0), "{run:?}");
    let carried = fs::read(sample()).expect("the sample");
    assert!(
        carried == fs::read(&mine).expect("the new one"),
        "it differs"
    );
    assert!(carried.len() < 200_000, "{} bytes", carried.len());
}

#[test]
fn the_readme_of_the_sample_tells_its_true_counts() {
    let trace = Trace::load(&sample(), None);
    assert_eq!(trace.error, None);
    let Counts {
        requests,
        blocks,
        hit_blocks,
        stored_blocks,
        ..
    } = oracle::count(&trace.requests);
    let [requests, blocks, hits, stored] =
        [requests, blocks, hit_blocks, stored_blocks].map(table::count);
    let want = format!(
        "has {requests} requests, {blocks} blocks, of which {hits} are served from the prefix and {stored} are stored."
    );
    let readme = fs::read_to_string(root().join("traces/README.md")).expect("the README");
    assert!(readme.contains(&want), "not there: {want}");
}

#[test]
fn without_a_file_it_goes_to_standard_output() {
    let run = moonring(["gen-trace", "--requests", "400"]);
    assert_eq!(run.code, Some(0));
    assert_eq!(run.stderr, "");
    assert_eq!(run.stdout.lines().count(), 400);
}

#[test]
fn bad_input_is_told_in_one_line_and_ends_with_2() {
    let run = moonring(["gen-trace", "--out", "/no/such/folder/x"]);
    assert_eq!(run.code, Some(2));
    assert_eq!(
        run.stderr,
        "moonring: /no/such/folder/x: No such file or directory (os error 2)\n"
    );
    assert_eq!(moonring(["gen-trace", "--requests", "0"]).code, Some(2));
}
