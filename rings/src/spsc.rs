//! A bounded ring with one producer and one consumer *at a time*.
//!
//! ```text
//!            head                tail            staged
//!             │ taken by the       │ published     │ filled, not shown yet
//!   ──────────▼────────────────────▼───────────────▼──────────
//!    free     │ ready to be taken  │ the producer's│   free
//! ```
//!
//! The producer fills places beyond `tail` and shows them with one store ([`Producer::publish`]); it reads the
//! consumer's `head` only when its last look says that the ring is full. The consumer does the same with
//! `tail`.
//!
//! Several threads may hold the [`Consumer`]; the **consumer token** makes them take turns:
//! [`Consumer::try_lock`] is one compare-and-swap that never waits, and what it returns, a [`Taker`], is the consumer.
//! A thread that leaves places behind, or finds the token taken, must see to it that somebody looks again;
//! the engine's ready bits do that (see [`park`](crate::park)).
//!
//! **Progress**: `stage`, `publish`, `try_lock`, `peek`, `take` are wait-free. A consumer stopped while it holds the
//! token keeps the others away from this ring until it goes on; the producer is not hindered until the ring is full.

use core::fmt;
use core::mem::{self, MaybeUninit};
use core::{ptr, slice};

use crossbeam_utils::CachePadded;

use crate::Full;
use crate::sync::{Arc, AtomicBool, AtomicUsize, Ordering, UnsafeCell, broken, ordering};

/// Makes a ring with room for at least `capacity` values (rounded up to a power of two, at least 1).
pub fn ring<T>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    let places = Places::new(crate::capacity(capacity));
    let shared = Arc::new(Shared {
        tail: CachePadded::new(AtomicUsize::new(0)),
        head: CachePadded::new(AtomicUsize::new(0)),
        turn: CachePadded::new(Turn {
            token: AtomicBool::new(false),
            cached_tail: UnsafeCell::new(0),
        }),
        closed: AtomicBool::new(false),
        places,
    });
    let producer = Producer {
        shared: Arc::clone(&shared),
        places,
        published: 0,
        staged: 0,
        limit: places.mask + 1,
    };
    (producer, Consumer { shared })
}

type Place<T> = UnsafeCell<MaybeUninit<T>>;

/// The way to the places. Each side has a copy, so that neither reads it from memory again for each value.
struct Places<T> {
    /// The first of a power of two of places. [`Shared`] owns them.
    first: *mut Place<T>,
    /// Their number less one.
    mask: usize,
}

impl<T> Clone for Places<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Places<T> {}

// SAFETY: values go from one thread to another, which `T: Send` allows; who may touch which place is decided by
// `head` and `tail`, and who may be the consumer by `token`.
unsafe impl<T: Send> Send for Places<T> {}
// SAFETY: as above. No `&T` is ever given to two threads at a time, so `T: Sync` isn't needed.
unsafe impl<T: Send> Sync for Places<T> {}

impl<T> Places<T> {
    /// `n`, a power of two, without a value. Freed in `Shared::drop`.
    fn new(n: usize) -> Self {
        let places: Box<[Place<T>]> = (0..n)
            .map(|_| UnsafeCell::new(MaybeUninit::uninit()))
            .collect();
        Self {
            first: Box::into_raw(places).cast(),
            mask: n - 1,
        }
    }

    /// # Safety
    /// The ring must be alive.
    #[inline(always)]
    unsafe fn at<'a>(self, index: usize) -> &'a Place<T> {
        // SAFETY: `index & mask` is below the number of places, a power of two.
        unsafe { &*self.first.add(index & self.mask) }
    }

    /// # Safety
    /// The ring must be alive, and the place at `index` the caller's to write, and hold no value.
    #[inline(always)]
    unsafe fn write(self, index: usize, value: T) {
        // SAFETY: the caller owns the place.
        unsafe { self.at(index).with_mut(|p| (*p).write(value)) };
    }

    /// # Safety
    /// The ring must be alive, and the place at `index` the caller's to read and hold a value, which must not be used
    /// again.
    #[inline(always)]
    unsafe fn read(self, index: usize) -> T {
        // SAFETY: the caller owns the place, and vouches for the value.
        unsafe { self.at(index).with(|p| (*p).assume_init_read()) }
    }
}

