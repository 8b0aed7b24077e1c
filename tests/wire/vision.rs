//! Models that take images, over HTTP. The answers are those of transformers, by the goldens.

use std::collections::BTreeSet;
use std::path::Path;

use candlepower_testing::goldens::{VISION, VisionCase, VisionGolden, picture};
use serde_json::{Value, json};

use crate::support::{
    Server, TempFolder, as_blocks, as_input, picture_url, vision_server, wait_for, with_pictures,
};

/// A golden of each family.
const FAMILIES: [&str; 4] =
    ["vision_mistral3", "vision_gemma3", "vision_qwen3_vl", "vision_qwen3_5"];

/// Tokens of a KV block.
const BLOCK: usize = 16;

/// A request for the golden's continuation of a prompt, or for its beginning up to the end of a turn.
fn greedy(field: &str, messages: Value) -> Value {
    let limit = if field == "input" { "max_output_tokens" } else { "max_tokens" };
    json!({"model": "demo", field: messages, "temperature": 0, limit: 32})
}

fn chat_body(messages: Value) -> Value {
    let mut body = greedy("messages", messages);
    body["ignore_eos"] = true.into();
    body["return_token_ids"] = true.into();
    body
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"))
}

fn golden_chat(server: &Server, case: &VisionCase) -> Value {
    server.chat(chat_body(with_pictures(&case.messages)))
}

fn image(name: &str) -> Value {
    json!({"type": "image_url", "image_url": {"url": picture_url(name)}})
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn user(content: Value) -> Value {
    json!([{"role": "user", "content": content}])
}

/// The cached tokens of a text prompt of this length that is sent a second time. Models with recurrent layers have fewer
/// than full blocks. `first` makes the prompt differ from others.
fn cached_of_text(server: &Server, num_tokens: usize, first: usize) -> usize {
    let prompt = (0..num_tokens).map(|index| 20 + (first + index * 7) % 90);
    let prompt: Vec<usize> = prompt.collect();
    let body = json!({"prompt": prompt, "max_tokens": 32, "temperature": 0, "ignore_eos": true});
    server.complete(body.clone());
    cached_tokens(&server.complete(body))
}

fn cached_tokens(answer: &Value) -> usize {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() as usize
}

/// Every case of a golden through `/v1/chat/completions`, twice and streamed.
fn check_chats(golden: &str) {
    let server = vision_server(golden).flags("--no-enable-prefix-caching").start();
    let caching = vision_server(golden).start();
    let encoded = || caching.metrics().value("images_encoded_total");
    let mut pictures = BTreeSet::new();
    for (index, (name, case)) in VisionGolden::read(golden).cases.into_iter().enumerate() {
        pictures.extend(case.images.iter().map(|(picture, ..)| picture.clone()));
        let whole = golden_chat(&server, &case);
        let choice = &whole["choices"][0];
        assert_eq!(ids(&choice["token_ids"]), case.greedy, "{name}");
        assert_eq!(ids(&whole["prompt_token_ids"]), case.input_ids, "{name}");
        assert_eq!(whole["usage"]["prompt_tokens"], case.input_ids.len(), "{name}");
        let mut body = chat_body(with_pictures(&case.messages));
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
        let chunks = caching.open("/v1/chat/completions", &body).chunks();
        let choices = || chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap());
        let pieces =
            choices().filter_map(|choice| choice.get("token_ids").filter(|ids| !ids.is_null()));
        assert_eq!(pieces.flat_map(ids).collect::<Vec<_>>(), case.greedy, "{name}");
        let written = choices().filter_map(|choice| choice["delta"]["content"].as_str());
        assert_eq!(written.collect::<String>(), choice["message"]["content"], "{name}");
        assert_eq!(
            chunks.last().unwrap()["usage"]["prompt_tokens"],
            case.input_ids.len(),
            "{name}"
        );
        assert_eq!(encoded(), pictures.len() as f64, "{name}: a picture is encoded once");
        let again = golden_chat(&caching, &case);
        assert_eq!(ids(&again["choices"][0]["token_ids"]), case.greedy, "{name}");
        let found = cached_tokens(&again);
        let num_tokens = case.input_ids.len();
        // A recurrent model also keeps its state where an earlier case has the same beginning.
        let least = cached_of_text(&caching, num_tokens, index);
        assert!((least..num_tokens).contains(&found), "{name}: {found}, and {least} of a text");
    }
    assert_eq!(encoded(), pictures.len() as f64, "a cached picture is not encoded again");
    server.wait_until_all_blocks_are_free();
    wait_for("images to be released with their requests", || {
        (caching.metrics().value("image_waiting_bytes") == 0.0).then_some(())
    });
}

