//! The declarations of `seam.h`, for the feature `bindgen`.

/// Nothing to do: the committed declarations are used.
#[cfg(not(feature = "bindgen"))]
pub fn generate() {}

/// Writes `seam.rs` to the output folder. `tools/check-bindings` compares it with the committed one.
#[cfg(feature = "bindgen")]
pub fn generate() {
    const HEADER: &str = "src/store/mooncake/seam.h";
    println!("cargo::rerun-if-changed={HEADER}");
    let bindings = bindgen::Builder::default()
        .header(HEADER)
        .allowlist_file(".*seam\\.h")
        .raw_line(
            "// The declarations of seam.h. Written by tools/check-bindings --write; do not edit.",
        )
        .raw_line("")
        .disable_header_comment()
        .use_core()
        .merge_extern_blocks(true)
        // `usize` for `size_t`, and no types of the machine's C library.
        .size_t_is_usize(true)
        .blocklist_type("size_t|u?int[0-9]+_t|__.*")
        .formatter(bindgen::Formatter::Prettyplease)
        .generate();
    let out = std::env::var_os("OUT_DIR").map(std::path::PathBuf::from);
    let (Ok(bindings), Some(out)) = (bindings, out) else {
        println!("cargo::error={HEADER}: no declarations could be generated (is libclang there?)");
        return;
    };
    if let Err(error) = bindings.write_to_file(out.join("seam.rs")) {
        println!("cargo::error=writing the declarations of {HEADER} failed: {error}");
    }
}
