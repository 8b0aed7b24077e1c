//! The names that serde writes: fields and variants of all types of a crate that can be serialized.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::TokenTree;
use syn::ext::IdentExt;
use syn::visit::Visit;
use syn::{Attribute, Fields, ItemEnum, ItemStruct, Meta};

use super::sources::Sources;

pub(super) fn collect(sources: &Sources) -> BTreeSet<String> {
    let mut found = Serialized::default();
    for (_, file) in &sources.files {
        found.visit_file(file);
    }
    found.0
}

/// The names found so far.
#[derive(Default)]
struct Serialized(BTreeSet<String>);

impl Serialized {
    fn fields(&mut self, fields: &Fields, rule: Option<&str>) {
        for field in fields {
            let serde = serde(&field.attrs);
            // Fields of tuples have no names of their own.
            let Some(name) = &field.ident else { continue };
            if !["skip", "flatten"].iter().any(|word| serde.words.contains(*word)) {
                self.0.insert(serde.name(&name.unraw().to_string(), rule));
            }
        }
    }
}

impl<'ast> Visit<'ast> for Serialized {
    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        if derives(&item.attrs, "Serialize") {
            self.fields(
                &item.fields,
                serde(&item.attrs).values.get("rename_all").map(String::as_str),
            );
        }
    }

    fn visit_item_enum(&mut self, item: &'ast ItemEnum) {
        if !derives(&item.attrs, "Serialize") {
            return;
        }
        let of_enum = serde(&item.attrs);
        let is_untagged = of_enum.words.contains("untagged");
        self.0.extend(of_enum.values.get("tag").cloned());
        for variant in &item.variants {
            if !is_untagged {
                let rule = of_enum.values.get("rename_all").map(String::as_str);
                self.0.insert(serde(&variant.attrs).name(&variant.ident.to_string(), rule));
            }
            self.fields(&variant.fields, None);
        }
    }
}

fn derives(attributes: &[Attribute], name: &str) -> bool {
    let lists = attributes.iter().filter_map(|attribute| attribute.meta.require_list().ok());
    lists.filter(|list| list.path.is_ident("derive")).any(|list| {
        let mut tokens = list.tokens.clone().into_iter();
        tokens.any(|token| matches!(token, TokenTree::Ident(found) if found == name))
    })
}

/// The arguments of `#[serde(..)]` attributes.
struct Serde {
    words: BTreeSet<String>,
    values: BTreeMap<String, String>,
}

fn serde(attributes: &[Attribute]) -> Serde {
    let mut said = Serde { words: BTreeSet::new(), values: BTreeMap::new() };
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("serde")) {
        let Meta::List(list) = &attribute.meta else { continue };
        for part in list.tokens.to_string().split(',') {
            match part.split_once('=') {
                Some((name, text)) => {
                    said.values.insert(name.trim().into(), text.trim().trim_matches('"').into());
                }
                None => {
                    said.words.insert(part.trim().into());
                }
            }
        }
    }
    said
}

impl Serde {
    /// The serialized name of a field or variant; `rule` is the `rename_all` of its type.
    fn name(&self, name: &str, rule: Option<&str>) -> String {
        if let Some(name) = self.values.get("rename") {
            return name.clone();
        }
        let is_variant = name.starts_with(|c: char| c.is_uppercase());
        match rule {
            Some("lowercase") => name.to_lowercase(),
            Some("snake_case") if is_variant => snake_case(name),
            Some("kebab-case") if is_variant => snake_case(name).replace('_', "-"),
            Some("SCREAMING_SNAKE_CASE") if is_variant => snake_case(name).to_uppercase(),
            None | Some("snake_case") => name.to_owned(),
            Some(rule) => {
                panic!("teach this test serde's `rename_all = \"{rule}\"`, which {name} has")
            }
        }
    }
}

fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for (i, c) in name.chars().enumerate() {
        if c.is_uppercase() && i > 0 {
            snake.push('_');
        }
        snake.extend(c.to_lowercase());
    }
    snake
}
