//! The `sim` store: wraps any store, delays its calls and makes it misbehave, as told by a seed.
//!
//! # What it promises
//! - Faults strike in a share of the calls or in calls of chosen numbers ([`When`]). What a rate strikes, and which key,
//!   byte or pair is chosen, depends on the seed, the call's kind and its number among the calls of that kind: with one worker a
//!   kind, the same seed fails again in the same way. The seed is in the [report](SimReport) and in a panic's message.
//! - Every injected fault is counted, and for those that spoil bytes the [report](SimReport) has the keys. A fault
//!   that finds nothing to strike (no retrieve went well; no two objects of equal length and unequal bytes) doesn't happen
//!   and isn't counted.
//! - It sleeps where it waits, and never burns a core. (Linux adds about 50 us to a short sleep.)
//!
//! # What a call costs
//! A **delay** is a call's own: calls side by side don't slow each other down, as with something far away. The **pipe** is one for
//! all calls, of all kinds: what they put into it goes through one call after the other, as through a link or a core that they share.
//! Both have a part for each call, each key and each byte. A call is over when its part of the pipe is through, and then its delay.
//!
//! # One call
//! ```text
//!   number it - gate - delay - panic? - call error? - the wrapped store - key errors - wrong count? - spoiled bytes
//! ```
//! After a panic or a call error the wrapped store was not called; after a key error or a wrong count what was asked has
//! happened, as when an answer is lost. An answer that is an error or a wrong number by the wrapped store's own
//! doing passes through. A call with a wrong count spoils no bytes, and a key with an error has none to spoil.
//!
//! ```
//! use std::sync::Arc;
//! use moonring::OpKind;
//! use moonring::store::{direct, sim::{Fault, When}, MemoryOptions, MemoryStore, SimOptions, SimStore};
//!
//! let memory = Arc::new(MemoryStore::new(MemoryOptions::default())?);
//! let sim = SimStore::new(memory, SimOptions {
//!     seed: 7,
//!     flips: When::calls_of(OpKind::Retrieve, [2]),
//!     ..SimOptions::default()
//! })?;
//! direct::put_from(&sim, &[(b"key", b"bytes")])?;
//! let mut buf = [0; 5];
//! direct::get_into(&sim, &mut [(b"key", &mut buf)])?;
//! assert_eq!(&buf, b"bytes");
//! direct::get_into(&sim, &mut [(b"key", &mut buf)])?;
//! assert_ne!(&buf, b"bytes");
//! assert_eq!(sim.report().count(Fault::Flipped), 1);
//! assert_eq!(sim.report().byte_faults[0].keys, [b"key"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod fault;
mod gate;
mod record;
mod spoil;

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fault::{CallId, Dice};
pub use fault::{Fault, When};
pub use gate::{ClosedGate, SimGate};
use record::Record;
pub use record::{ByteFault, RegisterCall, SimReport};
use spoil::{Before, Spoiler};

use super::{
    CallResult, Capabilities, DeleteBatch, Keys, LookupBatch, OptionError, RegisterError,
    RetrieveBatch, Store, StoreBatch, StoreHealth,
};
use crate::{OpError, OpKind};

