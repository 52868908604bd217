//! Which server a command calls, and with which key.
//!
//! The address comes from `--server`, the profile that `--profile` names, `WEIR_URL`, the default profile, or is the
//! default of `weir serve`. The key comes from `--key-file`, `--key`, `WEIR_API_KEY`, the profile, or is the first of
//! `WEIR_API_KEYS`. The key of a profile goes to the server of that profile only: with another address it is not sent.

mod profile;

use std::path::{Path, PathBuf};

use url::Url;

pub use self::profile::place_and_reason;
use self::profile::{Profile, ProfileFile};
use crate::{
    exit::Misuse,
    flags::api::{KeyText, ServerFlags, server_url},
};

/// The server, the key and the profile of the commands that call a server.
pub const URL_ENV: &str = "WEIR_URL";
pub const API_KEY_ENV: &str = "WEIR_API_KEY";
pub const PROFILE_ENV: &str = "WEIR_PROFILE";

const DEFAULT_SERVER: &str = "http://127.0.0.1:8080";

/// A server and the key for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    pub server: Url,
    pub key: Option<KeyText>,
}

impl Connection {
    /// The connection of these flags, the environment and the profile file.
    pub fn find(flags: &ServerFlags) -> Result<Self, Misuse> {
        Self::of(flags, &environment)
    }

    fn of(flags: &ServerFlags, environment: &dyn Fn(&str) -> Option<String>) -> Result<Self, Misuse> {
        let named = flags.profile.clone().or_else(|| environment(PROFILE_ENV));
        let profile = match ProfileFile::path(environment) {
            Some(path) => ProfileFile::read(&path)?.profile(named.as_deref(), &path)?,
            None => None,
        };
        if let (Some(name), None) = (&named, &profile) {
            return Err(Misuse(format!(
                "there is no profile `{name}`: the folder of the profiles is unknown; set HOME"
            )));
        }
        // A profile that a flag names is stronger than the environment.
        let of_environment = environment(URL_ENV).filter(|_| flags.profile.is_none());
        let (server, is_of_profile) = match (&flags.server, of_environment, &profile) {
            (Some(server), _, _) => (server.clone(), false),
            (None, Some(server), _) => {
                let wrong = |error| Misuse(format!("{URL_ENV} is not the URL of a server: {error}"));
                (server_url(&server).map_err(wrong)?, false)
            }
            (None, None, Some(profile)) => (profile.server.clone(), true),
            (None, None, None) => (server_url(DEFAULT_SERVER).map_err(Misuse)?, false),
        };
        let key_of_profile =
            || profile.as_ref().filter(|_| is_of_profile).map(Profile::key).transpose().map(Option::flatten);
        let key = match (&flags.key_file, &flags.key) {
            (Some(file), _) => Some(key_in(file, "--key-file")?),
            (None, Some(key)) => Some(key.clone()),
            (None, None) => {
                let of_environment = environment(API_KEY_ENV).filter(|_| flags.profile.is_none()).map(KeyText);
                match of_environment {
                    Some(key) => Some(key),
                    None => key_of_profile()?.or_else(|| first_of_the_server(environment, is_of_profile)),
                }
            }
        };
        Ok(Self { server, key })
    }
}

/// The names of the profiles; none if the file cannot be read.
pub fn profiles() -> Vec<String> {
    let path = ProfileFile::path(&environment);
    path.and_then(|path| ProfileFile::read(&path).ok()).map(|file| file.names()).unwrap_or_default()
}

fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// On the machine of a server, its own setting has a key. It is not sent to the server of a profile.
fn first_of_the_server(environment: &dyn Fn(&str) -> Option<String>, is_of_profile: bool) -> Option<KeyText> {
    if is_of_profile {
        return None;
    }
    // The server itself may read its keys from a file.
    let of_file = || std::fs::read_to_string(environment("WEIR_API_KEYS_FILE")?).ok();
    let keys = environment("WEIR_API_KEYS").or_else(of_file)?;
    keys.split([',', '\n']).map(str::trim).find(|key| !key.is_empty()).map(KeyText::from)
}

/// The key in a file, without the spaces around it.
fn key_in(file: &Path, named_by: &str) -> Result<KeyText, Misuse> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| Misuse(format!("cannot read the API key from {} ({named_by}): {error}", file.display())))?;
    match text.trim() {
        "" => Err(Misuse(format!("{} ({named_by}) has no API key", file.display()))),
        key => Ok(KeyText::from(key)),
    }
}

