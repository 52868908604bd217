//! The documents: every link leads somewhere, what they name exists, and every production file is reached from one.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

/// How texts outside of the repository, such as alerts, name a file of it.
const PUBLISHED: &str = "https://github.com/weir-webhooks/weir/blob/main/";
/// Folders of tools, not of the project.
const FOREIGN: [&str; 7] = ["target", "node_modules", ".git", "vendor", "dist", ".venv", "__pycache__"];
/// The short paths of ARCHITECTURE.md and of `docs/architecture`.
const FOLDERS: [(&str, &[&str]); 14] = [
    ("core/", &["crates/weir-core/src/"]),
    ("cli/", &["crates/weir-cli/src/"]),
    ("chart/", &["crates/weir-chart/src/"]),
    ("store/", &["crates/weir-store/src/"]),
    ("sqlite/", &["crates/weir-store-sqlite/src/"]),
    ("postgres/", &["crates/weir-store-postgres/src/"]),
    ("stores/", &["crates/weir-store-sqlite/src/", "crates/weir-store-postgres/src/"]),
    ("queue/", &["crates/weir-queue/src/"]),
    ("redis/", &["crates/weir-queue-redis/src/"]),
    ("scheduler/", &["crates/weir-scheduler/src/"]),
    ("worker/", &["crates/weir-worker/src/"]),
    ("api/", &["crates/weir-api/src/"]),
    ("dashboard/", &["crates/weir-dashboard/src/"]),
    ("bin/", &["crates/weir/src/"]),
];

#[test]
fn every_link_and_every_anchor_leads_somewhere() {
    let mut broken = Vec::new();
    for (path, text) in texts(&["md"]) {
        let prose = without_code(&text);
        let folder = path.parent().unwrap();
        for target in links(&prose) {
            if !target.contains("://") && !target.starts_with("mailto:") {
                let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
                let file = if file.is_empty() { path.clone() } else { folder.join(file) };
                if !leads_somewhere(&file, anchor) {
                    broken.push(format!("{}: {target}", path.display()));
                }
            }
        }
        for number in numbers_without_a_link(&prose) {
            broken.push(format!("{}: [{number}]", path.display()));
        }
    }
    assert!(broken.is_empty(), "broken links: {broken:#?}");
}

