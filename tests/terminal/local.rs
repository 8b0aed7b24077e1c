//! `candlepower chat MODEL`: the model's own server starts and ends with the conversation.

use std::fs;

use super::User;
use super::piped::asked;
use crate::support::{Terminal, process, wait_for};

/// The private folders of conversations.
fn folders(user: &User) -> Vec<String> {
    let entries = fs::read_dir(user.state.path()).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("candlepower-chat-")).collect()
}

fn wait_until_gone(user: &User, server: u32) {
    wait_for("the server to end", || process::ticks(server).is_none().then_some(()));
    wait_for("the folder to be removed", || folders(user).is_empty().then_some(()));
}

#[test]
fn a_model_is_started_and_ends_with_the_conversation() {
    let user = User::new();
    let command = ["chat", "demo", "--set", "temperature=0", "--", "--max-model-len", "512"];
    let mut terminal = Terminal::start(user.command(&command));
    terminal.expect("demo, context of 512 tokens.");
    let [server] = process::children(terminal.pid())[..] else { panic!("one server is started") };
    let [folder] = &folders(&user)[..] else { panic!("one folder is there") };
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let folder = user.state.path().join(folder);
    assert_eq!((mode(&folder), mode(&folder.join("server.sock"))), (0o700, 0o600));
    terminal.enter("What is 2 + 3?");
    terminal.expect("5.");
    // Ctrl-C at the prompt reaches the whole group of the terminal, but not the server.
    terminal.expect(">>> ");
    terminal.type_in("\x03");
    terminal.enter("What is 2 + 3?");
    terminal.expect("5.");
    terminal.enter("/exit");
    terminal.ends_with(0);
    wait_until_gone(&user, server);
}

#[test]
fn a_killed_conversation_leaves_no_server() {
    let user = User::new();
    let mut terminal = Terminal::start(user.command(&["chat", "demo"]));
    terminal.expect(">>> ");
    let [server] = process::children(terminal.pid())[..] else { panic!("one server is started") };
    let killed =
        std::process::Command::new("kill").args(["-KILL", &terminal.pid().to_string()]).status();
    assert!(killed.unwrap().success());
    terminal.wait_for_exit();
    wait_until_gone(&user, server);
}

#[test]
fn a_server_that_dies_is_told_with_its_reason() {
    let user = User::new();
    let mut terminal = Terminal::start(user.command(&["chat", "demo", "--set", "temperature=0"]));
    terminal.expect(">>> ");
    let [server] = process::children(terminal.pid())[..] else { panic!("one server is started") };
    assert!(
        std::process::Command::new("kill")
            .args(["-KILL", &server.to_string()])
            .status()
            .unwrap()
            .success()
    );
    wait_for("the server to end", || process::ticks(server).is_none().then_some(()));
    terminal.type_in("Hello\r");
    terminal.expect("error: the server has ended (signal: 9 (SIGKILL))");
    terminal.expect(">>> ");
    terminal.type_in("\x04");
    terminal.ends_with(0);
    assert!(folders(&user).is_empty());
}

#[test]
fn settings_of_other_servers_do_not_reach_the_model() {
    let user = User::new();
    let mut command = user.command(&["chat", "demo", "--set", "temperature=0"]);
    command
        .env("BLAZE_PORT", "1")
        .env("BLAZE_API_KEY", "secret")
        .env("BLAZE_SSL_CERTFILE", "none.pem");
    let said = asked(command, "What is 2 + 3?");
    assert_eq!((said.code, said.out.as_str()), (Some(0), "2 + 3 = 5.\n"), "{said:?}");
    assert!(folders(&user).is_empty());
}
