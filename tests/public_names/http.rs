//! Headers, error types and error codes: from live answers, or from the sources if no request provokes them.

use serde_json::{Value, json};

use super::live::{KEY, Servers, bodies};
use super::{Names, sources};
use crate::support::{Request, Response};

pub(super) fn collect(servers: &Servers, names: &mut Names) {
    for response in errors(servers) {
        let error = &response.json()["error"];
        let text = |key: &str| error[key].as_str().unwrap_or("null").to_owned();
        names.add(format!("error {} {} {}", response.status, text("type"), text("code")));
        for key in error.as_object().unwrap().keys() {
            names.add(format!("error.{key}"));
        }
        headers(&response, names);
    }
    for (path, body) in bodies() {
        headers(&servers.blaze.post(path, &body), names);
    }
    for path in ["/health", "/version", "/metrics", "/openapi.json", "/docs", "/"] {
        headers(&servers.blaze.get(path), names);
    }
    preflight(servers, names);
    requests(servers, names);
    from_sources(servers, names);
}

fn headers(response: &Response, names: &mut Names) {
    // The HTTP library adds these to every answer.
    const EVERYWHERE: [&str; 3] = ["connection", "content-length", "date"];
    for name in response.header_names().filter(|name| !EVERYWHERE.contains(name)) {
        names.add(format!("answer {} {name}", response.status));
    }
}

/// One answer for each error that a client can provoke.
fn errors(servers: &Servers) -> Vec<Response> {
    let blaze = |request: Request| servers.blaze.send(&request);
    let chat = |body: Value| blaze(Request::post("/v1/chat/completions", &body));
    let complete = |body: Value| blaze(Request::post("/v1/completions", &body));
    vec![
        blaze(Request::get("/nothing")),
        blaze(Request::get("/v1/completions")),
        blaze(Request::get("/v1/models/nothing")),
        blaze(Request::get("/v1/responses/resp_nothing")),
        blaze(Request::new("DELETE", "/v1/responses/resp_nothing")),
        blaze(Request::post(
            "/v1/responses",
            &json!({"model": "demo", "input": "a", "previous_response_id": "resp_no"}),
        )),
        servers.ask_prism(Request::post(
            "/generate",
            &json!({"text": "a", "session": {"id": "nothing"}}),
        )),
        chat(json!({"model": "nothing", "messages": [{"role": "user", "content": "a"}]})),
        chat(json!([])),
        chat(json!({"model": "demo"})),
        complete(json!({"model": "demo", "prompt": "a", "max_tokens": 0})),
        complete(json!({"model": "demo", "prompt": vec![1; 5000]})),
        blaze(
            Request::new("POST", "/v1/completions").header("Content-Type", "text/plain").body("{}"),
        ),
        blaze(Request::post("/v1/completions", &json!({})).header("Content-Encoding", "gzip")),
        // A body may have 32 MiB.
        blaze(Request::post("/v1/completions", &json!({})).body(vec![b' '; 33 << 20])),
        // The request has no key.
        servers.prism.get("/v1/models"),
    ]
}

/// Lists the headers of cross-origin answers.
fn preflight(servers: &Servers, names: &mut Names) {
    let request =
        |method: &str| Request::new(method, "/v1/models").header("Origin", "https://example.com");
    let asked = request("OPTIONS")
        .header("Access-Control-Request-Method", "POST")
        // Browsers send a preflight without a key.
        .header("Access-Control-Request-Headers", "authorization");
    for response in [servers.prism.send(&asked), servers.ask_prism(request("GET"))] {
        headers(&response, names);
        for name in ["access-control-allow-methods", "access-control-expose-headers"] {
            for value in response
                .header(name)
                .unwrap_or_default()
                .split(',')
                .filter(|value| !value.is_empty())
            {
                names.add(format!("{name}: {}", value.trim()));
            }
        }
    }
}

/// Lists request headers that change an answer.
fn requests(servers: &Servers, names: &mut Names) {
    let models = || Request::get("/v1/models");
    assert_eq!(servers.prism.send(&models()).status, 401);
    for (name, value) in [("authorization", format!("Bearer {KEY}")), ("x-api-key", KEY.to_owned())]
    {
        if servers.prism.send(&models().header(name, &value)).status == 200 {
            names.add(format!("request {name}"));
        }
    }
    let response = servers.blaze.send(&models().header("x-request-id", "mine"));
    if response.header("x-request-id") == Some("mine") {
        names.add("request x-request-id");
    }
}

/// Lists error codes and headers that appear in the sources.
fn from_sources(servers: &Servers, names: &mut Names) {
    let of_images = sources::of("media").literals_of_method("ErrorKind", "code");
    of_images.all.iter().for_each(|code| names.add(format!("code {code}")));
    for literals in &servers.literals {
        literals.arguments_of("with_code").for_each(|code| names.add(format!("code {code}")));
        let codes = literals.arguments_of("not_found").filter(|text| text.ends_with("_not_found"));
        codes.for_each(|code| names.add(format!("code {code}")));
        let kinds = literals.all.iter().filter(|text| text.ends_with("_error"));
        kinds.for_each(|kind| names.add(format!("code or type {kind}")));
        literals.headers.iter().for_each(|header| names.add(format!("header {header}")));
        let is_header = |text: &&String| text.starts_with("x-") && !text.contains(' ');
        literals
            .all
            .iter()
            .filter(is_header)
            .for_each(|header| names.add(format!("header {header}")));
    }
}
