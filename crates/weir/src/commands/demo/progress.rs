//! Live progress: bars on a terminal, otherwise a table that grows by a line every two seconds. No line is longer than
//! the terminal is wide: a line that wraps could not be drawn again in place.

use std::{fmt::Write as _, io::Write as _, time::Duration};

use weir_core::Timestamp;

use weir_cli::output::{
    Screen,
    texts::{shortened, width},
};

/// The longest bar.
const BAR: usize = 24;
/// A shorter bar says less than none.
const SHORTEST_BAR: usize = 4;
/// How often a line of the table is written.
const PLAIN_EVERY: Duration = Duration::from_secs(2);

/// The content of one line.
pub(super) struct ProgressLine<'a> {
    pub(super) name: &'a str,
    pub(super) cap: &'a str,
    pub(super) total: usize,
    pub(super) arrivals: &'a [Timestamp],
}

/// Redraws the lines in place on a terminal, or writes them periodically.
pub(super) struct Progress {
    quiet: bool,
    drawn: usize,
    written_at: Option<Timestamp>,
    /// The table has its headings.
    has_headings: bool,
}

impl Progress {
    /// Shows nothing if `quiet`, which keeps standard output free for JSON.
    pub(super) fn quiet_if(quiet: bool) -> Self {
        Self { quiet, drawn: 0, written_at: None, has_headings: false }
    }

    pub(super) fn draw(&mut self, now: Timestamp, started: Timestamp, lines: &[ProgressLine<'_>], last: bool) {
        if self.quiet {
            return;
        }
        // Asked for each frame: a window may become narrower.
        let screen = Screen::of_stdout();
        if let (Some(columns), true) = (screen.width, screen.moves) {
            return self.redraw(now, lines, columns);
        }
        if !last && self.written_at.is_some_and(|at| now.since(at) < PLAIN_EVERY) {
            return;
        }
        self.written_at = Some(now);
        let columns = screen.width.unwrap_or(Screen::USUAL_WIDTH);
        if !std::mem::replace(&mut self.has_headings, true) {
            print(&format!("{}\n", headings(lines, columns)));
        }
        print(&format!("{}\n", row(now.since(started), lines, columns)));
    }

    fn redraw(&mut self, now: Timestamp, lines: &[ProgressLine<'_>], columns: usize) {
        let mut text = String::new();
        if self.drawn > 0 {
            // Move the cursor to the first line and clear the old lines.
            let _ = write!(text, "\x1b[{}A\x1b[J", self.drawn);
        }
        for line in lines {
            let _ = writeln!(text, "{}", bar(line, now, columns));
        }
        self.drawn = lines.len();
        print(&text);
    }

    /// Writes a message above the lines that are drawn next.
    pub(super) fn say(&mut self, message: &str) {
        if self.quiet {
            return;
        }
        self.drawn = 0;
        print(&format!("{message}\n"));
    }
}

// Errors are ignored: a closed pipe must not fail the demo.
fn print(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes());
    let _ = stdout.flush();
}

/// A line with a bar. The last column stays free: some terminals wrap a line that fills it.
fn bar(line: &ProgressLine<'_>, now: Timestamp, columns: usize) -> String {
    let done = line.arrivals.len();
    let last_second = line.arrivals.iter().rev().take_while(|at| now.since(**at) < Duration::from_secs(1)).count();
    let counts = format!("{:<15} {done:>5}/{:<5} {last_second:>4}/s  cap {}", line.name, line.total, line.cap);
    let room = columns.saturating_sub(1);
    let length = room.saturating_sub(width(&counts) + 1).min(BAR);
    if length < SHORTEST_BAR {
        return shortened(&counts, room);
    }
    let filled = (done * length / line.total.max(1)).min(length);
    format!("{}{} {counts}", "█".repeat(filled), "░".repeat(length - filled))
}

/// The columns of the table: the time, and what has arrived at each destination.
const TIME: usize = 7;

fn headings(lines: &[ProgressLine<'_>], columns: usize) -> String {
    cells("arrived", lines.iter().map(|line| line.name.to_owned()), columns)
}

fn row(elapsed: Duration, lines: &[ProgressLine<'_>], columns: usize) -> String {
    let arrived = lines.iter().map(|line| format!("{}/{}", line.arrivals.len(), line.total));
    cells(&format!("{:.1} s", elapsed.as_secs_f64()), arrived, columns)
}

fn cells(first: &str, cells: impl ExactSizeIterator<Item = String>, columns: usize) -> String {
    let each = (columns.saturating_sub(TIME + 1) / cells.len().max(1)).saturating_sub(2).min(15);
    let mut line = format!("{first:>TIME$}");
    for cell in cells {
        let cell = shortened(&cell, each);
        let pad = " ".repeat(each.saturating_sub(width(&cell)) + 2);
        line.push_str(&pad);
        line.push_str(&cell);
    }
    shortened(&line, columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_763_710_200);

    fn lines(arrivals: &[Timestamp]) -> Vec<ProgressLine<'_>> {
        [("Small partner", "5/second", 90), ("Growing partner", "100/second", 99_999), ("Slow, unlimited", "none", 460)]
            .map(|(name, cap, total)| ProgressLine { name, cap, total, arrivals })
            .into()
    }

    #[test]
    fn no_line_fills_the_terminal_and_80_columns_have_the_bars() {
        let arrivals = [NOW; 50];
        for columns in 1..200 {
            for line in lines(&arrivals) {
                let text = bar(&line, NOW, columns);
                assert!(width(&text) < columns.max(2), "{columns}: {text}");
            }
            for text in [headings(&lines(&arrivals), columns), row(Duration::from_secs(12), &lines(&arrivals), columns)]
            {
                assert!(width(&text) <= columns, "{columns}: {text}");
            }
        }
        let text = bar(&lines(&arrivals)[1], NOW, 80);
        assert!(text.contains('░') && text.ends_with("Growing partner    50/99999   50/s  cap 100/second"), "{text}");
    }

    #[test]
    fn without_a_terminal_each_moment_is_one_line() {
        let arrivals = [NOW; 50];
        assert_eq!(headings(&lines(&arrivals), 80), "arrived    Small partner  Growing partner  Slow, unlimited");
        let row = row(Duration::from_millis(2_050), &lines(&arrivals), 80);
        assert_eq!(row, "  2.0 s            50/90         50/99999           50/460");
    }
}
