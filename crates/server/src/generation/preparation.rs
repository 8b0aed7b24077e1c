//! Prepares a request: on the event loop if that is short, otherwise on a thread, which stops when the client has gone.
//!
//! Preparation that may take long must never run on the event loop, because /health would not answer meanwhile. The decision is made
//! while the parsed request is prepared, not by a search in the raw body: JSON allows escapes in field names, which would hide a field.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use candlepower_api::NotHeld;
use candlepower_engine::CallerId;
use rustix::process::{getpriority_process, setpriority_process};

use crate::config::ServeConfig;
use crate::generation::pictures::{FetchedImages, WantedImages};
use crate::model::api_error::ApiError;

/// Niceness of a preparing thread, relative to the event loop.
const NICENESS: i32 = 5;

/// The model for which a request is prepared, and the place where the preparation runs.
pub(crate) struct Preparation<'a, M> {
    model: &'a M,
    pub(crate) config: &'a ServeConfig,
    pub(crate) caller: CallerId,
    place: Place<'a>,
    /// The ignored parts of the request.
    not_held: RefCell<NotHeld>,
    /// The images that were fetched for the request; `None` before it is known which it needs.
    fetched: Option<&'a FetchedImages>,
    /// The images without which the preparation cannot go on.
    wanted: Cell<Option<WantedImages>>,
}

enum Place<'a> {
    /// The event loop, which answers nothing else meanwhile. The value becomes true if the preparation must move to a thread.
    EventLoop(Cell<bool>),
    /// A thread. The value becomes true when nobody waits for the result any more.
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
        let (not_held, wanted) = (RefCell::default(), Cell::default());
        Self { model, config, caller, place, not_held, fetched: None, wanted }
    }

    /// The same preparation with the images that were fetched.
    pub(crate) fn with_images(self, fetched: Option<&'a FetchedImages>) -> Self {
        Self { fetched, ..self }
    }

    /// The images that were fetched; `None` before it is known which the request needs.
    pub(crate) fn fetched(&self) -> Option<&'a FetchedImages> {
        self.fetched
    }

    /// The error that stops a preparation until images are fetched, after which it starts again. No client sees it.
    pub(crate) fn wait_for(&self, images: WantedImages) -> ApiError {
        self.wanted.set(Some(images));
        self.postpone()
    }

    /// The images for which the preparation has stopped.
    pub(crate) fn take_wanted(&self) -> Option<WantedImages> {
        self.wanted.take()
    }

    /// Ignores the part of the request at `path`, and notes it for the response header.
    pub(crate) fn leave_out(&self, path: &str, kind: Option<&str>) {
        self.not_held.borrow_mut().push(path, kind);
    }

    /// Ignores the preference at `path`, and notes it for the response header.
    pub(crate) fn leave_out_preference(&self, path: &str) {
        self.not_held.borrow_mut().push_preference(path);
    }

    /// Notes the parts that were ignored when the request was parsed.
    pub(crate) fn leave_out_all(&self, not_held: &NotHeld) {
        self.not_held.borrow_mut().extend(not_held);
    }

    /// All ignored parts.
    pub(crate) fn not_held(&self) -> NotHeld {
        self.not_held.borrow().clone()
    }

    /// The cancellation flag on a thread; `None` on the event loop, where nothing may take long.
    pub(crate) fn cancelled(&self) -> Option<&'a AtomicBool> {
        match self.place {
            Place::EventLoop(_) => None,
            Place::Thread(cancelled) => Some(cancelled),
        }
    }

    /// The error that stops a preparation on the event loop, so that it starts again on a thread. No client sees it.
    pub(crate) fn postpone(&self) -> ApiError {
        if let Place::EventLoop(is_postponed) = &self.place {
            is_postponed.set(true);
        }
        ApiError::internal("Defect of the server: the request must be prepared on a thread.")
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

/// Sets the cancellation flag when it is dropped, with the future that waits for the result.
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

/// Lowers the priority of this thread below the event loop and the engine, once.
pub(crate) fn lower_priority() {
    thread_local! {
        static IS_LOWERED: Cell<bool> = const { Cell::new(false) };
    }
    if !IS_LOWERED.replace(true)
        && let Ok(niceness) = getpriority_process(None)
    {
        // On Linux this changes the calling thread only. A failure is harmless.
        let _ = setpriority_process(None, niceness + NICENESS);
    }
}
