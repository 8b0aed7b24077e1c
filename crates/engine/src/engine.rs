//! The engine thread: one loop that schedules, runs, commits and reports.

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{
        Arc,
        atomic::AtomicU64,
        mpsc::{Receiver, TryRecvError},
    },
    time::Instant,
};

use candlepower_checkpoint::ModelSpec;
use candlepower_grammar::Mask;
use candlepower_kernels::sampling::SampledRow;
use candlepower_scheduler::{
    CallerId, Encode, LogitsFor, NewSequence, PinId, Sampled, Scheduler, SeqId, Step,
};

use crate::{
    EngineInfo, EngineMetrics, Error, PromptImage, Request, Result, TokenLogprobs,
    constraint::{Constraint, ConstraintWork, Done, Room, SampledToken, Taken},
    gate::EngineGate,
    idle,
    image_slots::StepImage,
    ranks::Ranks,
    rope_positions::rope_of,
    sequence::{Choices, Sequence, StreamSender},
    step_io::{PromptRow, Sample, SamplingBatch, StepOutput},
};

/// A message to the engine thread.
pub(crate) enum Message {
    Submit(Box<Submission>),
    /// Keep the computed prefix of these tokens, until the pin with this id ends.
    Pin {
        id: u64,
        token_ids: Vec<u32>,
        caller: CallerId,
        cache_salt: Option<Arc<str>>,
    },
    Unpin {
        id: u64,
    },
}

/// A request on its way into the engine thread.
pub(crate) struct Submission {
    pub(crate) request: Request,
    /// One per choice.
    pub(crate) streams: Vec<StreamSender>,
    pub(crate) seed: u64,
    pub(crate) submitted_at: Instant,
}

/// The state that the handles and the engine thread share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) info: EngineInfo,
    pub(crate) gate: EngineGate,
    /// Gives requests without a seed one of their own.
    pub(crate) next_seed: AtomicU64,
    /// The decoder, by which the cost of images is measured.
    pub(crate) decoder: ModelSpec,
}

/// Everything that the thread owns.
pub(crate) struct Engine {
    pub(crate) scheduler: Scheduler,
    pub(crate) ranks: Ranks,
    /// The step that a device runs while the next one is scheduled.
    pub(crate) in_flight: Option<InFlightStep>,
    pub(crate) sequences: HashMap<SeqId, Sequence>,
    pub(crate) constraints: ConstraintWork,
    pub(crate) pins: HashMap<u64, PinId>,
    pub(crate) messages: Receiver<Message>,
    /// Whether a token is appended without being sampled where a grammar allows no other.
    pub(crate) jump_forward: bool,
    /// The share of the sampled tokens of constrained sequences after which others were appended, lately.
    pub(crate) appended_share: f64,
    pub(crate) metrics: EngineMetrics,
    pub(crate) counted: Counted,
    /// The time when the output of the last step had been sent.
    pub(crate) finished: Instant,
    pub(crate) shared: Arc<Shared>,
}

/// A step that was launched and is not waited for yet.
pub(crate) struct InFlightStep {
    step: Step,
    /// Its rows whose prompt tokens are scored.
    prompts: Vec<PromptRow>,
    /// Whether its sampling is launched.
    is_sampled: bool,
    /// Sequences that sample no token in it after all.
    left_out: Vec<SeqId>,
    began: Instant,
}

impl InFlightStep {
    /// The sequences that sample a token in it.
    fn samples(&self) -> impl Iterator<Item = SeqId> {
        self.step.samples().filter(|id| !self.left_out.contains(id))
    }
}

/// Weight of the newest token in [`Engine::appended_share`].
const NEWEST: f64 = 1.0 / 64.0;

/// Part of a step by which the device would idle if it waited for masks.
const IDLE_SHARE: f64 = 1.0 / 16.0;

/// The scheduler's running totals, as far as they are added to the counters.
#[derive(Default)]
pub(crate) struct Counted {
    prefix_queries: u64,
    prefix_hits: u64,
    preemptions: u64,
    swapped_out: u64,
    swapped_in: u64,
    images_encoded: u64,
    encoder_hits: u64,
}

