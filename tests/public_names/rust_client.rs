//! Public items of the Rust client. The lint `unreachable_pub` ensures that each `pub` item is one.

use std::path::Path;

use proc_macro2::{Ident, TokenStream, TokenTree};
use syn::{Fields, FnArg, ImplItem, Item, Pat, Signature, Type, UseTree, Visibility};

use super::{Names, sources};

pub(super) fn collect(names: &mut Names) {
    let sources = sources::of("client");
    let root = sources.files.iter().find(|(path, _)| path == Path::new("lib.rs"));
    let (_, root) = root.expect("the client is a library");
    let modules: Vec<String> = root
        .items
        .iter()
        .filter_map(|item| match item {
            Item::Mod(module) if is_public(&module.vis) => Some(module.ident.to_string()),
            _ => None,
        })
        .collect();
    let items = || sources.files.iter().flat_map(|(_, file)| &file.items);
    macros(items(), names);
    for (path, file) in &sources.files {
        // Other modules are private, so moving code between them changes no name.
        let module = path.with_extension("").components().next().unwrap().as_os_str().to_owned();
        let module = module.to_str().unwrap();
        let prefix = if modules.iter().any(|public| public == module) {
            format!("{module}::")
        } else {
            String::new()
        };
        let is_root = path == Path::new("lib.rs");
        for item in &file.items {
            collect_item(item, &prefix, is_root, names);
        }
    }
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn collect_item(item: &Item, prefix: &str, is_root: bool, names: &mut Names) {
    match item {
        Item::Use(item) if is_root && is_public(&item.vis) => exported(&item.tree, names),
        Item::Const(item) if is_public(&item.vis) => names.add(format!("{prefix}{}", item.ident)),
        Item::Type(item) if is_public(&item.vis) => names.add(format!("{prefix}{}", item.ident)),
        Item::Trait(item) if is_public(&item.vis) => names.add(format!("{prefix}{}", item.ident)),
        Item::Fn(item) if is_public(&item.vis) => function(prefix, &item.sig, names),
        Item::Struct(item) if is_public(&item.vis) => {
            let owner = format!("{prefix}{}", item.ident);
            names.add(owner.clone());
            fields(&owner, &item.fields, is_public, names);
        }
        Item::Enum(item) if is_public(&item.vis) => {
            let owner = format!("{prefix}{}", item.ident);
            names.add(owner.clone());
            for variant in &item.variants {
                let owner = format!("{owner}::{}", variant.ident);
                names.add(owner.clone());
                fields(&owner, &variant.fields, |_| true, names);
            }
        }
        Item::Impl(item) if item.trait_.is_none() => {
            let Type::Path(owner) = &*item.self_ty else { return };
            let owner = &owner.path.segments.last().unwrap().ident;
            for item in &item.items {
                match item {
                    ImplItem::Fn(item) if is_public(&item.vis) => {
                        function(&format!("{prefix}{owner}::"), &item.sig, names);
                    }
                    ImplItem::Const(item) if is_public(&item.vis) => {
                        names.add(format!("{prefix}{owner}::{}", item.ident));
                    }
                    _ => {}
                }
            }
        }
        _ => {}
    }
}

fn exported(tree: &UseTree, names: &mut Names) {
    match tree {
        UseTree::Path(path) => exported(&path.tree, names),
        UseTree::Group(group) => group.items.iter().for_each(|tree| exported(tree, names)),
        UseTree::Name(name) => names.add(format!("exported {}", name.ident)),
        UseTree::Rename(name) => names.add(format!("exported {}", name.rename)),
        UseTree::Glob(_) => panic!("the client exports each name by itself"),
    }
}

fn function(owner: &str, signature: &Signature, names: &mut Names) {
    let arguments: Vec<String> = signature
        .inputs
        .iter()
        .map(|argument| match argument {
            FnArg::Receiver(_) => "self".to_owned(),
            FnArg::Typed(typed) => match &*typed.pat {
                Pat::Ident(name) => name.ident.to_string(),
                _ => "_".to_owned(),
            },
        })
        .collect();
    names.add(format!("{owner}{}({})", signature.ident, arguments.join(", ")));
}

fn fields(owner: &str, fields: &Fields, is_seen: impl Fn(&Visibility) -> bool, names: &mut Names) {
    for (i, field) in fields.iter().enumerate().filter(|(_, field)| is_seen(&field.vis)) {
        let name = field.ident.as_ref().map_or_else(|| i.to_string(), ToString::to_string);
        names.add(format!("{owner}.{name}"));
    }
}

/// Lists the public functions, setters and types that the client's own macros make.
fn macros<'a>(items: impl Iterator<Item = &'a Item> + Clone, names: &mut Names) {
    let macros = items.filter_map(|item| match item {
        Item::Macro(item) => Some(item),
        _ => None,
    });
    let mut public = Vec::new();
    for item in macros.clone() {
        if let Some(name) = &item.ident
            // A macro that defines nothing public makes nothing that users could name.
            && item.mac.tokens.to_string().contains("pub ")
        {
            public.push(name);
            within_macro(name, item.mac.tokens.clone(), Side::Definition, names);
        }
    }
    for item in macros.filter(|item| item.ident.is_none()) {
        if let Some(name) = item.mac.path.get_ident()
            && public.contains(&name)
        {
            within_macro(name, item.mac.tokens.clone(), Side::Use, names);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Definition,
    Use,
}

/// Reads the tokens of a macro. Its definition has setters `name => ..;` or `name: type => ..;`, and `pub fn name`.
/// Its use has plain names, and variants `Name = "text"`.
fn within_macro(name: &Ident, tokens: TokenStream, side: Side, names: &mut Names) {
    let tokens = without_attributes(tokens);
    for part in tokens.split(|token| is_punct(token, ';') || is_punct(token, ',')) {
        match part {
            [TokenTree::Ident(word)] if side == Side::Use => names.add(format!("{name}! {word}")),
            [TokenTree::Ident(word), sign, TokenTree::Literal(text)] if is_punct(sign, '=') => {
                names.add(format!("{name}! {word} {text}"));
            }
            [TokenTree::Ident(word), rest @ ..] if has_arrow(rest) => {
                names.add(format!("{name}! {word}"));
            }
            _ => {}
        }
    }
    for three in tokens.windows(3) {
        if let [TokenTree::Ident(public), TokenTree::Ident(function), TokenTree::Ident(word)] =
            three
            && public == "pub"
            && function == "fn"
        {
            names.add(format!("{name}! fn {word}"));
        }
    }
    for token in tokens {
        if let TokenTree::Group(group) = token {
            within_macro(name, group.stream(), side, names);
        }
    }
}

fn is_punct(token: &TokenTree, wanted: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == wanted)
}

/// The tokens without attributes and doc comments.
fn without_attributes(tokens: TokenStream) -> Vec<TokenTree> {
    let mut kept: Vec<TokenTree> = Vec::new();
    for token in tokens {
        let is_attribute = matches!(token, TokenTree::Group(_))
            && kept.last().is_some_and(|before| is_punct(before, '#'));
        if is_attribute {
            kept.pop();
        } else {
            kept.push(token);
        }
    }
    kept
}

fn has_arrow(tokens: &[TokenTree]) -> bool {
    tokens.windows(2).any(|two| is_punct(&two[0], '=') && is_punct(&two[1], '>'))
}
