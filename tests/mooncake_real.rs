//! The contract suite on a real Mooncake: a master and a storage node as `tools/mooncake up` starts them, whose JSON stands in
//! `MOONRING_TEST_L2_ADAPTER`. Real transfers, over tcp, from another process.

mod contract;
mod standin;

use std::time::Duration;

use contract::About;
use moonring::L2Adapter;
use moonring::store::{self, OpenOptions};

/// The JSON; `None`, said aloud: there is none.
fn adapter() -> Option<L2Adapter> {
    let Ok(json) = std::env::var("MOONRING_TEST_L2_ADAPTER") else {
        assert!(
            !standin::required("mooncake"),
            "a real Mooncake is required: MOONRING_TEST_L2_ADAPTER=$(tools/mooncake up)"
        );
        println!("SKIPPED: no real Mooncake in MOONRING_TEST_L2_ADAPTER");
        return None;
    };
    Some(L2Adapter::parse(&json).expect("the JSON of tools/mooncake up"))
}

#[test]
fn a_real_mooncake_keeps_the_contract() {
    let Some(adapter) = adapter() else { return };
    let options = OpenOptions::new(&adapter.engine);
    let opened = store::open_with(&adapter.store, &options).expect("it opens");
    println!("version: {:?}", opened.store.version());
    let about = About {
        name: "mooncake, two processes",
        prefix: &format!("contract-{}", std::process::id()),
        tells_stored: false,
        leases: true,
        // Mooncake's default, and what its clock may be late.
        lease: Duration::from_millis(10_500),
        let_pass: &std::thread::sleep,
        tells_object_len: false,
        // Over tcp a failed registration is a warning.
        checks_registration: false,
    };
    let ran = contract::run(&*opened.store, &about);
    assert!(ran.checks >= 19 && ran.comparisons >= 400, "{ran:?}");
    opened.store.close();
}
