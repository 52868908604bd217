//! `weir preview`: what other limits would do to the backlog of a destination.

use serde_json::Value;
use weir_api_types::{Backlog, Binding, Destination, Forecast, KeyForecast, KeyPreview, OtherBinding, Preview};
use weir_core::stall::Fault;

use super::{Call, client::Fields, fields, limit_keys, records::InWords as _};
use crate::{
    exit::Misuse,
    flags::{
        limit_keys::KeyFlags,
        watch::{PreviewArgs, TriedFlags},
    },
    output::{
        Screen,
        table::{Cell, Column, Table, Tone},
        texts::{NONE, count, or_none, rate, span_s},
    },
};

pub(super) async fn run(call: &Call, args: PreviewArgs) -> anyhow::Result<()> {
    let id = call.client.destination_id(&args.tried.destination).await?;
    let mut body = tried(&args.tried)?;
    body.extend(tried_keys(call, &id, &args.keys).await?);
    let body = Value::Object(body).to_string();
    let answer = call.client.post(&["v1", "destinations", &id, "preview"], Some(&body)).await;
    let answer = answer.map_err(limit_keys::naming_flags)?;
    if call.json {
        return call.print(&answer, |_: Preview| String::new());
    }
    let backlog: Backlog = call.client.get(&["v1", "destinations", &id, "backlog"], &Fields::new()).await?.read()?;
    call.print(&answer, |preview| text(&preview, &backlog, call.screen))
}

/// The settings that are tried, for the body of a request.
pub(super) fn tried(flags: &TriedFlags) -> anyhow::Result<Fields> {
    let mut body = fields(&flags.settings)?;
    if flags.unlimited {
        body.insert("rate_limits".to_owned(), serde_json::json!([]));
        body.insert("min_interval_ms".to_owned(), Value::Null);
    }
    Ok(body)
}

/// The limits of keys as an edit with these flags would leave them, if a flag is about them. The API takes them as a whole.
async fn tried_keys(call: &Call, id: &str, flags: &KeyFlags) -> anyhow::Result<Option<(String, Value)>> {
    let Some((field, change)) = limit_keys::of_flags(flags)? else { return Ok(None) };
    let destination: Destination = call.client.get(&["v1", "destinations", id], &Fields::new()).await?.read()?;
    let present = &destination.settings.key_limits;
    if present.is_none() && !change.is_null() && flags.limit_key.is_none() {
        return Err(Misuse(format!(
            "{} has no limits of keys: say with --limit-key where the key is in the data of events, such as --limit-key \
             /customer/id",
            destination.title()
        ))
        .into());
    }
    let mut limits = serde_json::to_value(present)?;
    weir_api_types::merge(&mut limits, change);
    Ok(Some((field, limits)))
}

fn text(Preview { proposed, now, fault, key_limits, keys }: &Preview, backlog: &Backlog, screen: Screen) -> String {
    let waiting = backlog.pending + backlog.retrying;
    let rows = [("now", now), ("proposed", proposed)].map(|(title, forecast)| row(title, forecast, waiting));
    let table = table().with(rows).render(screen);
    let waiting = count(waiting, "delivery waits", "deliveries wait");
    let fault = fault.as_deref().and_then(Fault::named);
    let fault = fault.map(|fault| format!("\nWeir does not send as fast as it may now: {}.", fault.sentence()));
    let fault = fault.unwrap_or_default();
    let in_words = key_limits.as_deref().map(|keys| format!("\n{keys}")).unwrap_or_default();
    let keys = keys.as_deref().filter(|keys| !keys.is_empty());
    let keys = keys.map(|keys| format!("\n\n{}", key_table().with(keys.iter().map(key_row)).render(screen)));
    format!(
        "{table}\n\n{waiting}, {}/s arrive. Nothing was changed.{fault}{in_words}{}",
        rate(backlog.arrivals_per_s),
        keys.unwrap_or_default()
    )
}

fn key_table() -> Table<8> {
    Table::new([
        Column::text("key").flexible(),
        Column::number("waiting"),
        Column::number("now/s"),
        Column::number("proposed/s"),
        Column::number("drained now"),
        Column::number("proposed"),
        Column::text("bound now"),
        Column::text("proposed"),
    ])
}

