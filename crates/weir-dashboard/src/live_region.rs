//! A live region of a list: the fragment that replaces it, and how often the browser asks for it.
//!
//! A list that is read does not move. Its fragment begins at the row at which the page began ([`Top`]), so the rows on the
//! page are read anew, and those that came later are only counted ([`Newer`]) until the reader asks for them.

use std::{fmt, time::Duration};

use weir_core::Timestamp;

use crate::{client::append, delivery_filter::instant};

/// Times of the API are in whole milliseconds.
const MILLISECOND: Duration = Duration::from_millis(1);
/// As many later rows are counted.
pub(crate) const COUNTED: usize = 100;
/// As a parameter of the API.
pub(crate) const COUNTED_AT_MOST: &str = "100";

/// Where a list begins whose newest rows come first: the instant after the newest row of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Top(Timestamp);

impl Top {
    pub(crate) fn read(text: &str) -> Option<Self> {
        text.parse().ok().map(Self)
    }

    /// The top of a list whose first row was created at this instant.
    pub(crate) fn after(newest: Timestamp) -> Self {
        Self(newest + MILLISECOND)
    }

    /// The end of the range of the rows that the page shows. `to` is that of the reader's filter.
    pub(crate) fn end(self, to: &str) -> String {
        let earlier = instant(to).parse::<Timestamp>().ok().filter(|to| *to < self.0);
        earlier.unwrap_or(self.0).to_string()
    }

    /// The beginning of the range of later rows. `from` is that of the reader's filter.
    pub(crate) fn beginning(self, from: &str) -> String {
        let later = instant(from).parse::<Timestamp>().ok().filter(|from| *from > self.0);
        later.unwrap_or(self.0).to_string()
    }
}

impl fmt::Display for Top {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How many rows came later: `37`, or `100+`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Newer {
    pub(crate) count: usize,
    pub(crate) is_more: bool,
}

impl fmt::Display for Newer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.count, if self.is_more { "+" } else { "" })
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_of_the_page_and_the_later_ones_share_no_row_and_keep_the_range_of_the_filter() {
        let top = Top::after("2025-11-21T07:30:00.123Z".parse().unwrap());
        assert_eq!(top.end(""), "2025-11-21T07:30:00.124Z");
        assert_eq!(top.beginning(""), top.end(""));
        assert_eq!(top.end("2025-11-21T07:00"), "2025-11-21T07:00:00.000Z");
        assert_eq!(top.end("2025-11-21T08:00"), top.end(""));
        assert_eq!(top.beginning("2025-11-21T08:00"), "2025-11-21T08:00:00.000Z");
        assert_eq!(top.beginning("2025-11-21T07:00"), top.end(""));
        assert_eq!(Top::read(&top.to_string()), Some(top));
    }
}
