//! A real Prometheus scrapes servers under load: every panel of the dashboards and every alert has data.
//!
//! It needs Debian's package `prometheus`. Without it the tests say so and check nothing.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{
    Request, Server, ServerBuilder, TempFolder, run_to_end, skipped, wait_for_or,
};

/// Load before the questions. Rates need some scrapes.
const LOAD: Duration = Duration::from_secs(8);
const KEY: &str = "secret";

fn configs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs")
}

/// The programs of the package, or a line that says what is missing.
fn programs() -> Option<[PathBuf; 2]> {
    let found = ["prometheus", "promtool"].map(|name| Path::new("/usr/bin").join(name));
    if found.iter().all(|program| program.exists()) {
        return Some(found);
    }
    skipped("there is no Prometheus (package prometheus)");
    None
}

#[test]
fn the_rules_are_valid_and_every_alert_fires_when_it_should() {
    let Some([_, promtool]) = programs() else { return };
    let folder = configs().join("prometheus");
    for naming in ["candlepower", "candlepower-vllm"] {
        let rules = folder.join(format!("{naming}-rules.yml"));
        run_to_end(Command::new(&promtool).args(["check", "rules"]).arg(rules));
        let tests = folder.join(format!("{naming}-rules.test.yml"));
        run_to_end(Command::new(&promtool).args(["test", "rules"]).arg(tests));
    }
    run_to_end(
        Command::new(&promtool).args(["check", "config"]).arg(folder.join("prometheus.yml")),
    );
}

/// A running Prometheus. It ends with the test.
struct Prometheus {
    child: Child,
    port: u16,
    _folder: TempFolder,
}

