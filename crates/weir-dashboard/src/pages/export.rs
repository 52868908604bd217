//! Lists as files: deliveries, dead letters and changes that match the filter of a page, as CSV or as JSON lines.
//!
//! A file is read from the API page after page while the browser takes it, so it costs the memory of one page, and every
//! page is checked for the role and the tenants of the reader like any other request. A file that cannot be continued is
//! broken off, which the browser reports; one that would be too long says so in its last line.

use std::io;

use axum::{
    body::Body,
    extract::RawQuery,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{StatusCode, header};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use weir_api_types::{Activity, Delivery, List};
use weir_core::Timestamp;

use crate::{
    client::ApiPath,
    delivery_filter::DeliveryFilter,
    fields::Fields,
    names::Names,
    refusal::Refusal,
    units::Count,
    visit::{Answered, Visit},
};

/// The most rows of a file: what a spreadsheet still opens, and a minute of reading at most.
const MAX_ROWS: usize = 100_000;
/// The most pages of a file. A page of a costly filter may have few rows, although the store examines thousands for it.
const MAX_PAGES: usize = 1_000;
/// The rows of a page: the most that the API answers.
const PAGE: &str = "200";

/// The form of a file, from the query of its link.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Export {
    format: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Csv,
    JsonLines,
}

/// A row of a file.
trait Row: DeserializeOwned + Serialize + Send + Sync + 'static {
    const COLUMNS: &'static [&'static str];

    /// The destination whose name the row shows.
    fn destination(&self) -> Option<&str>;

    /// The cells of [`Self::COLUMNS`].
    fn cells(&self, names: &Names) -> Vec<String>;
}

/// A file that is being read.
struct Reading {
    visit: Visit,
    path: ApiPath,
    format: Format,
    /// Where the next page begins; `None`: the file has ended.
    cursor: Option<String>,
    rows: usize,
    pages: usize,
}

pub(crate) async fn deliveries(visit: Visit, RawQuery(query): RawQuery) -> Answered {
    let fields = Fields::parse(query.unwrap_or_default().as_bytes());
    let filter = DeliveryFilter::read(&fields).resolved(&visit).await??;
    let export = Export { format: fields.text("format").to_owned() };
    export.file::<Delivery>(visit, filter.api_path(ApiPath::of(["deliveries"])), "deliveries").await
}

impl Export {
    pub(crate) async fn activity(self, visit: Visit, path: ApiPath) -> Answered {
        self.file::<Activity>(visit, path, "activity").await
    }

    /// Answers the rows at a path of the API. A refusal of the first page is the answer.
    async fn file<R: Row>(self, mut visit: Visit, path: ApiPath, name: &str) -> Answered {
        visit.api = visit.api.unmeasured();
        let (format, kind, ending) = match &*self.format {
            "csv" => (Format::Csv, "text/csv; charset=utf-8; header=present", "csv"),
            "jsonl" => (Format::JsonLines, "application/jsonl; charset=utf-8", "jsonl"),
            _ => {
                let detail = "The format of an export is csv or jsonl.";
                return Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "There is no such format", detail));
            }
        };
        let at = file_time(visit.site.clock.now());
        let mut reading = Reading { visit, path: path.with("limit", PAGE), format, cursor: None, rows: 0, pages: 0 };
        let mut first = reading.head::<R>();
        first.extend(reading.page::<R>().await?);
        let rest = stream::try_unfold(reading, |mut reading| async move {
            if reading.cursor.is_none() {
                return Ok(None);
            }
            match reading.page::<R>().await {
                Ok(page) => Ok(Some((Bytes::from(page), reading))),
                Err(refusal) => {
                    tracing::warn!(reason = %refusal.detail, rows = reading.rows, "an export is broken off");
                    Err(io::Error::other(refusal.detail))
                }
            }
        });
        let body = Body::from_stream(stream::iter([Ok(Bytes::from(first))]).chain(rest));
        let disposition = format!("attachment; filename=\"weir-{name}-{at}.{ending}\"");
        let headers = [(header::CONTENT_TYPE, kind.to_owned()), (header::CONTENT_DISPOSITION, disposition)];
        let response: Response = (headers, body).into_response();
        Ok(response)
    }
}

impl Reading {
    fn head<R: Row>(&self) -> Vec<u8> {
        match self.format {
            Format::Csv => csv_line(R::COLUMNS.iter().map(|name| (*name).to_owned())),
            Format::JsonLines => Vec::new(),
        }
    }

    /// The lines of the next page.
    async fn page<R: Row>(&mut self) -> Result<Vec<u8>, Refusal> {
        let path = self.path.clone().with("cursor", self.cursor.as_deref().unwrap_or_default());
        let List { data, next_cursor } = self.visit.api.get::<List<R>>(&path).await?;
        let names = match self.format {
            Format::Csv => Names::read(&self.visit, data.iter().filter_map(Row::destination)).await,
            Format::JsonLines => Names::default(),
        };
        (self.rows, self.pages) = (self.rows + data.len(), self.pages + 1);
        let mut lines = Vec::new();
        for row in &data {
            match self.format {
                Format::Csv => lines.extend(csv_line(row.cells(&names))),
                Format::JsonLines => json_line(&mut lines, row)?,
            }
        }
        self.cursor = next_cursor;
        if self.cursor.is_some() && (self.rows >= MAX_ROWS || self.pages >= MAX_PAGES) {
            self.end_early(&mut lines)?;
        }
        Ok(lines)
    }

