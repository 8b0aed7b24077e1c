//! Prepares a conversation: its prompt, the constraint on answers, and the parsers for them.

use std::sync::Arc;

use candlepower_api::{OutputConstraint, ToolOptions};
use candlepower_dialect::Thinking;
use candlepower_tokenizer::Prompt;

use crate::generation::chat_output::AnswerFormat;
use crate::generation::constraint::TextConstraint;
use crate::generation::encoded_prompt::EncodedPrompt;
use crate::generation::params::Generation;
use crate::generation::pictures;
use crate::generation::preparation::Preparation;
use crate::generation::prompt::{ChatPrompt, Rendered};
use crate::generation::reasoning_budget::ReasoningBudget;
use crate::generation::thinking::{Unheard, unheard};
use crate::generation::tools::ToolUse;
use crate::model::api_error::ApiResult;
use crate::model::served_model::LoadedModel;

/// A conversation, its tools, and the constraint on its answer.
pub(crate) struct Conversation<'a> {
    /// The prompt without tools; those that the tool choice allows are added later.
    pub(crate) prompt: ChatPrompt<'a>,
    pub(crate) tools: Option<&'a ToolOptions>,
    pub(crate) output: Option<&'a OutputConstraint>,
}

impl Conversation<'_> {
    /// The prompt's tokens and images, and the format of answers. Sets the grammar and the text options of `generation`.
    ///
    /// # Errors
    /// 400 with the field that is invalid.
    pub(crate) fn prepare(
        self,
        model: &Preparation<'_, LoadedModel>,
        generation: &mut Generation,
    ) -> ApiResult<(EncodedPrompt, AnswerFormat)> {
        let tools = ToolUse::new(self.tools, model)?;
        // A new constraint moves the preparation to a thread, where it starts again. So it comes before the prompt.
        let text = TextConstraint::compile(model, self.output)?;
        let images = pictures::read(model, model, self.prompt.messages)?;
        let prompt = ChatPrompt { images: &images, tools: tools.definitions(), ..self.prompt };
        let rendered = prompt.render(model)?;
        rendered.tell(model);
        let Rendered { prompt: rendered, .. } = rendered;
        match prompt.thinking.and_then(|options| unheard(options, model)) {
            None => {}
            Some(Unheard::Switch(field)) => model.leave_out(field, None),
            Some(Unheard::Effort(field)) => model.leave_out_preference(field),
        }
        let encoded = prompt.tokenize(model, &rendered)?;
        let answers = answer_format(&prompt, model, &rendered, &tools);
        let stands = (answers.dialect, answers.thinking);
        generation.grammar = tools.grammar(model, stands, self.output, text)?;
        let budget = prompt.thinking.and_then(|options| options.budget.as_ref());
        if let (Some(budget), Some(format)) = (budget, answers.dialect.reasoning)
            && answers.thinking != Thinking::Closed
        {
            let tokens = usize::try_from(budget.value).unwrap_or(usize::MAX >> 1);
            let limit = ReasoningBudget::new(format, answers.thinking, tokens, &model.tokenizer);
            if limit.is_none() {
                model.leave_out(budget.field, None);
            }
            let behind = (answers.dialect, Thinking::Closed);
            let text = TextConstraint::compile(model, self.output)?;
            let behind = tools.grammar(model, behind, self.output, text)?;
            let is_text = behind.is_none() && answers.functions.is_none();
            let limit = limit.map(|limit| if is_text { limit.before_text() } else { limit });
            generation.reasoning_budget = limit.map(|limit| limit.with_grammar(behind));
        }
        generation.text.always_shown = shown_marks(&answers, model);
        generation.text.answers = Some(answers.clone());
        Ok((encoded, answers))
    }
}

/// The format in which answers to a prompt are parsed.
fn answer_format(
    prompt: &ChatPrompt<'_>,
    model: &LoadedModel,
    rendered: &Prompt,
    tools: &ToolUse<'_>,
) -> AnswerFormat {
    let mut dialect = model.dialect;
    if prompt.continue_final_message == Some(true) {
        // The continued message has already ended its reasoning.
        dialect.reasoning = dialect.reasoning.filter(|_| dialect.is_harmony());
    }
    let thinking = dialect.reasoning.map(|format| format.after_prompt(rendered.text()));
    AnswerFormat {
        dialect,
        thinking: thinking.unwrap_or(Thinking::Possible),
        functions: tools.functions(),
        are_calls: tools.are_required(),
    }
}

/// The special tokens that mark the parts of an answer, which the parser must see in the text.
fn shown_marks(answers: &AnswerFormat, model: &LoadedModel) -> Arc<[u32]> {
    let mut dialect = answers.dialect;
    if answers.functions.is_none() && !dialect.is_harmony() {
        dialect.tools = None;
    }
    let ids = dialect.marks().into_iter().filter_map(|mark| model.tokenizer.token_to_id(mark));
    ids.filter(|id| model.tokenizer.is_special(*id)).collect()
}
