//! `include/moonring.h` is what the source says. `MOONRING_WRITE_HEADER=1 cargo test -p moonring-c --test header` writes it anew.

use std::path::Path;

#[test]
fn the_header_is_that_of_the_source() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    // With the modules that it names.
    let builder = cbindgen::Builder::new()
        .with_config(config)
        .with_src(root.join("src/lib.rs"));
    let mut header = Vec::new();
    builder.generate().unwrap().write(&mut header);
    let header = String::from_utf8(header).unwrap();
    let path = root.join("include/moonring.h");
    if std::env::var_os("MOONRING_WRITE_HEADER").is_some() {
        std::fs::write(&path, &header).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap();
    assert!(
        committed == header,
        "include/moonring.h is not that of the source; MOONRING_WRITE_HEADER=1 writes it anew"
    );
    for name in [
        "moonring_open",
        "moonring_submit",
        "moonring_poll",
        "MOONRING_NOT_FOUND = -100",
    ] {
        assert!(header.contains(name), "no {name}");
    }
}
