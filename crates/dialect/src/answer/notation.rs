//! Grammar rules for arguments in Gemma's notation, from a JSON schema. Keys are bare and in the template's order, strings are between
//! marks, and other values are JSON.

use candlepower_grammar::{
    Constraint, Exclusions, TEXT_KEYWORDS, escape_slashes, expressions, match_empty,
};
use serde_json::{Map, Value, json};

use super::elements::ANNOTATIONS;
use super::keywords::{Property, allows_nothing, undeclared, without_declared};
use super::{Function, Lark, escaped};
use crate::error::{Error, Result};
use crate::format::gemma4::{Marks, is_key, written};
use crate::schema::{Types, resolve};

const NUMERIC: [&str; 5] =
    ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];

/// Keywords for values of one type that are enforced.
const ENFORCED: [(Types, &[&str]); 4] = [
    (Types::OBJECT, &["properties", "required", "additionalProperties", "propertyNames"]),
    (Types::ARRAY, &["items", "minItems", "maxItems"]),
    (Types::STRING, &TEXT_KEYWORDS),
    (Types::NUMBER, &NUMERIC),
];

/// Maximum number of definitions of a schema.
const MAX_DEFINITIONS: usize = 256;

/// Maximum depth of schemas, by nesting and by reference, because each level takes stack space.
const MAX_DEPTH: usize = 128;

const NO_VALUE: &str = "a schema that allows no value";

/// The name or the body of a rule, or the part of a schema that cannot be enforced.
type Rule = Result<String, String>;

/// The schema of a function's arguments, whose rules are under construction.
struct Schema<'a> {
    marks: &'static Marks,
    function: usize,
    root: &'a Map<String, Value>,
    exclusions: Exclusions,
    /// The rules of its definitions.
    definitions: Vec<Definition>,
    /// Depth of the current schema.
    depth: usize,
    num_names: usize,
}

/// A definition, restricted to some types.
struct Definition {
    reference: String,
    types: Types,
    rule: String,
    /// The rule of another definition, if it only refers to that one.
    same_as: Option<String>,
}

impl Schema<'_> {
    /// Whether a rule leads to another one, through definitions that only refer to others.
    fn leads_to<'b>(&'b self, mut rule: &'b str, other: &str) -> bool {
        // Each definition refers to at most one other. A longer chain than their number is a cycle.
        for _ in 0..=self.definitions.len() {
            if rule == other {
                return true;
            }
            let definition = self.definitions.iter().find(|of| of.rule == rule);
            match definition.and_then(|of| of.same_as.as_deref()) {
                Some(next) => rule = next,
                None => return false,
            }
        }
        true
    }

    /// A suffix for a rule's name that no other rule has.
    fn name(&mut self) -> String {
        self.num_names += 1;
        format!("{}_{}", self.function, self.num_names)
    }
}

