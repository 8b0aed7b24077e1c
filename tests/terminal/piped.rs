//! `candlepower chat` without a terminal: a message from a pipe, the answer alone on standard output.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use super::{Said, User};
use crate::support::{Authority, Scripted, Server, ServerBuilder, vision_server};

/// Template of a scripted model whose user messages are the numbers of its texts.
fn choosing(starts: &[usize]) -> String {
    format!(
        "{{%- set starts = {starts:?} -%}}{{{{ 'a' * starts[messages[-1].content | int] }}}}\
        {{#- tool_calls <tool_call> {{{{ tools }}}} <think> -#}}"
    )
}

/// Sends a message through a pipe.
pub(super) fn asked(mut command: Command, message: &str) -> Said {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A program that fails early reads nothing.
    let _ = child.stdin.take().unwrap().write_all(message.as_bytes());
    Said::of(child.wait_with_output().unwrap())
}

fn said(code: i32, out: &str, err: &str) -> Said {
    Said { code: Some(code), out: out.into(), err: err.into() }
}

#[test]
fn the_answer_alone_is_on_standard_output() {
    let (user, server) = (User::new(), Server::demo());
    for command in ["chat", "run"] {
        let command = user.command(&[command, "--url", &server.url(), "--set", "temperature=0"]);
        assert_eq!(asked(command, "What is 2 + 3?\n"), said(0, "2 + 3 = 5.\n", ""));
    }
    let system = [
        "chat",
        "--url",
        &server.url(),
        "--set",
        "temperature=0",
        "--system",
        "You are Ada, a helpful assistant.",
    ];
    assert_eq!(
        asked(user.command(&system), "What is your name?"),
        said(0, "My name is Ada.\n", "")
    );
    let short = user.command(&[
        "chat",
        "--url",
        &server.url(),
        "--set",
        "temperature=0",
        "--set",
        "max_tokens=2",
    ]);
    let short = asked(short, "What is candlepower?");
    assert_eq!(
        (short.code, short.err.as_str()),
        (Some(0), "(the limit of tokens ended this answer)\n")
    );
}

#[test]
fn a_reader_that_goes_away_stops_the_answer() {
    let (user, server) = (User::new(), Server::demo());
    let mut command = user.command(&["chat", "--url", &server.url(), "--set", "ignore_eos=true"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"What is candlepower?").unwrap();
    // `head -c 8` reads so.
    child.stdout.take().unwrap().read_exact(&mut [0; 8]).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    server.wait_until_all_blocks_are_free();
}

#[test]
fn a_model_cannot_write_control_characters_or_reasoning_to_a_pipe() {
    let hostile = "<think>Hm\x1b[31m</think>\n\na\x1b[2J\x07b\u{9b}31m\tc\u{85}\nd";
    let template = |starts: &[usize]| choosing(starts);
    let scripted = Scripted::steered(
        template,
        &["<think>", "</think>"],
        &[hostile],
        "--reasoning-parser deepseek_r1",
    );
    let user = User::new();
    let command = user.command(&["chat", "--url", &scripted.server.url()]);
    assert_eq!(asked(command, "0"), said(0, "a[2Jb31m\tc\nd\n", ""));
}

#[test]
fn failures_are_one_line_on_standard_error() {
    let (user, server) =
        (User::new(), ServerBuilder::new("demo").flags("--api-key secret-1").start());
    let url = server.url();
    for (args, message, expected) in [
        (
            vec!["--url", "http://127.0.0.1:1"],
            "a",
            "error: http://127.0.0.1:1: cannot be reached: Connection refused",
        ),
        (vec!["--url", &url], "a", "HTTP 401 "),
        (vec!["--url", &url, "--api-key", "secret-2"], "a", "HTTP 401 "),
        (
            vec!["other", "--url", &url, "--api-key", "secret-1"],
            "a",
            "has no model other; it has demo",
        ),
        (vec!["--url", &url, "--api-key", "secret-1"], " \n", "standard input has no message"),
        (
            vec!["--url", &url, "--api-key", "secret-1", "--set", "temperature=3"],
            "a",
            "temperature must be from 0 to 2, not 3",
        ),
        (vec!["--url", &url, "--api-key", "secret-1", "--set", "top_p=0"], "a", "HTTP 400 "),
        (
            vec!["--url", &url, "--api-key", "secret-1", "--image", "none.png"],
            "a",
            "demo takes no images",
        ),
        (vec!["--url", "ftp://a"], "a", "http://, https:// or unix:"),
        (vec!["/nowhere/at/all"], "a", "there is no model folder or GGUF file"),
        (vec!["demo", "--", "--dtype", "nothing"], "a", "invalid value 'nothing' for '--dtype"),
    ] {
        let said = asked(user.command(&[&["chat"], &args[..]].concat()), message);
        assert!(said.code == Some(1) && said.out.is_empty(), "{args:?}: {said:?}");
        assert!(
            said.err.starts_with("error: ") && said.err.contains(expected),
            "{args:?}: {said:?}"
        );
        assert!(
            !said.err.contains("secret-") && said.err.lines().count() == 1,
            "{args:?}: {said:?}"
        );
    }
    let mut command = user.command(&["chat", "--url", &url, "--set", "temperature=0"]);
    command.env("OPENAI_API_KEY", "secret-1");
    assert_eq!(asked(command, "What is 2 + 3?"), said(0, "2 + 3 = 5.\n", ""));
}

#[test]
fn images_go_with_the_message() {
    let (user, server) = (User::new(), vision_server("vision_gemma3").start());
    let picture = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/vision_pictures/alpha.png");
    let url = server.url();
    let args =
        ["chat", "--url", &url, "--set", "max_tokens=4", "--set", "ignore_eos=true", "--image"];
    let command = user.command(&[&args[..], &[picture]].concat());
    let answer = asked(command, "a");
    assert!(answer.code == Some(0) && !answer.out.is_empty(), "{answer:?}");
    let no_image = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let refused = asked(user.command(&[&args[..], &[no_image]].concat()), "a");
    assert!(
        refused.code == Some(1) && refused.err.contains("is no PNG, JPEG, WebP or GIF"),
        "{refused:?}"
    );
}

#[test]
fn servers_with_tls_are_trusted_by_their_authority() {
    let (user, authority) = (User::new(), Authority::new());
    let pair = authority.sign("server");
    let server = ServerBuilder::new("demo").tls(&pair, authority.client(None)).start();
    let url = server.url();
    let trusted = authority.certificate.to_str().unwrap();
    let args = ["chat", "--url", &url, "--set", "temperature=0"];
    let refused = asked(user.command(&args), "What is 2 + 3?");
    assert!(refused.code == Some(1) && refused.err.contains("certificate"), "{refused:?}");
    let command = user.command(&[&args[..], &["--cacert", trusted]].concat());
    assert_eq!(asked(command, "What is 2 + 3?"), said(0, "2 + 3 = 5.\n", ""));
}

#[test]
fn a_running_server_is_used_if_no_model_is_named() {
    let (user, server) =
        (User::new(), ServerBuilder::new("demo").flags("--served-model-name mine").start());
    let mut command = user.command(&["chat", "--set", "temperature=0"]);
    command.env("BLAZE_PORT", server.address.port().to_string());
    assert_eq!(asked(command, "What is 2 + 3?"), said(0, "2 + 3 = 5.\n", ""));
    assert!(server.metrics().value("prompt_tokens_total") > 0.0);
}
