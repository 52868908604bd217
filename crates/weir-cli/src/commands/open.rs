//! `weir open`: the dashboard in a browser.

use std::process::Stdio;

use url::Url;

use super::{client::Client, connection::Connection};
use crate::{exit::Misuse, flags::watch::OpenArgs, output};

/// The pages of the dashboard by the prefix of an id.
const PAGES: [(&str, &str); 4] =
    [("dst_", "destinations"), ("dlv_", "deliveries"), ("evt_", "events"), ("rpl_", "replays")];

pub(super) async fn run(args: OpenArgs) -> anyhow::Result<()> {
    let connection = Connection::find(&args.server)?;
    let server = connection.server.clone();
    let page = match args.what.as_deref() {
        None => Vec::new(),
        Some(id) => match PAGES.iter().find(|(prefix, _)| id.starts_with(prefix)) {
            Some((_, page)) => vec![(*page).to_owned(), id.to_owned()],
            None => vec!["destinations".to_owned(), Client::new(connection)?.destination_id(id).await?],
        },
    };
    let url = url_of(server, &page)?;
    output::print(url.as_str())?;
    if !args.print && !open(&url) {
        eprintln!("No browser could be started here: open the address above.");
    }
    Ok(())
}

fn url_of(mut server: Url, page: &[String]) -> Result<Url, Misuse> {
    let no_base = || Misuse("the server is not a URL with a path".to_owned());
    let mut segments = server.path_segments_mut().map_err(|()| no_base())?;
    segments.pop_if_empty();
    if page.is_empty() {
        // The overview is the root of the server.
        segments.push("");
    } else {
        segments.extend(page);
    }
    drop(segments);
    Ok(server)
}

/// Whether a browser was asked to open the address.
fn open(url: &Url) -> bool {
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    // Without a display, `xdg-open` would start a browser of the terminal.
    let has_display = ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| std::env::var_os(name).is_some());
    if !cfg!(target_os = "macos") && !has_display {
        return false;
    }
    let mut command = std::process::Command::new(program);
    command.arg(url.as_str()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_begin_at_the_path_of_the_server() {
        for server in ["https://example.com/weir", "https://example.com/weir/"] {
            let url = |page: &[&str]| {
                let page: Vec<_> = page.iter().map(|part| (*part).to_owned()).collect();
                url_of(server.parse().unwrap(), &page).unwrap().to_string()
            };
            assert_eq!(url(&[]), "https://example.com/weir/");
            assert_eq!(url(&["destinations", "dst_1"]), "https://example.com/weir/destinations/dst_1");
        }
    }
}
