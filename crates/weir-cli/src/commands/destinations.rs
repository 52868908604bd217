//! `weir destinations`.

use anyhow::Context as _;
use reqwest::Method;
use serde_json::{Value, json, value::RawValue};
use weir_api_types::{
    Backlog, Count, CreatedDestination, DeliveryDetail, Destination, DestinationSettings, Event, FilterTried, Purged,
    Secret,
};

use super::{
    Call,
    client::{Answer, Fields, Request},
    confirm, fields,
    limit_groups::group_id,
    limit_keys, read_file,
    records::{InWords as _, in_force, waits},
    settings, temporary,
};
use crate::{
    exit::Misuse,
    flags::{
        api::Consent,
        destinations::{AdaptiveFlags, Changes, DestinationCommand as Command, TlsFiles},
    },
    output::{
        self,
        table::{Cell, Column, Table},
        texts::{count, joined},
    },
};

const LIST: [&str; 2] = ["v1", "destinations"];

pub(super) async fn run(call: &Call, command: Command) -> anyhow::Result<()> {
    match command {
        Command::List { filter, page } => {
            call.print_rows(&call.list(&LIST, &fields(&filter)?, page).await?, table(), row)
        }
        Command::Show(one) => show(call, &one.destination).await,
        Command::Create { url, tenant, paused, changes } => {
            create(call, json!({"url": url, "tenant": tenant}), paused, &changes).await
        }
        Command::Edit { one, url, changes } => change(call, &one.destination, url, &changes).await,
        Command::Pause(several) => set_paused(call, &several.destinations, true).await,
        Command::Resume(several) => set_paused(call, &several.destinations, false).await,
        Command::Release(several) => release(call, &several.destinations).await,
        Command::Override { one, instead } => {
            lasts_for_a_while(call, &one.destination, "override", temporary::limits(&instead)?).await
        }
        Command::Hold { one, lasts } => {
            lasts_for_a_while(call, &one.destination, "hold", temporary::hold(&lasts)?).await
        }
        Command::Delete { several, consent } => delete(call, &several.destinations, consent).await,
        Command::Test(one) => test(call, &one.destination).await,
        Command::TryFilter { one, data, event, filter } => {
            let data = match event {
                Some(event) => call.client.get(&["v1", "events", &event], &Fields::new()).await?.read::<Event>()?.data,
                None => data.map(|data| RawValue::from_string(data.to_string())).transpose()?,
            };
            try_filter(call, &one.destination, &serde_json::to_string(&json!({"data": data, "filter": filter}))?).await
        }
        Command::Purge { one, filter, dry_run, consent } => {
            let body = Value::Object(fields(&filter)?).to_string();
            purge(call, &one.destination, &body, (!dry_run).then_some(consent)).await
        }
        Command::Secret(one) => {
            let id = call.client.destination_id(&one.destination).await?;
            let answer = call.client.get(&["v1", "destinations", &id, "secret"], &Fields::new()).await?;
            call.print(&answer, secret_text)
        }
        Command::RotateSecret { one, overlap_s, secret_file, force, consent } => {
            let secret = secret_file.map(|file| read_file(&file, "--secret-file")).transpose()?;
            let secret = secret.as_deref().map(str::trim);
            let body = json!({"overlap_s": overlap_s, "secret": secret});
            rotate_secret(call, &one.destination, fields(&body)?, force, consent).await
        }
    }
}

pub(super) fn table() -> Table<6> {
    Table::new([
        Column::text("id"),
        Column::text("name").flexible(),
        Column::text("state"),
        Column::text("limits").flexible(),
        Column::text("tenant").flexible().optional(),
        Column::text("url").flexible().optional(),
    ])
}

pub(super) fn row(destination: Destination) -> [Cell; 6] {
    let settings = &destination.settings;
    let limits = in_force(&settings.rate_limits, settings.min_interval_ms, destination.overridden.as_ref());
    let state = destination.state();
    let (id, DestinationSettings { name, tenant, url, .. }) = (destination.id, destination.settings);
    [id.into(), name.into(), Cell::state(state), limits.into(), tenant.into(), url.into()]
}

