//! The files of a crate form no circle, so that a reader can begin at one file and read down.
//!
//! File A points to file B if A's code names something that B defines, by `use` or by a path that starts with `crate`,
//! `self`, `super` or the name of a module. A re-export is followed to the file with the definition, and is no arrow
//! itself. What a file names of its parents, up to the root of the crate, is no arrow either: a module and its children
//! are one thing, told in several files. Code for tests (`#[cfg(test)]`) does not count.
//!
//! To cure a circle, move the definition that ties it into a file below both, or to its only user.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[path = "circles/source.rs"]
mod source;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fs,
    path::{Path, PathBuf},
};

use source::{Import, Source};

const MODEL: &str = "the model is one state machine: its state holds the parts that its actions read and change";

/// Circles that stay, each with its reason. The paths are relative to the folder of the workspace.
const ALLOWED: &[(&str, &[&str])] = &[
    (
        MODEL,
        &[
            "crates/weir-model/src/actions.rs",
            "crates/weir-model/src/drained.rs",
            "crates/weir-model/src/properties.rs",
        ],
    ),
    (
        MODEL,
        &["crates/weir-model/src/permit.rs", "crates/weir-model/src/scenario.rs", "crates/weir-model/src/state.rs"],
    ),
];

/// A module's path inside its crate: empty for the root.
type Module = Vec<String>;

/// Names by the file that defines them.
type Arrows = BTreeMap<PathBuf, BTreeSet<String>>;

#[test]
fn files_inside_a_crate_form_no_new_circle() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let packages = fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let packages = packages.chain(["deploy/checks", "load-tests", "xtask"].map(|folder| root.join(folder)));
    let roots = packages.flat_map(|folder| ["src/lib.rs", "src/main.rs"].map(|file| folder.join(file)));
    let mut found = BTreeSet::new();
    let mut report = String::new();
    for file in roots.filter(|file| file.is_file()) {
        let arrows = Crate::read(&file).arrows();
        for circle in circles(&arrows) {
            let name = |file: &PathBuf| file.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            let mut names: Vec<_> = circle.iter().map(name).collect();
            names.sort();
            if !ALLOWED.iter().any(|(_, allowed)| *allowed == names) {
                report += &format!("\na circle of {} files:\n", circle.len());
                for from in &circle {
                    for (to, what) in arrows[from].iter().filter(|(to, _)| circle.contains(*to)) {
                        let what: Vec<_> = what.iter().map(String::as_str).collect();
                        report += &format!("  {} -> {}: {}\n", name(from), name(to), what.join(", "));
                    }
                }
            }
            found.insert(names);
        }
    }
    assert!(report.is_empty(), "{report}");
    let gone: Vec<_> = ALLOWED.iter().filter(|(_, files)| !found.iter().any(|circle| circle == files)).collect();
    assert!(gone.is_empty(), "no circles any more, so remove them from the list: {gone:#?}");
}

#[test]
fn an_arrow_leads_to_the_file_with_the_definition() {
    let folder = tempfile::tempdir().unwrap();
    let files = [
        ("lib.rs", "mod a; mod b; mod c; pub use c::Passed; use b::B; pub struct Root;"),
        ("a.rs", "mod below; use crate::{Passed, Root}; #[cfg(test)] mod tests { use crate::b::B; } pub struct A;"),
        ("a/below.rs", "fn f(_: super::A) { let _ = b'\"'; crate::b::f::<'a'>() /* crate::c::Passed */ }"),
        ("b.rs", "use super::a as other; pub struct B; pub fn f() { other::A; }"),
        ("c.rs", "pub struct Passed; const TEXT: &str = \"crate::b::B\";"),
    ];
    fs::create_dir(folder.path().join("a")).unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let arrows = Crate::read(&folder.path().join("lib.rs")).arrows();
    let name = |path: &Path| path.strip_prefix(folder.path()).unwrap().to_str().unwrap().to_owned();
    let seen: Vec<_> = arrows.iter().flat_map(|(from, to)| to.keys().map(move |to| (name(from), name(to)))).collect();
    let expected = [("a/below.rs", "b.rs"), ("a.rs", "c.rs"), ("b.rs", "a.rs"), ("lib.rs", "b.rs")];
    assert_eq!(seen, expected.map(|(from, to)| (from.to_owned(), to.to_owned())));
    // `a/below.rs` leads to `b.rs`, which leads to `a.rs`, and `a.rs` names nothing below it.
    assert!(circles(&arrows).is_empty());
}

