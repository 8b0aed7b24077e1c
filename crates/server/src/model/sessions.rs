//! Sessions of /generate: the tokens of conversations, and the pins that keep them in the prefix cache.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use candlepower_api::{SessionState, excerpt};
use candlepower_engine::{CallerId, EngineHandle, Pin};
use uuid::Uuid;

use crate::model::api_error::{ApiError, ApiResult};

/// Maximum number of sessions. Beyond it, the least recently used session of the caller with the most sessions ends.
const MAX_SESSIONS: usize = 1024;
/// Maximum time to live.
const MAX_TTL_S: u64 = 24 * 60 * 60;
/// Interval at which expired sessions are removed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// All sessions of one model. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Sessions {
    sessions: Arc<Mutex<HashMap<String, Session>>>,
    engine: EngineHandle,
    default_ttl: Duration,
}

#[derive(Debug)]
struct Session {
    /// Only this caller may continue it. Other callers get 404, even if they know its id.
    owner: CallerId,
    token_ids: Arc<[u32]>,
    cache_salt: Option<Arc<str>>,
    /// Keeps the tokens' blocks in the cache until a request needs their memory.
    _pin: Pin,
    ttl: Duration,
    expires_at: Instant,
    /// Whether a request continues it at the moment.
    is_busy: bool,
}

/// A session that a request continues or opens. If the request is cancelled, the session stays unchanged.
#[derive(Debug)]
pub(crate) struct Turn {
    sessions: Sessions,
    id: String,
    owner: CallerId,
    /// Whether the session existed before, so that it must be released.
    is_held: bool,
    closes: bool,
    ttl: Duration,
    cache_salt: Option<Arc<str>>,
    token_ids: Arc<[u32]>,
}

impl Sessions {
    pub(crate) fn new(engine: EngineHandle, default_ttl: Duration) -> Self {
        Self { sessions: Arc::default(), engine, default_ttl }
    }

