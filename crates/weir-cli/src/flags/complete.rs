//! Completion of values in a shell: which arguments name a destination or a profile.
//!
//! The command line only says what an argument names. Who asks the server for it is set by `commands::completions`,
//! which knows the flags of the connection.

use std::{ffi::OsStr, sync::OnceLock};

use clap_complete::engine::CompletionCandidate;

/// Only bash sets this variable when it asks for completions.
const OF_BASH: &str = "_CLAP_COMPLETE_COMP_TYPE";
/// Characters that a word of bash has only behind a backslash.
const SPECIAL: &str = " \t\"'\\$&|;<>()*?[]{}~#!`";

/// A name, and what a shell may show beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suggestion {
    pub name: String,
    pub about: Option<String>,
}

/// Where suggestions come from. An error has none: a shell shows nothing then, and asks again at the next key.
#[derive(Debug)]
pub struct Suggestions {
    /// Destinations whose names or ids begin with a text.
    pub destinations: fn(&str) -> Vec<Suggestion>,
    pub profiles: fn() -> Vec<Suggestion>,
}

static SUGGESTIONS: OnceLock<Suggestions> = OnceLock::new();

/// Sets where suggestions come from. Call it once, before completions are answered.
pub fn suggest_from(suggestions: Suggestions) {
    // A process answers one request for completions.
    let _ = SUGGESTIONS.set(suggestions);
}

/// The destinations whose names or ids begin with what is typed.
pub fn destination_names(typed: &OsStr) -> Vec<CompletionCandidate> {
    let typed = plain(&typed.to_string_lossy());
    let found = SUGGESTIONS.get().map(|from| (from.destinations)(&typed)).unwrap_or_default();
    candidates(found)
}

/// The profiles whose names begin with what is typed.
pub fn profile_names(typed: &OsStr) -> Vec<CompletionCandidate> {
    let typed = plain(&typed.to_string_lossy());
    let mut found = SUGGESTIONS.get().map(|from| (from.profiles)()).unwrap_or_default();
    found.retain(|suggestion| suggestion.name.starts_with(&typed));
    candidates(found)
}

fn candidates(found: Vec<Suggestion>) -> Vec<CompletionCandidate> {
    // The other shells quote what they insert.
    let is_bash = std::env::var_os(OF_BASH).is_some();
    let candidate = |Suggestion { name, about }: Suggestion| {
        let word = if is_bash { quoted(&name) } else { name };
        CompletionCandidate::new(word).help(about.map(Into::into))
    };
    found.into_iter().map(candidate).collect()
}

/// A name as a word of bash.
fn quoted(name: &str) -> String {
    let mut word = String::with_capacity(name.len());
    for char in name.chars() {
        if SPECIAL.contains(char) {
            word.push('\\');
        }
        word.push(char);
    }
    word
}

/// A word as it is typed in a shell, without its quotes and backslashes.
fn plain(word: &str) -> String {
    let mut plain = String::with_capacity(word.len());
    let mut chars = word.chars();
    while let Some(char) = chars.next() {
        match char {
            '\\' => plain.extend(chars.next()),
            '"' | '\'' => {}
            char => plain.push(char),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_is_one_word_and_is_found_by_a_part_of_it() {
        for name in ["Acme", "Acme production", "it's $5 (a|b)", "日本語"] {
            assert_eq!(plain(&quoted(name)), name);
        }
        assert_eq!(quoted("Acme production"), "Acme\\ production");
        assert_eq!(plain("\"Acme pro"), "Acme pro");
    }
}
