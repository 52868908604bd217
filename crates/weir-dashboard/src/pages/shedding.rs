//! Load shedding: what this process refuses now, and the limits that people set.

use askama::Template;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use weir_api_types::{ShedOverride, Shedding, SheddingNow};

use crate::{
    client::{ApiPath, Call},
    extend::extend,
    faults::Faults,
    fields::Fields,
    frame::{Also, Frame, Section},
    refusal::Refusal,
    units::Units as _,
    visit::{Answered, Visit},
};

/// The modes of the form, with what each means. The first: what each process is set to.
const MODES: [(&str, &str); 4] =
    [("", "as WEIR_SHED says"), ("on", "on"), ("dry-run", "dry run: counted, nothing is refused"), ("off", "off")];

extend! {
    trait NowText for SheddingNow {
        fn pressure(&self) -> &'static str {
            match self.level {
                0 => "none",
                1 => "heavy requests are refused",
                2 => "heavy requests and reads are refused",
                _ => "heavy requests and reads are refused, and events are bounded",
            }
        }
    }
}

#[derive(Template)]
#[template(path = "shedding.html")]
struct SheddingPage {
    frame: Frame,
    now: SheddingNow,
    typed: Fields,
    /// The rows of the form: the limits that are set, and an empty one.
    rows: usize,
    faults: Faults,
}

/// The part that live updates replace.
#[derive(Template)]
#[template(path = "shedding_now.html")]
struct Now {
    frame: Frame,
    now: SheddingNow,
}

impl SheddingPage {
    fn value(&self, name: &str) -> &str {
        self.typed.raw(name)
    }
}

fn path() -> ApiPath {
    ApiPath::of(["shedding"])
}

pub(crate) async fn show(visit: Visit) -> Answered {
    page(&visit, StatusCode::OK, None).await
}

pub(crate) async fn fragment(visit: Visit) -> Answered {
    let path = path();
    let (me, shedding) = tokio::try_join!(visit.me(), visit.api.get::<Shedding>(&path))?;
    visit.fragment(&Now { frame: visit.frame(me, Section::Shedding, ""), now: shedding.now })
}

/// The page, with what was typed and refused, or else with what is set.
async fn page(visit: &Visit, status: StatusCode, refused: Option<(Fields, &Refusal)>) -> Answered {
    let path = path();
    let (me, shedding) = tokio::try_join!(visit.me(), visit.api.get::<Shedding>(&path))?;
    let (typed, faults) = match refused {
        Some((typed, refusal)) => {
            let rows = named_rows(&typed);
            let faults = Faults::of(refusal, |pointer| field_at(pointer, &rows));
            (typed, faults)
        }
        None => (shown(&shedding), Faults::default()),
    };
    let rows = (0..).find(|row| !typed.has(&format!("client-{row}"))).unwrap_or_default();
    let frame = visit.frame(me, Section::Shedding, "Load shedding").live(Also::Time.query());
    visit.page_with(status, &SheddingPage { frame, now: shedding.now, typed, rows, faults })
}

pub(crate) async fn set(visit: Visit, fields: Fields) -> Answered {
    // The form has no limits of classes, so these stay.
    let current: Shedding = visit.api.get(&path()).await?;
    let call = Call::new(Method::PUT, &path()).json(&body(&fields, &current))?;
    match visit.api.send(&call).await {
        // The form keeps what was typed.
        Err(refusal) if refusal.status == StatusCode::UNPROCESSABLE_ENTITY => {
            page(&visit, refusal.status, Some((fields, &refusal))).await
        }
        answer => {
            visit.after("/shedding", answer, |_| "The limits are saved, and in effect within a second.".to_owned())
        }
    }
}

/// What is set, as fields of the form. Each client has a row, and the last row is for a new one.
fn shown(shedding: &Shedding) -> Fields {
    let number = |number: Option<u32>| number.map(|number| number.to_string()).unwrap_or_default();
    let default = &shedding.clients.default;
    let mut fields = vec![
        ("mode".to_owned(), shedding.mode.clone().unwrap_or_default()),
        ("target_ms".to_owned(), shedding.target_ms.to_string()),
        ("in_flight".to_owned(), number(default.in_flight)),
        ("weight".to_owned(), default.weight.to_string()),
    ];
    let rows = shedding.clients.overrides.iter().map(|of: &ShedOverride| {
        let name = of.tenant.as_ref().or(of.key.as_ref()).cloned().unwrap_or_default();
        (name, number(of.in_flight), of.weight.to_string())
    });
    for (row, (name, in_flight, weight)) in rows.chain([Default::default()]).enumerate() {
        let values = [("client", name), ("in_flight", in_flight), ("weight", weight)];
        fields.extend(values.map(|(field, value)| (format!("{field}-{row}"), value)));
    }
    Fields::of(fields)
}