impl Prometheus {
    /// Scrapes each server every second.
    fn start(program: &Path, servers: &[&Server]) -> Self {
        let folder = TempFolder::new();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let targets: Vec<String> =
            servers.iter().map(|server| format!("'{}'", server.address)).collect();
        let rules: Vec<String> = ["candlepower-rules.yml", "candlepower-vllm-rules.yml"]
            .map(|file| format!("'{}'", configs().join("prometheus").join(file).display()))
            .to_vec();
        let config = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{}]\nscrape_configs:\n  \
             - job_name: candlepower\n    static_configs:\n      - targets: [{}]\n",
            rules.join(", "),
            targets.join(", ")
        );
        let file = folder.write("prometheus.yml", config);
        let child = Command::new(program)
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let this = Self { child, port, _folder: folder };
        wait_for_or(
            || {
                let ready = Request::get("/-/ready").send(([127, 0, 0, 1], port).into()).ok()?;
                (ready.status == 200).then_some(())
            },
            || "Prometheus to be ready".to_owned(),
        );
        this
    }

    fn ask(&self, path: &str) -> Value {
        let answer = Request::get(path).send(([127, 0, 0, 1], self.port).into()).unwrap();
        let answer = answer.json();
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        answer["data"].clone()
    }

    /// Numbers of an expression's series now; those that are none, such as quotients by zero, are left out.
    fn values(&self, expression: &str) -> Vec<f64> {
        let data = self.ask(&format!("/api/v1/query?query={}", encoded(expression)));
        let series = data["result"].as_array().unwrap().iter();
        series
            .filter_map(|series| series["value"][1].as_str()?.parse::<f64>().ok())
            .filter(|value| value.is_finite())
            .collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A text as part of a query.
fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// The expressions of a dashboard, each with its panel's title.
fn panels(file: &str) -> Vec<(String, String)> {
    let text = std::fs::read(configs().join("grafana").join(file)).unwrap();
    let dashboard: Value = serde_json::from_slice(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let lines = panels.flat_map(|panel| {
        let targets = panel["targets"].as_array().into_iter().flatten();
        targets.map(|target| {
            let expression = target["expr"].as_str().unwrap().replace("$__rate_interval", "30s");
            let all = ["$job", "$instance", "$model_name"];
            let expression = all.iter().fold(expression, |text, name| text.replace(name, ".*"));
            (panel["title"].as_str().unwrap().to_owned(), expression)
        })
    });
    lines.collect()
}

/// The values that alerts compare: each expression up to its first comparison.
fn alerts(file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(configs().join("prometheus").join(file)).unwrap();
    let expressions = text.lines().filter_map(|line| line.trim().strip_prefix("expr: '"));
    let values = expressions.map(|expression| {
        let expression = expression.strip_suffix('\'').unwrap().replace("''", "'");
        let end = [" > ", " == "].iter().filter_map(|sign| expression.find(sign)).min().unwrap();
        expression[..end].to_owned()
    });
    values.collect()
}

fn send_load(server: &Server, is_enough: &AtomicBool) {
    let system = "You are a helpful assistant. ".repeat(8);
    for round in 0.. {
        if is_enough.load(Ordering::Relaxed) {
            return;
        }
        let messages = json!([
            {"role": "system", "content": system},
            {"role": "user", "content": format!("Question {round}")},
        ]);
        let body = json!({
            "model": "demo", "messages": messages, "max_tokens": 24, "ignore_eos": true, "n": 2, "stream": round % 2 == 0,
        });
        let request = Request::post("/v1/chat/completions", &body);
        let answer = server.send(&request.header("Authorization", &format!("Bearer {KEY}")));
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

#[test]
fn every_panel_and_every_alert_has_data_of_a_loaded_server() {
    let Some([program, _]) = programs() else { return };
    let server = |flags: &str| {
        ServerBuilder::new("demo").flags(flags).flags(&format!("--api-key {KEY}")).start()
    };
    for (naming, server) in
        [("candlepower", server("")), ("candlepower-vllm", server("--metrics-compat vllm"))]
    {
        let prometheus = Prometheus::start(&program, &[&server]);
        let is_enough = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| send_load(&server, &is_enough));
            }
            // The load must last, so that rates are not zero divided by zero.
            std::thread::sleep(LOAD);
            let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                check(&prometheus, naming);
            }));
            is_enough.store(true, Ordering::Relaxed);
            if let Err(panic) = checked {
                std::panic::resume_unwind(panic);
            }
        });
        if let Some(folder) = std::env::var_os("CANDLEPOWER_TEST_PICTURES") {
            let file = Path::new(&folder).join(format!("{naming}.svg"));
            let dashboard = configs().join("grafana").join(format!("{naming}.json"));
            let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/draw_dashboard.py");
            let url = format!("http://127.0.0.1:{}", prometheus.port);
            let mut draw = Command::new("python3");
            run_to_end(draw.arg(script).arg(dashboard).arg(url).arg(file));
        }
    }
}

fn check(prometheus: &Prometheus, naming: &str) {
    let panels = panels(&format!("{naming}.json"));
    assert!(panels.len() > 40, "{}", panels.len());
    let mut empty = Vec::new();
    let mut is_zero_everywhere = true;
    for (title, expression) in panels {
        let values = prometheus.values(&expression);
        is_zero_everywhere &= values.iter().all(|value| *value == 0.0);
        if values.is_empty() {
            empty.push(format!("{title}: {expression}"));
        }
    }
    let alerts = alerts(&format!("{naming}-rules.yml"));
    assert!(alerts.len() > 10, "{}", alerts.len());
    // A server without a keys file reloads nothing, and so has no such counter.
    for value in alerts.iter().filter(|value| !value.contains("reload_failures")) {
        if prometheus.values(value).is_empty() {
            empty.push(value.clone());
        }
    }
    assert!(empty.is_empty(), "no data:\n{}", empty.join("\n"));
    assert!(!is_zero_everywhere);
    // Nothing is wrong, so no alert fires.
    let firing = prometheus.values("count(ALERTS{alertstate=\"firing\"})");
    assert_eq!(firing, Vec::<f64>::new(), "{}", prometheus.ask("/api/v1/alerts"));
}
