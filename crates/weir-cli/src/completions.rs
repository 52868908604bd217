//! `weir completions`: the script with which a shell asks this program for completions, and the answers to it. So a shell
//! completes the names of destinations too, which only the server knows.

use std::{ffi::OsString, time::Duration};

use clap_complete::{CompleteEnv, env::Shells};
use weir_api_types::Destination;

use crate::{
    commands::{
        client::{Client, Fields},
        connection::{Connection, profiles},
    },
    exit::Exit,
    flags::{
        CompletedShell,
        api::{KeyText, ServerFlags, server_url},
        complete::{Suggestion, Suggestions, suggest_from},
    },
    output::{self, texts::clean},
};

/// The shell names itself in this variable when it asks for completions.
const ASKED_BY: &str = "_WEIR_COMPLETE";
const PROGRAM: &str = "weir";
/// A person waits after the tab key.
const TIMEOUT: Duration = Duration::from_millis(1_500);
/// The most destinations that are asked for, newest first: a longer list helps nobody.
const MOST: usize = 200;

pub fn run(shell: CompletedShell) -> anyhow::Result<Exit> {
    let name = match shell {
        CompletedShell::Bash => "bash",
        CompletedShell::Zsh => "zsh",
        CompletedShell::Fish => "fish",
    };
    let shells = Shells::builtins();
    let Some(completer) = shells.completer(name) else { anyhow::bail!("there are no completions for {name}") };
    let mut script = Vec::new();
    completer.write_registration(ASKED_BY, PROGRAM, PROGRAM, PROGRAM, &mut script)?;
    output::print(&String::from_utf8(script)?)?;
    Ok(Exit::Done)
}

/// Answers a shell that asks for completions of this command, and ends the process then.
pub fn answer(command: fn() -> clap::Command) {
    suggest_from(Suggestions { destinations, profiles: || profiles().into_iter().map(alone).collect() });
    CompleteEnv::with_factory(command).var(ASKED_BY).bin(PROGRAM).completer(PROGRAM).complete();
}

fn alone(name: String) -> Suggestion {
    Suggestion { name, about: None }
}

/// The destinations of the server that the typed flags, the environment or a profile name.
fn destinations(typed: &str) -> Vec<Suggestion> {
    ask(typed).unwrap_or_default()
}

fn ask(typed: &str) -> anyhow::Result<Vec<Suggestion>> {
    let connection = Connection::find(&flags(std::env::args_os()))?;
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let found: Vec<Destination> = runtime.block_on(async {
        let client = Client::with_timeout(connection, TIMEOUT)?;
        let is_id = typed.starts_with("dst_") || typed.is_empty();
        let query = if is_id { Fields::new() } else { Fields::from_iter([("q".to_owned(), typed.into())]) };
        client.list(&["v1", "destinations"], &query, MOST).await?.read()
    })?;
    Ok(found.into_iter().filter_map(|destination| suggestion(destination, typed)).collect())
}

/// A destination by its name, or by its id if it has no name or its id is typed.
fn suggestion(destination: Destination, typed: &str) -> Option<Suggestion> {
    let Destination { id, settings, .. } = destination;
    // A name that a terminal cannot show is no name to type.
    let has_name = !settings.name.is_empty() && clean(&settings.name) == settings.name;
    let name = settings.name.get(..typed.len()).filter(|_| has_name);
    if name.is_some_and(|start| start.to_lowercase() == typed.to_lowercase()) {
        return Some(Suggestion { name: settings.name, about: Some(clean(&settings.url)) });
    }
    let is_by_id = id.starts_with(typed) && (!typed.is_empty() || !has_name);
    is_by_id.then(|| Suggestion { about: Some(clean(if has_name { &settings.name } else { &settings.url })), name: id })
}

/// The flags of the connection among the words that are typed so far.
fn flags(words: impl Iterator<Item = OsString>) -> ServerFlags {
    let words: Vec<String> =
        words.map(|word| word.to_string_lossy().into_owned()).skip_while(|word| word != "--").collect();
    let value = |flag: &str| {
        let inline = words.iter().find_map(|word| word.strip_prefix(flag)?.strip_prefix('=').map(str::to_owned));
        let next = || words.iter().skip_while(|word| *word != flag).nth(1).cloned();
        inline.or_else(next)
    };
    ServerFlags {
        server: value("--server").and_then(|url| server_url(&url).ok()),
        key_file: value("--key-file").map(Into::into),
        key: value("--key").map(KeyText),
        profile: value("--profile"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::commands::tests_of_records::destination;

    #[test]
    fn the_flags_of_the_connection_are_read_from_the_typed_words() {
        let words = "weir -- weir tail --server=http://a:1 --key-file k --profile staging Ac".split(' ');
        let flags = flags(words.map(OsString::from));
        assert_eq!(flags.server.unwrap().as_str(), "http://a:1/");
        assert_eq!((flags.key_file.unwrap().to_str(), flags.profile.as_deref()), (Some("k"), Some("staging")));
        assert!(flags.key.is_none());
    }

    #[test]
    fn a_destination_is_suggested_by_its_name_or_its_id() {
        let suggested = |name: &str, typed: &str| {
            let destination = destination(&json!({"id": "dst_1", "name": name}));
            suggestion(serde_json::from_value(destination).unwrap(), typed).map(|suggestion| suggestion.name)
        };
        for (name, typed, expected) in [
            ("Acme", "", Some("Acme")),
            ("Acme", "ac", Some("Acme")),
            ("Acme", "b", None),
            ("Acme", "dst_", Some("dst_1")),
            ("", "", Some("dst_1")),
            ("", "dst_2", None),
            ("日本", "a", None),
            ("a\u{202e}b", "a", None),
        ] {
            assert_eq!(suggested(name, typed).as_deref(), expected, "{name} {typed}");
        }
    }
}
