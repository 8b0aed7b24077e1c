//! The tools of a request: their definitions for the chat template, and the constraint on tool calls.

use std::sync::Arc;

use candlepower_api::{AllowedMode, OutputConstraint, Tool, ToolChoice, ToolOptions, clip};
use candlepower_dialect::{
    AnswerShape, Callable, Calls, Dialect, Error, Function, Thinking, ToolFormat,
};
use candlepower_grammar::{
    Constraint, Grammar, take_unenforced_patterns, with_references_to_definitions,
};
use serde_json::{Map, Value};

use crate::generation::constraint::{self, TextConstraint};
use crate::generation::preparation::Preparation;
use crate::model::api_error::{ApiError, ApiResult};
use crate::model::served_model::LoadedModel;

/// The tools and the tool choice of a request, checked against the model.
pub(crate) struct ToolUse<'a> {
    calls: Calls,
    parallel: bool,
    /// Whether the tool choice names one function.
    is_named: bool,
    /// The tools that the tool choice allows.
    callable: Vec<&'a Tool>,
    /// Name of the field that has the schema of a tool's arguments.
    schema_field: &'static str,
    /// All tools, for the chat template.
    definitions: Option<Value>,
}

impl<'a> ToolUse<'a> {
    /// # Errors
    /// 400 if the request has tools, and the model or its chat template does not support them.
    pub(crate) fn new(options: Option<&'a ToolOptions>, model: &LoadedModel) -> ApiResult<Self> {
        let options = options.filter(|options| options.choice != ToolChoice::None);
        let Some(ToolOptions { tools, choice, parallel, schema_field }) = options else {
            return Ok(Self {
                calls: Calls::None,
                parallel: true,
                is_named: false,
                callable: Vec::new(),
                schema_field: "",
                definitions: None,
            });
        };
        if model.chat_template.is_some() && !model.writes_tools {
            let message = "The chat template of this model does not support tools: leave `tools` out, or start the server \
                           with another --chat-template.";
            return Err(ApiError::invalid("tools", message));
        }
        if model.dialect.tools.is_none() {
            let message = "The format of this model's tool calls is unknown: leave `tools` out, or start the server with \
                           --tool-call-parser.";
            return Err(ApiError::invalid("tools", message));
        }
        let is_callable = |tool: &Tool| match choice {
            ToolChoice::Function(name) => tool.name == *name,
            ToolChoice::Allowed(allowed) => allowed.names.contains(&tool.name),
            _ => true,
        };
        let calls = match choice {
            ToolChoice::Auto => Calls::Allowed,
            ToolChoice::Allowed(allowed) if allowed.mode == AllowedMode::Auto => Calls::Allowed,
            _ => Calls::Required,
        };
        Ok(Self {
            calls,
            // A named function is called once.
            parallel: *parallel && !matches!(choice, ToolChoice::Function(_)),
            is_named: matches!(choice, ToolChoice::Function(_)),
            callable: tools.iter().filter(|tool| is_callable(tool)).collect(),
            schema_field,
            definitions: Some(tools.iter().map(|tool| tool.definition.clone()).collect()),
        })
    }

    /// The definitions of all tools, for the chat template.
    pub(crate) fn definitions(&self) -> Option<&Value> {
        self.definitions.as_ref()
    }

    /// Whether the answer must consist of tool calls only.
    pub(crate) fn are_required(&self) -> bool {
        self.calls == Calls::Required
    }

    /// The tools that the answer may call; `None` if there are none.
    pub(crate) fn functions(&self) -> Option<Arc<[Callable]>> {
        let function = |tool: &Tool| {
            let parameters = tool.parameters.clone().map(with_references_to_definitions);
            Callable { name: tool.name.clone(), parameters }
        };
        let functions = || self.callable.iter().map(|tool| function(tool)).collect();
        (self.calls != Calls::None).then(functions)
    }

    /// The grammar of an answer that begins at `thinking`: it constrains tool calls to their schemas, and text to `output`.
    /// `text` is `output` compiled alone, so that an error has named its field.
    ///
    /// # Errors
    /// 400 with the field of the schema or constraint that cannot be enforced.
    pub(crate) fn grammar(
        &self,
        model: &Preparation<'_, LoadedModel>,
        (dialect, thinking): (Dialect, Thinking),
        output: Option<&OutputConstraint>,
        text: Option<TextConstraint>,
    ) -> ApiResult<Option<Grammar>> {
        let constraint = text.as_ref().map(|text| &text.constraint);
        self.check_sizes(model)?;
        let parameters = self.enforced_parameters(model)?;
        let functions = self.callable.iter().zip(&parameters).map(|(tool, parameters)| Function {
            name: &tool.name,
            parameters: parameters.as_ref(),
            strict: tool.strict,
        });
        let functions = functions.collect::<Vec<_>>();
        let shape = AnswerShape {
            dialect,
            thinking,
            calls: self.calls,
            parallel: self.parallel,
            functions: &functions,
            has_others: self.callable.len() < self.num_known(),
            text: constraint,
        };
        let whole = match shape.constraint(&model.tokenizer) {
            Ok(whole) => whole,
            Err(error) => {
                // If one schema is invalid by itself, the error names its field.
                self.check_schemas(model, &functions)?;
                return Err(self.refused(&error));
            }
        };
        match whole {
            None => Ok(None),
            Some(whole) if Some(&whole) == constraint => Ok(text.map(|text| text.grammar)),
            Some(whole) => {
                self.check_schemas(model, &functions)?;
                let field = if self.calls == Calls::None {
                    output.map_or("tools", |output| output.param)
                } else {
                    "tools"
                };
                constraint::compile_as(model, field, &whole).map(Some)
            }
        }
    }

