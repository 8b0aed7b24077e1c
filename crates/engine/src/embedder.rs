//! The engine of models that give vectors or scores: requests' texts become batches, batches are computed at the same time.
//!
//! There is no cache and no step that a text shares with a later one, so the scheduler is a round. It takes texts up to a number of
//! tokens, from all callers in turn, and from each caller's requests in turn. It sorts them by length, cuts them into batches of at
//! most `max_num_batched_tokens`, and computes the batches on all threads. A small request waits for one round, not for a large
//! request before it. Dropping [`Vectors`] cancels a request: what of it is not computed is skipped.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap, VecDeque},
    fmt,
    sync::{Arc, mpsc},
    thread,
    time::Instant,
};

use candlepower_models::EncoderInput;
use candlepower_scheduler::{Caller, CallerId};
use rayon::ThreadPool;
use tokio::sync::oneshot;

use crate::{
    EngineMetrics, Error, PoolingSource, Result,
    config::{EmbedderConfig, EmbedderInfo, StartProgress},
    error::SubmitError,
    gate::{Death, EngineGate, EngineHealth},
    idle,
    pooled::PoolingRunner,
    queue::QueueSlot,
    running::Running,
    warm_up::warm_up_tokens,
};

/// Batches of a round for each that is computed at the same time: enough for the threads to even out, few enough that a
/// round is short.
const BATCHES_IN_TURN: usize = 4;

/// A running engine. Cheap to clone; the engine ends when the last handle is dropped.
#[derive(Clone)]
pub struct Embedder {
    shared: Arc<Shared>,
    messages: mpsc::Sender<Job>,
}

/// The state that the handles and the engine's thread share.
struct Shared {
    info: EmbedderInfo,
    /// Has a queue slot for each request that is computed or waits.
    gate: EngineGate,
}

/// The future result of a request: for each input its vector, or its score alone. Dropping it cancels the request.
#[derive(Debug)]
pub struct Vectors(oneshot::Receiver<Result<Vec<Vec<f32>>, String>>);

impl Vectors {
    /// Waits for the vectors.
    ///
    /// # Errors
    /// A message where the request could not be computed; `None` where the engine has ended (see [`Embedder::health`]).
    pub async fn wait(self) -> Result<Vec<Vec<f32>>, Option<String>> {
        self.0.await.map_err(|_| None)?.map_err(Some)
    }
}

/// Runs the model over one token. Some token's vector must be finite.
fn warm_up(runner: &PoolingRunner, pool: &ThreadPool, vocab_size: usize) -> Result<()> {
    for token_id in warm_up_tokens(vocab_size) {
        let one = EncoderInput { token_ids: vec![token_id], type_ids: Vec::new() };
        let batches: Result<Vec<_>> = runner.run(&[vec![one]], pool).into_iter().collect();
        if batches?.iter().flatten().flatten().all(|value| value.is_finite()) {
            return Ok(());
        }
    }
    Err(Error::NothingFinite)
}

impl Embedder {
    /// Loads the model, runs it once, and starts the engine's thread. Blocks until all of that is done.
    ///
    /// # Errors
    /// If the checkpoint cannot be loaded or a setting is out of range.
    pub fn start(
        source: PoolingSource<'_>,
        config: EmbedderConfig,
        progress: &mut (dyn FnMut(StartProgress) + Send),
    ) -> Result<Self> {
        for (name, value) in [
            ("max_num_batched_tokens", config.max_num_batched_tokens),
            ("max_num_seqs", config.max_in_flight),
            ("threads", config.num_threads.unwrap_or(1)),
        ] {
            if value == 0 {
                let reason = "it must be at least 1";
                return Err(Error::Config { name, value: value.to_string(), reason });
            }
        }
        let num_threads = config.num_threads.unwrap_or_else(candlepower_machine::compute_threads);
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(num_threads)
            .thread_name(|index| format!("compute-{index}"))
            .build()
            .map_err(|error| Error::Thread(error.to_string()))?;
        let runner = PoolingRunner::load(source, &config, &pool, progress)?;
        progress(StartProgress::WarmingUp);
        warm_up(&runner, &pool, source.vocab_size())?;
        let info = EmbedderInfo {
            architecture: source.architecture().to_owned(),
            max_model_len: source.max_model_len(config.max_model_len)?,
            vocab_size: source.vocab_size(),
            dimensions: runner.dimensions(),
            pooling: runner.pooling(),
            normalizes: runner.normalizes(),
            weights_bytes: runner.weights_bytes(),
            weights_dtype: runner.weights_dtype().as_str(),
            num_threads,
        };
        let shared = Arc::new(Shared {
            info,
            gate: EngineGate::new(config.max_in_flight, config.stuck_after, Death::default()),
        });
        let (messages, receiver) = mpsc::channel();
        let rounds = Rounds {
            at_once: runner.batches_at_once(num_threads),
            runner,
            pool,
            batch_tokens: config.max_num_batched_tokens,
            messages: receiver,
            jobs: Vec::new(),
            metrics: config.metrics,
            shared: Arc::clone(&shared),
        };
        rounds.spawn()?;
        Ok(Self { shared, messages })
    }

