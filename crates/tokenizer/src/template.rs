//! Renders a conversation to the prompt text on which its model was trained, by the checkpoint's own chat template.

use std::borrow::Cow;
use std::collections::HashSet;
use std::io;

use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind};
use serde_json::{Map, Value};

use crate::clock::LocalTime;
use crate::depth::too_deep;
use crate::jinja::{RaisedException, environment, without_generation_tags};
use crate::metered::{Limits, TooMuchText, bounded};
use crate::percent::with_format_filters;
use crate::prompt::{Conversation, text_bytes};
use crate::tokenizer::{parse_config, special_tokens};
use crate::{Error, Prompt, Result, Tokenizer};

/// The chat template of a checkpoint, compiled.
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// Names and sources; at least one.
    templates: Vec<(String, String)>,
    special_tokens: Map<String, Value>,
}

/// Sources of a model's chat templates.
#[derive(Debug, Clone, Copy, Default)]
pub struct TemplateSources<'a> {
    /// The file of `--chat-template`, which replaces all others.
    pub chosen: Option<&'a str>,
    /// `chat_template.jinja`: the template named `default`.
    pub chat_template_jinja: Option<&'a str>,
    /// `additional_chat_templates/NAME.jinja`: names and templates.
    pub additional: &'a [(String, String)],
    /// `tokenizer_config.json`, which also has the special tokens that templates write.
    pub tokenizer_config: Option<&'a [u8]>,
    /// `chat_template.json`, in which some multimodal models have the template that others have in
    /// `tokenizer_config.json`.
    pub chat_template_json: Option<&'a [u8]>,
}

/// Input of a prompt.
#[derive(Debug, Clone, Copy)]
pub struct RenderInput<'a> {
    /// A list of `{role, content, ..}`.
    pub messages: &'a Value,
    /// A list of tools in the form of the OpenAI protocol.
    pub tools: Option<&'a Value>,
    /// Documents to answer from, a list of objects.
    pub documents: Option<&'a Value>,
    /// End of the prompt.
    pub end: PromptEnd,
    /// Further variables for the template; they win over special tokens.
    pub chat_template_kwargs: &'a Map<String, Value>,
    /// The time that the template's `strftime_now` returns.
    pub now: LocalTime,
}

/// End of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptEnd {
    /// The header of an answer, so that the model writes one (`add_generation_prompt`).
    GenerationPrompt,
    /// The end of the last message.
    LastMessage,
    /// The text of the last message, so that the model continues it (`continue_final_message`).
    ContinueFinalMessage,
}

impl ChatTemplate {
    /// Most instructions of one rendering. A prompt of a thousand messages takes about a hundredth of it.
    pub const MAX_STEPS: u64 = 10_000_000;
    /// Most instructions of one rendering for [`Self::for_probes`].
    const MAX_PROBE_STEPS: u64 = 200_000;
    /// Most bytes of one prompt.
    pub const MAX_OUTPUT_BYTES: usize = 64 << 20;

    /// The templates of a model, or `None` if it has none, like a base model.
    ///
    /// Files win over the `chat_template` of `tokenizer_config.json`, which is one string or a list of `{"name",
    /// "template"}`. That is the order in transformers. If none of the files is the default, the rest comes from
    /// `tokenizer_config.json` or, if it has none, from `chat_template.json`.
    ///
    /// # Errors
    /// [`Error::BadTokenizerConfig`], [`Error::TemplateSyntax`].
    pub fn from_sources(sources: &TemplateSources<'_>) -> Result<Option<Self>> {
        let tokenizer_config = sources.tokenizer_config;
        let config = tokenizer_config.map(parse_config).transpose()?.unwrap_or_default();
        let in_json = sources.chat_template_json.map(template_of_json).transpose()?;
        let mut in_config = config.get("chat_template").into_iter().chain(&in_json);
        let templates = all_templates(sources, in_config.find(|value| !value.is_null()))?;
        if templates.is_empty() {
            return Ok(None);
        }
        let special_tokens = tokenizer_config.map(special_tokens).transpose()?.unwrap_or_default();
        let mut environment = environment(Self::MAX_STEPS);
        for (name, source) in &templates {
            // The bound is checked before the engine parses, which recurses for each link.
            if let Some((line, message)) = too_deep(source) {
                return Err(Error::TemplateSyntax { message, line: Some(line) });
            }
            let source = with_format_filters(&without_generation_tags(source));
            environment.add_template_owned(name.clone(), source).map_err(|error| {
                Error::TemplateSyntax { message: message(&error), line: error.line() }
            })?;
        }
        Ok(Some(Self { environment, templates, special_tokens }))
    }