struct Shared<T> {
    /// End of what is published. Written by the producer, Release; read by the consumer, Acquire.
    tail: CachePadded<AtomicUsize>,
    /// Begin of what is not taken yet. Written by the token's holder, Release; read by the producer, Acquire.
    head: CachePadded<AtomicUsize>,
    turn: CachePadded<Turn>,
    /// Written by `Producer::close`, Release, after its last publication; read by `Taker::is_closed`, Acquire.
    closed: AtomicBool,
    places: Places<T>,
}

/// What the consumers share among themselves.
struct Turn {
    /// True while somebody is the consumer. Taken with Acquire in `try_lock`, given back by a Release store in
    /// `Taker::drop`: the next holder sees the last one's `head` and `cached_tail`.
    token: AtomicBool,
    /// The holder's last look at `tail`.
    cached_tail: UnsafeCell<usize>,
}

// SAFETY: `cached_tail` is touched only by the token's holder.
unsafe impl Sync for Turn {}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // Both sides are gone, and the last `Arc` clone to go orders their accesses before this.
        let tail = self.tail.load(Ordering::Relaxed);
        let mut head = self.head.load(Ordering::Relaxed);
        if self.turn.token.load(Ordering::Relaxed) {
            // A `Taker` was leaked: what it had taken out is not known. What is left is leaked, too.
            head = tail;
        }
        while head != tail {
            // SAFETY: places between head and tail hold published values that nobody took.
            drop(unsafe { self.places.read(head) });
            head = head.wrapping_add(1);
        }
        let all = ptr::slice_from_raw_parts_mut(self.places.first, self.places.mask + 1);
        // SAFETY: `Places::new` made the box, and no other copy of `places` is in use any more.
        drop(unsafe { Box::from_raw(all) });
    }
}

/// The side that fills the ring. Not `Clone`: there is one.
pub struct Producer<T> {
    shared: Arc<Shared<T>>,
    places: Places<T>,
    published: usize,
    staged: usize,
    /// End of what is known to be free: the last look at `head`, one capacity on. `staged` where the ring is closed.
    limit: usize,
}

impl<T> Producer<T> {
    /// Number of places.
    pub fn capacity(&self) -> usize {
        self.places.mask + 1
    }

    /// Whether there are `n` free places, with a fresh look at the consumer only if need be. None after
    /// [`close`](Self::close).
    #[inline]
    pub fn has_room(&mut self, n: usize) -> bool {
        self.known_room() >= n || self.look_for_room() >= n
    }

    #[inline(always)]
    fn known_room(&self) -> usize {
        self.limit.wrapping_sub(self.staged)
    }

    #[inline]
    fn look_for_room(&mut self) -> usize {
        // Relaxed: only this side writes it.
        if !self.shared.closed.load(Ordering::Relaxed) {
            // Acquire pairs with the Release store in `Chunk::drop`: the taken values have been read.
            let head = self
                .shared
                .head
                .load(ordering!(Acquire, "spsc-room" => Relaxed));
            self.limit = head.wrapping_add(self.capacity());
        }
        self.known_room()
    }

    /// How many values could be staged now.
    pub fn room(&mut self) -> usize {
        self.look_for_room()
    }

    /// The next place, where there is one: what follows can't fail.
    #[inline]
    pub fn vacant(&mut self) -> Option<Vacant<'_, T>> {
        self.has_room(1).then_some(Vacant { producer: self })
    }

    /// Fills the next place without showing it. A full ring hands the value back.
    #[inline]
    pub fn stage(&mut self, value: T) -> Result<(), Full<T>> {
        match self.vacant() {
            Some(place) => place.stage(value),
            None => return Err(Full { value, room: 0 }),
        }
        Ok(())
    }

    /// Shows everything that is staged, by one store. Returns how many values that were.
    #[inline]
    pub fn publish(&mut self) -> usize {
        let n = self.staged.wrapping_sub(self.published);
        if n > 0 {
            // Release pairs with the Acquire load of `tail` in `Taker::available`: the values are written.
            let order = ordering!(Release, "spsc-publish" => Relaxed);
            self.shared.tail.store(self.staged, order);
            self.published = self.staged;
        }
        n
    }

    /// Stages one value and publishes.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), Full<T>> {
        self.stage(value)?;
        self.publish();
        Ok(())
    }

    /// Sets `n` places aside, or none.
    ///
    /// Dropping the reservation without [`commit`](Reservation::commit) gives the places back and drops what was
    /// filled in. However long it is kept, the consumer sees only what was published before.
    pub fn reserve(&mut self, n: usize) -> Result<Reservation<'_, T>, Full<()>> {
        if !self.has_room(n) {
            return Err(Full {
                value: (),
                room: self.known_room(),
            });
        }
        Ok(Reservation {
            at: self.staged,
            end: self.staged.wrapping_add(n),
            producer: self,
        })
    }

    /// Says that nothing more comes: there is no room from now on. The consumer sees it after it has taken everything.
    pub fn close(&mut self) {
        if !broken("spsc-close-publish") {
            self.publish();
        }
        let order = ordering!(Release, "spsc-close" => Relaxed);
        self.shared.closed.store(true, order);
        self.limit = self.staged;
    }

    /// Values published since the ring was made, modulo 2^64.
    pub fn published(&self) -> usize {
        self.published
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<T> fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer")
            .field("capacity", &self.capacity())
            .field("published", &self.published)
            .field("staged", &self.staged)
            .finish()
    }
}

