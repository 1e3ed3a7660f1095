//! Every link of a Markdown file leads to a file that is there, and to a heading that it has. Offline: no address is asked.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

fn markdown(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            markdown(&path, found);
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
}

/// The lines that are no code blocks.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut code = false;
    let lines = text.lines().enumerate();
    lines.filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

/// The line without what stands in backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("``")
}

/// Headings as anchors: small letters, blanks as hyphens, no punctuation; the second of equal ones with `-1`.
fn anchors(text: &str) -> Vec<String> {
    let mut seen = HashMap::new();
    let mut found = Vec::new();
    for (_, line) in prose(text) {
        let Some(heading) = line.strip_prefix('#') else {
            continue;
        };
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading
            .chars()
            .filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
        let anchor = kept.collect::<String>().replace(' ', "-");
        let before = seen.entry(anchor.clone()).or_insert(0);
        found.push(match *before {
            0 => anchor,
            n => format!("{anchor}-{n}"),
        });
        *before += 1;
    }
    found
}

/// The targets of `[text](target)`.
fn links(line: &str) -> Vec<String> {
    let line = without_code(line);
    let targets = line.split("](").skip(1);
    targets
        .filter_map(|rest| Some(rest.split_once(')')?.0.to_owned()))
        .collect()
}

/// What is wrong with a link in a file, if anything.
fn broken(file: &Path, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = link
        .split_once('#')
        .map_or((link, None), |(p, a)| (p, Some(a)));
    let target = match path {
        "" => file.to_owned(),
        path => file.parent().unwrap().join(path),
    };
    if !target.exists() {
        return Some(format!("no file {path}"));
    }
    let anchor = anchor?;
    let text = std::fs::read_to_string(&target).unwrap_or_default();
    (!anchors(&text).iter().any(|a| a == anchor)).then(|| format!("no heading #{anchor}"))
}

#[test]
fn every_link_leads_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    markdown(root, &mut files);
    assert!(files.len() >= 8, "{files:?}");
    let (mut checked, mut wrong) = (0, Vec::new());
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        for (at, line) in prose(&text) {
            for link in links(line) {
                checked += 1;
                if let Some(why) = broken(file, &link) {
                    let file = file.strip_prefix(root).unwrap().display();
                    wrong.push(format!("{file}:{}: {link}: {why}", at + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(checked > 20, "only {checked} links found");
}

/// Nobody finds a page that nothing leads to.
#[test]
fn the_readme_or_a_page_of_it_leads_to_every_page() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages = Vec::new();
    markdown(&root.join("docs"), &mut pages);
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    for page in pages {
        let name = page.strip_prefix(root).unwrap().display().to_string();
        assert!(
            readme.contains(&format!("({name})")),
            "README.md does not lead to {name}"
        );
    }
}

#[test]
fn broken_links_are_found() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    for wrong in ["docs/nowhere.md", "#nowhere", "CHANGELOG.md#nowhere"] {
        assert!(broken(&readme, wrong).is_some(), "{wrong}");
    }
    for right in [
        "docs/cli.md",
        "#two-commands",
        "CONTRIBUTING.md#contributing",
        "src/lib.rs",
    ] {
        assert_eq!(broken(&readme, right), None);
    }
    assert_eq!(links("a [b](c.md#d), `[x](y)` and [e](f)"), ["c.md#d", "f"]);
    assert_eq!(
        anchors("# A `b_c`, d?\n```\n# no\n```\n## A\n## A"),
        ["a-b_c-d", "a", "a-1"]
    );
}
