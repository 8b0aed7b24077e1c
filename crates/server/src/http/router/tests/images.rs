//! Images in requests, up to the tokens of the prompt. The goldens are those of transformers' processors.
//!
//! The engine is the demo's, because no image reaches it here; the tokenizer, the template and the processor are a golden's.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use candlepower_checkpoint::{Description, ImageGrid, ImageTokens, WrittenImage};
use candlepower_media::{Family, FetchPolicy, Fetcher, Processor, Resolver};
use futures::future::BoxFuture;

use super::*;
use crate::lifecycle::load::image_support;
use crate::model::image_input::{ImageInput, ImageSupport, NoImages};

/// A golden of a family.
struct Golden {
    folder: PathBuf,
    family: Family,
    tokens: ImageTokens,
}

fn goldens() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden"))
}

fn mistral3() -> Golden {
    let grid = ImageGrid::Cells { cell: 8, row_end: Some(12), image_end: Some(13) };
    let tokens = ImageTokens { placeholder: 10, written: WrittenImage::Placeholder, grid };
    Golden { folder: goldens().join("vision_mistral3"), family: Family::Pixtral, tokens }
}

fn gemma3() -> Golden {
    let folder = goldens().join("vision_gemma3");
    let config: Value =
        serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
    let id = |key: &str| config[key].as_u64().unwrap() as u32;
    let written = WrittenImage::Begin { begin: id("boi_token_index"), end: id("eoi_token_index") };
    let grid = ImageGrid::Fixed(id("mm_tokens_per_image") as usize);
    let tokens = ImageTokens { placeholder: id("image_token_index"), written, grid };
    Golden { folder, family: Family::Gemma3, tokens }
}

fn qwen3_vl() -> Golden {
    let grid = ImageGrid::Cells { cell: 8, row_end: None, image_end: None };
    let tokens = ImageTokens { placeholder: 326, written: WrittenImage::Placeholder, grid };
    Golden { folder: goldens().join("vision_qwen3_vl"), family: Family::Qwen2Vl, tokens }
}

impl Golden {
    /// A server whose prompts are the golden's. `change` gets the parts by which images are read.
    fn ready(&self, argv: &[&str], change: impl FnOnce(&mut ImageSupport)) -> AppState {
        let tokenizer = format!("--tokenizer={}", self.folder.display());
        let state = starting(&[argv, &[tokenizer.as_str()]].concat());
        let local = LocalModel::here(state.config());
        let Served::Generating(model) = load(local, Device::Cpu, &state).unwrap() else {
            panic!("the demo generates text")
        };
        let mut model = Arc::into_inner(model).unwrap();
        let read = |name: &str| std::fs::read(self.folder.join(name)).ok();
        let settings = [read("preprocessor_config.json"), read("processor_config.json")];
        let [preprocessor, processor] = settings.each_ref().map(Option::as_deref);
        let processor = Processor::read(self.family, preprocessor, processor).unwrap();
        let mut support = image_support(&state, self.tokens.clone(), processor, &model).unwrap();
        change(&mut support);
        model.images = ImageInput::Taken(Box::new(support));
        state.set_ready(Served::Generating(Arc::new(model)));
        state
    }

    fn cases(&self) -> Vec<(String, Value)> {
        let cases = std::fs::read(self.folder.join("cases.json")).unwrap();
        let cases: Value = serde_json::from_slice(&cases).unwrap();
        cases["cases"].as_object().unwrap().clone().into_iter().collect()
    }
}

/// A picture of the goldens.
fn picture(name: &str) -> Vec<u8> {
    std::fs::read(goldens().join("vision_pictures").join(name)).unwrap()
}

/// A picture of the goldens as a data URL.
fn data_url(name: &str) -> String {
    format!("data:image/png;base64,{}", STANDARD.encode(picture(name)))
}

/// Messages of a golden, in which names of pictures become data URLs.
fn with_pictures(mut messages: Value) -> Value {
    for message in messages.as_array_mut().unwrap() {
        for part in message["content"].as_array_mut().into_iter().flatten() {
            if let Some(url) = part.pointer_mut("/image_url/url") {
                *url = data_url(url.as_str().unwrap()).into();
            }
        }
    }
    messages
}

async fn refused(state: &AppState, path: &str, body: Value) -> (StatusCode, Value) {
    let response = call(state, post(path, &body)).await;
    let status = response.status();
    let text = text(response).await;
    let mut body: Value = serde_json::from_str(&text).unwrap();
    assert!(!status.is_success(), "{text}");
    (status, body["error"].take())
}