/// The next place of a ring, free: see [`Producer::vacant`].
#[derive(Debug)]
pub struct Vacant<'a, T> {
    producer: &'a mut Producer<T>,
}

impl<T> Vacant<'_, T> {
    /// Fills it, without showing it.
    #[inline]
    pub fn stage(self, value: T) {
        let producer = self.producer;
        // SAFETY: `vacant` found that the consumer has given this place back, and it lies beyond `tail`, where only the one
        // producer goes, which this borrows.
        unsafe { producer.places.write(producer.staged, value) };
        producer.staged = producer.staged.wrapping_add(1);
    }
}

/// Places set aside by [`Producer::reserve`]. What was filled into one that is leaked is leaked with it.
#[derive(Debug)]
pub struct Reservation<'a, T> {
    producer: &'a mut Producer<T>,
    /// The next place to fill. Those from the producer's `staged` on have been filled.
    at: usize,
    end: usize,
}

impl<T> Reservation<'_, T> {
    /// Fills the next place. All places full: the value comes back.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), T> {
        if self.at == self.end {
            return Err(value);
        }
        // SAFETY: the place was found free by `reserve`, lies beyond `tail`, and `&mut Producer` is the only producer.
        unsafe { self.producer.places.write(self.at, value) };
        self.at = self.at.wrapping_add(1);
        Ok(())
    }

    /// Fills places with what the iterator gives, each value where it is to lie, until either has no more. Returns how many.
    #[inline]
    pub fn fill_from(&mut self, values: impl IntoIterator<Item = T>) -> usize {
        let (before, mut values) = (self.at, values.into_iter());
        let places = self.producer.places;
        // In stretches: up to the ring's end, and on from its begin.
        while self.at != self.end {
            let at = self.at & places.mask;
            let room = (places.mask + 1 - at).min(self.end.wrapping_sub(self.at));
            // SAFETY: `at` and as many as there are up to the ring's end are places of it, which is alive.
            let stretch = unsafe { slice::from_raw_parts(places.first.add(at), room) };
            for place in stretch {
                let Some(value) = values.next() else {
                    return self.at.wrapping_sub(before);
                };
                // SAFETY: as in `push`.
                place.with_mut(|p| unsafe { (*p).write(value) });
                self.at = self.at.wrapping_add(1);
            }
        }
        self.at.wrapping_sub(before)
    }

    /// Places not filled yet.
    pub fn left(&self) -> usize {
        self.end.wrapping_sub(self.at)
    }

    /// Shows what was filled (and what was staged before), by one store. Places left over stay free.
    #[inline]
    pub fn commit(self) -> usize {
        let mut this = mem::ManuallyDrop::new(self);
        this.producer.staged = this.at;
        this.producer.publish()
    }
}

impl<T> Drop for Reservation<'_, T> {
    fn drop(&mut self) {
        while self.at != self.producer.staged && !broken("spsc-reservation-drop") {
            self.at = self.at.wrapping_sub(1);
            // SAFETY: this reservation wrote the place and nobody has been shown it.
            drop(unsafe { self.producer.places.read(self.at) });
        }
    }
}

/// The right to become the consumer, one at a time.
pub struct Consumer<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Consumer<T> {
    /// Number of places.
    pub fn capacity(&self) -> usize {
        self.shared.places.mask + 1
    }

