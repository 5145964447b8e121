//! A check that modules import in one direction: no circle in any package.
//!
//! Computed from the sources: every path that begins with `crate`, `super` or `self`, in a `use`,
//! in code or inside a macro, is followed through re-exports to the module that defines what it
//! names. Modules are compared with their siblings, whatever lies below them counted as theirs;
//! what a parent defines itself counts as a sibling of its children. Code for tests only is left
//! out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens as _;
use syn::{Attribute, Item, UseTree, Visibility};

use crate::process::Outcome;
use crate::tree::read;
use crate::workspace::Workspace;

/// A module by its names from the root of its package down; the root itself has none.
type Module = Vec<String>;

/// The name under which a parent's own items stand among its children.
const OWN: &str = "(own items)";

pub(crate) fn check(workspace: &Workspace) -> Outcome {
    let mut circles = Vec::new();
    for package in &workspace.packages {
        for root in &package.roots {
            let found = Graph::read(root)?.cycles();
            circles.extend(found.iter().map(|circle| format!("{}: {circle}", package.name)));
        }
    }
    if circles.is_empty() {
        return Ok(());
    }
    Err(format!("modules that import each other in a circle:\n  {}", circles.join("\n  ")))
}

/// Who names whose items, in one package.
#[derive(Default)]
struct Graph {
    modules: BTreeMap<Module, Source>,
}

/// What one file says.
#[derive(Default)]
struct Source {
    /// What it passes on under another path: the name, and where it comes from.
    passed_on: Vec<(String, Vec<String>)>,
    /// Every path it names, from the root, with the modules inside it in mind.
    named: BTreeSet<Vec<String>>,
}

impl Graph {
    fn read(root: &Path) -> Outcome<Self> {
        let mut graph = Self::default();
        graph.add_file(root, &Vec::new())?;
        Ok(graph)
    }

    /// Reads `file` as the module `module`, and the files of the modules that it declares.
    fn add_file(&mut self, file: &Path, module: &Module) -> Outcome {
        let text = read(file)?;
        let parsed = syn::parse_file(&text)
            .map_err(|error| format!("{} is not understood: {error}", file.display()))?;
        for (name, place) in self.add(module, parsed.items) {
            let child = [module.clone(), vec![name.clone()]].concat();
            let found = candidates(file, module.is_empty(), &name, place.as_deref());
            let Some(path) = found.iter().find(|path| path.is_file()) else {
                return Err(format!("{} declares `mod {name}`, which has no file", file.display()));
            };
            self.add_file(path, &child)?;
        }
        Ok(())
    }

    /// Takes in the items of `module`; returns the modules that stand in files of their own.
    fn add(&mut self, module: &Module, items: Vec<Item>) -> Vec<(String, Option<String>)> {
        let mut source = Source::default();
        let mut files = Vec::new();
        for item in items.into_iter().filter(|item| !is_test(attributes(item))) {
            match item {
                Item::Mod(inner) => {
                    let name = inner.ident.to_string();
                    match inner.content {
                        None => files.push((name, path_attribute(&inner.attrs))),
                        Some((_, items)) => {
                            self.add(&[module.clone(), vec![name]].concat(), items);
                        }
                    }
                }
                Item::Use(import) => {
                    let mut leaves = Vec::new();
                    flatten(&import.tree, &mut Vec::new(), &mut leaves);
                    for (path, name) in leaves {
                        let Some(path) = absolute(module, &path) else { continue };
                        if matches!(import.vis, Visibility::Inherited) {
                            source.named.insert(path.clone());
                        }
                        source.passed_on.push((name, path));
                    }
                }
                item => scan(module, item.into_token_stream(), &mut source.named),
            }
        }
        self.modules.insert(module.clone(), source);
        files
    }

    /// The module that defines what `path` names. Re-exports are followed; a circle of those ends
    /// the search.
    fn home(&self, path: &[String], depth: usize) -> Module {
        let mut module = Module::new();
        for (place, name) in path.iter().enumerate() {
            let below = [module.clone(), vec![name.clone()]].concat();
            if self.modules.contains_key(&below) {
                module = below;
                continue;
            }
            let passed_on = self.modules.get(&module).map_or(&[][..], |source| &source.passed_on);
            let from = passed_on.iter().find(|(known, _)| known == name);
            return match from {
                Some((_, origin)) if depth < 16 && origin != path => {
                    let rest = [origin, &path[place + 1..]].concat();
                    self.home(&rest, depth + 1)
                }
                _ => module,
            };
        }
        module
    }

