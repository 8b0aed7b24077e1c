//! Valid and invalid tools and tool choices.

use super::*;

const WEATHER: &str = r#"{"type": "function", "function": {"name": "weather", "description": "d", "strict": true,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}, "x": 1}}"#;

fn take(body: &str) -> Result<Option<ToolOptions>, FieldError> {
    let mut fields = Fields::parse(body.as_bytes()).unwrap();
    let options = ToolOptions::take(&mut fields)?;
    fields.finish().map(|_| options)
}

fn refused(body: &str) -> String {
    take(body).unwrap_err().param.unwrap()
}

#[test]
fn tools_and_choices_are_read() {
    let options = take(&format!(r#"{{"tools": [{WEATHER}]}}"#)).unwrap().unwrap();
    assert_eq!((&options.choice, options.parallel), (&ToolChoice::Auto, true));
    let tool = &options.tools[0];
    assert_eq!((tool.name.as_str(), tool.strict), ("weather", true));
    assert_eq!(tool.parameters.as_ref().unwrap()["type"], "object");
    assert_eq!(tool.definition["function"]["x"], 1);
    for (choice, expected) in [
        (r#""none""#, ToolChoice::None),
        (r#""required""#, ToolChoice::Required),
        (
            r#"{"type": "function", "function": {"name": "weather"}}"#,
            ToolChoice::Function("weather".into()),
        ),
        (
            r#"{"type": "allowed_tools", "allowed_tools": {"mode": "required",
                "tools": [{"type": "function", "function": {"name": "weather"}}]}}"#,
            ToolChoice::Allowed(AllowedTools {
                mode: AllowedMode::Required,
                names: vec!["weather".into()],
            }),
        ),
    ] {
        let body = format!(
            r#"{{"tools": [{WEATHER}], "tool_choice": {choice}, "parallel_tool_calls": false}}"#
        );
        let options = take(&body).unwrap().unwrap();
        let written = serde_json::to_value(&options.choice).unwrap();
        assert_eq!(written, serde_json::from_str::<Value>(choice).unwrap());
        assert_eq!((options.choice, options.parallel), (expected, false));
    }
    assert_eq!(take(r#"{"tool_choice": "none", "parallel_tool_calls": true}"#).unwrap(), None);
    take(r#"{"tools": [{"type": "function", "function": {"name": "f", "parameters": null, "strict": null}}]}"#).unwrap();
}

#[test]
fn what_is_no_function_is_left_out_and_told() {
    let given = |more: &str| {
        let body = format!(
            r#"{{"tools": [{{"type": "web_search"}}, {WEATHER}, {{"type": "custom", "custom": {{"name": "x"}}}}]{more}}}"#
        );
        let mut fields = Fields::parse(body.as_bytes()).unwrap();
        let options = ToolOptions::take(&mut fields).unwrap().unwrap();
        (options, fields.finish().unwrap())
    };
    let (options, not_held) = given("");
    assert_eq!((options.tools.len(), &*options.tools[0].path), (1, "tools[1]"));
    assert_eq!(not_held.line(), "tools[0] (web_search), tools[2] (custom)");
    assert_eq!(given(r#", "tool_choice": "required""#).0.choice, ToolChoice::Required);
    let none = |choice: &str| {
        take(&format!(r#"{{"tools": [{{"type": "web_search"}}], "tool_choice": "{choice}"}}"#))
    };
    assert_eq!((none("auto").unwrap(), none("none").unwrap()), (None, None));
    let error = none("required").unwrap_err();
    assert_eq!(error.param.as_deref(), Some("tool_choice"));
    assert!(error.message.contains("web_search"), "{}", error.message);
    let choice = r#"{"type": "function", "function": {"name": "web_search"}}"#;
    let named = refused(&format!(
        r#"{{"tools": [{WEATHER}, {{"type": "web_search"}}], "tool_choice": {choice}}}"#
    ));
    assert_eq!(named, "tool_choice.function.name");
    assert_eq!(take(r#"{"tools": []}"#).unwrap(), None);
}

#[test]
fn what_is_wrong_is_named() {
    let tool = |function: &str| {
        format!(r#"{{"tools": [{{"type": "function", "function": {function}}}]}}"#)
    };
    assert_eq!(refused(r#"{"tools": {}}"#), "tools");
    assert_eq!(
        refused(r#"{"tools": [{"type": "fonction", "function": {"name": "f"}}]}"#),
        "tools[0]"
    );
    assert_eq!(refused(r#"{"tools": [{"function": {"name": "f"}}]}"#), "tools[0]");
    assert_eq!(refused(r#"{"tools": [{"type": "function"}]}"#), "tools[0]");
    assert_eq!(refused(&tool(r#"{"name": "a b"}"#)), "tools[0]");
    assert_eq!(refused(&tool(r#"{"description": "d"}"#)), "tools[0]");
    assert_eq!(refused(&tool(r#"{"name": "f", "parameters": {"type": "array"}}"#)), "tools[0]");
    assert_eq!(refused(&tool(r#"{"name": "f", "strict": 1}"#)), "tools[0]");
    assert_eq!(
        refused(&format!(r#"{{"tools": [{WEATHER}, {WEATHER}]}}"#)),
        "tools[1].function.name"
    );
    assert_eq!(refused(r#"{"tool_choice": "auto"}"#), "tool_choice");
    let chosen =
        |choice: &str| refused(&format!(r#"{{"tools": [{WEATHER}], "tool_choice": {choice}}}"#));
    assert_eq!(chosen(r#""any""#), "tool_choice");
    assert_eq!(chosen(r#"{"type": "allowed_tools"}"#), "tool_choice");
    let allowed = |tools: &str| {
        chosen(&format!(
            r#"{{"type": "allowed_tools", "allowed_tools": {{"mode": "auto", "tools": [{tools}]}}}}"#
        ))
    };
    assert_eq!(allowed(""), "tool_choice");
    assert_eq!(allowed(r#"{"type": "web_search"}"#), "tool_choice");
    assert_eq!(
        allowed(r#"{"type": "function", "function": {"name": "g"}}"#),
        "tool_choice.allowed_tools.tools"
    );
    assert_eq!(
        chosen(r#"{"type": "function", "function": {"name": "g"}}"#),
        "tool_choice.function.name"
    );
    assert_eq!(refused(r#"{"functions": []}"#), "functions");
    assert_eq!(refused(r#"{"function_call": "auto"}"#), "function_call");
}