fn image(url: &str) -> Value {
    json!({"type": "image_url", "image_url": {"url": url}})
}

fn user(content: Value) -> Value {
    json!([{"role": "user", "content": content}])
}

/// A golden as a model's folder, with the settings in force.
fn opened(golden: &Golden, argv: &[&str]) -> LocalModel {
    let mut config = starting(argv).config().clone();
    let name = golden.folder.file_name().unwrap().to_str().unwrap();
    config.model = Some(candlepower_testing::goldens::folder(name).display().to_string());
    LocalModel::here(&config)
}

#[test]
fn tokens_of_images_come_from_the_models_files() {
    for golden in [mistral3(), gemma3(), qwen3_vl()] {
        let Description::Decoder(checkpoint) = opened(&golden, &[]).description else {
            panic!("the golden is a decoder")
        };
        assert_eq!(checkpoint.vision().unwrap().tokens, golden.tokens);
    }
    let local = opened(&mistral3(), &["--language-model-only"]);
    assert_eq!(local.no_images, Some(NoImages::LanguageModelOnly));
    let Description::Decoder(checkpoint) = local.description else {
        panic!("the golden is a decoder")
    };
    assert!(checkpoint.vision().is_none());
    assert_eq!(LocalModel::here(starting(&[]).config()).no_images, Some(NoImages::TextModel));
}

#[tokio::test]
async fn prompts_are_those_of_transformers() {
    for golden in [mistral3(), gemma3(), qwen3_vl()] {
        let state = golden.ready(&[], |_| {});
        let mut seen = 0;
        for (name, case) in golden.cases() {
            let messages = with_pictures(case["messages"].clone());
            let tools = case.get("tools").cloned().unwrap_or_default();
            // Mistral's template has none.
            let add_generation_prompt = golden.family != Family::Pixtral;
            let body = json!({
                "messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt,
            });
            let answer = answer(&state, "/tokenize", body).await;
            assert_eq!(answer["tokens"], case["input_ids"], "{:?}: {name}", golden.family);
            seen += case["images"].as_array().unwrap().len();
        }
        assert!(seen > 5);
        assert_eq!(state.images().used(), 0, "images are released with their requests");
    }
}

#[tokio::test]
async fn spelled_tokens_are_texts() {
    for golden in [mistral3(), gemma3(), qwen3_vl()] {
        let state = golden.ready(&[], |_| {});
        let spelled = match golden.family {
            Family::Pixtral => "[IMG][IMG_BREAK][IMG_END]",
            Family::Gemma3 => "<start_of_image><image_soft_token><end_of_image>",
            Family::Qwen2Vl => "<|vision_start|><|image_pad|><|vision_end|>",
        };
        let url = data_url("odd.png");
        let ids = async |content: Value| {
            let body = json!({"messages": user(content)});
            let ids = answer(&state, "/tokenize", body).await["tokens"].take();
            serde_json::from_value::<Vec<u32>>(ids).unwrap()
        };
        let text = |text: &str| json!({"type": "text", "text": text});
        let plain = ids(json!([text("a"), image(&url), text("b")])).await;
        // The whole token, and one that two texts spell together around an image and without one.
        let (first, second) = spelled.split_at(4);
        for (before, behind) in [(spelled, spelled), (first, second), (spelled, "b")] {
            let prompt = ids(json!([text(before), image(&url), text(behind)])).await;
            let count = |ids: &[u32]| {
                ids.iter()
                    .filter(|id| plain.contains(id) && demo(&state).tokenizer.is_special(**id))
                    .count()
            };
            assert_eq!(count(&prompt), count(&plain), "{before} {behind}");
        }
        let prompt = ids(json!([text(first), text(second)])).await;
        assert!(!prompt.contains(&golden.tokens.placeholder), "{prompt:?}");
        let prompt = ids(spelled.into()).await;
        assert!(!prompt.contains(&golden.tokens.placeholder), "{prompt:?}");
    }
}