/// Options of a [`SimStore`]. By default it changes nothing.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// Decides what rates strike, and which key, byte or pair is chosen.
    pub seed: u64,
    /// Delay of each call.
    pub delay: Duration,
    /// Further delay for each key of a call, in nanoseconds: a finite number, at least 0.
    pub delay_ns_per_key: f64,
    /// Further delay for each byte of a call's buffers, in nanoseconds (0.1: 10 GB/s): a finite number, at least 0.
    pub delay_ns_per_byte: f64,
    /// What each call puts into the pipe that all calls share; see [What a call costs](self#what-a-call-costs).
    pub pipe: Duration,
    /// What each key puts into the pipe, in nanoseconds: a finite number, at least 0.
    pub pipe_ns_per_key: f64,
    /// What each byte of a call's buffers puts into the pipe, in nanoseconds (1: 1 GB/s): a finite number, at least 0.
    pub pipe_ns_per_byte: f64,
    /// [`KeyError`](Fault::KeyError): the rate is for each **key**; in calls by number one key is struck.
    pub key_errors: When,
    /// The error of those keys; [`TransferFailed`](OpError::TransferFailed).
    pub key_error: OpError,
    /// [`CallError`](Fault::CallError).
    pub call_errors: When,
    /// The error of those calls; [`RpcFailed`](OpError::RpcFailed).
    pub call_error: OpError,
    /// [`WrongCount`](Fault::WrongCount).
    pub wrong_counts: When,
    /// [`Flipped`](Fault::Flipped): one byte of one object in each call that it strikes.
    pub flips: When,
    /// [`Unwritten`](Fault::Unwritten): one buffer in each call that it strikes. Counted also where the buffer held the
    /// object's bytes before.
    pub unwritten: When,
    /// [`Swapped`](Fault::Swapped): one pair in each call that it strikes.
    pub swaps: When,
    /// [`Panic`](Fault::Panic).
    pub panics: When,
    /// Claims that buffers must be registered, whatever the wrapped store says.
    pub needs_registration: bool,
    /// The longest piece, in bytes, that one registration takes, in place of the wrapped store's; at least 1.
    pub max_registration: Option<usize>,
    /// The registration that fails, by its number from 1; it doesn't reach the wrapped store.
    pub fail_register_at: Option<u64>,
    /// The unregistration that fails, by its number from 1; it doesn't reach the wrapped store.
    pub fail_unregister_at: Option<u64>,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self {
            seed: 0,
            delay: Duration::ZERO,
            delay_ns_per_key: 0.0,
            delay_ns_per_byte: 0.0,
            pipe: Duration::ZERO,
            pipe_ns_per_key: 0.0,
            pipe_ns_per_byte: 0.0,
            key_errors: When::default(),
            key_error: OpError::TransferFailed,
            call_errors: When::default(),
            call_error: OpError::RpcFailed,
            wrong_counts: When::default(),
            flips: When::default(),
            unwritten: When::default(),
            swaps: When::default(),
            panics: When::default(),
            needs_registration: false,
            max_registration: None,
            fail_register_at: None,
            fail_unregister_at: None,
        }
    }
}

/// The full names of a [`When`]'s fields.
macro_rules! fields {
    ($name:literal) => {
        [
            concat!($name, ".rate"),
            concat!($name, ".calls"),
            concat!($name, ".kind_calls"),
            concat!($name, ".only"),
        ]
    };
}

impl SimOptions {
    /// Whether the options make sense.
    ///
    /// # Errors
    /// Names the first field that doesn't.
    pub fn validate(&self) -> Result<(), OptionError> {
        for (field, ns) in [
            ("delay_ns_per_key", self.delay_ns_per_key),
            ("delay_ns_per_byte", self.delay_ns_per_byte),
            ("pipe_ns_per_key", self.pipe_ns_per_key),
            ("pipe_ns_per_byte", self.pipe_ns_per_byte),
        ] {
            if !(ns.is_finite() && ns >= 0.0) {
                let reason = format!("{ns}; must be a finite number, at least 0");
                return Err(OptionError::new(field, reason));
            }
        }
        self.key_errors.validate(fields!("key_errors"), false)?;
        self.call_errors.validate(fields!("call_errors"), false)?;
        self.wrong_counts.validate(fields!("wrong_counts"), false)?;
        self.flips.validate(fields!("flips"), true)?;
        self.unwritten.validate(fields!("unwritten"), true)?;
        self.swaps.validate(fields!("swaps"), true)?;
        self.panics.validate(fields!("panics"), false)?;
        if self.max_registration == Some(0) {
            let reason = "0 bytes; must be at least 1";
            return Err(OptionError::new("max_registration", reason));
        }
        for (field, at) in [
            ("fail_register_at", self.fail_register_at),
            ("fail_unregister_at", self.fail_unregister_at),
        ] {
            if at == Some(0) {
                return Err(OptionError::new(field, "0; calls are counted from 1"));
            }
        }
        Ok(())
    }
}

/// A store that delays another's calls and makes it misbehave. See the [module's page](self).
pub struct SimStore {
    inner: Arc<dyn Store>,
    options: SimOptions,
    dice: Dice,
    gate: SimGate,
    pipe: Pipe,
    record: Record,
}

/// What all calls share: until when it is taken, from when the store was made.
#[derive(Debug)]
struct Pipe {
    made: Instant,
    taken: Mutex<Duration>,
}

impl Pipe {
    fn new() -> Self {
        Self {
            made: Instant::now(),
            taken: Mutex::new(Duration::ZERO),
        }
    }

    /// Takes a place behind those that are in it. In how long it is through, if this takes so long.
    fn take(&self, long: Duration) -> Duration {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, so that nobody's now is before another's.
        let now = self.made.elapsed();
        *taken = taken.max(now).saturating_add(long);
        taken.saturating_sub(now)
    }
}