impl Engine {
    /// Runs until every handle and every pin is gone and every sequence has ended.
    pub(crate) fn run(&mut self) -> Result<()> {
        self.publish();
        while self.receive() {
            self.remove_cancelled();
            if !self.is_idle() {
                self.shared.gate.clock.begin();
                self.step()?;
                self.shared.gate.clock.end();
            }
            self.publish();
        }
        Ok(())
    }

    /// Takes the messages that are there, and waits for one if there is nothing else to do. False at the end.
    fn receive(&mut self) -> bool {
        if self.is_idle() {
            match idle::wait(&self.messages, self.ranks.pool()) {
                Ok(message) => self.take(message),
                Err(_) => return false,
            }
        }
        loop {
            match self.messages.try_recv() {
                Ok(message) => self.take(message),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return true,
            }
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Submit(submission) => self.admit(*submission),
            Message::Pin { id, token_ids, caller, cache_salt } => {
                self.pins.insert(id, self.scheduler.pin(&token_ids, &[], caller, cache_salt));
            }
            Message::Unpin { id } => {
                if let Some(pin) = self.pins.remove(&id) {
                    self.scheduler.unpin(pin);
                }
            }
        }
    }

    fn admit(&mut self, submission: Submission) {
        let Submission { mut request, streams, seed, submitted_at } = submission;
        // A request that continues another was counted when the other came.
        if request.num_generated == 0 {
            self.metrics.prompt_tokens.increment(request.prompt.len() as u64);
        }
        let max_model_len = self.shared.info.max_model_len;
        let vocab_size = self.shared.info.vocab_size;
        let allowed = request.sampling.allowed_token_ids.as_deref();
        let allowed = allowed.map(|ids| Mask::of(ids, vocab_size));
        let constraint = request.grammar.take();
        let constraint = constraint.map(|grammar| Constraint::new(grammar, allowed.clone()));
        let constraint = match constraint.transpose() {
            Ok(constraint) => constraint,
            Err(error) => {
                let choices = Choices {
                    request,
                    constraint: None,
                    allowed,
                    streams,
                    seed,
                    max_model_len,
                    submitted_at,
                };
                return choices.sequences().for_each(|choice| choice.fail_constraint(&error));
            }
        };
        let (items, rope) = match &self.shared.info.vision {
            Some(vision) => {
                let item = |image: &PromptImage| image.item(vision, &self.shared.decoder);
                let items = request.images.iter().map(item).collect();
                (items, rope_of(request.prompt.len(), &request.images, vision))
            }
            None => (Vec::new(), None),
        };
        let new = NewSequence {
            prompt: request.prompt.clone(),
            items,
            rope,
            n: streams.len(),
            priority: request.priority,
            caller: request.caller,
            caller_priority: request.caller_priority,
            cache_salt: request.cache_salt.take(),
            // A token's logits are those of the position before it.
            prompt_logits_from: request
                .prompt_logprobs
                .map(|_| request.prompt_logprobs_from.saturating_sub(1)),
            max_tokens: request.sampling.max_tokens.saturating_sub(request.num_generated),
            runs_ahead: self.ranks.run_ahead(),
        };
        let choices =
            Choices { request, constraint, allowed, streams, seed, max_model_len, submitted_at };
        let choices = choices.sequences();
        match self.scheduler.add(new) {
            Ok(ids) => self.sequences.extend(ids.into_iter().zip(choices)),
            Err(error) => choices.for_each(|choice| choice.fail(error.to_string())),
        }
    }

    /// Whether there is nothing to run and nothing to wait for.
    fn is_idle(&self) -> bool {
        self.sequences.is_empty() && self.in_flight.is_none()
    }

    fn remove_cancelled(&mut self) {
        let scheduler = &mut self.scheduler;
        self.sequences.retain(|&id, sequence| {
            let cancelled = sequence.is_cancelled();
            if cancelled {
                scheduler.remove(id);
            }
            !cancelled
        });
    }

