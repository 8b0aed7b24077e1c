//! Scripted models: checkpoints that generate exactly the texts of a test, so that any output can be tested over
//! HTTP.
//!
//! ```ignore
//! let model = Scripted::start(TEMPLATE, &["<think>", "</think>"], &["<think>Hm</think>\n\nHi"], "");
//! let answer = model.answer(Endpoint::Chat, 0, json!({"tools": [..]}));
//! assert_eq!((answer.reasoning.as_str(), answer.content.as_str()), ("Hm", "Hi"));
//! ```
//!
//! [`Scripted::answer`] requests a text in four ways: byte by byte and in one piece, whole and streamed. It asserts
//! that all four give the same answer. [`Scripted::body`] is the request for other checks, such as several choices.
//!
//! The model is one layer of GPT-2 without attention and feed-forward, so its output depends only on the position. A
//! position's embedding is a random sign vector that identifies the next token, and the output head has the same
//! vectors. The tokenizer has one token for each byte, the markers as special tokens, and each text as one more
//! token. A text starts after a prompt of a certain length, so requests are padded to it.

mod answer;

use std::collections::HashMap;
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize_to_file};
use serde_json::{Map, Value, json};

use super::{Response, Server, ServerBuilder, TempFolder};
pub(crate) use answer::{Answer, Endpoint};

/// Longest prompt without its padding, in bytes and markers.
const PROMPT: usize = 3072;
/// Tokens between two texts. All of them end the answer.
const GAP: usize = 16;
const HIDDEN: usize = 64;
const END: &str = "<|scripted_end|>";
/// With this factor a token's logit is far above all others at any temperature.
const LOUD: f32 = 8.0;

/// A server whose model generates the given texts.
pub(crate) struct Scripted {
    pub(crate) server: Server,
    /// Lengths of the prompts after which each text starts, byte by byte and in one piece.
    starts: Vec<[usize; 2]>,
    /// All tokens by their ids. Bytes are represented by letters.
    tokens: Vec<String>,
    _folder: TempFolder,
}

/// The form in which a text is generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Bytes,
    OnePiece,
}

impl Scripted {
    /// Serves a model with this chat template that generates `texts`, in which `marks` are special tokens.
    #[track_caller]
    pub(crate) fn start(template: &str, marks: &[&str], texts: &[&str], flags: &str) -> Self {
        Self::steered(|_| template.to_owned(), marks, texts, flags)
    }

    /// The same, but the chat template is made by `template`. It gets the number of prompt tokens after which each
    /// text starts, byte by byte. So a template can choose a text: it pads the prompt to that length.
    #[track_caller]
    pub(crate) fn steered(
        template: impl FnOnce(&[usize]) -> String,
        marks: &[&str],
        texts: &[&str],
        flags: &str,
    ) -> Self {
        Self::of_loudness(LOUD, template, marks, texts, flags)
    }

    /// Serves a model that gives all tokens the same probability, `pieces` and `marks` among them.
    #[track_caller]
    pub(crate) fn indifferent(
        template: &str,
        marks: &[&str],
        pieces: &[&str],
        flags: &str,
    ) -> Self {
        Self::of_loudness(0.0, |_| template.to_owned(), marks, pieces, flags)
    }

    #[track_caller]
    fn of_loudness(
        loudness: f32,
        template: impl FnOnce(&[usize]) -> String,
        marks: &[&str],
        texts: &[&str],
        flags: &str,
    ) -> Self {
        let folder = TempFolder::new();
        let vocabulary = Vocabulary::new(marks, texts);
        let starts = write_checkpoint(&folder, &vocabulary, texts, loudness);
        let lengths: Vec<usize> = starts.iter().map(|[bytes, _]| *bytes).collect();
        folder.write("chat_template.jinja", template(&lengths));
        let server = ServerBuilder::new(folder.path())
            .flags("--served-model-name demo")
            .flags(flags)
            .start();
        Self { server, starts, tokens: vocabulary.tokens, _folder: folder }
    }

    /// The id of a token: an ASCII character, a marker, or a text as a whole.
    #[track_caller]
    pub(crate) fn token(&self, token: &str) -> usize {
        match token.as_bytes() {
            [byte @ 0..=127] => usize::from(*byte),
            _ => self.tokens.iter().position(|known| known == token).unwrap(),
        }
    }

    /// The number of prompt tokens after which a text starts.
    pub(crate) fn start_of(&self, text: usize, form: Form) -> usize {
        self.starts[text][usize::from(form == Form::OnePiece)]
    }