    /// The values found and chosen at start.
    pub fn info(&self) -> &EmbedderInfo {
        &self.shared.info
    }

    /// Hands a caller's request to the engine.
    ///
    /// # Errors
    /// If the queue is full, an input cannot be computed by this model, or the engine has ended.
    pub fn submit(
        &self,
        caller: Caller,
        inputs: Vec<EncoderInput>,
    ) -> Result<Vectors, SubmitError> {
        self.check(&inputs)?;
        let slot = self.shared.gate.queue.take(caller.id, 1)?;
        let (reply, vectors) = oneshot::channel();
        let results = vec![None; inputs.len()];
        let submitted_at = Instant::now();
        let job = Job { caller, inputs, next: 0, results, reply, submitted_at, _slot: slot };
        match self.messages.send(job) {
            Ok(()) => Ok(Vectors(vectors)),
            Err(_) => Err(self.shared.gate.dead()),
        }
    }

    /// The health of the engine.
    pub fn health(&self) -> EngineHealth {
        self.shared.gate.health()
    }

    /// Checks that the queue has a slot for a request of a caller.
    ///
    /// # Errors
    /// [`SubmitError::QueueFull`] if not.
    pub fn check_queue(&self, caller: CallerId) -> Result<(), SubmitError> {
        self.shared.gate.queue.check(caller, 1)
    }

    fn check(&self, inputs: &[EncoderInput]) -> Result<(), SubmitError> {
        let EmbedderInfo { max_model_len, vocab_size, .. } = &self.shared.info;
        if inputs.is_empty() {
            return Err(SubmitError::Invalid("the request has no inputs".to_owned()));
        }
        for input in inputs {
            let len = input.token_ids.len();
            let problem = if len == 0 {
                "an input has no tokens".to_owned()
            } else if len > *max_model_len {
                format!("an input has {len} tokens; at most {max_model_len} fit")
            } else if let Some(id) = input.token_ids.iter().find(|id| **id as usize >= *vocab_size)
            {
                format!("token id {id} is outside the vocabulary of {vocab_size}")
            } else {
                continue;
            };
            return Err(SubmitError::Invalid(problem));
        }
        Ok(())
    }
}

impl fmt::Debug for Embedder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedder").field("info", &self.shared.info).finish_non_exhaustive()
    }
}

/// A request on the engine's side.
struct Job {
    caller: Caller,
    inputs: Vec<EncoderInput>,
    /// The first input that is in no round yet.
    next: usize,
    results: Vec<Option<Vec<f32>>>,
    reply: oneshot::Sender<Result<Vec<Vec<f32>>, String>>,
    submitted_at: Instant,
    _slot: Vec<Arc<QueueSlot>>,
}

/// One input of one job.
#[derive(Clone, Copy)]
struct Taken {
    job: usize,
    input: usize,
    tokens: usize,
}

/// Everything that the engine's thread owns.
struct Rounds {
    runner: PoolingRunner,
    pool: ThreadPool,
    /// Batches that are computed at the same time.
    at_once: usize,
    batch_tokens: usize,
    messages: mpsc::Receiver<Job>,
    /// Requests that are not answered, in the order in which they came.
    jobs: Vec<Job>,
    metrics: EngineMetrics,
    shared: Arc<Shared>,
}

