//! Files in `src` import only downwards and never in a cycle, and `index.rs` lists every public method.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// From the top down: a file imports only from its own level and the levels below.
const LEVELS: &[&[&str]] = &[
    &["lib"],
    &["inspect"],
    &["lookup", "store"],
    &["evict"],
    &["index"],
    // Parts of `index`, though they belong to stores.
    &["store::in_flight", "store::request"],
    &["lease"],
    &["trees"],
    &["forest"],
    &["order"],
    &["radix"],
    &["dropped"],
    &["ledger"],
    &["keys"],
    &["error", "ids", "tables", "work"],
];

type Graph = BTreeMap<String, BTreeSet<String>>;

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The text of all files except tests, by module path.
fn files() -> BTreeMap<String, String> {
    let (mut files, mut folders) = (BTreeMap::new(), vec![source()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                folders.push(entry);
            } else if entry.file_name().is_some_and(|name| name != "tests.rs") {
                let inside = entry.strip_prefix(source()).unwrap().with_extension("");
                let parts: Vec<_> = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
                let name = parts.join("::");
                let text = fs::read_to_string(&entry).unwrap();
                files.insert(name.strip_suffix("::mod").unwrap_or(&name).to_owned(), text);
            }
        }
    }
    files
}

/// The code without comments, and without the tests at the end.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// Expands a use tree such as `a::{b, c::{d, e}}` into paths.
fn expand(tree: &str) -> Vec<String> {
    let (mut paths, mut prefixes, mut path) = (Vec::new(), Vec::new(), String::new());
    for letter in tree.chars() {
        match letter {
            '{' => prefixes.push(path.clone()),
            ',' | '}' => {
                paths.push(std::mem::take(&mut path));
                if letter == '}' {
                    prefixes.pop();
                }
                let Some(prefix) = prefixes.last() else { return paths };
                path.clone_from(prefix);
            }
            letter if letter.is_alphanumeric() || "_:".contains(letter) => path.push(letter),
            letter if letter.is_whitespace() && !prefixes.is_empty() => {}
            _ => break,
        }
    }
    paths.push(path);
    paths
}

/// The modules that a file names: after `crate::` anywhere, and its own submodules after `use`.
fn imports(module: &str, text: &str, names: &BTreeSet<String>) -> BTreeSet<String> {
    let code = code(text);
    assert!(!code.contains("super::"), "{module}: paths must begin with crate::");
    let mut paths: Vec<String> = code.split("crate::").skip(1).flat_map(expand).collect();
    let own = code.split("use ").skip(1).flat_map(expand);
    let inside = |path: String| if module == "lib" { path } else { format!("{module}::{path}") };
    paths.extend(own.map(inside).filter(|path| file(path, names).is_some_and(|name| name != module)));
    paths.iter().filter_map(|path| file(path, names)).filter(|name| name != module).collect()
}

/// The file that a path refers to.
fn file(path: &str, names: &BTreeSet<String>) -> Option<String> {
    let parts: Vec<&str> = path.split("::").collect();
    (1..=parts.len()).rev().map(|end| parts[..end].join("::")).find(|name| names.contains(name))
}

fn graph() -> Graph {
    let files = files();
    let names = files.keys().cloned().collect();
    files.iter().map(|(name, text)| (name.clone(), imports(name, text, &names))).collect()
}

/// The level of a module, by the longest matching name.
fn level(module: &str) -> usize {
    let fits = |name: &str| module == name || module.starts_with(&format!("{name}::"));
    let named = LEVELS.iter().zip(0..).flat_map(|(names, level)| names.iter().map(move |name| (name, level)));
    let longest = named.filter(|(name, _)| fits(name)).max_by_key(|(name, _)| name.len());
    longest.unwrap_or_else(|| panic!("{module} has no level in LEVELS")).1
}

#[test]
fn imports_go_down() {
    for (module, others) in graph() {
        for other in others {
            assert!(level(&other) >= level(&module), "{module} imports {other}, which is above it");
        }
    }
}

#[test]
fn imports_have_no_cycles() {
    let mut graph = graph();
    while let Some(done) = graph.iter().find(|(_, others)| others.is_empty()).map(|(name, _)| name.clone()) {
        graph.remove(&done);
        for others in graph.values_mut() {
            others.remove(&done);
        }
    }
    assert!(graph.is_empty(), "in a cycle, or above one: {:#?}", graph.keys());
}

/// The tests above would pass on a graph without edges, so check that it has some.
#[test]
fn the_graph_contains_imports() {
    let graph = graph();
    let sees = |module: &str, other: &str| graph[module].contains(other);
    assert!(sees("evict", "evict::need") && sees("evict::count", "trees::ends"));
    assert!(sees("lib", "store::request") && sees("index", "trees") && sees("keys::media", "keys::query"));
    assert!(graph.values().flatten().all(|other| graph.contains_key(other)));
    assert_eq!(expand("a::{b, c::{d, e}, f};"), ["a::b", "a::c::d", "a::c::e", "a::", "a::f"]);
}

/// `index.rs` names the file of each public method of the index.
#[test]
fn the_index_lists_its_methods() {
    let files = files();
    let table: Vec<&str> = files["index"].lines().filter(|line| line.starts_with("//! | ")).collect();
    for (module, text) in &files {
        let code = code(text);
        let Some((_, methods)) = code.split_once("\nimpl PrefixIndex {") else { continue };
        let methods = methods.split("\n}").next().unwrap_or_default();
        let place = module.replace("::", "/");
        for method in methods.split("    pub fn ").skip(1) {
            let name = method.split(['(', '<']).next().unwrap_or_default();
            let row = table.iter().find(|row| row.contains(&format!("`{name}`")));
            let row = row.unwrap_or_else(|| panic!("index.rs does not list {name}"));
            let here = module == "index" && row.contains("| here |");
            assert!(here || row.contains(&format!("`{place}")), "{name} is in {place}, not {row}");
        }
    }
}