    /// The answer for a text, which must be the same in all forms.
    #[track_caller]
    pub(crate) fn answer(&self, endpoint: Endpoint, text: usize, more: Value) -> Answer {
        let whole = self.ask(endpoint, text, Form::Bytes, more.clone());
        let read = endpoint.whole(&whole);
        let one_piece = self.ask(endpoint, text, Form::OnePiece, more.clone());
        assert_eq!(endpoint.whole(&one_piece), read, "in one piece: {one_piece}\n{whole}");
        for form in [Form::Bytes, Form::OnePiece] {
            let mut body = self.body(endpoint, text, form, more.clone());
            body["stream"] = true.into();
            let events = self.server.post(endpoint.path(), &body).text();
            assert_eq!(endpoint.streamed(&events), read, "{form:?}, streamed: {events}\n{whole}");
        }
        read
    }

    /// The whole answer.
    #[track_caller]
    pub(crate) fn ask(&self, endpoint: Endpoint, text: usize, form: Form, more: Value) -> Value {
        self.server.post(endpoint.path(), &self.body(endpoint, text, form, more)).ok()
    }

    /// A text byte by byte as a completion.
    #[track_caller]
    pub(crate) fn complete(&self, text: usize, more: Value) -> Response {
        let prompt = "a".repeat(self.starts[text][0]);
        let mut body = json!({"model": "demo", "prompt": prompt, "temperature": 0});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.server.post("/v1/completions", &body)
    }

    /// The request for a text, with the fields of `more`.
    #[track_caller]
    pub(crate) fn body(&self, endpoint: Endpoint, text: usize, form: Form, more: Value) -> Value {
        let start = self.start_of(text, form);
        // The template adds tokens of its own, so the length of the prompt is asked for before the padding.
        let mut probe = endpoint.request("a", 1, &more);
        // These fields would change the answer of one token, or refuse it.
        for field in ["stream", "n", "stop", "stop_sequences", "min_tokens"] {
            probe.as_object_mut().unwrap().remove(field);
        }
        let usage = self.server.post(endpoint.path(), &probe).ok()["usage"].clone();
        let names = ["prompt_tokens", "input_tokens", "cache_read_input_tokens"];
        let asked: u64 = names.iter().filter_map(|name| usage[*name].as_u64()).sum();
        let padding = start.checked_sub(usize::try_from(asked).unwrap());
        let padding =
            padding.unwrap_or_else(|| panic!("the prompt has {asked} tokens: raise PROMPT"));
        // Each `a` is a token of its own.
        endpoint.request(&"a".repeat(padding + 1), 2000, &more)
    }
}

/// Writes the files of a model that generates `texts`. Returns where each of them starts.
fn write_checkpoint(
    folder: &TempFolder,
    vocabulary: &Vocabulary<'_>,
    texts: &[&str],
    loudness: f32,
) -> Vec<[usize; 2]> {
    let (mut next, mut starts) = (HashMap::new(), Vec::new());
    let mut position = PROMPT;
    for text in texts {
        let forms = [vocabulary.encode(text), vec![vocabulary.id(text)]];
        // Each text has two places: byte by byte, and as one token.
        starts.push(forms.map(|mut ids| {
            ids.push(vocabulary.id(END));
            let start = position;
            // The token at a position is predicted at the position before.
            next.extend(ids.iter().enumerate().map(|(i, id)| (start - 1 + i, *id)));
            position += ids.len() + GAP;
            start
        }));
    }
    // Requests ask for 2000 tokens at most, which must fit behind the last text.
    let context = position + 2048;
    let file = folder.path().join("model.safetensors");
    write_weights(&file, context, vocabulary, &next, loudness);
    let end = vocabulary.id(END);
    let config = json!({
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new", "n_embd": HIDDEN,
        "n_head": 1, "n_inner": 64, "n_layer": 1, "n_positions": context, "vocab_size": vocabulary.tokens.len(),
        "bos_token_id": end, "eos_token_id": end, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": true,
        "dtype": "float32", "scale_attn_weights": true,
    });
    folder.write("config.json", config.to_string());
    folder.write("tokenizer.json", vocabulary.json().to_string());
    let tokenizer = json!({"eos_token": END, "model_max_length": context});
    folder.write("tokenizer_config.json", tokenizer.to_string());
    starts
}

/// The tokens: bytes, markers, and texts as a whole.
struct Vocabulary<'a> {
    /// The letter of each byte in a byte-level tokenizer.
    letters: Vec<char>,
    marks: Vec<&'a str>,
    tokens: Vec<String>,
}

