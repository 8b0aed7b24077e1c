//! `candlepower health`, `bench` and `deploy` with TLS servers.

use std::process::{Command, Output};

use serde_json::Value;

use crate::deploy::Home;
use crate::support::{
    Authority, Pair, Request, ServerBuilder, Socket, TempFolder, program, self_signed,
};

/// Exit status and complete output.
fn said(command: &mut Command) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code(), String::from_utf8([stdout, stderr].concat()).unwrap())
}

fn healthy() -> (Option<i32>, String) {
    (Some(0), "{\"status\":\"healthy\"}\n".to_owned())
}

/// `candlepower health` for a server with these TLS settings.
fn health(port: u16, pair: &Pair) -> Command {
    let mut command = program();
    command.arg("health").env("BLAZE_PORT", port.to_string());
    command.env("BLAZE_SSL_CERTFILE", &pair.certificate).env("BLAZE_SSL_KEYFILE", &pair.key);
    command
}

#[test]
fn health_finds_a_server_whose_certificate_is_its_own_and_of_another_name() {
    let folder = TempFolder::new();
    let pair = self_signed(&folder);
    let authority = Authority::new();
    let server = ServerBuilder::new("demo").tls(&pair, authority.client(None)).listen();
    let port = server.address.port();
    crate::support::wait_for("health", || {
        (said(&mut health(port, &pair)) == healthy()).then_some(())
    });
    let url = format!("https://localhost:{port}");
    assert_eq!(said(program().args(["health", "--url", &url])), healthy());
    // A TLS server does not answer plain requests.
    let (status, said) =
        said(program().args(["health", "--url", &format!("http://localhost:{port}")]));
    assert_eq!(status, Some(1), "{said}");
}

#[test]
fn health_has_the_servers_own_certificate_where_clients_need_one() {
    let (authority, of_clients) = (Authority::new(), Authority::new());
    let pair = authority.sign("server");
    let client = authority.client(Some(&of_clients.sign("client")));
    let server = ServerBuilder::new("demo")
        .flag("--ssl-ca-certs", &of_clients.certificate)
        .tls(&pair, client)
        .start();
    let mut command = health(server.address.port(), &pair);
    assert_eq!(said(command.env("BLAZE_SSL_CA_CERTS", &of_clients.certificate)), healthy());
    // Without the variable the check does not know that clients need a certificate, and shows none.
    let (status, said) = said(&mut health(server.address.port(), &pair));
    assert!(status == Some(1) && said.contains("no server answers"), "{said}");
}

#[test]
fn health_bench_and_top_show_the_certificate_that_they_are_given() {
    let (authority, of_clients) = (Authority::new(), Authority::new());
    let shown = of_clients.sign("client");
    let server = ServerBuilder::new("demo")
        .flag("--ssl-ca-certs", &of_clients.certificate)
        .tls(&authority.sign("server"), authority.client(Some(&shown)))
        .start();
    let url = server.url();
    let ask = |command: &[&str], identity: bool| {
        let mut asking = program();
        asking.args(command).args(["--url", &url, "--cacert"]).arg(&authority.certificate);
        if identity {
            asking.arg("--cert").arg(&shown.certificate).arg("--key").arg(&shown.key);
        }
        said(&mut asking)
    };
    assert_eq!(ask(&["health"], true), healthy());
    assert_eq!(ask(&["health"], false).0, Some(1));
    let bench = ["bench", "serve", "--requests", "1", "--concurrency", "1", "--output-tokens", "4"];
    let (status, text) = ask(&bench, true);
    assert_eq!(status, Some(0), "{text}");
    assert_eq!(ask(&bench, false).0, Some(1));
    let (status, text) = ask(&["top", "--once"], true);
    assert!(status == Some(0) && text.contains("0 running"), "{text}");
    let (status, text) = ask(&["top", "--once"], false);
    assert_eq!((status, text.lines().count()), (Some(1), 1), "{text}");
    // A server that closes the connection may lose its alert.
    let names_flags = text.contains("client certificate") && text.contains("--cert and --key");
    assert!(text.starts_with("error: ") && (names_flags || text.contains("reset")), "{text}");
    for (flags, missing) in [(["--cert", "a.pem"], "--key"), (["--key", "b.pem"], "--cert")] {
        let (status, text) = said(program().args(["bench", "serve"]).args(flags));
        assert!(status == Some(2) && text.contains(missing), "{text}");
    }
    let (status, text) = said(program().args(["health", "--cert", "a.pem", "--key", "b.pem"]));
    assert!(status == Some(2) && text.contains("--url"), "{text}");
}

