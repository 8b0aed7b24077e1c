//! Model files as they are published: settings in one file that another lacks, unusual file names, and folders
//! without a model.

use std::collections::BTreeMap;

use candlepower_testing::goldens::folder as golden;
use serde_json::{Value, json};

use crate::support::{Server, ServerBuilder, TempFolder};

/// An edit of a JSON file of the demo, with the file's name.
type Edit<'a> = (&'a str, &'a dyn Fn(&mut Value));

fn demo_with(edits: &[Edit<'_>]) -> TempFolder {
    let edits: BTreeMap<&str, _> = edits.iter().copied().collect();
    TempFolder::of_demo(|name, bytes| match edits.get(name) {
        Some(edit) => {
            let mut json = serde_json::from_slice(&bytes).unwrap();
            edit(&mut json);
            json.to_string().into_bytes()
        }
        None => bytes,
    })
}

/// Asks for the capital of France, and checks that the answer is complete.
fn check_capital(server: &Server) {
    let messages = [json!({"role": "user", "content": "What is the capital of France?"})];
    let name = server.get("/v1/models").ok()["data"][0]["id"].clone();
    let body = json!({"model": name, "messages": messages, "temperature": 0, "max_tokens": 40});
    let answer = server.post("/v1/chat/completions", &body).ok();
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["content"], "The capital of France is Paris.", "{answer}");
    assert_eq!(choice["finish_reason"], "stop", "{answer}");
}

#[test]
fn turns_end_where_any_of_the_files_says_so() {
    // 1273 is `<|endoftext|>`; turns of the demo end with 1275, `<|im_end|>`.
    let end_of_text = |json: &mut Value| json["eos_token_id"] = 1273.into();
    let none = |json: &mut Value| drop(json.as_object_mut().unwrap().remove("eos_token_id"));
    let below_zero = |json: &mut Value| json["eos_token_id"] = json!([-1]);
    fn both(edit: &dyn Fn(&mut Value)) -> [Edit<'_>; 2] {
        [("config.json", edit), ("generation_config.json", edit)]
    }
    let nobody = |json: &mut Value| json["eos_token"] = Value::Null;
    let by_name: Edit<'_> = ("tokenizer_config.json", &nobody);
    let [config, generation] = both(&end_of_text);
    let cases: [Vec<Edit<'_>>; 4] = [
        vec![config, generation],
        both(&none).to_vec(),
        vec![("generation_config.json", &below_zero)],
        // The end-of-sequence token is recognized by its name alone.
        vec![config, generation, by_name],
    ];
    for edits in cases {
        let folder = demo_with(&edits);
        check_capital(&ServerBuilder::new(folder.path()).start());
    }
}

#[test]
fn added_tokens_of_the_tokenizers_configuration_are_added() {
    let without = |json: &mut Value| json["added_tokens"] = json!([]);
    let folder = demo_with(&[("tokenizer.json", &without)]);
    check_capital(&ServerBuilder::new(folder.path()).start());

    // Older checkpoints have these files instead.
    let move_out = |json: &mut Value| {
        for key in ["added_tokens_decoder", "eos_token"] {
            json.as_object_mut().unwrap().remove(key);
        }
    };
    let folder = demo_with(&[("tokenizer.json", &without), ("tokenizer_config.json", &move_out)]);
    let ids = json!({"<|endoftext|>": 1273, "<|im_start|>": 1274, "<|im_end|>": 1275, "<tool_call>": 1276,
        "</tool_call>": 1277, "<tool_response>": 1278, "</tool_response>": 1279});
    folder.write("added_tokens.json", ids.to_string());
    folder.write("special_tokens_map.json", r#"{"eos_token": {"content": "<|im_end|>"}}"#);
    check_capital(&ServerBuilder::new(folder.path()).start());
}

#[test]
fn added_tokens_that_cannot_be_are_refused_by_name() {
    let set = |id: &'static str| {
        move |json: &mut Value| json["added_tokens_decoder"][id] = json!({"content": "<|new|>"})
    };
    for (id, part) in [
        (
            // Ids begin with 0, so this is the first outside the vocabulary.
            "1280",
            "adds the token \"<|new|>\" with the id 1280, but the model's vocabulary has 1280 tokens",
        ),
        ("7", "lists the added token \"<|new|>\", which cannot be added: its id 7 is that of "),
    ] {
        let folder = demo_with(&[("tokenizer_config.json", &set(id))]);
        let refused = ServerBuilder::new(folder.path()).refused();
        assert!(refused.message.contains(part), "{}", refused.message);
    }
}

