//! The start of `serve` on a terminal: what is served where, as a list. Otherwise plain lines.

use serde_json::Value;

use super::User;
use crate::support::Terminal;

#[test]
fn a_terminal_gets_a_list_of_what_is_served_where() {
    let user = User::new();
    let mut terminal = Terminal::start(user.command(&["serve", "demo", "--port", "0"]));
    terminal.expect("config: ");
    // Settings with their default are left out.
    let config = terminal.expect("\n");
    assert!(config.contains("model=demo (flag)") && !config.contains("block_size"), "{config}");
    terminal.expect("  model          demo\n  API            http://127.0.0.1:");
    terminal.expect("  page           http://127.0.0.1:");
    terminal.expect("  context        2048 tokens\n  memory         ");
    terminal.expect("  answers        end after 16 tokens");
    terminal.type_in("\x03");
    terminal.ends_with(0);
    let args = ["serve", "demo", "--port", "0", "--no-playground", "--default-max-tokens", "max"];
    let mut terminal = Terminal::start(user.command(&args));
    let list = terminal.expect("  stop           Ctrl-C");
    assert!(!list.contains("  page ") && !list.contains("  answers "), "{list}");
}

#[test]
fn json_stays_json_on_a_terminal() {
    let user = User::new();
    let args = ["serve", "demo", "--port", "0", "--log-format", "json"];
    let mut terminal = Terminal::start(user.command(&args));
    terminal.expect("ready: http");
    terminal.type_in("\x03");
    terminal.ends_with(0);
    let text = terminal.text();
    // The terminal itself shows Ctrl-C as ^C.
    let lines = text.lines().map(|line| line.trim_start_matches("^C"));
    for line in lines.filter(|line| !line.is_empty()) {
        serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    }
}