async fn find(call: &Call, named: &str) -> anyhow::Result<(Destination, Answer)> {
    let id = call.client.destination_id(named).await?;
    let answer = call.client.get(&["v1", "destinations", &id], &Fields::new()).await?;
    Ok((answer.read()?, answer))
}

async fn backlog(call: &Call, id: &str) -> anyhow::Result<Backlog> {
    call.client.get(&["v1", "destinations", id, "backlog"], &Fields::new()).await?.read()
}

async fn waiting(call: &Call, id: &str) -> anyhow::Result<String> {
    let Backlog { pending, retrying, .. } = backlog(call, id).await?;
    Ok(count(pending + retrying, "delivery", "deliveries"))
}

async fn show(call: &Call, named: &str) -> anyhow::Result<()> {
    let (destination, answer) = find(call, named).await?;
    if call.json {
        return call.print(&answer, |_: Destination| String::new());
    }
    let backlog = backlog(call, &destination.id).await?;
    let mut lines = vec![
        ("id", destination.id.clone()),
        ("url", destination.settings.url.clone()),
        ("tenant", destination.settings.tenant.clone()),
        ("state", destination.state().to_owned()),
    ];
    lines.extend(destination.reason().map(|reason| ("", reason)));
    lines.extend(destination.overridden().map(|overridden| ("override", overridden)));
    lines.push(("limits", destination.limits()));
    lines.push(("event types", joined(&destination.settings.event_types)));
    if let Some(keys) = &destination.settings.key_limits {
        lines.extend(limit_keys::lines(keys, &destination.id));
    }
    lines.extend(settings::lines(&answer.read()?));
    lines.extend(settings::certificate_lines(&destination.tls_certificates));
    lines.extend(settings::backlog_lines(&backlog));
    output::show(&format!("{}\n{}", destination.title(), settings::render(&lines, call.screen)), call.screen)
}

/// `named`: its URL and its tenant.
async fn create(call: &Call, named: Value, paused: bool, changes: &Changes) -> anyhow::Result<()> {
    let mut body = body(changes, "create")?;
    name_group(call, &mut body).await?;
    body.extend(fields(&named)?);
    if paused {
        body.insert("paused".to_owned(), true.into());
    }
    let created = call.client.post(&LIST, Some(&Value::Object(body).to_string())).await?;
    call.print(&created, |CreatedDestination { destination, secret }| {
        format!("Created {}.\nIts secret: {secret}", destination.label())
    })
}

async fn change(call: &Call, named: &str, url: Option<String>, changes: &Changes) -> anyhow::Result<()> {
    let mut body = body(changes, "edit")?;
    name_group(call, &mut body).await?;
    body.extend(fields(&json!({ "url": url }))?);
    if body.is_empty() {
        return Err(Misuse("nothing to edit: give at least one setting, such as --limit 10/second".into()).into());
    }
    let edited = edit(call, named, body).await?;
    call.print(&edited, |destination: Destination| {
        format!("Edited {}. Its limits: {}.", destination.title(), destination.limits())
    })
}

async fn delete(call: &Call, named: &[String], consent: Consent) -> anyhow::Result<()> {
    for named in named {
        let (destination, answer) = find(call, named).await?;
        let waiting = waiting(call, &destination.id).await?;
        confirm(consent, &format!("Delete {} and cancel {waiting} that wait?", destination.title()))?;
        let path = ["v1", "destinations", &destination.id];
        let etag = answer.etag.as_deref();
        call.client.send(Request { if_match: etag, ..Request::new(Method::DELETE, &path) }).await?;
        call.say(&format!("Deleted {}.", destination.label()))?;
    }
    Ok(())
}

async fn test(call: &Call, named: &str) -> anyhow::Result<()> {
    let id = call.client.destination_id(named).await?;
    let answer = call.client.post(&["v1", "destinations", &id, "test"], None).await?;
    call.print(&answer, |DeliveryDetail { delivery, .. }| {
        let waits = waits(delivery.waits_for.as_ref());
        format!("The delivery of the test event is {}: weir deliveries show {}{waits}", delivery.state, delivery.id)
    })
}

