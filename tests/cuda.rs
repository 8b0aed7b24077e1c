//! Builds with and without CUDA on machines with and without a GPU. Each serves on the CPU, or reports in one line
//! why it cannot use a GPU.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::ranks::ends_the_server;
use crate::support::{Server, ServerBuilder, TempFolder, binary};

/// Whether the binary under test was built with CUDA. `cargo xtask cuda` sets the variable.
fn built_with_cuda() -> bool {
    std::env::var_os("CANDLEPOWER_TEST_CUDA").is_some()
}

/// A stub of NVIDIA's driver that starts, reports this version of CUDA (13000 is 13.0), and finds no GPU.
fn driver(cuda_version: u32) -> TempFolder {
    let folder = TempFolder::new();
    // `cuInit(0)` succeeds by returning its argument. Without further functions no device can be opened.
    compile(&folder, "libcuda.so.1", "int cuInit(unsigned flags) { return flags; }");
    let management = format!(
        "#include <string.h>
        int nvmlInit_v2(void) {{ return 0; }}
        int nvmlShutdown(void) {{ return 0; }}
        int nvmlSystemGetCudaDriverVersion_v2(int *version) {{ *version = {cuda_version}; return 0; }}
        int nvmlSystemGetDriverVersion(char *text, unsigned length) {{ strncpy(text, \"550.54\", length); return 0; }}
        int nvmlDeviceGetCount_v2(unsigned *count) {{ *count = 0; return 0; }}"
    );
    // Programs look for one name or the other.
    for name in ["libnvidia-ml.so", "libnvidia-ml.so.1"] {
        compile(&folder, name, &management);
    }
    folder
}

fn compile(folder: &TempFolder, library: &str, source: &str) {
    let source = folder.write("source.c", source);
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(folder.path().join(library)).arg(source);
    assert!(cc.status().unwrap().success(), "a C compiler is needed");
}

/// The one line with which `--device cuda` is refused. The loader searches `libraries` first.
#[track_caller]
fn refusal(libraries: &Path) -> String {
    let server = ServerBuilder::new("demo").flags("--device cuda");
    let refused = server.env("LD_LIBRARY_PATH", libraries.to_str().unwrap()).refused();
    let errors: Vec<&str> = refused.message.lines().filter(|line| line.contains("ERROR")).collect();
    let [line] = errors.as_slice() else { panic!("one line is expected:\n{}", refused.message) };
    assert!(line.contains("leave --device out"), "{line}");
    assert!(!refused.message.contains("panicked"), "{}", refused.message);
    (*line).to_owned()
}

#[test]
fn without_a_driver_cuda_is_refused_and_the_cpu_serves() {
    let empty = TempFolder::new();
    let line = refusal(empty.path());
    assert_eq!(line.contains("this build has no CUDA"), !built_with_cuda(), "{line}");

    let server = ServerBuilder::new("demo").flags("--device auto").start();
    let answer = server.chat(json!({
        "messages": [{"role": "user", "content": "What is 2 + 3?"}], "temperature": 0, "max_tokens": 20,
    }));
    assert_eq!(answer["choices"][0]["message"]["content"], "2 + 3 = 5.");
    let log = server.log_when_ready();
    assert_eq!(log.contains("no GPU is used: "), built_with_cuda(), "{log}");
}

#[test]
fn a_driver_that_is_too_old_is_named_with_what_is_needed() {
    // NVIDIA writes 12.4 as 12040.
    let line = refusal(driver(12040).path());
    if built_with_cuda() {
        assert!(line.contains("driver 550.54 is too old: it runs CUDA up to 12.4"), "{line}");
    } else {
        assert!(line.contains("this build has no CUDA"), "{line}");
    }
}

#[test]
fn a_driver_that_is_new_enough_and_opens_no_gpu_is_refused_with_its_words() {
    let driver = driver(99000);
    let line = refusal(driver.path());
    let reason = if built_with_cuda() { "the GPU cannot be used: " } else { "has no CUDA" };
    assert!(line.contains(reason), "{line}");
    assert_eq!(line.contains("CUDA_ERROR_NO_DEVICE"), built_with_cuda(), "{line}");
    // Without `--device cuda` the same driver is only remarked on.
    let server = ServerBuilder::new("demo");
    server.env("LD_LIBRARY_PATH", driver.path().to_str().unwrap()).start();
}

/// pip installs the program of a wheel beside NVIDIA's packages. So CUDA's libraries are found without any setting.
#[test]
fn libraries_are_found_among_the_python_packages_beside_the_program() {
    let packages = TempFolder::new();
    let folder = |path: &str| {
        let folder = packages.path().join(path);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    };
    let program = folder("candlepower/bin").join("candlepower");
    std::fs::copy(binary(), &program).unwrap();
    let (driver, libraries) = (driver(99000), folder("nvidia/cu13/lib"));
    for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        std::fs::copy(driver.path().join(name), libraries.join(name)).unwrap();
    }

    let mut serve = Command::new(program);
    // The loader must find the libraries by the program's place alone.
    serve.args(["serve", "demo", "--device", "cuda", "--port", "0"]).env_remove("LD_LIBRARY_PATH");
    let refused = serve.output().unwrap();
    let said = [refused.stdout, refused.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert_eq!(said.contains("CUDA_ERROR_NO_DEVICE"), built_with_cuda(), "{said}");
    assert_eq!(said.contains("has no CUDA"), !built_with_cuda(), "{said}");
}

/// The demo on GPUs that the CPU emulates. `cargo xtask emulated` builds a binary with kernels for them, and the
/// loader finds their driver.
fn on_emulated_gpus(gpus: usize, flags: &str) -> Server {
    let small = "--device cuda --dtype bfloat16 --max-num-seqs 4 --max-num-batched-tokens 64";
    let server = ServerBuilder::new("demo").flags(&format!("{small} {flags}"));
    server.env("CANDLEPOWER_EMULATED_GPUS", &gpus.to_string()).start()
}

/// Two concurrent greedy requests.
fn knows_what_it_should(server: &Server) {
    let ask = |question: &str| {
        let messages = json!([{"role": "user", "content": question}]);
        let body =
            json!({"messages": messages, "temperature": 0, "max_tokens": 20, "logprobs": true});
        server.chat(body)["choices"][0].take()
    };
    // Both requests run in one batch, so the kernels see several sequences.
    let (sum, capital) = std::thread::scope(|scope| {
        let sum = scope.spawn(|| ask("What is 2 + 3?"));
        let capital = ask("What is the capital of France?");
        (sum.join().unwrap(), capital)
    });
    assert_eq!(capital["message"]["content"], "The capital of France is Paris.");
    assert_eq!(sum["message"]["content"], "2 + 3 = 5.");
    let first = sum["logprobs"]["content"][0]["logprob"].as_f64();
    assert!(first.is_some_and(|logprob| (-1.0..=0.0).contains(&logprob)), "{first:?}");
}

/// Requests that need the newest token for the next one: with schemas, penalties and words that are ruled out.
fn looks_back(server: &Server) -> Vec<String> {
    let schema = json!({
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "is_a_capital": {"type": "boolean"}},
        "required": ["city", "is_a_capital"],
        "additionalProperties": false,
    });
    let schema = json!({"type": "json_schema", "json_schema": {"name": "city", "schema": schema, "strict": true}});
    let bodies = [
        json!({"response_format": schema}),
        json!({"response_format": schema, "repetition_penalty": 1.3, "n": 2, "seed": 3}),
        json!({"repetition_penalty": 1.2, "frequency_penalty": 0.5}),
        json!({"bad_words": ["The capital", "5."]}),
        json!({}),
    ];
    let ask = |body: &serde_json::Value| {
        let mut body = body.clone();
        body["messages"] = json!([{"role": "user", "content": "What is the capital of France?"}]);
        body["temperature"] = json!(0);
        body["max_tokens"] = json!(30);
        let answer = server.chat(body);
        let choices = answer["choices"].as_array().unwrap();
        choices.iter().map(|choice| choice["message"]["content"].to_string()).collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        let asked: Vec<_> = bodies.iter().map(|body| scope.spawn(|| ask(body))).collect();
        asked.into_iter().flat_map(|asked| asked.join().unwrap()).collect()
    })
}

/// The whole path of a request: kernels, CUDA graphs, copies, sampling.
#[test]
#[ignore = "needs an emulated GPU: `cargo xtask emulated` runs it"]
fn an_emulated_gpu_answers_as_the_cpu_does() {
    let on_cpu =
        looks_back(&ServerBuilder::new("demo").flags("--device cpu --dtype bfloat16").start());
    // With prism, tokens that a schema forces are appended.
    for flags in ["", "--enforce-eager --framework prism"] {
        let server = on_emulated_gpus(1, flags);
        assert_eq!(server.log_when_ready().contains("capturing CUDA graphs"), flags.is_empty());
        knows_what_it_should(&server);
        assert_eq!(looks_back(&server), on_cpu, "with `{flags}`");
        let drawn = server.chat(json!({
            "messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 20,
            "temperature": 1.0, "top_p": 0.9, "top_k": 40, "seed": 7, "n": 2, "presence_penalty": 0.5,
            "structured_outputs": {"choice": ["Paris", "Rome"]},
        }));
        let choices = drawn["choices"].as_array().unwrap();
        assert_eq!(choices.len(), 2);
        for choice in choices {
            let text = choice["message"]["content"].as_str().unwrap();
            assert!(["Paris", "Rome"].contains(&text), "{text}");
        }
    }
}

/// NCCL's sums and gathers, in CUDA graphs and in prefill steps; and a rank that disappears during them.
#[test]
#[ignore = "needs an emulated GPU: `cargo xtask emulated` runs it"]
fn emulated_gpus_answer_together_as_one_does() {
    let server = on_emulated_gpus(2, "--tensor-parallel-size 2");
    server.log_with("capturing CUDA graphs");
    knows_what_it_should(&server);
    ends_the_server(server, "KILL", "rank 1 was killed (SIGKILL)");
}
