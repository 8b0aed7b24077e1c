//! The common form of errors on every path and method, request ids, keys and cross-origin requests.

use serde_json::json;

use crate::support::{Request, Server, ServerBuilder};

const GET_PATHS: [&str; 7] =
    ["/v1/models", "/health", "/version", "/metrics", "/openapi.json", "/docs", "/"];
const POST_PATHS: [&str; 4] =
    ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"];

#[test]
fn unknown_paths_are_404_under_every_method() {
    let server = Server::demo();
    for path in [
        "/nothing",
        "/v1",
        "/v1/",
        "/v1/chat",
        "/v1/completions/x",
        "//",
        "/%00",
        "/v1/models/nothing",
        "/v2/models",
    ] {
        // `BREW` is no method of HTTP.
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH", "BREW"] {
            let response = server.send(&Request::new(method, path));
            // The path of a model exists, so methods other than GET are refused there.
            let status = if path.starts_with("/v1/models/") && method != "GET" { 405 } else { 404 };
            response.error(status);
        }
    }
    let error = server.get("/v1/models/nothing").error(404);
    assert_eq!((&error["code"], &error["param"]), (&json!("model_not_found"), &json!("model")));
}

#[test]
fn wrong_methods_are_405_and_say_which_are_right() {
    let server = Server::demo();
    for (paths, allowed) in [(&GET_PATHS[..], "GET"), (&POST_PATHS[..], "POST")] {
        for path in paths {
            for method in ["GET", "POST", "PUT", "DELETE", "PATCH"]
                .into_iter()
                .filter(|method| *method != allowed)
            {
                let response = server.send(&Request::new(method, path));
                response.error(405);
                assert!(
                    response.header("allow").is_some_and(|methods| methods.contains(allowed)),
                    "{response:?}"
                );
            }
        }
    }
}

#[test]
fn bodies_that_are_not_json_are_415_and_broken_ones_400() {
    let server = Server::demo();
    for path in POST_PATHS {
        server.send(&Request::new("POST", path).body("{}")).error(415);
        server
            .send(&Request::new("POST", path).header("Content-Type", "text/plain").body("{}"))
            .error(415);
        let error = server.send(&Request::post(path, &json!(null)).body("{\"model\": ")).error(400);
        assert!(error["param"].is_null(), "{error}");
        let charset = "application/json; charset=utf-8";
        server
            // The type is right, and the body lacks its fields.
            .send(&Request::new("POST", path).header("Content-Type", charset).body("{}"))
            .error(400);
    }
}

#[test]
fn errors_do_not_reflect_their_input() {
    let server = Server::demo();
    let long = "z".repeat(50_000);
    let answers = [
        server.get(&format!("/{long}")),
        server.get(&format!("/v1/models/{long}")),
        server.post("/v1/completions", &json!({"model": long, "prompt": "a"})),
        server.post("/v1/completions", &json!({"model": "demo", "prompt": "a", long.as_str(): 1})),
        server.post("/v1/completions", &json!({"model": "demo", "prompt": "a", "stream": long})),
        server.post(
            "/v1/chat/completions",
            &json!({"model": "demo", "messages": [{"role": long, "content": "a"}]}),
        ),
    ];
    for answer in answers {
        assert!((400..500).contains(&answer.status), "{}", answer.status);
        answer.error(answer.status);
        // An error repeats at most 200 characters of its input.
        assert!(answer.text().matches('z').count() <= 200, "{}", answer.text());
    }
}

#[test]
fn request_ids_are_echoed_or_made() {
    let server = Server::demo();
    let id = |request: Request| server.send(&request).header("x-request-id").unwrap().to_owned();
    assert_eq!(id(Request::get("/version").header("X-Request-Id", "mine-1")), "mine-1");
    assert_eq!(id(Request::get("/nothing").header("x-request-id", "mine-2")), "mine-2");
    let made =
        [id(Request::get("/version")), id(Request::get("/version")), id(Request::get("/nothing"))];
    assert!(
        made.iter().all(|id| !id.is_empty()) && made[0] != made[1] && made[1] != made[2],
        "{made:?}"
    );
}

#[test]
fn a_key_is_asked_for_only_where_one_is_set() {
    let open = Server::demo();
    let with_key = Request::get("/v1/models").header("Authorization", "Bearer anything");
    assert_eq!(open.send(&with_key).status, 200);

    let keyless = ["/health", "/version", "/metrics", "/docs", "/openapi.json", "/"];
    let start = |flags| ServerBuilder::new("demo").flags(flags).start();
    let (server, private) = (start("--api-key s3cret"), start("--api-key s3cret --private-docs"));
    // Probes and collectors of metrics have no keys.
    for (server, keyless) in [(&server, &keyless[..]), (&private, &keyless[..3])] {
        for path in GET_PATHS.into_iter().chain(["/v1/models/demo", "/nothing"]) {
            let response = server.get(path);
            if keyless.contains(&path) {
                assert_eq!(response.status, 200, "{path}");
            } else {
                response.error(401);
                assert_eq!(response.header("www-authenticate"), Some("Bearer"));
            }
        }
    }
    for path in POST_PATHS {
        server.post(path, &json!({})).error(401);
    }
    // Too short, too long, another scheme, no scheme, and other letters.
    for wrong in
        ["Bearer ", "Bearer s3cre", "Bearer s3cret2", "Basic s3cret", "s3cret", "Bearer S3CRET"]
    {
        server.send(&Request::get("/v1/models").header("Authorization", wrong)).error(401);
    }
    assert_eq!(
        server.send(&Request::get("/v1/models").header("Authorization", "Bearer s3cret")).status,
        200
    );
    let log = server.log_when_ready();
    assert!(!log.contains("s3cret"), "the key is in the log:\n{log}");
}

#[test]
fn other_origins_are_let_in_only_by_the_flag() {
    let preflight = Request::new("OPTIONS", "/v1/chat/completions")
        .header("Origin", "https://example.com")
        .header("Access-Control-Request-Method", "POST")
        .header("Access-Control-Request-Headers", "authorization,content-type");
    let get = Request::get("/v1/models").header("Origin", "https://example.com");
    let allowed = |server: &Server, request: &Request| {
        server.send(request).header("access-control-allow-origin").map(str::to_owned)
    };

    let closed = Server::demo();
    // A page of another origin must not read the answers of a local server.
    assert_eq!((allowed(&closed, &preflight), allowed(&closed, &get)), (None, None));
    let all = ServerBuilder::new("demo").flags("--allowed-origins *").start();
    assert_eq!(allowed(&all, &preflight).as_deref(), Some("*"));
    assert_eq!(allowed(&all, &get).as_deref(), Some("*"));
    let one = ServerBuilder::new("demo").flags("--allowed-origins https://example.com").start();
    assert_eq!(allowed(&one, &get).as_deref(), Some("https://example.com"));
    let other = Request::get("/v1/models").header("Origin", "https://example.org");
    assert_eq!(allowed(&one, &other), None);
}
