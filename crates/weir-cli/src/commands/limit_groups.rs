//! `weir limit-groups`: budgets that several destinations share.

use reqwest::Method;
use serde_json::{Value, json};
use weir_api_types::{
    LimitGroup, LimitGroupHistory, LimitGroupHistoryBucket, LimitGroupMember, LimitGroupOverview, LimitGroupRow,
    Reservation, ReservedSlot,
};

use super::{
    Call,
    client::{Answer, Client, Fields, Request},
    confirm, fields,
    records::{for_a_while, in_force, limits_of},
    settings, temporary,
};
use crate::{
    commands::audit::{self, Audited},
    exit::{Exit, Misuse},
    flags::{api::Consent, limit_groups::LimitGroupCommand as Command},
    output::{
        self, Screen,
        table::{Cell, Column, Table},
        texts::{NONE, clean, count, rate, span_s},
    },
};

pub(super) const LIST: [&str; 2] = ["v1", "limit-groups"];

/// A group that uses at least this share of its limit sends as fast as it may: rates are averages.
const FULL_USE: f64 = 0.9;

/// Why a group holds its members back now. `None`: it does not.
pub(super) fn held_back(row: &LimitGroupRow) -> Option<String> {
    let used = row.utilisation.is_some_and(|used| used >= FULL_USE);
    let group = &row.limit_group;
    let until = match (&group.hold, row.drains, row.drain_eta_s) {
        _ if row.backlog == 0 => return None,
        (Some(hold), ..) => format!("held until {}: {}", hold.until, clean(&hold.reason)),
        (None, Some(false), _) => "more arrives than it may send".to_owned(),
        _ if !used => return None,
        (None, _, Some(eta)) => format!("drained in {}", span_s(eta.ceil())),
        (None, ..) => "nobody knows when it drains".to_owned(),
    };
    let waits = count(row.backlog, "delivery waits", "deliveries wait");
    let members = count(row.members, "member", "members");
    Some(format!("{} ({waits} at {members}, {until})", clean(&group.name)))
}

/// Ends with [`Exit::Failure`] if an audit finds that a limit was exceeded.
pub(super) async fn run(call: &Call, command: Command) -> anyhow::Result<Exit> {
    let done = match command {
        Command::Audit { one, range } => return audit(call, &one.group, &fields(&range)?).await,
        Command::History { one, range, step } => {
            let mut query = fields(&range)?;
            query.extend(fields(&json!({"step": step}))?);
            let id = group_id(&call.client, &one.group).await?;
            let answer = call.client.get(&[LIST[0], LIST[1], &id, "history"], &query).await?;
            call.print(&answer, |history: LimitGroupHistory| past(history, call.screen))
        }
        Command::Reserve { one, tenant, wait, cost } => {
            let wait_ms = wait.map(|wait| u64::try_from(wait.0.as_millis()).unwrap_or(u64::MAX));
            reserve(call, &one.group, tenant, &fields(&json!({"wait_ms": wait_ms, "cost": cost}))?).await
        }
        Command::Reservations { one, page } => {
            let path = reservations_of(call, &one.group).await?;
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            call.print_rows(&call.list(&path, &Fields::new(), page).await?, reservations(), reservation)
        }
        Command::List { page } => call.print_rows(&call.list(&LIST, &Fields::new(), page).await?, table(), row),
        Command::Show(one) => show(call, &one.group).await,
        Command::Create { name, tenant, all_tenants, budget } => {
            let mut body = fields(&budget)?;
            body.extend(fields(&json!({"name": name, "tenant": tenant}))?);
            if all_tenants {
                body.insert("tenant".to_owned(), Value::Null);
            }
            let created = call.client.post(&LIST, Some(&Value::Object(body).to_string())).await?;
            call.print(&created, |group: LimitGroup| {
                format!(
                    "Created {} ({}). A destination joins with: weir destinations edit NAME --limit-group {}",
                    group.name, group.id, group.id
                )
            })
        }
        Command::Edit { one, name, budget, unlimited, no_max_in_flight } => {
            let mut body = fields(&budget)?;
            body.extend(fields(&json!({"name": name}))?);
            if unlimited {
                body.insert("rate_limits".to_owned(), json!([]));
            }
            if no_max_in_flight {
                body.insert("max_in_flight".to_owned(), Value::Null);
            }
            if body.is_empty() {
                return Err(Misuse("nothing to edit: give at least one flag, such as --limit 10/second".into()).into());
            }
            edit(call, &one.group, body).await
        }
        Command::Override { one, instead } => {
            lasts_for_a_while(call, &one.group, "override", temporary::limits(&instead)?).await
        }
        Command::Hold { one, lasts } => lasts_for_a_while(call, &one.group, "hold", temporary::hold(&lasts)?).await,
        Command::Delete { one, consent } => delete(call, &one.group, consent).await,
    };
    done.map(|()| Exit::Done)
}

