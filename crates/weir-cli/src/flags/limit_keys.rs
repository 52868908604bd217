//! The flags of `weir limit-keys`, and those of destinations about limit keys.

use clap::{Args, Subcommand};
use clap_complete::ArgValueCompleter;

use super::{complete::destination_names, limit::LimitText};

#[derive(Debug, Clone, Subcommand)]
pub enum LimitKeyCommand {
    /// List the keys that wait or have an override, with what each may send and why not more
    List {
        /// The destination, by id or name
        #[arg(value_name = "ID|NAME", add = ArgValueCompleter::new(destination_names))]
        destination: String,
        /// The order: backlog, the longest first, or use, the most sends of the last minute first
        #[arg(long, value_name = "ORDER", default_value = "backlog")]
        sort: String,
        /// Only keys that contain this text
        #[arg(long = "search", short = 's', value_name = "TEXT")]
        q: Option<String>,
        /// How many
        #[arg(long, value_name = "N", default_value = "50", value_parser = clap::value_parser!(u32).range(1..=1_000))]
        limit: u32,
    },
    /// Show the backlog of one key, what it may send and what bounds it
    Show {
        /// The destination, by id or name
        #[arg(value_name = "ID|NAME", add = ArgValueCompleter::new(destination_names))]
        destination: String,
        /// `""` is the key of events without one
        #[arg(value_name = "KEY")]
        limit_key: String,
    },
    /// Send nothing of these keys; their events wait. `""` is the key of events without one
    Pause(OneWithKeys),
    /// Send paused keys again
    Resume(OneWithKeys),
}

#[derive(Debug, Clone, Args)]
pub struct OneWithKeys {
    /// The destination, by id or name
    #[arg(value_name = "ID|NAME", add = ArgValueCompleter::new(destination_names))]
    pub destination: String,
    #[arg(value_name = "KEY", required = true)]
    pub keys: Vec<String>,
}

/// The limits of each limit key.
#[derive(Debug, Clone, Args)]
pub struct KeyFlags {
    /// A budget for each value that this JSON pointer finds in the data of events, such as /customer/id; none removes them
    #[arg(long, value_name = "POINTER|none")]
    pub limit_key: Option<String>,
    /// A limit of each key by itself, as --limit; one for each period
    #[arg(long = "key-limit", value_name = "N/PERIOD[:BURST|:window][+MARGIN]")]
    pub key_limits: Vec<LimitText>,
    /// Other limits for one key, such as cus_1=50/second, or unlimited; none removes them. May be repeated
    #[arg(long = "key-override", value_name = "KEY=LIMIT|unlimited|none", value_parser = key_override)]
    pub key_overrides: Vec<(String, KeyOverrideText)>,
    /// Most sends of one key that are under way at one time
    #[arg(long, value_name = "N")]
    pub key_max_in_flight: Option<u32>,
}

/// What is different for one key.
#[derive(Debug, Clone, PartialEq)]
pub enum KeyOverrideText {
    Limit(LimitText),
    Unlimited,
    None,
}

/// A key may contain `=`; a limit does not.
fn key_override(text: &str) -> Result<(String, KeyOverrideText), String> {
    let (key, limit) = text.rsplit_once('=').ok_or("use a key and its limit, such as cus_1=50/second")?;
    let special = match limit {
        "none" => KeyOverrideText::None,
        "unlimited" => KeyOverrideText::Unlimited,
        limit => KeyOverrideText::Limit(limit.parse()?),
    };
    Ok((key.to_owned(), special))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_may_contain_an_equals_sign() {
        let (key, special) = key_override("a=b=50/second").unwrap();
        assert_eq!((key.as_str(), special), ("a=b", KeyOverrideText::Limit("50/second".parse().unwrap())));
        assert_eq!(key_override("=none").unwrap(), (String::new(), KeyOverrideText::None));
        assert!(key_override("cus_1").is_err() && key_override("cus_1=fast").is_err());
    }
}
