//! The contract suite on what a linked build has linked in: the stand-in for Mooncake (`tools/check-linked`).

#[cfg(mooncake_linked)]
mod contract;
#[cfg(mooncake_linked)]
mod standin;

#[cfg(not(mooncake_linked))]
#[test]
fn the_linked_store_keeps_the_contract() {
    println!("SKIPPED: no Mooncake is linked in; tools/check-linked builds with the stand-in");
}

#[cfg(mooncake_linked)]
mod linked {
    use std::ffi::{CString, c_char};
    use std::time::Duration;

    use libloading::os::unix::Library;
    use moonring::OpError;
    use moonring::store::mooncake::MooncakeLibrary;
    use moonring::store::{MooncakeStore, OpenOptions, Store, direct};

    use crate::contract::{self, About};
    use crate::standin::Master;

    /// Tells the stand-in what to do wrong; it is in this process under its own name.
    fn tell(fault: &str) {
        let fault = CString::new(fault).unwrap();
        // SAFETY: the type is that in the stand-in's header.
        unsafe {
            let tell = Library::this().get::<unsafe extern "C" fn(*const c_char)>(b"standin_tell");
            tell.expect("a stand-in was linked in")(fault.as_ptr());
        }
    }

    fn pass(by: Duration) {
        // SAFETY: as above.
        unsafe {
            let pass = Library::this().get::<unsafe extern "C" fn(i64)>(b"standin_pass_ms");
            pass.expect("a stand-in was linked in")(by.as_millis() as i64);
        }
    }

    #[test]
    fn the_linked_store_keeps_the_contract() {
        assert_eq!(
            MooncakeLibrary::find(None).expect("linked").path,
            "linked in"
        );
        let master = Master::listen();
        let config = master.config(r#""tenant_id": "any key is taken""#);
        let store = MooncakeStore::open(&config, &OpenOptions::default()).expect("it opens");
        let about = About {
            name: "stand-in, linked",
            prefix: "contract",
            tells_stored: false,
            leases: true,
            lease: Duration::from_secs(10),
            let_pass: &pass,
            tells_object_len: false,
            checks_registration: false,
        };
        let ran = contract::run(&store, &about);
        assert!(ran.checks >= 19 && ran.comparisons >= 400, "{ran:?}");
        for fault in ["throw", "throw int", "short"] {
            tell(fault);
            let got = direct::exists(&store, &[b"a", b"b"]).expect("a list");
            assert_eq!(got, [Err(OpError::StoreInternal); 2], "{fault}");
        }
        tell("");
        store.close();
    }
}