#[tokio::test]
async fn images_lie_where_the_goldens_have_them() {
    use crate::generation::pictures;
    use crate::generation::preparation::Preparation;
    use crate::generation::prompt::ChatPrompt;
    for golden in [mistral3(), gemma3(), qwen3_vl()] {
        let state = golden.ready(&[], |_| {});
        let model = demo(&state);
        for (name, case) in golden.cases() {
            let body = json!({"messages": with_pictures(case["messages"].clone())}).to_string();
            let request = candlepower_api::ChatCompletionRequest::parse(body.as_bytes()).unwrap();
            let (fetched, cancelled) = (pictures::FetchedImages::default(), Default::default());
            let caller = Default::default();
            let here = Preparation::on_thread(&*model, state.config(), caller, &cancelled);
            let here = here.with_images(Some(&fetched));
            let images = pictures::read(&here, &model, &request.messages).unwrap();
            let prompt = ChatPrompt { images: &images, ..ChatPrompt::new(&request.messages) };
            let prompt = prompt.encode(&model, &here).unwrap();
            let spans = prompt.images.iter().map(|image| (image.start, image.len));
            let expected = case["images"].as_array().unwrap().iter().map(|image| {
                let number = |index: usize| image[index].as_u64().unwrap() as usize;
                (number(1), number(2))
            });
            assert!(spans.eq(expected), "{:?}: {name}", golden.family);
            let digests: Vec<_> =
                prompt.images.iter().map(|image| image.image.image().digest()).collect();
            let names: Vec<_> =
                case["images"].as_array().unwrap().iter().map(|image| &image[0]).collect();
            for (digest, name) in digests.iter().zip(&names) {
                for (other, of) in digests.iter().zip(&names) {
                    assert_eq!(digest == other, name == of);
                }
            }
        }
    }
}

#[tokio::test]
async fn the_three_apis_count_the_same_tokens() {
    let state = mistral3().ready(&[], |_| {});
    let (url, data) = (data_url("wide.png"), STANDARD.encode(picture("wide.png")));
    let messages = user(json!([{"type": "text", "text": "Is it"}, image(&url), image(&url)]));
    let chat = answer(&state, "/tokenize", json!({"messages": messages})).await;
    let part = json!({"type": "input_image", "image_url": url});
    let input = user(json!([{"type": "input_text", "text": "Is it"}, part, part]));
    let responses = answer(&state, "/v1/responses/input_tokens", json!({"input": input})).await;
    let source = json!({"type": "base64", "media_type": "image/png", "data": data});
    let part = json!({"type": "image", "source": source});
    let by_url = json!({"type": "image", "source": {"type": "url", "url": url}});
    let messages = user(json!([{"type": "text", "text": "Is it"}, part, by_url]));
    let counted = answer(&state, "/v1/messages/count_tokens", json!({"messages": messages})).await;
    assert_eq!(chat["count"], responses["input_tokens"]);
    assert_eq!(chat["count"], counted["input_tokens"]);
    // Two images of 3 x 6 embeddings, with a token behind each row.
    assert!(chat["count"].as_u64().unwrap() > 2 * 21);
    let models = text(call(&state, get("/v1/models")).await).await;
    let models: Value = serde_json::from_str(&models).unwrap();
    assert_eq!(models["data"][0]["input_modalities"], json!(["text", "image"]));
    let metrics = text(call(&state, get("/metrics")).await).await;
    assert!(metrics.contains("candlepower_images_processed_total 6"), "{metrics}");
    assert!(metrics.contains("candlepower_image_waiting_bytes 0"), "{metrics}");
    assert!(metrics.contains("candlepower_image_processing_seconds_count 6"), "{metrics}");
}

#[tokio::test]
async fn detail_bounds_the_picture() {
    // The picture becomes 512 pixels wide, which the processor then bounds to 48.
    let state = mistral3().ready(&[], |_| {});
    let count = async |detail: &str| {
        let part = json!({"type": "image_url", "image_url": {"url": data_url("large.png"), "detail": detail}});
        answer(&state, "/tokenize", json!({"messages": user(json!([part]))})).await["count"].clone()
    };
    assert_eq!(count("auto").await, count("high").await);
    assert_eq!(count("auto").await, count("low").await);
}

