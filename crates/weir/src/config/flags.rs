//! The settings as flags of a command.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, value_parser};

use super::{
    names::{file_of, flag, variable},
    settings::{BOOLEAN, SETTINGS, Setting},
};

/// The flags that are set, as texts: the same code parses flags, environment and file, with the same messages.
#[derive(Debug, Clone, Default)]
pub(crate) struct SettingFlags {
    pub(super) config: Option<PathBuf>,
    pub(super) texts: Vec<(&'static str, String)>,
    /// The files of secrets.
    pub(super) files: Vec<(&'static str, PathBuf)>,
}

impl Args for SettingFlags {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config").long("config").value_name("FILE").value_parser(value_parser!(PathBuf));
        let help = "Configuration file [env: WEIR_CONFIG] [default: weir.toml, if it exists]";
        let secrets = SETTINGS.iter().filter(|setting| setting.is_secret);
        command.arg(config.help(help)).args(SETTINGS.iter().map(argument)).args(secrets.map(file_argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn argument(setting: &Setting) -> Arg {
    let mut help = format!("{} [env: {}]", setting.help, variable(setting.name));
    if setting.is_secret {
        help += &format!(" [file: {}, {}]", flag(&file_of(setting.name)), variable(&file_of(setting.name)));
    }
    if !setting.shown_default.is_empty() {
        help += &format!(" [default: {}]", setting.shown_default);
    }
    let long = flag(setting.name).trim_start_matches('-').to_owned();
    let argument = Arg::new(setting.name).long(long).value_name(setting.form).help(help);
    if setting.form != BOOLEAN {
        return argument;
    }
    argument.num_args(0..=1).require_equals(true).default_missing_value("true")
}

/// The flag that names the file of a secret. It is not listed, because the help of the setting names it.
fn file_argument(setting: &'static Setting) -> Arg {
    let name = file_of(setting.name);
    let long = flag(&name).trim_start_matches('-').to_owned();
    Arg::new(name)
        .long(long)
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .conflicts_with(setting.name)
        .hide(true)
}

impl FromArgMatches for SettingFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let text = |setting: &Setting| Some((setting.name, matches.get_one::<String>(setting.name)?.clone()));
        let config = matches.get_one("config").cloned();
        let secrets = SETTINGS.iter().filter(|setting| setting.is_secret);
        let file =
            |setting: &Setting| Some((setting.name, matches.get_one::<PathBuf>(&file_of(setting.name))?.clone()));
        let files = secrets.filter_map(file).collect();
        Ok(Self { config, texts: SETTINGS.iter().filter_map(text).collect(), files })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_has_a_flag_whose_help_names_the_variable() {
        let command = SettingFlags::augment_args(Command::new("weir"));
        for setting in SETTINGS {
            let flag = flag(setting.name);
            let argument =
                command.get_arguments().find(|argument| Some(flag.trim_start_matches("--")) == argument.get_long());
            let help = argument.and_then(|argument| argument.get_help()).map(ToString::to_string).unwrap_or_default();
            assert!(help.contains(&format!("[env: {}]", variable(setting.name))), "{flag}: {help}");
        }
    }
}