    /// Checks the size of each schema before any work that takes longer.
    fn check_sizes(&self, model: &Preparation<'_, LoadedModel>) -> ApiResult<()> {
        for tool in &self.callable {
            let Some(parameters) = tool.parameters.clone() else { continue };
            let schema = Constraint::JsonSchema(Value::Object(parameters));
            constraint::check_small(model, &self.schema_path(tool), &schema)?;
        }
        Ok(())
    }

    /// The schemas that constrain the arguments of calls. Objects are closed. References lead to definitions only, because formats with
    /// an element for each argument compile each property as a schema of its own, in which `#` would mean the property.
    fn enforced_parameters(
        &self,
        model: &Preparation<'_, LoadedModel>,
    ) -> ApiResult<Vec<Option<Map<String, Value>>>> {
        let loosened = self.loosened(model);
        let closed = |(tool, loosened): (&&Tool, Option<Map<String, Value>>)| {
            let Some(parameters) = loosened else { return Ok(tool.parameters.clone()) };
            if model.config.additional_properties {
                return Ok(Some(with_references_to_definitions(parameters)));
            }
            match candlepower_grammar::closed(&Value::Object(parameters)) {
                Ok(Value::Object(closed)) => Ok(Some(closed)),
                Ok(_) => Ok(tool.parameters.clone()),
                Err(error) => Err(constraint::refused(&self.schema_path(tool), &error)),
            }
        };
        self.callable.iter().zip(loosened).map(closed).collect()
    }

    /// The schemas without patterns that cannot be enforced, which the response header lists. A named function keeps its patterns, and so
    /// do all tools if a call is required and each of them has such a pattern; these requests are refused.
    fn loosened(&self, model: &Preparation<'_, LoadedModel>) -> Vec<Option<Map<String, Value>>> {
        let is_enforced = |tool: &&Tool| tool.strict || self.calls == Calls::Required;
        let is_raw = model.dialect.tools.is_some_and(ToolFormat::has_raw_texts);
        let given = self.callable.iter().map(|tool| {
            let parameters = tool.parameters.clone().filter(|_| is_enforced(tool))?;
            let mut rest = parameters.clone();
            let taken = match self.is_named {
                true => Vec::new(),
                false => take_unenforced_patterns(&mut rest, is_raw),
            };
            Some((parameters, rest, taken))
        });
        let given: Vec<_> = given.collect();
        let is_whole =
            |one: &Option<(_, _, Vec<String>)>| one.as_ref().is_none_or(|of| of.2.is_empty());
        let keeps_all = self.calls == Calls::Required && !given.iter().any(is_whole);
        let each = self.callable.iter().zip(given).map(|(tool, given)| {
            let (parameters, rest, taken) = given?;
            if keeps_all {
                return Some(parameters);
            }
            for path in taken {
                model.leave_out(&format!("{}.{path}", self.schema_path(tool)), None);
            }
            Some(rest)
        });
        each.collect()
    }

    /// Compiles each enforced schema alone, so that an error names its field.
    fn check_schemas(
        &self,
        model: &Preparation<'_, LoadedModel>,
        functions: &[Function<'_>],
    ) -> ApiResult<()> {
        for (tool, function) in self.callable.iter().zip(functions) {
            if function.strict || self.calls == Calls::Required {
                let schema = Constraint::JsonSchema(function.schema());
                constraint::compile_as(model, &self.schema_path(tool), &schema)?;
            }
        }
        Ok(())
    }

    fn refused(&self, error: &Error) -> ApiError {
        let field = match error {
            Error::Parameters { function, .. } => self
                .callable
                .get(*function)
                .map_or_else(|| "tools".to_owned(), |tool| self.schema_path(tool)),
            _ => "tools".to_owned(),
        };
        let message = format!("`{field}` cannot be enforced: {}.", clip(&error.to_string()));
        ApiError::invalid(field, message)
    }

    /// Number of tools in the prompt.
    fn num_known(&self) -> usize {
        self.definitions.as_ref().and_then(Value::as_array).map_or(0, Vec::len)
    }

    fn schema_path(&self, tool: &Tool) -> String {
        format!("{}.{}", tool.path, self.schema_field)
    }
}