    /// The same templates for conversations of a few short messages, by which a server examines them. A template that
    /// does not end is stopped sooner.
    pub fn for_probes(&self) -> Self {
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(Self::MAX_PROBE_STEPS));
        Self {
            environment,
            templates: self.templates.clone(),
            special_tokens: self.special_tokens.clone(),
        }
    }

    /// The source of the template for a request with or without tools.
    ///
    /// # Errors
    /// [`Error::NoDefaultTemplate`].
    pub fn source(&self, tools: Option<&Value>) -> Result<&str> {
        self.select(tools).map(|(_, source)| source)
    }

    /// Renders the prompt. Time and length are bounded for any conversation.
    ///
    /// Reasoning may be given as `reasoning_content`, `reasoning` or `thinking`, like in transformers. Unlike there,
    /// keys of messages whose value is null are not absent, since some templates ask for them.
    ///
    /// # Errors
    /// [`Error::TemplateRaised`] when the template refuses the conversation; the other `Template..` variants,
    /// [`Error::BadMessages`], [`Error::CannotContinue`].
    pub fn render(&self, input: &RenderInput<'_>) -> Result<String> {
        let (name, source) = self.select(input.tools)?;
        let mut messages = normalize(input.messages)?;
        if input.end != PromptEnd::ContinueFinalMessage {
            return self.render_messages(name, input, messages);
        }
        let final_text = mark_final_message(&mut messages, source)?;
        let rendered = self.render_messages(name, input, messages)?;
        cut_at_mark(rendered, &final_text)
    }

    /// Renders the prompt with special tokens only where the template writes them, for [`Tokenizer::encode_prompt`].
    ///
    /// Spellings of special tokens in messages, tools or documents, and in the names of their fields, are text. So
    /// are spellings that the end of one of these texts forms together with what comes next. The values of
    /// `chat_template_kwargs` are the caller's own and may contain special tokens.
    ///
    /// The template sees a spelled-out token that it removes, as some templates do with `</think>`, but not one that
    /// it would repeat. Two cases are not distinguished. In one the template writes the first part of a special token
    /// and a message the rest. In the other the template joins a special token from parts of one message.
    ///
    /// The conversation is rendered up to three times, and once if nothing in it reads like a special token.
    ///
    /// # Errors
    /// The errors of [`Self::render`], and [`Error::NoMarkLeft`].
    pub fn prompt(&self, input: &RenderInput<'_>, tokenizer: &Tokenizer) -> Result<Prompt> {
        let conversation = Conversation {
            messages: Cow::Borrowed(input.messages),
            tools: input.tools.map(Cow::Borrowed),
            documents: input.documents.map(Cow::Borrowed),
        };
        tokenizer.spellings().prompt(&conversation, |conversation| {
            self.render(&RenderInput {
                messages: &conversation.messages,
                tools: conversation.tools.as_deref(),
                documents: conversation.documents.as_deref(),
                ..*input
            })
        })
    }

    fn render_messages(
        &self,
        name: &str,
        input: &RenderInput<'_>,
        messages: Vec<Value>,
    ) -> Result<String> {
        let template = self.environment.get_template(name).expect("every template was added");
        let mut output = BoundedOutput { bytes: Vec::new(), is_full: false };
        let given = messages.iter().chain(input.tools).chain(input.documents);
        let given = given.chain(input.chat_template_kwargs.values()).map(text_bytes).sum::<usize>();
        let limits = Limits {
            // Templates copy texts several times, such as by trimming and splitting. A template that builds much more
            // doubles a text in a loop.
            built_bytes: given.saturating_mul(8).saturating_add(1 << 20),
            written_bytes: Self::MAX_OUTPUT_BYTES,
            items: self.max_steps(),
        };
        let variables = self.variables(input, messages);
        let rendered = bounded(limits, || template.render_captured_to(variables, &mut output));
        match rendered {
            _ if output.is_full => {
                Err(Error::TemplateOutputTooLong { max_bytes: Self::MAX_OUTPUT_BYTES })
            }
            Ok(_) => Ok(String::from_utf8(output.bytes).expect("a template writes whole strings")),
            Err(error) => Err(render_error(&error, self.max_steps())),
        }
    }

    /// Most instructions of one rendering by this template.
    fn max_steps(&self) -> u64 {
        self.environment.fuel().unwrap_or(Self::MAX_STEPS)
    }

    fn variables(&self, input: &RenderInput<'_>, messages: Vec<Value>) -> minijinja::Value {
        let now = input.now;
        let strftime_now = move |format: &str| {
            now.strftime(format)
                .map_err(|message| minijinja::Error::new(ErrorKind::InvalidOperation, message))
        };
        let adds_generation_prompt = input.end == PromptEnd::GenerationPrompt;
        let json = |value: &Value| minijinja::Value::from(Serde(value));
        let variables = [("strftime_now", minijinja::Value::from_function(strftime_now))]
            .into_iter()
            .chain(self.special_tokens.iter().map(|(name, value)| (name.as_str(), json(value))))
            .chain(
                input.chat_template_kwargs.iter().map(|(name, value)| (name.as_str(), json(value))),
            )
            .chain([
                ("messages", Serde(messages).into()),
                // `none` as in transformers. Templates ask `tools is not none`, which is true for an undefined
                // variable.
                ("tools", input.tools.map_or_else(|| ().into(), json)),
                ("documents", input.documents.map_or_else(|| ().into(), json)),
                ("add_generation_prompt", adds_generation_prompt.into()),
            ]);
        minijinja::Value::from_pairs(variables)
    }

    fn select(&self, tools: Option<&Value>) -> Result<(&str, &str)> {
        let named = |wanted: &str| self.templates.iter().find(|(name, _)| name == wanted);
        let template = match (
            &*self.templates,
            // An empty list of tools selects `tool_use`, too, as in transformers.
            tools.and_then(|_| named(TOOL_USE)).or_else(|| named(DEFAULT)),
        ) {
            (_, Some(template)) | ([template], None) => template,
            (all, None) => {
                let names = all.iter().map(|(name, _)| name.clone()).collect();
                return Err(Error::NoDefaultTemplate { names });
            }
        };
        Ok((&template.0, &template.1))
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.templates.iter().map(|(name, _)| name).collect::<Vec<_>>();
        f.debug_struct("ChatTemplate").field("templates", &names).finish_non_exhaustive()
    }
}

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