#[test]
fn renamed_tokens_are_told() {
    let rename =
        |json: &mut Value| json["added_tokens_decoder"]["1276"]["content"] = "<call>".into();
    let folder = demo_with(&[("tokenizer_config.json", &rename)]);
    let server = ServerBuilder::new(folder.path()).start();
    server.log_with("tokenizer_config.json names the token 1276 \"<call>\", and tokenizer.json names it \"<tool_call>\": using the latter");
    check_capital(&server);
}

#[test]
fn keys_that_nobody_knows_are_refused_and_may_be_ignored() {
    let edit = |json: &mut Value| {
        json["warp_factor"] = 9.into();
        json["way"] = "forward".into();
        // Dropout matters in training alone, so this key is known and ignored.
        json["resid_pdrop"] = json!(0.1);
    };
    let folder = demo_with(&[("config.json", &edit)]);
    let refused = ServerBuilder::new(folder.path()).refused();
    let line = "config.json: `warp_factor` = 9 is not known, and may change what the model answers; start with --ignore-config-key warp_factor if it does not";
    assert!(refused.message.contains(line), "{}", refused.message);
    let server = ServerBuilder::new(folder.path()).flags("--ignore-config-key warp_factor").start();
    check_capital(&server);
    server.log_with("config.json: `way` = \"forward\" is not known, and not used");
}

#[test]
fn numbers_and_names_are_read_as_tools_write_them() {
    let config = |json: &mut Value| {
        json["torch_dtype"] = "torch.bfloat16".into();
        json["rms_norm_eps"] = "1e-05".into();
        json["rope_theta"] = "10000.0".into();
        json["hidden_size"] = json!(128.0);
        json["attention_bias"] = "False".into();
    };
    let generation = |json: &mut Value| {
        json["top_k"] = json!(0.0);
        json["max_new_tokens"] = json!(-1);
    };
    let folder = demo_with(&[("config.json", &config), ("generation_config.json", &generation)]);
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        let text = std::fs::read(folder.path().join(name)).unwrap();
        // Some editors begin a file with a byte-order mark.
        folder.write(name, [b"\xef\xbb\xbf", text.as_slice()].concat());
    }
    check_capital(&ServerBuilder::new(folder.path()).start());
}

#[test]
fn weights_are_found_under_other_names() {
    // A tool's name for quantized weights, and the only shard of a model without its index.
    for name in ["gptq_model-4bit-128g.safetensors", "model-00001-of-00001.safetensors"] {
        let folder = TempFolder::of_demo(|_, bytes| bytes);
        let old = folder.path().join("model.safetensors");
        std::fs::rename(old, folder.path().join(name)).unwrap();
        check_capital(&ServerBuilder::new(folder.path()).start());
    }
}

