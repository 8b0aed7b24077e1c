//! The grammar of a whole answer: reasoning, then tool calls in the model's format, or text.
//!
//! Grammars are in llguidance's Lark. A mark that is a special token of the tokenizer is written by its id, other marks as text. Text is
//! free up to the mark that begins a call.

mod elements;
mod keywords;
mod notation;

use candlepower_grammar::Constraint;
use candlepower_tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::format::{Arguments, Format, Layout, LineBreaks, ReasoningFormat, Thinking, ToolFormat};
use crate::parser::Dialect;

/// The allowed form of an answer.
#[derive(Clone, Copy, Debug)]
pub struct AnswerShape<'a> {
    /// The model's formats.
    pub dialect: Dialect,
    /// Whether reasoning is open before the first character.
    pub thinking: Thinking,
    /// Whether tool calls are allowed or required.
    pub calls: Calls,
    /// Whether several calls are allowed.
    pub parallel: bool,
    /// The callable functions.
    pub functions: &'a [Function<'a>],
    /// Whether the prompt has further functions, which may not be called.
    pub has_others: bool,
    /// The constraint on the answer's text.
    pub text: Option<&'a Constraint>,
}

/// Whether tool calls are allowed or required.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// No calls.
    None,
    /// The model decides.
    Allowed,
    /// At least one call, and no text.
    Required,
}

/// A callable function.
#[derive(Clone, Copy, Debug)]
pub struct Function<'a> {
    /// Name of the function.
    pub name: &'a str,
    /// JSON schema of the arguments; `None` means no arguments.
    pub parameters: Option<&'a Map<String, Value>>,
    /// Whether arguments are constrained to the schema also if the model decides about calls.
    pub strict: bool,
}

impl Function<'_> {
    /// The schema of the arguments, always of an object.
    pub fn schema(&self) -> Value {
        let Some(parameters) = self.parameters else {
            return json!({"type": "object", "properties": {}, "additionalProperties": false});
        };
        let mut schema = parameters.clone();
        schema.entry("type").or_insert_with(|| "object".into());
        Value::Object(schema)
    }
}

impl AnswerShape<'_> {
    /// The constraint on the whole answer; `None` if any text is allowed.
    ///
    /// # Errors
    /// The format of calls is unknown, or a schema cannot be enforced in it.
    pub fn constraint(&self, tokenizer: &Tokenizer) -> Result<Option<Constraint>> {
        // A grammar costs a mask for each token. A call that the model decides on is left free, unless one of these
        // conditions could be broken without a grammar.
        let holds_calls = match self.calls {
            Calls::None => false,
            Calls::Allowed => {
                !self.parallel
                    || self.has_others
                    || self.functions.iter().any(|function| function.strict)
            }
            Calls::Required => true,
        };
        if !holds_calls && self.text.is_none() {
            return Ok(None);
        }
        let is_plain = !self.dialect.is_harmony()
            && self.dialect.reasoning.is_none()
            && self.dialect.frame().is_empty();
        if let (Calls::None, Some(text), true) = (self.calls, self.text, is_plain) {
            return Ok(Some(text.clone()));
        }
        let mut grammar = Lark { shape: self, tokenizer, rules: Vec::new() };
        let start =
            if self.dialect.is_harmony() { grammar.harmony()? } else { grammar.marked()? };
        grammar.rule("start", &start);
        Ok(Some(Constraint::Composed(grammar.rules.concat())))
    }
}

/// Any text.
const TEXT: &str = r"/(.|\n)+/";

/// A mark in a regular expression.
fn escaped(mark: &str) -> String {
    let escape = |c: char| match c {
        // A raw line break would end the line of the Lark rule.
        '\n' => vec!['\\', 'n'],
        c if c.is_ascii_punctuation() && !"<>_=\"':,;!%@`~#&-".contains(c) => vec!['\\', c],
        c => vec![c],
    };
    mark.chars().flat_map(escape).collect()
}

