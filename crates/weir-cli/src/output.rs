//! What the commands print: tables, texts and JSON.
//!
//! On a terminal, output fits its width and may have colours. Elsewhere it is plain and complete: nothing is shortened.

pub mod json;
pub mod table;
pub mod texts;

use std::io::{self, IsTerminal as _, Write as _};

use terminal_size::{Height, Width};

use crate::exit::Exit;

/// What standard output can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Screen {
    /// The columns of the terminal; `None`: no terminal.
    pub width: Option<usize>,
    pub colours: bool,
    /// Whether lines can be drawn again in place: a terminal that understands escapes, and has more rows than a few.
    pub moves: bool,
}

impl Screen {
    pub const PLAIN: Self = Self { width: None, colours: false, moves: false };
    /// The width for a terminal that does not tell its own.
    pub const USUAL_WIDTH: usize = 80;
    /// Fewer rows cannot show what is drawn in place.
    const LEAST_ROWS: u16 = 8;

    /// The screen, or the usual width without a terminal: for output that people read also in a file.
    pub fn of_stdout_or_usual() -> Self {
        let screen = Self::of_stdout();
        Self { width: screen.width.or(Some(Self::USUAL_WIDTH)), ..screen }
    }

    pub fn of_stdout() -> Self {
        if !io::stdout().is_terminal() {
            return Self::PLAIN;
        }
        let size = terminal_size::terminal_size();
        let width = size.map_or(Self::USUAL_WIDTH, |(Width(width), _)| usize::from(width));
        // https://no-color.org: set and not empty. A dumb terminal, or one that does not say what it is, has no colours
        // either.
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        let is_high = size.is_some_and(|(_, Height(height))| height >= Self::LEAST_ROWS);
        Self { width: Some(width.max(1)), colours: !is_set("NO_COLOR") && !is_dumb, moves: !is_dumb && is_high }
    }
}

/// Standard output is closed, as by `| head`: the command ends and has not failed.
#[derive(Debug, thiserror::Error)]
#[error("standard output is closed")]
pub struct Closed;

/// Writes a text to standard output, followed by a line break.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{}", text.trim_end_matches('\n')).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Closed.into()),
        Err(error) => Err(error.into()),
    }
}

/// Writes a text for people: on a terminal no line is wider than it, unless a single word is.
pub fn show(text: &str, screen: Screen) -> anyhow::Result<()> {
    print(&texts::fitted(text, screen.width))
}

/// The exit of a command whose reader may have gone.
pub fn unless_closed(exit: anyhow::Result<Exit>) -> anyhow::Result<Exit> {
    match exit {
        Err(error) if error.is::<Closed>() => Ok(Exit::Done),
        exit => exit,
    }
}
