//! The picker of a range of time, the same on every page: the last 15 minutes to 30 days, or two dates.
//!
//! A page is limited by `from` and `to` in its URL, which stay as they are when the link is passed on. The picker sends
//! the name of a range beside the dates; [`settled`] turns it into `from` before a page sees it.

use http::Uri;
use url::form_urlencoded;
use weir_core::Timestamp;

use crate::{
    client::append,
    delivery_filter::{field_value, instant},
    durations::Millis,
    site::Site,
};

/// The ranges that end now, as the picker names them.
const RANGES: [&str; 6] = ["15 min", "2 h", "24 h", "7 d", "14 d", "30 d"];
/// All of time.
const ALL: &str = "all";
/// The fields that only the picker has: the chosen range, and the dates that the page had.
const LAST: &str = "last";
const HAD_FROM: &str = "had_from";
const HAD_TO: &str = "had_to";
/// A range is shown as the last 24 hours while it differs by less than this.
const NEAR_S: u64 = 60;

/// An option of the picker.
pub(crate) struct Choice {
    pub(crate) value: &'static str,
    pub(crate) label: String,
    pub(crate) is_chosen: bool,
}

/// The picker, as a page shows it (`range.html`).
pub(crate) struct Picker {
    /// In UTC, as the field of a form has it.
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) choices: Vec<Choice>,
}

impl Picker {
    /// The picker of a page that is limited to this range.
    pub(crate) fn of(site: &Site, from: &str, to: &str) -> Self {
        let now = site.clock.now();
        let begin: Option<Timestamp> = instant(from).parse().ok();
        let lasts = |range: &str| {
            let length_s = Millis::parse(range).map_or(0, |length| length.0 / 1_000);
            let passed = begin.filter(|begin| *begin <= now && to.is_empty()).map(|begin| now.since(begin).as_secs());
            passed.is_some_and(|passed| passed.abs_diff(length_s) < NEAR_S)
        };
        let is_all = from.is_empty() && to.is_empty();
        let chosen = if is_all { Some(ALL) } else { RANGES.into_iter().find(|range| lasts(range)) };
        let choice = |value: &'static str, label: String| Choice { value, label, is_chosen: Some(value) == chosen };
        let dates = Choice { value: "", label: "These dates".to_owned(), is_chosen: chosen.is_none() };
        let ranges = RANGES.map(|range| choice(range, format!("Last {range}")));
        let choices = [dates, choice(ALL, "Any time".to_owned())].into_iter().chain(ranges).collect();
        Self { from: field_value(from), to: field_value(to), choices }
    }

    /// For a page that never shows all of time.
    pub(crate) fn of_some_time(mut self) -> Self {
        self.choices.retain(|choice| choice.value != ALL);
        self
    }
}

/// The path and query of a page whose picker was submitted, with the range as `from` and `to`; `None` if there is no
/// picker in the query. Dates that were typed count before a range that was chosen earlier.
pub(crate) fn settled(uri: &Uri, now: Timestamp) -> Option<String> {
    let pairs: Vec<(String, String)> = form_urlencoded::parse(uri.query()?.as_bytes()).into_owned().collect();
    let value = |name: &str| pairs.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value.trim());
    pairs.iter().find(|(name, _)| name == LAST)?;
    let is_untouched = field_value(value("from")) == value(HAD_FROM) && field_value(value("to")) == value(HAD_TO);
    let range = match value(LAST) {
        last if !is_untouched || last.is_empty() => None,
        ALL => Some(String::new()),
        last => Millis::parse(last).ok().map(|Millis(millis)| {
            let from = now.before(std::time::Duration::from_millis(millis)).max(Timestamp::MIN);
            Timestamp::from_secs(from.as_secs()).to_string()
        }),
    };
    let mut link = uri.path().to_owned();
    for (name, value) in pairs.iter().filter(|(name, _)| ![LAST, HAD_FROM, HAD_TO, "cursor"].contains(&name.as_str())) {
        if range.is_none() || !["from", "to"].contains(&name.as_str()) {
            append(&mut link, &name.replace(|c: char| !c.is_ascii_alphanumeric() && c != '_', ""), value.trim());
        }
    }
    append(&mut link, "from", &range.unwrap_or_default());
    Some(link)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_763_710_200);

    fn of(query: &str) -> Option<String> {
        settled(&format!("/activity?{query}").parse().unwrap(), NOW)
    }

    #[test]
    fn a_chosen_range_becomes_the_beginning_of_the_page() {
        let day = Some("/activity?actor=ann&from=2025-11-20T07:30:00.000Z".to_owned());
        assert_eq!(of("actor=ann&last=24+h&had_from=&had_to=&from=&to="), day);
        assert_eq!(
            of("actor=ann&last=24+h&from=2025-01-01T00:00&had_from=2025-01-01T00:00:00&to=&had_to=&cursor=c"),
            day
        );
        assert_eq!(
            of("actor=ann&last=all&from=2025-01-01T00:00:00&had_from=2025-01-01T00:00:00").as_deref(),
            Some("/activity?actor=ann")
        );
        assert_eq!(of("last=soon&from=&to=").as_deref(), Some("/activity"));
    }

    #[test]
    fn typed_dates_count_before_a_range_that_was_chosen_before() {
        let typed = of("last=24+h&from=2025-01-02T00:00&had_from=2025-01-01T00:00:00&to=&had_to=");
        assert_eq!(typed.as_deref(), Some("/activity?from=2025-01-02T00:00"));
        let dates = of("last=&from=2025-01-02T00:00&had_from=2025-01-02T00:00:00&to=2025-01-03T00:00&had_to=");
        assert_eq!(dates.as_deref(), Some("/activity?from=2025-01-02T00:00&to=2025-01-03T00:00"));
    }

    #[test]
    fn a_link_without_a_picker_stays_as_it_is() {
        assert_eq!((of("from=2025-01-02T00:00"), settled(&"/activity".parse().unwrap(), NOW)), (None, None));
    }
}
