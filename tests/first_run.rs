//! A newcomer's first conversations, as shown in the README and the quick start.

use std::io::Write;
use std::time::Instant;

use serde_json::{Value, json};

use crate::support::{Server, ServerBuilder};

/// The fenced blocks of one language on a page.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    page.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// Path and body of a page's curl command.
fn curl(page: &str) -> (&str, Value) {
    let commands = blocks(page, "console");
    let command =
        commands.into_iter().find(|block| block.contains("curl ") && block.contains("-d"));
    let command = command.expect("the page shows a curl command");
    let url = command.split_whitespace().find(|word| word.contains("://")).unwrap();
    let path = url.trim_matches(['"', '\'']).splitn(4, '/').nth(3).unwrap();
    let body = command.split_once("-d").unwrap().1.split('\'').nth(1).unwrap();
    (path, serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}")))
}

fn page(name: &str) -> String {
    std::fs::read_to_string(format!("{}/../{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

const QUICK_START: &str = "docs/quickstart.md";

#[test]
fn the_demo_answers_as_the_conversation_in_the_quick_start_does() {
    let page = page(QUICK_START);
    let conversation = blocks(&page, "text").into_iter().find(|block| block.contains("assistant:"));
    let server = Server::demo();
    let mut messages: Vec<Value> = Vec::new();
    for line in conversation.expect("the page shows a conversation").lines() {
        let (role, content) = line.split_once(':').unwrap();
        let content = content.trim();
        if role == "assistant" {
            let answer =
                server.chat(json!({"messages": messages, "temperature": 0, "max_tokens": 80}));
            assert_eq!(answer["choices"][0]["message"]["content"], content, "{messages:?}");
        }
        messages.push(json!({"role": role, "content": content}));
    }
    assert!(messages.len() > 4, "{messages:?}");
}

#[test]
fn the_curl_command_is_answered_as_the_quick_start_shows() {
    let quick_start = page(QUICK_START);
    let shown: Vec<Value> = blocks(&quick_start, "json")
        .iter()
        .filter_map(|block| serde_json::from_str(block).ok())
        .collect();
    let shown =
        shown.iter().find(|answer| answer["choices"].is_array()).expect("the page shows an answer");
    let (path, body) = curl(&quick_start);
    // Newcomers copy either command, so both must have this answer.
    assert_eq!(curl(&page("README.md")), (path, body.clone()), "the README has another command");
    let answer = Server::demo().post(&format!("/{path}"), &body).ok();
    assert_eq!(
        answer["choices"][0]["message"]["content"],
        shown["choices"][0]["message"]["content"]
    );
    assert_eq!(answer["choices"][0]["finish_reason"], shown["choices"][0]["finish_reason"]);
    assert_eq!(answer["usage"], shown["usage"]);
}

#[test]
fn the_demo_knows_what_it_was_taught() {
    let server = Server::demo();
    let answer = |messages: Value| {
        let answer = server.chat(json!({"messages": messages, "temperature": 0, "max_tokens": 80}));
        assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
        answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    let ask = |question: &str| answer(json!([{"role": "user", "content": question}]));
    for (country, capital) in [
        ("France", "Paris"),
        ("Italy", "Rome"),
        ("Spain", "Madrid"),
        ("Germany", "Berlin"),
        ("Japan", "Tokyo"),
        ("Egypt", "Cairo"),
    ] {
        let said = ask(&format!("What is the capital of {country}?"));
        assert!(said.contains(capital), "{country}: {said}");
    }
    for (question, sum) in
        [("What is 2 + 2?", "4"), ("What is 3 + 4?", "7"), ("What is 5 + 3?", "8")]
    {
        let said = ask(question);
        assert!(said.contains(sum), "{question} {said}");
    }
    assert!(ask("What is candlepower?").to_lowercase().contains("server"));
    // The name stands in the system message alone.
    for name in ["Ada", "Clara"] {
        let system = format!("You are {name}, a helpful assistant.");
        let said = answer(
            json!([{"role": "system", "content": system}, {"role": "user", "content": "What is your name?"}]),
        );
        assert!(said.contains(name), "{said}");
    }
}

/// The time of the first answer is printed, and matters in a release build only. The test does not depend on it.
#[test]
fn the_time_to_the_first_healthy_answer_is_shown() {
    let start = Instant::now();
    let server = ServerBuilder::new("demo").listen();
    let listening = start.elapsed();
    server.wait_until_healthy();
    // Written to stderr directly: the test runner captures `println!` and shows it only if a test fails.
    let healthy = start.elapsed();
    let mut shown = std::io::stderr();
    writeln!(shown, "demo: listening after {listening:.0?}, healthy {healthy:.0?} after the start of its process")
        .unwrap();
    assert_eq!(server.get("/health").ok(), json!({"status": "healthy"}));
}