    /// The last line of a file that does not have everything.
    fn end_early(&mut self, lines: &mut Vec<u8>) -> Result<(), Refusal> {
        let rows = Count(self.rows as u64);
        let text = format!("Not complete: the export ends after {rows} rows. Narrow the filter to export the rest.");
        let cursor = self.cursor.take();
        match self.format {
            Format::Csv => lines.extend(csv_line([text])),
            Format::JsonLines => json_line(lines, &json!({"incomplete": text, "next_cursor": cursor}))?,
        }
        Ok(())
    }
}

fn json_line(lines: &mut Vec<u8>, row: &impl Serialize) -> Result<(), Refusal> {
    serde_json::to_writer(&mut *lines, row).map_err(|error| Refusal::broken(&error))?;
    lines.push(b'\n');
    Ok(())
}

/// A line of RFC 4180.
fn csv_line(cells: impl IntoIterator<Item = String>) -> Vec<u8> {
    let line = cells.into_iter().map(|text| cell(&text)).collect::<Vec<_>>().join(",");
    (line + "\r\n").into_bytes()
}

/// A cell that no spreadsheet takes for a formula: event types, names and errors are texts of others. Such a text gets an
/// apostrophe before it, which spreadsheets read as “this is a text”.
fn cell(text: &str) -> String {
    const BEGIN_FORMULAS: [char; 12] = ['=', '+', '-', '@', '\t', '\r', '\n', '|', '＝', '＋', '－', '＠'];
    let is_formula = text.starts_with(BEGIN_FORMULAS);
    let text = if is_formula { format!("'{text}") } else { text.to_owned() };
    // Some spreadsheets part cells at a semicolon or a tab.
    if is_formula || text.contains([',', '"', '\r', '\n', ';', '\t']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text
    }
}

/// `20261121-073000`: a part of the name of a file.
fn file_time(now: Timestamp) -> String {
    let digits: String = now.to_string().chars().take(19).filter(char::is_ascii_digit).collect();
    let (day, clock) = digits.split_at(digits.len().min(8));
    format!("{day}-{clock}")
}

fn of<T: ToString>(value: Option<T>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

impl Row for Delivery {
    const COLUMNS: &'static [&'static str] = &[
        "id",
        "event_id",
        "event_type",
        "destination_id",
        "destination",
        "state",
        "attempt_count",
        "last_status_code",
        "last_error_kind",
        "last_error",
        "created_at",
        "updated_at",
        "next_attempt_at",
        "expires_at",
    ];

    fn destination(&self) -> Option<&str> {
        Some(&self.destination_id)
    }

    fn cells(&self, names: &Names) -> Vec<String> {
        let text = |text: &str| text.to_owned();
        vec![
            text(&self.id),
            text(&self.event_id),
            text(&self.event_type),
            text(&self.destination_id),
            names.of(&self.destination_id),
            text(&self.state),
            self.attempt_count.to_string(),
            of(self.last_status_code),
            of(self.last_error_kind.as_deref()),
            of(self.last_error.as_deref()),
            self.created_at.to_string(),
            self.updated_at.to_string(),
            of(self.next_attempt_at),
            of(self.expires_at),
        ]
    }
}

impl Row for Activity {
    const COLUMNS: &'static [&'static str] = &[
        "id",
        "at",
        "actor",
        "actor_kind",
        "actor_key_id",
        "action",
        "tenant",
        "subject_type",
        "subject_id",
        "subject_name",
        "before",
        "after",
        "request_id",
    ];

    fn destination(&self) -> Option<&str> {
        None
    }

    fn cells(&self, _: &Names) -> Vec<String> {
        let text = |text: &str| text.to_owned();
        let json = |value: &Option<Value>| of(value.as_ref());
        let subject = self.subject.as_ref();
        vec![
            text(&self.id),
            self.at.to_string(),
            text(&self.actor),
            text(&self.actor_kind),
            of(self.actor_key_id.as_deref()),
            text(&self.action),
            of(self.tenant.as_deref()),
            of(subject.map(|subject| &*subject.kind)),
            of(subject.map(|subject| &*subject.id)),
            of(subject.and_then(|subject| subject.name.as_deref())),
            json(&self.before),
            json(&self.after),
            of(self.request_id.as_deref()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cell_is_a_formula() {
        for (text, expected) in [
            ("video.created", "video.created"),
            ("=HYPERLINK(\"http://evil\")", "\"'=HYPERLINK(\"\"http://evil\"\")\""),
            ("+1", "\"'+1\""),
            ("-1", "\"'-1\""),
            ("@SUM(A1)", "\"'@SUM(A1)\""),
            ("\tx", "\"'\tx\""),
            ("\r=1", "\"'\r=1\""),
            ("＝1", "\"'＝1\""),
            ("a,b", "\"a,b\""),
            ("a;=1", "\"a;=1\""),
            ("say \"no\"\n", "\"say \"\"no\"\"\n\""),
            ("", ""),
        ] {
            assert_eq!(cell(text), expected);
        }
        assert_eq!(csv_line(["a".to_owned(), "=b".to_owned()]), b"a,\"'=b\"\r\n");
        assert_eq!(file_time(Timestamp::from_secs(1_763_710_200)), "20251121-073000");
    }
}