fn key_row(KeyPreview { key, waiting, proposed, now }: &KeyPreview) -> [Cell; 8] {
    let per_s = |of: &KeyForecast| Cell::from(of.share_per_s.map_or_else(|| "unlimited".to_owned(), rate));
    let drained =
        |of: &KeyForecast| Cell::from(of.drain_eta_s.map_or_else(|| "unknown".to_owned(), |eta| span_s(eta.ceil())));
    let bound = |of: &KeyForecast| Cell::from(limit_keys::bound(of.binding.as_deref()));
    [
        limit_keys::name_of(key).into(),
        waiting.to_string().into(),
        per_s(now),
        per_s(proposed),
        drained(now),
        drained(proposed),
        bound(now),
        bound(proposed),
    ]
}

pub(super) fn table() -> Table<6> {
    Table::new([
        Column::text(""),
        Column::number("rate/s"),
        Column::text("bound by"),
        Column::number("margins cost/s").or("margins").optional(),
        Column::text("drained"),
        Column::text("first expires").flexible(),
    ])
}

pub(super) fn row(title: &str, forecast: &Forecast, waiting: u64) -> [Cell; 6] {
    let bound = match &forecast.binding {
        Some(Binding::Limit(limit)) => {
            let unit = limit.unit.as_ref().map(|unit| format!(":{unit}")).unwrap_or_default();
            format!("{}/{}{unit}", limit.limit, limit.period)
        }
        Some(Binding::Other(OtherBinding::MinInterval)) => "minimum interval".to_owned(),
        Some(Binding::Other(OtherBinding::MaxInFlight)) => "max in flight".to_owned(),
        Some(Binding::Other(OtherBinding::Group)) => "share of its group".to_owned(),
        Some(Binding::Other(OtherBinding::Key)) => "limits of its keys".to_owned(),
        Some(Binding::Other(OtherBinding::Adaptive)) => "adaptive pace".to_owned(),
        None => NONE.to_owned(),
    };
    let drained = match (waiting, forecast.drain_eta_s, forecast.drains) {
        (0, ..) => NONE.into(),
        (_, _, Some(false)) => Cell::toned("never", Tone::Bad),
        (_, Some(eta), _) => format!("in {}", span_s(eta.ceil())).into(),
        (_, None, _) => "unknown".into(),
    };
    let rate_text = forecast.effective_per_s.map_or_else(|| "unlimited".to_owned(), rate);
    let costs = or_none(forecast.margins_cost_per_s.filter(|cost| *cost > 0.0).map(rate));
    [title.into(), rate_text.into(), bound.into(), costs.into(), drained, or_none(forecast.first_expiry_at).into()]
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_proposal_stands_below_the_present_limits() {
        let forecast = |changes: Value| {
            let mut forecast = json!({
                "effective_per_s": 1.98, "binding": {"limit": 2, "period": "second"}, "drain_eta_s": 505.0,
                "drains": true, "would_expire": false,
            });
            forecast.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            forecast
        };
        let mut preview = forecast(json!({"effective_per_s": null, "binding": null, "drain_eta_s": 0.4}));
        preview["now"] = forecast(json!({"drains": false, "drain_eta_s": null}));
        let backlog = json!({
            "pending": 1_000, "retrying": 0, "delivering": 0, "achieved_per_s": 2.0, "arrivals_per_s": 3.0,
        });
        let text = text(
            &serde_json::from_value(preview).unwrap(),
            &serde_json::from_value(backlog).unwrap(),
            Screen { width: Some(80), colours: false, moves: false },
        );
        let lines: Vec<Vec<_>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[2], ["now", "1.98", "2/second", "–", "never", "–"], "{text}");
        assert_eq!(lines[3], ["proposed", "unlimited", "–", "–", "in", "1s", "–"], "{text}");
        assert!(text.ends_with("1000 deliveries wait, 3/s arrive. Nothing was changed."), "{text}");
    }
}
