//! A process of Weir with the settings of the tests.

use std::{io, path::Path, process::Stdio, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

const STARTS_WITHIN: Duration = Duration::from_secs(30);

/// What a process prints when it listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listening {
    /// `http://` and the address.
    pub url: String,
    /// The URL of the metrics, if they have their own listener.
    pub metrics_url: Option<String>,
}

/// A command that starts the program `weir` in a folder, on a free port, and is killed when dropped. Receivers on
/// loopback are allowed.
pub fn weir_command(weir: &Path, folder: &Path) -> Command {
    let mut command = Command::new(weir);
    // Weir refuses settings that it does not know, such as the variables of the tests; and settings of the caller must
    // not affect a test.
    let is_a_setting = |name: &[u8]| name.starts_with(b"WEIR_") || name.starts_with(b"OTEL_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_a_setting(name.as_encoded_bytes())) {
        command.env_remove(name);
    }
    let settings = [
        ("WEIR_LISTEN", "127.0.0.1:0"),
        ("WEIR_ALLOW_HTTP", "true"),
        ("WEIR_ALLOW_NETWORKS", "127.0.0.0/8"),
        ("WEIR_LOG", "warn"),
    ];
    command.current_dir(folder).envs(settings).stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// Waits until a process, whose standard output is piped, listens. `None`: it has ended before.
///
/// # Errors
///
/// The output is not piped or no text, or the process does not listen in time.
pub async fn weir_listens(process: &mut Child) -> io::Result<Option<Listening>> {
    let stdout = process.stdout.take().ok_or_else(|| io::Error::other("the output of Weir is not piped"))?;
    let mut lines = BufReader::new(stdout).lines();
    let mut metrics_url = None;
    let listening = tokio::time::timeout(STARTS_WITHIN, async {
        while let Some(line) = lines.next_line().await? {
            if let Some((_, url)) = line.split_once("metrics are served on ") {
                metrics_url = Some(address(url));
            }
            if let Some((_, url)) = line.split_once("listening on ") {
                return Ok(Some(Listening { url: address(url), metrics_url }));
            }
        }
        Ok(None)
    });
    let listening = listening.await.unwrap_or_else(|_| Err(io::Error::other("Weir did not listen in time")))?;
    // Keeps the pipe open, so Weir never writes to a closed pipe.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    Ok(listening)
}

/// The address at the end of a line, which is text or a JSON object.
fn address(end: &str) -> String {
    end.trim().trim_end_matches("\"}").to_owned()
}