/// Names and sources of templates; the first of a name wins.
fn all_templates(
    sources: &TemplateSources<'_>,
    in_config: Option<&Value>,
) -> Result<Vec<(String, String)>> {
    let default = |source: &str| (DEFAULT.to_owned(), source.to_owned());
    if let Some(chosen) = sources.chosen {
        return Ok(vec![default(chosen)]);
    }
    let files = sources.chat_template_jinja.map(default);
    let mut all = files.into_iter().chain(sources.additional.iter().cloned()).collect::<Vec<_>>();
    if all.iter().all(|(name, _)| name != DEFAULT)
        && let Some(value) = in_config
    {
        all.extend(templates(value)?);
    }
    // An environment has one template of each name.
    let mut names = HashSet::new();
    all.retain(|(name, _)| names.insert(name.clone()));
    Ok(all)
}

/// The template in `chat_template.json`, or null if it has none.
fn template_of_json(json: &[u8]) -> Result<Value> {
    let bad = Error::BadChatTemplateJson;
    let file: Map<String, Value> =
        serde_json::from_slice(json).map_err(|error| bad(error.to_string()))?;
    match file.get("chat_template") {
        None | Some(Value::Null) => Ok(Value::Null),
        Some(template @ Value::String(_)) => Ok(template.clone()),
        Some(_) => Err(bad("chat_template must be a string".into())),
    }
}

fn templates(value: &Value) -> Result<Vec<(String, String)>> {
    let bad = || {
        Error::BadTokenizerConfig(
            "chat_template must be a string, an object of named templates, or a list of {name, template}".into(),
        )
    };
    if let Some(source) = value.as_str() {
        return Ok(vec![(DEFAULT.to_owned(), source.to_owned())]);
    }
    if let Some(named) = value.as_object().filter(|named| !named.is_empty()) {
        let named =
            named.iter().map(|(name, source)| Some((name.clone(), source.as_str()?.to_owned())));
        return named.collect::<Option<_>>().ok_or_else(bad);
    }
    let list = value.as_array().filter(|list| !list.is_empty()).ok_or_else(bad)?;
    let entry = |entry: &Value| {
        Some((entry["name"].as_str()?.to_owned(), entry["template"].as_str()?.to_owned()))
    };
    list.iter().map(|item| entry(item).ok_or_else(bad)).collect()
}

