//! The place where a request is prepared: on the event loop while that is short, or on a thread of its own, which gives up when the
//! request is gone.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use candlepower_api::NotHeld;
use candlepower_engine::CallerId;
use rustix::process::{getpriority_process, setpriority_process};

use crate::config::ServeConfig;
use crate::model::api_error::ApiError;

/// How much less urgent than the event loop a preparing thread is.
const NICENESS: i32 = 5;

/// The model that a request is prepared for, and what the preparation may do where it runs.
pub(crate) struct Preparation<'a, M> {
    model: &'a M,
    pub(crate) config: &'a ServeConfig,
    pub(crate) caller: CallerId,
    place: Place<'a>,
    /// The parts of the request that are left out.
    not_held: RefCell<NotHeld>,
}

enum Place<'a> {
    /// Nothing else is answered meanwhile. True once something came that takes longer.
    EventLoop(Cell<bool>),
    /// Becomes true when nobody waits for the outcome any more.
    Thread(&'a AtomicBool),
}

impl<'a, M> Preparation<'a, M> {
    pub(crate) fn on_event_loop(model: &'a M, config: &'a ServeConfig, caller: CallerId) -> Self {
        Self::at(Place::EventLoop(Cell::new(false)), model, config, caller)
    }

    pub(crate) fn on_thread(
        model: &'a M,
        config: &'a ServeConfig,
        caller: CallerId,
        cancelled: &'a AtomicBool,
    ) -> Self {
        Self::at(Place::Thread(cancelled), model, config, caller)
    }

    fn at(place: Place<'a>, model: &'a M, config: &'a ServeConfig, caller: CallerId) -> Self {
        Self { model, config, caller, place, not_held: RefCell::default() }
    }

    /// Leaves the part of the request at `path` out, which its answer will say. Only what the contract lets pass may be left out.
    pub(crate) fn leave_out(&self, path: &str, kind: Option<&str>) {
        self.not_held.borrow_mut().push(path, kind);
    }

    /// Leaves out the wish at `path`, which the answer will say.
    pub(crate) fn leave_out_wish(&self, path: &str) {
        self.not_held.borrow_mut().push_wish(path);
    }

    /// Has the answer say what was left out when the request was read.
    pub(crate) fn leave_out_all(&self, not_held: &NotHeld) {
        self.not_held.borrow_mut().extend(not_held);
    }

    /// All that was left out.
    pub(crate) fn not_held(&self) -> NotHeld {
        self.not_held.borrow().clone()
    }

    /// When to give up, on a thread; `None` on the event loop, where nothing may take long.
    pub(crate) fn cancelled(&self) -> Option<&'a AtomicBool> {
        match self.place {
            Place::EventLoop(_) => None,
            Place::Thread(cancelled) => Some(cancelled),
        }
    }

    /// The error that ends a preparation on the event loop, because it has to begin again on a thread. No client sees it.
    pub(crate) fn postpone(&self) -> ApiError {
        if let Place::EventLoop(is_postponed) = &self.place {
            is_postponed.set(true);
        }
        ApiError::internal("The request has to be prepared on a thread of its own.")
    }

    pub(crate) fn is_postponed(&self) -> bool {
        matches!(&self.place, Place::EventLoop(is_postponed) if is_postponed.get())
    }
}

impl<M> Deref for Preparation<'_, M> {
    type Target = M;

    fn deref(&self) -> &M {
        self.model
    }
}

/// Says that a request is gone when it is dropped with the future that waits for it.
#[derive(Default)]
pub(crate) struct CancelOnDrop(Arc<AtomicBool>);

impl CancelOnDrop {
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Lets the event loop and the engine go before this thread, once.
pub(crate) fn lower_priority() {
    thread_local! {
        static IS_LOWERED: Cell<bool> = const { Cell::new(false) };
    }
    if !IS_LOWERED.replace(true)
        && let Ok(niceness) = getpriority_process(None)
    {
        // On Linux this is the calling thread's alone. It works as well without.
        let _ = setpriority_process(None, niceness + NICENESS);
    }
}