/// A test per golden, so that each has a name and is counted.
macro_rules! chats_are_those_of_transformers {
    ($($name:ident $golden:literal)+) => {
        $(
            #[test]
            fn $name() {
                check_chats($golden);
            }
        )+

        #[test]
        fn every_golden_with_images_has_a_test_of_chats() {
            assert_eq!(VISION, [$($golden),+]);
        }
    };
}

chats_are_those_of_transformers! {
    chats_of_mistral3 "vision_mistral3"
    chats_of_ministral3 "vision_ministral3"
    chats_of_gemma3 "vision_gemma3"
    chats_of_qwen3_vl "vision_qwen3_vl"
    chats_of_qwen3_vl_moe "vision_qwen3_vl_moe"
    chats_of_qwen3_5 "vision_qwen3_5"
    chats_of_qwen3_5_moe "vision_qwen3_5_moe"
}

/// Whether it is a conversation without tools, whose calls have another form in each API.
fn is_conversation(case: &VisionCase) -> bool {
    let messages = case.messages.as_array().unwrap();
    messages.iter().all(|message| !message["content"].is_null())
}

/// A body of /v1/messages, where the system's message is a field.
fn message_body(messages: &Value) -> Value {
    let mut turns = as_blocks(messages);
    let first = &turns[0];
    if first["role"] != "system" {
        return greedy("messages", turns);
    }
    let system = first["content"].clone();
    turns.as_array_mut().unwrap().remove(0);
    let mut body = greedy("messages", turns);
    body["system"] = system;
    body
}

fn written_response(response: &Value) -> String {
    let item = &response["output"].as_array().unwrap().last().unwrap()["content"];
    item[0]["text"].as_str().unwrap_or_else(|| panic!("{response}")).to_owned()
}

#[test]
fn the_three_apis_give_the_same_answers() {
    for golden in FAMILIES {
        let server = vision_server(golden).start();
        let mut compared = 0;
        for (name, case) in VisionGolden::read(golden).cases {
            if !is_conversation(&case) {
                continue;
            }
            compared += case.images.len();
            let chat = server.chat(greedy("messages", with_pictures(&case.messages)));
            let expected = chat["choices"][0]["message"]["content"].as_str().unwrap();
            let prompt_len = case.input_ids.len();
            let body = greedy("input", as_input(&case.messages));
            let response = server.post("/v1/responses", &body).ok();
            assert_eq!(written_response(&response), expected, "{name}");
            assert_eq!(response["usage"]["input_tokens"], prompt_len, "{name}");
            let mut body = message_body(&case.messages);
            let message = server.post("/v1/messages", &body).ok();
            assert_eq!(message["content"][0]["text"], expected, "{name}");
            let usage = &message["usage"];
            let number = |key: &str| usage[key].as_u64().unwrap() as usize;
            let counted = number("input_tokens") + number("cache_read_input_tokens");
            assert_eq!(counted, prompt_len, "{name}: {usage}");
            for field in ["max_tokens", "temperature"] {
                body.as_object_mut().unwrap().remove(field);
            }
            let count = server.post("/v1/messages/count_tokens", &body).ok();
            assert_eq!(count["input_tokens"], prompt_len, "{name}");
        }
        assert!(compared > 5);
    }
}

/// The golden's call of a tool, whose result has a picture, in the forms of the other two APIs.
#[test]
fn results_of_tools_have_images_in_each_api() {
    let golden = VisionGolden::read("vision_mistral3");
    let case = &golden.cases["tool_result"];
    let server = vision_server("vision_mistral3").start();
    let chat = server.chat(greedy("messages", with_pictures(&case.messages)));
    assert_eq!(chat["usage"]["prompt_tokens"], case.input_ids.len());
    let expected = &chat["choices"][0]["message"]["content"];
    let turn = |index: usize, translated: Value| translated[index].clone();
    let result = |translated: Value| turn(2, translated)["content"].clone();
    let (id, arguments) = ("call00001", json!({"at": "it"}));
    let call = json!({"type": "function_call", "call_id": id, "name": "look", "arguments": arguments.to_string()});
    let output = result(as_input(&case.messages));
    let output = json!({"type": "function_call_output", "call_id": id, "output": output});
    let input = json!([turn(0, as_input(&case.messages)), call, output]);
    let response = server.post("/v1/responses", &greedy("input", input)).ok();
    assert_eq!(response["usage"]["input_tokens"], case.input_ids.len());
    assert_eq!(written_response(&response), *expected);
    let call = json!({"type": "tool_use", "id": id, "name": "look", "input": arguments});
    let content = result(as_blocks(&case.messages));
    let output = json!({"type": "tool_result", "tool_use_id": id, "content": content});
    let messages = json!([
        turn(0, as_blocks(&case.messages)),
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [output]},
    ]);
    let message = server.post("/v1/messages", &greedy("messages", messages)).ok();
    assert_eq!(message["content"][0]["text"], *expected, "{message}");
    assert_eq!(server.metrics().value("images_encoded_total"), 1.0);
}

