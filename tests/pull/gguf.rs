//! GGUF files by the name of their repository.

use super::{ID, Place, check_answers, files_ending};
use crate::support::{
    Access, Fault, Files, MEMBER_TOKEN, Spot, Times, program, python, run_to_end,
};

/// A complete model in one file, followed by megabytes that its header does not describe.
fn padded() -> Vec<u8> {
    let mut file = golden("gguf-phi3", "model.gguf");
    file.resize(3 << 20, 0);
    file
}

fn golden(model: &str, file: &str) -> Vec<u8> {
    Files::of_folder(candlepower_testing::goldens::folder(model)).contents(file).to_vec()
}

/// Two models, one of them split, and other files of such repositories.
fn repository() -> Files {
    let mut files = Files::new()
        .with("README.md", "hello\n")
        .with("config.json", "{}")
        .with("mmproj-tiny-Q4_K_M.gguf", "of images")
        .with("tiny-Q4_K_M.gguf", golden("gguf-qwen2", "model.gguf"));
    for part in 1..=3 {
        let name = |base| format!("{base}-{part:05}-of-00003.gguf");
        files = files.with(&name("Q8_0/tiny-Q8_0"), golden("gguf-llama", &name("model")));
    }
    files
}

#[test]
fn a_file_is_named_by_its_path_or_by_how_it_is_quantized() {
    let place = Place::with(&repository());
    // Any part of a split model stands for the whole.
    let (whole, split) = ("acme/tiny:q4_k_m", "acme/tiny/Q8_0/tiny-Q8_0-00002-of-00003.gguf");
    let server = place.serve(whole).start();
    run_to_end(python("clients/ask.py").args([&server.url(), whole]));
    drop(server);
    check_answers(&place.serve("acme/tiny:Q8_0").start(), "acme/tiny:Q8_0");
    // One whole model, and three parts.
    assert_eq!(files_ending(&place.cached(ID).join("snapshots"), ".gguf").len(), 4);

    place.hub.forget_requests();
    for name in [whole, split, "acme/tiny/tiny-Q4_K_M.gguf"] {
        check_answers(&place.serve(name).start(), name);
        check_answers(&place.serve(name).env("HF_HUB_OFFLINE", "1").start(), name);
    }
    // A start that is not offline asks once where `main` is, and finds all else in the cache.
    let asked = place.hub.requests().into_iter().map(|seen| seen.path);
    assert_eq!(
        asked.collect::<Vec<_>>(),
        [0; 3].map(|_| format!("/api/models/{ID}/revision/main"))
    );
    place.check_refused(
        place.serve("acme/tiny:Q5_K_M").env("HF_HUB_OFFLINE", "1"),
        &format!(
            "HF_HUB_OFFLINE is set, and {} does not have the GGUF file `Q5_K_M` of `acme/tiny`: unset it for one start, or copy the model there",
            place.home.path().join("hub").display()
        ),
    );
}

#[test]
fn the_only_file_of_a_repository_is_meant() {
    let files = repository().without("tiny-Q4_K_M.gguf");
    let place = Place::with(&files.with("README.md", "one model, in parts"));
    check_answers(&place.serve(ID).start(), ID);
    check_answers(&place.serve(ID).env("HF_HUB_OFFLINE", "1").start(), ID);
    let address = format!("https://huggingface.co/{ID}/tree/main");
    check_answers(&place.serve(&address).env("HF_HUB_OFFLINE", "1").start(), ID);
}

