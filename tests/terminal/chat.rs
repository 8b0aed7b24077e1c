//! `candlepower chat` with a running server, in a terminal.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};

use super::User;
use super::piped::asked;
use crate::support::{Scripted, Server, Terminal, node, vision_server, wait_for};

/// Answers of the scripted model. The message `play NAME` gets one, and the result of a tool gets `result`.
const ANSWERS: [(&str, &str); 3] = [
    ("thought", "<think>Let me see</think>\n\nThe answer."),
    (
        "call",
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>",
    ),
    ("result", "It is sunny."),
];

/// A server of these answers, with the playground's template.
fn scripted() -> Scripted {
    let template = |starts: &[usize]| {
        let starts = ANSWERS
            .iter()
            .zip(starts)
            .map(|((name, _), start)| (name.to_string(), Value::from(*start)));
        let starts = Value::from(starts.collect::<serde_json::Map<_, _>>());
        let template = include_str!("../playground/template.jinja");
        template.replace("set starts = STARTS", &format!("set starts = {starts}"))
    };
    Scripted::steered(template, &[], &ANSWERS.map(|(_, text)| text), "")
}

fn chat(user: &User, server: &Server, args: &[&str]) -> Terminal {
    let url = server.url();
    let args = [&["chat", "--url", &url, "--set", "temperature=0"], args].concat();
    Terminal::start(user.command(&args))
}

/// A conversation whose answers have up to 2,000 tokens.
fn long(user: &User, server: &Server) -> Terminal {
    let mut terminal = chat(user, server, &["--set", "ignore_eos=true"]);
    terminal.enter("What is candlepower?");
    terminal.expect("inference server");
    terminal
}