impl Rounds {
    fn spawn(self) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let running = Running::begin();
        let run = move || {
            let _ends_last = running;
            let mut rounds = self;
            // The rounds, with their replies, are dropped after the reason of their end is recorded.
            shared.gate.run(|| {
                rounds.run();
                Ok(())
            });
        };
        let thread = thread::Builder::new().name("engine".into()).spawn(run);
        thread.map_err(|error| Error::Thread(error.to_string())).map(drop)
    }

    /// Works until the last handle is dropped.
    fn run(&mut self) {
        loop {
            if self.jobs.is_empty() {
                match idle::wait(&self.messages, &self.pool) {
                    Ok(job) => self.admit(job),
                    Err(_) => return,
                }
            }
            while let Ok(job) = self.messages.try_recv() {
                self.admit(job);
            }
            self.jobs.retain(|job| !job.reply.is_closed());
            self.round();
            self.count_waiting(0);
        }
    }

    fn admit(&mut self, job: Job) {
        let tokens: usize = job.inputs.iter().map(|input| input.token_ids.len()).sum();
        self.metrics.prompt_tokens.increment(tokens as u64);
        self.jobs.push(job);
    }

    /// Computes one round and answers the requests that it completes.
    fn round(&mut self) {
        let taken = self.take();
        if taken.is_empty() {
            return;
        }
        let began = Instant::now();
        self.shared.gate.clock.begin();
        self.count_waiting(taken.len());
        let tokens: usize = taken.iter().map(|taken| taken.tokens).sum();
        self.metrics.iteration_tokens.record(tokens as f64);
        let batches = batches(taken, self.batch_tokens, self.at_once);
        let inputs = |batch: &Vec<Taken>| {
            batch.iter().map(|t| self.jobs[t.job].inputs[t.input].clone()).collect()
        };
        let inputs: Vec<Vec<EncoderInput>> = batches.iter().map(inputs).collect();
        let computed = self.runner.run(&inputs, &self.pool);
        self.metrics.forward_duration_seconds.record(began.elapsed().as_secs_f64());
        let mut failures: Vec<Option<String>> = vec![None; self.jobs.len()];
        for (batch, outcome) in batches.into_iter().zip(computed) {
            match outcome {
                Ok(vectors) => {
                    for (taken, vector) in batch.into_iter().zip(vectors) {
                        self.jobs[taken.job].results[taken.input] = Some(vector);
                    }
                }
                Err(error) => {
                    let message = error.to_string();
                    tracing::error!(%message, "a batch could not be computed");
                    batch.iter().for_each(|taken| failures[taken.job] = Some(message.clone()));
                }
            }
        }
        // Before the answers, so that a client with an answer finds the ended round in the metrics.
        self.shared.gate.clock.end();
        self.metrics.step_duration_seconds.record(began.elapsed().as_secs_f64());
        self.count_waiting(0);
        self.answer(failures);
    }

    /// Takes inputs up to the tokens of a round, and at least one.
    fn take(&mut self) -> Vec<Taken> {
        let limit = self.batch_tokens * self.at_once * BATCHES_IN_TURN;
        let taken = in_turn(&self.jobs, limit);
        for one in &taken {
            let job = &mut self.jobs[one.job];
            if job.next == 0 {
                let waited = job.submitted_at.elapsed().as_secs_f64();
                self.metrics.request_queue_time_seconds.record(waited);
            }
            job.next += 1;
        }
        taken
    }

    /// Answers the requests that have all their results, and those that failed.
    fn answer(&mut self, failures: Vec<Option<String>>) {
        let jobs = std::mem::take(&mut self.jobs);
        for (mut job, failure) in jobs.into_iter().zip(failures) {
            let outcome = match failure {
                Some(message) => Err(message),
                None if job.results.iter().all(Option::is_some) => {
                    Ok(std::mem::take(&mut job.results).into_iter().flatten().collect())
                }
                None => {
                    self.jobs.push(job);
                    continue;
                }
            };
            let _ = job.reply.send(outcome); // the client may be gone
        }
    }

    fn count_waiting(&self, running: usize) {
        let waiting: usize = self.jobs.iter().map(|job| job.inputs.len() - job.next).sum();
        self.metrics.num_requests_running.set(running as f64);
        self.metrics.num_requests_waiting.set(waiting as f64);
    }
}

/// Chooses inputs until they have `limit` tokens. The next one is of the caller that has had the fewest for its weight, and of its
/// requests in turn. The caller with the oldest request comes first, so everyone's turn comes.
fn in_turn(jobs: &[Job], limit: usize) -> Vec<Taken> {
    let mut numbers = HashMap::new();
    let mut queues: Vec<VecDeque<Taken>> = Vec::new();
    for (i, job) in jobs.iter().enumerate() {
        let Some(input) = job.inputs.get(job.next) else { continue };
        let number = *numbers.entry(job.caller.id).or_insert(queues.len());
        if number == queues.len() {
            queues.push(VecDeque::new());
        }
        let tokens = input.token_ids.len();
        queues[number].push_back(Taken { job: i, input: job.next, tokens });
    }
    let mut turns: BTreeSet<(u64, usize)> = (0..queues.len()).map(|number| (0, number)).collect();
    let mut taken = Vec::new();
    let mut tokens = 0;
    while tokens < limit
        && let Some((had, number)) = turns.pop_first()
    {
        let Some(one) = queues[number].pop_front() else { continue };
        let Job { caller, inputs, .. } = &jobs[one.job];
        tokens += one.tokens;
        taken.push(one);
        if let Some(next) = inputs.get(one.input + 1) {
            let tokens = next.token_ids.len();
            queues[number].push_back(Taken { input: one.input + 1, tokens, ..one });
        }
        let cost = ((one.tokens as u64) << 20) / u64::from(caller.weight.get());
        turns.insert((had + cost.max(1), number));
    }
    taken
}

