//! Generates the declarations of Mooncake's functions where that was asked for (feature `bindgen`), and compiles the shim of
//! a linked build (`BUILD_MOONCAKE`).

mod bindings;
mod plan;

use plan::{Linked, Plan};

fn main() {
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rustc-check-cfg=cfg(mooncake_linked)");
    for variable in plan::VARIABLES {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    bindings::generate();
    let linked =
        plan::plan(|name| std::env::var(name).ok(), |path| path.is_file()).and_then(|plan| {
            match plan {
                Plan::Off(warning) => {
                    if let Some(warning) = warning {
                        println!("cargo::warning={warning}");
                    }
                    Ok(())
                }
                Plan::On(linked) => link(&linked),
            }
        });
    if let Err(sentence) = linked {
        println!("cargo::error={sentence}");
    }
}

/// Compiles the shim, and says what is to be linked: the shim first, as the linker looks for what is still missing.
fn link(linked: &Linked) -> Result<(), String> {
    const SHIM: &str = "src/store/mooncake/shim.cpp";
    println!("cargo::rerun-if-changed={SHIM}");
    println!("cargo::rerun-if-changed=src/store/mooncake/seam.h");
    let mut shim = cc::Build::new();
    shim.cpp(true)
        .std("c++20")
        .file(SHIM)
        .includes(&linked.includes);
    for flag in &linked.flags {
        shim.flag(flag);
    }
    shim.try_compile("moonring_mooncake_shim")
        .map_err(|error| {
            let error = error.to_string().replace('\n', " ");
            format!("the shim over Mooncake's client did not compile: {error}")
        })?;
    for folder in &linked.lib_dirs {
        println!("cargo::rustc-link-search=native={}", folder.display());
    }
    for library in &linked.libs {
        println!("cargo::rustc-link-lib={library}");
    }
    println!("cargo::rustc-cfg=mooncake_linked");
    Ok(())
}