    /// Launches the next step, and finishes the one before it, where the ranks run ahead; else the same one.
    ///
    /// The forward of the next step needs no token of the one before. Its sampling may: a mask is made from the newest token. Then
    /// it is launched when the step before is finished and the masks are made, while the device still computes the forward.
    fn step(&mut self) -> Result<()> {
        let mut previous = self.in_flight.take();
        if previous.as_ref().is_some_and(|previous| self.pays_to_wait(previous)) {
            previous.take().map_or(Ok(()), |previous| self.finish(previous))?;
        }
        self.take_constraints()?;
        let mut launched = self.launch()?;
        if launched.is_none() && previous.is_none() {
            if self.sequences.is_empty() {
                // The last sequences have just ended.
                return Ok(());
            }
            if !self.constraints.is_idle() {
                // Every sequence waits for its constraint.
                self.constraints.wait();
                return Ok(());
            }
            return Err(Error::Invariant(format!(
                "nothing can run, yet {} sequences wait",
                self.sequences.len()
            )));
        }
        if let Some(previous) = previous {
            self.finish(previous)?;
        }
        if let Some(launched) = launched.as_mut().filter(|launched| !launched.is_sampled) {
            self.sample(launched)?;
        }
        match launched {
            Some(launched) if !self.ranks.run_ahead() => self.finish(launched),
            launched => {
                self.in_flight = launched;
                Ok(())
            }
        }
    }

    /// Schedules a step and launches it; `None` if nothing can run before the step in flight is done.
    fn launch(&mut self) -> Result<Option<InFlightStep>> {
        let began = Instant::now();
        let step = self.scheduler.schedule();
        if step.is_empty() {
            return Ok(None);
        }
        let encoded = step.encodes.iter().map(|encode| &encode.seq);
        for id in step.rows.iter().map(|row| &row.seq).chain(encoded) {
            if let Some(seconds) = self.sequences.get_mut(id).and_then(Sequence::take_queue_time) {
                self.metrics.request_queue_time_seconds.record(seconds);
            }
        }
        let prompts = scored_prompts(&step, &self.sequences, &self.scheduler);
        let mut launched =
            InFlightStep { step, prompts, is_sampled: true, left_out: Vec::new(), began };
        if self.needs_newest_tokens(&launched.step) {
            launched.is_sampled = false;
            let scored: Vec<_> = launched.prompts.iter().map(PromptRow::scored).collect();
            self.ranks.launch_forward(&launched.step, &scored)?;
        } else {
            let images = step_images(&launched.step, &self.sequences);
            let batch = sampling_batch(
                &launched,
                &self.sequences,
                &self.scheduler,
                &self.shared.info.eos_token_ids,
            );
            self.ranks.launch(&launched.step, &batch, &images);
            self.expect_tokens(&launched);
        }
        Ok(Some(launched))
    }

    /// Whether the sampling of a step has to wait for tokens of the step before.
    fn needs_newest_tokens(&self, step: &Step) -> bool {
        let mut unknown = Vec::new();
        let mut num_penalized = 0;
        for id in step.samples() {
            let sequence = &self.sequences[&id];
            if sequence.needs_newest_token() {
                return true;
            }
            if sequence.has_penalties() {
                num_penalized += 1;
                unknown.extend(sequence.has_unknown_token().then_some(id));
            }
        }
        !unknown.is_empty() && !self.ranks.have_counts(&unknown, num_penalized)
    }