async fn try_filter(call: &Call, named: &str, body: &str) -> anyhow::Result<()> {
    let id = call.client.destination_id(named).await?;
    let answer = call.client.post(&["v1", "destinations", &id, "filter", "try"], Some(body)).await?;
    call.print(&answer, |FilterTried { matches, conditions }| {
        let mut lines = vec![match (matches, conditions.is_empty()) {
            (true, true) => "The event passes: there is no filter.".to_owned(),
            (true, false) => "The event passes the filter.".to_owned(),
            (false, _) => "The event does not pass the filter.".to_owned(),
        }];
        lines.extend(
            conditions.iter().map(|condition| {
                format!("  {} {}", if condition.holds { "holds" } else { "fails" }, condition.pointer)
            }),
        );
        lines.join("\n")
    })
}

/// The settings of the file, overridden by the flags.
fn body(changes: &Changes, command: &str) -> anyhow::Result<Fields> {
    let mut body = match &changes.file {
        None => Fields::new(),
        Some(file) => {
            let text = read_file(file, "--file")?;
            let wrong = |error| Misuse(format!("{} is no JSON object (--file): {error}", file.display()));
            serde_json::from_str(&text).map_err(wrong).with_context(|| format!("cannot {command} the destination"))?
        }
    };
    if let Some(name) = changes.fields.header_given_twice() {
        let twice = Misuse(format!("--header names {name} twice: give it once"));
        return Err(twice).with_context(|| format!("cannot {command} the destination"));
    }
    body.extend(fields(&changes.fields)?);
    if changes.unlimited {
        body.insert("rate_limits".to_owned(), Value::Array(Vec::new()));
    }
    if changes.unlimited || changes.no_min_interval {
        body.insert("min_interval_ms".to_owned(), Value::Null);
    }
    if changes.default_proxy {
        body.insert("proxy".to_owned(), Value::Null);
    }
    body.extend(tls(&changes.tls)?);
    body.extend(adaptive(&changes.adaptive)?);
    body.extend(limit_keys::of_flags(&changes.keys)?);
    if changes.no_filter {
        body.insert("filter".to_owned(), Value::Null);
    }
    if let Some(file) = &changes.secret_file {
        body.insert("secret".to_owned(), read_file(file, "--secret-file")?.trim().into());
    }
    Ok(body)
}

/// A group that is named gets its id.
async fn name_group(call: &Call, body: &mut Fields) -> anyhow::Result<()> {
    if let Some(Value::String(named)) = body.get("limit_group") {
        let id = if named == "none" { Value::Null } else { group_id(&call.client, named).await?.into() };
        body.insert("limit_group".to_owned(), id);
    }
    Ok(())
}

/// The field `adaptive`, if a flag is about it.
fn adaptive(flags: &AdaptiveFlags) -> anyhow::Result<Option<(String, Value)>> {
    let bounds = fields(&flags.bounds)?;
    let is_on = flags.adaptive || !bounds.is_empty();
    let adaptive = if is_on { Some(Value::Object(bounds)) } else { flags.no_adaptive.then_some(Value::Null) };
    Ok(adaptive.map(|adaptive| ("adaptive".to_owned(), adaptive)))
}

/// The field `tls`, if a flag is about it.
fn tls(files: &TlsFiles) -> anyhow::Result<Option<(String, Value)>> {
    let given = [
        ("ca", "--ca-file", &files.ca_file),
        ("client_certificate", "--client-certificate-file", &files.client_certificate_file),
        ("client_key", "--client-key-file", &files.client_key_file),
    ];
    let mut tls = Fields::new();
    for (field, flag, file) in given {
        if let Some(file) = file {
            tls.insert(field.to_owned(), read_file(file, flag)?.into());
        }
    }
    let tls = if tls.is_empty() { files.no_tls.then_some(Value::Null) } else { Some(Value::Object(tls)) };
    Ok(tls.map(|tls| ("tls".to_owned(), tls)))
}

