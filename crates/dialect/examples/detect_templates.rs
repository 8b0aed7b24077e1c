//! Prints the dialect of each chat template of a folder: `detect_templates FOLDER`, with files NAME.jinja, which
//! `scripts/compare_templates.py --templates` also uses.

use std::io::Write;

use candlepower_dialect::{Dialect, PastCalls, writes_tools};
use candlepower_tokenizer::{ChatTemplate, TemplateSources};

const TOKENIZER_CONFIG: &[u8] = br#"{"bos_token": "<s>", "eos_token": "</s>"}"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("which folder?")?;
    let entries = std::fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    let mut paths = entries.iter().map(std::fs::DirEntry::path).collect::<Vec<_>>();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "jinja"));
    paths.sort();
    let mut output = std::io::stdout().lock();
    writeln!(
        output,
        "{:50} {:12} {:12} {:5}  past calls",
        "template", "calls", "reasoning", "tools"
    )?;
    for path in paths {
        let source = std::fs::read_to_string(&path)?;
        let template = ChatTemplate::from_sources(&TemplateSources {
            chat_template_jinja: Some(&source),
            tokenizer_config: Some(TOKENIZER_CONFIG),
            ..TemplateSources::default()
        })?;
        let template = template.ok_or("no template")?;
        let Dialect { tools, reasoning } = Dialect::detect(&template);
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let tools = tools.map_or("-".to_owned(), |format| format!("{format:?}"));
        let reasoning = reasoning.map_or("-".to_owned(), |format| format!("{format:?}"));
        let (told, past) = (writes_tools(&template), PastCalls::detect(&template));
        writeln!(output, "{name:50} {tools:12} {reasoning:12} {told:5}  {past:?}")?;
    }
    Ok(())
}