    /// Starts a task that removes expired sessions as long as `self` exists. Call it once, within the runtime.
    pub(crate) fn sweep_in_background(&self) {
        let sessions = Arc::downgrade(&self.sessions);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(SWEEP_INTERVAL).await;
                let Some(sessions) = Weak::upgrade(&sessions) else { return };
                remove_expired(&mut sessions.lock().unwrap_or_else(PoisonError::into_inner));
            }
        });
    }

    /// Opens an empty session.
    pub(crate) fn open(
        &self,
        owner: CallerId,
        ttl: Option<u64>,
        salt: Option<Arc<str>>,
    ) -> ApiResult<Turn> {
        let ttl = self.ttl(ttl)?.unwrap_or(self.default_ttl);
        Ok(self.turn((owner, new_id()), ttl, salt, Arc::default()))
    }

    /// Opens a session with the tokens of another one.
    pub(crate) fn fork(&self, owner: CallerId, id: &str, ttl: Option<u64>) -> ApiResult<Turn> {
        let ttl = self.ttl(ttl)?;
        let mut sessions = self.lock();
        let session = get("session.fork", &mut sessions, owner, id)?;
        // A fork is a use of the session, so its time begins anew.
        session.expires_at = Instant::now() + session.ttl;
        let salt = session.cache_salt.clone();
        let ttl = ttl.unwrap_or(session.ttl);
        Ok(self.turn((owner, new_id()), ttl, salt, Arc::clone(&session.token_ids)))
    }

    /// Continues a session; only one request at a time may do so.
    pub(crate) fn resume(
        &self,
        owner: CallerId,
        id: &str,
        ttl: Option<u64>,
        closes: bool,
    ) -> ApiResult<Turn> {
        let ttl = self.ttl(ttl)?;
        let mut sessions = self.lock();
        let session = get("session.id", &mut sessions, owner, id)?;
        if session.is_busy {
            let message = "Another request is using this session: wait for it, or fork the session with `session.fork`.";
            return Err(ApiError::invalid("session.id", message));
        }
        session.is_busy = true;
        let salt = session.cache_salt.clone();
        let token_ids = Arc::clone(&session.token_ids);
        let mut turn =
            self.turn((owner, id.to_owned()), ttl.unwrap_or(session.ttl), salt, token_ids);
        (turn.is_held, turn.closes) = (true, closes);
        Ok(turn)
    }

    /// Closes a session; returns its last state.
    pub(crate) fn close(&self, owner: CallerId, id: &str) -> ApiResult<SessionState> {
        let mut sessions = self.lock();
        let num_tokens = get("session.id", &mut sessions, owner, id)?.token_ids.len();
        sessions.remove(id);
        Ok(SessionState { id: id.to_owned(), num_tokens, ttl: 0 })
    }

    fn turn(
        &self,
        (owner, id): (CallerId, String),
        ttl: Duration,
        salt: Option<Arc<str>>,
        ids: Arc<[u32]>,
    ) -> Turn {
        Turn {
            sessions: self.clone(),
            id,
            owner,
            is_held: false,
            closes: false,
            ttl,
            cache_salt: salt,
            token_ids: ids,
        }
    }

    fn ttl(&self, seconds: Option<u64>) -> ApiResult<Option<Duration>> {
        match seconds {
            Some(ttl) if !(1..=MAX_TTL_S).contains(&ttl) => Err(ApiError::invalid(
                "session.ttl",
                format!("`session.ttl` is {ttl}; it must be 1 to {MAX_TTL_S} seconds."),
            )),
            ttl => Ok(ttl.map(Duration::from_secs)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Session>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn {
    /// The session's tokens before this request.
    pub(crate) fn token_ids(&self) -> &[u32] {
        &self.token_ids
    }

    /// The salt of its cached blocks.
    pub(crate) fn cache_salt(&self) -> Option<Arc<str>> {
        self.cache_salt.clone()
    }

    /// A new session for another branch of this request.
    pub(crate) fn branch(&self) -> Self {
        let salt = self.cache_salt.clone();
        self.sessions.turn((self.owner, new_id()), self.ttl, salt, Arc::clone(&self.token_ids))
    }

    /// Ends the turn: stores these tokens in the session, or closes it.
    pub(crate) fn commit(mut self, token_ids: Vec<u32>) -> SessionState {
        let id = self.id.clone();
        // The drop of this turn must not release the session that is stored below.
        let is_held = std::mem::take(&mut self.is_held);
        let num_tokens = token_ids.len();
        if self.closes {
            // The pin ends with the session, so its blocks may be evicted.
            self.sessions.lock().remove(&id);
            return SessionState { id, num_tokens, ttl: 0 };
        }
        let session = Session {
            owner: self.owner,
            // The new pin is made before the old one ends, so that blocks of both are never evicted in between.
            _pin: self.sessions.engine.pin(token_ids.clone(), self.owner, self.cache_salt.clone()),
            token_ids: token_ids.into(),
            cache_salt: self.cache_salt.clone(),
            ttl: self.ttl,
            expires_at: Instant::now() + self.ttl,
            is_busy: false,
        };
        let mut sessions = self.sessions.lock();
        if is_held && !sessions.contains_key(&id) {
            // Another request has closed it meanwhile.
            return SessionState { id, num_tokens, ttl: 0 };
        }
        sessions.insert(id.clone(), session);
        remove_expired(&mut sessions);
        remove_oldest(&mut sessions);
        SessionState { id, num_tokens, ttl: self.ttl.as_secs() }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.is_held
            && let Some(session) = self.sessions.lock().get_mut(&self.id)
        {
            session.is_busy = false;
            session.expires_at = Instant::now() + session.ttl;
        }
    }
}

fn new_id() -> String {
    format!("sess-{}", Uuid::new_v4().simple())
}

/// The session with this id, or 404, also for a session of another caller.
fn get<'a>(
    param: &'static str,
    sessions: &'a mut HashMap<String, Session>,
    owner: CallerId,
    id: &str,
) -> ApiResult<&'a mut Session> {
    remove_expired(sessions);
    sessions.get_mut(id).filter(|session| session.owner == owner).ok_or_else(|| {
        let message = format!(
            "There is no session `{}`: it was never opened, was closed, or has expired. Open a new one.",
            excerpt(id)
        );
        ApiError::not_found(Some(param), "session_not_found", message)
    })
}

fn remove_expired(sessions: &mut HashMap<String, Session>) {
    let now = Instant::now();
    // A session that a request uses is not removed, however long the request takes.
    sessions.retain(|_, session| session.is_busy || session.expires_at > now);
}

fn remove_oldest(sessions: &mut HashMap<String, Session>) {
    while sessions.len() > MAX_SESSIONS {
        // The caller with the most sessions loses one, so that it cannot evict those of others.
        let mut counts: HashMap<CallerId, usize> = HashMap::new();
        for session in sessions.values().filter(|session| !session.is_busy) {
            *counts.entry(session.owner).or_default() += 1;
        }
        let Some((most, _)) = counts.into_iter().max_by_key(|(_, count)| *count) else { return };
        let idle = sessions.iter().filter(|(_, of)| !of.is_busy && of.owner == most);
        // Ordered by last use, not by the time that is left.
        let oldest = idle.min_by_key(|(_, session)| session.expires_at - session.ttl);
        let Some(id) = oldest.map(|(id, _)| id.clone()) else { return };
        sessions.remove(&id);
    }
}
