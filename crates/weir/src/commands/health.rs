//! `weir health`: asks the process with the same settings whether it is ready. For health checks inside a container,
//! which has neither a shell nor an HTTP client.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use anyhow::Context as _;

use crate::{
    config::{SettingFlags, Settings},
    exit::{Exit, Misuse},
};
use weir_cli::commands::{
    client::{Client, Fields},
    connection::Connection,
};

/// The process checks its store and its queue for at most 2 s each before it answers.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Prints the URL, and succeeds if the process is ready. The error names the URL, too.
pub(super) async fn run(flags: &SettingFlags) -> anyhow::Result<Exit> {
    let listen = Settings::health_listen(flags)?;
    if listen.port() == 0 {
        let message = "the process listens on any free port, which this command cannot know; set a port with \
                       WEIR_METRICS_LISTEN or WEIR_LISTEN";
        return Err(Misuse(message.to_owned()).into());
    }
    let server = format!("http://{}", reachable(listen));
    let connection = Connection { server: server.parse().context("the address is no URL")?, key: None };
    Client::with_timeout(connection, TIMEOUT)?.get(&["readyz"], &Fields::new()).await?;
    println!("{server}/readyz is ready");
    Ok(Exit::Done)
}

/// A process that listens on every address also listens on loopback.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_listens_on_every_address_is_asked_on_loopback() {
        for (listen, asked) in [
            ("0.0.0.0:9464", "127.0.0.1:9464"),
            ("[::]:9464", "[::1]:9464"),
            ("127.0.0.1:8080", "127.0.0.1:8080"),
            ("10.1.2.3:8080", "10.1.2.3:8080"),
        ] {
            assert_eq!(reachable(listen.parse().unwrap()), asked.parse().unwrap(), "{listen}");
        }
    }
}
