//! Random prompts of a given number of tokens. Each is different, and the same seed gives the same prompts.

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde_json::{Value, json};

use super::picture::PictureSize;
use crate::api::Api;

/// Words that are one token in most vocabularies.
const WORDS: &str = concat!(
    "time year people way day man thing woman life child world school state family student group country ",
    "problem hand part place case week company system program question work government number night point home water room ",
    "mother area money story fact month lot right study book eye job word business issue side kind head house service ",
    "friend father power hour game line end member law car city name president team minute idea body back parent face ",
    "level office door health person art war history party result change morning reason research girl guy moment air ",
    "teacher force education",
);
/// Ids that every vocabulary has and that are not special tokens, for servers without `/tokenize`.
const COMMON_IDS: std::ops::Range<u32> = 300..1000;
/// Minimum of different ids. With fewer, prompts would be too similar.
const LEAST_IDS: usize = 16;
/// Token ids in the request that checks whether the server accepts token ids.
const PROBE_IDS: usize = 12;

/// Endpoint for the requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Workload {
    /// POST /v1/completions.
    #[default]
    Completions,
    /// POST /v1/chat/completions, with one user message each.
    Chat,
}

impl Workload {
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Completions => "/v1/completions",
            Self::Chat => "/v1/chat/completions",
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Completions => "completions",
            Self::Chat => "chat",
        }
    }
}

/// Form of the prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum PromptForm {
    /// Token ids if the server accepts them, else text.
    #[default]
    Auto,
    /// Token ids: the number of tokens is exact.
    Ids,
    /// Text: the number of tokens is approximate.
    Text,
}

/// Parameters of the prompts.
#[derive(Clone, Debug)]
pub(super) struct PromptSettings {
    pub(super) model: String,
    pub(super) workload: Workload,
    pub(super) form: PromptForm,
    /// Tokens of each prompt that it shares with no other.
    pub(super) input_tokens: usize,
    /// Tokens of the prefix that all prompts share.
    pub(super) shared_prefix_tokens: usize,
    /// The size of a random picture that each prompt begins with; for chats only.
    pub(super) image_size: Option<PictureSize>,
    pub(super) seed: u64,
}

/// A generator of prompts.
pub(super) struct Prompts {
    settings: PromptSettings,
    material: Material,
}

/// The vocabulary of the prompts.
enum Material {
    /// Ids to choose from.
    Ids(Vec<u32>),
    /// Numbers of words that give about the requested numbers of tokens.
    Text { prefix_words: usize, words: usize },
}

impl Prompts {
    /// Checks which form of prompts the server accepts.
    ///
    /// # Errors
    /// The server accepts no prompts, or not in the requested form.
    pub(super) async fn new(api: &Api, settings: PromptSettings) -> Result<Self> {
        if settings.workload == Workload::Completions && settings.form != PromptForm::Text {
            match ids_material(api, &settings).await {
                Ok(material) => return Ok(Self { settings, material }),
                Err(error) if settings.form == PromptForm::Ids => {
                    return Err(error.context("the server does not take token ids"));
                }
                Err(_) => {}
            }
        }
        let material = text_material(api, &settings).await?;
        Ok(Self { settings, material })
    }

    /// The form in which prompts are sent.
    pub(super) fn form(&self) -> &'static str {
        match self.material {
            Material::Ids(_) => "token_ids",
            Material::Text { .. } => "text",
        }
    }

    /// The field of the request's body that holds prompt `number`, and its value.
    pub(super) fn field(&self, number: u64) -> (&'static str, Value) {
        let settings = &self.settings;
        // The generator of the prefix begins anew for each prompt, so the prefix is the same.
        let mut shared = rng(settings.seed, 0);
        let mut own = rng(settings.seed, number + 1);
        match &self.material {
            Material::Ids(ids) => {
                let mut prompt = draw_ids(ids, settings.shared_prefix_tokens, &mut shared);
                prompt.extend(draw_ids(ids, settings.input_tokens, &mut own));
                ("prompt", json!(prompt))
            }
            &Material::Text { prefix_words, words } => {
                let mut text = draw_words(prefix_words, &mut shared);
                text += &draw_words(words, &mut own);
                match settings.image_size {
                    Some(size) => ("messages", picture_message(size.data_url(&mut own), text)),
                    None => text_field(settings.workload, text),
                }
            }
        }
    }
}

fn text_field(workload: Workload, text: String) -> (&'static str, Value) {
    match workload {
        Workload::Completions => ("prompt", text.into()),
        Workload::Chat => ("messages", json!([{"role": "user", "content": text}])),
    }
}

/// A user message with a picture and a text behind it.
fn picture_message(url: String, text: String) -> Value {
    let content = json!([
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": text},
    ]);
    json!([{"role": "user", "content": content}])
}