#[test]
fn code_and_configuration_name_documents_that_exist() {
    let tops = ["docs/", "load-tests/", "deploy/", "k8s/", "migrations/", "ARCHITECTURE.md", "CONTRIBUTING.md"];
    let extensions = ["rs", "toml", "yaml", "yml", "json", "sql", "lua", "mjs", "ts", "py", "sh", "service", "example"];
    let mut broken = Vec::new();
    for (path, text) in texts(&extensions) {
        let is_part = |c: char| c.is_ascii_alphanumeric() || "_-./:#".contains(c);
        for word in text.split(|c| !is_part(c)).map(|word| word.trim_end_matches(['.', ':'])) {
            let is_published = word.starts_with(PUBLISHED);
            let word = word.strip_prefix(PUBLISHED).unwrap_or(word);
            let (file, anchor) = word.split_once('#').unwrap_or((word, ""));
            let names_a_decision = file.strip_prefix("docs/decisions/").filter(|rest| rest.len() == 4);
            let exists = match names_a_decision {
                Some(number) => decision(number).is_some(),
                None => {
                    let is_document = file.ends_with(".md") && tops.iter().any(|top| file.starts_with(top));
                    !is_document && !is_published || leads_somewhere(&root().join(file), anchor)
                }
            };
            if !exists {
                broken.push(format!("{}: {word}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "no such document: {broken:#?}");
}

#[test]
fn the_documents_name_files_and_tests_that_exist() {
    let sources = texts(&["rs", "lua"]);
    let code: String = sources.iter().map(|(_, text)| text.as_str()).collect();
    let mut missing = Vec::new();
    for (path, text) in texts(&["md"]).into_iter().filter(|(path, _)| is_about_the_code(path)) {
        let named = without_fences(&text);
        for name in named.split('`').skip(1).step_by(2).filter(|name| !name.starts_with('.')) {
            let exists = if name.ends_with(".rs") || name.ends_with(".lua") {
                is_a_file(name, &sources)
            } else {
                !is_a_sentence(name) || code.contains(name)
            };
            if !exists {
                missing.push(format!("{}: {name}", path.display()));
            }
        }
    }
    assert!(missing.is_empty(), "documents name what does not exist: {missing:#?}");
}

#[test]
fn every_production_file_is_reached_from_a_row_or_from_its_crate() {
    let page = fs::read_to_string(root().join("docs/architecture/where.md")).unwrap();
    let rows: BTreeSet<PathBuf> = page.split('`').skip(1).step_by(2).flat_map(full_paths).collect();
    let unreached: Vec<String> = production_folders()
        .iter()
        .flat_map(|folder| {
            let head =
                ["lib.rs", "main.rs"].iter().find_map(|name| fs::read_to_string(folder.join(name)).ok()).unwrap();
            let head: String =
                head.lines().take_while(|line| line.starts_with("//!")).map(|line| format!("{line}\n")).collect();
            let mut files = Vec::new();
            collect(folder, &["rs", "lua"], &mut files);
            files.retain(|file| !is_reached(file, folder, &rows, &head));
            files
        })
        .map(|file| file.strip_prefix(root()).unwrap().display().to_string())
        .collect();
    assert!(unreached.is_empty(), "neither where.md nor the head of its crate names {unreached:#?}");
}

/// A file is reached if a row or the head of its crate names it, or if the module that it belongs to is reached.
fn is_reached(file: &Path, folder: &Path, rows: &BTreeSet<PathBuf>, head: &str) -> bool {
    let relative = file.strip_prefix(folder).unwrap();
    let stem = relative.with_extension("");
    let names = [stem.to_str().unwrap(), stem.file_name().unwrap().to_str().unwrap()];
    let extension = relative.extension().unwrap().to_str().unwrap();
    let parent = file.parent().unwrap();
    ["lib", "main", "tests"].contains(&names[1])
        || rows.contains(file.strip_prefix(root()).unwrap())
        || names.iter().any(|name| {
            let forms = [
                format!("`{name}`"),
                format!(" {name}.{extension}"),
                format!("({name}.{extension}"),
                format!("─ {name}:"),
            ];
            forms.iter().any(|form| head.contains(form))
        })
        || parent != folder && is_reached(&parent.with_extension("rs"), folder, rows, head)
}

fn production_folders() -> Vec<PathBuf> {
    let crates = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let others = ["load-tests", "deploy/checks", "xtask"].map(|name| root().join(name));
    crates.chain(others).map(|folder| folder.join("src")).filter(|folder| folder.is_dir()).collect()
}

/// The paths below the project that a short path stands for.
fn full_paths(name: &str) -> Vec<PathBuf> {
    if name.ends_with(".lua") && !name.contains('/') {
        return vec![Path::new("crates/weir-queue-redis/src/scripts").join(name)];
    }
    match FOLDERS.iter().find(|(short, _)| name.starts_with(short)) {
        Some((short, folders)) => folders.iter().map(|folder| Path::new(folder).join(&name[short.len()..])).collect(),
        None => vec![name.into()],
    }
}

fn is_a_file(name: &str, sources: &[(PathBuf, String)]) -> bool {
    match full_paths(name).as_slice() {
        [only] if !only.starts_with("crates") => sources.iter().any(|(path, _)| path.ends_with(only)),
        paths => paths.iter().all(|path| root().join(path).is_file()),
    }
}

/// The name of a test: a sentence in snake case.
fn is_a_sentence(name: &str) -> bool {
    name.matches('_').count() >= 4 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn is_about_the_code(path: &Path) -> bool {
    path.ends_with("ARCHITECTURE.md")
        || path.ends_with("CONTRIBUTING.md")
        || ["docs/architecture", "docs/decisions"].iter().any(|folder| path.starts_with(root().join(folder)))
}

fn decision(number: &str) -> Option<PathBuf> {
    let records = fs::read_dir(root().join("docs/decisions")).unwrap().map(|entry| entry.unwrap().path());
    records.into_iter().find(|path| path.file_name().unwrap().to_str().unwrap().starts_with(number))
}

/// Whether the file exists, and has the heading if an anchor is given.
fn leads_somewhere(file: &Path, anchor: &str) -> bool {
    if anchor.is_empty() {
        return file.exists();
    }
    // The lines of a source need no heading.
    let is_document = file.extension() == Some(OsStr::new("md"));
    fs::read_to_string(file).is_ok_and(|text| !is_document || anchors(&text).contains(anchor))
}

/// The anchors of a document's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let text = without_fences(text);
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|heading| {
            let words = heading.trim_start_matches('#').trim().to_lowercase();
            let kept = words.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
            let times = seen.entry(anchor.clone()).or_default();
            *times += 1;
            if *times == 1 { anchor } else { format!("{anchor}-{}", *times - 1) }
        })
        .collect()
}

/// The targets of links and pictures, and of the definitions of links.
fn links(prose: &str) -> impl Iterator<Item = &str> {
    let direct = prose.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    let defined = prose.lines().filter(|line| line.starts_with('[')).filter_map(|line| line.split_once("]: "));
    direct.chain(defined.map(|(_, target)| target))
}

/// Numbers of decisions in brackets, such as `[0001]`, that are neither links nor have a definition.
fn numbers_without_a_link(prose: &str) -> Vec<&str> {
    let is_number = |text: &str| text.len() == 4 && text.bytes().all(|byte| byte.is_ascii_digit());
    let bracketed = prose.split('[').skip(1).filter_map(|rest| rest.split_once(']'));
    let open = bracketed.filter(|(text, after)| is_number(text) && !after.starts_with(['(', ':']));
    open.map(|(number, _)| number).filter(|number| !prose.contains(&format!("\n[{number}]: "))).collect()
}

fn without_fences(text: &str) -> String {
    let mut is_code = false;
    let mut out = String::new();
    for line in text.lines() {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        if !is_code && !is_fence {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

/// Without fenced blocks and without code in backticks.
fn without_code(text: &str) -> String {
    without_fences(text).split('`').step_by(2).collect()
}

/// The project's files with one of these extensions, and their text.
fn texts(extensions: &[&str]) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    collect(root(), extensions, &mut files);
    files.into_iter().filter_map(|path| fs::read_to_string(&path).ok().map(|text| (path, text))).collect()
}

fn collect(folder: &Path, extensions: &[&str], files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && !FOREIGN.contains(&name) {
            collect(&path, extensions, files);
        } else if path.extension().is_some_and(|extension| extensions.iter().any(|one| extension == *one)) {
            files.push(path);
        }
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}
