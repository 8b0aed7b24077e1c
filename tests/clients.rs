//! The official `openai` clients for Python and Node and the `anthropic` client, unmodified, against the built
//! binary.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::json;

use crate::support::{
    Server, ServerBuilder, framework_python, node, python, run_to_end, vision_server,
};

/// Runs one case of a script against a server of its own, and checks that no resources are left behind.
fn check(script: fn(&str) -> Command, path: &str, case: &str, server: &Server) {
    run_to_end(script(path).args([case, &server.url()]));
    server.wait_until_all_blocks_are_free();
}

fn check_python(case: &str, server: &Server) {
    check(python, "clients/openai_client.py", case, server);
}

fn check_responses(case: &str, server: &Server) {
    check(python, "clients/responses_client.py", case, server);
}

fn check_anthropic(case: &str, server: &Server) {
    check(python, "clients/anthropic_client.py", case, server);
}

fn check_branching(case: &str, server: &Server) {
    check(python, "clients/branching.py", case, server);
}

fn check_node(case: &str, server: &Server) {
    check(node, "node/openai_client.mjs", case, server);
}

fn check_ai_sdk(case: &str, server: &Server) {
    check(node, "node/ai_sdk.mjs", case, server);
}

fn check_llm(case: &str, server: &Server) {
    check(python, "clients/llm_client.py", case, server);
}

fn check_structured(case: &str, server: &Server) {
    check(python, "clients/structured_client.py", case, server);
}

fn check_framework(case: &str, server: &Server) {
    check(framework_python, "clients/framework_client.py", case, server);
}

/// A test per case, so that each has a name and is counted.
macro_rules! cases {
    ($check:ident, $server:expr, $($case:ident)+) => {
        $(
            #[test]
            fn $case() {
                super::$check(stringify!($case), &$server);
            }
        )+
    };
}

/// A server that runs one request, queues one, and refuses the third.
fn server_of_two_places() -> Server {
    ServerBuilder::new("demo").flags("--max-num-seqs 1 --max-queued-requests 1").start()
}

mod python_client {
    //! One test per case of `clients/openai_client.py`.

    use super::*;

    cases! { check_python, Server::demo(),
        chat chat_stream chat_usage_in_stream completions completions_of_many_prompts completions_stream
        echo_scores_a_prompt models n_choices stop logprobs errors cancel extra_fields request_id
        async_requests async_cancel
    }
    cases! { check_python, ServerBuilder::new("demo").env("BLAZE_API_KEY", "secret").start(), authentication }
    cases! { check_python, server_of_two_places(), rate_limit }
}

mod structured_clients {
    //! One test per case of `clients/structured_client.py`.

    use super::*;

    cases! { check_structured, Server::demo(),
        parse_into_a_model parse_a_call calls_by_the_models_decision
    }
}

mod frameworks {
    //! One test per case of `clients/framework_client.py`.

    use super::*;

    cases! { check_framework, Server::demo(), instructor_models langchain_models }
}

mod responses_of_the_python_client {
    //! One test per case of `clients/responses_client.py`.

    use super::*;

    cases! { check_responses, Server::demo(),
        text_and_usage previous_response stored streaming structured tools tool_choices tools_streaming errors
    }
}

mod anthropic_client {
    //! One test per case of `clients/anthropic_client.py`.

    use super::*;

    cases! { check_anthropic, Server::demo(),
        message stop_and_continue streaming structured tools tool_choices tools_streaming count_tokens errors
    }
    cases! { check_anthropic, ServerBuilder::new("demo").env("BLAZE_API_KEY", "secret").start(), authentication }
}

mod images {
    //! The case for images of each client, whose model is a golden.

    use super::*;

    macro_rules! images {
        ($($client:ident $check:ident $case:literal)+) => {
            $(
                #[test]
                fn $client() {
                    $check($case, &vision_server("vision_mistral3").start());
                }
            )+
        };
    }

    images! {
        python_client check_python "images"
        python_responses check_responses "images"
        anthropic_client check_anthropic "images"
        langchain check_framework "langchain_images"
        node_client check_node "images"
        ai_sdk check_ai_sdk "images"
        llm check_llm "images"
    }
}

mod ai_sdk {
    //! `node/ai_sdk.mjs`, with a model that takes text only.

    use super::*;

    cases! { check_ai_sdk, Server::demo(), turns }
}

mod branching_example {
    //! `examples/branching.py`, with only Python's standard library.

    use super::*;

    cases! { check_branching, ServerBuilder::new("demo").flags("--framework prism").start(), program errors }
}

mod node_client {
    //! One test per case of `node/openai_client.mjs`.

    use super::*;

    cases! { check_node, Server::demo(),
        chat chat_stream completions models n_stop_logprobs errors cancel parse_into_zod_models functions
    }
    cases! { check_node, ServerBuilder::new("demo").env("BLAZE_API_KEY", "secret").start(), authentication }
    cases! { check_node, server_of_two_places(), rate_limit }
}

#[test]
fn a_killed_client_leaves_nothing_behind() {
    let server = Server::demo();
    let mut client = python("clients/openai_client.py")
        .args(["stream_until_killed", &server.url()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(client.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "streaming\n");
    client.kill().unwrap();
    client.wait().unwrap();
    server.wait_until_all_blocks_are_free();
    assert!(
        server.metrics().value("generation_tokens_total") < 1900.0,
        "it was generated to the end"
    );
    server.complete(json!({"prompt": "a", "max_tokens": 2}));
}
