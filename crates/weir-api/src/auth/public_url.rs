//! Where browsers reach this server.

use std::{fmt, str::FromStr};

use url::{Host, Url};

/// The URL of this server for browsers, which may differ from its listener: a reverse proxy may end TLS and serve Weir
/// under a path. The proxy removes this path, so no route of the server has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicUrl {
    host: Host<String>,
    origin: String,
    path: String,
    is_https: bool,
}

/// The text is not the URL of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be an http or https URL without user, query and fragment, such as https://ops.example.com/weir")]
pub struct InvalidPublicUrl;

impl PublicUrl {
    /// Whether browsers reach the server over https.
    pub fn is_https(&self) -> bool {
        self.is_https
    }

    pub fn host(&self) -> &Host<String> {
        &self.host
    }

    /// Scheme, host and port, as browsers write them in `Origin`.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The path under which the server is reached, without a slash at its end; empty for the root.
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl FromStr for PublicUrl {
    type Err = InvalidPublicUrl;

    fn from_str(text: &str) -> Result<Self, InvalidPublicUrl> {
        let url = Url::parse(text).map_err(|_| InvalidPublicUrl)?;
        let is_plain = url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
            && url.fragment().is_none()
            && ["http", "https"].contains(&url.scheme());
        // A `;` would end the path in a cookie.
        let path = url.path().trim_end_matches('/');
        let host = url.host().filter(|_| is_plain && !path.contains(';')).ok_or(InvalidPublicUrl)?;
        Ok(Self {
            host: host.to_owned(),
            origin: url.origin().ascii_serialization(),
            path: path.to_owned(),
            is_https: url.scheme() == "https",
        })
    }
}

/// Without a slash at the end, so that a path can follow.
impl fmt::Display for PublicUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin, self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scheme_host_and_path_are_read() {
        for (text, shown, path, is_https) in [
            ("https://ops.example.com/weir", "https://ops.example.com/weir", "/weir", true),
            ("https://OPS.example.com:443/weir/", "https://ops.example.com/weir", "/weir", true),
            ("http://weir.lan:8080", "http://weir.lan:8080", "", false),
            ("http://[fd00::1]/a/b//", "http://[fd00::1]/a/b", "/a/b", false),
        ] {
            let url: PublicUrl = text.parse().unwrap();
            assert_eq!((&*url.to_string(), url.path(), url.is_https()), (shown, path, is_https));
        }
    }

    #[test]
    fn what_is_not_the_url_of_a_server_is_refused() {
        for text in [
            "",
            "ops.example.com",
            "/weir",
            "ftp://ops.example.com",
            "https://",
            "https://me@ops.example.com",
            "https://:pw@ops.example.com",
            "https://ops.example.com/?a=b",
            "https://ops.example.com/#top",
            "https://ops.example.com/a;b",
        ] {
            assert_eq!(text.parse::<PublicUrl>(), Err(InvalidPublicUrl), "{text}");
        }
    }
}
