//! The memory that an engine may use: its regions, how they are registered, and whether a buffer lies in them.

use std::num::NonZeroUsize;
use std::ptr::NonNull;

use crate::live::LiveSpans;
use crate::store::{Capabilities, RegisterError, Store};
use crate::waker::quietly;
use crate::{OpKind, Pieces, Region, Span, SubmitError};

/// A region that the engine is to be started with.
pub(crate) struct Given {
    pub(crate) region: Region,
    /// Its place among those that were given, counted from 0.
    pub(crate) at: usize,
    /// One before it has the same bytes, under another id: there is nothing to register.
    pub(crate) identical: bool,
}

/// A region as registered with the engine's store.
struct Registered {
    given: Given,
    pieces: Pieces,
}

/// All memory of an engine. Fixed at start.
pub(crate) struct Memory {
    regions: Vec<Registered>,
    needs_registration: bool,
    live: LiveSpans,
}

/// Registering a piece failed; everything registered before was unregistered again.
#[derive(Debug)]
pub(crate) struct RegistrationFailed {
    pub(crate) region: usize,
    pub(crate) piece: usize,
    pub(crate) pieces: usize,
    pub(crate) addr: usize,
    pub(crate) len: usize,
    pub(crate) error: RegisterError,
    /// Rolling back went wrong too, for these pieces.
    pub(crate) left: Vec<String>,
}

impl Memory {
    /// Registers every piece of every region, or none: on a failure those before it are unregistered in reverse order.
    pub(crate) fn register(
        store: &dyn Store,
        capabilities: Capabilities,
        regions: Vec<Given>,
        max_registration: Option<usize>,
    ) -> Result<Self, RegistrationFailed> {
        let limit = [capabilities.max_registration, max_registration]
            .into_iter()
            .flatten()
            .filter_map(NonZeroUsize::new)
            .min();
        let memory = Self {
            regions: regions
                .into_iter()
                .map(|given| Registered {
                    pieces: match limit {
                        None => Pieces::whole(given.region.len()),
                        Some(max) => Pieces::cut(given.region.len(), max),
                    },
                    given,
                })
                .collect(),
            needs_registration: capabilities.needs_registration,
            live: LiveSpans::default(),
        };
        let mut done = Vec::new();
        for registered in memory.distinct() {
            for (p, (base, len)) in registered.ranges().enumerate() {
                // SAFETY: the region is mapped for as long as `memory` holds it, which is until the unregistration.
                let answer = guarded(|| unsafe { store.register(base, len) });
                let Err(error) = answer else {
                    done.push((base, len));
                    continue;
                };
                let mut left = unregister(store, &done);
                if error.reason == PANICKED {
                    left.push(show(base, len, &"may be registered"));
                }
                if !left.is_empty() {
                    memory.leak();
                }
                return Err(RegistrationFailed {
                    region: registered.given.at,
                    piece: p,
                    pieces: registered.pieces.count(),
                    addr: base.as_ptr() as usize,
                    len,
                    error,
                    left,
                });
            }
        }
        Ok(memory)
    }

    /// Unregisters everything, in reverse order. Returns what could not be, which is then leaked: the store may use
    /// it still.
    ///
    /// # Safety
    /// No store call that uses the memory may be under way or come later.
    pub(crate) unsafe fn unregister(&self, store: &dyn Store) -> Vec<String> {
        let pieces: Vec<_> = self.distinct().flat_map(|r| r.ranges()).collect();
        let left = unregister(store, &pieces);
        if !left.is_empty() {
            self.leak();
        }
        left
    }

    /// The store may still use the memory: it is never handed back to the system.
    fn leak(&self) {
        for registered in &self.regions {
            std::mem::forget(registered.given.region.clone());
        }
    }

    /// Those that are registered: of identical ones, one.
    fn distinct(&self) -> impl Iterator<Item = &Registered> {
        self.regions.iter().filter(|r| !r.given.identical)
    }

    pub(crate) fn regions(&self) -> impl Iterator<Item = (&Region, &Pieces)> {
        self.distinct().map(|r| (&r.given.region, &r.pieces))
    }

    /// Bytes of all regions.
    pub(crate) fn len(&self) -> usize {
        self.distinct().map(|r| r.given.region.len()).sum()
    }

    #[inline]
    fn region_of(&self, span: Span) -> Option<&Registered> {
        let mut regions = self.regions.iter();
        regions.find(|r| r.given.region.id() == span.region)
    }

