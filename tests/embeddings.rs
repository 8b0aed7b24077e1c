//! Embeddings and scores over HTTP: all-MiniLM-L6-v2 through the official Python client, a small cross-encoder, and
//! every wrong input.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::{Server, ServerBuilder, TempFolder, python, run_to_end};

const MODEL: &str = "all-minilm";

fn golden(name: &str) -> PathBuf {
    candlepower_testing::goldens::folder(&format!("encoders/{name}"))
}

/// The folder of all-MiniLM-L6-v2.
fn mini_lm_folder() -> PathBuf {
    let Some(folder) = std::env::var_os("CANDLEPOWER_TEST_MINI_LM") else {
        panic!(
            "CANDLEPOWER_TEST_MINI_LM is not set: run the tests with `cargo xtask test`, which prepares it"
        );
    };
    folder.into()
}

fn mini_lm_with(flags: &str) -> Server {
    ServerBuilder::new(mini_lm_folder())
        .flags("--served-model-name all-minilm")
        .flags(flags)
        .start()
}

fn mini_lm() -> Server {
    mini_lm_with("")
}

fn cross_encoder() -> Server {
    ServerBuilder::new(golden("bert-score")).flags("--served-model-name pairs").start()
}

fn floats(vector: &Value) -> Vec<f64> {
    vector.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

fn embed(server: &Server, body: &Value) -> Value {
    server.post("/v1/embeddings", body).ok()
}

mod python_client {
    //! One test per case of `clients/embeddings_client.py`.

    use super::*;

    fn check(case: &str) {
        let server = mini_lm();
        let reference = candlepower_testing::goldens::root().join("encoders/all-minilm-l6-v2.json");
        run_to_end(
            python("clients/embeddings_client.py").args([case, &server.url()]).arg(reference),
        );
    }

    macro_rules! cases {
        ($($case:ident)+) => {
            $(
                #[test]
                fn $case() {
                    check(stringify!($case));
                }
            )+
        };
    }

    cases! { sentence_transformers base64_equals_float a_thousand_texts token_ids dimensions models errors }
}

#[test]
fn a_text_has_one_vector_whatever_its_batch() {
    let server = mini_lm();
    let long = "rain over the harbour ".repeat(50);
    let alone = embed(&server, &json!({"model": MODEL, "input": "a cat"}));
    let body = json!({"model": MODEL, "input": ["a cat", long, "a cat"]});
    let together = embed(&server, &body);
    let alone = floats(&alone["data"][0]["embedding"]);
    for index in [0, 2] {
        assert_eq!(together["data"][index]["index"], index);
        let vector = floats(&together["data"][index]["embedding"]);
        assert_eq!(alone, vector);
    }
    let usage = &together["usage"];
    // The tokenizer adds `[CLS]` and `[SEP]` to each text.
    assert_eq!(usage["prompt_tokens"], 4 + 4 + 202);
    assert_eq!(usage["total_tokens"], usage["prompt_tokens"]);
}

#[test]
fn every_wrong_input_has_its_error() {
    let server = mini_lm();
    let long = "rain ".repeat(300);
    let only_scores = "This is an embedding model and gives no scores: use POST /v1/embeddings, or serve a cross-encoder.";
    for (path, body, param, message) in [
        (
            "/v1/embeddings",
            json!({"input": "a", "model": 7}),
            "model",
            "`model`: invalid type: integer `7`, expected a string.",
        ),
        ("/v1/embeddings", json!({"model": MODEL}), "input", "`input` is missing."),
        (
            "/v1/embeddings",
            json!({"model": MODEL, "input": long}),
            "input",
            "This model's maximum context length is 256 tokens, but the input has 302: shorten it, or set \
             `truncate_prompt_tokens`.",
        ),
        (
            "/v1/embeddings",
            json!({"model": MODEL, "input": ["a", long]}),
            "input[1]",
            "This model's maximum context length is 256 tokens, but the input has 302: shorten it, or set \
             `truncate_prompt_tokens`.",
        ),
        (
            "/v1/embeddings",
            json!({"model": MODEL, "input": [[101, 102], [40000]]}),
            "input[1]",
            "Token id 40000 is outside the model's vocabulary of 30522.",
        ),
        (
            "/v1/embeddings",
            json!({"model": MODEL, "input": [[101], []]}),
            "input[1]",
            "The input is empty: it needs at least one token.",
        ),
        (
            "/v1/embeddings",
            json!({"model": MODEL, "input": "a", "dimensions": 385}),
            "dimensions",
            "`dimensions` is 385; it must be 1 to 384, the dimensions of the model.",
        ),
        (
            "/v1/embeddings",
            json!({"model": MODEL, "input": "a", "dimensions": 0}),
            "dimensions",
            "`dimensions` is 0; it must be 1 to 384, the dimensions of the model.",
        ),
        (
            "/v1/embeddings",
            json!({"model": MODEL, "input": "a", "truncate_prompt_tokens": 257}),
            "truncate_prompt_tokens",
            "`truncate_prompt_tokens` is 257; it must be 1 to 256, or -1 for 256.",
        ),
        (
            "/v1/embeddings",
            json!({"model": MODEL, "input": "a", "prompt_name": "query"}),
            "prompt_name",
            "The model has no prompt `query`; its prompts are: none.",
        ),
        (
            "/v1/embeddings",
            json!({"model": MODEL, "input": "a", "temperature": 0.5}),
            "temperature",
            "`temperature` is not a field of this endpoint: leave it out.",
        ),
        (
            "/v1/rerank",
            json!({"model": MODEL, "query": "a", "documents": ["b"]}),
            "model",
            only_scores,
        ),
        ("/v1/score", json!({"model": MODEL, "text_1": "a", "text_2": "b"}), "model", only_scores),
    ] {
        let error = server.post(path, &body).error(400);
        assert_eq!(
            (&error["param"], &error["message"]),
            (&json!(param), &json!(message)),
            "{body}"
        );
    }
    let text = "This is an embedding model and does not generate text: use POST /v1/embeddings.";
    let messages = json!([{"role": "user", "content": "a"}]);
    for (path, body) in [
        ("/v1/chat/completions", json!({"model": MODEL, "messages": messages})),
        ("/v1/completions", json!({"model": MODEL, "prompt": "a"})),
        ("/v1/responses", json!({"model": MODEL, "input": "a"})),
        ("/v1/messages", json!({"model": MODEL, "messages": messages, "max_tokens": 1})),
        ("/generate", json!({"text": "a"})),
    ] {
        let error = server.post(path, &body).error(400);
        assert_eq!((&error["param"], &error["message"]), (&json!("model"), &json!(text)), "{path}");
    }
    let error = server.post("/v1/embeddings", &json!({"model": "other", "input": "a"})).error(404);
    assert_eq!(error["code"], "model_not_found");
}

/// Ten megabytes are refused before tokenization, which would take seconds.
#[test]
fn a_text_that_cannot_fit_is_refused_unread() {
    let server = mini_lm();
    let long = "rain ".repeat(2_000_000);
    let error =
        server.post("/v1/embeddings", &json!({"model": MODEL, "input": ["a", long]})).error(400);
    let (message, param) = (error["message"].as_str().unwrap(), &error["param"]);
    let expected =
        "This model's maximum context length is 256 tokens, but the prompt has at least ";
    assert!(message.starts_with(expected), "{message}");
    assert_eq!((param, &error["code"]), (&json!("input[1]"), &json!("context_length_exceeded")));
}

#[test]
fn inputs_that_are_too_long_are_cut_where_that_is_asked_for() {
    let server = mini_lm();
    let vector = |body: Value| {
        let answer = embed(&server, &body);
        (floats(&answer["data"][0]["embedding"]), answer["usage"]["prompt_tokens"].clone())
    };
    let long = "rain ".repeat(300);
    // 254 of the words, and the two tokens that the tokenizer adds.
    let (whole, tokens) = vector(json!({"model": MODEL, "input": "rain ".repeat(254)}));
    assert_eq!(tokens, 256);
    let (cut, tokens) =
        vector(json!({"model": MODEL, "input": long, "truncate_prompt_tokens": -1}));
    assert_eq!((cut, tokens), (whole, json!(256)));
    let (short, _) = vector(json!({"model": MODEL, "input": "rain rain"}));
    let (cut, tokens) = vector(json!({"model": MODEL, "input": long, "truncate_prompt_tokens": 4}));
    assert_eq!((cut, tokens), (short, json!(4)));
    // Token ids are truncated as they are, because clients add the special tokens themselves.
    let (_, tokens) =
        vector(json!({"model": MODEL, "input": [101, 4542, 102], "truncate_prompt_tokens": 2}));
    assert_eq!(tokens, 2);
}

#[test]
fn a_longer_context_may_be_asked_for() {
    let server = mini_lm_with("--max-model-len 512");
    let body = json!({"model": MODEL, "input": "rain ".repeat(300)});
    assert_eq!(embed(&server, &body)["usage"]["total_tokens"], 302);
    assert_eq!(server.get("/v1/models").ok()["data"][0]["max_model_len"], 512);
}

#[test]
fn a_model_says_what_it_is() {
    let server = mini_lm();
    let models = server.get("/v1/models").ok();
    assert_eq!(
        (&models["data"][0]["id"], &models["data"][0]["max_model_len"]),
        (&json!(MODEL), &json!(256))
    );
    let log = server.log_when_ready();
    for part in
        ["BertModel", "embeddings of 384 dimensions (mean pooling, normalized)", "no KV cache"]
    {
        assert!(log.contains(part), "{part} is not in\n{log}");
    }
    let tokens = server.post("/tokenize", &json!({"prompt": "a cat"})).ok();
    assert_eq!(tokens["tokens"], json!([101, 1037, 4937, 102]));
    let back = server.post("/detokenize", &json!({"tokens": [1037, 4937]})).ok();
    assert_eq!(back["prompt"], "a cat");
    embed(&server, &json!({"model": MODEL, "input": ["a cat", "a dog"]}));
    let metrics = server.metrics();
    // Two texts of four tokens each, in one request.
    assert_eq!(metrics.value("prompt_tokens_total"), 8.0);
    assert_eq!(metrics.value("request_success_total"), 1.0);
    assert_eq!(metrics.value("num_requests_running"), 0.0);
}

#[test]
fn settings_that_are_for_other_models_stop_the_start() {
    let folder = mini_lm_folder();
    for (flags, message) in [
        (
            "--dtype bfloat16",
            "--dtype bfloat16 is for models that generate text, and BertModel is an encoder: leave it out",
        ),
        ("--load-format dummy", "--load-format dummy is for models that generate text"),
        ("--kv-cache-dtype fp8", "--kv-cache-dtype fp8 is for models that generate text"),
        ("--kv-cache-dtype float32", "--kv-cache-dtype float32 is for models that generate text"),
        ("--max-model-len 513", "max_model_len 513 is beyond the model's 512 positions"),
    ] {
        let refused = ServerBuilder::new(&folder).flags(flags).refused();
        assert!(refused.message.contains(message), "{flags}: {}", refused.message);
    }
    let refused = ServerBuilder::new("demo").flags("--pooling last --kv-cache-dtype fp8").refused();
    let message = "--kv-cache-dtype fp8 is for models that generate text, and LlamaForCausalLM is served for embeddings";
    assert!(refused.message.contains(message), "{}", refused.message);
    let refused =
        ServerBuilder::new(golden("bert-score")).flags("--pooling mean").refused().message;
    let message =
        "--pooling mean is for embedding models, and BertForSequenceClassification gives scores";
    assert!(refused.contains(message), "{refused}");
}

#[test]
fn a_decoder_gives_the_vectors_of_sentence_transformers() {
    for (name, line) in [
        ("qwen3-embedding", "embeddings of 32 dimensions (last pooling, normalized)"),
        ("embedding-gemma", "embeddings of 24 dimensions (mean pooling, normalized)"),
    ] {
        vectors_are_those_of_sentence_transformers(name, line);
    }
}

/// Compares the server's embeddings with those stored beside the model: with and without a prompt, alone and in a
/// batch.
fn vectors_are_those_of_sentence_transformers(name: &str, line: &str) {
    let folder = golden(name);
    let server = ServerBuilder::new(&folder).flags("--served-model-name words").start();
    let texts = std::fs::read_to_string(folder.join("texts.json")).unwrap();
    let texts: Vec<Value> = serde_json::from_str(&texts).unwrap();
    for prompt in [Value::Null, json!("query")] {
        let rows: Vec<&Value> = texts.iter().filter(|row| row["prompt"] == prompt).collect();
        let input: Vec<&Value> = rows.iter().map(|row| &row["text"]).collect();
        let mut body = json!({"model": "words", "input": input});
        if !prompt.is_null() {
            body["prompt_name"] = prompt;
        }
        let answer = embed(&server, &body);
        let tokens: u64 = rows.iter().map(|row| row["tokens"].as_u64().unwrap()).sum();
        assert_eq!(answer["usage"]["prompt_tokens"], tokens);
        for (row, data) in rows.iter().zip(answer["data"].as_array().unwrap()) {
            let (want, got) = (floats(&row["vector"]), floats(&data["embedding"]));
            assert_eq!(got.len(), want.len());
            for (got, want) in got.iter().zip(&want) {
                assert!((got - want).abs() < 1e-5, "{got} is not {want} in {row}");
            }
            // The result alone equals that in a batch.
            body["input"] = row["text"].clone();
            assert_eq!(floats(&embed(&server, &body)["data"][0]["embedding"]), got);
        }
    }
    server.log_with(line);
    let body = json!({"model": "words", "messages": [{"role": "user", "content": "a"}]});
    let error = server.post("/v1/chat/completions", &body).error(400);
    let message = "This is an embedding model and does not generate text: use POST /v1/embeddings.";
    assert_eq!(error["message"], message);
}

#[test]
fn an_empty_name_of_a_prompt_is_none_whatever_the_default() {
    let folder = TempFolder::new();
    let golden = golden("qwen3-embedding");
    std::fs::create_dir(folder.path().join("1_Pooling")).unwrap();
    for name in [
        "config.json",
        "1_Pooling/config.json",
        "model.safetensors",
        "modules.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        folder.write(name, std::fs::read(golden.join(name)).unwrap());
    }
    let settings =
        json!({"prompts": {"query": "Instruct: find\nQuery:"}, "default_prompt_name": "query"});
    folder.write("config_sentence_transformers.json", settings.to_string());
    let with_default = ServerBuilder::new(folder.path()).flags("--served-model-name words").start();
    let without = ServerBuilder::new(&golden).flags("--served-model-name words").start();
    let first = |server: &Server, prompt: Value| {
        let body = json!({"model": "words", "input": "rain", "prompt_name": prompt});
        embed(server, &body)["data"][0]["embedding"].clone()
    };
    let plain = first(&without, Value::Null);
    assert_eq!(first(&without, json!("")), plain);
    assert_eq!(first(&with_default, json!("")), plain);
    assert_ne!(first(&with_default, Value::Null), plain);
    // Ids take no prompt, but an empty name is none, so it is no error.
    let ids = json!({"model": "words", "input": [1, 2], "prompt_name": ""});
    embed(&with_default, &ids);
}

#[test]
fn any_decoder_gives_vectors_where_a_pooling_is_named() {
    let vectors = |pooling: &str| {
        let server = ServerBuilder::new("demo").flags(&format!("--pooling {pooling}")).start();
        let body = json!({"model": "demo", "input": ["What is the capital of France?", "a"]});
        let answer = embed(&server, &body);
        assert_eq!(server.metrics().value("request_success_total"), 1.0);
        floats(&answer["data"][0]["embedding"])
    };
    let (last, mean) = (vectors("last"), vectors("mean"));
    assert_eq!(last.len(), mean.len());
    assert_ne!(last, mean);
}

#[test]
fn a_model_that_generates_text_gives_no_vectors() {
    let server = Server::demo();
    let message = "This model generates text. This endpoint needs an embedding model or a cross-encoder: serve one, \
                   or start this model with --pooling for embeddings.";
    for (path, body) in [
        ("/v1/embeddings", json!({"model": "demo", "input": "a"})),
        ("/v1/rerank", json!({"model": "demo", "query": "a", "documents": ["b"]})),
        ("/v1/score", json!({"model": "demo", "text_1": "a", "text_2": "b"})),
    ] {
        let error = server.post(path, &body).error(400);
        assert_eq!((&error["param"], &error["message"]), (&json!("model"), &json!(message)));
    }
}

#[test]
fn pairs_have_the_scores_of_transformers() {
    let server = cross_encoder();
    let pairs = std::fs::read_to_string(golden("bert-score").join("pairs.json")).unwrap();
    let pairs: Vec<Value> = serde_json::from_str(&pairs).unwrap();
    let query = &pairs[0]["text_1"];
    let documents: Vec<&Value> = pairs.iter().map(|pair| &pair["text_2"]).collect();
    let tokens: u64 = pairs.iter().map(|pair| pair["tokens"].as_u64().unwrap()).sum();
    let body = json!({"model": "pairs", "text_1": query, "text_2": documents});
    let scores = server.post("/v1/score", &body).ok();
    assert_eq!(scores["usage"]["prompt_tokens"], tokens);
    for (pair, score) in pairs.iter().zip(scores["data"].as_array().unwrap()) {
        let (got, want) = (score["score"].as_f64().unwrap(), pair["score"].as_f64().unwrap());
        assert!((got - want).abs() < 1e-5, "{got} is not {want}");
    }
    let body = json!({"model": "pairs", "query": query, "documents": documents, "top_n": 3});
    let ranked = server.post("/v1/rerank", &body).ok();
    let results = ranked["results"].as_array().unwrap();
    assert_eq!(results.len(), 3);
    let relevances: Vec<f64> =
        results.iter().map(|result| result["relevance_score"].as_f64().unwrap()).collect();
    assert!(relevances.is_sorted_by(|a, b| a >= b), "{relevances:?}");
    let best = pairs.iter().map(|pair| pair["score"].as_f64().unwrap()).fold(0.0, f64::max);
    assert!((relevances[0] - best).abs() < 1e-5);
    for result in results {
        let index = result["index"].as_u64().unwrap() as usize;
        assert_eq!(&result["document"]["text"], documents[index]);
    }
    let body = json!({"model": "pairs", "query": query, "documents": [{"text": "no"}], "return_documents": false});
    let ranked = server.post("/v1/rerank", &body).ok();
    assert!(ranked["results"][0].get("document").is_none(), "{ranked}");
}

#[test]
fn clients_of_text_embeddings_inference_get_its_list() {
    let server = cross_encoder();
    let documents = json!(["rain over the harbour", "no", "the harbour"]);
    let own = json!({"query": "harbour", "documents": documents});
    let own = server.post("/v1/rerank", &own).ok()["results"].clone();
    for path in ["/rerank", "/v1/rerank"] {
        let body = json!({"query": "harbour", "texts": documents, "raw_scores": false, "return_text": true, "truncate": true,
            "truncation_direction": "Right"});
        let ranked = server.post(path, &body).ok();
        let same = own.as_array().unwrap().iter().map(|result| {
            json!({"index": result["index"], "score": result["relevance_score"], "text": result["document"]["text"]})
        });
        assert_eq!(ranked, same.collect::<Value>());
    }
    // The model takes at most 64 tokens.
    let long = json!({"query": "a", "texts": ["b", "a ".repeat(80)]});
    assert_eq!(server.post("/rerank", &long).error(400)["param"], "texts[1]");
    let cut = json!({"query": "a", "texts": ["b", "a ".repeat(80)], "truncate": true, "top_n": 1});
    let ranked = server.post("/rerank", &cut).ok();
    assert!(ranked.as_array().unwrap().len() == 1 && ranked[0].get("text").is_none(), "{ranked}");
}

#[test]
fn a_cross_encoder_refuses_what_it_cannot_do() {
    let server = cross_encoder();
    let long = "a ".repeat(80);
    let scores_only =
        "This is a reranking model and has no embeddings: use POST /v1/rerank or /v1/score.";
    let no_text =
        "This is a reranking model and does not generate text: use POST /v1/rerank or /v1/score.";
    let too_long = "This model's maximum context length is 64 tokens, but the input has 84: shorten it, or set \
                    `truncate_prompt_tokens`.";
    for (path, body, param, message) in [
        ("/v1/embeddings", json!({"model": "pairs", "input": "a"}), "model", scores_only),
        ("/v1/completions", json!({"model": "pairs", "prompt": "a"}), "model", no_text),
        (
            "/v1/rerank",
            json!({"model": "pairs", "query": "a", "documents": ["b", long]}),
            "documents[1]",
            too_long,
        ),
        (
            "/v1/rerank",
            json!({"model": "pairs", "query": "a", "documents": ["b"], "top_n": 0}),
            "top_n",
            "`top_n` is 0; it must be at least 1, or left out.",
        ),
        (
            "/v1/rerank",
            json!({"model": "pairs", "query": "a", "documents": []}),
            "documents",
            "`documents` is empty: give at least one text.",
        ),
        (
            "/v1/score",
            json!({"model": "pairs", "text_1": ["a", "b"], "text_2": ["c"]}),
            "text_1",
            "`text_1` has 2 texts and `text_2` has 1: give one text in `text_1`, or as many as in `text_2`.",
        ),
    ] {
        let error = server.post(path, &body).error(400);
        assert_eq!(
            (&error["param"], &error["message"]),
            (&json!(param), &json!(message)),
            "{body}"
        );
    }
    let body =
        json!({"model": "pairs", "query": "a", "documents": [long], "truncate_prompt_tokens": -1});
    assert_eq!(server.post("/v1/rerank", &body).ok()["usage"]["total_tokens"], 64);
}

#[test]
fn a_full_queue_is_429_and_every_request_that_was_taken_is_answered() {
    let server = mini_lm_with("--max-num-seqs 1 --max-queued-requests 1");
    // The texts keep the only place busy while the other requests arrive.
    let body = json!({"model": MODEL, "input": vec!["rain over the harbour"; 200]});
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let ask = || server.post("/v1/embeddings", &body).status;
        let asked: Vec<_> = (0..16).map(|_| scope.spawn(ask)).collect();
        asked.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
    assert!(statuses.contains(&200) && statuses.contains(&429), "{statuses:?}");
    // No place is lost: the queue takes requests again.
    embed(&server, &json!({"model": MODEL, "input": "a cat"}));
}

#[test]
fn doctor_knows_what_an_encoder_takes() {
    let folder = mini_lm_folder();
    let output =
        crate::support::program().args(["doctor", "--json"]).arg(&folder).output().unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["architecture"], "BertModel");
    assert_eq!((&json["kv_cache_bytes"], &json["fits"]), (&json!(0), &json!(true)));
    // The pooler is not counted, since no embedding depends on it.
    assert_eq!(json["num_parameters"], 22_713_216 - 384 * 384 - 384);
    assert_eq!(json["weights_bytes"], (22_713_216 - 384 * 384 - 384) * 4);
    assert_eq!((&json["max_num_batched_tokens"], &json["max_num_seqs"]), (&json!(512), &json!(0)));
    // The files of sentence-transformers bound a text below the model's positions.
    let lens = [&json["max_model_len"], &json["max_model_len_that_fits"]];
    assert_eq!(lens, [&json!(256), &json!(512)]);
    assert_eq!((&json["stored"], &json["num_sequences"]), (&json!(true), &json!(0)));
    // Programs read the same keys, whatever the model.
    let demo = crate::support::program().args(["doctor", "--json", "demo"]).output().unwrap();
    let demo: Value = serde_json::from_slice(&demo.stdout).unwrap();
    let keys = |value: &Value| -> Vec<String> {
        let mut keys: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
        keys.sort_unstable();
        keys
    };
    assert_eq!(keys(&json), keys(&demo));
    assert_eq!(keys(&json["plans"][0]), keys(&demo["plans"][0]));
    let text = crate::support::program().arg("doctor").arg(folder).output().unwrap();
    assert!(String::from_utf8_lossy(&text.stdout).contains("without a KV cache"));
}
