//! The contract suite on the stand-in for Mooncake, opened as a library: through the shim's extensions, and through Mooncake's
//! own C interface alone.

mod contract;
mod standin;

use std::time::Duration;

use contract::About;
use moonring::store::Store;
use standin::{Kind, Master, StandIn};

fn keeps_the_contract(name: &str, kind: Kind, protocol: &str) {
    let Some(library) = StandIn::compile(kind) else {
        return;
    };
    let master = Master::listen();
    let config = master.config(&format!(r#""protocol": "{protocol}""#));
    let rdma = protocol == "rdma";
    // The region of an engine that is not there.
    let region = [0u8; 64];
    let options = library.options().region(region.as_ptr(), region.len());
    let store = moonring::store::MooncakeStore::open(&config, &options).expect("it opens");
    let let_pass = |by: Duration| library.pass_ms(by.as_millis() as i64);
    let ran = contract::run(
        &store,
        &About {
            name,
            prefix: "contract",
            tells_stored: false,
            leases: true,
            lease: Duration::from_secs(10),
            let_pass: &let_pass,
            tells_object_len: false,
            // Over tcp a failed registration is a warning.
            checks_registration: rdma,
        },
    );
    assert!(
        ran.checks >= 19 && ran.comparisons >= 400,
        "{name}: {ran:?}"
    );
    assert_eq!(library.clients(), 1);
    store.close();
    assert_eq!(library.clients(), 0, "torn down");
}

#[test]
fn the_stand_in_behind_the_shim_keeps_the_contract() {
    keeps_the_contract("stand-in, shim", Kind::Store, "tcp");
}

#[test]
fn the_stand_in_over_rdma_keeps_the_contract() {
    keeps_the_contract("stand-in, shim, rdma", Kind::Store, "rdma");
}

#[test]
fn the_stand_in_behind_the_official_functions_keeps_the_contract() {
    keeps_the_contract("stand-in, C interface", Kind::Official, "tcp");
}