#[test]
fn files_that_cannot_be_meant_are_answered_with_those_there_are() {
    let place = Place::with(&repository().without("config.json"));
    let ways = "name one as acme/tiny/FILE, or by the end of its name, as acme/tiny:ENDING; there are Q8_0/tiny-Q8_0-00001-of-00003.gguf, tiny-Q4_K_M.gguf";
    let refused = |name: &str, problem: &str| {
        place.check_refused(place.serve(name), &format!("`acme/tiny` {problem}: {ways}"));
    };
    refused("acme/tiny", "has its weights in GGUF files, and none is named");
    refused("acme/tiny:Q5_K_M", "has no GGUF file `Q5_K_M`");
    refused("acme/tiny/tiny-Q9.gguf", "has no GGUF file `tiny-Q9.gguf`");
    place.hub.publish("acme/two", &Files::new().with("a-Q4_0.gguf", "").with("b-Q4_0.gguf", ""));
    place.check_refused(
        place.serve("acme/two:Q4_0"),
        "`acme/two` has several GGUF files `Q4_0`: name one as acme/two/FILE, or by the end of its name, as acme/two:ENDING; there are a-Q4_0.gguf, b-Q4_0.gguf",
    );
    place.hub.publish("acme/none", &Files::golden("llama"));
    place.check_refused(
        place.serve("acme/none:Q4_0"),
        "`acme/none` has no GGUF files: leave out the part after its name, or see <hub>/acme/none",
    );
    place.check_refused(
        place.serve("acme/none").flags("--tokenizer acme/tiny:Q4_K_M"),
        "--tokenizer acme/tiny:Q4_K_M is a GGUF file on the hub, which is not supported; give a folder, a GGUF file on this machine, or a hub id as owner/name",
    );
    place.hub.set_access(ID, Access::Gated);
    let name = "acme/tiny:Q4_K_M";
    place.check_refused(
        place.serve(name),
        "`acme/tiny` is gated: accept its licence at <hub>/acme/tiny, then set HF_TOKEN to a token of the account that did",
    );
    check_answers(&place.serve(name).env("HF_TOKEN", MEMBER_TOKEN).start(), name);
}

#[test]
fn the_header_is_read_before_the_weights_are_asked_for() {
    let name = "acme/tiny:BF16";
    let place = Place::with(&Files::new().with("tiny.BF16.gguf", padded()));
    let ranges = || -> Vec<Option<String>> {
        place.requests_for_large_files().into_iter().map(|seen| seen.range).collect()
    };
    // The first megabyte, and the RoPE factors.
    let header = 3;
    let mut doctor = program();
    doctor.env("HF_HOME", place.home.path()).env("HF_ENDPOINT", place.hub.endpoint());
    let output = doctor.args(["doctor", name, "--json"]).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&report["supported"], &report["architecture"]),
        (&true.into(), &"Phi3ForCausalLM".into())
    );
    assert_eq!((ranges().len(), ranges()[0].as_deref()), (header, Some("bytes=0-1048575")));

    place.hub.forget_requests();
    place.check_refused(
        place.serve(name).flags("--max-model-len 100000"),
        "max_model_len 100000 is beyond the model's 256 positions; ask for at most 256",
    );
    place.check_refused(
        place.serve(name).flags("--quantization awq"),
        "--quantization awq does not match the weights: tiny.BF16.gguf says that they are not quantized; leave the flag out",
    );
    // Each of the two starts has read the header alone, in ranges.
    assert!(ranges().len() == 2 * header && ranges().iter().all(Option::is_some), "{:?}", ranges());
    assert!(files_ending(&place.cached(ID), ".gguf").is_empty());

    let cut = Fault::CutAfter(100_000);
    place.hub.inject(ID, Spot::content("tiny.BF16.gguf"), cut, Times::Next(2));
    place.hub.forget_requests();
    check_answers(&place.serve(name).start(), name);
    // A request without a range is for the whole file.
    assert!(ranges().iter().any(Option::is_none), "{:?}", ranges());
    let damaged = Fault::WrongBytes;
    let place = Place::with(&Files::new().with("tiny.BF16.gguf", padded()));
    place.hub.inject(ID, Spot::content("tiny.BF16.gguf"), damaged, Times::Next(1));
    place.check_refused(
        place.serve(name),
        "tiny.BF16.gguf is damaged, or no GGUF file: it does not begin with GGUF; download it again",
    );
}
