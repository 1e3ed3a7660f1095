//! The Rust of README.md and docs/embedding.md is what is compiled and run here, word for word.

use std::error::Error;

/// Without comments and what is blank.
fn words(code: &str) -> String {
    let lines = code
        .lines()
        .map(|line| line.split("//").next().unwrap_or(line));
    lines
        .flat_map(str::split_whitespace)
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn the_pages_show_what_is_here() {
    let here = words(include_str!("docs_snippets.rs"));
    let pages = [
        include_str!("../README.md"),
        include_str!("../docs/embedding.md"),
    ];
    let mut found = 0;
    for page in pages {
        for block in page.split("\n```rust\n").skip(1) {
            let block = block.split("\n```").next().unwrap_or(block);
            assert!(
                here.contains(&words(block)),
                "not in tests/docs_snippets.rs:\n{block}"
            );
            found += 1;
        }
    }
    assert_eq!(found, 4);
}

#[test]
#[rustfmt::skip]
fn readme() -> Result<(), Box<dyn Error>> {
    use std::sync::Arc;

    use moonring::store::{MemoryOptions, MemoryStore};
    use moonring::{Engine, Region, RegionOptions, SlotClass, Submission};

    // A store in the process; docs/embedding.md opens a Mooncake from LMCache's JSON.
    let store = Arc::new(MemoryStore::new(MemoryOptions::default())?);
    let region = Region::allocate(RegionOptions::new(64 << 20))?;
    let slots = region.slot_pool(&[SlotClass { size: 1 << 20, count: 32 }])?;
    let engine = Engine::builder(store).region(region).start()?;
    let keys = ["model@0@0@1f", "model@0@0@2e"];

    // A hot thread: rings of its own. A refused op comes back whole, with the reason.
    let mut pair = engine.pair(256)?;
    let mut batch = pair.batch();
    for (i, key) in keys.iter().enumerate() {
        batch.push(Submission::lookup(key).user_data(i as u64)).map_err(|refused| refused.reason)?;
    }
    batch.publish();
    pair.wait(keys.len(), None)?;
    for done in pair.completions() {
        println!("{}: {:?}", keys[done.user_data as usize], done.result);
    }

    // A task: futures that need no runtime.
    let client = engine.client();
    let slot = slots.lend(1 << 20).ok_or("all slots are lent")?;
    moonring::block_on(async {
        let hits = client.lookup_prefix(&keys).await.len;
        let got = client.retrieve(keys[0], slot).await;
        println!("{hits} are there; {:?}, and the slot again: {}", got.result, got.slot.is_some());
    });
    Ok(())
}

#[test]
#[rustfmt::skip]
fn the_order_of_things() -> Result<(), Box<dyn Error>> {
    let json = r#"{"type": "memory"}"#;
    let (size, count) = (1 << 20, 32);
    fn serve(engine: &Engine, slots: &moonring::SlotPool) -> Result<(), Box<dyn Error>> {
        assert_eq!(slots.total(), 32);
        Ok(engine.pair(8).map(drop)?)
    }
    use std::time::Duration;
    use moonring::store::{self, OpenOptions};
    use moonring::{Engine, L2Adapter, Region, RegionOptions, Shutdown, SlotClass};

    let adapter = L2Adapter::parse(json)?;                           // 1 configuration: the field is named if it is wrong
    let region = Region::allocate(RegionOptions::new(64 << 20))?;    // 2 memory, or `Region::wrap` for yours
    let slots = region.slot_pool(&[SlotClass { size, count }])?;     // 3 slots of it, or raw spans
    let options = OpenOptions::new(&adapter.engine).region(region.base().as_ptr(), region.len());
    let store = store::open_with(&adapter.store, &options)?.store;   // 4 the store; over rdma it needs the region
    let mut builder = Engine::builder(store).region(region);
    builder = builder.warnings(adapter.warnings().to_vec());         // 5 what the JSON said and has no effect
    let engine = builder.config(adapter.engine).start()?;            // 6 workers
    for warning in &engine.start_report().warnings {                 // 7 read them once; they are `tracing` events, too
        eprintln!("{warning}");
    }
    serve(&engine, &slots)?;
    engine.shutdown(Shutdown::Drain, Duration::from_secs(10))?;      // 8 before the process ends
    Ok(())
}

#[test]
#[rustfmt::skip]
fn a_pair() -> Result<(), Box<dyn Error>> {
    use std::sync::Arc;
    use std::time::Duration;
    use moonring::store::{MemoryOptions, MemoryStore};
    use moonring::{Engine, Submission};
    let store = Arc::new(MemoryStore::new(MemoryOptions::default())?);
    let engine = Engine::builder(store).start()?;
    let mut pair = engine.pair(8)?;
    let key = "model@0@0@1f";
    let mut batch = pair.batch();                    // places in the rings, filled in place
    let pushed = batch.push(Submission::lookup(key).user_data(7));
    let _ticket = pushed.map_err(|refused| refused.reason)?;
    batch.publish();                                 // one publication; dropping it publishes, too
    pair.wait(1, Some(Duration::from_secs(1)))?;     // or poll, or the eventfd
    for done in pair.completions() {                 // any order
        println!("{} {:?}", done.user_data, done.result);
    }
    Ok(())
}

#[test]
#[rustfmt::skip]
fn a_pair_for_all_tasks_of_a_thread() -> Result<(), Box<dyn Error>> {
    use std::sync::Arc;
    use moonring::store::{MemoryOptions, MemoryStore};
    use moonring::{Engine, LocalClient, Region, RegionOptions, SlotClass, Submission};
    let store = Arc::new(MemoryStore::new(MemoryOptions::default())?);
    let region = Region::allocate(RegionOptions::new(1 << 20))?;
    let slots = region.slot_pool(&[SlotClass { size: 4096, count: 1 }])?;
    let engine = Engine::builder(store).region(region).start()?;
    let (key, slot) = ("model@0@0@1f", slots.lend(4096).ok_or("no slot")?);
    let tasks = tokio::task::LocalSet::new();
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(tasks.run_until(async {
        let (client, reactor) = LocalClient::new(engine.pair(256)?);
        tokio::task::spawn_local(reactor);                                  // once, on the thread
        let got = client.submit(Submission::retrieve(key, slot)).await;     // in any task of the thread
        println!("{:?} {}", got.result, got.slot.is_some());
        Ok(())
    }))
}

/// What stands side by side for who comes from LMCache: both columns are a configuration that is taken, and mean the same.
#[test]
fn both_columns_of_from_lmcache_are_taken() {
    let page = include_str!("../docs/from-lmcache.md");
    let block = page.split("```text\n").nth(1).unwrap();
    let lines: Vec<_> = block.split("\n```").next().unwrap().lines().collect();
    let right = lines[0].find("Moonring").unwrap();
    let column = |pick: fn(&str, usize) -> &str| {
        let cells: Vec<_> = lines.iter().map(|line| pick(line, right).trim()).collect();
        let text = cells.join("\n");
        let (_, json) = text.split_once("{\n").unwrap();
        let (json, _) = json.rsplit_once("\n}").unwrap();
        moonring::L2Adapter::parse(&format!("{{{json}}}")).unwrap()
    };
    let theirs = column(|line, at| &line[..at.min(line.len())]).effective();
    let ours = column(|line, at| &line[at.min(line.len())..]).effective();
    let keys = [&theirs, &ours].map(|json| json.as_object().unwrap().keys());
    let differ = keys
        .into_iter()
        .flatten()
        .filter(|key| theirs.get(*key) != ours.get(*key));
    let differ: std::collections::BTreeSet<_> = differ.map(String::as_str).collect();
    assert_eq!(differ, ["moonring"].into());
    assert_eq!(ours["moonring"]["timeout_ms"]["retrieve"], 500);
}
