//! Tables: texts to the left, numbers to the right, and no line longer than the terminal is wide.
//!
//! A table that is too wide gets short headings, then shortens its flexible columns with `…`, then leaves its optional
//! columns out. Without a terminal it is complete.

use super::{
    Screen,
    texts::{clean, shortened, width},
};

const GAP: &str = "  ";
/// Flexible columns are shortened further only when no optional column is left to omit.
const SHORTEST: usize = 16;

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    heading: &'static str,
    short: &'static str,
    is_number: bool,
    is_flexible: bool,
    is_optional: bool,
    is_hidden: bool,
    /// The least width.
    least: usize,
}

impl Column {
    pub const fn text(heading: &'static str) -> Self {
        Self {
            heading,
            short: heading,
            is_number: false,
            is_flexible: false,
            is_optional: false,
            is_hidden: false,
            least: 0,
        }
    }

    pub const fn number(heading: &'static str) -> Self {
        Self { is_number: true, ..Self::text(heading) }
    }

    /// Another heading for a table that would be too wide.
    pub const fn or(self, short: &'static str) -> Self {
        Self { short, ..self }
    }

    /// The cells may be shortened.
    pub const fn flexible(self) -> Self {
        Self { is_flexible: true, ..self }
    }

    /// The column may be left out.
    pub const fn optional(self) -> Self {
        Self { is_optional: true, ..self }
    }

    /// The column is not shown if all its cells would say the same.
    pub const fn hidden_if(self, is_hidden: bool) -> Self {
        Self { is_hidden, ..self }
    }

    /// The column is at least this wide, so that tables that are printed one after the other are aligned.
    pub const fn at_least(self, least: usize) -> Self {
        Self { least, ..self }
    }
}

/// The meaning of a cell, as a colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Good,
    Waiting,
    Bad,
}

impl Tone {
    /// The tone of a state of a destination, a delivery or a replay.
    pub fn of_state(state: &str) -> Self {
        match state {
            "delivered" | "completed" | "active" => Self::Good,
            "failed" | "dead" | "expired" | "breaker open" => Self::Bad,
            "retrying" | "held" | "paused" | "probing" => Self::Waiting,
            _ => Self::Plain,
        }
    }

    const fn escape(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Good => "\u{1b}[32m",
            Self::Waiting => "\u{1b}[33m",
            Self::Bad => "\u{1b}[31m",
        }
    }
}

/// A cell of a table.
#[derive(Debug, Clone)]
pub struct Cell {
    text: String,
    tone: Tone,
}

impl<T: ToString> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: clean(&text.to_string()), tone: Tone::Plain }
    }
}

impl Cell {
    /// A text in a colour.
    pub fn toned(text: &str, tone: Tone) -> Self {
        Self { tone, ..Self::from(text) }
    }

    /// A state, in the colour of its meaning.
    pub fn state(state: &str) -> Self {
        Self { tone: Tone::of_state(state), ..Self::from(state) }
    }
}

/// A table of `N` columns.
#[derive(Debug, Clone)]
pub struct Table<const N: usize> {
    columns: [Column; N],
    rows: Vec<[Cell; N]>,
    has_headings: bool,
}

impl<const N: usize> Table<N> {
    pub const fn new(columns: [Column; N]) -> Self {
        Self { columns, rows: Vec::new(), has_headings: true }
    }

    pub fn without_headings(self) -> Self {
        Self { has_headings: false, ..self }
    }

    pub fn with(mut self, rows: impl IntoIterator<Item = [Cell; N]>) -> Self {
        self.rows.extend(rows);
        self
    }

    /// The lines of the table. On a terminal a rule separates the headings from the rows.
    pub fn render(&self, screen: Screen) -> String {
        let Layout { shown, is_short } = self.layout(screen.width);
        let mut lines = Vec::with_capacity(self.rows.len() + 2);
        if self.has_headings {
            let heading = |column: usize| Cell::from(self.heading(column, is_short));
            lines.push(self.line(&std::array::from_fn(heading), &shown, Screen { colours: false, ..screen }));
            if screen.width.is_some() {
                lines.push(shown.iter().map(|(_, width)| "─".repeat(*width)).collect::<Vec<_>>().join(GAP));
            }
        }
        lines.extend(self.rows.iter().map(|row| self.line(row, &shown, screen)));
        lines.join("\n")
    }

    fn line(&self, row: &[Cell; N], shown: &[(usize, usize)], screen: Screen) -> String {
        let mut line = String::new();
        for (place, (column, columns)) in shown.iter().enumerate() {
            let cell = &row[*column];
            let text = shortened(&cell.text, *columns);
            let pad = " ".repeat(columns.saturating_sub(width(&text)));
            let text = match cell.tone.escape() {
                "" => text,
                escape if screen.colours => format!("{escape}{text}\u{1b}[0m"),
                _ => text,
            };
            if place > 0 {
                line.push_str(GAP);
            }
            line.push_str(&if self.columns[*column].is_number { pad + &text } else { text + &pad });
        }
        line.trim_end().to_owned()
    }