/// Cuts a round into batches of inputs of about the same length, the longest first. A batch has at most `limit` tokens,
/// padding included, unless one input alone has more; and no more than its share of the round where `at_once` are computed at
/// the same time.
fn batches(mut taken: Vec<Taken>, limit: usize, at_once: usize) -> Vec<Vec<Taken>> {
    taken.sort_by_key(|taken| Reverse(taken.tokens));
    let tokens: usize = taken.iter().map(|taken| taken.tokens).sum();
    let limit = limit.min(tokens.div_ceil(at_once));
    let mut batches: Vec<Vec<Taken>> = Vec::new();
    for one in taken {
        match batches.last_mut() {
            Some(batch) if (batch.len() + 1) * batch[0].tokens <= limit => batch.push(one),
            _ => batches.push(vec![one]),
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    fn taken(lengths: &[usize]) -> Vec<Taken> {
        let one = |(input, tokens): (usize, &usize)| Taken { job: 0, input, tokens: *tokens };
        lengths.iter().enumerate().map(one).collect()
    }

    fn lengths(batches: &[Vec<Taken>]) -> Vec<Vec<usize>> {
        batches.iter().map(|batch| batch.iter().map(|taken| taken.tokens).collect()).collect()
    }

    /// A request of a caller, with inputs of these lengths.
    fn job(caller: u64, weight: u32, lengths: &[usize]) -> Job {
        let input = |len: &usize| EncoderInput { token_ids: vec![1; *len], type_ids: Vec::new() };
        Job {
            caller: Caller { id: CallerId(caller), weight: NonZeroU32::new(weight).unwrap() },
            inputs: lengths.iter().map(input).collect(),
            next: 0,
            results: Vec::new(),
            reply: oneshot::channel().0,
            submitted_at: Instant::now(),
            _slot: Vec::new(),
        }
    }

    /// The tokens that each caller has in a round.
    fn shares(jobs: &[Job], limit: usize) -> Vec<(u64, usize)> {
        let mut shares = std::collections::BTreeMap::new();
        for one in in_turn(jobs, limit) {
            *shares.entry(jobs[one.job].caller.id.0).or_default() += one.tokens;
        }
        shares.into_iter().collect()
    }

    #[test]
    fn callers_share_a_round_however_many_requests_they_have() {
        let mut jobs: Vec<Job> = (0..50).map(|_| job(1, 1, &[10; 100])).collect();
        jobs.push(job(2, 1, &[10; 100]));
        assert_eq!(shares(&jobs, 400), [(1, 200), (2, 200)]);
        jobs.push(job(3, 2, &[20; 100]));
        assert_eq!(shares(&jobs, 800), [(1, 200), (2, 200), (3, 400)]);
        // The others have what one does not need.
        jobs[50] = job(2, 1, &[10]);
        assert_eq!(shares(&jobs, 620), [(1, 210), (2, 10), (3, 400)]);
    }

    #[test]
    fn requests_of_a_caller_take_turns_and_each_input_is_taken_once() {
        let jobs = [job(1, 1, &[1; 3]), job(1, 1, &[1; 1]), job(1, 1, &[])];
        let taken = in_turn(&jobs, 100);
        let order: Vec<_> = taken.iter().map(|one| (one.job, one.input)).collect();
        assert_eq!(order, [(0, 0), (1, 0), (0, 1), (0, 2)]);
        assert_eq!(in_turn(&jobs, 1).len(), 1, "at least one");
        assert!(in_turn(&[], 100).is_empty());
    }

    #[test]
    fn batches_hold_texts_of_about_the_same_length() {
        let found = batches(taken(&[2, 9, 3, 10, 2, 4, 3, 3, 9]), 20, 1);
        assert_eq!(lengths(&found), [vec![10, 9], vec![9, 4], vec![3, 3, 3, 2, 2]]);
    }

    #[test]
    fn padding_counts_and_one_text_may_be_longer() {
        let found = batches(taken(&[50, 6, 5, 1]), 12, 1);
        assert_eq!(lengths(&found), [vec![50], vec![6, 5], vec![1]]);
    }

    #[test]
    fn every_thread_gets_a_share() {
        assert_eq!(batches(taken(&[8; 8]), 1000, 2).len(), 2);
        assert_eq!(batches(taken(&[8; 8]), 1000, 3).len(), 4);
        assert_eq!(batches(taken(&[8]), 1000, 4).len(), 1);
        assert!(batches(Vec::new(), 1000, 4).is_empty());
    }
}
