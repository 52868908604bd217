//! One request of a browser: the API on behalf of its sender, and the answers that pages need.

use askama::Template;
use axum::{
    extract::FromRequestParts,
    response::{Html, IntoResponse, Response},
};
use http::{HeaderValue, StatusCode, header, request::Parts};

use crate::{
    client::{ApiPath, Client},
    flash::Flash,
    frame::{Frame, Me, Section},
    refusal::Refusal,
    site::Site,
};

/// What a handler answers.
pub(crate) type Answered = Result<Response, Refusal>;

/// A request of a browser. Every handler of a page takes it as its first argument.
pub(crate) struct Visit {
    pub(crate) api: Client,
    pub(crate) site: Site,
    flash: Option<Flash>,
    /// The host that the browser names, for examples.
    host: String,
}

impl FromRequestParts<Site> for Visit {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, site: &Site) -> Result<Self, Refusal> {
        let host = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("localhost");
        Ok(Self {
            api: Client::new(site.api.clone(), site.carry, parts),
            site: site.clone(),
            flash: Flash::read(&parts.headers),
            host: host.to_owned(),
        })
    }
}

impl Visit {
    /// Who sent the request. A page asks this together with its other calls, by `tokio::try_join!`.
    pub(crate) async fn me(&self) -> Result<Me, Refusal> {
        self.api.get(&ApiPath::of(["me"])).await
    }

    /// The frame of a page for a logged-in reader.
    pub(crate) fn frame(&self, me: Me, section: Section, title: impl Into<String>) -> Frame {
        let frame = Frame::new(self.site.clone(), section, title);
        self.with_flash(Frame { me: Some(me), ..frame })
    }

    /// A frame with the message of the last action.
    pub(crate) fn with_flash(&self, frame: Frame) -> Frame {
        Frame { flash: self.flash.clone(), ..frame }
    }

    /// Where producers reach the API, for examples: `https://ops.example.com/weir`.
    pub(crate) fn public_url(&self) -> String {
        self.site.public_url.clone().unwrap_or_else(|| format!("http://{}{}", self.host, self.site.base))
    }

    /// Whether browsers reach the server under https, so that its cookies never travel without it.
    fn is_https(&self) -> bool {
        self.site.public_url.as_deref().is_some_and(|url| url.starts_with("https:"))
    }

    /// A page. It shows the message of the last action, which is removed with it.
    pub(crate) fn page(&self, page: &impl Template) -> Answered {
        self.page_with(StatusCode::OK, page)
    }

    pub(crate) fn page_with(&self, status: StatusCode, page: &impl Template) -> Answered {
        let mut response = (status, html(page)?).into_response();
        let removal = self.flash.as_ref().and_then(|_| Flash::removal(&self.site.base, self.is_https()));
        if let Some(removal) = removal {
            response.headers_mut().append(header::SET_COOKIE, removal);
        }
        Ok(response)
    }

    /// A part of a page, for live updates and previews.
    pub(crate) fn fragment(&self, part: &impl Template) -> Answered {
        Ok(html(part)?.into_response())
    }

    /// The page already shows what the fragment would: nothing is replaced.
    pub(crate) fn unchanged(&self) -> Answered {
        Ok(StatusCode::NO_CONTENT.into_response())
    }

    /// To a page of the dashboard after an action, with a message. `to` is a path without the base.
    pub(crate) fn redirect(&self, to: &str, flash: Option<Flash>) -> Answered {
        let location = HeaderValue::try_from(format!("{}{to}", self.site.base));
        let location = location.map_err(|error| Refusal::broken(&error))?;
        let mut response = (StatusCode::SEE_OTHER, [(header::LOCATION, location)]).into_response();
        if let Some(cookie) = flash.and_then(|flash| flash.cookie(&self.site.base, self.is_https())) {
            response.headers_mut().append(header::SET_COOKIE, cookie);
        }
        Ok(response)
    }

    /// After an action: back to a page with what it did, or with why it was refused. A missing login, a missing role and
    /// a missing object are answered as such: no page offers such a form.
    pub(crate) fn after<T>(&self, to: &str, done: Result<T, Refusal>, text: impl FnOnce(T) -> String) -> Answered {
        match done {
            Ok(answer) => self.redirect(to, Some(Flash::done(text(answer)))),
            Err(refusal) => match refusal.status {
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND => Err(refusal),
                _ => self.redirect(to, Some(Flash::error(refusal.text()))),
            },
        }
    }
}

fn html(template: &impl Template) -> Result<Html<String>, Refusal> {
    template.render().map(Html).map_err(|error| Refusal::broken(&error))
}

/// A path of this site in the argument of a redirect, such as `/deliveries?state=dead`. Everything else becomes `/`:
/// other hosts, also in the spellings that browsers accept.
pub(crate) fn local_path(next: &str) -> &str {
    let is_local = next.starts_with('/')
        && !next.starts_with("//")
        && next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    if is_local { next } else { "/" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_this_site_are_followed() {
        for (next, expected) in [
            ("/deliveries?state=dead,failed#x", "/deliveries?state=dead,failed#x"),
            ("", "/"),
            ("deliveries", "/"),
            ("//evil.example", "/"),
            ("/\\evil.example", "/"),
            ("https://evil.example/", "/"),
            ("/\t/evil.example", "/"),
            ("/a\r\nset-cookie: x", "/"),
            ("javascript:alert(1)", "/"),
        ] {
            assert_eq!(local_path(next), expected, "{next:?}");
        }
    }
}
