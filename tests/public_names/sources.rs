//! Parses the sources of a whole crate without its tests. A file's place in the crate does not matter.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{
    Attribute, Expr, ExprCall, ExprLit, ExprMethodCall, ImplItem, Item, ItemUse, Lit, LitStr,
    Macro, Meta, Token, Type, UseTree,
};

/// Crates that are not part of the product.
const NOT_OF_THE_PRODUCT: [&str; 3] = ["fuzz", "testing", "xtask"];

/// A crate's files.
pub(super) struct Sources {
    /// By their paths within the crate's `src`.
    pub(super) files: Vec<(PathBuf, syn::File)>,
}

pub(super) fn folder(crate_name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates").join(crate_name)
}

/// The folders of all other crates.
pub(super) fn product_crates() -> Vec<String> {
    let entries = std::fs::read_dir(folder("")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| !NOT_OF_THE_PRODUCT.contains(&name.as_str())).collect()
}

/// The sources of the crate in this folder.
pub(super) fn of(crate_name: &str) -> Sources {
    let sources = containing(crate_name, &[""]);
    assert!(!sources.files.is_empty(), "the crate {crate_name} has no sources");
    sources
}

/// The files of a crate that contain one of these words; others are not parsed, which saves most of the time.
pub(super) fn containing(crate_name: &str, words: &[&str]) -> Sources {
    let root = folder(crate_name).join("src");
    let mut files = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let is_test = ["tests", "tests.rs"].iter().any(|name| path.ends_with(name));
            if path.is_dir() && !is_test {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") && !is_test {
                let text = std::fs::read_to_string(&path).unwrap();
                if !words.iter().any(|word| text.contains(word)) {
                    continue;
                }
                let mut file = syn::parse_file(&text)
                    .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                drop_tests(&mut file.items);
                files.push((path.strip_prefix(&root).unwrap().to_owned(), file));
            }
        }
    }
    Sources { files }
}

/// Drops items that are built for tests alone.
fn drop_tests(items: &mut Vec<Item>) {
    items.retain(|item| !attributes(item).iter().any(is_for_tests));
    for item in items {
        if let Item::Mod(module) = item
            && let Some((_, items)) = &mut module.content
        {
            drop_tests(items);
        }
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn is_for_tests(attribute: &Attribute) -> bool {
    attribute.path().is_ident("test")
        || attribute
            .meta
            .require_list()
            .is_ok_and(|list| list.path.is_ident("cfg") && list.tokens.to_string() == "test")
}

impl Sources {
    /// The string literals of all files.
    pub(super) fn literals(&self) -> Literals {
        let mut literals = Literals::default();
        for (_, file) in &self.files {
            literals.visit_file(file);
        }
        literals
    }

    /// The string literals of one method.
    pub(super) fn literals_of_method(&self, owner: &str, method: &str) -> Literals {
        let mut literals = Literals::default();
        for item in self.files.iter().flat_map(|(_, file)| &file.items) {
            let Item::Impl(item) = item else { continue };
            let is_owner =
                matches!(&*item.self_ty, Type::Path(known) if known.path.is_ident(owner));
            for member in item.items.iter().filter(|_| is_owner) {
                if let ImplItem::Fn(member) = member
                    && member.sig.ident == method
                {
                    literals.visit_impl_item_fn(member);
                }
            }
        }
        assert!(
            !literals.all.is_empty(),
            "{owner}::{method} has no string literal: was it renamed?"
        );
        literals
    }
}

/// String literals in code, by their context.
#[derive(Default)]
pub(super) struct Literals {
    /// All literals, including those in macros. Comments do not count.
    pub(super) all: BTreeSet<String>,
    /// Keys of the objects that `json!` makes.
    pub(super) json_keys: BTreeSet<String>,
    /// Headers whose constant in `http::header` is used.
    pub(super) headers: BTreeSet<String>,
    /// `name = "value"` within attributes.
    attributes: BTreeSet<(String, String)>,
    /// Called functions and methods, with their literal arguments.
    arguments: BTreeSet<(String, String)>,
}

impl Literals {
    /// The values of an attribute's argument, such as `alias = "value"`.
    pub(super) fn attribute_values(&self, name: &str) -> impl Iterator<Item = &str> {
        named(&self.attributes, name)
    }

    /// The literal arguments of calls of this function or method.
    pub(super) fn arguments_of(&self, name: &str) -> impl Iterator<Item = &str> {
        named(&self.arguments, name)
    }

    fn call(&mut self, name: String, arguments: &Punctuated<Expr, Token![,]>) {
        for argument in arguments {
            if let Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) = argument {
                self.arguments.insert((name.clone(), text.value()));
            }
        }
    }

    fn tokens(&mut self, tokens: TokenStream, is_json: bool) {
        let mut tokens = tokens.into_iter().peekable();
        while let Some(token) = tokens.next() {
            match token {
                TokenTree::Group(group) => self.tokens(group.stream(), is_json),
                // A comment within a macro.
                TokenTree::Punct(punct) if punct.as_char() == '#' => {
                    tokens.next_if(|next| matches!(next, TokenTree::Group(_)));
                }
                TokenTree::Literal(literal) => {
                    let Ok(Lit::Str(text)) = syn::parse_str(&literal.to_string()) else { continue };
                    let is_key =
                        matches!(tokens.peek(), Some(TokenTree::Punct(p)) if p.as_char() == ':');
                    if is_json && is_key {
                        self.json_keys.insert(text.value());
                    }
                    self.all.insert(text.value());
                }
                _ => {}
            }
        }
    }

    fn used(&mut self, tree: &UseTree, is_header: bool) {
        match tree {
            UseTree::Path(path) => self.used(&path.tree, path.ident == "header"),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.used(tree, is_header)),
            UseTree::Name(name) if is_header => self.header(&name.ident.to_string()),
            _ => {}
        }
    }

    fn header(&mut self, constant: &str) {
        if constant.chars().all(|c| c.is_ascii_uppercase() || c == '_') {
            self.headers.insert(constant.to_lowercase().replace('_', "-"));
        }
    }
}

fn named<'a>(pairs: &'a BTreeSet<(String, String)>, name: &str) -> impl Iterator<Item = &'a str> {
    pairs.iter().filter(move |(known, _)| known == name).map(|(_, text)| text.as_str())
}

impl<'ast> Visit<'ast> for Literals {
    fn visit_lit_str(&mut self, text: &'ast LitStr) {
        self.all.insert(text.value());
    }

    fn visit_macro(&mut self, found: &'ast Macro) {
        self.tokens(found.tokens.clone(), found.path.is_ident("json"));
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        let Meta::List(list) = &attribute.meta else { return };
        let tokens: Vec<TokenTree> = list.tokens.clone().into_iter().collect();
        for three in tokens.windows(3) {
            if let [TokenTree::Ident(name), TokenTree::Punct(_), TokenTree::Literal(text)] = three
                && let Ok(Lit::Str(text)) = syn::parse_str(&text.to_string())
            {
                self.attributes.insert((name.to_string(), text.value()));
            }
            // The three are the name, `=`, and the value.
        }
    }

    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        if let Expr::Path(function) = &*call.func
            && let Some(last) = function.path.segments.last()
        {
            self.call(last.ident.to_string(), &call.args);
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        self.call(call.method.to_string(), &call.args);
        visit::visit_expr_method_call(self, call);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let mut last = path.segments.iter().rev();
        if let (Some(constant), Some(module)) = (last.next(), last.next())
            && module.ident == "header"
        {
            self.header(&constant.ident.to_string());
        }
        visit::visit_path(self, path);
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.used(&item.tree, false);
    }
}
