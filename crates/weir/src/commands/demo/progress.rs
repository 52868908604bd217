//! Live progress: bars on a terminal, plain lines otherwise.

use std::{
    fmt::Write as _,
    io::{IsTerminal as _, Write as _},
    time::Duration,
};

use weir_core::Timestamp;

const BAR: usize = 24;
/// How often plain lines are written.
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
    live: bool,
    drawn: usize,
    written_at: Option<Timestamp>,
}

impl Progress {
    /// Shows nothing if `quiet`, which keeps standard output free for JSON.
    pub(super) fn quiet_if(quiet: bool) -> Self {
        Self { quiet, live: std::io::stdout().is_terminal(), drawn: 0, written_at: None }
    }

    pub(super) fn draw(&mut self, now: Timestamp, started: Timestamp, lines: &[ProgressLine<'_>], last: bool) {
        if self.quiet {
            return;
        }
        if !self.live && !last && self.written_at.is_some_and(|at| now.since(at) < PLAIN_EVERY) {
            return;
        }
        self.written_at = Some(now);
        let mut text = String::new();
        if self.live && self.drawn > 0 {
            // Move the cursor to the first line and clear the old lines.
            let _ = write!(text, "\x1b[{}A\x1b[J", self.drawn);
        }
        for line in lines {
            let _ = writeln!(text, "{}", render(line, now, started, self.live));
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

fn render(line: &ProgressLine<'_>, now: Timestamp, started: Timestamp, live: bool) -> String {
    let done = line.arrivals.len();
    let last_second = line.arrivals.iter().rev().take_while(|at| now.since(**at) < Duration::from_secs(1)).count();
    let counts = format!(
        "{:<22} {:>5}/{:<5} {last_second:>4} in the last second, cap {}",
        line.name, done, line.total, line.cap
    );
    if !live {
        return format!("{:>5.1} s  {counts}", now.since(started).as_secs_f64());
    }
    let filled = (done * BAR / line.total.max(1)).min(BAR);
    format!("{}{} {counts}", "█".repeat(filled), "░".repeat(BAR - filled))
}
