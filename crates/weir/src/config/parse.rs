//! Parses texts into typed settings. Each error says what is wrong and what is valid; it never repeats a secret.

mod log;
mod networks;
mod servers;

use std::{
    fmt::Display,
    net::{Ipv4Addr, SocketAddr},
    str::FromStr,
};

use weir_api::{InvalidPublicUrl, PublicUrl};
use weir_core::{event_types, shed::Mode};

use super::ApiKey;

pub(super) use log::{log, log_format};
pub(super) use networks::{egress_proxy, host_patterns, hosts, networks, ports};
pub(super) use servers::{
    database_read_url, database_url, encryption_keys, password, readable_file, redis_prefix, redis_url,
};

/// Accepted instead of a number of attempts or connections.
const AUTO: &str = "auto";
/// Accepted instead of a number of days.
const FOREVER: &str = "forever";

type Parsed<T> = Result<T, String>;

pub(super) fn listen(text: &str) -> Parsed<SocketAddr> {
    let local = text.strip_prefix("localhost:").and_then(|port| port.parse().ok());
    local.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port))).or_else(|| text.parse().ok()).ok_or_else(|| {
        format!("`{text}` is not an address to listen on; use an IP address and a port such as 127.0.0.1:8080")
    })
}

/// Empty: none.
pub(super) fn optional_listen(text: &str) -> Parsed<Option<SocketAddr>> {
    if text.is_empty() { Ok(None) } else { listen(text).map(Some) }
}

pub(super) fn api_keys(text: &str) -> Parsed<Vec<ApiKey>> {
    let key = |key: &str| {
        // Only these characters can be sent in the `Authorization` header.
        let sendable = key.bytes().all(|byte| byte.is_ascii_graphic());
        sendable.then(|| ApiKey(key.to_owned())).ok_or_else(|| {
            "a key contains a space or a non-ASCII character, which no request can send; separate keys by commas"
                .to_owned()
        })
    };
    items(text).map(key).collect()
}

/// Empty: none.
pub(super) fn public_url(text: &str) -> Parsed<Option<PublicUrl>> {
    // The error does not repeat the text: it may hold a password.
    if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(|error: InvalidPublicUrl| error.to_string()) }
}

pub(super) fn on_or_off(text: &str) -> Parsed<bool> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("`{text}` is neither on nor off")),
    }
}

pub(super) fn shed(text: &str) -> Parsed<Mode> {
    text.parse().map_err(|_| format!("`{text}` is none of on, dry-run and off"))
}

pub(super) fn event_types(text: &str) -> Parsed<event_types::Mode> {
    text.parse().map_err(|_| format!("`{text}` is neither open nor strict"))
}

/// Empty: that of the program.
pub(super) fn user_agent(text: &str) -> Parsed<Option<String>> {
    match text.len() {
        0 => Ok(None),
        // What a header of a destination may have.
        1..=256 if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) => Ok(Some(text.to_owned())),
        _ => Err("a user-agent has at most 256 characters, all of them printable ASCII".to_owned()),
    }
}

pub(super) fn boolean(text: &str) -> Parsed<bool> {
    match text {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(format!("`{text}` is not a boolean; use true or false")),
    }
}

/// A whole number from `least` to `most`.
pub(super) fn number<T: FromStr + PartialOrd + Display>(text: &str, least: T, most: T) -> Parsed<T> {
    match text.parse::<T>() {
        Ok(number) if least <= number && number <= most => Ok(number),
        _ => Err(format!("`{text}` is not a whole number from {least} to {most}")),
    }
}

/// A maximum of destinations.
pub(super) fn destinations(text: &str) -> Parsed<usize> {
    number(text, 1, 1_000_000)
}

/// The maximum number of attempts that a worker makes at one time. `None`: as many as the limit of open files allows.
pub(super) fn capacity(text: &str) -> Parsed<Option<usize>> {
    number_or(AUTO, "means as many as the limit of open files allows", text, 1_000_000)
}

/// The maximum number of connections of one client address. `None`: a quarter of all connections.
pub(super) fn connections_per_address(text: &str) -> Parsed<Option<usize>> {
    number_or(AUTO, "means a quarter of all connections", text, 1_000_000)
}

/// How many days records are kept. `None`: forever. The minimum is a day, because daily limits need the sends of the
/// last day.
pub(super) fn days(text: &str) -> Parsed<Option<u64>> {
    number_or(FOREVER, "disables the deletion", text, 36_500)
}

/// A whole number from 1 to `most`, or a word.
fn number_or<T: FromStr + PartialOrd + Display + From<u8>>(
    word: &str,
    meaning: &str,
    text: &str,
    most: T,
) -> Parsed<Option<T>> {
    if text == word {
        return Ok(None);
    }
    number(text, T::from(1), most).map(Some).map_err(|problem| format!("{problem}, nor {word}, which {meaning}"))
}

/// The items of a comma-separated list, trimmed; empty items are ignored.
fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_ip_and_port_or_localhost() {
        assert_eq!(listen("[::1]:0"), Ok("[::1]:0".parse().unwrap()));
        assert_eq!(listen("localhost:9000"), Ok("127.0.0.1:9000".parse().unwrap()));
        for bad in ["", "8080", "example.com:80", "127.0.0.1", "localhost:99999"] {
            assert!(listen(bad).unwrap_err().contains("127.0.0.1:8080"), "{bad}");
        }
    }

    #[test]
    fn a_key_that_no_request_can_send_is_refused_and_not_shown() {
        assert_eq!(api_keys("a, b,").unwrap().len(), 2);
        let problem = api_keys("good,geh eim").unwrap_err();
        assert!(!problem.contains("geh eim"), "{problem}");
    }

    #[test]
    fn retention_is_a_number_of_days_or_forever() {
        assert_eq!(days("14"), Ok(Some(14)));
        assert_eq!(days("forever"), Ok(None));
        for bad in ["0", "-1", "1.5", "never", "", "36501"] {
            assert!(days(bad).unwrap_err().contains("nor forever"), "{bad}");
        }
    }

    #[test]
    fn a_capacity_is_a_number_or_auto() {
        assert_eq!(capacity("auto"), Ok(None));
        assert_eq!(capacity("512"), Ok(Some(512)));
        assert!(capacity("0").unwrap_err().contains("auto"));
    }

    #[test]
    fn numbers_outside_their_bounds_are_refused() {
        assert_eq!(number("5", 1, 5), Ok(5));
        for bad in ["0", "6", "-1", "1.5", ""] {
            assert!(number::<u64>(bad, 1, 5).unwrap_err().contains("from 1 to 5"), "{bad}");
        }
    }
}
