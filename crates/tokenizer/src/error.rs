//! Errors of the conversion between text and tokens. Their messages say what to do.

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `tokenizer.json` could not be read as a tokenizer.
    #[error("tokenizer.json is damaged or of an unknown kind: {0}; download the model again")]
    BadTokenizer(String),
    /// `tokenizer_config.json` is invalid.
    #[error("tokenizer_config.json is damaged: {0}; download the model again")]
    BadTokenizerConfig(String),
    /// A file lists an added token that cannot be added.
    #[error(
        "tokenizer_config.json (or added_tokens.json) lists the added token {token}, which cannot be added: {reason}; take the files of one version of the model, or name another tokenizer by --tokenizer"
    )]
    AddedToken {
        /// The token's spelling.
        token: String,
        /// The reason, with the ids.
        reason: String,
    },
    /// `chat_template.json` is invalid.
    #[error("chat_template.json is damaged: {0}; download the model again")]
    BadChatTemplateJson(String),
    /// The text could not be turned into tokens.
    #[error("the text cannot be tokenized: {0}; send a shorter or simpler text")]
    Encode(String),
    /// The work was cancelled before it was done.
    #[error("the text was not tokenized: the request was given up; send it again")]
    Cancelled,
    /// The token ids could not be turned into text.
    #[error("the tokens cannot be decoded: {0}; check that tokenizer.json belongs to this model")]
    Decode(String),
    /// The chat template is not valid Jinja.
    #[error("the chat template has a syntax error{}: {message}; give another with --chat-template", at_line(*line))]
    TemplateSyntax {
        /// Message of the template engine.
        message: String,
        /// Line of the template, from 1.
        line: Option<usize>,
    },
    /// The chat template called `raise_exception`, since the model does not accept such a conversation.
    #[error("the model's chat template refused the conversation: {message}")]
    TemplateRaised {
        /// The template's own words.
        message: String,
    },
    /// The chat template failed while rendering this conversation.
    #[error("the chat template failed{}: {message}; check the shape of the messages and tools", at_line(*line))]
    TemplateRender {
        /// Message of the template engine.
        message: String,
        /// Line of the template, from 1.
        line: Option<usize>,
    },
    /// The chat template ran longer than a template may.
    #[error(
        "the chat template did not finish within {max_steps} steps; send fewer messages or another template"
    )]
    TemplateTooSlow {
        /// The limit, in instructions of the template engine.
        max_steps: u64,
    },
    /// The chat template wrote more text than a prompt may have.
    #[error("the chat template wrote more than {max_bytes} bytes; send a shorter conversation")]
    TemplateOutputTooLong {
        /// The limit.
        max_bytes: usize,
    },
    /// The chat template built more text, for itself or for the prompt, than the conversation allows.
    #[error(
        "the chat template builds more than {max_bytes} bytes of text, 8 times what it was given and 1 MiB; send a shorter conversation or give another with --chat-template"
    )]
    TemplateTextTooLong {
        /// The limit.
        max_bytes: usize,
    },
    /// Several named templates and none called `default`.
    #[error(
        "the model has the chat templates {names:?} and none named \"default\"; give one with --chat-template"
    )]
    NoDefaultTemplate {
        /// The existing names.
        names: Vec<String>,
    },
    /// The messages are not a list of objects.
    #[error("messages must be a list of objects, each with a role: {0}")]
    BadMessages(String),
    /// `continue_final_message` cannot be done with this conversation or template.
    #[error("continue_final_message cannot be used: {0}")]
    CannotContinue(&'static str),
    /// No character is left to mark the special tokens that the conversation spells out.
    #[error(
        "the conversation spells out special tokens and holds nearly all of Unicode's noncharacters; leave one of the two out"
    )]
    NoMarkLeft,
    /// A stop string is empty, so that it would match everywhere.
    #[error("stop string {index} is empty; leave it out or give it at least one character")]
    EmptyStopString {
        /// Its index in the list.
        index: usize,
    },
}

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

fn at_line(line: Option<usize>) -> String {
    line.map(|line| format!(" in line {line}")).unwrap_or_default()
}