#[tokio::test]
async fn wrong_data_is_refused_by_its_place() {
    let state = mistral3().ready(&["--limit-mm-per-prompt=2"], |_| {});
    let good = picture("square.png");
    let url = |bytes: &[u8]| format!("data:image/png;base64,{}", STANDARD.encode(bytes));
    let mut broken = good.clone();
    broken.truncate(good.len() / 2);
    // A frame of 65,535 pixels a side.
    let bomb = b"GIF89a\xff\xff\xff\xff\x80\0\0\0\0\0\xff\xff\xff\x2c\0\0\0\0\xff\xff\xff\xff\0\x02\x02\x4c\x01\0;";
    let bomb = format!("data:image/gif;base64,{}", STANDARD.encode(bomb));
    for (url, reason) in [
        ("data:image/png;base64,".to_owned(), "none of PNG"),
        ("data:image/png,AAAA".to_owned(), "not in base64"),
        ("data:image/png;base64".to_owned(), "no comma"),
        ("data:image/png;base64,A*".to_owned(), "not valid base64"),
        (format!("data:image/jpeg;base64,{}", STANDARD.encode(&good)), "the bytes are image/png"),
        (format!("data:text/plain;base64,{}", STANDARD.encode(&good)), "media type `text/plain`"),
        (url(b"GIF89a"), "the bytes are image/gif"),
        (url(b"no picture at all"), "none of PNG"),
        (url(&broken), "damaged or incomplete"),
        (bomb, "65,535 x 65,535 pixels"),
        ("ftp://example.com/a.png".to_owned(), "scheme"),
        ("https://example.com/a.png".to_owned(), "--allowed-media-domains"),
        ("http://127.0.0.1/a.png".to_owned(), "--allowed-media-domains"),
        ("file:///etc/passwd".to_owned(), "--allowed-local-media-path"),
        ("a.png".to_owned(), "is no URL"),
        (format!("https://{}.example/a.png", "a".repeat(5000)), "cannot be used"),
    ] {
        let content =
            json!([{"type": "text", "text": "x"}, image(&data_url("odd.png")), image(&url)]);
        let body = json!({"messages": user(content)});
        let (status, error) = refused(&state, "/v1/chat/completions", body).await;
        let shown = &url[..url.len().min(60)];
        assert_eq!(status, 400, "{shown}");
        assert_eq!(error["param"], "messages[0].content[2].image_url", "{shown}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(reason), "{shown}: {message}");
        assert!(message.len() < 400, "{message}");
    }
    let three = json!([image(&data_url("odd.png")), image("data:,"), image("data:,")]);
    let (_, error) = refused(&state, "/tokenize", json!({"messages": user(three)})).await;
    assert_eq!(error["param"], "messages[0].content[2].image_url");
    assert!(error["message"].as_str().unwrap().contains("has 3 images"), "{error}");
    assert_eq!(state.images().used(), 0);
}

/// The first image beyond the limit is named on every endpoint, before any is decoded.
#[tokio::test]
async fn ten_thousand_images_are_refused_at_once() {
    let state = mistral3().ready(&[], |_| {});
    // No decoder would take these bytes.
    let url = "data:image/png;base64,AAAA";
    let chat = json!({"messages": user(json!(vec![image(url); 10_000]))});
    let part = json!({"type": "input_image", "image_url": url});
    let input = json!([{"role": "user", "content": vec![part; 10_000]}]);
    let source = json!({"type": "base64", "media_type": "image/png", "data": "AAAA"});
    let block = json!({"type": "image", "source": source});
    let blocks = json!([{"role": "user", "content": vec![block; 10_000]}]);
    for (path, body, place) in [
        ("/v1/chat/completions", chat.clone(), "messages[0].content[8].image_url"),
        ("/tokenize", chat, "messages[0].content[8].image_url"),
        ("/v1/responses", json!({"input": input}), "input[0].content[8].image_url"),
        (
            "/v1/messages",
            json!({"messages": blocks, "max_tokens": 1}),
            "messages[0].content[8].source",
        ),
    ] {
        let response = call(&state, post(path, &body)).await;
        assert_eq!(response.status(), 400, "{path}");
        let text = text(response).await;
        assert!(text.contains("10000 images") && text.contains("at most 8"), "{path}: {text}");
        assert!(text.contains(place), "{path}: {text}");
        assert_eq!(state.images().used(), 0);
    }
}

#[tokio::test]
async fn images_that_cannot_be_held_are_refused() {
    let count = |bytes: &str| format!("--image-memory={bytes}");
    let url = data_url("square.png");
    let body = json!({"messages": user(json!([image(&url), image(&url)]))});
    // Each takes 32 x 32 x 3 bytes and a few more.
    let state = mistral3().ready(&[&count("5000")], |_| {});
    let (status, error) = refused(&state, "/v1/chat/completions", body.clone()).await;
    assert_eq!((status.as_u16(), &error["code"]), (429, &json!("image_memory_full")));
    let response = call(&state, post("/v1/chat/completions", &body)).await;
    assert!(response.headers().contains_key("retry-after"));
    assert_eq!(state.images().used(), 0);
    let state = mistral3().ready(&[&count("3000")], |_| {});
    let (status, error) = refused(&state, "/v1/chat/completions", body.clone()).await;
    assert_eq!(
        (status.as_u16(), &error["param"]),
        (400, &json!("messages[0].content[0].image_url"))
    );
    assert_eq!(error["code"], "image_too_large");
    let state = mistral3().ready(&[], |support| support.max_embeddings = Some(15));
    let (status, error) = refused(&state, "/v1/chat/completions", body.clone()).await;
    let message = error["message"].as_str().unwrap();
    assert!(status == 400 && message.contains("16 embeddings") && message.contains("holds 15"));
    assert_eq!(error["code"], "image_too_large");
    let state = mistral3().ready(&["--max-model-len=32"], |_| {});
    let (status, error) = refused(&state, "/v1/chat/completions", body).await;
    assert_eq!((status.as_u16(), &error["code"]), (400, &json!("context_length_exceeded")));
    assert!(error["message"].as_str().unwrap().contains("32 tokens"), "{error}");
}

#[tokio::test]
async fn models_that_take_no_images_say_why() {
    for reason in [NoImages::TextModel, NoImages::Gpu, NoImages::LanguageModelOnly] {
        let state = starting(&[]);
        let mut model = match load(LocalModel::here(state.config()), Device::Cpu, &state).unwrap() {
            Served::Generating(model) => Arc::into_inner(model).unwrap(),
            Served::Pooling(_) => panic!("the demo generates text"),
        };
        model.images = ImageInput::Refused(reason);
        state.set_ready(Served::Generating(Arc::new(model)));
        // The image is in an earlier turn.
        let messages = json!([
            {"role": "user", "content": [{"type": "text", "text": "a"}, image("data:,")]},
            {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"},
        ]);
        for path in ["/v1/chat/completions", "/tokenize"] {
            let (status, error) = refused(&state, path, json!({"messages": messages})).await;
            assert_eq!((status.as_u16(), error["message"].as_str()), (400, Some(reason.message())));
            assert_eq!(error["param"], "messages[0].content[1].image_url");
            assert_eq!(error["code"], "image_input_not_supported");
        }
    }
}

#[tokio::test]
async fn templates_that_cannot_place_images_are_found() {
    let file =
        std::env::temp_dir().join(format!("candlepower-{}-images.jinja", std::process::id()));
    let body = json!({"messages": user(json!([image(&data_url("square.png"))]))});
    for (template, reason) in [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "does not write images"),
        (
            "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% if p.type == 'image' and (loop.length == 2 or messages | length > 1) %}[IMG]{% endif %}{% endfor %}{% endif %}{% endfor %}",
            "writes 0 of the 1",
        ),
    ] {
        std::fs::write(&file, template).unwrap();
        let state = mistral3().ready(&[&format!("--chat-template={}", file.display())], |_| {});
        let (status, error) = refused(&state, "/tokenize", body.clone()).await;
        let message = error["message"].as_str().unwrap();
        assert!(status == 400 && message.contains(reason), "{message}");
        assert_eq!(error["param"], "messages[0].content[0].image_url");
    }
    std::fs::remove_file(file).unwrap();
}

#[tokio::test]
async fn files_are_read_below_the_folder_alone() {
    let folder = goldens().join("vision_pictures");
    let flag = format!("--allowed-local-media-path={}", folder.display());
    let state = mistral3().ready(&[&flag], |_| {});
    let body = |path: &str| json!({"messages": user(json!([image(&format!("file://{path}"))]))});
    let path = folder.canonicalize().unwrap().join("wide.png").display().to_string();
    let from_file = answer(&state, "/tokenize", body(&path)).await;
    let from_data = json!({"messages": user(json!([image(&data_url("wide.png"))]))});
    assert_eq!(from_file["tokens"], answer(&state, "/tokenize", from_data).await["tokens"]);
    for path in ["/etc/passwd", "/no/such/file", &format!("{path}/../../cases.json")] {
        let (status, error) = refused(&state, "/tokenize", body(path)).await;
        let message = error["message"].as_str().unwrap();
        assert!(status == 400 && message.contains("no such image file"), "{message}");
    }
}

/// Every name is this machine.
#[derive(Debug)]
struct Loopback;

impl Resolver for Loopback {
    fn addresses(&self, _: String) -> BoxFuture<'static, std::io::Result<Vec<IpAddr>>> {
        Box::pin(async { Ok(vec![Ipv4Addr::LOCALHOST.into()]) })
    }
}