impl<'a> Vocabulary<'a> {
    fn new(marks: &[&'a str], texts: &[&str]) -> Self {
        let mut others = (256..).filter_map(char::from_u32);
        // Source: `bytes_to_unicode` of GPT-2's tokenizer.
        let letter = |byte: u8| match byte {
            b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
            _ => others.next().unwrap(),
        };
        let letters: Vec<char> = (0..=255).map(letter).collect();
        let mut tokens: Vec<String> = letters.iter().map(char::to_string).collect();
        let mut marks: Vec<&str> = marks.to_vec();
        marks.push(END);
        for token in marks.iter().chain(texts) {
            if !tokens.contains(&token.to_string()) {
                tokens.push(token.to_string());
            }
        }
        Self { letters, marks, tokens }
    }

    fn id(&self, token: &str) -> usize {
        self.tokens.iter().position(|known| known == token).unwrap()
    }

    /// A text in markers and bytes.
    fn encode(&self, mut text: &str) -> Vec<usize> {
        let mut ids = Vec::new();
        while !text.is_empty() {
            if let Some(mark) = self.marks.iter().find(|mark| text.starts_with(**mark)) {
                ids.push(self.id(mark));
                text = &text[mark.len()..];
                continue;
            }
            let end = text.char_indices().nth(1).map_or(text.len(), |(at, _)| at);
            ids.extend(text[..end].bytes().map(usize::from));
            text = &text[end..];
        }
        ids
    }

    fn json(&self) -> Value {
        let added = |(id, token): (usize, &String)| {
            json!({
                "id": id, "content": token, "special": self.marks.contains(&token.as_str()), "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false,
            })
        };
        let added: Vec<Value> = self.tokens.iter().enumerate().skip(256).map(added).collect();
        let letters = self.letters.iter().enumerate();
        let bytes: Map<String, Value> = letters.map(|(id, c)| (c.to_string(), id.into())).collect();
        let level = json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false,
        });
        json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
            "pre_tokenizer": level, "post_processor": null, "decoder": level,
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                "vocab": bytes, "merges": [],
            },
        })
    }
}

/// Writes weights that generate `next` by position, and the end token elsewhere.
fn write_weights(
    file: &Path,
    context: usize,
    vocabulary: &Vocabulary<'_>,
    next: &HashMap<usize, usize>,
    loudness: f32,
) {
    // A fixed seed makes the same weights in each run.
    let mut random = fastrand::Rng::with_seed(7);
    let codes =
        // Random signs in 64 dimensions are nearly orthogonal, so each token's logit stands out.
        (0..vocabulary.tokens.len() * HIDDEN).map(|_| if random.bool() { 1.0 } else { -1.0 });
    let codes: Vec<f32> = codes.collect();
    let code = |token: usize| &codes[token * HIDDEN..(token + 1) * HIDDEN];
    let end = vocabulary.id(END);
    // The factor makes the token's own embedding, which is added, negligible.
    let position = |at| code(*next.get(&at).unwrap_or(&end)).iter().map(|value| value * 10_000.0);
    let positions: Vec<f32> = (0..context).flat_map(position).collect();
    let filled = |value: f32, size: usize| vec![value; size];
    let layer = "transformer.h.0";
    let mut tensors: Vec<(String, Vec<usize>, Vec<f32>)> = vec![
        ("transformer.wte.weight".into(), vec![vocabulary.tokens.len(), HIDDEN], codes.clone()),
        ("transformer.wpe.weight".into(), vec![context, HIDDEN], positions),
    ];
    for (name, inputs, outputs) in [
        ("attn.c_attn", HIDDEN, 3 * HIDDEN),
        ("attn.c_proj", HIDDEN, HIDDEN),
        ("mlp.c_fc", HIDDEN, 64),
        ("mlp.c_proj", 64, HIDDEN),
    ] {
        let weight = filled(0.0, inputs * outputs);
        tensors.push((format!("{layer}.{name}.weight"), vec![inputs, outputs], weight));
        tensors.push((format!("{layer}.{name}.bias"), vec![outputs], filled(0.0, outputs)));
    }
    for norm in ["transformer.h.0.ln_1", "transformer.h.0.ln_2", "transformer.ln_f"] {
        // The last norm scales all logits alike; zero makes them equal.
        let scale = if norm == "transformer.ln_f" { loudness } else { 1.0 };
        tensors.push((format!("{norm}.weight"), vec![HIDDEN], filled(scale, HIDDEN)));
        tensors.push((format!("{norm}.bias"), vec![HIDDEN], filled(0.0, HIDDEN)));
    }
    let bytes: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .into_iter()
        .map(|(name, shape, values)| {
            (name, shape, values.iter().flat_map(|value| value.to_le_bytes()).collect())
        })
        .collect();
    let views = bytes.iter().map(|(name, shape, bytes)| {
        (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
    });
    serialize_to_file(views, None, file).unwrap();
}