impl Lark<'_> {
    /// The rules that the arguments of all functions share.
    pub(super) fn notation_rules(&mut self, marks: &Marks) {
        let quote = self.literal(marks.quote);
        self.rule("RAW", &raw(marks));
        let rest = self.quoted_rest("raw", marks, "RAW", true);
        self.rule("string", &format!("{quote} {rest}"));
        // 19 digits hold every signed 64-bit integer, and 17 significant digits every double. Without a bound, real
        // models wrote digits up to `max_tokens`.
        let number = r"-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,17})?([eE][+-]?[0-9]{1,2})?";
        self.rule("SCALAR", &format!("/null|true|false|{number}/"));
        // These are the keys that `is_key` accepts: the parser would read any other character as the key's end or as
        // a quote.
        self.rule("KEY", r#"/[^\s:=,{}\[\]<"'][^:=,{}\[\]<\r\n]{0,200}/"#);
        self.rule("any", "string | SCALAR | list | object");
        self.rule("list", r#""[" (any ("," any)*)? "]""#);
        self.rule("object", r#""{" (KEY ":" any ("," KEY ":" any)*)? "}""#);
    }

    /// The arguments of function `index`; objects always have their required keys. Any arguments if they are not constrained to the
    /// schema.
    pub(super) fn notation(
        &mut self,
        (index, function): (usize, &Function<'_>),
        marks: &'static Marks,
        enforced: bool,
    ) -> Result<String> {
        let root = match function.parameters {
            _ if !enforced => return Ok("object".to_owned()),
            None => return Ok(r#""{}""#.to_owned()),
            Some(parameters) => parameters,
        };
        let mut schema = Schema {
            marks,
            function: index,
            root,
            exclusions: Exclusions::new(root.clone()),
            definitions: Vec::new(),
            depth: 0,
            num_names: 0,
        };
        self.object_schema(&mut schema, root, Types::OBJECT).map_err(|what| {
            let reason = format!("{what} cannot be enforced in tool calls in Gemma's notation");
            Error::Parameters { function: index, reason }
        })
    }

    /// Adds a rule, and returns its name.
    fn named(&mut self, schema: &mut Schema<'_>, value: &str) -> String {
        let name = format!("v{}", schema.name());
        self.rule(&name, value);
        name
    }

    /// The values of these types that a schema allows.
    fn schema(&mut self, schema: &mut Schema<'_>, of: &Value, types: Types) -> Rule {
        if schema.depth == MAX_DEPTH {
            return Err(format!("schemas are nested more than {MAX_DEPTH} levels deep"));
        }
        schema.depth += 1;
        let rule = match of {
            Value::Bool(true) => self.object_schema(schema, &Map::new(), types),
            Value::Object(of) => self.object_schema(schema, of, types),
            _ => Err(NO_VALUE.to_owned()),
        };
        // An error ends the whole compilation, so the depth needs no restoration on that path.
        schema.depth -= 1;
        rule
    }

    fn object_schema(
        &mut self,
        schema: &mut Schema<'_>,
        of: &Map<String, Value>,
        types: Types,
    ) -> Rule {
        let types = types.within(of, schema.root);
        // `propertyNames` that allow every text constrain nothing. zod 4 writes `{"type": "string"}` there for each
        // record.
        let says = |(keyword, value): &(&String, &Value)| match keyword.as_str() {
            "propertyNames" => !allows_all_texts(value),
            keyword => !ANNOTATIONS.contains(&keyword),
        };
        let said = of.iter().filter(says);
        let said = said.map(|(keyword, value)| (keyword.as_str(), value)).collect::<Vec<_>>();
        // A number may match this schema's type but not the inner schema's (integer).
        let is_integer = of.get("type").is_some_and(|names| {
            let has =
                |name: &str| names.as_array().is_some_and(|names| names.contains(&name.into()));
            *names == "integer" || has("integer") && !has("number")
        });
        // `Types` do not distinguish integers from other numbers.
        let is_fit = |value: &&Value| !is_integer || !value.is_number() || is_whole(value);
        match said.as_slice() {
            _ if types == Types::NONE => Err(NO_VALUE.to_owned()),
            [("const", value)] if is_fit(value) => {
                self.choice(schema, std::slice::from_ref(value), types)
            }
            [("const", _)] => Err(NO_VALUE.to_owned()),
            [("enum", Value::Array(values))] => {
                let values = values.iter().filter(|value| is_fit(value)).collect::<Vec<_>>();
                self.choice(schema, &values, types)
            }
            [(keyword @ ("anyOf" | "oneOf" | "allOf" | "$ref"), _)] if is_integer => {
                Err(format!("`type` beside `{keyword}`"))
            }
            [("anyOf", Value::Array(schemas))] => self.any_of(schema, schemas, types),
            [("oneOf", Value::Array(schemas))] => {
                if !schema.exclusions.are_disjoint(schemas) {
                    return Err("`oneOf` of schemas that share values".to_owned());
                }
                self.any_of(schema, schemas, types)
            }
            [("allOf", Value::Array(schemas))] if schemas.len() == 1 => {
                self.schema(schema, &schemas[0], types)
            }
            [("$ref", Value::String(reference))] => self.definition(schema, reference, types),
            [] if types == Types::ALL => Ok("any".to_owned()),
            _ => self.by_types(schema, of, &said, types),
        }
    }

    fn choice(&mut self, schema: &mut Schema<'_>, values: &[&Value], types: Types) -> Rule {
        let allowed = values.iter().filter(|value| types.allow(value));
        let written = allowed.map(|value| written(value, schema.marks));
        let written = written.collect::<Result<Vec<_>, _>>()?;
        let literals = written.iter().map(|text| self.literal(text)).collect::<Vec<_>>();
        match literals.is_empty() {
            true => Err(NO_VALUE.to_owned()),
            false => Ok(self.named(schema, &literals.join(" | "))),
        }
    }

    fn any_of(&mut self, schema: &mut Schema<'_>, schemas: &[Value], types: Types) -> Rule {
        let mut all = Vec::new();
        for arm in schemas {
            if Types::not_ruled_out(arm, schema.root).have(types) {
                all.push(self.schema(schema, arm, types)?);
            }
        }
        match all.is_empty() {
            true => Err(NO_VALUE.to_owned()),
            false => Ok(self.one_of(schema, all)),
        }
    }

    /// Alternatives of rules.
    fn one_of(&mut self, schema: &mut Schema<'_>, mut rules: Vec<String>) -> String {
        match rules.pop() {
            Some(rule) if rules.is_empty() => rule,
            last => {
                rules.extend(last);
                self.named(schema, &rules.join(" | "))
            }
        }
    }

    fn definition(&mut self, schema: &mut Schema<'_>, reference: &str, types: Types) -> Rule {
        // The types are part of the key: `type` beside `$ref` restricts a definition at one place and not at another.
        let is_it = |of: &&Definition| of.reference == reference && of.types == types;
        if let Some(known) = schema.definitions.iter().find(is_it) {
            return Ok(known.rule.clone());
        }
        let place = schema.definitions.len();
        if place == MAX_DEFINITIONS {
            return Err(format!("more than {MAX_DEFINITIONS} definitions"));
        }
        let definition = resolve(reference, schema.root);
        let definition = definition.ok_or_else(|| format!("the reference `{reference}`"))?;
        // The rule is known before its body is built, so that a recursive definition finds itself.
        let rule = format!("d{}", schema.name());
        let reference = reference.to_owned();
        let new = Definition { reference, types, rule: rule.clone(), same_as: None };
        schema.definitions.push(new);
        let value = self.schema(schema, definition, types)?;
        if schema.leads_to(&value, &rule) {
            let reference = &schema.definitions[place].reference;
            return Err(format!("the reference `{reference}`, which refers only to itself,"));
        }
        schema.definitions[place].same_as = Some(value.clone());
        self.rule(&rule, &value);
        Ok(rule)
    }

    /// The rules for values of each type, from the keywords.
    fn by_types(
        &mut self,
        schema: &mut Schema<'_>,
        of: &Map<String, Value>,
        said: &[(&str, &Value)],
        types: Types,
    ) -> Rule {
        let is_enforced =
            |keyword: &str| ENFORCED.iter().any(|(_, enforced)| enforced.contains(&keyword));
        if let Some((keyword, _)) = said.iter().find(|(keyword, _)| !is_enforced(keyword)) {
            return Err(format!("`{keyword}`"));
        }
        let mut all = Vec::new();
        if types.have(Types::OBJECT) {
            all.push(self.object(schema, of)?);
        }
        if types.have(Types::ARRAY) {
            all.push(self.array(schema, of)?);
        }
        if types.have(Types::STRING) {
            all.push(self.string(schema, of)?);
        }
        all.extend(self.scalar(schema, of, types)?);
        Ok(self.one_of(schema, all))
    }

    fn object(&mut self, schema: &mut Schema<'_>, of: &Map<String, Value>) -> Rule {
        let mut properties = Property::named_by(of);
        let mut key = "KEY".to_owned();
        let mut others = undeclared(of);
        if let Some(names) = of.get("propertyNames").filter(|names| !allows_all_texts(names)) {
            if !properties.is_empty() {
                return Err("`propertyNames` beside `properties`".to_owned());
            }
            match literals(names) {
                Some(names) if names.is_empty() => return Ok(r#""{}""#.to_owned()),
                Some(names) => {
                    properties = among(names, of.get("additionalProperties"));
                    others = None;
                }
                None => key = self.key(schema, names)?,
            }
        }
        let declared = properties.iter().map(|property| property.name).collect::<Vec<_>>();
        // An object that declares no keys and says nothing of others is any object, like in the grammars of JSON.
        let is_unsaid = !of.contains_key("additionalProperties") && !of.contains_key("properties");
        if is_unsaid && declared.is_empty() {
            others = Some(&Value::Bool(true));
        }
        if others == Some(&Value::Bool(true)) && declared.is_empty() && key == "KEY" {
            return Ok("object".to_owned());
        }
        let other = match others {
            None => None,
            Some(others) => {
                if !declared.is_empty() {
                    let name = format!("KEY{}", schema.name());
                    self.rule(&name, &without_declared(&key, &declared));
                    key = name;
                }
                let value = self.schema(schema, others, Types::ALL);
                let value = value.map_err(|what| format!("{what} in `additionalProperties`"))?;
                Some(self.named(schema, &format!("{key} \":\" {value}")))
            }
        };
        // An optional property that allows no value can only be missing. A required one is refused below.
        properties.retain(|property| property.is_required || !allows_nothing(&property.schema));
        // The template writes members in this order.
        // Jinja's `dictsort` ignores case by default, and the model was trained on this order.
        properties.sort_by_key(|property| property.name.to_lowercase());
        let name = schema.name();
        for (place, property) in properties.iter().enumerate() {
            if !is_key(property.name) {
                return Err(format!("the name `{}`", property.name));
            }
            let value = self.schema(schema, &property.schema, Types::ALL);
            let value = value.map_err(|what| format!("{what} in `{}`", property.name))?;
            let key = self.literal(&format!("{}:", property.name));
            self.rule(&format!("p{name}_{place}"), &format!("{key} {value}"));
        }
        let are_required = properties.iter().map(|property| property.is_required);
        let members = self.members(&name, ",", are_required, other.as_deref());
        Ok(self.named(schema, &format!(r#""{{" {members} "}}""#)))
    }

    /// The terminal of keys that match this schema.
    fn key(&mut self, schema: &mut Schema<'_>, names: &Value) -> Rule {
        let refused = || "`propertyNames`".to_owned();
        let object = names.as_object().ok_or_else(refused)?;
        let is_known = |keyword: &String| {
            [&ANNOTATIONS[..], &TEXT_KEYWORDS].iter().any(|known| known.contains(&keyword.as_str()))
        };
        if !object.keys().all(is_known) || !Types::of(names, schema.root).have_string() {
            return Err(refused());
        }
        let name = format!("KEY{}", schema.name());
        let said = expressions(object)?.into_iter();
        let said = said.map(|said| format!(" & /{}/", escape_slashes(&said)));
        self.rule(&name, &format!("KEY{}", said.collect::<String>()));
        Ok(name)
    }

    fn array(&mut self, schema: &mut Schema<'_>, of: &Map<String, Value>) -> Rule {
        let (least, most) = (count(of, "minItems")?.unwrap_or(0), count(of, "maxItems")?);
        if most.is_some_and(|most| most < least) {
            return Err(NO_VALUE.to_owned());
        }
        if most == Some(0) {
            return Ok(r#""[]""#.to_owned());
        }
        let item = match of.get("items") {
            None => "any".to_owned(),
            Some(items) => self.schema(schema, items, Types::ALL)?,
        };
        let most = most.map(|most| (most - 1).to_string());
        let more = match most.as_deref() {
            Some("0") => String::new(),
            most => {
                // The first item is outside of the repetition, because the others have a comma before them.
                let least = least.saturating_sub(1);
                format!(r#"("," {item}){{{least},{}}}"#, most.unwrap_or_default())
            }
        };
        let optional = if least == 0 { "?" } else { "" };
        Ok(self.named(schema, &format!(r#""[" ({item} {more}){optional} "]""#)))
    }

    fn string(&mut self, schema: &mut Schema<'_>, of: &Map<String, Value>) -> Rule {
        let (least, most) = (count(of, "minLength")?.unwrap_or(0), count(of, "maxLength")?);
        if most.is_some_and(|most| most < least) {
            return Err(NO_VALUE.to_owned());
        }
        let expressions = expressions(of)?;
        if expressions.is_empty() {
            return Ok("string".to_owned());
        }
        let name = schema.name();
        let terminal = format!("RAW{name}");
        let said = expressions.iter().map(|said| format!("/{}/ & ", escape_slashes(said)));
        self.rule(&terminal, &format!("{}{}", said.collect::<String>(), raw(schema.marks)));
        let may_be_empty = match_empty(&expressions);
        let rest = self.quoted_rest(&format!("r{name}"), schema.marks, &terminal, may_be_empty);
        Ok(self.named(schema, &format!("{} {rest}", self.literal(schema.marks.quote))))
    }

    /// A string without its first mark, from the terminal of its text. The result is a rule or terminal of about this name.
    fn quoted_rest(
        &mut self,
        name: &str,
        marks: &Marks,
        terminal: &str,
        may_be_empty: bool,
    ) -> String {
        match self.special(marks.quote) {
            // Terminals cannot be empty, so the terminal is optional if the text may be empty.
            Some(id) => {
                let optional = if may_be_empty { "?" } else { "" };
                self.rule(name, &format!("{terminal}{optional} <[{id}]>"));
                name.to_owned()
            }
            // A greedy terminal, not a lazy one: the text may contain the mark.
            None => {
                let name = format!("{}_END", name.to_uppercase());
                self.rule(&name, &format!("{terminal} {}", Value::from(marks.quote)));
                name
            }
        }
    }

    /// Values that are neither containers nor strings, if the types allow them.
    fn scalar(
        &mut self,
        schema: &mut Schema<'_>,
        of: &Map<String, Value>,
        types: Types,
    ) -> Result<Option<String>, String> {
        // The JSON grammar must not allow strings and containers: their notation differs from JSON, and other rules
        // cover them.
        let any = [json!("null"), json!("boolean"), json!("number")];
        let names = match of.get("type") {
            Some(Value::Array(names)) => names.as_slice(),
            Some(name) => std::slice::from_ref(name),
            None => &any,
        };
        let of_name = |name: &&Value| match name.as_str() {
            Some("null") => types.have(Types::NULL),
            Some("boolean") => types.have(Types::BOOLEAN),
            Some("number" | "integer") => types.have(Types::NUMBER),
            _ => false,
        };
        let names = names.iter().filter(of_name).cloned().collect::<Vec<_>>();
        if names.is_empty() {
            return Ok(None);
        }
        let mut json = Map::from_iter([("type".to_owned(), Value::from(names))]);
        let said = of.iter().filter(|(keyword, _)| NUMERIC.contains(&keyword.as_str()));
        json.extend(said.map(|(keyword, value)| (keyword.clone(), value.clone())));
        let json = Constraint::JsonSchema(Value::Object(json)).as_lark_value(self.tokenizer);
        Ok(Some(self.named(schema, &json.map_err(|error| error.to_string())?)))
    }
}

/// A text in which the parser finds no end of the string: a mark is part of it unless something may follow a string there.
fn raw(marks: &Marks) -> String {
    let (quote, close) = (escaped(marks.quote), escaped(marks.close));
    let space = r"[ \t\r\n]*";
    // A key without its comma. The text itself may end before its value.
    let value = format!(r#"({quote}|[\-0-9{{\["']|true|false|True|False|null|None)(.|\n)*"#);
    let member = format!(r"[^:=,{{}}\[\]<\n]*[:=]{space}({value})?");
    let behind = format!(r"([,}}\]](.|\n)*|{close}(.|\n)*|{member})");
    format!(r"/(.|\n)*/ & ~/(.|\n)*{quote}{space}{behind}/")
}

/// Whether the schema's own keywords allow any text.
fn allows_all_texts(schema: &Value) -> bool {
    match schema {
        Value::Bool(all) => *all,
        Value::Object(schema) => {
            let is_text = schema.get("type").is_none_or(|names| *names == "string");
            is_text && schema.keys().all(|keyword| ANNOTATIONS.contains(&keyword.as_str()))
        }
        _ => false,
    }
}

/// The texts of `const` or `enum`, if the schema has no other keywords.
fn literals(schema: &Value) -> Option<Vec<&str>> {
    let said = |(keyword, _): &(&String, &Value)| !ANNOTATIONS.contains(&keyword.as_str());
    let mut said = schema.as_object()?.iter().filter(said);
    let values = match (said.next()?, said.next()) {
        ((keyword, value), None) if keyword == "const" => std::slice::from_ref(value),
        ((keyword, Value::Array(values)), None) if keyword == "enum" => values.as_slice(),
        _ => return None,
    };
    Some(values.iter().filter_map(Value::as_str).collect())
}

/// Optional properties with these names.
fn among<'a>(mut names: Vec<&'a str>, schema: Option<&Value>) -> Vec<Property<'a>> {
    names.sort_unstable();
    names.dedup();
    let schema = schema.unwrap_or(&Value::Bool(true));
    let property = |name| Property { name, schema: schema.clone(), is_required: false };
    names.into_iter().map(property).collect()
}

/// Whether a number has no fraction, like `2` and `2.0`.
fn is_whole(number: &Value) -> bool {
    number.as_f64().is_some_and(|number| number.fract() == 0.0)
}

/// The count of a keyword, which may be written `2.0`.
fn count(of: &Map<String, Value>, keyword: &str) -> Result<Option<u64>, String> {
    let Some(value) = of.get(keyword) else { return Ok(None) };
    let spelled = value.as_f64().filter(|number| number.fract() == 0.0 && *number >= 0.0);
    let count = value.as_u64().or_else(|| spelled.map(|number| number as u64));
    count.map(Some).ok_or_else(|| format!("`{keyword}`"))
}