    /// Takes the consumer token, or `None` where another thread has it. Never waits.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<Taker<'_, T>> {
        let token = &self.shared.turn.token;
        // Looking first spares the holder's line where the token is taken. Acquire pairs with the Release store in
        // `Taker::drop`. Not a swap: one that finds the token taken would be a write that loom can't order before the
        // holder's store.
        let order = ordering!(Acquire, "spsc-token-take" => Relaxed);
        if token.load(Ordering::Relaxed)
            || token
                .compare_exchange(false, true, order, Ordering::Relaxed)
                .is_err()
        {
            return None;
        }
        let head = self.shared.head.load(Ordering::Relaxed);
        Some(Taker {
            head,
            released: head,
            // SAFETY: the token is ours, so nobody else touches the cell.
            tail: self.shared.turn.cached_tail.with(|p| unsafe { *p }),
            found_little: false,
            places: self.shared.places,
            shared: &self.shared,
        })
    }

    /// Whether something published is not taken yet. A hint: it may change at once.
    ///
    /// Acquire on `tail`: what it says was published can be taken by who gets the token next.
    #[inline]
    pub fn has_ready(&self) -> bool {
        self.shared.tail.load(Ordering::Acquire) != self.shared.head.load(Ordering::Relaxed)
    }

    /// How many values are published and not taken. A hint.
    #[inline(always)]
    pub fn ready(&self) -> usize {
        // Head first: it never passes a tail that is read later.
        let head = self.shared.head.load(Ordering::Acquire);
        self.shared.tail.load(Ordering::Acquire).wrapping_sub(head)
    }

    /// Values published since the ring was made, modulo 2^64.
    pub fn published(&self) -> usize {
        self.shared.tail.load(Ordering::Acquire)
    }
}

impl<T> Clone for Consumer<T> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<T> fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("capacity", &self.capacity())
            .finish()
    }
}

/// The consumer, for as long as this lives. Dropping it gives the token back; leaking it shuts the ring for every
/// consumer, and leaks what is in it.
pub struct Taker<'a, T> {
    shared: &'a Shared<T>,
    places: Places<T>,
    /// Begin of what is not taken, by this side's own count.
    head: usize,
    /// What was last stored to the shared `head`.
    released: usize,
    tail: usize,
    /// What [`pop`](Self::pop) saw at its last look.
    found_little: bool,
}

impl<T> Taker<'_, T> {
    /// How many values can be taken, with a fresh look at the producer.
    #[inline(always)]
    pub fn available(&mut self) -> usize {
        // Acquire pairs with the Release store in `Producer::publish`: the values are there.
        let order = ordering!(Acquire, "spsc-available" => Relaxed);
        self.tail = self.shared.tail.load(order);
        self.tail.wrapping_sub(self.head)
    }

    /// The value `i` places after the next one, if it is published.
    #[inline]
    pub fn peek(&mut self, i: usize) -> Option<&T> {
        if self.tail.wrapping_sub(self.head) <= i && self.available() <= i {
            return None;
        }
        // SAFETY: the place lies between head and tail, so it holds a published value, and the producer keeps off
        // until a take gives it back, which needs `&mut self`.
        Some(unsafe {
            let place = self.places.at(self.head.wrapping_add(i));
            place.with(|p| (*p).assume_init_ref())
        })
    }

    /// Takes the next value and gives its place back at once.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<T> {
        let at = self.head;
        if self.tail == at && !self.looks_again() {
            return None;
        }
        // SAFETY: the place lies between head and tail, so it holds a published value; nobody reads it again.
        let value = unsafe { self.places.read(at) };
        self.head = at.wrapping_add(1);
        self.released = self.head;
        // Release pairs with the Acquire load in `Producer::look_for_room`: the value has been read.
        let order = ordering!(Release, "spsc-pop-give-back" => Relaxed);
        self.shared.head.store(self.head, order);
        Some(value)
    }

    /// A fresh look for `pop`, which has taken all that it knew of. Whether there is something.
    ///
    /// A consumer at its producer's heels takes a cache line from it with each look, and finds little. So where the last look has found less
    /// than half a ring, it first waits for two pauses of a spinning thread: where both are busy, it then mostly finds more.
    #[inline(always)]
    fn looks_again(&mut self) -> bool {
        if mem::take(&mut self.found_little) {
            (0..2).for_each(|_| core::hint::spin_loop());
        }
        let found = self.available();
        self.found_little = found > 0 && found < self.places.mask.div_ceil(2);
        found > 0
    }

    /// Takes up to `n` values; their places are given back together, when the chunk is dropped. What is left in a chunk
    /// that is leaked is leaked with it.
    #[inline]
    pub fn take(&mut self, n: usize) -> Chunk<'_, T> {
        let mut ready = self.tail.wrapping_sub(self.head);
        if ready < n {
            ready = self.available();
        }
        let at = self.head;
        // Moved on at once, so that no value is read twice where the chunk is leaked.
        self.head = at.wrapping_add(ready.min(n));
        Chunk {
            at,
            end: self.head,
            places: self.places,
            shared: self.shared,
            head: &mut self.head,
            released: &mut self.released,
        }
    }

    /// Takes up to `n` values to the end of `out`, and gives their places back together.
    #[inline(always)]
    pub fn take_into(&mut self, out: &mut Vec<T>, n: usize)
    where
        T: Copy,
    {
        let mut chunk = self.take(n);
        if chunk.len() == 1 {
            // Needs no stretches. (`extend` by an `Option` is not inlined.)
            if let Some(value) = chunk.next() {
                out.push(value);
            }
            return;
        }
        // Two stretches, before and behind the ring's end, that are copied as a whole.
        let (at, len) = (chunk.at & chunk.places.mask, chunk.len());
        let first = len.min(chunk.places.mask + 1 - at);
        chunk.copy_into(out, at, first);
        if first < len {
            chunk.copy_into(out, 0, len - first);
        }
    }

    /// True when the producer is closed and everything has been taken: nothing will ever come.
    pub fn is_closed(&mut self) -> bool {
        // `closed` first: the Acquire load makes the producer's last publication visible to `available`.
        let order = ordering!(Acquire, "spsc-closed" => Relaxed);
        self.shared.closed.load(order) && self.available() == 0
    }
}

