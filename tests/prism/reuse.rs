//! Results are computed only once in growing conversations. A wrong request does not affect others.

use std::sync::Barrier;

use serde_json::{Value, json};

use super::{cached, num_tokens, prism, whole_blocks};

#[test]
fn a_growing_chat_finds_what_was_there_before() {
    let server = prism();
    let questions = [
        "Who are you?",
        "What is the capital of France?",
        "And what do people eat there?",
        "Do you like music?",
        "Tell me about the sea.",
        "How old is the moon?",
        "What is your favourite colour?",
        "Thank you and good bye!",
    ];
    let (mut messages, mut before) = (Vec::<Value>::new(), 0);
    for (turn, question) in questions.iter().enumerate() {
        messages.push(json!({"role": "user", "content": question}));
        let answer = server.chat(json!({"messages": messages, "temperature": 0, "max_tokens": 30}));
        let found = cached(&answer);
        if turn > 0 {
            assert!(
                found >= whole_blocks(before * 95 / 100),
                "turn {turn}: {found} of {before} are cached"
            );
        }
        before = num_tokens(&answer);
        messages.push(answer["choices"][0]["message"].clone());
        let last = messages.last_mut().unwrap().as_object_mut().unwrap();
        last.retain(|key, _| key == "role" || key == "content");
    }
    assert!(before > 150, "{before}");
}

#[test]
fn a_bad_schema_among_good_requests_changes_none_of_them() {
    let server = prism();
    let good = |index: u32| {
        json!({
            "prompt": format!("Person number {index}:"), "temperature": 1.1, "seed": index, "max_tokens": 60,
            "structured_outputs": {"json": {
                "type": "object", "properties": {"id": {"const": index}, "name": {"type": "string", "maxLength": 10}},
                "required": ["id", "name"], "additionalProperties": false,
            }},
        })
    };
    let bad = json!({"prompt": "x", "structured_outputs": {"json": {"type": "object", "patternProperties": {"(": {}}, "not": {"type": "object"}}}});
    let alone: Vec<String> =
        (0..32).map(|index| server.complete(good(index))["choices"].to_string()).collect();
    // All 32 good requests and the bad one start together.
    let barrier = Barrier::new(33);
    let together: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..32)
            .map(|index| {
                let (server, barrier, body) = (&server, &barrier, good(index));
                scope.spawn(move || {
                    barrier.wait();
                    server.complete(body)["choices"].to_string()
                })
            })
            .collect();
        barrier.wait();
        let error = server.complete_refused(bad);
        assert_eq!(error["param"], "structured_outputs.json", "{error}");
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(alone, together);
}
