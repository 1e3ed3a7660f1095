//! A store of another crate: objects as files of a folder. What the engine asks of one is small; merging, folding, deadlines, results and
//! statistics come from the engine.
//!
//! `cargo run -p moonring-examples --bin custom_store -- /tmp/kv-blocks`

use std::error::Error;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use moonring::store::{
    CallResult, DeleteBatch, LookupBatch, RetrieveBatch, Store, StoreBatch, StoreHealth,
};
use moonring::{Engine, OpError, Region, RegionOptions, Shutdown, SlotClass, StoreOutcome};

struct Files {
    folder: PathBuf,
}

impl Files {
    fn open(folder: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        Ok(Self { folder })
    }

    /// Keys are any bytes, file names are not.
    fn path(&self, key: &[u8]) -> PathBuf {
        let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        self.folder.join(hex)
    }

    /// Objects are immutable: the first writer wins, and nobody sees half of one.
    fn put(&self, key: &[u8], bytes: &[u8]) -> io::Result<StoreOutcome> {
        let path = self.path(key);
        // One name a thread; the link is made in one step, or not because there is one.
        let name = format!("part-{:?}", std::thread::current().id());
        let part = self.folder.join(name);
        fs::File::create(&part)?.write_all(bytes)?;
        let linked = fs::hard_link(&part, path);
        fs::remove_file(part)?;
        match linked {
            Ok(()) => Ok(StoreOutcome::Stored),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                Ok(StoreOutcome::AlreadyThere)
            }
            Err(error) => Err(error),
        }
    }
}

/// What the caller shall see of an error of the system's.
fn meaning(error: io::Error) -> OpError {
    match error.kind() {
        ErrorKind::NotFound => OpError::NotFound,
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => OpError::NoSpace,
        ErrorKind::InvalidFilename => OpError::InvalidArgument,
        // A number that the statistics tell apart.
        _ => error
            .raw_os_error()
            .map_or(OpError::StoreInternal, OpError::Store),
    }
}

impl Store for Files {
    fn name(&self) -> &str {
        "files"
    }

    fn batch_exists(&self, batch: &mut LookupBatch<'_>) -> CallResult {
        for i in 0..batch.len() {
            // An error is not "no".
            batch.set(i, fs::exists(self.path(batch.key(i))).map_err(meaning));
        }
        Ok(batch.len())
    }

    fn batch_get_into(&self, batch: &mut RetrieveBatch<'_>) -> CallResult {
        for i in 0..batch.len() {
            match fs::read(self.path(batch.key(i))) {
                // Copies into the op's buffer, if it fits.
                Ok(object) => batch.fill(i, &object),
                Err(error) => batch.set(i, Err(meaning(error))),
            }
        }
        Ok(batch.len())
    }

    fn batch_put_from(&self, batch: &mut StoreBatch<'_>) -> CallResult {
        for i in 0..batch.len() {
            let outcome = self.put(batch.key(i), batch.bytes(i));
            batch.set(i, outcome.map_err(meaning));
        }
        Ok(batch.len())
    }

    fn batch_remove(&self, batch: &mut DeleteBatch<'_>) -> CallResult {
        for i in 0..batch.len() {
            batch.set(i, fs::remove_file(self.path(batch.key(i))).map_err(meaning));
        }
        Ok(batch.len())
    }

    fn health(&self) -> StoreHealth {
        match self.folder.is_dir() {
            true => StoreHealth::Healthy,
            false => StoreHealth::Down(format!("{} is gone", self.folder.display())),
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args_os().nth(1).map_or_else(
        || std::env::temp_dir().join("moonring-files"),
        PathBuf::from,
    );
    let store = Files::open(folder)?;
    let region = Region::allocate(RegionOptions::new(1 << 20))?;
    let (size, count) = (4096, 16);
    let slots = region.slot_pool(&[SlotClass { size, count }])?;
    let engine = Engine::builder(Arc::new(store)).region(region).start()?;
    let client = engine.client();
    let calls = client.blocking();

    let keys: Vec<String> = (0..16).map(|i| format!("model@0@0@{i:x}")).collect();
    println!("{} of 16 blocks were there", calls.lookup_prefix(&keys).len);
    let mut stored = Vec::new();
    let lent = keys.iter().map_while(|key| Some((key, slots.lend(4096)?)));
    calls.store_many(lent.collect::<Vec<_>>(), &mut stored);
    let results = stored.iter().map(|returned| returned.result);
    let new = results
        .filter(|result| *result == Ok(StoreOutcome::Stored))
        .count();
    println!("{new} stored, {} not", stored.len() - new);
    let slot = stored.swap_remove(0).slot.ok_or("no slot")?;
    println!("{:?} bytes read", calls.retrieve(&keys[0], slot).result?);
    calls.delete(&keys[15])?;
    let gone = calls.delete(&keys[15]).expect_err("it is gone");
    println!("deleted twice: {gone}");
    engine.shutdown(Shutdown::Drain, Duration::from_secs(5))?;
    Ok(())
}
