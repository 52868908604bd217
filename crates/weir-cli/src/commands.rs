//! The commands that call the API of a running server: `weir destinations`, `events`, `deliveries`, `replays`, `keys`,
//! `tail`, `overview`, `alerts`, `activity`, `preview`, `simulate`, `open`, `status` and `doctor`. Each makes its
//! requests with [`Client`] and shows `records` in a table, or the JSON of the server.

mod activity;
mod alerts;
pub mod audit;
pub mod client;
pub mod connection;
mod deliveries;
mod destinations;
mod doctor;
mod event_types;
mod events;
mod keys;
mod limit_groups;
mod limit_keys;
mod names;
mod open;
mod overview;
mod preview;
mod records;
mod replays;
mod settings;
mod shedding;
mod simulate;
mod status;
mod tail;
mod temporary;

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use anyhow::Context as _;
use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;
use weir_api_types::Destination;
use weir_core::Timestamp;

use self::{
    client::{Answer, Client, Rows, Unreachable},
    connection::Connection,
};
use crate::{
    clock::wall_clock,
    exit::{Exit, Misuse},
    flags::{
        ApiCommand,
        api::{CallFlags, Consent, PageFlags},
    },
    output::{self, Screen, json, table::Table},
};

#[cfg(test)]
pub(crate) use records::tests as tests_of_records;

/// Runs a command of the API. The future is boxed, so that it is compiled with this crate: a bare one would be compiled with
/// the program that awaits it, at the end of a build.
pub fn run(command: ApiCommand) -> BoxFuture<'static, anyhow::Result<Exit>> {
    Box::pin(call(command))
}

async fn call(command: ApiCommand) -> anyhow::Result<Exit> {
    let done = match command {
        ApiCommand::Destinations(args) => destinations::run(&Call::new(&args.call)?, args.command).await,
        ApiCommand::Events(args) => events::run(&Call::new(&args.call)?, args.command).await,
        ApiCommand::Deliveries(args) => deliveries::run(&Call::new(&args.call)?, args.command).await,
        ApiCommand::Replays(args) => replays::run(&Call::new(&args.call)?, args.command).await,
        ApiCommand::Keys(args) => keys::run(&Call::new(&args.call)?, args.command).await,
        ApiCommand::Tail(args) => tail::run(&Call::new(&args.call)?, &args).await,
        ApiCommand::Overview(args) => overview::run(&Call::new(&args.call)?, args).await,
        ApiCommand::Alerts(args) => alerts::run(&Call::new(&args.call)?, args).await,
        ApiCommand::Activity(args) => activity::run(&Call::new(&args.call)?, args).await,
        ApiCommand::Preview(args) => preview::run(&Call::new(&args.call)?, args).await,
        ApiCommand::Simulate(args) => simulate::run(&Call::new(&args.call)?, args).await,
        ApiCommand::Shedding(args) => shedding::run(&Call::new(&args.call)?, args.command).await,
        ApiCommand::EventTypes(args) => event_types::run(&Call::new(&args.call)?, args.command).await,
        ApiCommand::LimitKeys(args) => limit_keys::run(&Call::new(&args.call)?, args.command).await,
        ApiCommand::Open(args) => open::run(args).await,
        // They judge what they show.
        ApiCommand::Status(args) => return status::run(&Call::new(&args.call)?).await.map_err(with_remedy),
        ApiCommand::LimitGroups(args) => {
            return limit_groups::run(&Call::new(&args.call)?, args.command).await.map_err(with_remedy);
        }
        ApiCommand::Audit(args) => return audit::run(args).await,
        // It judges what it finds, also that the server does not answer.
        ApiCommand::Doctor(args) => return doctor::run(&Call::new(&args.call)?).await,
    };
    done.map_err(with_remedy).map(|()| Exit::Done)
}

/// Adds a remedy to the error of a server that cannot be reached: often the command calls the wrong server.
pub fn with_remedy(error: anyhow::Error) -> anyhow::Error {
    if error.is::<Unreachable>() {
        return error.context(
            "cannot reach the server; is `weir serve` running? Name another one with --server, WEIR_URL or a profile",
        );
    }
    error
}

/// The destinations with these ids or names, or all of them if none is named; the oldest first. A destination that does
/// not exist is an error: an audit of nothing must not pass.
pub async fn destinations_of(client: &Client, named: &[String]) -> anyhow::Result<Vec<Destination>> {
    let mut all: Vec<Destination> =
        client.list(&["v1", "destinations"], &client::Fields::new(), usize::MAX).await?.read()?;
    all.reverse();
    let is =
        |destination: &Destination, named: &String| destination.id == *named || destination.settings.name == *named;
    if let Some(missing) = named.iter().find(|named| !all.iter().any(|destination| is(destination, named))) {
        return Err(Misuse(format!("no destination has the id or name `{missing}`")).into());
    }
    all.retain(|destination| named.is_empty() || named.iter().any(|named| is(destination, named)));
    Ok(all)
}