/// Edits the version that was just read: an edit that came between is not overwritten.
async fn edit(call: &Call, named: &str, body: Fields) -> anyhow::Result<Answer> {
    let (destination, read) = find(call, named).await?;
    let path = ["v1", "destinations", &destination.id];
    let body = Value::Object(body).to_string();
    let request = Request { body: Some(&body), if_match: read.etag.as_deref(), ..Request::new(Method::PATCH, &path) };
    call.client.send(request).await
}

async fn set_paused(call: &Call, named: &[String], paused: bool) -> anyhow::Result<()> {
    for named in named {
        let edited = edit(call, named, Fields::from_iter([("paused".to_owned(), paused.into())])).await?;
        call.print(&edited, |destination: Destination| {
            format!("{} {}.", if paused { "Paused" } else { "Resumed" }, destination.label())
        })?;
    }
    Ok(())
}

async fn release(call: &Call, named: &[String]) -> anyhow::Result<()> {
    for named in named {
        let id = call.client.destination_id(named).await?;
        let released = call.client.post(&["v1", "destinations", &id, "release"], None).await?;
        call.print(&released, |destination: Destination| format!("Released {}.", destination.label()))?;
    }
    Ok(())
}

/// Begins an override or a hold; `None` ends it.
async fn lasts_for_a_while(call: &Call, named: &str, what: &str, body: Option<Fields>) -> anyhow::Result<()> {
    let (destination, read) = find(call, named).await?;
    temporary::set(call, [LIST[0], LIST[1], &destination.id, what], read.etag.as_deref(), body).await
}

/// Cancels what waits. Without a `consent` it only counts.
async fn purge(call: &Call, named: &str, body: &str, consent: Option<Consent>) -> anyhow::Result<()> {
    let (destination, _) = find(call, named).await?;
    let path = ["v1", "destinations", &destination.id, "purge"];
    let post = async |dry_run: bool| {
        let query = Fields::from_iter([("dry_run".to_owned(), dry_run.into())]);
        call.client.send(Request { body: Some(body), query: &query, ..Request::new(Method::POST, &path) }).await
    };
    let counted = post(true).await?;
    let deliveries = |total| count(total, "delivery", "deliveries");
    let Some(consent) = consent else {
        return call.print(&counted, |Count { total }| format!("{} would be cancelled.", deliveries(total)));
    };
    let Count { total } = counted.read()?;
    confirm(consent, &format!("Cancel {} to {}?", deliveries(total), destination.title()))?;
    let purged = post(false).await?;
    call.print(&purged, |Purged { cancelled }| format!("Cancelled {}.", deliveries(cancelled)))
}

async fn rotate_secret(
    call: &Call,
    named: &str,
    mut body: Fields,
    force: bool,
    consent: Consent,
) -> anyhow::Result<()> {
    let (destination, answer) = find(call, named).await?;
    let mut question = format!("Replace the secret of {}?", destination.title());
    if let Some(until) = destination.previous_secret_valid_until.as_ref() {
        question = format!("{question} Its previous secret signs until {until}, and would sign no more.");
        // `--yes` alone does not drop a secret that still signs: the server refuses that without `force`.
        body.insert("force".to_owned(), (force || !consent.yes).into());
    }
    confirm(consent, &question)?;
    let body = Value::Object(body).to_string();
    let path = ["v1", "destinations", &destination.id, "rotate-secret"];
    // Only the version that the question was about.
    let request = Request { body: Some(&body), if_match: answer.etag.as_deref(), ..Request::new(Method::POST, &path) };
    call.print(&call.client.send(request).await?, secret_text)
}

fn secret_text(secret: Secret) -> String {
    let mut lines = vec![secret.secret];
    lines.extend(secret.public_key.map(|key| format!("Receivers verify with its public key: {key}")));
    lines.extend(secret.public_key_hex.map(|key| format!("The same key in hex: {key}")));
    lines.extend(secret.previous_valid_until.map(|until| format!("The previous secret signs too until {until}.")));
    lines.join("\n")
}