/// Names of fields for reasoning. Templates read the first, and gpt-oss's template reads the second.
const REASONING_FIELDS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Source: `_alias_reasoning_fields` in transformers.
fn normalize(messages: &Value) -> Result<Vec<Value>> {
    let list = messages.as_array().ok_or_else(|| Error::BadMessages("it is no list".into()))?;
    let normalize_one = |(index, message): (usize, &Value)| {
        let fields = message
            .as_object()
            .ok_or_else(|| Error::BadMessages(format!("item {index} is no object")))?;
        let mut fields = fields.clone();
        if let Some(reasoning) = REASONING_FIELDS
            .iter()
            .find_map(|&name| fields.get(name).filter(|value| !value.is_null()))
            .cloned()
        {
            if fields.get("thinking").is_none_or(Value::is_null) {
                fields.insert("thinking".into(), reasoning.clone());
            }
            fields.insert("reasoning_content".into(), reasoning);
        }
        Ok(Value::Object(fields))
    };
    list.iter().enumerate().map(normalize_one).collect()
}

/// Mark after the final message's text, by which it is found in the prompt. Its space shows whether the template
/// trims.
const MARK: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Marks the end of the final message's text, and returns that text.
///
/// Source, with [`cut_at_mark`]: `render_jinja_template` in transformers' chat_template_utils.py.
fn mark_final_message(messages: &mut [Value], source: &str) -> Result<String> {
    let last = messages.last_mut().ok_or(Error::CannotContinue("there is no message"))?;
    if !source.contains("content") {
        return Err(Error::CannotContinue(
            "the chat template does not read the content of messages",
        ));
    }
    let text = match &mut last["content"] {
        Value::Array(parts) => parts.iter_mut().rev().find_map(|part| match part.get_mut("text") {
            Some(Value::String(text)) => Some(text),
            _ => None,
        }),
        Value::String(text) => Some(text),
        _ => None,
    };
    let text = text.ok_or(Error::CannotContinue("the final message has no text"))?;
    let original = text.clone();
    text.push_str(MARK);
    Ok(original)
}

fn cut_at_mark(mut rendered: String, final_text: &str) -> Result<String> {
    let lost = Error::CannotContinue("the chat template does not write the final message as it is");
    let Some(at) = rendered.rfind(MARK.trim_end()) else { return Err(lost) };
    if !rendered.contains(final_text.trim()) {
        return Err(lost);
    }
    // The mark's space is gone, so the template has trimmed the end of the text.
    let template_trims = !rendered[at..].starts_with(MARK);
    rendered.truncate(at);
    if template_trims {
        rendered.truncate(rendered.trim_end().len());
    }
    Ok(rendered)
}

fn render_error(error: &minijinja::Error, max_steps: u64) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(RaisedException(message)) = current.downcast_ref() {
            return Error::TemplateRaised { message: message.clone() };
        }
        match current.downcast_ref() {
            Some(&TooMuchText::Built { max_bytes }) => {
                return Error::TemplateTextTooLong { max_bytes };
            }
            Some(&TooMuchText::Written { max_bytes }) => {
                return Error::TemplateOutputTooLong { max_bytes };
            }
            None => {}
        }
        if current
            .downcast_ref()
            .is_some_and(|error: &minijinja::Error| error.kind() == ErrorKind::OutOfFuel)
        {
            return Error::TemplateTooSlow { max_steps };
        }
        cause = current.source();
    }
    Error::TemplateRender { message: message(error), line: error.line() }
}

fn message(error: &minijinja::Error) -> String {
    match error.detail() {
        // Python writes values into a text with this operator.
        Some(detail) if detail.contains("use % operator") => {
            format!(
                "{}: {detail}; `%` formats only texts that the template writes out",
                error.kind()
            )
        }
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

/// Collects the template's output, up to the limit.
struct BoundedOutput {
    bytes: Vec<u8>,
    is_full: bool,
}

impl io::Write for BoundedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.is_full |= self.bytes.len() + bytes.len() > ChatTemplate::MAX_OUTPUT_BYTES;
        if self.is_full {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
