//! The plots of docs/performance.md show the numbers of its tables: what stands below one or more tables was drawn from
//! them (`cargo bench --bench scale -- --draw`).

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// What each dot of a plot tells.
fn told(svg: &str) -> BTreeSet<String> {
    let titles = svg.split("<title>").skip(1);
    titles
        .filter_map(|rest| Some(rest.split_once("</title>")?.0.to_owned()))
        .collect()
}

/// What the dots of a row's plot must tell: `16: 2.820 M ops/s` and `16: 137.73 us`.
fn dots(row: &str) -> Option<[String; 2]> {
    let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
    let [x, rate, _, p99, ..] = cells[..] else {
        return None;
    };
    let is_row = x.starts_with(|c: char| c.is_ascii_digit());
    is_row.then(|| [format!("{x}: {rate} ops/s"), format!("{x}: {p99} us")])
}

#[test]
fn plots_show_what_their_tables_say() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let page = fs::read_to_string(docs.join("performance.md")).unwrap();
    let scale = page.split("\n## ").find(|part| part.starts_with("Scale\n"));
    let (mut rows, mut plots) = (BTreeSet::new(), 0);
    for line in scale.expect("the section").lines() {
        rows.extend(dots(line).into_iter().flatten());
        if let Some((_, rest)) = line.split_once("](plots/") {
            let name = rest.split_once(')').expect("a link").0;
            let svg = fs::read_to_string(docs.join("plots").join(name)).unwrap();
            let rows = std::mem::take(&mut rows);
            assert!(rows.len() > 10, "{name}: no table before it");
            assert_eq!(told(&svg), rows, "{name}");
            plots += 1;
        }
    }
    assert_eq!((plots, rows.len()), (6, 0), "each table has its plot");
}
