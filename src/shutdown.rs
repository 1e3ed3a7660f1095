//! The end of an engine.
//!
//! ```text
//!  1 stop intake        closing = Drain | Cancel; the clients' rings are closed; everybody is woken
//!  2 workers leave      each when its lanes are drained (Cancel: what they take ends as shut down)
//!  3 at the limit       Drain becomes Cancel: workers that come back from a call end the rest
//!  4 lanes are closed   nobody comes any more: what is still queued, and what a submitter that raced with 1
//!                       publishes from now on, ends as shut down, by us or by that submitter
//!  5 calls that hang    their ops end as shut down, with MORE: see `quarantine`
//!  6 closed             every waiter is woken; eventfds stay readable; the timer ends
//!  7 release            the last to leave, this thread or a worker: unregister in reverse order, close the store
//! ```
//! Memory is unmapped when its last owner is gone: engine, pairs, clients, workers and slots all hold it. A worker in a
//! call holds all that the call uses, so nothing of it is freed or unregistered before the call returns.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Quarantined;
use crate::engine::{Closing, Engine, Shared};
use crate::lane::Group;
use crate::signals::BlockedSignals;
use crate::waker::{OpWaker, quietly};
use crate::worker;

/// What becomes of ops that are queued when the engine is shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shutdown {
    /// They are executed.
    Drain,
    /// They end as [`OpError::ShutDown`](crate::OpError::ShutDown); store calls under way are waited for.
    Cancel,
}

/// Why the engine was not shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShutdownError {
    /// The calling thread is one of the engine's workers, or is shutting it down already: it would wait for itself.
    #[error("shutdown from inside a waker or a store's call would deadlock")]
    WouldDeadlock,
    /// This is a forked child: the engine is its parent's, and goes on there.
    #[error("the engine belongs to the parent of this forked process")]
    Forked,
}

/// How an engine ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Ops that had their terminal completion since the start, those in `cancelled` included.
    pub completed: u64,
    /// Ops that ended as shut down.
    pub cancelled: u64,
    /// Ops in store calls that had not returned at the limit.
    pub in_flight: u64,
    /// Those ops: they ended as shut down (or before that, as timed out or cancelled). The
    /// memory stays mapped and registered until the calls return; of memory that the host wrapped, these spans must stay mapped until then.
    pub unreleased: Vec<Quarantined>,
    /// The workers that are in those calls, by name.
    pub stuck_workers: Vec<String>,
    /// Pieces of memory that the store did not unregister, with its reason; they are leaked.
    pub not_unregistered: Vec<String>,
    /// How long it took.
    pub took: Duration,
}

/// How long after the limit a report may wait for submitters that raced with it.
const RACERS: Duration = Duration::from_secs(1);

/// How often a waiting shutdown looks at its workers.
const LOOKS: Duration = Duration::from_millis(20);

/// How long after the limit workers that are in no call may take to leave.
const LEAVERS: Duration = Duration::from_millis(100);

pub(crate) fn shutdown(
    engine: &Arc<Shared>,
    mode: Shutdown,
    limit: Duration,
) -> Result<ShutdownReport, ShutdownError> {
    if engine.is_forked() {
        return Err(ShutdownError::Forked);
    }
    if worker::is_inside(engine) {
        return Err(ShutdownError::WouldDeadlock);
    }
    // Others wait here for the first to be done, and get its report.
    let mut ending = engine.ending.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(report) = &*ending {
        return Ok(report.clone());
    }
    // Wakers and the store's last calls run on this thread too.
    let _inside = worker::Inside::enter(engine);
    let start = Instant::now();
    engine.set_closing(match mode {
        Shutdown::Drain => Closing::Drain,
        Shutdown::Cancel => Closing::Cancel,
    });
    for queue in engine.lanes.iter().flat_map(|lane| &lane.queues) {
        queue.clients.close();
    }
    engine.groups.iter().for_each(|group| group.wake_all());
    wait_for_workers(engine, limit, |working| working == 0);
    engine.set_closing(Closing::Cancel);
    end_rest(engine);
    // Who is in no call leaves in a moment, for nothing is queued any more.
    let calls = || engine.groups.iter().map(Group::calls).sum();
    wait_for_workers(engine, LEAVERS, |working| working <= calls());
    engine.abandon_all();
    engine.set_closed();
    engine.timer.end();
    let mut wakers = Vec::new();
    for pair in engine.pairs.all() {
        pair.wake_closed(engine, &mut wakers);
    }
    wakers.into_iter().for_each(OpWaker::wake);
    engine.clients.waiting().notify_all();
    let stuck = engine
        .working
        .lock()
        .unwrap_or_else(|e| e.into_inner())
        .clone();
    // A worker that leaves from now on finds the engine closed, and releases the memory itself.
    let not_unregistered = match stuck.is_empty() {
        true => engine.release(),
        false => Vec::new(),
    };
    let mut stats = engine.stats();
    while stuck.is_empty()
        && stats.engine.in_flight > 0
        && start.elapsed() < limit.saturating_add(RACERS)
    {
        // A submitter that raced with us has published, and is about to see that it must end its ops itself.
        end_rest(engine);
        std::thread::yield_now();
        stats = engine.stats();
    }
    let unreleased = engine.quarantined();
    let report = ShutdownReport {
        completed: stats.engine.completed,
        cancelled: stats.lanes.iter().map(|lane| lane.count("shut_down")).sum(),
        in_flight: unreleased.len() as u64,
        unreleased,
        stuck_workers: stuck
            .iter()
            .filter_map(|&w| engine.report.workers.get(w).map(|w| w.name.clone()))
            .collect(),
        not_unregistered,
        took: start.elapsed(),
    };
    *ending = Some(report.clone());
    Ok(report)
}