/// Each largest set of files that lead to each other.
fn circles(arrows: &BTreeMap<PathBuf, Arrows>) -> BTreeSet<BTreeSet<PathBuf>> {
    let reached = |from: &PathBuf| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(file) = next.pop() {
            next.extend(arrows[file].keys().filter(|to| seen.insert((*to).clone())));
        }
        seen
    };
    let reached: BTreeMap<_, _> = arrows.keys().map(|file| (file, reached(file))).collect();
    let back = |file: &PathBuf| reached[file].iter().filter(|to| reached[to].contains(file)).cloned().collect();
    reached.keys().map(|file| back(file)).filter(|circle: &BTreeSet<_>| circle.len() > 1).collect()
}

/// The modules of a crate. An inline module is a module of its own in the file of its parent.
struct Crate {
    modules: BTreeMap<Module, (PathBuf, Source)>,
    /// Each definition with its file.
    defined: HashSet<(PathBuf, String)>,
}

impl Crate {
    fn read(root: &Path) -> Self {
        let mut modules = BTreeMap::new();
        let mut waiting = vec![(Module::new(), root.to_owned(), root.parent().unwrap().to_owned())];
        while let Some((module, file, folder)) = waiting.pop() {
            for (inline, source) in Source::read(&fs::read_to_string(&file).unwrap()) {
                let module: Module = module.iter().cloned().chain(inline.iter().cloned()).collect();
                let folder = inline.iter().fold(folder.clone(), |folder, name| folder.join(name));
                for child in &source.files {
                    let below = module.iter().cloned().chain([child.clone()]).collect();
                    waiting.push((below, folder.join(child).with_extension("rs"), folder.join(child)));
                }
                modules.insert(module, (file.clone(), source));
            }
        }
        let of = |(file, source): &(PathBuf, Source)| {
            source.definitions.iter().map(|name| (file.clone(), name.clone())).collect::<Vec<_>>()
        };
        let defined = modules.values().flat_map(of).collect();
        Self { modules, defined }
    }

    /// For each file the files whose definitions it names.
    fn arrows(&self) -> BTreeMap<PathBuf, Arrows> {
        let mut all: BTreeMap<PathBuf, Arrows> = BTreeMap::new();
        for (module, (file, source)) in &self.modules {
            let arrows = all.entry(file.clone()).or_default();
            let passed_on = |import: &Import| import.is_public && !source.words.contains(&import.name);
            let above: Vec<_> = (0..module.len()).map(|length| &self.modules[&module[..length]].0).collect();
            let imported = source.imports.iter().filter(|import| !passed_on(import)).map(|import| &import.path);
            for path in imported.chain(&source.paths) {
                let to = self.definition(module, path, 0);
                if let Some((to, name)) = to.filter(|(to, _)| to != file && !above.contains(&to)) {
                    arrows.entry(to).or_default().insert(name);
                }
            }
        }
        all
    }

    /// The file that defines what `path` names inside `module`. `None`: another crate does, or it is the name of a module.
    fn definition(&self, module: &Module, path: &[String], depth: usize) -> Option<(PathBuf, String)> {
        let (first, rest) = path.split_first()?;
        let parent = || module[..module.len().saturating_sub(1)].to_vec();
        match first.as_str() {
            "crate" => self.inside(&Module::new(), rest, depth),
            "self" => self.inside(module, rest, depth),
            "super" if rest.first().is_some_and(|next| next == "super") => self.definition(&parent(), rest, depth),
            "super" => self.inside(&parent(), rest, depth),
            name => {
                let (_, source) = &self.modules[module];
                let child: Module = module.iter().cloned().chain([first.clone()]).collect();
                let is_here =
                    self.modules.contains_key(&child) || source.imports.iter().any(|import| import.name == name);
                // A name that is defined here is no arrow.
                if is_here { self.inside(module, path, depth) } else { None }
            }
        }
    }

    /// The same for a path below `module`.
    fn inside(&self, module: &Module, path: &[String], depth: usize) -> Option<(PathBuf, String)> {
        let (first, rest) = path.split_first()?;
        let child: Module = module.iter().cloned().chain([first.clone()]).collect();
        if self.modules.contains_key(&child) {
            return self.inside(&child, rest, depth);
        }
        let (file, source) = self.modules.get(module)?;
        // Two modules can pass on each other's names by `*`.
        if source.definitions.contains(first) || depth > 8 {
            return Some((file.clone(), first.clone()));
        }
        for import in &source.imports {
            let longer = if import.name == *first {
                rest
            } else if import.name == "*" {
                path
            } else {
                continue;
            };
            let target: Vec<_> = import.path.iter().chain(longer).cloned().collect();
            let is_glob = import.name == "*";
            match self.definition(module, &target, depth + 1) {
                Some(found) if !is_glob || self.defined.contains(&found) => return Some(found),
                _ if is_glob => {}
                // From another crate.
                _ => return None,
            }
        }
        // Made by a macro.
        Some((file.clone(), first.clone()))
    }
}
