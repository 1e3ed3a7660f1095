//! docs/errors.md has each status of the C interface: in its own table, or as an error of an op of the same name.

use std::collections::BTreeSet;

const PAGE: &str = include_str!("../../docs/errors.md");
const HEADER: &str = include_str!("../include/moonring.h");

/// The first cell of each row below a heading.
fn rows(heading: &str) -> BTreeSet<&'static str> {
    let (_, section) = PAGE.split_once(&format!("\n## {heading}\n")).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let lines = section.lines().filter(|line| line.starts_with("| `"));
    lines
        .map(|line| {
            let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
            assert!(
                cells.len() == 4 && cells.iter().all(|cell| !cell.is_empty()),
                "{line}"
            );
            cells[0].trim_matches('`')
        })
        .collect()
}

/// `MOONRING_NO_SPACE` as `NoSpace`.
fn camel(status: &str) -> String {
    let words = status.trim_start_matches("MOONRING_").split('_');
    words
        .map(|word| word[..1].to_owned() + &word[1..].to_lowercase())
        .collect()
}

#[test]
fn each_status_has_a_row() {
    // The enum alone has negative values.
    let statuses = HEADER.lines().filter_map(|line| {
        let (name, value) = line.trim().split_once(" = -")?;
        let number = value
            .trim_end_matches(',')
            .chars()
            .all(|c| c.is_ascii_digit());
        (number && name.starts_with("MOONRING_")).then_some(name)
    });
    let statuses: BTreeSet<_> = statuses.collect();
    assert!(statuses.len() > 40, "{statuses:?}");
    let (own, ops) = (rows("Statuses of the C interface"), rows("OpError"));
    for status in &statuses {
        assert!(
            own.contains(status) || ops.contains(camel(status).as_str()),
            "docs/errors.md does not have {status}"
        );
    }
    let gone: Vec<_> = own.difference(&statuses).collect();
    assert!(gone.is_empty(), "{gone:?} are no statuses");
}