async fn reserve(call: &Call, named: &str, tenant: Option<String>, body: &Fields) -> anyhow::Result<()> {
    let path = match (named.starts_with("lgr_"), &tenant) {
        (false, Some(tenant)) => [LIST[0], LIST[1], "by-name", tenant, named, "reservations"].map(str::to_owned).into(),
        _ => reservations_of(call, named).await?,
    };
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let reserved = call.client.post(&path, Some(&serde_json::to_string(body)?)).await?;
    call.print(&reserved, |slot: ReservedSlot| {
        format!("Start the call from {} until {} ({}).", slot.starts_at, slot.ends_at, slot.id)
    })
}

/// Edits the version that was just read: an edit that came between is not overwritten.
async fn edit(call: &Call, named: &str, body: Fields) -> anyhow::Result<()> {
    let (group, read) = find(call, named).await?;
    let body = Value::Object(body).to_string();
    let path = [LIST[0], LIST[1], &group.id];
    let if_match = read.etag.as_deref();
    let request = Request { body: Some(&body), if_match, ..Request::new(Method::PATCH, &path) };
    let edited = call.client.send(request).await?;
    call.print(&edited, |group: LimitGroup| {
        format!("Edited {}. Its limits: {}.", group.name, limits_of(&group.rate_limits, None))
    })
}

async fn delete(call: &Call, named: &str, consent: Consent) -> anyhow::Result<()> {
    let (group, read) = find(call, named).await?;
    confirm(consent, &format!("Delete the limit group {}?", group.name))?;
    let path = [LIST[0], LIST[1], &group.id];
    let if_match = read.etag.as_deref();
    call.client.send(Request { if_match, ..Request::new(Method::DELETE, &path) }).await?;
    call.say(&format!("Deleted {} ({}).", group.name, group.id))
}

async fn audit(call: &Call, named: &str, range: &Fields) -> anyhow::Result<Exit> {
    let (group, _) = find(call, named).await?;
    let answer = call.client.get(&[LIST[0], LIST[1], &group.id, "audit"], range).await?;
    let audited = [Audited { id: group.id, name: group.name, limit_key: None, report: answer.read()? }];
    call.print(&answer, |_: Value| audit::in_words(&audited, call.screen))?;
    Ok(audit::exit(&audited))
}

/// The rows in which something happened, and the limits.
fn past(history: LimitGroupHistory, screen: Screen) -> String {
    let LimitGroupHistory { step, from, to, data, limit_changes } = history;
    let is_empty =
        |bucket: &LimitGroupHistoryBucket| bucket.arrivals + bucket.sends + bucket.delivered + bucket.failed == 0;
    let rows: Vec<_> = data.into_iter().filter(|bucket| !is_empty(bucket)).map(bucket).collect();
    let traffic = match rows.is_empty() {
        true => "Nothing arrived and nothing was sent.".to_owned(),
        false => buckets().with(rows).render(screen),
    };
    let limits =
        limit_changes.into_iter().map(|change| [change.at.into(), limits_of(&change.rate_limits, None).into()]);
    let limits = Table::new([Column::text("since"), Column::text("limits").flexible()]).with(limits).render(screen);
    format!("From {from} to {to}, by {step}.\n{traffic}\n\nLimits in force\n{limits}")
}

fn buckets() -> Table<5> {
    Table::new([
        Column::text("at"),
        Column::number("arrived"),
        Column::number("sent"),
        Column::number("succeeded"),
        Column::number("failed"),
    ])
}

fn bucket(bucket: LimitGroupHistoryBucket) -> [Cell; 5] {
    let LimitGroupHistoryBucket { at, sends, delivered, failed, arrivals } = bucket;
    let count = |count: u64| count.to_string().into();
    [at.into(), count(arrivals), count(sends), count(delivered), count(failed)]
}

/// Begins an override or a hold; `None` ends it.
async fn lasts_for_a_while(call: &Call, named: &str, what: &str, body: Option<Fields>) -> anyhow::Result<()> {
    let (group, read) = find(call, named).await?;
    temporary::set(call, [LIST[0], LIST[1], &group.id, what], read.etag.as_deref(), body).await
}

/// The id of a group that is named by its id or its name.
pub(super) async fn group_id(client: &Client, named: &str) -> anyhow::Result<String> {
    if named.starts_with("lgr_") {
        return Ok(named.to_owned());
    }
    let all: Vec<LimitGroupRow> = client.list(&LIST, &Fields::new(), usize::MAX).await?.read()?;
    let mut ids = all.into_iter().map(|row| row.limit_group).filter(|group| group.name == named).map(|group| group.id);
    match (ids.next(), ids.next()) {
        (Some(id), None) => Ok(id),
        (None, _) => Err(Misuse(format!("no limit group has the id or name `{named}`")).into()),
        (Some(one), Some(other)) => {
            Err(Misuse(format!("several limit groups have the name `{named}`: use an id, such as {one} or {other}"))
                .into())
        }
    }
}