#[test]
fn what_is_no_model_is_named_for_what_it_is() {
    let pointer = "version https://git-lfs.example/spec/v1\noid sha256:00\nsize 12345\n";
    let demo = |name: &str, contents: &str| {
        let folder = TempFolder::of_demo(|_, bytes| bytes);
        folder.write(name, contents);
        folder
    };
    let adapter = TempFolder::new();
    adapter.write("adapter_config.json", r#"{"base_model_name_or_path": "acme/base"}"#);
    adapter.write("adapter_model.safetensors", "");
    let blob = TempFolder::new();
    blob.write("model.gguf", pointer);
    for (folder, part) in [
        (
            demo("model.safetensors", pointer),
            "model.safetensors is a pointer of git-lfs and not the file itself",
        ),
        (demo("tokenizer.json", pointer), "tokenizer.json is a pointer of git-lfs"),
        (blob, "model.gguf is a pointer of git-lfs"),
        (
            adapter,
            "holds an adapter (LoRA) of acme/base: merge it into that model and serve the merged one",
        ),
    ] {
        let refused = ServerBuilder::new(folder.path()).refused();
        assert!(refused.message.contains(part), "{}", refused.message);
    }
}

#[test]
fn gguf_files_are_known_by_their_beginning() {
    let folder = TempFolder::new();
    let file = std::fs::read(golden("gguf-qwen2").join("model.gguf")).unwrap();
    // The ending in capitals, and a name without one, as content-addressed stores have it.
    for name in ["model.GGUF", "sha256-0123"] {
        let path = folder.write(name, &file);
        let server = ServerBuilder::new(&path).start();
        server.log_with("Qwen2ForCausalLM");
        drop(server);
        std::fs::remove_file(path).unwrap();
    }
    // An image projector beside the model.
    folder.write("tiny-Q8_0.gguf", &file);
    folder.write("tiny.mmproj-f16.gguf", "of images");
    ServerBuilder::new(folder.path()).start().log_with("Qwen2ForCausalLM");
}

#[test]
fn encoders_are_found_by_their_type_beside_files_of_sentence_transformers() {
    let folder = TempFolder::new();
    for entry in golden("encoders/bert").read_dir().unwrap() {
        let path = entry.unwrap().path();
        folder.write(path.file_name().unwrap().to_str().unwrap(), std::fs::read(&path).unwrap());
    }
    let tokenizer = std::fs::read("../crates/server/demo/tokenizer.json").unwrap();
    folder.write("tokenizer.json", tokenizer);
    let config = std::fs::read(folder.path().join("config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    std::fs::create_dir(folder.path().join("1_Pooling")).unwrap();
    folder.write("1_Pooling/config.json", r#"{"pooling_mode_cls_token": true}"#);
    for class in [json!(["BertForMaskedLM"]), json!(["BertForPreTraining"]), Value::Null] {
        let mut config = config.clone();
        config["architectures"] = class;
        folder.write("config.json", config.to_string());
        ServerBuilder::new(folder.path()).start().log_with("cls pooling");
    }
}

#[test]
fn a_broken_template_stops_conversations_alone() {
    let folder = TempFolder::of_demo(|name, bytes| match name {
        "chat_template.jinja" => b"{% for message in messages %}".to_vec(),
        _ => bytes,
    });
    let server = ServerBuilder::new(folder.path()).start();
    server.log_with("syntax error");
    let name = server.get("/v1/models").ok()["data"][0]["id"].clone();
    let body = json!({"model": name, "prompt": "The capital", "max_tokens": 2});
    assert_eq!(server.post("/v1/completions", &body).ok()["usage"]["completion_tokens"], 2);
    let chat = json!({"model": name, "messages": [{"role": "user", "content": "Hi"}]});
    assert_eq!(server.post("/v1/chat/completions", &chat).status, 400);
    drop(server);
    // A GGUF file has its template in its metadata.
    let mut file = std::fs::read(golden("gguf-qwen2").join("model.gguf")).unwrap();
    let begin = file.windows(6).position(|bytes| bytes == b"{% for").unwrap();
    // A word of the same length keeps all offsets of the file.
    file[begin..begin + 6].copy_from_slice(b"{% fox");
    let blob = TempFolder::new();
    blob.write("model.gguf", file);
    let server = ServerBuilder::new(blob.path()).start();
    server.log_with("syntax error");
    let name = server.get("/v1/models").ok()["data"][0]["id"].clone();
    let body = json!({"model": name, "prompt": "to be", "max_tokens": 2});
    assert_eq!(server.post("/v1/completions", &body).ok()["usage"]["completion_tokens"], 2);
    let chat = json!({"model": name, "messages": [{"role": "user", "content": "Hi"}]});
    assert_eq!(server.post("/v1/chat/completions", &chat).status, 400);
    drop(server);
    // A template named by the user must be valid.
    let template = folder.path().join("chat_template.jinja");
    let refused = ServerBuilder::new("demo").flag("--chat-template", template).refused();
    assert!(refused.message.contains("syntax error"), "{}", refused.message);
}

#[test]
fn templates_may_be_an_object_of_names() {
    let folder = demo_with(&[("tokenizer_config.json", &|json: &mut Value| {
        let source = std::fs::read_to_string("../crates/server/demo/chat_template.jinja").unwrap();
        json["chat_template"] = json!({"default": source, "tool_use": source});
    })]);
    std::fs::remove_file(folder.path().join("chat_template.jinja")).unwrap();
    check_capital(&ServerBuilder::new(folder.path()).start());
}

/// The server's disk is no business of clients that may list its models.
#[test]
fn the_path_of_a_model_is_not_shown() {
    let folder = TempFolder::of_demo(|_, contents| contents);
    let server = ServerBuilder::new(folder.path()).start();
    let model = server.get("/v1/models").ok()["data"][0].clone();
    let name = folder.path().file_name().unwrap().to_str().unwrap();
    assert_eq!((&model["id"], &model["root"]), (&name.into(), &name.into()));
    assert!(!model.to_string().contains('/'), "{model}");
}
