//! The names of the settings, and of the environment variables that are no settings. The variable and the flag of a
//! setting follow from its key in `weir.toml`: `listen`, `WEIR_LISTEN`, `--listen`.

use weir_cli::commands::connection::{API_KEY_ENV, PROFILE_ENV, URL_ENV};

/// The prefix of Weir's environment variables.
pub(super) const ENV_PREFIX: &str = "WEIR_";
/// The path of the configuration file. This variable has no key in the file.
pub(super) const CONFIG_ENV: &str = "WEIR_CONFIG";
/// The secret for `weir verify`. It is no setting of a server, and a server ignores it.
pub(crate) const VERIFY_ENV: &str = "WEIR_VERIFY_SECRET";
/// The variables of the commands that call a server. They are no settings of a server, and a server ignores them.
pub(super) const CLIENT_ENV: [&str; 3] = [URL_ENV, API_KEY_ENV, PROFILE_ENV];

/// The environment variable of a setting.
pub(super) fn variable(setting: &str) -> String {
    format!("{ENV_PREFIX}{}", setting.to_ascii_uppercase())
}

/// The name under which the file of a secret setting is given: `api_keys_file`.
pub(super) fn file_of(setting: &str) -> String {
    format!("{setting}_file")
}

/// The flag of a setting.
pub(super) fn flag(setting: &str) -> String {
    format!("--{}", setting.replace('_', "-"))
}

/// The known name that is most similar to `unknown`, if any is similar.
pub(super) fn nearest(unknown: &str, known: impl Iterator<Item = String>) -> Option<String> {
    let unknown = unknown.to_ascii_lowercase();
    let distances = known.map(|name| (distance(&unknown, &name.to_ascii_lowercase()), name));
    distances.filter(|(distance, _)| *distance <= 3).min().map(|(_, name)| name)
}

/// The number of letters to insert, delete or change to turn one word into the other (Levenshtein distance).
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (n, letter) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = n + 1;
        for column in 1..=to.len() {
            let changed = diagonal + usize::from(letter != to[column - 1]);
            diagonal = row[column];
            row[column] = changed.min(diagonal + 1).min(row[column - 1] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::{super::settings::SETTINGS, *};

    #[test]
    fn variable_and_flag_follow_from_one_name() {
        assert_eq!(variable("database_url"), "WEIR_DATABASE_URL");
        assert_eq!(flag("database_url"), "--database-url");
    }

    #[test]
    fn a_misspelled_name_finds_the_nearest_and_nonsense_finds_none() {
        let known = || SETTINGS.iter().map(|setting| variable(setting.name));
        assert_eq!(nearest("WEIR_LISTN", known()).as_deref(), Some("WEIR_LISTEN"));
        assert_eq!(nearest("WEIR_API_KEY", known()).as_deref(), Some("WEIR_API_KEYS"));
        assert_eq!(nearest("WEIR_SOMETHING_ELSE", known()), None);
    }
}
