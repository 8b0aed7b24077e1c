//! The agents' own requests, recorded by `programs` and with their texts replaced by `scripts/agent_requests.py`.
//! Each is answered, and the answer reports the parts that the server does not run.

use serde_json::Value;

use super::{AGENTS, ANSWER, Agent, RESULT, server, text};
use crate::support::Endpoint;

/// The requests of an agent, in order.
fn requests(agent: &Agent) -> Vec<Value> {
    let text = match agent.name {
        "codex" => include_str!("codex.json"),
        "claude_code" => include_str!("claude_code.json"),
        _ => include_str!("opencode.json"),
    };
    serde_json::from_str(text).unwrap()
}

fn endpoint(request: &Value) -> Endpoint {
    let path = text(request, "path");
    let is_of = |endpoint: &Endpoint| path.split('?').next() == Some(endpoint.path());
    Endpoint::ALL.into_iter().find(is_of).unwrap_or_else(|| panic!("{path} is new"))
}

/// The parts that the server does not run and reports.
fn not_held(agent: &Agent) -> Option<&'static str> {
    match agent.name {
        "codex" => Some("tools[8] (web_search)"),
        "claude_code" => Some("output_config.effort"),
        _ => None,
    }
}

#[test]
fn are_answered_with_a_call_and_then_with_words() {
    let model = server();
    for agent in &AGENTS {
        let (mut calls, mut answers) = (0, 0);
        for request in requests(agent) {
            let (endpoint, body) = (endpoint(&request), &request["body"]);
            let said = body.to_string();
            let has_tools = body["tools"].as_array().is_some_and(|tools| !tools.is_empty());
            let streamed = model.server.post(text(&request, "path"), body);
            assert_eq!(streamed.status, 200, "{}: {}", agent.name, streamed.text());
            let told = streamed.header("x-candlepower-not-held");
            assert_eq!(told, not_held(agent), "{}", agent.name);
            let answer = endpoint.streamed(&streamed.text());
            // The same request without a stream.
            let mut whole = body.clone();
            // The options of a stream are refused without one.
            whole.as_object_mut().unwrap().retain(|name, _| !name.starts_with("stream"));
            let whole = model.server.post(text(&request, "path"), &whole).ok();
            assert_eq!(endpoint.whole(&whole), answer, "{}", agent.name);
            match (has_tools, said.contains(RESULT)) {
                (true, false) => {
                    let arguments: Value = serde_json::from_str(&answer.calls[0].1).unwrap();
                    let expected: Value = agent.arguments.iter().copied().collect();
                    assert_eq!((answer.calls.len(), &arguments), (1, &expected), "{answer:?}");
                    assert_eq!(answer.calls[0].0, agent.function);
                    calls += 1;
                }
                (true, true) => {
                    assert_eq!((answer.content.as_str(), answer.calls.len()), (ANSWER, 0));
                    answers += 1;
                }
                // A title for the session.
                (false, _) => assert!(answer.content.contains("A word"), "{answer:?}"),
            }
        }
        assert_eq!((calls, answers), (1, 1), "{}", agent.name);
    }
}
