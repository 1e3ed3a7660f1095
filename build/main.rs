//! Generates the declarations of Mooncake's functions where that was asked for (feature `bindgen`), and compiles the shim of
//! a linked build (`BUILD_MOONCAKE`).

mod bindings;

fn main() {
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rustc-check-cfg=cfg(mooncake_linked)");
    bindings::generate();
}
