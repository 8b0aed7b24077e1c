//! `--deterministic` on an emulated GPU: a request has the same tokens and the same log-probabilities in any company.

use serde_json::{Value, json};

use crate::support::{Server, ServerBuilder, wait_for};

/// Requests with long answers.
const LONG: [usize; 2] = [2, 3];

/// Prompts of one to about 220 tokens. Two of them are sampled, by their own seed. Two have long answers, and need 18 blocks
/// of the cache together.
fn requests() -> Vec<Value> {
    let text =
        "What is the capital of France? The capital of France is Paris. What is 2 + 3? 2 + 3 = 5. "
            .repeat(8);
    let lengths = [1, 50, 125, 200, 330, 560];
    let request = |(index, length): (usize, usize)| {
        let temperature = if index % 3 == 2 { 1.0 } else { 0.0 };
        let max_tokens = if LONG.contains(&index) { 70 } else { 12 };
        json!({
            "model": "demo", "prompt": text[..length], "temperature": temperature, "seed": 5,
            "max_tokens": max_tokens, "ignore_eos": true, "logprobs": 1,
        })
    };
    lengths.into_iter().enumerate().map(request).collect()
}

/// The tokens of the answer, and the log-probability of each.
fn ask(server: &Server, request: &Value) -> String {
    let choice = server.post("/v1/completions", request).ok()["choices"][0].take();
    format!("{} {}", choice["text"], choice["logprobs"]["token_logprobs"])
}

fn one_by_one(server: &Server, requests: &[Value]) -> Vec<String> {
    requests.iter().map(|request| ask(server, request)).collect()
}

fn together(server: &Server, requests: &[Value]) -> Vec<String> {
    std::thread::scope(|scope| {
        let asked: Vec<_> =
            requests.iter().map(|request| scope.spawn(|| ask(server, request))).collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    })
}

/// The long answers run before the other requests come, so that they fill the cache together.
fn long_ones_first(server: &Server, requests: &[Value]) -> Vec<String> {
    std::thread::scope(|scope| {
        let start = |(index, request)| (index, scope.spawn(move || ask(server, request)));
        let (long, short): (Vec<_>, Vec<_>) =
            requests.iter().enumerate().partition(|(index, _)| LONG.contains(index));
        let mut asked: Vec<_> = long.into_iter().map(start).collect();
        wait_for("both long answers to run", || {
            (server.metrics().value("num_requests_running") == 2.0).then_some(())
        });
        asked.extend(short.into_iter().map(start));
        asked.sort_by_key(|(index, _)| *index);
        asked.into_iter().map(|(_, asked)| asked.join().unwrap()).collect()
    })
}

/// A server on an emulated GPU whose cuBLAS does what `cublas` says.
fn on_gpu(cublas: &str, flags: &str) -> ServerBuilder {
    let server = ServerBuilder::new("demo").flags(&format!(
        "--device cuda --dtype bfloat16 --max-num-seqs 8 --max-model-len 256 {flags}"
    ));
    server.env("CANDLEPOWER_EMULATED_GPUS", "1").env("CANDLEPOWER_EMULATED_CUBLAS", cublas)
}

#[test]
#[ignore = "needs an emulated GPU: `cargo xtask deep goldens` runs it"]
fn an_emulated_gpu_gives_the_same_tokens_in_any_company() {
    let requests = requests();
    // A cuBLAS that refuses all products shows that none is asked of it.
    let server = on_gpu("refused", "--deterministic --max-num-batched-tokens 256").start();
    assert!(server.log_when_ready().contains("deterministic is experimental"));
    let alone = one_by_one(&server, &requests);
    assert_eq!(together(&server, &requests), alone, "together, with prefixes from the cache");

    let chunks =
        "--deterministic --max-num-batched-tokens 24 --enforce-eager --no-enable-prefix-caching";
    let server = on_gpu("refused", chunks).start();
    assert_eq!(together(&server, &requests), alone, "in chunks, without graphs and prefix cache");

    // The cache holds 16 blocks of 16 tokens, which both long answers do not fit.
    let small = "--deterministic --max-num-batched-tokens 512 --kv-cache-memory 1Mi --no-enable-prefix-caching";
    let server = on_gpu("refused", small).start();
    assert_eq!(long_ones_first(&server, &requests), alone, "with a small cache");
    let preempted = server.metrics().value("num_preemptions_total");
    assert!(preempted > 0.0, "no sequence was preempted");

    let requests = &requests[..3];
    // Without the setting, results depend on a cuBLAS whose sums depend on the number of rows.
    let server =
        on_gpu("by_rows", "--max-num-batched-tokens 256 --no-enable-prefix-caching").start();
    assert_ne!(
        together(&server, requests),
        one_by_one(&server, requests),
        "the emulated cuBLAS hides its order"
    );

    for (flags, part) in [
        ("--kv-cache-dtype fp8", "a KV cache in FP8"),
        ("--tensor-parallel-size 2", "tensor_parallel_size 2"),
    ] {
        let refused = on_gpu("", &format!("--deterministic {flags}"))
            .env("CANDLEPOWER_EMULATED_GPUS", "2")
            .refused();
        let expected = format!("deterministic is not possible on a GPU with {part}");
        assert!(refused.message.contains(&expected), "{}", refused.message);
    }
}

/// The CPU's results never depend on other requests, so it takes the setting and computes as without it.
#[test]
fn the_cpu_takes_the_setting_and_computes_as_without() {
    let requests = requests();
    let start = |flags: &str| {
        ServerBuilder::new("demo").flags(&format!("--device cpu --max-num-seqs 8 {flags}")).start()
    };
    let [with, without] = ["--enable-deterministic-inference", ""].map(start);
    assert_eq!(together(&with, &requests), one_by_one(&without, &requests));
}