    /// Launches the sampling of a step whose forward was launched, once the tokens of the step before it are known. A sequence
    /// that has ended since, or goes on with appended tokens, samples none.
    fn sample(&mut self, launched: &mut InFlightStep) -> Result<()> {
        self.take_constraints()?;
        let ids: Vec<SeqId> = launched.step.samples().collect();
        for &id in &ids {
            if self.sequences.get(&id).is_some_and(Sequence::is_waiting) {
                // Others do not wait for its mask any longer. Their next forward overwrites its logits.
                self.scheduler.retract(id)?;
                self.scheduler.step_back(id);
            }
        }
        launched.left_out = ids.into_iter().filter(|id| !self.scheduler.is_sampled(*id)).collect();
        let batch = sampling_batch(
            launched,
            &self.sequences,
            &self.scheduler,
            &self.shared.info.eos_token_ids,
        );
        self.ranks.launch_sampling(&launched.step, &batch)?;
        launched.is_sampled = true;
        self.expect_tokens(launched);
        Ok(())
    }

    fn expect_tokens(&mut self, launched: &InFlightStep) {
        for id in launched.samples() {
            self.sequences.get_mut(&id).into_iter().for_each(Sequence::expect_token);
        }
    }

    /// Whether the tokens of a step are worth waiting for before the next one is launched: where tokens are appended to all its
    /// sequences often. Whenever that happens, the forward that runs ahead computes one token, which the forward of the appended
    /// ones could have computed as well. With any other sequence in the step, the device has to run anyway.
    fn pays_to_wait(&self, launched: &InFlightStep) -> bool {
        let mut sequences = launched.step.samples().filter_map(|id| self.sequences.get(&id));
        self.jump_forward
            && self.appended_share > IDLE_SHARE
            && sequences.all(Sequence::is_constrained)
            && launched.step.rows.iter().all(|row| !row.samples.is_empty())
    }

    /// Waits for a step and sends its output.
    fn finish(&mut self, launched: InFlightStep) -> Result<()> {
        let output = self.ranks.wait()?;
        let InFlightStep { step, prompts, began, left_out, .. } = launched;
        if !step.rows.is_empty() {
            self.metrics.forward_duration_seconds.record(output.forward_seconds);
            self.metrics.iteration_tokens.record(step.num_tokens() as f64);
        }
        self.keep_scores(&step, &prompts, &output);
        self.commit(&step, &left_out, output)?;
        let now = Instant::now();
        let began = began.max(std::mem::replace(&mut self.finished, now));
        self.metrics.step_duration_seconds.record((now - began).as_secs_f64());
        Ok(())
    }

    /// Takes the work on constraints that is done. Its sequences may run again.
    fn take_constraints(&mut self) -> Result<()> {
        let finished = self.constraints.finished();
        if let Some(seconds) = finished.iter().map(|done| done.seconds).reduce(f64::max) {
            self.metrics.grammar_duration_seconds.record(seconds);
        }
        finished.into_iter().try_for_each(|done| self.go_on(done))
    }

    /// Ends the wait of a sequence whose constraint has taken its new token. The sequence may have been cancelled since.
    fn go_on(&mut self, done: Done) -> Result<()> {
        let Done { id, sampled, taken, constraint, .. } = done;
        let Some(sequence) = self.sequences.get_mut(&id) else { return Ok(()) };
        let constraint = constraint.map(|constraint| sequence.set_constraint(constraint));
        self.scheduler.release(id);
        if let Some(taken) = taken {
            let is_followed = f64::from(u8::from(!taken.forced.is_empty()));
            self.appended_share += (is_followed - self.appended_share) * NEWEST;
            self.advance(id, Some((sampled, taken)))?;
        }
        if let Err(error) = constraint
            && let Some(sequence) = self.sequences.remove(&id)
        {
            sequence.fail_constraint(&error);
            self.scheduler.remove(id);
        }
        Ok(())
    }

    fn keep_scores(&self, step: &Step, prompts: &[PromptRow], output: &StepOutput) {
        for (prompt, rows) in prompts.iter().zip(&output.prompts) {
            let row = &step.rows[prompt.row];
            // A sequence that was cancelled while the step ran has no use for them.
            let sequence = self.sequences.get(&row.seq);
            let Some(scores) = sequence.and_then(Sequence::scores) else { continue };
            let entries = &mut scores.borrow_mut().tokens[row.first_position as usize + 1..];
            let entries = entries.iter_mut().zip(&prompt.next_token_ids);
            for ((entry, &token_id), row) in entries.zip(rows) {
                let (logprob, rank, top) = (row.logprob, row.rank, row.top.clone());
                *entry = Some(TokenLogprobs { token_id, logprob, rank, top });
            }
        }
    }