#[test]
fn pictures_under_one_text_have_their_own_answers() {
    for golden in FAMILIES {
        let server = vision_server(golden).start();
        let cases = VisionGolden::read(golden).cases;
        let names = ["image_first", "image_first_other", "image_first", "large_image"];
        let mut answers = BTreeSet::new();
        for name in names {
            let answer = golden_chat(&server, &cases[name]);
            let found = ids(&answer["choices"][0]["token_ids"]);
            assert_eq!(found, cases[name].greedy, "{golden}: {name}");
            answers.insert(found);
        }
        assert_eq!(answers.len(), 3, "{golden}");
    }
}

#[test]
fn several_choices_share_an_image() {
    let golden = VisionGolden::read("vision_mistral3");
    let server = vision_server("vision_mistral3").start();
    let case = &golden.cases["three_images"];
    let mut body = chat_body(with_pictures(&case.messages));
    body["n"] = 3.into();
    let answer = server.chat(body.clone());
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    for choice in choices {
        assert_eq!(ids(&choice["token_ids"]), case.greedy);
    }
    assert_eq!(answer["usage"]["prompt_tokens"], case.input_ids.len());
    assert_eq!(server.metrics().value("images_encoded_total"), 3.0);
    // Each choice of a sampled answer is that of the same seed in another request.
    body["temperature"] = json!(1.5);
    body["seed"] = 7.into();
    let sampled = |body: &Value| -> Vec<Vec<u32>> {
        let answer = server.chat(body.clone());
        answer["choices"]
            .as_array()
            .unwrap()
            .iter()
            .map(|choice| ids(&choice["token_ids"]))
            .collect()
    };
    let first = sampled(&body);
    assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), 3);
    assert_eq!(sampled(&body), first);
    server.wait_until_all_blocks_are_free();
}

#[test]
fn a_response_continues_one_with_images() {
    let server = vision_server("vision_mistral3").start();
    let encoded = || server.metrics().value("images_encoded_total");
    let turn = |before: &str, picture: &str, behind: &str| {
        let image = json!({"type": "image_url", "image_url": {"url": picture}});
        as_input(&user(json!([text(before), image, text(behind)])))
    };
    let first_turn = turn("Is ", "wide", " of ice?");
    let mut body = greedy("input", first_turn.clone());
    // Most answers of a model that is not trained are no text, and have other tokens when they are read again.
    let schema = json!({"enum": ["It is the cat of the ice and of the capital."]});
    body["text"] = json!({"format": {"type": "json_schema", "name": "answer", "schema": schema}});
    let first = server.post("/v1/responses", &body).ok();
    assert_eq!(first["status"], "completed", "{first}");
    assert_eq!(encoded(), 1.0);
    let next = turn("or ", "odd", "?");
    let mut body = greedy("input", next.clone());
    body["previous_response_id"] = first["id"].clone();
    let continued = server.post("/v1/responses", &body).ok();
    assert_eq!(encoded(), 2.0, "only the new picture is encoded");
    // Everything in the first turn except its last token was computed and cached.
    let before = first["usage"]["total_tokens"].as_u64().unwrap() as usize;
    let cached = &continued["usage"]["input_tokens_details"]["cached_tokens"];
    let least = (before - 2) / BLOCK * BLOCK;
    assert!(cached.as_u64().unwrap() as usize >= least, "{before}: {continued}");
    let answer = json!([{"role": "assistant", "content": written_response(&first)}]);
    let turns = [first_turn, answer, next];
    let turns = turns.iter().flat_map(|turns| turns.as_array().unwrap().clone());
    let whole = greedy("input", turns.collect::<Vec<_>>().into());
    let whole = server.post("/v1/responses", &whole).ok();
    assert_eq!(whole["usage"]["input_tokens"], continued["usage"]["input_tokens"]);
    assert_eq!(written_response(&whole), written_response(&continued));
    assert_eq!(encoded(), 2.0);
}

