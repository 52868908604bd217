//! How values are written: spans of time, counts; and texts that fit a cell.

use std::time::Duration;

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};
use weir_core::Timestamp;

/// Shown where there is no value.
pub(in crate::commands) const NONE: &str = "–";

/// Several texts as one; a dash if there are none.
pub(in crate::commands) fn joined<T: ToString>(texts: &[T]) -> String {
    let texts: Vec<_> = texts.iter().map(T::to_string).collect();
    if texts.is_empty() { NONE.to_owned() } else { texts.join(", ") }
}

/// A value, or a dash.
pub(in crate::commands) fn or_none<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| NONE.to_owned(), |value| value.to_string())
}

/// A span of time in its largest unit: `12s`, `3m`, `5h`, `9d`.
pub(in crate::commands) fn span(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds @ 60..3_600 => format!("{}m", seconds / 60),
        seconds @ 3_600..172_800 => format!("{}h", seconds / 3_600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

pub(in crate::commands) fn span_s(seconds: f64) -> String {
    span(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

/// How long ago something was.
pub(in crate::commands) fn age(at: Timestamp, now: Timestamp) -> String {
    span(now.since(at))
}

/// A rate in as many digits as matter: `0.05`, `1.98`, `12.5`, `1300`.
pub(in crate::commands) fn rate(per_second: f64) -> String {
    let digits = match per_second {
        ..10.0 => 2,
        10.0..100.0 => 1,
        _ => 0,
    };
    let text = format!("{per_second:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// `1 delivery`, `2 deliveries`.
pub(in crate::commands) fn count(number: u64, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

/// A text without the characters that could move the cursor of a terminal, or reverse the order of what follows them.
pub(in crate::commands) fn clean(text: &str) -> String {
    text.chars().map(|char| if char.is_control() || is_bidi_control(char) { ' ' } else { char }).collect()
}

/// The controls of Unicode's bidirectional algorithm.
fn is_bidi_control(char: char) -> bool {
    matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The columns that a text takes on a terminal.
pub(in crate::commands) fn width(text: &str) -> usize {
    text.width()
}

/// A text that takes at most so many columns; `…` replaces the rest.
pub(in crate::commands) fn shortened(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut room = columns.saturating_sub(1);
    let fits = |char: &char| {
        let taken = char.width().unwrap_or(0);
        let fits = taken <= room;
        room = room.saturating_sub(taken);
        fits
    };
    let mut short: String = text.chars().take_while(fits).collect();
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_their_largest_unit() {
        let written = [0, 59, 60, 3_599, 3_600, 172_799, 172_800].map(|s| span(Duration::from_secs(s)));
        assert_eq!(written, ["0s", "59s", "1m", "59m", "1h", "47h", "2d"]);
    }

    #[test]
    fn rates_have_the_digits_that_matter() {
        assert_eq!([0.0, 0.05, 1.98, 3.0, 12.54, 1_300.4].map(rate), ["0", "0.05", "1.98", "3", "12.5", "1300"]);
    }

    #[test]
    fn a_shortened_text_takes_no_more_columns_than_it_may() {
        assert_eq!(shortened("Acme", 4), "Acme");
        assert_eq!(shortened("Acme production", 6), "Acme …");
        assert_eq!(shortened("日本語テキスト", 6), "日本…");
        assert_eq!(clean("a\u{1b}[2Jb\n"), "a [2Jb ");
        assert_eq!(clean("invoice\u{202e}fdp.exe"), "invoice fdp.exe");
    }
}