/// A server whose images of `http://pictures.example` come from `port` of this machine.
fn fetching(port: u16) -> AppState {
    let policy = FetchPolicy {
        domains: vec![format!("pictures.example:{port}").parse().unwrap()],
        trusted_addresses: vec![Ipv4Addr::LOCALHOST.into()],
        ..FetchPolicy::default()
    };
    let fetcher = Fetcher::new(policy, Arc::new(Loopback)).unwrap();
    mistral3().ready(&[], |support| support.fetcher = Arc::new(fetcher))
}

#[tokio::test]
async fn images_of_allowed_hosts_are_fetched_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let state = fetching(port);
    let served = tokio::spawn(async move {
        let mut paths = Vec::new();
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = vec![0; 4096];
            let len = stream.read(&mut head).await.unwrap();
            let head = String::from_utf8_lossy(&head[..len]).into_owned();
            let name = head.split([' ', '/']).nth(2).unwrap().to_owned();
            let body = picture(&name);
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            stream.write_all(&[head.as_bytes(), &body].concat()).await.unwrap();
            paths.push(name);
        }
        paths
    });
    let url = |name: &str| format!("http://pictures.example:{port}/{name}");
    let urls = ["wide.png", "odd.png", "wide.png"];
    let messages = |url: &dyn Fn(&str) -> String| json!({"messages": user(urls.map(|name| image(&url(name))).to_vec().into())});
    let fetched = answer(&state, "/tokenize", messages(&url)).await;
    assert_eq!(fetched, answer(&state, "/tokenize", messages(&|name| data_url(name))).await);
    let mut paths = served.await.unwrap();
    paths.sort();
    assert_eq!(paths, ["odd.png", "wide.png"]);
    let (status, error) = refused(
        &state,
        "/tokenize",
        json!({"messages": user(json!([image("http://other.example/")]))}),
    )
    .await;
    assert_eq!((status.as_u16(), &error["code"]), (400, &json!("image_url_not_allowed")));
}