/// Files below the folder of the setting are read. Those beside it are refused like files that do not exist.
#[test]
fn files_of_an_allowed_folder_are_read() {
    let folder = TempFolder::new();
    let secret = folder.write("secret.png", std::fs::read(picture("odd")).unwrap());
    let allowed = folder.write("allowed/square.png", std::fs::read(picture("square")).unwrap());
    let server = vision_server("vision_mistral3")
        .flag("--allowed-local-media-path", allowed.parent().unwrap())
        .start();
    let body = |file: &Path| {
        let url = format!("file://{}", file.display());
        chat_body(user(
            json!([{"type": "image_url", "image_url": {"url": url}}, text("What is it?")]),
        ))
    };
    let case = &VisionGolden::read("vision_mistral3").cases["image_first"];
    let answer = server.chat(body(&allowed));
    assert_eq!(ids(&answer["choices"][0]["token_ids"]), case.greedy);
    let refused = |file: &Path| server.post("/v1/chat/completions", &body(file)).error(400);
    let error = refused(&secret);
    assert_eq!(error["code"], "image_url_not_allowed");
    let dotted = allowed.with_file_name("..").join("secret.png");
    assert_eq!(refused(&dotted)["code"], error["code"]);
    assert_eq!(refused(&secret.with_file_name("missing.png"))["message"], error["message"]);
}

#[test]
fn models_say_that_they_take_images() {
    let server = vision_server("vision_mistral3").start();
    let models = server.get("/v1/models").ok();
    assert_eq!(models["data"][0]["input_modalities"], json!(["text", "image"]));
    let text_only = vision_server("vision_mistral3").flags("--language-model-only").start();
    let models = text_only.get("/v1/models").ok();
    assert_eq!(models["data"][0]["input_modalities"], json!(["text"]));
    let body = chat_body(user(json!([text("a"), image("odd")])));
    let error = text_only.post("/v1/chat/completions", &body).error(400);
    assert_eq!(error["param"], "messages[0].content[1].image_url");
    assert_eq!(error["code"], "image_input_not_supported");
    assert!(error["message"].as_str().unwrap().contains("--language-model-only"), "{error}");
    let golden = VisionGolden::read("vision_mistral3");
    for name in ["text_only", "spelled"] {
        let case = &golden.cases[name];
        let answer = golden_chat(&text_only, case);
        assert_eq!(ids(&answer["choices"][0]["token_ids"]), case.greedy, "{name}");
    }
}

/// Uploads beside a stream of text. All answers are those of requests that run alone.
fn check_uploads(golden: &str, server: &Server) {
    let golden = VisionGolden::read(golden);
    let messages = user("Tell me of the capital.".into());
    let mut body = chat_body(messages);
    body["max_tokens"] = 200.into();
    let expected = ids(&server.chat(body.clone())["choices"][0]["token_ids"]);
    assert_eq!(expected.len(), 200);
    body["stream"] = true.into();
    std::thread::scope(|scope| {
        let stream = scope.spawn(|| server.open("/v1/chat/completions", &body).chunks());
        for (name, case) in std::iter::repeat_n(&golden.cases, 4).flatten() {
            scope.spawn(move || {
                let answer = golden_chat(server, case);
                assert_eq!(ids(&answer["choices"][0]["token_ids"]), case.greedy, "{name}");
            });
        }
        let chunks = stream.join().unwrap();
        let pieces = chunks.iter().filter_map(|chunk| chunk["choices"][0].get("token_ids"));
        let found: Vec<u32> = pieces.filter(|ids| !ids.is_null()).flat_map(ids).collect();
        assert_eq!(found, expected);
    });
    server.wait_until_all_blocks_are_free();
}

#[test]
fn a_stream_of_text_goes_on_beside_images() {
    for golden in FAMILIES {
        check_uploads(golden, &vision_server(golden).start());
    }
}

/// With room for the embeddings of one prompt, for the blocks of few sequences, and for few tokens in a step. So images
/// are encoded again, sequences are preempted, and prompts are computed in several rows.
#[test]
fn images_are_encoded_again_where_memory_is_short() {
    for golden in FAMILIES {
        let server = vision_server(golden)
            .flags("--encoder-cache-memory 32Ki --kv-cache-memory 512Ki --no-enable-prefix-caching")
            .flags("--max-num-batched-tokens 32 --max-num-seqs 32")
            .start();
        check_uploads(golden, &server);
        let metrics = server.metrics();
        let (encoded, preempted) =
            (metrics.value("images_encoded_total"), metrics.value("num_preemptions_total"));
        assert!(encoded > 7.0, "there are seven pictures");
        assert!(preempted > 0.0, "{golden}");
        println!("{golden}: {encoded} runs of the tower, {preempted} preemptions");
    }
}