/// The folder of the user's configuration: `$XDG_CONFIG_HOME`, or `~/.config`. A relative path is ignored, as the XDG
/// specification says.
fn config_folder(environment: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let absolute = |name: &str| environment(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")))
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, fs, os::unix::fs::PermissionsExt as _};

    use super::*;
    use crate::flags::ApiCommand;

    const FILE: &str = r#"
        profile = "staging"
        [profiles.staging]
        server = "https://staging.example.com/weir"
        key = "wk_staging"
        [profiles.production]
        server = "https://weir.example.com"
        key_file = "production.key"
    "#;

    /// The connection of these flags and variables, with a profile file.
    fn found(file: &str, mode: u32, flags: &[&str], variables: &[(&str, &str)]) -> Result<(String, String), String> {
        use clap::{FromArgMatches as _, Subcommand as _};
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("weir");
        fs::create_dir(&folder).unwrap();
        let path = folder.join("config.toml");
        fs::write(&path, file).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        fs::write(folder.join("production.key"), "wk_production\n").unwrap();
        let mut variables: HashMap<_, _> = variables.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        variables.insert("XDG_CONFIG_HOME", home.path().to_str().unwrap().to_owned());
        let words = ["weir", "keys", "list"].iter().chain(flags);
        let matches = ApiCommand::augment_subcommands(clap::Command::new("weir")).try_get_matches_from(words).unwrap();
        let command = ApiCommand::from_arg_matches(&matches).unwrap();
        let ApiCommand::Keys(args) = command else { panic!("{command:?}") };
        let found = Connection::of(&args.call.server, &|name| variables.get(name).cloned());
        let found = found.map_err(|error| error.to_string().replace(home.path().to_str().unwrap(), ""))?;
        Ok((found.server.to_string(), found.key.map_or(String::new(), |key| key.0)))
    }

    fn connected(flags: &[&str], variables: &[(&str, &str)]) -> (String, String) {
        let (server, key) = found(FILE, 0o600, flags, variables).unwrap();
        (server.trim_end_matches('/').to_owned(), key)
    }

    fn pair(server: &str, key: &str) -> (String, String) {
        (server.to_owned(), key.to_owned())
    }

    #[test]
    fn flags_override_the_environment_and_the_environment_overrides_the_default_profile() {
        assert_eq!(connected(&[], &[]), pair("https://staging.example.com/weir", "wk_staging"));
        let environment = [("WEIR_URL", "http://10.0.0.1:8080"), ("WEIR_API_KEY", "wk_env")];
        assert_eq!(connected(&[], &environment), pair("http://10.0.0.1:8080", "wk_env"));
        let flags = ["--server", "http://10.0.0.2:8080", "--key", "wk_flag"];
        assert_eq!(connected(&flags, &environment), pair("http://10.0.0.2:8080", "wk_flag"));
        assert_eq!(
            connected(&["--profile", "production"], &environment),
            pair("https://weir.example.com", "wk_production")
        );
        let named = [("WEIR_PROFILE", "production")];
        assert_eq!(connected(&[], &named), pair("https://weir.example.com", "wk_production"));
    }

    #[test]
    fn the_key_of_a_profile_is_sent_to_its_server_only() {
        assert_eq!(connected(&["--server", "https://evil.example"], &[]), pair("https://evil.example", ""));
        assert_eq!(connected(&[], &[("WEIR_URL", "https://evil.example")]), pair("https://evil.example", ""));
    }

    #[test]
    fn the_keys_of_a_server_on_this_machine_are_the_last_resort() {
        let keys = [("WEIR_API_KEYS", " , first,second")];
        let without_profile = found("", 0o644, &[], &keys).unwrap();
        assert_eq!(without_profile, pair("http://127.0.0.1:8080/", "first"));
        let unkeyed = "[profiles.open]\nserver = \"https://open.example.com\"";
        assert_eq!(
            found(unkeyed, 0o644, &["--profile", "open"], &keys).unwrap(),
            pair("https://open.example.com/", "")
        );
    }

    #[test]
    fn a_file_with_a_key_that_others_can_read_is_refused() {
        for mode in [0o644, 0o640, 0o604] {
            let error = found(FILE, mode, &[], &[]).unwrap_err();
            assert!(error.contains("/weir/config.toml") && error.contains("chmod 600"), "{error}");
        }
        let without_key = "[profiles.open]\nserver = \"https://open.example.com\"";
        assert!(found(without_key, 0o644, &[], &[]).is_ok());
    }

    #[test]
    fn what_is_unknown_in_the_file_is_named() {
        let refused = |file: &str, flags: &[&str]| found(file, 0o600, flags, &[]).unwrap_err();
        let error = refused("[profiles.a]\nserver = \"https://a.example\"\nkye = \"wk_hush\"\n", &[]);
        assert!(error.contains("kye") && error.contains("line 3") && !error.contains("hush"), "{error}");
        let error = refused("profil = \"a\"\n", &[]);
        assert!(error.contains("profil") && error.contains("line 1"), "{error}");
        let error = refused("[profiles]\na = \"wk_hush\"\n", &[]);
        assert!(error.contains("line 2") && !error.contains("hush"), "{error}");
        let error = refused(FILE, &["--profile", "prod"]);
        assert!(error.contains("`prod`") && error.contains("production, staging"), "{error}");
        let both = "[profiles.a]\nserver = \"https://a.example\"\nkey = \"wk_1\"\nkey_file = \"a.key\"\n";
        assert!(refused(both, &["--profile", "a"]).contains("key_file"));
        assert!(refused("[profiles.a]\nserver = \"ftp://a.example\"\n", &[]).contains("http"));
    }
}
