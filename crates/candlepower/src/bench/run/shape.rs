//! Measures one batch of sequences of one length: prefill, then decode.

use std::fmt;
use std::time::Instant;

use anyhow::{Result, bail};
use candlepower_engine::{Caller, EngineHandle, Request, SamplingParams, TokenEvent, TokenStream};

use crate::bench::meter::{StepMeter, StepSample};
use crate::bench::stats::Summary;

/// Maximum number of attempts to measure decoding.
const DECODE_ATTEMPTS: usize = 5;

/// A batch of equal sequences.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) batch: usize,
    pub(super) input_tokens: usize,
    pub(super) output_tokens: usize,
}

impl Shape {
    /// Length of each sequence at its end.
    pub(super) fn sequence_tokens(&self) -> usize {
        self.input_tokens + self.output_tokens + 1
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { batch, input_tokens, output_tokens } = self;
        write!(f, "batch {batch}, {input_tokens} tokens in, {output_tokens} out")
    }
}

/// The measurements of a shape.
pub(super) struct ShapeResult {
    pub(super) shape: Shape,
    pub(super) prefill: Prefill,
    pub(super) decode: Decode,
}

/// The computation of all prompts.
pub(super) struct Prefill {
    pub(super) tokens: usize,
    /// Time from the first submission to the last prompt's first token.
    pub(super) duration_s: f64,
    pub(super) steps: usize,
    pub(super) forward_s: f64,
}

/// The steps in which each sequence generated one token.
pub(super) struct Decode {
    /// Time from the end of one step to the end of the next.
    pub(super) step_s: Summary,
    pub(super) steps: usize,
    /// Shares of that time, which add up to 1.
    pub(super) forward_share: f64,
    pub(super) rest_of_step_share: f64,
    pub(super) between_steps_share: f64,
}

impl Prefill {
    pub(super) fn tokens_per_s(&self) -> f64 {
        self.tokens as f64 / self.duration_s
    }
}

impl ShapeResult {
    pub(super) fn decode_tokens_per_s(&self) -> f64 {
        self.shape.batch as f64 / self.decode.step_s.mean
    }
}

/// A runner of shapes on one engine.
pub(super) struct ShapeRunner {
    engine: EngineHandle,
    meter: StepMeter,
    rng: fastrand::Rng,
}

impl ShapeRunner {
    pub(super) fn new(engine: EngineHandle, meter: StepMeter, seed: u64) -> Self {
        Self { engine, meter, rng: fastrand::Rng::with_seed(seed) }
    }

    /// # Errors
    /// The engine refuses a request or fails, or too few steps have all sequences.
    pub(super) async fn run(&mut self, shape: Shape) -> Result<ShapeResult> {
        let vocab_size = self.engine.info().vocab_size as u32;
        let mut prompt = || (0..shape.input_tokens).map(|_| self.rng.u32(..vocab_size)).collect();
        let prompts: Vec<Vec<u32>> = (0..shape.batch).map(|_| prompt()).collect();
        // Steps of the warm-up or of the shape before are dropped.
        self.meter.take();
        let begin = Instant::now();
        self.generate(&prompts, 1).await?;
        let duration_s = begin.elapsed().as_secs_f64();
        let steps = self.meter.take();
        let prefill = Prefill {
            tokens: shape.batch * shape.input_tokens,
            duration_s,
            steps: steps.len(),
            forward_s: steps.iter().map(|step| step.forward_s).sum(),
        };
        // Only the last block of each prompt is not cached now, so that the sequences start together.
        let decode = self.decode(&shape, &prompts).await?;
        Ok(ShapeResult { shape, prefill, decode })
    }

    /// Decodes again until most steps have had all sequences in them. On a busy machine the first sequences may be far ahead
    /// before the last ones are submitted.
    async fn decode(&self, shape: &Shape, prompts: &[Vec<u32>]) -> Result<Decode> {
        let mut attempts_left = DECODE_ATTEMPTS;
        loop {
            // The first token belongs to the step that ends the prompt, so one more is generated than is
            // measured.
            self.generate(prompts, shape.output_tokens + 1).await?;
            let measured = decode(shape.batch, &self.meter.take());
            attempts_left -= 1;
            let is_enough =
                measured.as_ref().is_ok_and(|decode| decode.steps * 2 >= shape.output_tokens);
            if is_enough || attempts_left == 0 {
                return measured;
            }
        }
    }