impl SimStore {
    /// Wraps a store.
    ///
    /// # Errors
    /// As [`SimOptions::validate`].
    pub fn new(inner: Arc<dyn Store>, options: SimOptions) -> Result<Self, OptionError> {
        options.validate()?;
        Ok(Self {
            inner,
            dice: Dice::new(options.seed),
            options,
            gate: SimGate::default(),
            pipe: Pipe::new(),
            record: Record::default(),
        })
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.options.seed
    }

    /// Its gate.
    pub fn gate(&self) -> &SimGate {
        &self.gate
    }

    /// What it has done so far.
    pub fn report(&self) -> SimReport {
        self.record.report(self.options.seed)
    }

    /// All calls of `register` and `unregister`, in their order.
    pub fn register_log(&self) -> Vec<RegisterCall> {
        let log = self.record.registers.lock();
        log.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn is_due(&self, when: &When, call: &CallId, fault: Fault) -> bool {
        when.is_due(self.dice, call, fault)
    }

    /// All that comes before the wrapped store's call.
    fn before(&self, op: OpKind, keys: usize, buf_lens: &[usize]) -> Result<CallId, OpError> {
        let options = &self.options;
        let call = self.record.call(op);
        self.gate.pass(op);

        let bytes = buf_lens.iter().sum::<usize>() as f64;
        let cost = |call: Duration, per_key: f64, per_byte: f64| {
            let ns = per_key * keys as f64 + per_byte * bytes;
            call.saturating_add(Duration::from_nanos(ns as u64))
        };
        let mut delay = cost(
            options.delay,
            options.delay_ns_per_key,
            options.delay_ns_per_byte,
        );
        let piped = cost(
            options.pipe,
            options.pipe_ns_per_key,
            options.pipe_ns_per_byte,
        );
        if !piped.is_zero() {
            delay = delay.saturating_add(self.pipe.take(piped));
        }
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }

        if self.is_due(&options.panics, &call, Fault::Panic) {
            self.record.count(Fault::Panic, 1);
            let (seed, number) = (options.seed, call.number);
            panic!("sim: panic in call {number}, a {op}, as told (seed {seed})");
        }
        if self.is_due(&options.call_errors, &call, Fault::CallError) {
            self.record.count(Fault::CallError, 1);
            return Err(options.call_error);
        }
        Ok(call)
    }

    /// All that comes after the wrapped store's call, except spoiled bytes. `Ok` of another number than `len`: there
    /// are none to spoil.
    fn after(
        &self,
        call: &CallId,
        len: usize,
        keys: &mut Keys<'_>,
        answer: CallResult,
    ) -> CallResult {
        if answer != Ok(len) {
            return answer;
        }
        self.key_errors(call, len, keys);
        if self.is_due(&self.options.wrong_counts, call, Fault::WrongCount) {
            self.record.count(Fault::WrongCount, 1);
            let mut dice = self.dice.choices(call, Fault::WrongCount);
            return Ok(if dice.chance(0.5) { len + 1 } else { len - 1 });
        }
        answer
    }

    fn key_errors(&self, call: &CallId, len: usize, keys: &mut Keys<'_>) {
        let when = &self.options.key_errors;
        if !when.applies(call) {
            return;
        }
        let mut dice = self.dice.choices(call, Fault::KeyError);
        let named = when.names(call).then(|| dice.below(len));
        for i in 0..len {
            if named == Some(i) || dice.chance(when.rate) {
                keys.set(i, Err(self.options.key_error));
                self.record.count(Fault::KeyError, 1);
            }
        }
    }

    fn spoil(&self, call: &CallId, batch: &mut RetrieveBatch<'_>, before: Option<Before>) {
        let mut spoiler = Spoiler::new(batch);
        let log = |spoiler: &Spoiler<'_, '_>, fault, struck: &[usize], offset| {
            self.record.byte_fault(ByteFault {
                fault,
                call: call.number,
                retrieve: call.of_kind,
                keys: struck.iter().map(|i| spoiler.key(*i)).collect(),
                offset,
            });
        };
        if let Some(before) = before {
            let mut dice = self.dice.choices(call, Fault::Unwritten);
            if let Some(i) = spoiler.unwrite(&mut dice, &before) {
                log(&spoiler, Fault::Unwritten, &[i], None);
            }
        }
        if self.is_due(&self.options.swaps, call, Fault::Swapped) {
            let mut dice = self.dice.choices(call, Fault::Swapped);
            if let Some((a, b)) = spoiler.swap(&mut dice) {
                log(&spoiler, Fault::Swapped, &[a, b], None);
            }
        }
        if self.is_due(&self.options.flips, call, Fault::Flipped) {
            let mut dice = self.dice.choices(call, Fault::Flipped);
            if let Some((i, offset)) = spoiler.flip(&mut dice) {
                log(&spoiler, Fault::Flipped, &[i], Some(offset));
            }
        }
    }