/// Waits until it is `enough` that so many workers have not left, or the limit comes.
fn wait_for_workers(engine: &Shared, limit: Duration, enough: impl Fn(usize) -> bool) {
    let start = Instant::now();
    let mut working = engine.working.lock().unwrap_or_else(|e| e.into_inner());
    while !enough(working.len()) {
        // A call's end is not told, only a worker's: so look again soon.
        let left = limit.saturating_sub(start.elapsed()).min(LOOKS);
        if left.is_zero() {
            return;
        }
        working = match engine.left.wait_timeout(working, left) {
            Ok((working, _)) => working,
            Err(poisoned) => poisoned.into_inner().0,
        };
    }
}

/// Ends everything that is queued and that no worker will take.
fn end_rest(engine: &Shared) {
    for lane in &engine.lanes {
        lane.close();
        for pair in engine.pairs.all() {
            worker::end_queued(engine, &pair, lane.op);
        }
        // A client that claimed a place before the ring was closed publishes it in a moment.
        for queue in &lane.queues {
            while !queue.clients.is_drained() {
                if worker::end_queued_clients(engine, queue) == 0 {
                    std::thread::yield_now();
                }
            }
        }
    }
}

impl Shared {
    /// A worker leaves. The last one releases what `shutdown` could not wait for.
    pub(crate) fn worker_left(&self, worker: usize) {
        let mut working = self.working.lock().unwrap_or_else(|e| e.into_inner());
        working.retain(|&w| w != worker);
        let last = working.is_empty();
        drop(working);
        self.left.notify_all();
        if last && self.is_closed() {
            self.release();
        }
    }

    /// Whether [`release`](Self::release) is over.
    pub(crate) fn is_released(&self) -> bool {
        let released = self.released.lock().unwrap_or_else(|e| e.into_inner());
        released.is_some()
    }

    /// Unregisters the memory and closes the store, once. No store call is under way, and none comes.
    fn release(&self) -> Vec<String> {
        let mut released = self.released.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(left) = &*released {
            return left.clone();
        }
        // SAFETY: all workers have left, and only they call the store.
        let left = unsafe { self.memory.unregister(&*self.store) };
        // A panic of the store ends nothing but its own call.
        quietly(|| self.store.close());
        released.insert(left).clone()
    }
}

/// Dropping the handle: from one of its own workers, another thread does the waiting.
pub(crate) fn drop_engine(engine: &Arc<Shared>) {
    let done = shutdown(engine, Shutdown::Cancel, Engine::DROP_LIMIT);
    if matches!(done, Err(ShutdownError::WouldDeadlock)) {
        shutdown_elsewhere(engine);
    }
}

/// Shuts the engine down on a thread of its own, for a worker that can't wait for itself.
pub(crate) fn shutdown_elsewhere(engine: &Arc<Shared>) {
    let shared = Arc::clone(engine);
    let _blocked = BlockedSignals::new();
    let spawned = std::thread::Builder::new()
        .name("mr-shutdown".to_owned())
        .spawn(move || shutdown(&shared, Shutdown::Cancel, Engine::DROP_LIMIT));
    if let Err(error) = spawned {
        tracing::error!(%error, "no thread to shut the engine down; its workers go on");
    }
}
