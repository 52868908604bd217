//! Refuses requests that a page of another site makes a browser send (CSRF).
//!
//! A browser adds the cookie of a session to every request for this server, and on a server without keys a request
//! needs nothing at all. So who sends the request is not enough: it matters which page does. Browsers say so in
//! `Sec-Fetch-Site`, which no page can set. They leave this header out for plain-http names other than `localhost`;
//! then `Origin` must be this server. A key in `Authorization` needs no check, because a browser never adds one.

use http::{HeaderMap, Method, header};
use url::Url;

use super::{Credential, PublicUrl};
use crate::problem::{ApiResult, Problem, ProblemKind};

const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// Refuses a request that may change something and that a page of another site has sent, or may have sent.
/// `credential`: how the request names its sender, if its path needs one.
pub(crate) fn check(
    credential: Option<Credential>,
    method: &Method,
    headers: &HeaderMap,
    public_url: Option<&PublicUrl>,
) -> ApiResult<()> {
    let is_allowed = match (credential, sender(headers, public_url)) {
        _ if [Method::GET, Method::HEAD, Method::OPTIONS].contains(method) => true,
        (Some(Credential::Key), _) | (_, Sender::OwnPage) => true,
        (_, Sender::OtherPage) => false,
        // Only browsers have sessions, so a request with a session must name its page. Programs other than browsers do
        // not send these headers. Their requests are accepted without a session: to log in, and on a server that
        // everybody may use.
        (credential, Sender::Unnamed) => !matches!(credential, Some(Credential::Session { .. })),
    };
    if is_allowed {
        return Ok(());
    }
    Err(Problem::new(
        ProblemKind::CrossSite,
        "a browser may send this only from a page of this server; `Sec-Fetch-Site` or `Origin` names another one or none",
    ))
}

/// Which page sent a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sender {
    OwnPage,
    OtherPage,
    /// The request does not say. Only programs that are not browsers leave both headers out.
    Unnamed,
}

fn sender(headers: &HeaderMap, public_url: Option<&PublicUrl>) -> Sender {
    let own = |is_own| if is_own { Sender::OwnPage } else { Sender::OtherPage };
    let mut sites = headers.get_all(SEC_FETCH_SITE).iter();
    match (sites.next(), sites.next()) {
        // `none`: the user made the request, for example with a bookmark, and not a page.
        (Some(site), None) => return own(site == "same-origin" || site == "none"),
        (Some(_), Some(_)) => return Sender::OtherPage,
        (None, _) => {}
    }
    match headers.get(header::ORIGIN) {
        Some(_) => own(is_own_origin(headers, public_url).unwrap_or(false)),
        None => Sender::Unnamed,
    }
}

/// Whether `Origin` is this server: its public URL, or the host that the request names. A name that another site lets
/// resolve to this server does not count, because `Hosts` has refused such a request before.
fn is_own_origin(headers: &HeaderMap, public_url: Option<&PublicUrl>) -> Option<bool> {
    let only = |name| {
        let mut values = headers.get_all(name).iter();
        values.next().filter(|_| values.next().is_none())?.to_str().ok()
    };
    let origin = Url::parse(only(header::ORIGIN)?).ok()?;
    if public_url.is_some_and(|url| url.origin() == origin.origin().ascii_serialization()) {
        return Some(true);
    }
    // The scheme is not compared: behind a proxy that ends TLS, only the browser knows it.
    let host = Url::parse(&format!("{}://{}", origin.scheme(), only(header::HOST)?)).ok()?;
    let place = |url: &Url| url.host().map(|host| (host.to_owned(), url.port_or_known_default()));
    Some(place(&origin)? == place(&host)?)
}

#[cfg(test)]
mod tests {
    use weir_core::Timestamp;

    use super::*;

    const SESSION: Credential = Credential::Session { expires_at: Timestamp::MAX };

    fn is_admitted(credential: Option<Credential>, method: &Method, headers: &[(&'static str, &str)]) -> bool {
        let url: PublicUrl = "https://ops.example.com/weir".parse().unwrap();
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        map.entry("host").or_insert("weir.lan:8080".parse().unwrap());
        check(credential, method, &map, Some(&url)).is_ok()
    }

    #[test]
    fn a_change_in_a_session_must_come_from_a_page_of_this_server() {
        for (headers, expected) in [
            (&[("sec-fetch-site", "same-origin")][..], true),
            (&[("sec-fetch-site", "none")], true),
            (&[("sec-fetch-site", "same-site")], false),
            (&[("sec-fetch-site", "cross-site")], false),
            (&[("sec-fetch-site", "")], false),
            (&[("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")], false),
            // No page can set `Sec-Fetch-Site`, but an old browser may let a page set `Origin`. So `Sec-Fetch-Site`
            // takes precedence.
            (&[("sec-fetch-site", "cross-site"), ("origin", "http://weir.lan:8080")], false),
            (&[("sec-fetch-site", "same-origin"), ("origin", "http://evil.test")], true),
            (&[("origin", "http://weir.lan:8080")], true),
            (&[("origin", "https://weir.lan:8080")], true),
            (&[("origin", "http://WEIR.lan:8080")], true),
            (&[("origin", "http://weir.lan")], false),
            (&[("origin", "http://weir.lan:8081")], false),
            (&[("origin", "http://weir.lan.evil.test:8080")], false),
            (&[("origin", "http://evil.test")], false),
            (&[("origin", "null")], false),
            (&[("origin", "")], false),
            (&[("origin", "http://weir.lan:8080"), ("origin", "http://evil.test")], false),
            (&[("origin", "https://ops.example.com")], true),
            (&[("origin", "http://ops.example.com")], false),
            (&[("origin", "http://weir.lan"), ("host", "weir.lan:80")], true),
            (&[("origin", "https://weir.lan"), ("host", "weir.lan")], true),
            (&[("origin", "http://[::1]:8080"), ("host", "[::1]:8080")], true),
            (&[], false),
        ] {
            assert_eq!(is_admitted(Some(SESSION), &Method::POST, headers), expected, "{headers:?}");
        }
    }

    #[test]
    fn reads_are_admitted_from_everywhere_and_every_other_method_is_checked() {
        let elsewhere = [("sec-fetch-site", "cross-site")];
        for method in [Method::GET, Method::HEAD, Method::OPTIONS] {
            assert!(is_admitted(Some(SESSION), &method, &elsewhere), "{method}");
        }
        for method in ["POST", "PUT", "PATCH", "DELETE", "PURGE"] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            assert!(!is_admitted(Some(SESSION), &method, &elsewhere), "{method}");
        }
    }

    #[test]
    fn a_request_without_a_session_is_refused_only_if_another_page_sent_it() {
        for credential in [None, Some(Credential::Nothing)] {
            assert!(is_admitted(credential, &Method::POST, &[]));
            assert!(is_admitted(credential, &Method::POST, &[("origin", "http://weir.lan:8080")]));
            assert!(!is_admitted(credential, &Method::POST, &[("origin", "http://evil.test")]));
            assert!(!is_admitted(credential, &Method::POST, &[("sec-fetch-site", "cross-site")]));
        }
        assert!(is_admitted(Some(Credential::Key), &Method::POST, &[("origin", "http://evil.test")]));
    }
}
