//! How values are written: spans of time, counts; and texts that fit a cell.

use std::{borrow::Cow, time::Duration};

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};
use weir_core::Timestamp;

/// Shown where there is no value.
pub const NONE: &str = "–";

/// Several texts as one; a dash if there are none.
pub fn joined<T: ToString>(texts: &[T]) -> String {
    let texts: Vec<_> = texts.iter().map(T::to_string).collect();
    if texts.is_empty() { NONE.to_owned() } else { texts.join(", ") }
}

/// A value, or a dash.
pub fn or_none<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| NONE.to_owned(), |value| value.to_string())
}

/// A span of time in its largest unit: `12s`, `3m`, `5h`, `9d`.
pub fn span(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds @ 60..3_600 => format!("{}m", seconds / 60),
        seconds @ 3_600..172_800 => format!("{}h", seconds / 3_600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

pub fn span_s(seconds: f64) -> String {
    span(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

/// How long ago something was.
pub fn age(at: Timestamp, now: Timestamp) -> String {
    span(now.since(at))
}

/// A rate in as many digits as matter: `0.05`, `1.98`, `12.5`, `1300`.
pub fn rate(per_second: f64) -> String {
    let digits = match per_second {
        ..10.0 => 2,
        10.0..100.0 => 1,
        _ => 0,
    };
    let text = format!("{per_second:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// `1 delivery`, `2 deliveries`.
pub fn count(number: u64, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

/// A text without the characters that could move the cursor of a terminal, or reverse the order of what follows them.
pub fn clean(text: &str) -> String {
    text.chars().map(|char| if char.is_control() || is_bidi_control(char) { ' ' } else { char }).collect()
}

/// The controls of Unicode's bidirectional algorithm.
fn is_bidi_control(char: char) -> bool {
    matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The columns that a text takes on a terminal.
pub fn width(text: &str) -> usize {
    text.width()
}

/// A text that takes at most so many columns; `…` replaces the rest.
pub fn shortened(text: &str, columns: usize) -> String {
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

/// The widest first column of a line that the lines after it are aligned below: the labels of settings.
const MOST_INDENT: usize = 24;
/// Narrower terminals wrap by themselves.
const LEAST_WIDTH: usize = 40;

/// A text whose lines fit so many columns: wider ones are broken between words, and go on below the value of their first
/// line, or a little to the right of its beginning. A word that is wider by itself stays whole, so that it can be copied.
pub fn fitted(text: &str, columns: Option<usize>) -> String {
    let Some(columns) = columns.filter(|columns| *columns >= LEAST_WIDTH) else { return text.to_owned() };
    let lines: Vec<Cow<'_, str>> = text.split('\n').map(|line| fitted_line(line, columns)).collect();
    lines.join("\n")
}

fn fitted_line(line: &str, columns: usize) -> Cow<'_, str> {
    if shown_width(line) <= columns {
        return line.into();
    }
    let indent = hanging_indent(line);
    let (mut fitted, mut taken, mut is_first) = (String::new(), 0, true);
    // Each word with the spaces before it, so that columns stay where they are.
    for word in words(line) {
        let wide = shown_width(word);
        let bare = word.trim_start();
        if !is_first && !bare.is_empty() && taken + wide > columns {
            fitted.push('\n');
            fitted.push_str(&" ".repeat(indent));
            fitted.push_str(bare);
            taken = indent + shown_width(bare);
        } else {
            fitted.push_str(word);
            taken += wide;
        }
        is_first &= bare.is_empty();
    }
    fitted.into()
}

/// The words of a line, each with the spaces before it.
fn words(line: &str) -> impl Iterator<Item = &str> {
    let mut rest = line;
    std::iter::from_fn(move || {
        let begin = rest.find(|char: char| char != ' ').unwrap_or(rest.len());
        let end = rest[begin..].find(' ').map_or(rest.len(), |at| begin + at);
        let (word, after) = rest.split_at(end);
        rest = after;
        (!word.is_empty()).then_some(word)
    })
}

/// Where the text after a label begins, or two columns more than the line itself.
fn hanging_indent(line: &str) -> usize {
    let begin = line.len() - line.trim_start_matches(' ').len();
    let value = line[begin..].find("  ").map(|at| begin + at);
    let value = value.map(|at| shown_width(&line[..at]) + line[at..].len() - line[at..].trim_start_matches(' ').len());
    value.filter(|at| *at <= MOST_INDENT).unwrap_or(begin + 2)
}

/// The columns that a text takes, without its colours.
fn shown_width(text: &str) -> usize {
    let mut parts = text.split("\u{1b}[");
    let first = parts.next().map_or(0, width);
    first + parts.map(|part| width(part.split_once('m').map_or(part, |(_, after)| after))).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wide_line_is_broken_between_words_below_its_value() {
        let line = "limit group  Partner account (40 deliveries wait at 2 members, held until noon)";
        let expected = "limit group  Partner account (40\n             deliveries wait at 2\n             members, held until noon)";
        assert_eq!(fitted(line, Some(40)), expected);
        assert_eq!(fitted(line, None), line, "no terminal: for programs");
        let next = "  Next: weir destinations resume 'gone (410)' once it is repaired";
        assert_eq!(fitted(next, Some(44)), "  Next: weir destinations resume 'gone\n    (410)' once it is repaired");
        let long = format!("see {} now", "x".repeat(60));
        assert_eq!(fitted(&long, Some(40)), format!("see\n  {}\n  now", "x".repeat(60)));
        let red = format!("\u{1b}[31mproblem\u{1b}[0m: {}", "word ".repeat(7).trim_end());
        assert_eq!(fitted(&red, Some(43)), red, "colours take no column: {red:?}");
        assert_eq!(fitted("a\n\nb", Some(40)), "a\n\nb");
    }

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
