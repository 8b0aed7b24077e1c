//! `candlepower pull`: downloads that are complete, interrupted, refused.

use std::process::Command;

use super::{Said, User};
use crate::support::{
    Access, Fault, Files, Hub, MEMBER_TOKEN, Seen, Side, Spot, Terminal, Times, wait_for,
};

const ID: &str = "acme/tiny";
const WEIGHTS: &str = "model.safetensors";

pub(super) fn with_hub(user: &User, hub: &Hub, args: &[&str]) -> Command {
    let mut command = user.command(args);
    command.env("HF_ENDPOINT", hub.endpoint()).env("HF_HUB_DOWNLOAD_TIMEOUT", "20");
    command.stdin(std::process::Stdio::null());
    command
}

pub(super) fn pulled(user: &User, hub: &Hub, args: &[&str]) -> Said {
    Said::of(with_hub(user, hub, &[&["pull"], args].concat()).output().unwrap())
}

/// A model whose weights are large enough to be continued.
fn large() -> Files {
    Files::golden("llama").with(WEIGHTS, vec![7; 40 << 20])
}

fn weights(hub: &Hub) -> Vec<Seen> {
    hub.requests().into_iter().filter(|seen| seen.side == Side::Storage).collect()
}

#[test]
fn a_model_is_downloaded_once_and_then_served_offline() {
    let (user, hub) = (User::new(), Hub::start());
    hub.publish(ID, &Files::golden("llama"));
    let said = pulled(&user, &hub, &[ID]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(
        said.out.starts_with("acme/tiny is complete: ")
            && said.out.contains("candlepower chat acme/tiny"),
        "{said:?}"
    );
    assert!(
        !said.out.contains('\x1b') && !said.err.contains('\x1b') && said.err.contains("downloaded"),
        "{said:?}"
    );
    hub.forget_requests();
    assert_eq!(pulled(&user, &hub, &[ID]).code, Some(0));
    assert_eq!(hub.requests().len(), 1);
    let mut offline = user.command(&["chat", ID, "--set", "max_tokens=2"]);
    offline.env("HF_HUB_OFFLINE", "1");
    let said = super::piped::asked(offline, "a");
    // The golden model has no chat template, so the server refuses the request itself.
    assert!(said.err.contains("chat template") || said.code == Some(0), "{said:?}");
}

#[test]
fn ctrl_c_leaves_what_the_same_command_continues() {
    let (user, hub) = (User::new(), Hub::start());
    hub.publish(ID, &large());
    hub.inject(ID, Spot::content(WEIGHTS), Fault::StallAfter(usize::MAX), Times::Next(1));
    hub.inject(ID, Spot::content(WEIGHTS), Fault::StallAfter(0), Times::Always);
    let mut terminal = Terminal::start(with_hub(&user, &hub, &["pull", ID]));
    // A bar for the file that is missing.
    terminal.expect(WEIGHTS);
    let blobs = user.state.path().join("hf/hub/models--acme--tiny/blobs");
    wait_for("a segment to be written", || {
        let entries = std::fs::read_dir(&blobs).ok()?.flatten();
        let is_large =
            |entry: &std::fs::DirEntry| entry.metadata().is_ok_and(|file| file.len() >= 16 << 20);
        entries.into_iter().find(is_large)
    });
    terminal.type_in("\x03");
    terminal.expect("stopped; the same command continues the download");
    terminal.ends_with(130);
    hub.heal(ID);
    hub.release();
    hub.forget_requests();
    let mut terminal = Terminal::start(with_hub(&user, &hub, &["pull", ID]));
    terminal.expect("acme/tiny is complete");
    terminal.ends_with(0);
    let ranges: Vec<Option<String>> = weights(&hub).into_iter().map(|seen| seen.range).collect();
    assert!(!ranges.is_empty() && ranges.iter().all(Option::is_some), "{ranges:?}");
}

#[test]
fn a_hub_that_breaks_off_is_one_line() {
    let (user, mut hub) = (User::new(), Hub::start());
    hub.publish(ID, &large());
    hub.inject(ID, Spot::content(WEIGHTS), Fault::CutAfter(1 << 20), Times::Next(2));
    hub.inject(ID, Spot::content(WEIGHTS), Fault::CutAfter(0), Times::Always);
    let said = pulled(&user, &hub, &[ID]);
    assert!(said.code == Some(1) && said.out.is_empty(), "{said:?}");
    let error = said.err.lines().last().unwrap();
    assert!(
        error.starts_with("error: the connection was lost")
            && error.ends_with("what has arrived is kept"),
        "{said:?}"
    );
    hub.heal(ID);
    hub.refuse_connections();
    let said = pulled(&user, &hub, &[ID]);
    assert!(
        said.code == Some(1) && said.err.contains("error: ") && said.err.contains(&hub.endpoint()),
        "{said:?}"
    );
    hub.accept_connections();
    assert_eq!(pulled(&user, &hub, &[ID]).code, Some(0));
}

#[test]
fn refusals_are_one_line() {
    let (user, hub) = (User::new(), Hub::start());
    hub.publish(ID, &Files::golden("llama"));
    hub.set_access(ID, Access::Gated);
    let gated = pulled(&user, &hub, &[ID]);
    assert!(gated.code == Some(1) && gated.err.contains("is gated"), "{gated:?}");
    let mut member = with_hub(&user, &hub, &["pull", ID]);
    let member = Said::of(member.env("HF_TOKEN", MEMBER_TOKEN).output().unwrap());
    assert!(member.code == Some(0) && !format!("{member:?}").contains(MEMBER_TOKEN), "{member:?}");
    for (args, expected) in [
        (&["acme/none"][..], "acme/none"),
        (&["nonsense"], "is no model of the hub"),
        (&[ID, "--revision", "../x"], "cannot be a revision"),
        (&[ID, "--hf-endpoint", "nonsense"], "nonsense"),
    ] {
        let said = pulled(&user, &hub, args);
        assert!(said.code == Some(1) && said.err.contains(expected), "{said:?}");
    }
}

#[test]
fn one_gguf_file_of_a_repository_is_downloaded() {
    let (user, hub) = (User::new(), Hub::start());
    let golden = |model| {
        Files::of_folder(candlepower_testing::goldens::folder(model))
            .contents("model.gguf")
            .to_vec()
    };
    hub.publish(
        ID,
        &Files::new()
            .with("tiny-Q4_K_M.gguf", golden("gguf-qwen2"))
            .with("tiny-Q8_0.gguf", golden("gguf-phi3")),
    );
    let which = pulled(&user, &hub, &[ID]);
    assert!(which.code == Some(1) && which.err.contains("tiny-Q8_0.gguf"), "{which:?}");
    let said = pulled(&user, &hub, &["acme/tiny:Q8_0"]);
    assert!(said.code == Some(0) && said.out.contains("acme/tiny:Q8_0 is complete"), "{said:?}");
    assert!(hub.requests().iter().all(|seen| !seen.path.contains("Q4_K_M")));
}