#[test]
fn bench_trusts_what_it_is_told_to() {
    let folder = TempFolder::new();
    let own = self_signed(&folder);
    let authority = Authority::new();
    let bench = |url: &str, cacert: &[&str]| {
        let mut command = program();
        command.args(["bench", "serve", "--url", url, "--requests", "2", "--concurrency", "1"]);
        command.args([
            "--warmup",
            "0",
            "--input-tokens",
            "8",
            "--output-tokens",
            "4",
            "--json",
            "-",
        ]);
        let output = command.args(cacert).output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    for (pair, trusted) in [
        (own.clone(), own.certificate.clone()),
        (authority.sign("server"), authority.certificate.clone()),
    ] {
        let server = ServerBuilder::new("demo").flags("--http2").tls(&pair, authority.client(None));
        let server = server.listen();
        let (url, trusted) = (server.url(), trusted.to_str().unwrap());
        server.log_when_ready();
        let (status, _, said) = bench(&url, &[]);
        assert_eq!(status, Some(1));
        assert!(said.contains("certificate") || said.contains("authorit"), "{said}");
        for flags in [&["--cacert", trusted][..], &["--cacert", trusted, "--http2"]] {
            let (status, json, said) = bench(&url, flags);
            assert_eq!(status, Some(0), "{said}");
            let json: Value = serde_json::from_str(&json).unwrap();
            assert_eq!(json["levels"][0]["succeeded"], 2, "{json}");
        }
    }
    // Without TLS, HTTP/2 is spoken with prior knowledge.
    let server = ServerBuilder::new("demo").flags("--http2").start();
    let (status, json, said) = bench(&server.url(), &["--http2"]);
    assert_eq!(status, Some(0), "{said}");
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["levels"][0]["succeeded"], &json["settings"]["http2"]),
        (&2.into(), &true.into())
    );
}

#[test]
fn deployments_are_supervised_and_reached_over_tls() {
    let (authority, of_clients) = (Authority::new(), Authority::new());
    let pair = authority.sign("server");
    let home = Home::new();
    let files = format!(
        "--env BLAZE_SSL_CERTFILE={} --env BLAZE_SSL_KEYFILE={}",
        pair.certificate.display(),
        pair.key.display()
    );
    let guarded = format!("{files} --env BLAZE_SSL_CA_CERTS={}", of_clients.certificate.display());
    let client = of_clients.sign("client");
    for (name, flags, shows) in [("open", &files, None), ("guarded", &guarded, Some(&client))] {
        let deployed = home.deploy_demo(name, flags);
        assert_eq!((&deployed["state"], &deployed["is_ready"]), (&"Running".into(), &true.into()));
        let url = deployed["url"].as_str().unwrap();
        let address = url.strip_prefix("https://").unwrap().parse().unwrap();
        let client = authority.client(shows);
        let asked = || {
            let socket = Socket::connect(address, Some(&client)).unwrap();
            Request::get("/v1/models").open_over(socket).unwrap().finish().unwrap().status
        };
        assert_eq!(asked(), 200);
        // A restarted server keeps its address.
        assert_eq!(home.json(&format!("restart {name}"))["url"], url);
        assert_eq!(asked(), 200);
        assert_eq!(home.json(&format!("status {name}"))["is_ready"], true);
    }
    // A missing file is the reason of the failure.
    let missing = "--env BLAZE_SSL_CERTFILE=missing.pem --env BLAZE_SSL_KEYFILE=missing.pem";
    let output =
        home.run(&format!("deploy demo --name broken --env BLAZE_KV_CACHE_MEMORY=64Mi {missing}"));
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(!output.status.success() && said.contains("--ssl-certfile"), "{said}");
}
