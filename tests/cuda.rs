//! Builds with and without CUDA on machines with and without a GPU: each serves on the CPU, or says in one line why
//! it does not compute on a GPU.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::support::{ServerBuilder, TempFolder};

/// Whether the binary under test was built with CUDA: `cargo xtask cuda` says so.
fn built_with_cuda() -> bool {
    std::env::var_os("CANDLEPOWER_TEST_CUDA").is_some()
}

/// An NVIDIA driver that starts, reports this version of CUDA (13000 is 13.0), and knows no GPU.
fn driver(cuda_version: u32) -> TempFolder {
    let folder = TempFolder::new();
    compile(&folder, "libcuda.so.1", "int cuInit(unsigned flags) { return flags; }");
    let management = format!(
        "#include <string.h>
        int nvmlInit_v2(void) {{ return 0; }}
        int nvmlShutdown(void) {{ return 0; }}
        int nvmlSystemGetCudaDriverVersion_v2(int *version) {{ *version = {cuda_version}; return 0; }}
        int nvmlSystemGetDriverVersion(char *text, unsigned length) {{ strncpy(text, \"550.54\", length); return 0; }}
        int nvmlDeviceGetCount_v2(unsigned *count) {{ *count = 0; return 0; }}"
    );
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

/// The one line with which `--device cuda` is refused; `libraries` are found first.
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
    let log = server.log();
    assert_eq!(log.contains("no GPU is used: "), built_with_cuda(), "{log}");
}

#[test]
fn a_driver_that_is_too_old_is_named_with_what_is_needed() {
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
    let server = ServerBuilder::new("demo");
    server.env("LD_LIBRARY_PATH", driver.path().to_str().unwrap()).start();
}