impl<T> Drop for Taker<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.released != self.head {
            // After a chunk that was leaked, or whose values' drop panicked. Release as in `Chunk::drop`.
            self.shared.head.store(self.head, Ordering::Release);
        }
        // SAFETY: the token is still ours.
        self.shared
            .turn
            .cached_tail
            .with_mut(|p| unsafe { *p = self.tail });
        // Release pairs with the Acquire in `try_lock`.
        let order = ordering!(Release, "spsc-token-give" => Relaxed);
        self.shared.turn.token.store(false, order);
    }
}

impl<T> fmt::Debug for Taker<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Taker").finish_non_exhaustive()
    }
}

/// Values that [`Taker::take`] took: an iterator. What is not iterated over is dropped with the chunk.
pub struct Chunk<'a, T> {
    shared: &'a Shared<T>,
    places: Places<T>,
    /// The taker's: `end` for as long as the chunk lives.
    head: &'a mut usize,
    released: &'a mut usize,
    at: usize,
    end: usize,
}

impl<T: Copy> Chunk<'_, T> {
    /// Copies a stretch of places that are this chunk's, and not beyond the ring's end.
    #[inline(always)]
    fn copy_into(&self, out: &mut Vec<T>, from: usize, n: usize) {
        // SAFETY: the stretch does not go beyond the places.
        let stretch = unsafe { slice::from_raw_parts(self.places.first.add(from), n) };
        out.extend(stretch.iter().map(|place| {
            // SAFETY: places from head to tail hold published values, and the producer keeps off until the chunk is
            // dropped. `T` is `Copy`: reading takes nothing away.
            place.with(|p| unsafe { (*p).assume_init() })
        }));
    }
}

impl<T> Chunk<'_, T> {
    /// Ends the chunk here: what was not iterated over stays in the ring.
    pub fn stop(mut self) {
        self.end = self.at;
        *self.head = self.at;
    }
}

impl<T> Iterator for Chunk<'_, T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        if self.at == self.end {
            return None;
        }
        // SAFETY: places from head to tail hold published values; each is read once, for `at` only grows.
        let value = unsafe { self.places.read(self.at) };
        self.at = self.at.wrapping_add(1);
        Some(value)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let n = self.end.wrapping_sub(self.at);
        (n, Some(n))
    }
}

impl<T> ExactSizeIterator for Chunk<'_, T> {}

impl<T> Drop for Chunk<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if mem::needs_drop::<T>() {
            while self.next().is_some() {}
        }
        if *self.released != self.end {
            *self.released = self.end;
            // Release pairs with the Acquire load in `Producer::look_for_room`: the values have been read.
            let order = ordering!(Release, "spsc-give-back" => Relaxed);
            self.shared.head.store(self.end, order);
        }
    }
}

impl<T> fmt::Debug for Chunk<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunk")
            .field("left", &self.size_hint().0)
            .finish()
    }
}