    /// Passes the sampled tokens to the scheduler and to their streams, and removes sequences that have ended. Those of `left_out`
    /// sampled none.
    fn commit(&mut self, step: &Step, left_out: &[SeqId], output: StepOutput) -> Result<()> {
        let sampled: Vec<Sampled> = step
            .samples()
            .zip(&output.samples)
            .filter(|(seq, _)| !left_out.contains(seq))
            .map(|(seq, row)| Sampled { seq, token: row.token_id.unwrap_or_default() })
            .collect();
        self.scheduler.commit(step, &sampled)?;
        #[cfg(debug_assertions)]
        self.scheduler.check().map_err(Error::Invariant)?;
        // A token of a sequence that has ended since is lost.
        let kept = sampled.iter().filter(|sampled| self.sequences.contains_key(&sampled.seq));
        self.metrics.generation_tokens.increment(kept.count() as u64);
        let mut samples = output.samples.into_iter();
        for row in &step.rows {
            let end = row.first_position as usize + row.tokens.len();
            let sequence = self.sequences.get(&row.seq);
            let only_scored = row.samples.is_empty()
                && sequence.is_some_and(|sequence| end >= sequence.prompt_len());
            if only_scored {
                self.advance(row.seq, None)?;
            }
            for (&id, sampled) in row.samples.iter().zip(samples.by_ref()) {
                if !left_out.contains(&id) {
                    self.take_sample(id, sampled)?;
                }
            }
        }
        Ok(())
    }

    /// Takes the sampled token of a sequence. A constraint takes the token first, and the sequence sits out meanwhile.
    fn take_sample(&mut self, id: SeqId, sampled: SampledRow) -> Result<()> {
        let eos_token_ids = &self.shared.info.eos_token_ids;
        if let Some(sequence) = self.sequences.get_mut(&id)
            && let Some(token_id) = sampled.token_id
            && let Some(room) = sequence.room_after(token_id, eos_token_ids)
            && let Some(constraint) = sequence.take_constraint()
        {
            self.scheduler.hold(id);
            let room = if self.jump_forward { room } else { Room { forced: 0, ..room } };
            let token = SampledToken { id, sampled, token_id, room };
            self.constraints.go_on(self.ranks.pool(), constraint, token);
            return Ok(());
        }
        self.advance(id, Some((sampled, Taken::default())))
    }

    /// Lets a sequence report its prompt and take its sampled token, with those that must follow it. Removes the sequence if it
    /// has ended.
    fn advance(&mut self, id: SeqId, sampled: Option<(SampledRow, Taken)>) -> Result<()> {
        let cached = self.scheduler.num_cached_tokens(id);
        let Some(sequence) = self.sequences.get_mut(&id) else { return Ok(()) };
        let mut goes_on = sequence.send_prompt(cached);
        let mut forced = Vec::new();
        if let Some((sampled, taken)) = sampled.filter(|_| goes_on) {
            (goes_on, forced) = sequence.push(sampled, taken, &self.shared.info.eos_token_ids);
        }
        self.metrics.generation_tokens.increment(forced.len() as u64);
        self.metrics.jump_forward_tokens.increment(forced.len() as u64);
        if goes_on && forced.is_empty() {
            return Ok(());
        }
        if goes_on {
            // A step that runs ahead has computed the sampled token, and the first of these takes the position of its sample.
            self.scheduler.retract(id)?;
            return Ok(self.scheduler.append(id, &forced)?);
        }
        self.sequences.remove(&id);
        self.scheduler.remove(id);
        Ok(())
    }

