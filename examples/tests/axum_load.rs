//! The axum example under load: 64 requests at a time, from a trace. Bytes go between slots and store without a copy, but for
//! folds, which are counted; and a signal drains.

#[allow(dead_code)] // its `main`
#[path = "../src/bin/axum_server.rs"]
mod axum_server;
mod common;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum_server::{App, BLOCK, SLOTS};
use common::{Server, one_run::one_run_of, watchdog};
use moonring::store::{
    CallResult, DeleteBatch, LookupBatch, MemoryOptions, MemoryStore, RetrieveBatch, Store,
    StoreBatch,
};
use moonring::{Engine, OpKind, Region, RegionOptions, Shutdown, SlotClass};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

const CONCURRENT: usize = 64;

/// A buffer that the store was given.
struct Seen {
    op: OpKind,
    key: Vec<u8>,
    address: usize,
    len: usize,
}

/// A memory store that writes down where the bytes of each key were taken from and put to.
struct Spy {
    inner: MemoryStore,
    seen: Mutex<Vec<Seen>>,
}

impl Spy {
    fn see(&self, op: OpKind, key: &[u8], address: usize, len: usize) {
        let key = key.to_vec();
        let seen = Seen {
            op,
            key,
            address,
            len,
        };
        self.seen.lock().unwrap().push(seen);
    }
}

impl Store for Spy {
    fn name(&self) -> &str {
        "spy"
    }

    fn batch_exists(&self, batch: &mut LookupBatch<'_>) -> CallResult {
        self.inner.batch_exists(batch)
    }

    fn batch_get_into(&self, batch: &mut RetrieveBatch<'_>) -> CallResult {
        for i in 0..batch.len() {
            self.see(
                OpKind::Retrieve,
                batch.key(i),
                batch.bufs()[i].addr(),
                batch.buf_lens()[i],
            );
        }
        self.inner.batch_get_into(batch)
    }

    fn batch_put_from(&self, batch: &mut StoreBatch<'_>) -> CallResult {
        for i in 0..batch.len() {
            self.see(
                OpKind::Store,
                batch.key(i),
                batch.bufs()[i].addr(),
                batch.buf_lens()[i],
            );
        }
        self.inner.batch_put_from(batch)
    }

    fn batch_remove(&self, batch: &mut DeleteBatch<'_>) -> CallResult {
        self.inner.batch_remove(batch)
    }
}

/// The ids of the first requests of the published trace where it is there, else of the project's own.
fn trace(requests: usize) -> Vec<Vec<u64>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let folder = std::env::var_os("MOONRING_TRACES");
    let folder = folder.map_or_else(|| root.join("../shared/traces"), PathBuf::from);
    let published = folder.join("conversation_trace.jsonl");
    let text = std::fs::read_to_string(published);
    let text = text
        .or_else(|_| std::fs::read_to_string(root.join("traces/sample.jsonl")))
        .unwrap();
    let lines = text.lines().take(requests).map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let ids = line["hash_ids"].as_array().unwrap().iter();
        ids.map(|id| id.as_u64().unwrap()).collect()
    });
    lines.collect()
}

/// What the server's sum must be: each of a block's words is its id.
fn sum(ids: &[u64]) -> u64 {
    ids.iter().map(|id| id * (BLOCK as u64 / 8)).sum()
}

/// One request on an open connection. Blocks that were read, and that were computed.
async fn ask(stream: &mut BufReader<TcpStream>, ids: &[u64]) -> (u64, u64) {
    let body = serde_json::json!({ "hash_ids": ids }).to_string();
    let len = body.len();
    let head = format!(
        "POST /prefill HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {len}\r\n\r\n"
    );
    stream
        .write_all(format!("{head}{body}").as_bytes())
        .await
        .unwrap();
    let (mut status, mut len) = (String::new(), 0);
    stream.read_line(&mut status).await.unwrap();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.unwrap();
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            len = value.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; len];
    stream.read_exact(&mut body).await.unwrap();
    assert!(
        status.starts_with("HTTP/1.1 200"),
        "{status}{}",
        String::from_utf8_lossy(&body)
    );
    let [reused, computed, total]: [u64; 3] = serde_json::from_slice(&body).unwrap();
    assert_eq!(reused + computed, ids.len() as u64);
    assert_eq!(total, sum(ids), "wrong bytes");
    (reused, computed)
}