    /// Writes a call of `register` or `unregister` down, after the wrapped store's call, unless it is the one to fail.
    fn registering(
        &self,
        register: bool,
        base: NonNull<u8>,
        len: usize,
        inner: impl FnOnce() -> Result<(), RegisterError>,
    ) -> Result<(), RegisterError> {
        let log = self.record.registers.lock();
        let mut log = log.unwrap_or_else(PoisonError::into_inner);
        let number = 1 + log.iter().filter(|c| c.register == register).count() as u64;
        let (what, fail_at) = if register {
            ("registration", self.options.fail_register_at)
        } else {
            ("unregistration", self.options.fail_unregister_at)
        };
        let too_long = |max: &usize| register && len > *max;
        let result = if fail_at == Some(number) {
            let place = format!("memory {base:p}+{len}");
            let reason = format!("sim: {what} {number} fails, as told ({place})");
            Err(RegisterError::new(reason))
        } else if let Some(max) = self.options.max_registration.filter(too_long) {
            let reason = format!("sim: {len} bytes are over max_registration, {max} bytes");
            Err(RegisterError::new(reason))
        } else {
            inner()
        };
        log.push(RegisterCall {
            register,
            base: base.addr().get(),
            len,
            ok: result.is_ok(),
        });
        result
    }
}

impl Store for SimStore {
    fn name(&self) -> &str {
        "sim"
    }

    fn capabilities(&self) -> Capabilities {
        let inner = self.inner.capabilities();
        Capabilities {
            needs_registration: inner.needs_registration || self.options.needs_registration,
            max_registration: self.options.max_registration.or(inner.max_registration),
            ..inner
        }
    }

    unsafe fn register(&self, base: NonNull<u8>, len: usize) -> Result<(), RegisterError> {
        // SAFETY: this function's caller vouches for just that.
        self.registering(true, base, len, || unsafe {
            self.inner.register(base, len)
        })
    }

    unsafe fn unregister(&self, base: NonNull<u8>, len: usize) -> Result<(), RegisterError> {
        // SAFETY: this function's caller vouches for just that; what a failure as told left registered in the
        // wrapped store is not unregistered here.
        self.registering(false, base, len, || unsafe {
            self.inner.unregister(base, len)
        })
    }

    fn batch_exists(&self, batch: &mut LookupBatch<'_>) -> CallResult {
        let len = batch.len();
        let call = self.before(OpKind::Lookup, len, &[])?;
        let answer = self.inner.batch_exists(batch);
        self.after(&call, len, &mut batch.keys, answer)
    }

    fn batch_get_into(&self, batch: &mut RetrieveBatch<'_>) -> CallResult {
        let len = batch.len();
        let call = self.before(OpKind::Retrieve, len, batch.buf_lens())?;
        let unwritten = self.is_due(&self.options.unwritten, &call, Fault::Unwritten);
        let before = unwritten.then(|| Before::new(batch));
        let answer = self.inner.batch_get_into(batch);
        let answer = self.after(&call, len, &mut batch.keys, answer);
        if answer == Ok(len) {
            self.spoil(&call, batch, before);
        }
        answer
    }

    fn batch_put_from(&self, batch: &mut StoreBatch<'_>) -> CallResult {
        let len = batch.len();
        let call = self.before(OpKind::Store, len, batch.buf_lens())?;
        let answer = self.inner.batch_put_from(batch);
        self.after(&call, len, &mut batch.keys, answer)
    }

    fn batch_remove(&self, batch: &mut DeleteBatch<'_>) -> CallResult {
        let len = batch.len();
        let call = self.before(OpKind::Delete, len, &[])?;
        let answer = self.inner.batch_remove(batch);
        self.after(&call, len, &mut batch.keys, answer)
    }

    fn health(&self) -> StoreHealth {
        self.inner.health()
    }

    fn close(&self) {
        self.inner.close();
    }
}

impl std::fmt::Debug for SimStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimStore")
            .field("inner", &self.inner.name())
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
