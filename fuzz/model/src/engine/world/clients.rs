//! Futures: started, polled, and dropped.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use moonring::{Client, ClientError, OpKind, Slot, StoreOutcome};

use super::World;
use crate::engine::model::{ClientOptions, Polled, Request};

/// What an op came to, as the engine carries it, and its slot.
type Ended = (Result<u64, ClientError>, Option<Slot>);

/// A future that is not over.
pub(super) struct Waiting {
    future: Pin<Box<dyn Future<Output = Ended>>>,
    pub(super) number: usize,
    pub(super) options: ClientOptions,
}

impl World {
    pub(super) fn start_future(&self) {
        let which = self.below(self.clients.len());
        let (client, options) = &self.clients[which];
        let (mut request, slot) = self.request();
        request.class = options.class;
        request.time = options.time;
        request.user_data = 0;
        let needs = matches!(request.kind, OpKind::Retrieve | OpKind::Store);
        if needs && slot.is_none() {
            return;
        }
        let future = future_of(client, &request, slot);
        let (number, expected) = self.model.borrow_mut().start_future(*options, request);
        self.say(format_args!("future {number}, {options:?}: {expected:?}"));
        let waiting = Waiting {
            future,
            number,
            options: *options,
        };
        self.poll_and_keep(waiting, expected);
    }

    pub(super) fn poll_and_keep(&self, mut waiting: Waiting, expected: Polled) {
        let mut cx = Context::from_waker(Waker::noop());
        let polled = waiting.future.as_mut().poll(&mut cx);
        match (polled, expected) {
            (Poll::Pending, Polled::Pending) => self.waiting.borrow_mut().push(waiting),
            (
                Poll::Ready((Err(ClientError::Refused(got)), slot)),
                Polled::Refused(reason, request),
            ) => {
                assert_eq!(got, reason);
                assert_eq!(slot.is_some(), request.bytes.is_some());
                if let (Some(slot), Some(bytes)) = (slot, &request.bytes) {
                    self.check_slot(slot, bytes);
                }
            }
            (Poll::Ready((result, slot)), Polled::Ended(id, comes_back)) => {
                let op_result = self.model.borrow().ops[id].result;
                let request = self.model.borrow().ops[id].request.clone();
                // A delete's value is nothing.
                assert_eq!(result, op_result.map_err(ClientError::Failed));
                assert_eq!(slot.is_some(), comes_back);
                let defined = request.kind == OpKind::Store || op_result.is_ok();
                if let (Some(slot), Some(bytes), true) = (slot, &request.bytes, defined) {
                    self.check_slot(slot, bytes);
                }
            }
            (got, wanted) => panic!("polled: {got:?}, wanted {wanted:?}"),
        }
    }

    pub(super) fn use_future(&self) {
        let mut futures = self.waiting.borrow_mut();
        if futures.is_empty() {
            return;
        }
        let what = self.below(4);
        let which = self.below(futures.len());
        let waiting = futures.swap_remove(which);
        drop(futures);
        if what == 0 {
            self.say(format_args!("drop future {}", waiting.number));
            self.model
                .borrow_mut()
                .drop_future(waiting.number, waiting.options);
            drop(waiting.future);
            return;
        }
        let expected = self
            .model
            .borrow_mut()
            .poll_future(waiting.number, waiting.options);
        self.poll_and_keep(waiting, expected);
    }
}

/// The future of one op, with what it ends with as the engine carries it.
fn future_of(
    client: &Arc<Client>,
    request: &Request,
    slot: Option<Slot>,
) -> Pin<Box<dyn Future<Output = Ended>>> {
    let (client, key) = (Arc::clone(client), request.key.clone());
    let (exact, force) = (request.exact, request.force);
    match (request.kind, slot) {
        (OpKind::Lookup, _) => {
            Box::pin(async move { (client.lookup(&key).await.map(u64::from), None) })
        }
        (OpKind::Delete, _) if force => {
            Box::pin(async move { (client.delete_forced(&key).await.map(|()| 0), None) })
        }
        (OpKind::Delete, _) => {
            Box::pin(async move { (client.delete(&key).await.map(|()| 0), None) })
        }
        (OpKind::Retrieve, Some(slot)) => Box::pin(async move {
            let returned = match exact {
                true => client.retrieve_exact(&key, slot).await,
                false => client.retrieve(&key, slot).await,
            };
            (returned.result, returned.slot)
        }),
        (OpKind::Store, Some(slot)) => Box::pin(async move {
            let returned = client.store(&key, slot).await;
            let raw = |outcome| match outcome {
                StoreOutcome::Stored => 1,
                StoreOutcome::AlreadyThere => 2,
                _ => 0,
            };
            (returned.result.map(raw), returned.slot)
        }),
        (_, None) => unreachable!("it was given a slot"),
    }
}
