//! Configurations: any text is refused with the field that is wrong, or accepted and then means what it prints as.

use moonring::L2Adapter;

/// Takes any bytes as the JSON of an adapter.
///
/// # Panics
/// Where a promise of the configuration is broken.
pub fn check(bytes: &[u8]) {
    // Not UTF-8: no JSON either, and the interface takes none.
    let text = String::from_utf8_lossy(bytes);
    let adapter = match L2Adapter::parse(&text) {
        Ok(adapter) => adapter,
        Err(error) => {
            assert!(!error.field().is_empty(), "{text}: no field in {error}");
            assert!(!error.reason().is_empty(), "{text}: no reason in {error}");
            assert!(error.to_string().starts_with(error.field()));
            // The whole is named only where it is no object (or has a member of that name).
            let object = serde_json::from_str::<serde_json::Map<_, serde_json::Value>>(&text);
            let whole = error.field() == "json" && object.is_ok_and(|o| !o.contains_key("json"));
            assert!(!whole, "{text}: {error}");
            return;
        }
    };
    let valid = adapter.engine.validate();
    assert_eq!(valid, Ok(()), "{text} was accepted");
    let printed = adapter.effective().to_string();
    let again = match L2Adapter::parse(&printed) {
        Ok(again) => again,
        Err(error) => panic!("{text} prints as {printed}, which is refused: {error}"),
    };
    assert_eq!(again.effective().to_string(), printed);
    assert_eq!(again.store, adapter.store);
    assert_eq!(again.engine, again.engine.effective());
    assert_eq!(again.engine.effective(), {
        let mut engine = adapter.engine.effective();
        if !engine.has_shared_pool() {
            // What has no effect is not printed.
            engine.num_workers = again.engine.num_workers;
        }
        engine
    });
    assert_eq!(again.warnings(), &[] as &[String], "{printed}");
}