/// A random generator for each prompt. Neighbouring numbers give unrelated prompts.
fn rng(seed: u64, number: u64) -> fastrand::Rng {
    let mut of_seed = fastrand::Rng::with_seed(seed);
    // The multiplier is 2^64 divided by the golden ratio, which spreads neighbouring numbers over all bits.
    fastrand::Rng::with_seed(of_seed.u64(..) ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn draw_ids(ids: &[u32], count: usize, rng: &mut fastrand::Rng) -> Vec<u32> {
    (0..count).map(|_| ids[rng.usize(..ids.len())]).collect()
}

/// Random words, each after a space.
fn draw_words(count: usize, rng: &mut fastrand::Rng) -> String {
    let words: Vec<&str> = WORDS.split_whitespace().collect();
    (0..count).flat_map(|_| [" ", words[rng.usize(..words.len())]]).collect()
}

/// Token ids of the words in the server's vocabulary. Fails unless the server counts a prompt of ids correctly.
async fn ids_material(api: &Api, settings: &PromptSettings) -> Result<Material> {
    let question = json!({"model": settings.model, "prompt": WORDS, "add_special_tokens": false});
    let mut ids: Vec<u32> = match api.post("/tokenize", &question).await {
        Ok(answer) => serde_json::from_value(answer["tokens"].clone()).unwrap_or_default(),
        Err(_) => Vec::new(),
    };
    ids.sort_unstable();
    ids.dedup();
    if ids.len() < LEAST_IDS {
        ids = COMMON_IDS.collect();
    }
    // Numbers from the top of the range belong to no measured prompt, so no measured prompt is cached by this
    // request.
    let probe = draw_ids(&ids, PROBE_IDS, &mut rng(settings.seed, u64::MAX));
    let counted = prompt_tokens(api, settings, "prompt", json!(probe)).await?;
    if counted != PROBE_IDS {
        bail!("the server counts {counted} tokens for a prompt of {PROBE_IDS} token ids");
    }
    Ok(Material::Ids(ids))
}

/// Measures with two requests the tokens per word, and the tokens that the chat template adds.
async fn text_material(api: &Api, settings: &PromptSettings) -> Result<Material> {
    let few = (settings.input_tokens / 16).max(8);
    let many = few * 4;
    let mut counted = [0.0; 2];
    for (count, words) in counted.iter_mut().zip([few, many]) {
        let text = draw_words(words, &mut rng(settings.seed, u64::MAX - words as u64));
        let (name, value) = text_field(settings.workload, text);
        *count = prompt_tokens(api, settings, name, value).await? as f64;
    }
    // The difference of the two counts cancels the tokens of the chat template.
    let per_word = (counted[1] - counted[0]) / (many - few) as f64;
    if per_word <= 0.0 {
        bail!("the server does not count prompt tokens: {counted:?} for {few} and {many} words");
    }
    let template = (counted[0] - per_word * few as f64).max(0.0);
    let words = |tokens: f64| (tokens / per_word).round() as usize;
    Ok(Material::Text {
        prefix_words: words(settings.shared_prefix_tokens as f64),
        words: words(settings.input_tokens as f64 - template).max(1),
    })
}

/// Number of tokens that the server counts in a prompt.
async fn prompt_tokens(
    api: &Api,
    settings: &PromptSettings,
    name: &str,
    prompt: Value,
) -> Result<usize> {
    let body = json!({"model": settings.model, name: prompt, "max_tokens": 1});
    let answer = api.post(settings.workload.path(), &body).await?;
    let counted = answer["usage"]["prompt_tokens"].as_u64();
    Ok(counted.context("the server's answer has no `usage.prompt_tokens`")? as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompts(seed: u64, material: Material) -> Prompts {
        let settings = PromptSettings {
            model: "m".into(),
            workload: Workload::Completions,
            form: PromptForm::Auto,
            input_tokens: 20,
            shared_prefix_tokens: 5,
            image_size: None,
            seed,
        };
        Prompts { settings, material }
    }

    #[test]
    fn prompts_share_their_beginning_and_nothing_else() {
        let ids = |seed, number| {
            let (_, value) = prompts(seed, Material::Ids((0..1000).collect())).field(number);
            serde_json::from_value::<Vec<u32>>(value).unwrap()
        };
        let (one, two) = (ids(1, 0), ids(1, 1));
        assert_eq!((one.len(), one[..5] == two[..5]), (25, true));
        assert!(one[5] != two[5] && one[5..] != two[5..]);
        assert_eq!(ids(1, 0), one);
        assert_ne!(ids(2, 0)[..5], one[..5]);
    }

    #[test]
    fn text_has_the_words_that_come_to_the_tokens() {
        let (name, value) = prompts(1, Material::Text { prefix_words: 3, words: 4 }).field(0);
        assert_eq!((name, value.as_str().unwrap().split_whitespace().count()), ("prompt", 7));
    }
    #[test]
    fn each_prompt_has_a_picture_of_its_own() {
        let with_pictures = |number| {
            let mut prompts = prompts(1, Material::Text { prefix_words: 0, words: 4 });
            prompts.settings.workload = Workload::Chat;
            prompts.settings.image_size = Some("16".parse().unwrap());
            let (name, messages) = prompts.field(number);
            assert_eq!(name, "messages");
            messages[0]["content"].clone()
        };
        let (one, two) = (with_pictures(0), with_pictures(1));
        assert_eq!(
            (one[0]["type"].as_str(), one[1]["type"].as_str()),
            (Some("image_url"), Some("text"))
        );
        assert_ne!(one[0], two[0]);
        assert_eq!(one, with_pictures(0));
    }
}