    fn heading(&self, column: usize, is_short: bool) -> &'static str {
        match (self.has_headings, is_short) {
            (false, _) => "",
            (_, false) => self.columns[column].heading,
            (_, true) => self.columns[column].short,
        }
    }

    /// Which columns are shown, and how wide.
    fn layout(&self, room: Option<usize>) -> Layout {
        let mut kept: Vec<usize> = (0..N).filter(|column| !self.columns[*column].is_hidden).collect();
        let full = self.widths(&kept, false);
        let Some(room) = room.filter(|room| total(&full) > *room) else {
            return Layout { shown: full, is_short: false };
        };
        loop {
            let mut shown = self.widths(&kept, true);
            self.shorten(&mut shown, room, SHORTEST);
            match kept.iter().rposition(|column| self.columns[*column].is_optional) {
                Some(place) if total(&shown) > room => {
                    kept.remove(place);
                }
                _ => {
                    self.shorten(&mut shown, room, 1);
                    cut(&mut shown, room);
                    return Layout { shown, is_short: true };
                }
            }
        }
    }

    /// The columns, each with the width of its widest cell.
    fn widths(&self, columns: &[usize], is_short: bool) -> Vec<(usize, usize)> {
        let widest = |column: usize| {
            let cells = self.rows.iter().map(|row| width(&row[column].text));
            cells.fold(width(self.heading(column, is_short)).max(self.columns[column].least), usize::max)
        };
        columns.iter().map(|column| (*column, widest(*column))).collect()
    }

    /// Takes columns from the widest flexible column until the table fits or all of them have the shortest width.
    fn shorten(&self, shown: &mut [(usize, usize)], room: usize, shortest: usize) {
        while total(shown) > room {
            let flexible = shown.iter_mut().filter(|(column, _)| self.columns[*column].is_flexible);
            match flexible.filter(|(_, width)| *width > shortest).max_by_key(|(_, width)| *width) {
                Some((_, width)) => *width -= 1,
                None => break,
            }
        }
    }
}

/// The shown columns with their widths, and whether they have their short headings.
struct Layout {
    shown: Vec<(usize, usize)>,
    is_short: bool,
}

/// Takes from the last columns what is wider than the terminal.
fn cut(shown: &mut Vec<(usize, usize)>, room: usize) {
    while total(shown) > room
        && let Some((column, width)) = shown.pop()
    {
        let gap = if shown.is_empty() { 0 } else { GAP.len() };
        let left = room.saturating_sub(total(shown) + gap).min(width);
        if left > 0 {
            shown.push((column, left));
        }
    }
}

fn total(shown: &[(usize, usize)]) -> usize {
    let gaps = GAP.len() * shown.len().saturating_sub(1);
    shown.iter().map(|(_, width)| width).sum::<usize>() + gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    const NARROW: Screen = Screen { width: Some(30), colours: false, moves: false };

    fn table() -> Table<4> {
        let columns = [
            Column::text("id"),
            Column::text("name").flexible(),
            Column::number("utilisation").or("use"),
            Column::text("url").flexible().optional(),
        ];
        Table::new(columns).with([
            ["dst_1".into(), "Acme production".into(), 7.into(), "https://example.com/hooks".into()],
            ["dst_2".into(), "Bolt".into(), 1234.into(), "https://example.org".into()],
        ])
    }

    fn lines(screen: Screen) -> Vec<String> {
        table().render(screen).lines().map(str::to_owned).collect()
    }

    #[test]
    fn without_a_terminal_the_table_is_complete_and_aligned() {
        assert_eq!(
            lines(Screen::PLAIN),
            [
                "id     name             utilisation  url",
                "dst_1  Acme production            7  https://example.com/hooks",
                "dst_2  Bolt                    1234  https://example.org",
            ]
        );
    }

    #[test]
    fn a_narrow_terminal_shortens_flexible_columns_and_omits_optional_ones() {
        assert_eq!(
            lines(NARROW),
            [
                "id     name              use",
                "─────  ───────────────  ────",
                "dst_1  Acme production     7",
                "dst_2  Bolt             1234",
            ]
        );
        assert_eq!(lines(Screen { width: Some(24), ..NARROW })[2], "dst_1  Acme produ…     7");
    }

    #[test]
    fn no_line_is_longer_than_the_terminal() {
        for columns in 1..80 {
            let screen = Screen { width: Some(columns), colours: false, moves: false };
            assert!(lines(screen).iter().all(|line| width(line) <= columns), "{columns}: {:#?}", lines(screen));
        }
    }

    #[test]
    fn colours_take_no_columns_and_appear_only_where_they_can() {
        let table = Table::new([Column::text("state"), Column::text("id")]).with([[Cell::state("dead"), "x".into()]]);
        let coloured = table.render(Screen { width: Some(80), colours: true, moves: false });
        assert!(coloured.ends_with("\u{1b}[31mdead\u{1b}[0m   x"), "{coloured:?}");
        assert!(!table.render(NARROW).contains('\u{1b}') && !table.render(Screen::PLAIN).contains('\u{1b}'));
    }

    #[test]
    fn a_text_cannot_break_the_table() {
        let cell = Cell::from("\u{1b}[2J\nAcme");
        let table = Table::new([Column::text("name")]).with([[cell]]).render(Screen::PLAIN);
        assert_eq!(table, "name\n [2J Acme");
    }
}