/// One run of a command: the server that it asks and how it prints.
struct Call {
    client: Client,
    json: bool,
    screen: Screen,
    now: Timestamp,
}

impl Call {
    fn new(flags: &CallFlags) -> anyhow::Result<Self> {
        let connection = Connection::find(&flags.server)?;
        Ok(Self { client: Client::new(connection)?, json: flags.json, screen: Screen::of_stdout(), now: wall_clock() })
    }

    /// Prints an answer: its JSON, or the text that `write` makes of it.
    fn print<T: DeserializeOwned>(&self, answer: &Answer, write: impl FnOnce(T) -> String) -> anyhow::Result<()> {
        if self.json {
            return output::print(&json::pretty(answer.text()));
        }
        output::show(&write(answer.read()?), self.screen)
    }

    /// Prints the result of a request whose answer has no body, such as a deletion. With `--json` it prints nothing.
    fn say(&self, text: &str) -> anyhow::Result<()> {
        if self.json { Ok(()) } else { output::show(text, self.screen) }
    }

    /// Prints rows as a JSON array or as a table. A hint says where the list was cut.
    fn print_rows<T: DeserializeOwned, const N: usize>(
        &self,
        rows: &Rows,
        empty: Table<N>,
        row: impl Fn(T) -> [output::table::Cell; N],
    ) -> anyhow::Result<()> {
        if self.json {
            return output::print(&json::pretty(&rows.array()));
        }
        let records: Vec<T> = rows.read()?;
        if records.is_empty() && self.screen.width.is_some() {
            return output::print("There are none.");
        }
        output::show(&empty.with(records.into_iter().map(row)).render(self.screen), self.screen)?;
        if rows.is_cut {
            eprintln!("There are more: show them with --all, or choose how many with --limit.");
        }
        Ok(())
    }

    async fn list(&self, path: &[&str], query: &client::Fields, page: PageFlags) -> anyhow::Result<Rows> {
        self.client.list(path, query, if page.all { usize::MAX } else { page.limit as usize }).await
    }
}

/// Asks whether to go on, unless `--yes` was given. Without a terminal there is nobody to ask.
fn confirm(consent: Consent, question: &str) -> anyhow::Result<()> {
    if consent.yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Misuse(format!("{question} Nobody can be asked here: add --yes")).into());
    }
    eprint!("{question} [y/N] ");
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    if matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
        return Ok(());
    }
    anyhow::bail!("nothing was changed")
}

/// The text of a file; `-` is standard input.
fn read_file(path: &std::path::Path, flag: &str) -> anyhow::Result<String> {
    let text = if path == std::path::Path::new("-") {
        io::read_to_string(io::stdin().lock())
    } else {
        std::fs::read_to_string(path)
    };
    let wrong = |error: &io::Error| Misuse(format!("cannot read {} ({flag}): {error}", path.display()));
    Ok(text.map_err(|error| wrong(&error))?)
}