fn saved(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn a_conversation_goes_on_from_turn_to_turn() {
    let (user, server) = (User::new(), Server::demo());
    let mut terminal = chat(&user, &server, &[]);
    terminal.expect("demo at http://127.0.0.1");
    terminal.enter("What is the capital of France?");
    terminal.expect("The capital of France is Paris.");
    terminal.enter("And of Japan?");
    terminal.expect("The capital of Japan is Tokyo.");
    terminal.enter("/undo");
    terminal.expect("is removed");
    terminal.enter("/retry");
    terminal.expect("The capital of France is Paris.");
    terminal.enter("/set temperature 9");
    terminal.expect("error: temperature must be from 0 to 2, not 9");
    terminal.enter("/nothing");
    terminal.expect("error: there is no command /nothing");
    terminal.enter("/image none.png");
    terminal.expect("error: demo takes no images");
    terminal.enter("\"\"\"What is");
    terminal.type_in("2 + 3?\"\"\"\r");
    terminal.expect("\n2 + 3 = 5.");
    terminal.enter("/clear");
    terminal.enter("/system You are Ada, a helpful assistant.");
    terminal.enter("What is your name?");
    terminal.expect("My name is Ada.");
    terminal.expect(">>> ");
    terminal.type_in("\x04");
    terminal.ends_with(0);
}

#[test]
fn ctrl_c_stops_the_answer_and_twice_the_conversation() {
    let (user, server) = (User::new(), Server::demo());
    let mut terminal = long(&user, &server);
    terminal.type_in("\x03");
    terminal.expect("(stopped)");
    // The server stops its work too.
    server.wait_until_all_blocks_are_free();
    terminal.enter("/set ignore_eos false");
    terminal.enter("What is 2 + 3?");
    terminal.expect("5.");
    terminal.expect(">>> ");
    terminal.type_in("\x03");
    terminal.expect("Ctrl-C again");
    // Anything between the two counts.
    terminal.enter("/help");
    terminal.expect("/retry");
    terminal.expect(">>> ");
    terminal.type_in("\x03");
    terminal.expect("Ctrl-C again");
    terminal.expect(">>> ");
    terminal.type_in("\x03");
    terminal.ends_with(0);
}

#[test]
fn a_terminal_may_change_its_size_while_an_answer_arrives() {
    let (user, server) = (User::new(), Server::demo());
    let path = user.state.path().join("a.json");
    let mut terminal = long(&user, &server);
    for columns in [20, 200, 33] {
        terminal.resize(10, columns);
    }
    terminal.expect("(the limit of tokens ended this answer)");
    terminal.enter(&format!("/save {}", path.display()));
    terminal.expect("is saved");
    let streamed = saved(&path)["conversation"]["turns"][1]["content"].clone();
    let whole = server.chat(json!({
        "messages": [{"role": "user", "content": "What is candlepower?"}], "temperature": 0, "ignore_eos": true, "max_tokens": 2048,
    }));
    assert_eq!(streamed, whole["choices"][0]["message"]["content"]);
}

#[test]
fn a_server_that_dies_is_one_line_and_the_conversation_is_kept() {
    let (user, mut server) = (User::new(), Server::demo());
    let path = user.state.path().join("a.json");
    let mut terminal = chat(&user, &server, &[]);
    terminal.enter("What is 2 + 3?");
    terminal.expect("5.");
    terminal.enter("/set ignore_eos true");
    terminal.enter("What is candlepower?");
    terminal.expect("inference server");
    server.signal("KILL");
    server.wait_for_exit();
    terminal.expect("error: ");
    terminal.expect("the connection broke off");
    // A dead server is another line.
    terminal.enter("Are you there?");
    terminal.expect("cannot be reached");
    terminal.enter(&format!("/save {}", path.display()));
    terminal.expect("is saved");
    let turns = saved(&path)["conversation"]["turns"].clone();
    let contents: Vec<&str> =
        turns.as_array().unwrap().iter().map(|turn| turn["content"].as_str().unwrap()).collect();
    assert_eq!((contents.len(), contents[1], contents[4]), (5, "2 + 3 = 5.", "Are you there?"));
    assert!(contents[3].contains("inference server") && turns[3]["isStopped"] == true, "{turns}");
    terminal.expect(">>> ");
    terminal.type_in("\x04");
    terminal.ends_with(0);
}

#[test]
fn a_draining_server_is_one_line() {
    let (user, server) = (User::new(), Server::demo());
    let mut terminal = long(&user, &server);
    // The other terminal holds the server back from its end.
    let mut other = chat(&user, &server, &[]);
    other.expect(">>> ");
    server.terminate();
    wait_for("the server to drain", || (server.get("/health").status == 503).then_some(()));
    other.type_in("Hello\r");
    other.expect("The server is stopping");
    other.expect("/retry sends it again");
    terminal.type_in("\x03");
    terminal.expect("(stopped)");
}

#[test]
fn reasoning_is_apart_and_results_of_tools_are_typed() {
    let scripted = scripted();
    let user = User::new();
    let tools = user.state.write(
        "tools.json",
        json!([{"name": "weather", "parameters": {"type": "object"}}]).to_string(),
    );
    let mut terminal = chat(&user, &scripted.server, &[]);
    terminal.enter("play thought");
    terminal.expect("Reasoning:\nLet me see\n\nThe answer.\n");
    assert!(terminal.raw().contains("\x1b[2mLet me see") || terminal.raw().contains("\x1b[2mL"));
    terminal.enter("/tools none.json");
    terminal.expect("error: none.json cannot be read");
    terminal.enter(&format!("/tools {}", tools.display()));
    terminal.expect("Offered tools: weather");
    terminal.enter("play call");
    let shown = terminal.expect("result of weather> ");
    assert!(shown.contains("The model calls weather") && shown.contains("Paris"), "{shown}");
    terminal.type_in("sunny, 20 degrees\r");
    terminal.expect("It is sunny.");
    // Without a result the question stays.
    terminal.enter("play call");
    terminal.expect("result of weather> ");
    terminal.type_in("\x03");
    terminal.expect("/retry asks again");
    terminal.enter("/retry");
    terminal.expect("result of weather> ");
    terminal.type_in("rain\r");
    terminal.expect("It is sunny.");
}

#[test]
fn styles_are_left_out_where_they_are_not_wanted() {
    let (user, server) = (User::new(), Server::demo());
    let mut command = user.command(&["chat", "--url", &server.url()]);
    let mut terminal = Terminal::start({
        command.env("NO_COLOR", "1");
        command
    });
    terminal.expect(">>> ");
    assert!(!terminal.raw().contains("\x1b[2m"), "{:?}", terminal.raw());
}

#[test]
fn saved_conversations_are_opened_again_and_lines_are_remembered() {
    let (user, server) = (User::new(), Server::demo());
    let path = user.state.path().join("a.json");
    let mut terminal = chat(&user, &server, &["--set", "seed=7"]);
    terminal.enter("What is the capital of France?");
    terminal.expect("Paris.");
    terminal.enter(&format!("/save {}", path.display()));
    terminal.expect("is saved");
    terminal.enter(&format!("/save {}", user.state.write("other", "text").display()));
    terminal.expect("exists, and is no saved conversation");
    terminal.expect(">>> ");
    terminal.type_in("\x04");
    terminal.ends_with(0);
    let file = saved(&path);
    assert_eq!(
        (&file["format"], &file["settings"]["seed"]),
        (&json!("candlepower-playground"), &json!(7))
    );

    let opened = node("terminal/opens.mjs").arg(&path).output().unwrap();
    let turns = json!([
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "The capital of France is Paris."},
    ]);
    assert_eq!(serde_json::from_slice::<Value>(&opened.stdout).unwrap(), turns, "{opened:?}");

    let history = user.state.path().join("state/candlepower/chat_history");
    assert_eq!(std::fs::metadata(&history).unwrap().permissions().mode() & 0o777, 0o600);
    let mut terminal = chat(&user, &server, &[]);
    terminal.enter(&format!("/load {}", path.display()));
    terminal.expect("The capital of France is Paris.");
    terminal.expect(">>> ");
    // The fourth line back is the first of the other conversation.
    terminal.type_in("\x1b[A\x1b[A\x1b[A\x1b[A");
    terminal.expect("What is the capital of France?");
    terminal.type_in("\x15And of Japan?\r");
    terminal.expect("The capital of Japan is Tokyo.");
}