    /// For each module with children, which child names items of which other.
    fn siblings(&self) -> BTreeMap<Module, BTreeMap<String, BTreeSet<String>>> {
        let mut levels: BTreeMap<Module, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
        for (module, source) in &self.modules {
            for path in &source.named {
                let home = self.home(path, 0);
                let shared = module.iter().zip(&home).take_while(|(a, b)| a == b).count();
                let own = || OWN.to_owned();
                let (from, to) = (module.get(shared), home.get(shared));
                if from != to {
                    let edges = levels.entry(module[..shared].to_vec()).or_default();
                    let to = to.cloned().unwrap_or_else(own);
                    edges.entry(from.cloned().unwrap_or_else(own)).or_default().insert(to);
                }
            }
        }
        levels
    }

    /// The circles, as texts: the parent and the members.
    fn cycles(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (parent, edges) in self.siblings() {
            for circle in circles(&edges) {
                let place = std::iter::once("crate").chain(parent.iter().map(String::as_str));
                let place = place.collect::<Vec<_>>().join("::");
                found.push(format!("in {place}: {}", circle.join(", ")));
            }
        }
        found
    }
}

/// Where the file of `mod name` may be, declared in `file`.
fn candidates(file: &Path, root: bool, name: &str, place: Option<&str>) -> Vec<PathBuf> {
    let dir = file.parent().unwrap_or(Path::new(""));
    if let Some(place) = place {
        return vec![dir.join(place)];
    }
    let is_mod = file.file_name().is_some_and(|name| name == "mod.rs");
    let dir = if root || is_mod { dir.to_owned() } else { file.with_extension("") };
    vec![dir.join(format!("{name}.rs")), dir.join(name).join("mod.rs")]
}

fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    let attribute = attributes.iter().find(|attribute| attribute.path().is_ident("path"))?;
    let text = attribute.meta.require_name_value().ok()?.value.to_token_stream().to_string();
    Some(text.trim_matches('"').to_owned())
}

/// Whether an item is compiled for tests only.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let text = attribute.meta.to_token_stream().to_string();
        let words = |c: char| !c.is_alphanumeric() && c != '_';
        attribute.path().is_ident("cfg")
            && text.split(words).any(|word| word == "test")
            && !text.split(words).any(|word| word == "not")
    })
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
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// The paths of a `use`, each with the name that it is known by afterwards.
fn flatten(tree: &UseTree, before: &mut Vec<String>, leaves: &mut Vec<(Vec<String>, String)>) {
    let leaf = |before: &[String], name: String, known: String| {
        let path = if name == "self" { before.to_vec() } else { [before, &[name][..]].concat() };
        (path, known)
    };
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            flatten(&path.tree, before, leaves);
            before.pop();
        }
        UseTree::Group(group) => {
            for tree in &group.items {
                flatten(tree, before, leaves);
            }
        }
        UseTree::Name(name) => {
            let last = before.last().cloned().unwrap_or_default();
            let text = name.ident.to_string();
            let known = if text == "self" { last } else { text.clone() };
            leaves.push(leaf(before, text, known));
        }
        UseTree::Rename(name) => {
            leaves.push(leaf(before, name.ident.to_string(), name.rename.to_string()));
        }
        UseTree::Glob(_) => leaves.push((before.clone(), "*".to_owned())),
    }
}

/// `path` from the root of the package, if it begins in this package.
fn absolute(module: &Module, path: &[String]) -> Option<Vec<String>> {
    let mut base = match path.first()?.as_str() {
        "crate" => return Some(path[1..].to_vec()),
        "self" => module.clone(),
        "super" => module[..module.len().checked_sub(1)?].to_vec(),
        // A child of this module, or another package: the former resolves, the latter stays here.
        _ => return Some([module.clone(), path.to_vec()].concat()),
    };
    let mut rest = &path[1..];
    while rest.first().is_some_and(|name| name == "super") {
        base.pop()?;
        rest = &rest[1..];
    }
    Some([base, rest.to_vec()].concat())
}