/// A grammar under construction.
struct Lark<'a> {
    shape: &'a AnswerShape<'a>,
    tokenizer: &'a Tokenizer,
    rules: Vec<String>,
}

impl Lark<'_> {
    fn rule(&mut self, name: &str, value: &str) {
        self.rules.push(format!("{name}: {value}\n"));
    }

    /// The id of a mark that is a special token.
    fn special(&self, mark: &str) -> Option<u32> {
        self.tokenizer.token_to_id(mark).filter(|id| self.tokenizer.is_special(*id))
    }

    /// A text, with special tokens for marks that are special tokens.
    fn literal(&self, text: &str) -> String {
        // The text is split at its first mark, and the rest is split by recursion.
        match self.first_special(text) {
            Some((at, mark, id)) => format!(
                "{} <[{id}]> {}",
                self.literal(&text[..at]),
                self.literal(&text[at + mark.len()..])
            ),
            None => Value::from(text).to_string(),
        }
    }

    /// Position, text and id of the first special token in a text.
    fn first_special(&self, text: &str) -> Option<(usize, &str, u32)> {
        let marks = self.shape.dialect.marks().into_iter();
        // Marks differ in length, so the first position decides.
        marks
            .filter_map(|mark| Some((text.find(mark)?, mark, self.special(mark)?)))
            .min_by_key(|(at, ..)| *at)
    }

    /// The plain text before the first special token; empty if there is none.
    fn before_special<'t>(&self, text: &'t str) -> &'t str {
        self.first_special(text).map_or("", |(at, ..)| &text[..at])
    }

    /// Whether a special token is in a text.
    fn has_special(&self, text: &str) -> bool {
        let mut marks = self.shape.dialect.marks().into_iter();
        marks.any(|mark| text.contains(mark) && self.special(mark).is_some())
    }

    /// Texts that may be missing, in their order.
    fn optional(&self, texts: &[&str]) -> String {
        let texts = texts.iter().map(|text| format!("({})?", self.literal(text)));
        texts.collect::<Vec<_>>().join(" ")
    }

    /// Text up to a mark, and the mark. `before` is the terminal of the text, which may match an empty text.
    fn until(&mut self, name: &str, mark: &str, before: &str) -> String {
        self.until_behind(name, "", mark, before)
    }

    /// The same with a rule of special tokens, which may stand before the mark.
    fn until_behind(&mut self, name: &str, between: &str, mark: &str, before: &str) -> String {
        match self.has_special(mark) {
            // A special token ends the text by itself. A mark of plain text needs a lazy rule, which ends at its
            // first occurrence.
            true => self.rule(name, &format!("{before}? {between} {}", self.literal(mark))),
            false => {
                self.rule(&format!("{name}[lazy]"), &format!("{before} {}", Value::from(mark)))
            }
        }
        name.to_owned()
    }

    /// Reasoning between marks, then the answer.
    fn marked(&mut self) -> Result<String> {
        let reasoning = self.shape.dialect.reasoning;
        let marks = reasoning.and_then(ReasoningFormat::marks);
        let thinking = self.shape.thinking;
        let Some((open, close)) = marks.filter(|_| thinking != Thinking::Closed) else {
            return self.body();
        };
        self.rule("THOUGHT", &self.thought());
        let thought = self.until("thought", close, "THOUGHT");
        let body = self.body()?;
        self.rule("body", &body);
        // Templates write up to two line breaks after the mark. Without a bound, a model could write white space up
        // to `max_tokens`.
        let space = r"/[ \r\n]{1,4}/?";
        if thinking == Thinking::Open {
            return Ok(format!("{thought} {space} body"));
        }
        let title = reasoning.map(ReasoningFormat::title).filter(|title| !title.is_empty());
        let title = title.map(|title| format!("{title}\n")).unwrap_or_default();
        let opening = match self.has_special(open) {
            true => format!("{space} {} {}", self.literal(open), Value::from(title)),
            false => {
                let open = Value::from([open, &title].concat());
                self.rule("OPENING", &format!(r"/[ \r\n]{{0,4}}/ {open}"));
                "OPENING".to_owned()
            }
        };
        let thoughtful = format!("{opening} {thought} {space} body");
        if !self.is_free() || self.has_special(open) {
            return Ok(format!("{thoughtful} | body"));
        }
        // Free text could also be reasoning. It is not reasoning if it does not begin with the mark.
        let open = escaped(open);
        self.rule("UNTHOUGHT", &format!(r"UNCALLED & ~/[ \t\r\n]*{open}(.|\n)*/"));
        let thoughtless = self.free("first", "UNTHOUGHT")?;
        Ok(format!("{thoughtful} | {thoughtless}"))
    }

    /// The terminal of reasoning. It contains nothing that ends reasoning for the parser, except its mark.
    fn thought(&self) -> String {
        let tools = self.shape.dialect.tools.filter(|_| self.shape.calls != Calls::None);
        let ended_by = tools.and_then(|tools| tools.format().ends_reasoning);
        let ended_by = ended_by.map(|call| format!(r" & ~/(.|\n)*{call}(.|\n)*/"));
        // The mark that closes reasoning needs no exclusion here, because `until` ends the terminal at its first
        // occurrence.
        format!(r"/(.|\n)*/{}", ended_by.unwrap_or_default())
    }

    /// Whether any text is allowed.
    fn is_free(&self) -> bool {
        self.shape.calls == Calls::Allowed && self.shape.text.is_none()
    }

    /// The answer without reasoning.
    fn body(&mut self) -> Result<String> {
        if self.shape.calls == Calls::None {
            return self.text();
        }
        let calls = self.calls()?;
        self.rule("calls", &calls);
        match (self.shape.calls, self.shape.text) {
            (Calls::Required, _) => Ok(self.alone()),
            (_, Some(_)) => Ok(format!("{} | {}", self.alone(), self.text()?)),
            (_, None) => {
                let no_call = self.no_call()?;
                self.rule("UNCALLED", &format!(r"/(.|\n)*/{no_call}"));
                self.free("lead", "UNCALLED")
            }
        }
    }

    /// Calls without content.
    fn alone(&self) -> String {
        format!("{} calls", self.optional(self.shape.dialect.frame().before_calls))
    }

    /// The rule of text without calls.
    fn text(&mut self) -> Result<String> {
        let value = |text: &Constraint| text.as_lark_value(self.tokenizer);
        let value = self.shape.text.map(value).transpose()?;
        self.rule("text", value.as_deref().unwrap_or(TEXT));
        if self.shape.dialect.is_harmony() {
            return Ok("text".to_owned());
        }
        let frame = self.shape.dialect.frame();
        let [before, after] =
            [frame.before_text, frame.after_text].map(|texts| self.optional(texts));
        Ok(format!("{before} text {after}"))
    }

    /// Any text, in which calls are constrained to their format. `text` is the terminal of a text without calls, and of the text
    /// before the first call; with the call's mark it is the rule `name`. Later calls follow `lead`.
    fn free(&mut self, name: &str, text: &str) -> Result<String> {
        let layout = &self.format()?.layout;
        let Some(trigger) = layout.trigger else {
            let first = [layout.open, layout.before_name].concat().chars().next();
            let terminal = format!("{}_OTHER", name.to_uppercase());
            let other = match first {
                // The first character that is no white space decides between a call and text, because the parser
                // decides there, too. So text that begins with a brace or a bracket can only be a call.
                Some(first) => format!(r"/[ \t\r\n]*[^\{first} \t\r\n](.|\n)*/ & {text}"),
                None => format!(r"/(.|\n)+/ & ~/{}(.|\n)*/ & {text}", self.bare_heads(layout)),
            };
            let before = self.shape.dialect.frame().before_text.concat();
            if before.is_empty() {
                self.rule(&terminal, &other);
                return Ok(format!("calls | {terminal}?"));
            }
            // Calls may follow the text of an answer that begins with the mark of text. Other texts must not begin with
            // it: the lexer takes the longest lexeme, and calls could not follow.
            self.rule(&terminal, &format!(r"{other} & ~/{}(.|\n)*/", escaped(&before)));
            let (before, separator) = (self.literal(&before), layout.separator);
            let lead = self.until(&format!("{name}_marked"), separator, text);
            return Ok(format!("calls | {before} ({lead} calls | {text}?) | {terminal}?"));
        };
        let frame = self.shape.dialect.frame();
        // Terminals of text match these texts, unless special tokens are in them.
        let around = [frame.before_text, frame.after_text].map(|texts| {
            let is_special = texts.iter().any(|text| self.has_special(text));
            if is_special { self.optional(texts) } else { String::new() }
        });
        let [before, after] = around;
        let lead = self.until_behind(name, &after, trigger, text);
        let rest = self.calls_behind(layout, trigger)?;
        // Without repetition, no text may follow the call: it could contain another one.
        if !self.repeats(layout) {
            return Ok(format!("{before} ({lead} {rest} | {text}? {after})"));
        }
        // `lead` is the rule of `UNCALLED` up to the mark. The first text may have a terminal of its own, which
        // excludes an opening mark of reasoning.
        Ok(format!("{before} ({lead} {rest} (lead {rest})* UNCALLED? | {text}? {after})"))
    }

    /// A regular expression of the starts of calls without a mark.
    fn bare_heads(&self, layout: &Layout) -> String {
        let names = self.shape.functions.iter().map(|function| escaped(function.name));
        let names = names.collect::<Vec<_>>().join("|");
        format!(r"[ \t\r\n]*({names}){}[ \t\r\n]*\{{", escaped(layout.before_arguments))
    }

    /// A restriction of terminals: they must not contain a text, other than the format's trigger, that the parser reads as a call.
    fn no_call(&self) -> Result<String> {
        let tools = self.shape.dialect.tools.ok_or(Error::NoToolFormat)?;
        let trigger = tools.format().layout.trigger;
        // Terminals of text do not match special tokens.
        let others = tools.openers().iter().copied();
        let others = others.filter(|mark| Some(*mark) != trigger && !self.has_special(mark));
        let others = others.map(escaped).collect::<Vec<_>>();
        Ok(match others.is_empty() {
            true => String::new(),
            false => format!(r" & ~/(.|\n)*({})(.|\n)*/", others.join("|")),
        })
    }

    fn format(&self) -> Result<&'static Format> {
        self.shape.dialect.tools.map(ToolFormat::format).ok_or(Error::NoToolFormat)
    }

    fn repeats(&self, layout: &Layout) -> bool {
        self.shape.parallel && layout.repeats
    }

    /// The separator of calls.
    fn separator(&self, layout: &Layout) -> String {
        match layout.line_breaks {
            // The templates of GLM 4.5 and 4.6 write line breaks between elements and calls, and that of GLM 4.7 does
            // not.
            LineBreaks::Optional if layout.separator == "\n" => {
                LineBreaks::Optional.lark().to_owned()
            }
            _ => self.literal(layout.separator),
        }
    }

    /// Calls only.
    fn calls(&mut self) -> Result<String> {
        let format = self.format()?;
        let functions = self.functions(format)?;
        let layout = &format.layout;
        self.rule("call", &format!("{} ({functions})", self.literal(layout.before_name)));
        let (open, close) = (self.literal(layout.open), self.literal(layout.close));
        let more = match self.repeats(layout) {
            true => format!("({} call)*", self.separator(layout)),
            false => String::new(),
        };
        Ok(format!("{open} call {more} {close}"))
    }

    /// Calls without their trigger.
    fn calls_behind(&mut self, layout: &Layout, trigger: &str) -> Result<String> {
        let name = "triggered";
        // With reasoning, `free` runs twice, and a second rule of this name would be an error of Lark.
        if self.rules.iter().any(|rule| rule.starts_with("triggered:")) {
            return Ok(name.to_owned());
        }
        let all = [layout.open, layout.before_name].concat();
        // The lazy rule before this one has consumed the trigger.
        let begin = self.literal(all.strip_prefix(trigger).unwrap_or(&all));
        // `calls` was built before, so the rules of all functions exist.
        let functions = (0..self.shape.functions.len()).map(|index| format!("f{index}"));
        let functions = functions.collect::<Vec<_>>().join(" | ");
        // If every call has its own mark, the text after it leads to the next call.
        let more = match self.repeats(layout) && !layout.open.is_empty() {
            true => format!("({} call)*", self.separator(layout)),
            false => String::new(),
        };
        let close = self.literal(layout.close);
        self.rule(name, &format!("{begin} ({functions}) {more} {close}"));
        Ok(name.to_owned())
    }

    /// Adds a rule for each function, from its name to the end of its arguments; returns the alternatives.
    fn functions(&mut self, format: &Format) -> Result<String> {
        let mut names = Vec::new();
        let layout = &format.layout;
        match format.arguments {
            // All functions share these rules, so they are added once, outside of the loop.
            Arguments::Gemma(marks) => self.notation_rules(marks),
            Arguments::Json { .. } | Arguments::Keywords | Arguments::Elements(_) => {}
        }
        for (index, function) in self.shape.functions.iter().enumerate() {
            let enforced = function.strict || self.shape.calls == Calls::Required;
            let head = match layout.before_number {
                None => self.literal(&[function.name, layout.before_arguments].concat()),
                // The model counts the calls of a conversation, and the parser ignores the number. So any number is
                // allowed.
                Some(before) => {
                    let name = self.literal(&[function.name, before].concat());
                    format!("{name} /[0-9]+/ {}", self.literal(layout.before_arguments))
                }
            };
            let arguments = match format.arguments {
                Arguments::Keywords => self.keywords(index, function)?,
                Arguments::Gemma(marks) => self.notation((index, function), marks, enforced)?,
                Arguments::Elements(marks) => {
                    self.elements((index, function), layout, marks, enforced)?
                }
                Arguments::Json { .. } => {
                    // A function that is not strict still needs an object, because clients parse arguments as JSON.
                    let schema =
                        if enforced { function.schema() } else { json!({"type": "object"}) };
                    Constraint::JsonSchema(schema).as_lark_value(self.tokenizer)?
                }
            };
            self.rule(&format!("a{index}"), &arguments);
            let end = match format.arguments {
                // The last argument's rule contains the end of the call.
                Arguments::Elements(marks) => {
                    // The closing mark of the call distinguishes the end of a value from text within it, so the
                    // value's rule consumes it.
                    let end = layout.after_arguments;
                    self.literal(end.strip_prefix(marks.close).unwrap_or(end))
                }
                _ => self.literal(layout.after_arguments),
            };
            self.rule(&format!("f{index}"), &format!("{head} a{index} {end}"));
            names.push(format!("f{index}"));
        }
        Ok(names.join(" | "))
    }

    /// Messages: reasoning, then calls or the text.
    fn harmony(&mut self) -> Result<String> {
        let thought = self.until("thought", "<|end|>", r"/(.|\n)*/");
        let open = self.literal("<|channel|>analysis<|message|>");
        let next = self.literal("<|start|>assistant");
        // The prompt ends with `<|start|>assistant`. So the first message has no start of its own, and every later
        // one needs it.
        let analysis = match self.shape.thinking {
            Thinking::Closed => String::new(),
            Thinking::Open | Thinking::Possible => format!("({open} {thought} {next})?"),
        };
        let last = self.literal("<|channel|>final<|message|>");
        let text = match self.shape.calls {
            Calls::Required => String::new(),
            _ => format!("{last} {}", self.text()?),
        };
        if self.shape.calls == Calls::None {
            return Ok(format!("{analysis} {text}"));
        }
        let calls = self.calls()?;
        self.rule("calls", &calls);
        match self.shape.calls {
            Calls::Required => Ok(format!("{analysis} calls")),
            _ => Ok(format!("{analysis} (calls | {text})")),
        }
    }
}

#[cfg(test)]
mod tests;
