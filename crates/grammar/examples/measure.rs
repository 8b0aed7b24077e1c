//! Measures the time to compile constraints, and to compute the mask of each token.
//!
//! `cargo run --release -p candlepower-grammar --example measure -- [TOKENIZER_JSON END_TOKEN]` prints percentiles over a
//! hundred schemas, with randomly sampled outputs for each. The default tokenizer is the demo model's.

#![expect(clippy::print_stdout, reason = "a command-line tool answers on its standard output")]

use std::error::Error;
use std::time::{Duration, Instant};

use candlepower_grammar::{Constraint, Grammar, GrammarCompiler};
use candlepower_tokenizer::Tokenizer;
use fastrand::Rng;

const DEMO: &[u8] = include_bytes!("../../server/demo/tokenizer.json");
const DEMO_END: &str = "<|im_end|>";
const OUTPUTS_PER_SCHEMA: usize = 5;
const MAX_TOKENS: usize = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (tokenizer, end) = match arguments.as_slice() {
        [] => (DEMO.to_vec(), DEMO_END),
        [path, end] => (std::fs::read(path)?, end.as_str()),
        _ => return Err("usage: measure [TOKENIZER_JSON END_TOKEN]".into()),
    };
    let tokenizer = Tokenizer::from_bytes(&tokenizer, None)?;
    let end = tokenizer.token_to_id(end).ok_or("the tokenizer has no such token")?;
    let begin = Instant::now();
    let compiler = GrammarCompiler::new(&tokenizer, &[end], tokenizer.vocab_size())?;
    println!(
        "vocabulary of {} tokens: {:?} once per model",
        tokenizer.vocab_size(),
        begin.elapsed()
    );

    let (mut compiled, mut masks, mut accepted) = (Vec::new(), Vec::new(), Vec::new());
    let mut random = Rng::with_seed(0);
    for schema in candlepower_testing::schemas::varied() {
        let constraint = Constraint::JsonSchema(schema);
        let grammar = timed(&mut compiled, || compiler.compile(&constraint))?;
        for _ in 0..OUTPUTS_PER_SCHEMA {
            walk(grammar.clone(), end, &mut random, &mut masks, &mut accepted)?;
        }
    }
    show("compile", &mut compiled);
    show("mask", &mut masks);
    show("accept", &mut accepted);
    Ok(())
}

/// Generates one output, in which each token is the first allowed one from a random id on.
fn walk(
    mut grammar: Grammar,
    end: u32,
    random: &mut Rng,
    masks: &mut Vec<Duration>,
    accepted: &mut Vec<Duration>,
) -> Result<(), Box<dyn Error>> {
    for _ in 0..MAX_TOKENS {
        let mask = timed(masks, || grammar.allowed())?;
        let bits = u32::try_from(mask.words().len() * 32)?;
        // A random start, because the lowest ids of most vocabularies are single bytes: the first allowed token would
        // seldom be a word.
        let from = random.u32(..bits);
        let next = (from..bits).chain(0..from).find(|id| mask.allows(*id));
        // The end token counts as the end, although it is only one of the allowed ones.
        let Some(id) = next.filter(|id| *id != end) else { return Ok(()) };
        timed(accepted, || grammar.accept(id))?;
        if grammar.is_finished() {
            return Ok(());
        }
    }
    Ok(())
}

fn timed<T>(times: &mut Vec<Duration>, work: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let result = work();
    times.push(begin.elapsed());
    result
}

fn show(what: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!(
        "{what:<8} n {:>6}  p50 {:>10?}  p90 {:>10?}  p99 {:>10?}  max {:>10?}",
        times.len(),
        at(50),
        at(90),
        at(99),
        at(100)
    );
}