    /// The address of a span, before it is checked.
    pub(crate) fn address_of(&self, span: Span) -> Option<usize> {
        let base = self.region_of(span)?.given.region.base().addr().get();
        Some(base.saturating_add(span.offset))
    }

    /// Where the bytes of a span (also of a slot's) are, or why it is refused.
    #[inline]
    pub(crate) fn span(&self, op: OpKind, span: Span) -> Result<(*mut u8, usize), SubmitError> {
        let region = self.check_span(op, span)?;
        // SAFETY: `check_span` found the span inside the region.
        let ptr = unsafe { region.base().add(span.offset) }.as_ptr();
        self.add_live(op, ptr, span)?;
        Ok((ptr, span.len))
    }

    #[inline]
    fn check_span(&self, op: OpKind, span: Span) -> Result<&Region, SubmitError> {
        let Some(registered) = self.region_of(span) else {
            return Err(SubmitError::UnknownRegion { op });
        };
        registered.check(op, span)?;
        Ok(&registered.given.region)
    }

    /// Memory given by address: a region's span if it lies in one, else the store must need no registration.
    pub(crate) fn foreign(
        &self,
        op: OpKind,
        ptr: *mut u8,
        len: usize,
    ) -> Result<(*mut u8, usize), SubmitError> {
        let refused = SubmitError::NotRegistered {
            op,
            addr: ptr as usize,
            len,
        };
        if len == 0 {
            return Err(SubmitError::ZeroLength { op });
        }
        for registered in &self.regions {
            let region = &registered.given.region;
            if let Some(offset) = region.resolve(ptr, len) {
                let span = region.span(offset, len);
                registered.check(op, span)?;
                self.add_live(op, ptr, span)?;
                return Ok((ptr, len));
            }
        }
        if self.needs_registration || ptr.is_null() || (ptr as usize).checked_add(len).is_none() {
            return Err(refused);
        }
        Ok((ptr, len))
    }

    /// Debug builds refuse a span that overlaps one in flight, unless both are only read.
    #[inline]
    fn add_live(&self, op: OpKind, ptr: *mut u8, span: Span) -> Result<(), SubmitError> {
        if self.live.add(op, ptr.addr(), span.len) {
            return Ok(());
        }
        Err(SubmitError::Overlap {
            op,
            offset: span.offset,
            len: span.len,
        })
    }

    /// The spans that were let in. Who releases an op takes its span off.
    pub(crate) fn live(&self) -> &LiveSpans {
        &self.live
    }
}

impl Registered {
    /// Address and length of each piece.
    fn ranges(&self) -> impl Iterator<Item = (NonNull<u8>, usize)> + '_ {
        self.pieces.iter().map(|(offset, len)| {
            // SAFETY: pieces lie inside the region.
            (unsafe { self.given.region.base().add(offset) }, len)
        })
    }

    #[inline]
    fn check(&self, op: OpKind, span: Span) -> Result<(), SubmitError> {
        if span.len == 0 {
            return Err(SubmitError::ZeroLength { op });
        }
        let region = &self.given.region;
        if !region.contains(span) {
            return Err(SubmitError::OutsideRegion {
                op,
                offset: span.offset,
                len: span.len,
                region_len: region.len(),
            });
        }
        match self.pieces.crossing(span.offset, span.len) {
            None => Ok(()),
            Some(boundary) => Err(SubmitError::AcrossRegistration {
                op,
                offset: span.offset,
                len: span.len,
                boundary,
            }),
        }
    }
}

/// Unregisters in reverse order, all of it also when some fail; says which failed.
fn unregister(store: &dyn Store, pieces: &[(NonNull<u8>, usize)]) -> Vec<String> {
    let mut left = Vec::new();
    for &(base, len) in pieces.iter().rev() {
        // SAFETY: each piece was registered with exactly these values; the callers vouch that no call uses it.
        if let Err(error) = guarded(|| unsafe { store.unregister(base, len) }) {
            left.push(show(base, len, &error));
        }
    }
    left
}

fn show(base: NonNull<u8>, len: usize, what: &dyn std::fmt::Display) -> String {
    format!("{len} bytes at {base:p}: {what}")
}

const PANICKED: &str = "the store panicked";

/// A panic of the store is an answer like others.
fn guarded(call: impl FnOnce() -> Result<(), RegisterError>) -> Result<(), RegisterError> {
    let mut answer = Err(RegisterError::new(PANICKED));
    quietly(|| answer = call());
    answer
}
