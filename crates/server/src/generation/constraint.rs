//! Compiles the output constraint of a request to a grammar.

use std::process::Command;

use candlepower_api::{ConstraintKind, OutputConstraint};
use candlepower_grammar::{Constraint, Error, Grammar, GrammarCompiler, TRIAL_COMMAND};

use crate::generation::preparation::Preparation;
use crate::model::api_error::{ApiError, ApiResult};
use crate::model::own_program::{knows_commands, own_program};
use crate::model::served_model::LoadedModel;

/// A constraint on an answer's text, and its grammar.
pub(crate) struct TextConstraint {
    pub(crate) constraint: Constraint,
    pub(crate) grammar: Grammar,
}

impl TextConstraint {
    /// The constraint of a request, if it has one.
    ///
    /// # Errors
    /// 400 with the part of the constraint that is invalid or cannot be enforced.
    pub(crate) fn compile(
        model: &Preparation<'_, LoadedModel>,
        output: Option<&OutputConstraint>,
    ) -> ApiResult<Option<Self>> {
        let Some(output) = output else { return Ok(None) };
        let constraint = of_output(model, output)?;
        let grammar = compile_as(model, output.param, &constraint)?;
        Ok(Some(Self { constraint, grammar }))
    }
}

/// The grammar of a request's constraint, if it has one.
///
/// # Errors
/// Those of [`TextConstraint::compile`].
pub(crate) fn compile(
    model: &Preparation<'_, LoadedModel>,
    output: Option<&OutputConstraint>,
) -> ApiResult<Option<Grammar>> {
    Ok(TextConstraint::compile(model, output)?.map(|text| text.grammar))
}

/// The constraint in the types of the grammar crate.
///
/// # Errors
/// 400 with the limit that it exceeds.
fn of_output(
    model: &Preparation<'_, LoadedModel>,
    output: &OutputConstraint,
) -> ApiResult<Constraint> {
    let constraint = match output.kind.clone() {
        ConstraintKind::JsonObject => Constraint::JsonObject,
        ConstraintKind::JsonSchema(schema) => Constraint::JsonSchema(schema),
        ConstraintKind::Regex(regex) => Constraint::Regex(regex),
        ConstraintKind::Choice(texts) => Constraint::Choice(texts),
        ConstraintKind::Grammar(grammar) => Constraint::grammar(grammar),
        ConstraintKind::StructuralTag(tag) => Constraint::StructuralTag(tag),
    };
    check_small(model, output.param, &constraint)?;
    if model.config.additional_properties {
        return Ok(constraint);
    }
    constraint.closed().map_err(|error| refused(output.param, &error))
}

/// The grammar of a constraint from the field `param`. On the event loop it is only looked up in the cache.
///
/// # Errors
/// 400 with the part of the constraint that is invalid or cannot be enforced.
pub(crate) fn compile_as(
    model: &Preparation<'_, LoadedModel>,
    param: &str,
    constraint: &Constraint,
) -> ApiResult<Grammar> {
    let refused = |error: Error| refused(param, &error);
    let Some(cancelled) = model.cancelled() else {
        check_small(model, param, constraint)?;
        let compiler = model.grammar_compiler.get().and_then(|compiler| compiler.as_ref().ok());
        let compiled = compiler.and_then(|compiler| compiler.compiled(constraint));
        return compiled.ok_or_else(|| model.postpone());
    };
    let info = model.engine.info();
    let compiler = model.grammar_compiler.get_or_init(|| {
        let limits = model.config.compile_limits();
        GrammarCompiler::new(&model.tokenizer, &info.eos_token_ids, info.vocab_size).map(
            |compiler| match knows_commands() {
                true => compiler.with_trials(trial_command, limits),
                false => compiler,
            },
        )
    });
    let compiler = compiler.as_ref().map_err(|error| refused(error.clone()))?;
    compiler.compile_unless(constraint, model.caller.0, cancelled).map_err(refused)
}

/// Moves the preparation to a thread if the constraint is not small.
///
/// # Errors
/// 400 with the limit that it exceeds.
pub(crate) fn check_small(
    model: &Preparation<'_, LoadedModel>,
    param: &str,
    constraint: &Constraint,
) -> ApiResult<()> {
    let is_small = constraint.is_small().map_err(|error| refused(param, &error))?;
    if is_small || model.cancelled().is_some() { Ok(()) } else { Err(model.postpone()) }
}

pub(crate) fn refused(param: &str, error: &Error) -> ApiError {
    let reason = candlepower_api::clip(&error.to_string());
    match error {
        // Nobody waits for this answer, or the deadline has its own.
        Error::Cancelled => ApiError::unavailable(format!("`{param}`: {reason}.")),
        Error::Trial(_) => ApiError::internal(format!("`{param}`: {reason}.")),
        _ => ApiError::invalid(param, format!("`{param}` cannot be enforced: {reason}.")),
    }
}

/// This program as a child process that tries constraints.
fn trial_command() -> Command {
    own_program(TRIAL_COMMAND)
}