#[test]
fn commands_without_a_value_show_or_remove_what_is_set() {
    let (user, server) = (User::new(), Server::demo());
    let mut terminal = chat(&user, &server, &[]);
    terminal.enter("/system Be brief.");
    terminal.expect("The system prompt is set.");
    terminal.enter("/system");
    terminal.expect("There is no system prompt now.");
    terminal.enter("/tools");
    terminal.expect("No tools are offered now.");
    terminal.enter("/undo");
    terminal.expect("there is no message to remove");
    terminal.enter("/set");
    terminal.expect("temperature");
    terminal.expect("max_tokens");
    terminal.expect("(the rest of the context)");
    // A tab completes the name of a command.
    terminal.enter("/und\t");
    terminal.expect("there is no message to remove");
    terminal.enter("/exit");
    terminal.ends_with(0);
}

#[test]
fn what_the_server_does_not_take_is_left_out_of_a_saved_conversation() {
    let (user, server) = (User::new(), Server::demo());
    let call = json!({"id": "c", "name": "weather", "arguments": "{}"});
    let turns = json!([
        {"id": "1", "role": "user", "content": "Is it sunny?"},
        {"id": "2", "role": "assistant", "content": "", "calls": [call]},
        {"id": "3", "role": "tool", "callId": "c", "name": "weather", "content": "rain"},
    ]);
    let saved = json!({
        "format": "candlepower-playground", "version": 1, "settings": {"tempo": "7", "seed": "3"},
        "conversation": {"turns": turns, "chosen": {"root": "1", "1": "2", "2": "3"}},
    });
    let file = user.state.write("a.json", saved.to_string());
    let mut terminal = chat(&user, &server, &[]);
    terminal.enter(&format!("/load {}", file.display()));
    terminal.expect("left out: the server has no field tempo");
    terminal.expect(">>> Is it sunny?");
    terminal.expect("result of weather: rain");
    terminal.enter("/clear");
    terminal.expect("All messages are removed.");
    // An empty line is no message.
    terminal.enter("");
    terminal.enter("/retry");
    terminal.expect("error: there is no message to answer");
    terminal.enter("/set");
    terminal.expect(&format!("{:<20} 3", "seed"));
    terminal.enter("/quit");
    terminal.ends_with(0);
}

#[test]
fn an_image_goes_with_the_next_message() {
    let (user, server) = (User::new(), vision_server("vision_gemma3").start());
    let picture = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/vision_pictures/alpha.png");
    let mut terminal = chat(&user, &server, &["--set", "max_tokens=4", "--set", "ignore_eos=true"]);
    terminal.enter("/image /nowhere/a.png");
    terminal.expect("error: /nowhere/a.png cannot be read");
    terminal.enter(&format!("/image {picture}"));
    terminal.expect("alpha.png goes with the next message.");
    // The image alone is a message.
    terminal.enter("");
    terminal.expect("(the limit of tokens ended this answer)");
    let path = user.state.path().join("a.json");
    terminal.enter(&format!("/save {}", path.display()));
    terminal.expect("is saved");
    let message = saved(&path)["conversation"]["turns"][0].clone();
    let image = message["images"][0].as_str().unwrap();
    assert!(message["content"] == "" && image.starts_with("data:image/png;base64,"), "{message}");
    terminal.enter("/exit");
    terminal.ends_with(0);
}

#[test]
fn a_message_from_a_file_needs_no_terminal() {
    let (user, server) = (User::new(), Server::demo());
    let command = user.command(&["chat", "--url", &server.url(), "--set", "temperature=0"]);
    assert_eq!(asked(command, "What is\n2 + 3?").code, Some(0));
}
