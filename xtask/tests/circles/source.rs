//! What a file of Rust defines, imports and names: as much of the language as the circles need.

use std::collections::BTreeSet;

/// A name that `use` brings into a module.
#[derive(Debug)]
pub(crate) struct Import {
    pub(crate) path: Vec<String>,
    /// `*` for all names.
    pub(crate) name: String,
    pub(crate) is_public: bool,
}

/// A module of a file.
#[derive(Debug, Default)]
pub(crate) struct Source {
    /// Modules in files of their own.
    pub(crate) files: Vec<String>,
    pub(crate) definitions: BTreeSet<String>,
    pub(crate) imports: Vec<Import>,
    /// Paths of more than one part in the code.
    pub(crate) paths: BTreeSet<Vec<String>>,
    /// Every name in the code, without those of imports.
    pub(crate) words: BTreeSet<String>,
}

const DEFINES: [&str; 9] = ["struct", "enum", "union", "trait", "type", "fn", "const", "static", "macro_rules"];

impl Source {
    /// The module of a file, and each module inside it with its path.
    pub(crate) fn read(text: &str) -> Vec<(Vec<String>, Self)> {
        let tokens = without_tests(&tokens(text));
        let mut modules = Vec::new();
        let mut open = vec![(Vec::new(), 0, Self::default())];
        let (mut depth, mut at, mut is_public) = (0_usize, 0, false);
        while let Some(token) = tokens.get(at) {
            let next = tokens.get(at + 1).map_or("", String::as_str);
            let after = tokens.get(at + 2).map_or("", String::as_str);
            let (path, level, module) = open.last_mut().unwrap();
            match token.as_str() {
                "mod" if after == ";" => module.files.push(next.to_owned()),
                "mod" if after == "{" => {
                    let path: Vec<String> = path.iter().cloned().chain([next.to_owned()]).collect();
                    open.push((path, depth + 1, Self::default()));
                    depth += 1;
                    at += 3;
                    continue;
                }
                // Not the `use<'a>` of a type.
                "use" if next != "<" => {
                    at = imports(&tokens, at + 1, &[], is_public, &mut module.imports);
                    continue;
                }
                "{" => depth += 1,
                "}" => {
                    depth -= 1;
                    if depth < *level {
                        let (path, _, module) = open.pop().unwrap();
                        modules.push((path, module));
                    }
                }
                word if is_word(word) => {
                    if DEFINES.contains(&word) && depth == *level {
                        let name = [next, after]
                            .into_iter()
                            .find(|name| is_word(name) && !["mut", "fn", "unsafe"].contains(name));
                        module.definitions.extend(name.map(str::to_owned));
                    }
                    let mut path = vec![word.to_owned()];
                    while tokens.get(at + 1).is_some_and(|token| token == "::")
                        && tokens.get(at + 2).is_some_and(|token| is_word(token))
                    {
                        path.push(tokens[at + 2].clone());
                        at += 2;
                    }
                    module.words.extend(path.first().cloned());
                    if path.len() > 1 {
                        module.paths.insert(path);
                    }
                }
                _ => {}
            }
            is_public = match token.as_str() {
                "pub" => true,
                "(" | ")" | "crate" | "super" | "in" | "self" | "::" => is_public,
                _ => false,
            };
            at += 1;
        }
        modules.extend(open.into_iter().map(|(path, _, module)| (path, module)));
        modules
    }
}

/// Reads the tree of a `use` from `at` and returns where it ends.
fn imports(tokens: &[String], mut at: usize, before: &[String], is_public: bool, all: &mut Vec<Import>) -> usize {
    let mut path = before.to_vec();
    loop {
        match tokens[at].as_str() {
            "{" => {
                while tokens[at] != "}" {
                    at = imports(tokens, at + 1, &path, is_public, all);
                }
                return at + 1;
            }
            "," | ";" | "}" => {
                // `a::{self}` names `a`. Before a closing brace there can be nothing.
                if path.len() > before.len() {
                    path.pop_if(|last| last == "self" && !before.is_empty());
                    all.push(Import { name: path.last().unwrap().clone(), path, is_public });
                }
                return at;
            }
            "as" => {
                path.pop_if(|last| last == "self" && !before.is_empty());
                all.push(Import { name: tokens[at + 1].clone(), path, is_public });
                return at + 2;
            }
            "*" => {
                all.push(Import { name: "*".to_owned(), path, is_public });
                return at + 1;
            }
            "::" => {}
            name => path.push(name.to_owned()),
        }
        at += 1;
    }
}

/// The tokens without the items for tests.
fn without_tests(tokens: &[String]) -> Vec<String> {
    let mut left = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let end = if tokens[at] == "#" && tokens.get(at + 1).is_some_and(|token| token == "[") {
            group(tokens, at + 1)
        } else {
            at
        };
        if tokens[at..end].iter().any(|token| token == "cfg") && tokens[at..end].iter().any(|token| token == "test") {
            // Up to the end of the item: a semicolon or its braces.
            at = end;
            while ![";", "{"].contains(&tokens[at].as_str()) {
                at = if ["(", "["].contains(&tokens[at].as_str()) { group(tokens, at) } else { at + 1 };
            }
            at = if tokens[at] == "{" { group(tokens, at) } else { at + 1 };
        } else {
            left.push(tokens[at].clone());
            at += 1;
        }
    }
    left
}

/// Behind the bracket that closes the one at `at`.
fn group(tokens: &[String], mut at: usize) -> usize {
    let mut depth = 0;
    loop {
        match tokens[at].as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            return at;
        }
    }
}

fn is_word(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Words, `::` and single signs; without comments, texts, characters and lifetimes.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word = rest.find(|next: char| !next.is_alphanumeric() && next != '_').unwrap_or(rest.len());
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").unwrap() + 2
        } else if let Some(length) = text_length(rest) {
            length
        } else if first == '\'' {
            // A character, or a lifetime.
            let inner = rest[1..].chars().next().unwrap();
            if inner == '\\' {
                3 + rest[3..].find('\'').unwrap() + 1
            } else if rest[1 + inner.len_utf8()..].starts_with('\'') {
                2 + inner.len_utf8()
            } else {
                1 + rest[1..].find(|next: char| !next.is_alphanumeric() && next != '_').unwrap()
            }
        } else if word > 0 {
            tokens.push(rest[..word].to_owned());
            word
        } else if rest.starts_with("::") {
            tokens.push("::".to_owned());
            2
        } else {
            if !first.is_whitespace() {
                tokens.push(first.to_string());
            }
            first.len_utf8()
        };
        rest = &rest[skipped..];
    }
    tokens
}

/// The length of the text that starts here: `"…"`, `b"…"`, `r#"…"#`.
fn text_length(rest: &str) -> Option<usize> {
    let prefix = ["br", "cr", "b", "c", "r", ""].into_iter().find(|prefix| {
        rest.strip_prefix(prefix).is_some_and(|rest| {
            rest.trim_start_matches('#').starts_with('"') && (prefix.ends_with('r') || rest.starts_with('"'))
        })
    })?;
    let hashes = rest[prefix.len()..].find('"')?;
    let start = prefix.len() + hashes + 1;
    if prefix.ends_with('r') {
        let end = format!("\"{}", "#".repeat(hashes));
        return Some(start + rest[start..].find(&end)? + end.len());
    }
    let mut is_escaped = false;
    let end = rest[start..].find(|next| {
        let ends = next == '"' && !is_escaped;
        is_escaped = next == '\\' && !is_escaped;
        ends
    })?;
    Some(start + end + 1)
}