#[tokio::test]
async fn a_client_that_goes_ends_its_fetch() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let state = fetching(port);
    let part = image(&format!("http://pictures.example:{port}/slow.png"));
    let request = post("/tokenize", json!({"messages": user(json!([part]))}));
    let called = tokio::spawn({
        let state = state.clone();
        async move { call(&state, request).await }
    });
    let (mut stream, _) = listener.accept().await.unwrap();
    called.abort();
    // The connection ends, although its answer has not come.
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    assert!(called.await.unwrap_err().is_cancelled());
}

#[tokio::test]
async fn a_stored_turn_keeps_its_images() {
    use crate::model::stored_responses::{KnownTokens, StoredResponse};
    let state = mistral3().ready(&[], |_| {});
    let parse = |input: Value| {
        let body = json!({"input": input}).to_string();
        candlepower_api::ResponsesRequest::parse(body.as_bytes(), &mut ()).unwrap().input
    };
    let part = json!({"type": "input_image", "image_url": data_url("wide.png")});
    let first = user(json!([part]));
    let mut messages = parse(first.clone());
    messages.push(candlepower_api::ChatMessage::text(candlepower_api::Role::Assistant, "a".into()));
    let caller = state.caller_id("nobody");
    let store = |id: &str, messages: Vec<_>| {
        let stored = StoredResponse::new(caller, messages, KnownTokens::default(), &Value::Null);
        demo(&state).responses.insert(id.into(), stored);
    };
    store("resp_1", messages);
    let count = async |body: Value| answer(&state, "/v1/responses/input_tokens", body).await;
    let next = user(json!([{"type": "input_text", "text": "b"}, part]));
    let continued = count(json!({"input": next, "previous_response_id": "resp_1"})).await;
    let whole = [first, json!([{"role": "assistant", "content": "a"}]), next.clone()];
    let whole: Vec<Value> =
        whole.iter().flat_map(|turns| turns.as_array().unwrap().clone()).collect();
    assert_eq!(continued, count(json!({"input": whole})).await);
    // An image beyond the bound is gone, and the answer says so.
    let huge =
        json!({"type": "input_image", "image_url": format!("data:,{}", "A".repeat(65 << 20))});
    store("resp_2", parse(user(json!([huge]))));
    let body = json!({"input": next, "previous_response_id": "resp_2"});
    let (status, error) = refused(&state, "/v1/responses", body).await;
    assert_eq!((status.as_u16(), &error["code"]), (404, &json!("response_images_not_found")));
    assert_eq!(error["param"], "previous_response_id");
}
