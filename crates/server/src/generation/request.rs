//! A request to the model: the extractor that all its endpoints share.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::extract::{FromRequest, Request};
use candlepower_api::NotHeld;
use candlepower_engine::Caller;
use futures::future::try_join_all;

use crate::generation::body::JsonBytes;
use crate::generation::cancellation;
use crate::generation::pictures::{FetchedImages, IMAGE_DEADLINE, WantedImages, image_error};
use crate::generation::preparation::{CancelOnDrop, Preparation, lower_priority};
use crate::model::api_error::{ApiError, ApiResult};
use crate::model::keys::ApiKey;
use crate::model::served_model::{Asked, LoadedModel, served};
use crate::model::state::AppState;
use crate::model::tokens::RequestTokens;

/// Bodies up to this size are prepared on the event loop; longer ones would delay other requests there.
const SHORT_BODY_BYTES: usize = 8 << 10;
/// Time limit of the preparation, the wait for a thread included.
const DEADLINE: Duration = Duration::from_secs(10);

/// A request with a JSON body, and the model. The default kind is a model that generates text.
pub(crate) struct Incoming<M = LoadedModel> {
    pub(crate) state: AppState,
    pub(crate) model: Arc<M>,
    pub(crate) caller: Caller,
    /// The caller's API key, if there are keys.
    pub(crate) key: Option<Arc<ApiKey>>,
    pub(crate) arrived: Instant,
    /// Its numbers of tokens, for the access log.
    pub(crate) tokens: Arc<RequestTokens>,
    body: Arc<JsonBytes>,
    reported: ReportedNotHeld,
}

/// The ignored parts of a request, for the response header.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReportedNotHeld(Arc<OnceLock<NotHeld>>);

impl ReportedNotHeld {
    /// The ignored parts, if there are some.
    pub(crate) fn not_held(&self) -> Option<&NotHeld> {
        self.0.get()
    }
}

/// A function that validates and tokenizes a body. All errors with status 400 come from it.
type Prepare<M, T> = fn(&[u8], &Preparation<'_, M>) -> ApiResult<T>;

/// The result of `work`, or 503 after `deadline`.
async fn within<T>(deadline: Duration, work: impl Future<Output = ApiResult<T>>) -> ApiResult<T> {
    tokio::time::timeout(deadline, work).await.unwrap_or_else(|_| {
        let seconds = deadline.as_secs();
        Err(ApiError::unavailable(format!(
            "The request could not be prepared within {seconds} s: it is too large, or the server is too busy. Send a smaller one, or try again later."
        )))
    })
}

/// The end of an attempt to prepare a request.
enum Outcome<T> {
    /// The result, and the ignored parts of the request.
    Done(T, NotHeld),
    /// The request has images, which are read in the next attempt.
    Waits(WantedImages),
}

impl<M: Asked> FromRequest<AppState> for Incoming<M> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> ApiResult<Self> {
        let served = served(request.extensions())?;
        let model = M::of(served.clone())?;
        let caller = request.extensions().get::<Caller>().copied().unwrap_or_default();
        let key = request.extensions().get::<Arc<ApiKey>>().cloned();
        let reported = request.extensions().get::<ReportedNotHeld>().cloned().unwrap_or_default();
        if let Some(key) = &key {
            key.check()?;
        }
        let tokens = request.extensions().get::<Arc<RequestTokens>>().cloned().unwrap_or_default();
        if let Some(trace) = tokens.trace() {
            trace.set_model(served.name());
        }
        let body = Arc::new(JsonBytes::of(request, state.body_memory()).await?);
        Ok(Self {
            state: state.clone(),
            model,
            caller,
            key,
            arrived: Instant::now(),
            tokens,
            body,
            reported,
        })
    }
}