/// The rows that name a client. A row without one is no limit.
fn named_rows(fields: &Fields) -> Vec<usize> {
    let rows = (0..).take_while(|row| fields.has(&format!("client-{row}")));
    rows.filter(|row| !fields.text(&format!("client-{row}")).is_empty()).collect()
}

/// As the API takes it. What is no number goes to the API as it is, which refuses it with everything else.
fn body(fields: &Fields, current: &Shedding) -> Value {
    let number = |name: &str| match fields.text(name) {
        "" => Value::Null,
        text => text.parse::<u32>().map_or_else(|_| json!(text), |number| json!(number)),
    };
    let overrides = named_rows(fields).into_iter().map(|row| {
        let name = fields.text(&format!("client-{row}"));
        let kind = if name.starts_with("key_") { "key" } else { "tenant" };
        json!({
            kind: name, "in_flight": number(&format!("in_flight-{row}")), "weight": number(&format!("weight-{row}")),
        })
    });
    let mode = Some(fields.text("mode")).filter(|mode| !mode.is_empty());
    json!({
        "mode": mode,
        "target_ms": number("target_ms"),
        "classes": current.classes,
        "clients": {
            "default": {"in_flight": number("in_flight"), "weight": number("weight")},
            "overrides": overrides.collect::<Vec<_>>(),
        },
    })
}

/// The field that has the value at a JSON pointer, and its label. `rows`: that of each override.
fn field_at(pointer: &str, rows: &[usize]) -> Option<(String, String)> {
    let label = |field: &str| match field {
        "in_flight" => "In flight",
        "weight" => "Weight",
        _ => "Tenant or key",
    };
    match pointer.split('/').skip(1).collect::<Vec<_>>()[..] {
        ["mode"] => Some(("mode".to_owned(), "Mode".to_owned())),
        ["target_ms"] => Some(("target_ms".to_owned(), "Longest wait".to_owned())),
        ["clients", "default", field] => Some((field.to_owned(), format!("{} of every client", label(field)))),
        ["clients", "overrides", index, ref field @ ..] => {
            let row = rows.get(index.parse::<usize>().ok()?)?;
            let field = field.first().copied().unwrap_or("client");
            let name = if matches!(field, "in_flight" | "weight") { field } else { "client" };
            Some((format!("{name}-{row}"), format!("{} of client {}", label(field), row + 1)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use weir_api_types::{ShedClass, ShedClasses, ShedClient, ShedClients};

    use super::*;

    fn shedding(overrides: Vec<ShedOverride>) -> Shedding {
        let class = |in_flight| ShedClass { in_flight };
        Shedding {
            mode: None,
            target_ms: 250,
            classes: ShedClasses {
                control: class(None),
                ingest: class(None),
                read: class(Some(9)),
                heavy: class(None),
            },
            clients: ShedClients { default: ShedClient { in_flight: None, weight: 1 }, overrides },
            now: SheddingNow {
                mode: "on".to_owned(),
                level: 0,
                blind: false,
                processes: 1,
                classes: Vec::new(),
                clients: Vec::new(),
            },
        }
    }

    #[test]
    fn what_is_set_is_sent_back_unchanged() {
        let acme = ShedOverride { tenant: Some("acme".to_owned()), key: None, in_flight: Some(32), weight: 4 };
        let key = ShedOverride { tenant: None, key: Some("key_1".to_owned()), in_flight: None, weight: 1 };
        let set = shedding(vec![acme, key]);
        let sent = body(&shown(&set), &set);
        let expected = json!({
            "mode": null, "target_ms": 250,
            "classes": {
                "control": {"in_flight": null}, "ingest": {"in_flight": null}, "read": {"in_flight": 9},
                "heavy": {"in_flight": null},
            },
            "clients": {
                "default": {"in_flight": null, "weight": 1},
                "overrides": [
                    {"tenant": "acme", "in_flight": 32, "weight": 4}, {"key": "key_1", "in_flight": null, "weight": 1},
                ],
            },
        });
        assert_eq!(sent, expected);
    }

    #[test]
    fn a_fault_is_shown_in_the_row_that_has_it() {
        let typed = Fields::parse(b"client-0=&client-1=acme&in_flight-1=many&weight-1=");
        let rows = named_rows(&typed);
        assert_eq!(rows, [1]);
        let field = |pointer| field_at(pointer, &rows).map(|(name, _)| name);
        assert_eq!(field("/clients/overrides/0/in_flight").as_deref(), Some("in_flight-1"));
        assert_eq!(field("/clients/overrides/0/tenant").as_deref(), Some("client-1"));
        assert_eq!(field("/clients/overrides/0").as_deref(), Some("client-1"));
        assert_eq!((field("/clients/overrides/7/weight"), field("/classes/read")), (None, None));
        let sent = body(&typed, &shedding(Vec::new()));
        assert_eq!(sent["clients"]["overrides"], json!([{"tenant": "acme", "in_flight": "many", "weight": null}]));
    }
}