/// Finds the paths in code and macros that begin with `crate`, `super` or `self`.
fn scan(module: &Module, tokens: TokenStream, found: &mut BTreeSet<Vec<String>>) {
    let mut path: Vec<String> = Vec::new();
    let mut colons = 0;
    let flush = |path: &mut Vec<String>, found: &mut BTreeSet<Vec<String>>| {
        let ours = matches!(path.first().map(String::as_str), Some("crate" | "super" | "self"));
        if let (true, Some(path)) = (ours && path.len() > 1, absolute(module, path)) {
            found.insert(path);
        }
        path.clear();
    };
    for token in tokens {
        match token {
            TokenTree::Ident(name) => {
                if colons != 2 {
                    flush(&mut path, found);
                }
                path.push(name.to_string());
                colons = 0;
            }
            TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
            TokenTree::Group(group) => {
                flush(&mut path, found);
                colons = 0;
                scan(module, group.stream(), found);
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {
                flush(&mut path, found);
                colons = 0;
            }
        }
    }
    flush(&mut path, found);
}

/// The sets of nodes that reach each other, each sorted.
fn circles(edges: &BTreeMap<String, BTreeSet<String>>) -> Vec<Vec<String>> {
    let reach: BTreeMap<&String, BTreeSet<&String>> =
        edges.keys().map(|node| (node, reachable(edges, node))).collect();
    let mut found = BTreeSet::new();
    for (node, reached) in &reach {
        let circle: BTreeSet<&String> = reached
            .iter()
            .copied()
            .filter(|other| reach.get(other).is_some_and(|back| back.contains(node)))
            .collect();
        if circle.len() > 1 {
            found.insert(circle.into_iter().cloned().collect::<Vec<_>>());
        }
    }
    found.into_iter().collect()
}

fn reachable<'a>(
    edges: &'a BTreeMap<String, BTreeSet<String>>,
    from: &String,
) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&String> = edges.get(from).into_iter().flatten().collect();
    while let Some(node) = open.pop() {
        if reached.insert(node) {
            open.extend(edges.get(node).into_iter().flatten());
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(files: &[(&str, &str)]) -> Graph {
        let mut graph = Graph::default();
        for (module, text) in files {
            let module = module.split("::").filter(|name| !name.is_empty()).map(str::to_owned);
            let items = syn::parse_file(text).unwrap().items;
            graph.add(&module.collect(), items);
        }
        graph
    }

    #[test]
    fn two_modules_that_import_each_other_are_a_circle() {
        let graph = graph(&[
            ("", "mod a; mod b; mod c;"),
            ("a", "use crate::b::B; pub struct A;"),
            ("b", "pub struct B; fn f() { crate::c::g() }"),
            ("c", "pub fn g() { println!(\"{:?}\", super::a::A) }"),
        ]);
        assert_eq!(graph.cycles(), ["in crate: a, b, c"]);
    }

    #[test]
    fn a_re_export_leads_to_where_the_thing_is_defined() {
        let graph = graph(&[
            ("", "mod a; mod b; pub use a::A; pub use b::inner::B;"),
            ("a", "use crate::B; pub struct A;"),
            ("b", "pub mod inner;"),
            ("b::inner", "use crate::A as Other; pub struct B;"),
        ]);
        assert_eq!(graph.cycles(), ["in crate: a, b"]);
    }

    #[test]
    fn a_parent_that_uses_its_child_and_is_used_by_it_is_a_circle() {
        let up = ("a::b", "use super::A; pub fn f(_: A) {}");
        let both =
            graph(&[("", "mod a;"), ("a", "mod b; pub struct A; fn g() { self::b::f(A) }"), up]);
        assert_eq!(both.cycles(), ["in crate::a: (own items), b"]);
        // Passing a child's items on is no use of them.
        let one = graph(&[("", "mod a;"), ("a", "mod b; pub use b::f; pub struct A;"), up]);
        assert!(one.cycles().is_empty(), "{:?}", one.cycles());
    }

    #[test]
    fn what_only_tests_import_does_not_count() {
        let graph = graph(&[
            ("", "mod a; mod b;"),
            ("a", "use crate::b::B; pub struct A;"),
            ("b", "pub struct B; #[cfg(test)] mod tests { use crate::a::A; }"),
        ]);
        assert!(graph.cycles().is_empty(), "{:?}", graph.cycles());
    }
}
