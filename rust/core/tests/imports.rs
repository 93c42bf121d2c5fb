//! What imports what in `src`: downwards only, never in a circle; and `index.rs` is a table of contents.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// From the top down: a file imports from its own level and from those below it.
const LEVELS: &[&[&str]] = &[
    &["lib"],
    &["inspect"],
    &["lookup", "store"],
    &["evict"],
    &["index"],
    // What `index` is made of, though it belongs to a store.
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

/// All files but tests, by module path.
fn files() -> BTreeMap<String, String> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![source()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                folders.push(entry);
            } else if entry.file_name().is_some_and(|name| name != "tests.rs") {
                let inside = entry.strip_prefix(source()).unwrap().with_extension("");
                let parts: Vec<_> = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
                let name = parts.join("::");
                let text = fs::read_to_string(&entry).unwrap();
                found.insert(name.strip_suffix("::mod").unwrap_or(&name).to_owned(), text);
            }
        }
    }
    found
}

/// The code without comments and without the tests at its end.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// The paths of a tree such as `a::{b, c::{d, e}}`, up to where it ends.
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

/// The modules that a file names: after `crate::` anywhere, and after `use` where they are its own.
fn imports(module: &str, text: &str, names: &BTreeSet<String>) -> BTreeSet<String> {
    let code = code(text);
    assert!(!code.contains("super::"), "{module}: paths begin with crate::");
    let mut paths: Vec<String> = code.split("crate::").skip(1).flat_map(expand).collect();
    let own = code.split("use ").skip(1).flat_map(expand);
    let inside = |path: String| if module == "lib" { path } else { format!("{module}::{path}") };
    paths.extend(own.map(inside).filter(|path| file(path, names).is_some_and(|name| name != module)));
    paths.iter().filter_map(|path| file(path, names)).filter(|name| name != module).collect()
}

/// The file that a path leads into.
fn file(path: &str, names: &BTreeSet<String>) -> Option<String> {
    let parts: Vec<&str> = path.split("::").collect();
    (1..=parts.len()).rev().map(|end| parts[..end].join("::")).find(|name| names.contains(name))
}

fn graph() -> Graph {
    let files = files();
    let names = files.keys().cloned().collect();
    files.iter().map(|(name, text)| (name.clone(), imports(name, text, &names))).collect()
}

/// The level of the longest name that fits.
fn level(module: &str) -> usize {
    let fits = |name: &str| module == name || module.starts_with(&format!("{name}::"));
    let named = LEVELS.iter().zip(0..).flat_map(|(names, level)| names.iter().map(move |name| (name, level)));
    let found = named.filter(|(name, _)| fits(name)).max_by_key(|(name, _)| name.len());
    found.unwrap_or_else(|| panic!("{module} is on no level")).1
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
fn no_file_imports_itself_in_a_circle() {
    let mut graph = graph();
    while let Some(done) = graph.iter().find(|(_, others)| others.is_empty()).map(|(name, _)| name.clone()) {
        graph.remove(&done);
        for others in graph.values_mut() {
            others.remove(&done);
        }
    }
    assert!(graph.is_empty(), "in a circle, or above one: {:#?}", graph.keys());
}

/// A graph without edges has no faults.
#[test]
fn the_tests_above_see_imports() {
    let graph = graph();
    let sees = |module: &str, other: &str| graph[module].contains(other);
    assert!(sees("evict", "evict::need") && sees("evict::count", "trees::ends"));
    assert!(sees("lib", "store::request") && sees("index", "trees") && sees("keys::media", "keys::query"));
    assert!(graph.values().flatten().all(|other| graph.contains_key(other)));
    assert_eq!(expand("a::{b, c::{d, e}, f};"), ["a::b", "a::c::d", "a::c::e", "a::", "a::f"]);
}

/// `index.rs` names the file of each public method of the index.
#[test]
fn the_index_says_where_its_methods_are() {
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
            let row = row.unwrap_or_else(|| panic!("index.rs does not say where {name} is"));
            let here = module == "index" && row.contains("| here |");
            assert!(here || row.contains(&format!("`{place}")), "{name} is in {place}, not {row}");
        }
    }
}
