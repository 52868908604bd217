//! A live region of a list: the fragment that replaces it, and how often the browser asks for it.

use crate::client::append;

/// The attributes of a live region (`live.html`).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LiveRegion {
    pub(crate) fragment: String,
    pub(crate) trigger: &'static str,
}

impl LiveRegion {
    /// Asks at every snapshot of the stream, about once a second. The fragment learns from `seen` what the page shows,
    /// and answers 204 until that changes: so an idle list costs one read of a page, and nothing in the browser.
    pub(crate) fn prompt(mut fragment: String, version: &str) -> Self {
        append(&mut fragment, "seen", version);
        Self { fragment, trigger: "snapshot from:#live" }
    }

    /// Asks every ten seconds at most, because the store examines thousands of rows for each answer. The link does not
    /// name what was seen: htmx begins to count the time anew when the link of a region changes.
    pub(crate) fn slow(fragment: String) -> Self {
        Self { fragment, trigger: "snapshot from:#live throttle:10s" }
    }
}