    fn publish(&mut self) {
        let stats = self.scheduler.stats();
        let metrics = &self.metrics;
        metrics.num_requests_running.set(stats.num_running as f64);
        metrics.num_requests_waiting.set(stats.num_waiting as f64);
        metrics.kv_blocks_total.set(stats.num_blocks as f64);
        metrics.kv_blocks_free.set(stats.num_free_blocks as f64);
        metrics.kv_blocks_pinned.set(stats.num_pinned_blocks as f64);
        let held = stats.num_blocks - stats.num_free_blocks;
        metrics.kv_cache_usage_ratio.set(held as f64 / stats.num_blocks as f64);
        metrics
            .prefix_cache_queries
            .increment(stats.num_prefix_queries - self.counted.prefix_queries);
        metrics.prefix_cache_hits.increment(stats.num_prefix_hits - self.counted.prefix_hits);
        let preemptions = stats.num_preemptions + stats.num_yielded;
        metrics.num_preemptions.increment(preemptions - self.counted.preemptions);
        metrics.kv_blocks_swapped.set(stats.num_swapped_blocks as f64);
        metrics.swapped_out_blocks.increment(stats.num_swapped_out - self.counted.swapped_out);
        metrics.swapped_in_blocks.increment(stats.num_swapped_in - self.counted.swapped_in);
        metrics.images_encoded.increment(stats.num_items_encoded - self.counted.images_encoded);
        metrics.encoder_cache_hits.increment(stats.num_item_hits - self.counted.encoder_hits);
        let (used, most) = (stats.num_encoder_embeddings, stats.max_encoder_embeddings);
        metrics.encoder_cache_usage_ratio.set(used as f64 / most.max(1) as f64);
        self.counted = Counted {
            prefix_queries: stats.num_prefix_queries,
            prefix_hits: stats.num_prefix_hits,
            preemptions,
            swapped_out: stats.num_swapped_out,
            swapped_in: stats.num_swapped_in,
            images_encoded: stats.num_items_encoded,
            encoder_hits: stats.num_item_hits,
        };
    }
}

/// The pixels of the images whose encoding begins in a step.
fn step_images<'a>(step: &Step, sequences: &'a HashMap<SeqId, Sequence>) -> Vec<StepImage<'a>> {
    let begun = step.encodes.iter().filter(|encode| encode.pieces.start == 0);
    let of = |encode: &Encode| {
        let image = &sequences[&encode.seq].images()[encode.item as usize];
        StepImage { slot: encode.slot, image: image.image.image() }
    };
    begun.map(of).collect()
}

/// The prompt tokens to score in a step.
fn scored_prompts(
    step: &Step,
    sequences: &HashMap<SeqId, Sequence>,
    scheduler: &Scheduler,
) -> Vec<PromptRow> {
    let mut prompts = Vec::new();
    for (index, row) in step.rows.iter().enumerate() {
        let sequence = &sequences[&row.seq];
        if let Some(scores) = sequence.scores().filter(|_| row.logits == LogitsFor::All) {
            let prompt = &scheduler.tokens(row.seq)[..sequence.prompt_len()];
            let next = row.first_position as usize + 1;
            let next_token_ids =
                prompt[next.min(prompt.len())..].iter().take(row.tokens.len()).copied().collect();
            prompts.push(PromptRow { row: index, next_token_ids, top: scores.borrow().top });
        }
    }
    prompts
}

/// The samples of a step, and the prompt tokens to score.
fn sampling_batch<'a>(
    launched: &'a InFlightStep,
    sequences: &'a HashMap<SeqId, Sequence>,
    scheduler: &'a Scheduler,
    eos_token_ids: &[u32],
) -> SamplingBatch<'a> {
    let sample = |id: SeqId| match launched.left_out.contains(&id) {
        true => Sample::left_out(id),
        false => sequences[&id].sample(id, scheduler.tokens(id), eos_token_ids),
    };
    let samples = launched.step.samples().map(sample).collect();
    SamplingBatch { samples, prompts: Cow::Borrowed(&launched.prompts) }
}
