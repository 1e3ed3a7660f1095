//! A host with an `epoll` loop of its own: the pair's eventfd is one descriptor among others.
//!
//! `cargo run -p moonring-examples --bin epoll`

use std::error::Error;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use moonring::store::{MemoryOptions, MemoryStore};
use moonring::{
    Done, Engine, Pair, Region, RegionOptions, Shutdown, SlotClass, SlotPool, Submission,
};

const REQUESTS: u64 = 1000;
/// Which descriptor it was, in epoll's own words.
const REQUEST: u64 = 1;
const RING: u64 = 2;

fn watch(epoll: &OwnedFd, fd: &impl AsRawFd, token: u64) -> io::Result<()> {
    let events = (libc::EPOLLIN | libc::EPOLLET) as u32;
    let mut event = libc::epoll_event { events, u64: token };
    let (add, fd) = (libc::EPOLL_CTL_ADD, fd.as_raw_fd());
    // SAFETY: two open descriptors and a readable event.
    match unsafe { libc::epoll_ctl(epoll.as_raw_fd(), add, fd, &mut event) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How many requests have come: all of them, since the descriptor tells of changes only.
fn arrived(requests: &mut PipeReader) -> io::Result<u64> {
    let (mut bytes, mut arrived) = ([0; 256], 0);
    loop {
        match requests.read(&mut bytes) {
            Ok(0) => return Ok(arrived),
            Ok(n) => arrived += n as u64,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(arrived),
            Err(error) => return Err(error),
        }
    }
}

/// Clients of the host, who send it a byte per request.
fn clients(mut pipe: PipeWriter) -> io::Result<()> {
    for _ in 0..REQUESTS / 50 {
        pipe.write_all(&[1; 50])?;
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

struct Host {
    pair: Pair,
    slots: SlotPool,
    /// Requests that wait for a credit.
    waiting: u64,
    next: u64,
    read: u64,
}

impl Host {
    /// Starts what can be started: each request stores an object, and reads it when that is done.
    fn start(&mut self) -> Result<(), Box<dyn Error>> {
        while self.waiting > 0 && self.pair.credits() > 0 {
            let mut slot = self.slots.lend(8).ok_or("fewer slots than credits")?;
            slot.copy_from_slice(&self.next.to_le_bytes());
            let key = format!("request-{}", self.next);
            let op = Submission::store(&key, slot).user_data(self.next);
            self.pair.submit(op).map_err(|refused| refused.reason)?;
            self.next += 1;
            self.waiting -= 1;
        }
        Ok(())
    }

    /// Reaps until nothing is left and the next completion will signal.
    fn reap(&mut self) -> Result<(), Box<dyn Error>> {
        loop {
            while let Some(completion) = self.pair.poll() {
                let request = completion.user_data;
                match (completion.result?, completion.slot) {
                    (Done::Store(_), Some(slot)) => {
                        let key = format!("request-{request}");
                        let op = Submission::retrieve(&key, slot).user_data(request);
                        self.pair.submit(op).map_err(|refused| refused.reason)?;
                    }
                    (Done::Retrieved(8), Some(slot)) => {
                        self.read += u64::from(slot[..] == request.to_le_bytes())
                    }
                    (done, _) => return Err(format!("{done:?} of request {request}").into()),
                }
            }
            self.start()?;
            if self.pair.arm() {
                return Ok(());
            }
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let region = Region::allocate(RegionOptions::new(1 << 20))?;
    let (size, count) = (64, 64);
    let slots = region.slot_pool(&[SlotClass { size, count }])?;
    let store = MemoryStore::new(MemoryOptions::default())?;
    let engine = Engine::builder(Arc::new(store)).region(region).start()?;
    let (mut requests, writer) = io::pipe()?;
    // SAFETY: a flag of a descriptor that is open.
    unsafe { libc::fcntl(requests.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    // SAFETY: a new descriptor, that nobody else has.
    let epoll = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
    let pair = engine.pair(64)?;
    watch(&epoll, &requests, REQUEST)?;
    watch(&epoll, &pair.event_fd()?, RING)?;
    let (waiting, next, read) = (0, 0, 0);
    let mut host = Host {
        pair,
        slots,
        waiting,
        next,
        read,
    };
    let clients = std::thread::spawn(|| clients(writer));
    let mut sleeps = 0;
    host.reap()?; // Arms it for the first time.
    while host.read < REQUESTS {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
        // SAFETY: four writable events.
        let n = unsafe { libc::epoll_wait(epoll.as_raw_fd(), events.as_mut_ptr(), 4, 10_000) };
        if n <= 0 {
            return Err(format!("nothing happened: {}", io::Error::last_os_error()).into());
        }
        sleeps += 1;
        for event in &events[..n as usize] {
            if event.u64 == REQUEST {
                host.waiting += arrived(&mut requests)?;
            }
        }
        // Also after a request: it starts ops, which must be armed for.
        host.reap()?;
    }
    clients.join().map_err(|_| "the clients panicked")??;
    println!("{} requests served, slept {sleeps} times", host.read);
    drop(host);
    engine.shutdown(Shutdown::Drain, Duration::from_secs(5))?;
    Ok(())
}
