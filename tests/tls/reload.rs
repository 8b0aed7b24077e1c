//! Certificates that are replaced while the server runs.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::json;

use super::{asked, server};
use crate::support::{
    Authority, Pair, Request, Server, ServerBuilder, Socket, binary, python, run_to_end, wait_for,
    without_settings,
};

const FAILURES: &str = "reload_failures_total{files=\"certificates\"}";

/// The certificate that new connections get.
fn shown(server: &Server) -> CertificateDer<'static> {
    let stream = Request::get("/health").open_over(server.connect().unwrap()).unwrap();
    match stream.socket() {
        Socket::Tls(stream) => stream.conn.peer_certificates().unwrap()[0].clone().into_owned(),
        Socket::Plain(_) => panic!("the server has no TLS"),
    }
}

/// Waits until new connections get this certificate.
fn wait_until_shown(server: &Server, pair: &Pair) {
    let expected = CertificateDer::from_pem_file(&pair.certificate).unwrap();
    wait_for("the new certificate", || (shown(server) == expected).then_some(()));
}

#[test]
fn certificates_are_replaced_without_a_failed_request() {
    let (server, authority) = server("--http2");
    let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    server.complete(json!({"prompt": "a", "max_tokens": 2}));
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..10 {
            let before = done.load(Ordering::Relaxed);
            let pair = authority.sign("server");
            server.signal("HUP");
            wait_until_shown(&server, &pair);
            // Each client has asked at least once since the exchange.
            wait_for("requests", || (done.load(Ordering::Relaxed) >= before + 4).then_some(()));
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(server.metrics().series(FAILURES), 0.0, "{}", server.log());
    server.log_with("reloaded the certificates");
}

#[test]
fn a_bad_file_leaves_the_old_ones_in_force() {
    let (server, authority) = server("");
    let before = shown(&server);
    let key = authority.sign("other").key;
    let key = std::fs::read_to_string(key).unwrap();
    // The key of another certificate is valid PEM, so only a comparison with the certificate finds the mistake.
    for (failures, (file, text, reason)) in [
        ("server.pem", "not PEM", "no certificate"),
        ("server.pem", "", "no certificate"),
        ("server.key.pem", &key, "does not match"),
    ]
    .into_iter()
    .enumerate()
    {
        let good = std::fs::read_to_string(authority.certificate.with_file_name(file)).unwrap();
        authority.write(file, text);
        server.signal("HUP");
        wait_for("the failure to be counted", || {
            (server.metrics().series(FAILURES) == (failures + 1) as f64).then_some(())
        });
        assert_eq!(shown(&server), before);
        authority.write(file, &good);
        // The line may come after the counter.
        let errors = wait_for("the failure in the log", || {
            let log = server.log();
            let errors = log.lines().filter(|line| line.contains("ERROR"));
            let errors: Vec<String> = errors.map(str::to_owned).collect();
            (errors.len() > failures).then_some(errors)
        });
        assert_eq!(errors.len(), failures + 1, "{errors:?}");
        let line = &errors[failures];
        for part in [file, reason, "stay in force"] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
    // Valid files are accepted again.
    let pair = authority.sign("server");
    server.signal("HUP");
    wait_until_shown(&server, &pair);
    server.complete(json!({"prompt": "a", "max_tokens": 2}));
}

#[test]
fn authorities_of_clients_are_replaced_too() {
    let (authority, first) = (Authority::new(), Authority::new());
    let authorities = std::fs::read_to_string(&first.certificate).unwrap();
    let file = authority.write("clients.pem", &authorities);
    let client = authority.client(Some(&first.sign("client")));
    let server = ServerBuilder::new("demo")
        .flag("--ssl-ca-certs", &file)
        .tls(&authority.sign("server"), client.clone())
        .start();
    let second = Authority::new();
    authority.write("clients.pem", &std::fs::read_to_string(&second.certificate).unwrap());
    server.signal("HUP");
    // A client that resumes an earlier TLS session is refused, too.
    wait_for("the client to be refused", || asked(&server, &client).is_err().then_some(()));
    let other = authority.client(Some(&second.sign("client")));
    assert_eq!(asked(&server, &other).unwrap(), 200);
}

#[test]
fn without_files_to_read_a_hangup_stops_the_server() {
    let mut server = ServerBuilder::new("demo").flags("--http2").start();
    server.signal("HUP");
    assert_eq!(server.wait_for_exit().code(), Some(0), "{}", server.log());
}

#[test]
fn a_terminal_that_is_closed_stops_the_server() {
    let authority = Authority::new();
    let pair = authority.sign("server");
    let mut command = without_settings(python("clients/terminal.py"));
    // The client closes its terminal, whose hangup must stop the server although it has files to read again.
    command.arg(binary()).args(["serve", "demo", "--port", "0", "--kv-cache-memory", "64Mi"]);
    command.arg("--ssl-certfile").arg(&pair.certificate).arg("--ssl-keyfile").arg(&pair.key);
    run_to_end(&mut command);
}