/// The flags that are set, by the names of the API.
fn fields(flags: &impl serde::Serialize) -> anyhow::Result<client::Fields> {
    let value = serde_json::to_value(flags).context("cannot write the flags as JSON")?;
    let serde_json::Value::Object(mut fields) = value else { anyhow::bail!("the flags are no JSON object") };
    fields.retain(|_, value| !value.is_null());
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::output::texts::width;

    const NOW: Timestamp = Timestamp::from_secs(1_763_710_200);

    /// A table of one row on a terminal of 80 columns.
    fn on_80_columns<T: DeserializeOwned, const N: usize>(
        table: Table<N>,
        row: impl FnOnce(T) -> [output::table::Cell; N],
        record: Value,
    ) -> String {
        let screen = Screen { width: Some(80), colours: false, moves: false };
        table.with([row(serde_json::from_value(record).unwrap())]).render(screen)
    }

    #[test]
    fn lists_fit_80_columns_and_their_ids_are_complete() {
        let id = |prefix: &str| format!("{prefix}_01h2xcejqtf2nbrexx3vqjhp41");
        let long = "a text that is much longer than the room that a column has on a terminal";
        let limits = json!([
            {"limit": 1_000_000, "period": "second", "burst": 1_000_000, "margin_ms": 0},
            {"limit": 1_000_000, "period": "day", "burst": 1, "margin_ms": 0},
        ]);
        let destination = records::tests::destination(&json!({
            "id": id("dst"), "name": long, "url": long, "tenant": long, "rate_limits": limits, "breaker_state": "open",
        }));
        let delivery = json!({
            "id": id("dlv"), "event_id": id("evt"), "event_type": long, "destination_id": id("dst"),
            "state": "superseded", "attempt_count": 1_000, "created_at": Timestamp::MIN, "updated_at": NOW,
            "last_error_kind": "forbidden",
        });
        let event = json!({
            "id": id("evt"), "type": long, "tenant": long, "created_at": Timestamp::MIN, "idempotency_key": long,
        });
        let replay = json!({
            "id": id("rpl"), "state": "completed", "states": [], "total": 1_000_000, "delivered": 1_000_000,
            "failed": 999_999, "cancelled": 0, "remaining": 9_999_999, "eta_s": 99, "created_at": Timestamp::MIN,
        });
        let group = json!({
            "destination_id": id("dst"), "destination_name": long, "state": "failed", "error": "forbidden",
            "deliveries": 10_000, "newest_at": Timestamp::MIN, "oldest_at": NOW, "example_id": id("dlv"),
        });
        let key = json!({
            "id": id("key"), "name": long, "role": "operate", "tenants": [long, long], "created_at": Timestamp::MIN,
            "created_by": long, "last_used_at": Timestamp::MIN,
            "expires_at": "2036-11-26T04:30:00.000Z",
        });
        let dst = id("dst");
        let names = names::Names::known([(dst.as_str(), long)]);
        for (list, id) in [
            (on_80_columns(destinations::table(), destinations::row, destination), id("dst")),
            (
                on_80_columns(deliveries::table(true), |row| deliveries::row(row, &names, NOW), delivery.clone()),
                id("dlv"),
            ),
            (
                on_80_columns(deliveries::table(false), |row| deliveries::row(row, &names, NOW), delivery.clone()),
                id("dlv"),
            ),
            (on_80_columns(deliveries::groups_table(), |row| deliveries::group_row(row, NOW), group), id("dlv")),
            (on_80_columns(tail::table(true), |row| tail::row(row, &names), delivery.clone()), id("dlv")),
            (on_80_columns(tail::table(false), |row| tail::row(row, &names), delivery), id("dlv")),
            (on_80_columns(events::table(), |row| events::row(row, NOW), event), id("evt")),
            (on_80_columns(replays::table(), |row| replays::row(&row, &names, NOW), replay), id("rpl")),
            (on_80_columns(keys::table(), |row| keys::row(row, NOW), key), id("key")),
        ] {
            assert!(list.lines().all(|line| width(line) <= 80), "{list}");
            assert!(list.contains(&id), "{list}");
        }
    }

    #[test]
    fn lists_on_80_columns_name_the_destination() {
        let id = |prefix: &str| format!("{prefix}_01h2xcejqtf2nbrexx3vqjhp41");
        let delivery = json!({
            "id": id("dlv"), "event_id": id("evt"), "event_type": "video.created", "destination_id": id("dst"),
            "state": "delivered", "attempt_count": 1, "created_at": NOW, "updated_at": NOW, "last_status_code": 204,
        });
        let replay = json!({
            "id": id("rpl"), "state": "running", "states": [], "total": 1_000, "delivered": 10, "failed": 0,
            "cancelled": 0, "remaining": 990, "eta_s": 99, "created_at": NOW, "destination": id("dst"),
        });
        let dst = id("dst");
        let names = names::Names::known([(dst.as_str(), "Acme")]);
        for list in [
            on_80_columns(deliveries::table(false), |row| deliveries::row(row, &names, NOW), delivery.clone()),
            on_80_columns(tail::table(false), |row| tail::row(row, &names), delivery),
            on_80_columns(replays::table(), |row| replays::row(&row, &names, NOW), replay),
        ] {
            assert!(list.contains("Acme"), "{list}");
        }
    }

    #[test]
    fn the_overview_and_its_kin_fit_80_columns() {
        let long = "a text that is much longer than the room that a column has on a terminal";
        let brief = json!({"name": long, "tenant": long, "breaker_state": "open", "breaker_reason": long});
        let row = overview::tests::overview_row(&brief, &json!({"backlog": 9_999_999, "undelivered": 99_999}));
        let activity = json!({
            "id": "act_1", "at": NOW, "actor": long, "actor_kind": "key", "action": "destination.breaker_half_opened",
            "tenant": long, "subject": {"type": "destination", "id": "dst_1", "name": long},
            "before": {"url": long}, "after": {"url": long},
        });
        let forecast = json!({
            "effective_per_s": 999_999.9, "binding": "min_interval", "margins_cost_per_s": 1.5, "drain_eta_s": 1e9,
            "drains": true, "would_expire": true, "first_expiry_at": NOW,
        });
        let alert = json!({
            "id": "evt_1", "type": "weir.destination.refused", "tenant": long, "created_at": Timestamp::MIN,
            "data": {"name": long, "reason": long},
        });
        for list in [
            on_80_columns(overview::table(), overview::row, serde_json::to_value(row).unwrap()),
            on_80_columns(activity::table(), |row| activity::row(row, NOW), activity),
            on_80_columns(preview::table(), |row| preview::row("proposed", &row, 7), forecast),
            on_80_columns(alerts::latest_table(), |row| alerts::latest_row(row, NOW), alert),
        ] {
            assert!(list.lines().all(|line| width(line) <= 80), "{list}");
        }
    }
}
