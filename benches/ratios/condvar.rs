//! The condvar engine: how such an engine is usually built, LMCache's C++ connector base among them. A queue under a mutex and a
//! condition variable for the lane; a batch is cut into tiles over the workers; completions lie in a queue under a mutex, and
//! an eventfd is written when it was not signalled yet.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use crate::measure::{Side, pin};

struct Batch {
    id: u64,
    keys: usize,
    tiles_left: AtomicUsize,
    failed: AtomicBool,
}

struct Tile {
    batch: Arc<Batch>,
    keys: Vec<String>,
    bufs: Vec<(*mut u8, usize)>,
}

// SAFETY: the pointers are only carried.
unsafe impl Send for Tile {}

struct Done {
    id: u64,
    keys: usize,
    ok: bool,
}

#[derive(Default)]
struct Queue {
    tiles: VecDeque<Tile>,
    stopped: bool,
}

trait Calls: Send + Sync {
    fn exists(&self, keys: &[String], found: &mut [i64]);
}

struct Null;

impl Calls for Null {
    fn exists(&self, keys: &[String], found: &mut [i64]) {
        found[..keys.len()].fill(1);
    }
}

struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
    done: Mutex<Vec<Done>>,
    event: OwnedFd,
    signalled: AtomicBool,
    store: Box<dyn Calls>,
}

impl Shared {
    fn work(&self) {
        let mut found = Vec::new();
        loop {
            let mut queue = self.queue.lock().unwrap();
            let tile = loop {
                if let Some(tile) = queue.tiles.pop_front() {
                    break tile;
                }
                if queue.stopped {
                    return;
                }
                queue = self.wake.wait(queue).unwrap();
            };
            drop(queue);
            found.clear();
            found.resize(tile.keys.len(), 0);
            self.store.exists(&tile.keys, &mut found);
            std::hint::black_box(&tile.bufs);
            let batch = &tile.batch;
            if found.iter().any(|is| *is < 0) {
                batch.failed.store(true, Ordering::Relaxed);
            }
            if batch.tiles_left.fetch_sub(1, Ordering::AcqRel) == 1 {
                let ok = !batch.failed.load(Ordering::Relaxed);
                let (id, keys) = (batch.id, batch.keys);
                self.done.lock().unwrap().push(Done { id, keys, ok });
                if !self.signalled.swap(true, Ordering::AcqRel) {
                    let one = 1u64;
                    // SAFETY: eight readable bytes.
                    unsafe { libc::write(self.event.as_raw_fd(), (&raw const one).cast(), 8) };
                }
            }
        }
    }
}

pub struct CondvarEngine<'k> {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    keys: &'k [String],
    next: usize,
    room: usize,
    batches: u64,
    taken: Vec<Done>,
}

impl<'k> CondvarEngine<'k> {
    pub fn new(keys: &'k [String], depth: usize, workers: usize, core: Option<usize>) -> Self {
        // SAFETY: no pointers.
        let event = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        assert!(event >= 0);
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            wake: Condvar::new(),
            done: Mutex::default(),
            // SAFETY: it was just opened, and is nobody else's.
            event: unsafe { OwnedFd::from_raw_fd(event) },
            signalled: AtomicBool::new(false),
            store: std::hint::black_box(Box::new(Null)),
        });
        let worker = |_| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || {
                pin(core);
                shared.work();
            })
        };
        Self {
            workers: (0..workers).map(worker).collect(),
            shared,
            keys,
            next: 0,
            room: depth,
            batches: 0,
            taken: Vec::new(),
        }
    }

    /// Sleeps until the eventfd is readable.
    pub fn wait(&self) {
        let mut poll = libc::pollfd {
            fd: self.shared.event.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one valid entry.
        unsafe { libc::poll(&mut poll, 1, -1) };
    }
}

impl Side for CondvarEngine<'_> {
    fn room(&self) -> usize {
        self.room
    }

    fn submit(&mut self, n: usize) {
        let tiles = self.workers.len().min(n);
        let batch = Arc::new(Batch {
            id: self.batches,
            keys: n,
            tiles_left: AtomicUsize::new(tiles),
            failed: AtomicBool::new(false),
        });
        self.batches += 1;
        for nth in 0..tiles {
            let len = n * (nth + 1) / tiles - n * nth / tiles;
            let keys =
                (self.next..self.next + len).map(|at| self.keys[at % self.keys.len()].clone());
            let tile = Tile {
                batch: Arc::clone(&batch),
                keys: keys.collect(),
                bufs: vec![(std::ptr::null_mut(), 0); len],
            };
            self.next += len;
            self.shared.queue.lock().unwrap().tiles.push_back(tile);
            self.shared.wake.notify_one();
        }
        self.room -= n;
    }

    fn reap(&mut self) -> usize {
        // The host's loop would see the descriptor; this is cheaper.
        if !self.shared.signalled.load(Ordering::Acquire) {
            return 0;
        }
        let mut count = 0u64;
        // SAFETY: eight writable bytes.
        unsafe { libc::read(self.shared.event.as_raw_fd(), (&raw mut count).cast(), 8) };
        self.shared.signalled.store(false, Ordering::Release);
        std::mem::swap(&mut self.taken, &mut *self.shared.done.lock().unwrap());
        let mut keys = 0;
        for done in self.taken.drain(..) {
            std::hint::black_box(done.id);
            assert!(done.ok);
            keys += done.keys;
        }
        self.room += keys;
        keys
    }
}

impl Drop for CondvarEngine<'_> {
    fn drop(&mut self) {
        self.shared.queue.lock().unwrap().stopped = true;
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}