/// The path of the reservations of a group that is named by its id or its name.
async fn reservations_of(call: &Call, named: &str) -> anyhow::Result<Vec<String>> {
    let id = group_id(&call.client, named).await?;
    Ok([LIST[0], LIST[1], &id, "reservations"].map(str::to_owned).into())
}

async fn find(call: &Call, named: &str) -> anyhow::Result<(LimitGroup, Answer)> {
    let id = group_id(&call.client, named).await?;
    let answer = call.client.get(&[LIST[0], LIST[1], &id], &Fields::new()).await?;
    Ok((answer.read()?, answer))
}

async fn show(call: &Call, named: &str) -> anyhow::Result<()> {
    let id = group_id(&call.client, named).await?;
    let answer = call.client.get(&[LIST[0], LIST[1], &id, "overview"], &Fields::new()).await?;
    if call.json {
        return call.print(&answer, |_: LimitGroupOverview| String::new());
    }
    let LimitGroupOverview { row, data, reservations, .. } = answer.read()?;
    let LimitGroupRow { limit_group: group, .. } = &row;
    let mut lines = vec![
        ("id", group.id.clone()),
        ("tenant", group.tenant.clone().unwrap_or_else(|| "all".to_owned())),
        ("limits", limits_of(&group.rate_limits, None)),
    ];
    lines.extend(group.overridden.as_ref().map(|overridden| ("override", for_a_while(overridden))));
    lines.extend(group.hold.as_ref().map(|hold| ("held", format!("until {}: {}", hold.until, hold.reason))));
    lines.extend(group.max_in_flight.map(|most| ("in flight", format!("at most {most}, {} now", row.delivering))));
    lines.push(("members", row.members.to_string()));
    lines.push(("backlog", count(row.backlog, "delivery", "deliveries")));
    lines.extend(row.oldest_age_s.map(|age| ("oldest", format!("{} old", span_s(age)))));
    lines.push(("rate", format!("{}/s sent, {}/s arriving", rate(row.achieved_per_s), rate(row.arrivals_per_s))));
    if reservations.last_minute > 0 {
        let slots = count(reservations.last_minute, "slot", "slots");
        lines.push(("reserved", format!("{slots} in the last minute, by callers outside Weir")));
    }
    if row.backlog > 0 {
        let drained = match (row.drain_eta_s, row.drains) {
            (_, Some(false)) => "never at this rate of arrivals".to_owned(),
            (Some(eta), _) => format!("in {}", span_s(eta.ceil())),
            (None, _) => "unknown".to_owned(),
        };
        lines.push(("drained", drained));
    }
    let mut text = format!("{}\n{}", clean(&group.name), settings::render(&lines, call.screen));
    if !data.is_empty() {
        text.push_str(&format!("\n\n{}", members().with(data.into_iter().map(member)).render(call.screen)));
    }
    output::show(&text, call.screen)
}

pub(super) fn table() -> Table<7> {
    Table::new([
        Column::text("id"),
        Column::text("name").flexible(),
        Column::text("state"),
        Column::text("limits").flexible(),
        Column::number("members").optional(),
        Column::number("use"),
        Column::number("backlog"),
    ])
}

pub(super) fn row(row: LimitGroupRow) -> [Cell; 7] {
    let used = percent(row.utilisation);
    let LimitGroup { id, name, rate_limits, overridden, hold, .. } = row.limit_group;
    let state = if hold.is_some() { "held" } else { "active" };
    let limits = in_force(&rate_limits, None, overridden.as_ref());
    [
        id.into(),
        name.into(),
        Cell::state(state),
        limits.into(),
        row.members.to_string().into(),
        used.into(),
        row.backlog.to_string().into(),
    ]
}

fn members() -> Table<6> {
    Table::new([
        Column::text("member").flexible(),
        Column::number("weight"),
        Column::number("share"),
        Column::number("sent"),
        Column::number("backlog"),
        Column::text("why not faster").flexible(),
    ])
}

fn member(member: LimitGroupMember) -> [Cell; 6] {
    let title = if member.name.is_empty() { member.id } else { member.name };
    let share = member.share_per_s.map_or_else(|| NONE.to_owned(), |share| format!("{}/s", rate(share)));
    [
        title.into(),
        member.weight.to_string().into(),
        share.into(),
        format!("{}/s", rate(member.achieved_per_s)).into(),
        member.backlog.to_string().into(),
        member.reason.unwrap_or_else(|| NONE.to_owned()).into(),
    ]
}

fn reservations() -> Table<5> {
    Table::new([
        Column::text("id"),
        Column::text("starts"),
        Column::number("within"),
        Column::number("cost"),
        Column::text("state"),
    ])
}

fn reservation(one: Reservation) -> [Cell; 5] {
    let within = format!("{} ms", one.ends_at.since(one.starts_at).as_millis());
    [
        one.id.into(),
        one.starts_at.to_string().into(),
        within.into(),
        one.cost.to_string().into(),
        one.state.replace('_', " ").into(),
    ]
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| NONE.to_owned(), |share| format!("{:.0} %", share * 100.0))
}
