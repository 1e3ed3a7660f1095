//! Feature `spans`: a `tracing` span per store call, with what was asked and how it ended.

mod common;

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use moonring::store::SimOptions;
use moonring::store::sim::When;
use moonring::{Engine, OpError, OpKind, Shutdown};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Writes down the fields of spans, as `name=value`, and whether they were left.
#[derive(Clone, Default)]
struct Log {
    next: Arc<AtomicU64>,
    lines: Arc<Mutex<Vec<String>>>,
}

struct Fields<'a>(&'a mut String);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.push_str(&format!(" {}={value:?}", field.name()));
    }
}

impl Log {
    fn index(id: &Id) -> usize {
        id.into_u64() as usize - 1
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span()
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut line = span.metadata().name().to_owned();
        span.record(&mut Fields(&mut line));
        let mut lines = self.lines.lock().unwrap();
        lines.push(line);
        assert_eq!(
            self.next.fetch_add(1, Ordering::Relaxed) + 1,
            lines.len() as u64
        );
        Id::from_u64(lines.len() as u64)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        values.record(&mut Fields(
            &mut self.lines.lock().unwrap()[Self::index(span)],
        ));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}

    fn exit(&self, span: &Id) {
        self.lines.lock().unwrap()[Self::index(span)].push_str(" left");
    }
}

#[test]
fn each_store_call_is_a_span() {
    let _watchdog = common::watchdog();
    let log = Log::default();
    tracing::subscriber::set_global_default(log.clone()).unwrap();
    let store = common::sim(SimOptions {
        panics: When::calls_of(OpKind::Delete, [1]),
        ..SimOptions::default()
    });
    let (region, pool) = common::slots(64, 4);
    let engine = Engine::builder(store).region(region).start().unwrap();
    let client = engine.client();
    let client = client.blocking();
    let slot = pool.lend(48).unwrap();
    let slot = client.store("key", slot).slot.unwrap();
    assert_eq!(client.lookup("key"), Ok(true));
    assert_eq!(client.retrieve("key", slot).result, Ok(48));
    let failed = client.delete("key").unwrap_err();
    assert_eq!(failed, OpError::StorePanicked.into());
    let limit = std::time::Duration::from_secs(10);
    engine.shutdown(Shutdown::Drain, limit).unwrap();
    let lines = log.lines.lock().unwrap();
    assert_eq!(
        *lines,
        [
            "store_call op=\"store\" keys=1 bytes=48 answered=1 left",
            "store_call op=\"lookup\" keys=1 answered=1 left",
            "store_call op=\"retrieve\" keys=1 bytes=48 answered=1 left",
            "store_call op=\"delete\" keys=1 error=\"store_panicked\" left",
        ]
    );
}
