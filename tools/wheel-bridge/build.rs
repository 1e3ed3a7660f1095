//! Link arguments, and the Python version that the bridge is built for.

fn main() {
    let version = pyo3_build_config::get().version();
    println!("cargo:rustc-env=BRIDGE_PYTHON={version}");
    // A libpython outside the loader's path is found again.
    pyo3_build_config::add_libpython_rpath_link_args();
    // Never unloaded: the interpreter and Mooncake's threads can't be.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
