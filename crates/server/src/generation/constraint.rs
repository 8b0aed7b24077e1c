//! From what a request asks the output to be to the grammar that holds it there.

use candlepower_api::{ConstraintKind, OutputConstraint};
use candlepower_grammar::{Constraint, Error, Grammar, GrammarCompiler};

use crate::model::api_error::{ApiError, ApiResult};
use crate::model::served_model::LoadedModel;

/// The grammar of a request, if it asks for one.
///
/// # Errors
/// 400 with what the constraint asks for and cannot be had.
pub(crate) fn compile(
    model: &LoadedModel,
    constraint: Option<&OutputConstraint>,
) -> ApiResult<Option<Grammar>> {
    let compile = |output: &OutputConstraint| compile_as(model, output.param, &of_output(output));
    constraint.map(compile).transpose()
}

/// What the grammar crate knows such a constraint as.
pub(crate) fn of_output(output: &OutputConstraint) -> Constraint {
    match output.kind.clone() {
        ConstraintKind::JsonObject => Constraint::JsonObject,
        ConstraintKind::JsonSchema(schema) => Constraint::JsonSchema(schema),
        ConstraintKind::Regex(regex) => Constraint::Regex(regex),
        ConstraintKind::Choice(texts) => Constraint::Choice(texts),
        ConstraintKind::Grammar(grammar) => Constraint::grammar(grammar),
        ConstraintKind::StructuralTag(tag) => Constraint::StructuralTag(tag),
    }
}

/// The grammar of a constraint that the field `param` asks for.
///
/// # Errors
/// 400 with what the constraint asks for and cannot be had.
pub(crate) fn compile_as(
    model: &LoadedModel,
    param: &str,
    constraint: &Constraint,
) -> ApiResult<Grammar> {
    let info = model.engine.info();
    let compiler = model.grammar_compiler.get_or_init(|| {
        GrammarCompiler::new(&model.tokenizer, &info.eos_token_ids, info.vocab_size)
    });
    let refused = |error: &Error| {
        let reason = candlepower_api::clip(&error.to_string());
        ApiError::invalid(param, format!("`{param}` cannot be held: {reason}."))
    };
    let compiler = compiler.as_ref().map_err(refused)?;
    compiler.compile(constraint).map_err(|error| refused(&error))
}

/// What a body costs to prepare, in bytes of a plain one: compiling a grammar takes longer than its text.
pub(crate) fn preparation_cost(body: &[u8]) -> usize {
    const NAMES: [&[u8]; 5] =
        [b"response_format", b"structured_outputs", b"guided_", b"json_schema", b"\"tools\""];
    let has = |name: &&[u8]| body.windows(name.len()).any(|window| window == *name);
    if NAMES.iter().any(has) { usize::MAX } else { body.len() }
}