    /// Generates `max_tokens` tokens for all prompts concurrently.
    async fn generate(&self, prompts: &[Vec<u32>], max_tokens: usize) -> Result<()> {
        let sampling = SamplingParams {
            max_tokens,
            temperature: 0.0,
            // Random weights, as of dummy models, may choose the end-of-sequence token at any time.
            ignore_eos: true,
            ..SamplingParams::default()
        };
        let request = |prompt: &Vec<u32>| Request {
            prompt: prompt.clone(),
            images: Vec::new(),
            sampling: sampling.clone(),
            n: 1,
            priority: 0,
            caller: Caller::default(),
            caller_priority: 0,
            cache_salt: None,
            prompt_logprobs: None,
            prompt_logprobs_from: 0,
            grammar: None,
            num_generated: 0,
        };
        let requests: Vec<Request> = prompts.iter().map(request).collect();
        // All requests are submitted before the first stream is read, so that they run in the same steps.
        let mut streams: Vec<TokenStream> = Vec::new();
        for request in requests {
            streams.extend(self.engine.submit(request)?);
        }
        for stream in &mut streams {
            self.read_to_end(stream).await?;
        }
        Ok(())
    }

    async fn read_to_end(&self, stream: &mut TokenStream) -> Result<()> {
        loop {
            match stream.next().await {
                Some(TokenEvent::Token { finish: Some(_), .. }) => return Ok(()),
                Some(TokenEvent::TooComplex { message } | TokenEvent::Failed { message }) => {
                    bail!("a sequence failed: {message}")
                }
                Some(_) => {}
                None => bail!("the engine has stopped: {:?}", self.engine.health()),
            }
        }
    }
}

/// Summarizes the longest run of steps with one token for each of `batch` sequences.
fn decode(batch: usize, steps: &[StepSample]) -> Result<Decode> {
    let runs = steps.chunk_by(|a, b| (a.tokens == batch) == (b.tokens == batch));
    let runs = runs.filter(|run| run[0].tokens == batch);
    // A step that ends some prompts may have as many tokens by chance, hence the longest run and not all runs.
    let run = runs.max_by_key(|run| run.len()).unwrap_or_default();
    // The end of the first step is the start of the second; its own start is unknown.
    let [first, rest @ ..] = run else {
        bail!("no step had all sequences in it; raise --output-tokens")
    };
    let walls = std::iter::once(first).chain(rest).zip(rest);
    let walls: Vec<f64> =
        walls.map(|(before, step)| (step.ended - before.ended).as_secs_f64()).collect();
    let Some(step_s) = Summary::of(walls.iter().copied()) else {
        bail!("too few steps had all sequences in them; raise --output-tokens")
    };
    let wall: f64 = walls.iter().sum();
    let in_steps: f64 = rest.iter().map(|step| step.step_s).sum();
    let forward: f64 = rest.iter().map(|step| step.forward_s).sum();
    Ok(Decode {
        step_s,
        steps: rest.len(),
        forward_share: forward / wall,
        rest_of_step_share: (in_steps - forward) / wall,
        between_steps_share: (wall - in_steps) / wall,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn decode_is_the_longest_run_of_steps_with_all_sequences() {
        let begin = Instant::now();
        let step = |at_ms, tokens| StepSample {
            ended: begin + Duration::from_millis(at_ms),
            tokens,
            step_s: 0.008,
            forward_s: 0.006,
        };
        // The step with 32 tokens is a prefill, which separates the first decode from the other three. The last
        // one has lost a sequence.
        let steps = [step(1, 2), step(20, 32), step(30, 2), step(40, 2), step(50, 2), step(60, 1)];
        let decode = decode(2, &steps).unwrap();
        assert_eq!(decode.steps, 2);
        assert!((decode.step_s.mean - 0.01).abs() < 1e-9);
        assert!((decode.forward_share - 0.6).abs() < 1e-9);
        assert!((decode.rest_of_step_share - 0.2).abs() < 1e-9);
        assert!((decode.between_steps_share - 0.2).abs() < 1e-9);
        assert!(super::decode(2, &steps[..2]).is_err() && super::decode(5, &steps).is_err());
    }
}