/// All requests, so many at a time. How many blocks were read, and how many computed.
async fn load(address: &str, requests: Vec<Vec<u64>>) -> (u64, u64) {
    let requests = Arc::new(Mutex::new(requests.into_iter()));
    let clients: Vec<_> = (0..CONCURRENT)
        .map(|_| {
            let (address, requests) = (address.to_owned(), Arc::clone(&requests));
            tokio::spawn(async move {
                let mut stream = BufReader::new(TcpStream::connect(address).await.unwrap());
                let (mut reused, mut computed) = (0, 0);
                loop {
                    let next = requests.lock().unwrap().next();
                    let Some(ids) = next else {
                        return (reused, computed);
                    };
                    let (r, c) = ask(&mut stream, &ids).await;
                    reused += r;
                    computed += c;
                }
            })
        })
        .collect();
    let (mut reused, mut computed) = (0, 0);
    for client in clients {
        let (r, c) = client.await.unwrap();
        reused += r;
        computed += c;
    }
    (reused, computed)
}

/// The server in this process, on a store that spies.
struct Host {
    engine: Engine,
    spy: Arc<Spy>,
    /// Addresses of all slots.
    slots: HashSet<usize>,
    address: String,
    end: oneshot::Sender<()>,
    serving: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Host {
    async fn start() -> Self {
        let inner = MemoryStore::new(MemoryOptions::default()).unwrap();
        let seen = Mutex::default();
        let spy = Arc::new(Spy { inner, seen });
        let region = Region::allocate(RegionOptions::new(SLOTS * BLOCK)).unwrap();
        let (size, count) = (BLOCK, SLOTS);
        let pool = region.slot_pool(&[SlotClass { size, count }]).unwrap();
        let lent: Vec<_> = std::iter::from_fn(|| pool.lend(BLOCK)).collect();
        let slots: HashSet<_> = lent.iter().map(|slot| slot.as_ptr().addr()).collect();
        assert_eq!(slots.len(), SLOTS);
        drop(lent);
        let engine = Engine::builder(spy.clone()).region(region).start().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (end, ended) = oneshot::channel();
        let app = App::new(&engine, pool);
        let serving = tokio::spawn(app.serve(listener, async { ended.await.unwrap() }));
        Self {
            engine,
            spy,
            slots,
            address,
            end,
            serving,
        }
    }

    /// Ends it. Bytes that the store took and gave, and bytes that were copied for folds, by kind of op.
    async fn end(self) -> (HashMap<OpKind, u64>, u64) {
        self.end.send(()).unwrap();
        self.serving.await.unwrap().unwrap();
        let stats = self.engine.stats();
        let shutdown = self
            .engine
            .shutdown(Shutdown::Drain, Duration::from_secs(10))
            .unwrap();
        assert_eq!((shutdown.in_flight, stats.engine.in_flight), (0, 0));
        let mut bytes = HashMap::new();
        for seen in self.spy.seen.lock().unwrap().iter() {
            let Seen {
                op,
                key,
                address,
                len,
            } = seen;
            // The store was given a slot itself, as long as a block.
            assert!(
                self.slots.contains(address),
                "{op} of {key:?}: {address:#x} is no slot"
            );
            assert_eq!(*len, BLOCK);
            *bytes.entry(*op).or_default() += BLOCK as u64;
        }
        for op in [OpKind::Store, OpKind::Retrieve] {
            assert_eq!(
                bytes.get(&op).copied().unwrap_or(0),
                stats.lane(op).bytes,
                "{op}"
            );
        }
        let folded = stats.lanes.iter().map(|lane| lane.folded_bytes).sum();
        (bytes, folded)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn distinct_keys_are_never_copied() {
    let _watchdog = watchdog();
    let host = Host::start().await;
    // Each request has ids of its own, and comes twice: first all are computed, then all are read.
    let mut requests = trace(200);
    for (request, ids) in requests.iter_mut().enumerate() {
        let ids = ids.iter_mut().enumerate();
        ids.for_each(|(at, id)| *id = ((request as u64) << 20) + at as u64);
    }
    let blocks = requests.iter().map(Vec::len).sum::<usize>() as u64;
    assert_eq!(load(&host.address, requests.clone()).await, (0, blocks));
    assert_eq!(load(&host.address, requests).await, (blocks, 0));
    let (bytes, folded) = host.end().await;
    assert_eq!(folded, 0);
    let all = blocks * BLOCK as u64;
    assert_eq!(
        bytes,
        HashMap::from([(OpKind::Store, all), (OpKind::Retrieve, all)])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_copied_for_equal_keys_is_counted() {
    let _watchdog = watchdog();
    let host = Host::start().await;
    // Warm, so that all requests read the same blocks at the same time.
    let requests = trace(300);
    load(&host.address, requests.clone()).await;
    let before = host.engine.stats();
    let (reused, computed) = load(&host.address, requests).await;
    assert_eq!(computed, 0);
    let after = host.engine.stats().since(&before);
    let retrieved = after.lane(OpKind::Retrieve);
    // Each byte that a handler got came from the store into its slot, or by a copy that is counted.
    assert_eq!(
        retrieved.bytes + retrieved.folded_bytes,
        reused * BLOCK as u64
    );
    assert_eq!(retrieved.folded_bytes, retrieved.folded_ops * BLOCK as u64);
    println!(
        "{reused} blocks read, {} of them copied from one that was read then",
        retrieved.folded_ops
    );
    host.end().await;
}

/// Requests that are under way when the signal comes are answered, with the right bytes; then it exits with 0. That they are under
/// way by then is up to the machine, too.
#[tokio::main]
async fn drains_on(signal: i32) -> Result<(), String> {
    let slow = r#"{"type": "sim", "delay_us": 600000}"#;
    let mut server = Server::start(env!("CARGO_BIN_EXE_axum_server"), &["127.0.0.1:0", slow]);
    let clients: Vec<_> = (0..CONCURRENT as u64)
        .map(|client| {
            let address = server.address.clone();
            tokio::spawn(async move {
                let mut stream = BufReader::new(TcpStream::connect(address).await.unwrap());
                ask(
                    &mut stream,
                    &[client * 10, client * 10 + 1, client * 10 + 2],
                )
                .await
            })
        })
        .collect();
    // All have sent their request, and no lookup has returned: a call takes longer than this.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let too_late = clients.iter().any(|client| client.is_finished());
    server.signal(signal);
    let mut answers = Vec::new();
    for client in clients {
        answers.push(client.await);
    }
    let (status, said) = server.end();
    assert_eq!(status.code(), Some(0), "{said}");
    if too_late {
        return Err("an answer came before the signal".into());
    }
    for answer in answers {
        assert_eq!(answer.map_err(|failed| failed.to_string())?, (0, 3));
    }
    // Three lookups and three stores each.
    assert_eq!(said, format!("drained: {} ops, 0 left\n", CONCURRENT * 6));
    Ok(())
}

#[test]
fn an_interrupt_drains_and_exits_with_0() {
    let _watchdog = watchdog();
    one_run_of(5, || drains_on(libc::SIGINT));
}

#[test]
fn a_sigterm_drains_and_exits_with_0() {
    let _watchdog = watchdog();
    one_run_of(5, || drains_on(libc::SIGTERM));
}