impl<M: Asked> Incoming<M> {
    /// Prepares the body without delaying other requests. Long work is cancelled when the client has gone.
    ///
    /// Images are read in a second attempt, after those of URLs are fetched.
    pub(crate) async fn prepare<T: Send + 'static>(&self, prepare: Prepare<M, T>) -> ApiResult<T> {
        let mut wanted = None;
        if self.body.bytes.len() <= SHORT_BODY_BYTES {
            let here =
                Preparation::on_event_loop(&*self.model, self.state.config(), self.caller.id);
            let prepared = prepare(&self.body.bytes, &here);
            if !here.is_postponed() {
                let prepared = prepared?;
                self.report(here.not_held())?;
                return Ok(prepared);
            }
            wanted = here.take_wanted();
        }
        let mut outcome = match wanted {
            Some(wanted) => Outcome::Waits(wanted),
            None => self.prepare_within(DEADLINE, prepare, None).await?,
        };
        if let Outcome::Waits(wanted) = outcome {
            let deadline = DEADLINE + IMAGE_DEADLINE * wanted.num_images as u32;
            let fetched = within(deadline, self.fetch(wanted)).await?;
            outcome = self.prepare_within(deadline, prepare, Some(fetched)).await?;
        }
        match outcome {
            Outcome::Done(prepared, not_held) => {
                self.report(not_held)?;
                Ok(prepared)
            }
            Outcome::Waits(_) => {
                Err(ApiError::internal("Defect of the server: an image was not fetched."))
            }
        }
    }

    /// Fetches the images of URLs, all at once, as far as the caller's permits allow. This ends when the client has gone.
    async fn fetch(&self, wanted: WantedImages) -> ApiResult<FetchedImages> {
        let fetcher = &wanted.fetcher;
        let fetch_one = async |(path, url): (String, String)| {
            let permit = self.state.fetching().acquire(self.caller.id).await;
            let _permit = permit.map_err(|error| ApiError::internal(error.to_string()))?;
            let encoded = fetcher.fetch(&url).await.map_err(|error| image_error(&path, &error))?;
            let memory = self.state.body_memory().take(encoded.bytes().len())?;
            Ok::<_, ApiError>((url, encoded, memory))
        };
        let mut fetched = FetchedImages::default();
        for (url, encoded, memory) in try_join_all(wanted.urls.into_iter().map(fetch_one)).await? {
            fetched.by_url.insert(url, encoded);
            fetched.memory.push(memory);
        }
        Ok(fetched)
    }

    /// Counts and logs the ignored parts of the request.
    ///
    /// # Errors
    /// 400 with `--strict-requests`.
    fn report(&self, not_held: NotHeld) -> ApiResult<()> {
        if not_held.is_empty() {
            return Ok(());
        }
        let refused = not_held.parts().iter().find(|part| !part.is_preference);
        if let Some(first) = refused.filter(|_| self.state.config().strict_requests) {
            let message = format!(
                "`{first}` is not supported, and this server refuses requests with unsupported parts (--strict-requests): leave it out."
            );
            return Err(ApiError::invalid(first.path.clone(), message));
        }
        self.state.metrics().not_held.increment(1);
        tracing::info!(parts = not_held.line(), "ignored unsupported parts of a request");
        // The cell is still empty, because a request is prepared once.
        let _ = self.reported.0.set(not_held);
        Ok(())
    }

    /// Prepares on a thread, within a time that includes the wait for one.
    async fn prepare_within<T: Send + 'static>(
        &self,
        deadline: Duration,
        prepare: Prepare<M, T>,
        fetched: Option<FetchedImages>,
    ) -> ApiResult<Outcome<T>> {
        within(deadline, self.prepare_on_thread(prepare, fetched)).await
    }

    async fn prepare_on_thread<T: Send + 'static>(
        &self,
        prepare: Prepare<M, T>,
        fetched: Option<FetchedImages>,
    ) -> ApiResult<Outcome<T>> {
        let permit = self
            .state
            .preparation()
            .acquire(self.caller.id)
            .await
            .map_err(|error| ApiError::internal(error.to_string()))?;
        let (body, model) = (Arc::clone(&self.body), Arc::clone(&self.model));
        let (state, caller) = (self.state.clone(), self.caller.id);
        let cancel = CancelOnDrop::default();
        let cancelled = cancel.flag();
        let work = move || {
            // The permit is kept until the work is done, even if the client has gone before.
            let _permit = permit;
            lower_priority();
            let preparation = Preparation::on_thread(&*model, state.config(), caller, &cancelled);
            let preparation = preparation.with_images(fetched.as_ref());
            let prepared =
                cancellation::until(Arc::clone(&cancelled), || prepare(&body.bytes, &preparation));
            match preparation.take_wanted() {
                Some(wanted) => Ok(Outcome::Waits(wanted)),
                None => prepared.map(|prepared| Outcome::Done(prepared, preparation.not_held())),
            }
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(result) => result,
            Err(error) => Err(ApiError::internal(format!(
                "Defect of the server: the request could not be prepared: {error}"
            ))),
        }
    }
}
