//! The bare sketch: what a path from a caller to a store and back costs that promises nothing. Two rtrb rings and a worker that spins;
//! no tickets, no folding, no statistics, no sleep, one producer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::measure::{Side, pin};

/// Most ops of one call.
const BATCH: usize = 128;

/// An op. The key lies in it, as the caller's may be gone when the call comes.
#[derive(Clone, Copy)]
#[repr(C)]
struct Descriptor {
    user_data: u64,
    buf: *mut u8,
    len: u32,
    key_len: u16,
    op: u16,
    key: [u8; 104],
}

const _: () = assert!(size_of::<Descriptor>() == 128);

// SAFETY: the pointer is only carried.
unsafe impl Send for Descriptor {}

/// What the sketch calls.
trait Calls: Send + Sync {
    fn exists(&self, keys: &[*const u8], key_lens: &[usize], found: &mut [i64]);
}

struct Null;

impl Calls for Null {
    fn exists(&self, keys: &[*const u8], _: &[usize], found: &mut [i64]) {
        found[..keys.len()].fill(1);
    }
}

pub struct Sketch<'k> {
    keys: &'k [String],
    next: usize,
    room: usize,
    submissions: rtrb::Producer<Descriptor>,
    completions: rtrb::Consumer<(u64, i64)>,
    stop: Arc<AtomicBool>,
    worker: Option<JoinHandle<()>>,
}

impl<'k> Sketch<'k> {
    pub fn new(keys: &'k [String], depth: usize, core: Option<usize>) -> Self {
        let (submissions, taken) = rtrb::RingBuffer::new(depth);
        let (done, completions) = rtrb::RingBuffer::new(depth);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let store: Box<dyn Calls> = std::hint::black_box(Box::new(Null));
        let worker = std::thread::spawn(move || {
            pin(core);
            work(taken, done, &*store, &stopped);
        });
        Self {
            keys,
            next: 0,
            room: depth,
            submissions,
            completions,
            stop,
            worker: Some(worker),
        }
    }
}

fn work(
    mut taken: rtrb::Consumer<Descriptor>,
    mut done: rtrb::Producer<(u64, i64)>,
    store: &dyn Calls,
    stop: &AtomicBool,
) {
    let mut batch: Vec<Descriptor> = Vec::with_capacity(BATCH);
    let mut keys: Vec<*const u8> = Vec::with_capacity(BATCH);
    let mut key_lens: Vec<usize> = Vec::with_capacity(BATCH);
    let mut found = [0; BATCH];
    loop {
        let n = taken.slots().min(BATCH);
        if n == 0 {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            std::hint::spin_loop();
            continue;
        }
        let chunk = taken.read_chunk(n).expect("so many are there");
        let (first, second) = chunk.as_slices();
        batch.clear();
        batch.extend_from_slice(first);
        batch.extend_from_slice(second);
        chunk.commit_all();
        keys.clear();
        key_lens.clear();
        for op in &batch {
            keys.push(op.key.as_ptr());
            key_lens.push(usize::from(op.key_len));
        }
        store.exists(&keys, &key_lens, &mut found);
        let chunk = done
            .write_chunk_uninit(n)
            .expect("room for all that is in flight");
        chunk.fill_from_iter(batch.iter().zip(found).map(|(op, is)| (op.user_data, is)));
    }
}

fn descriptor(keys: &[String], at: usize) -> Descriptor {
    let key = keys[at % keys.len()].as_bytes();
    let mut op = Descriptor {
        user_data: at as u64,
        buf: std::ptr::null_mut(),
        len: 0,
        key_len: key.len() as u16,
        op: 0,
        key: [0; 104],
    };
    op.key[..key.len()].copy_from_slice(key);
    op
}

impl Side for Sketch<'_> {
    fn room(&self) -> usize {
        self.room
    }

    fn submit(&mut self, n: usize) {
        let (keys, next) = (self.keys, self.next);
        if n == 1 {
            let pushed = self.submissions.push(descriptor(keys, next));
            assert!(pushed.is_ok());
        } else {
            let chunk = self.submissions.write_chunk_uninit(n);
            let chunk = chunk.expect("room for all that is in flight");
            chunk.fill_from_iter((next..next + n).map(|at| descriptor(keys, at)));
        }
        self.next += n;
        self.room -= n;
    }

    fn reap(&mut self) -> usize {
        let mut n = 0;
        while let Ok((user_data, found)) = self.completions.pop() {
            std::hint::black_box(user_data);
            assert_eq!(found, 1);
            n += 1;
        }
        self.room += n;
        n
    }
}

impl Drop for Sketch<'_> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}
