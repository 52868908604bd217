//! The tab *Settings*: every setting, the secret and its rotation, a test event, the check of a request, and deletion.

use std::collections::BTreeMap;

use askama::Template;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use weir_api_types::{DeliveryDetail, Destination, FilterTried, Secret, Verified};
use weir_core::access::Role;

use super::{
    Head, Tab,
    group_names::{self, GroupNames},
    settings_errors::faults_of,
    settings_fields::{Field, GROUPS, Group, Kind, WAY_OUT},
    settings_form::{SettingsText as _, filter},
};
use crate::{
    client::{ApiPath, Call},
    extend::extend,
    faults::{Faults, Refused, sentence},
    fields::Fields,
    flash::Flash,
    frame::{Frame, Section},
    path_id::PathId,
    refusal::Refusal,
    units::{Seconds, Units as _},
    views::{DestinationText as _, accepted},
    visit::{Answered, Visit},
};

/// How long the previous secret also signs, in seconds.
const OVERLAPS: [(u32, &str); 5] =
    [(0, "not at all"), (3_600, "1 hour"), (86_400, "24 hours"), (604_800, "7 days"), (2_592_000, "30 days")];

extend! {
    trait VerifiedText for Verified {
        fn age(&self) -> Option<Seconds> {
            self.age_s.map(|age| Seconds(age as f64))
        }

        /// Why it is refused, without the backticks that the API writes around names.
        fn why(&self) -> String {
            match (&self.hint, &self.reason) {
                (Some(hint), _) => format!("Found the cause: {}.", hint.replace('`', "")),
                (None, reason) => sentence(reason.as_deref().unwrap_or("it is refused"), None, &|_| None),
            }
        }
    }
}

/// What the page shows beside the settings.
#[derive(Default)]
struct Shown {
    /// The form as it was typed, if it was not saved.
    typed: Option<Fields>,
    faults: Faults,
    /// Another change came first.
    is_outdated: bool,
    secret: Option<Secret>,
    /// What was typed for a rotation, and what is wrong with it.
    rotation: Refused,
    /// What was typed to delete it.
    deletion: Refused,
    /// The result of a check, with what was pasted.
    verified: Option<(Result<Verified, String>, Fields)>,
    /// What the filter says of the data that was typed.
    tried: Option<(Result<FilterTried, String>, Fields)>,
}

#[derive(Template)]
#[template(path = "destination_settings.html")]
struct SettingsPage {
    frame: Frame,
    head: Head,
    form: Fields,
    groups: GroupNames,
    shown: Shown,
}

impl SettingsPage {
    fn groups(&self) -> &'static [Group] {
        &GROUPS
    }

    /// The certificates of the destination belong to this group.
    fn shows_certificates(&self, group: &Group) -> bool {
        group.title == WAY_OUT && !self.head.destination.tls_certificates.is_empty()
    }

    /// A header that holds one signature has no overlap.
    fn overlaps(&self) -> Vec<(u32, &'static str)> {
        let takes_several = self.head.destination.signature_format.separator.is_some();
        OVERLAPS.into_iter().filter(|(seconds, _)| takes_several || *seconds == 0).collect()
    }

    fn value(&self, field: &Field) -> &str {
        self.form.raw(field.name)
    }

    /// As many lines as a text has, so that a filter is seen as a whole unless it is long.
    fn rows(&self, field: &Field) -> usize {
        self.value(field).lines().count().clamp(3, 12)
    }

    /// Whether the rotation offers this overlap first.
    fn is_overlap(&self, seconds: &u32) -> bool {
        let typed = self.of_rotation("overlap_s").parse();
        *seconds == typed.unwrap_or(86_400)
    }

    /// What was typed for a rotation.
    fn of_rotation(&self, name: &str) -> &str {
        self.shown.rotation.value(name)
    }

    fn of_trial(&self, name: &str) -> &str {
        self.shown.tried.as_ref().map_or("", |(_, fields)| fields.raw(name))
    }

    fn pasted(&self, name: &str) -> &str {
        self.shown.verified.as_ref().map_or("", |(_, fields)| fields.raw(name))
    }

    /// What must be typed to delete the destination.
    fn confirmation(&self) -> &str {
        self.head.destination.label().trim()
    }
}

async fn page(visit: &Visit, id: &str, status: StatusCode, shown: Shown) -> Answered {
    let path = ApiPath::of(["destinations", id]);
    let call = Call::get(&path);
    let (me, answer) = tokio::try_join!(visit.me(), visit.api.send(&call))?;
    let destination: Destination = answer.read()?;
    let settings = &destination.settings;
    let groups = group_names::names(visit, &settings.tenant, settings.limit_group.as_deref()).await?;
    let form = shown
        .typed
        .clone()
        .unwrap_or_else(|| settings.fields().with("limit_group", groups.own.clone().unwrap_or_default()));
    let (base, can_operate) = (visit.site.base.clone(), me.role.includes(Role::Operate));
    let frame = visit.frame(me, Section::None, format!("Settings of {}", destination.label()));
    let head = Head { base, destination, etag: answer.etag().unwrap_or_default(), tab: Tab::Settings, can_operate };
    visit.page_with(status, &SettingsPage { frame, head, form, groups, shown })
}

pub(crate) async fn show(visit: Visit, PathId(id): PathId) -> Answered {
    page(&visit, &id, StatusCode::OK, Shown::default()).await
}

pub(crate) async fn save(visit: Visit, PathId(id): PathId, fields: Fields) -> Answered {
    let path = ApiPath::of(["destinations", &id]);
    let current: Destination = visit.api.get(&path).await?;
    let mut patch = current.settings.patch(&fields);
    if let Some(named) = patch["limit_group"].as_str() {
        let Some(group) = group_names::id_of(&visit, &current.settings.tenant, named).await? else {
            let mut faults = Faults::default();
            let text = format!("No limit group that this destination may join is named {named}.");
            faults.add("limit_group", "Limit group", text);
            let shown = Shown { typed: Some(fields), faults, ..Shown::default() };
            return page(&visit, &id, StatusCode::UNPROCESSABLE_ENTITY, shown).await;
        };
        patch["limit_group"] = group.into();
    }
    let edit = Call::new(Method::PATCH, &path).json(&patch)?.if_match(fields.text("etag"))?;
    let refusal = match visit.api.send(&edit).await {
        Ok(_) => return visit.redirect(&format!("/destinations/{id}/settings"), Some(Flash::done("Settings saved."))),
        Err(refusal) => refusal,
    };
    let shown = match refusal.status {
        StatusCode::PRECONDITION_FAILED => Shown { is_outdated: true, ..Shown::default() },
        StatusCode::UNPROCESSABLE_ENTITY | StatusCode::CONFLICT => {
            Shown { faults: faults_of(&refusal, &fields), ..Shown::default() }
        }
        _ => return Err(refusal),
    };
    page(&visit, &id, refusal.status, Shown { typed: Some(fields), ..shown }).await
}

/// Shows the secret on a page that is never stored. The API logs who asked.
pub(crate) async fn reveal(visit: Visit, PathId(id): PathId) -> Answered {
    let secret = visit.api.get(&ApiPath::of(["destinations", &id, "secret"])).await?;
    page(&visit, &id, StatusCode::OK, Shown { secret: Some(secret), ..Shown::default() }).await
}

/// Rotates the secret and leads back to the settings. The answer is no page: a reload would rotate again, and end the
/// overlap in which the previous secret also signs.
pub(crate) async fn rotate(visit: Visit, PathId(id): PathId, fields: Fields) -> Answered {
    let settings = format!("/destinations/{id}/settings");
    let overlap_s: u32 = fields.text("overlap_s").parse().unwrap_or(86_400);
    let given = fields.text("secret");
    let secret = if given.is_empty() { Value::Null } else { json!(given) };
    let path = ApiPath::of(["destinations", &id, "rotate-secret"]);
    let body = json!({"overlap_s": overlap_s, "secret": secret, "force": fields.has("force")});
    // A second click, or a page that was opened before another rotation, rotates nothing.
    let call = Call::new(Method::POST, &path).json(&body)?.if_match(fields.text("etag"))?;
    let answer: Result<Secret, Refusal> = visit.api.send(&call).await.and_then(|answer| answer.read());
    if answer.as_ref().is_err_and(|refusal| refusal.status == StatusCode::PRECONDITION_FAILED) {
        let late =
            "Nothing was rotated: this destination was changed after the page was opened. Look at it, and try again.";
        return visit.redirect(&settings, Some(Flash::error(late)));
    }
    let field_of = |pointer: &str| (pointer == "/secret").then(|| ("secret".to_owned(), "New secret".to_owned()));
    if let Some(rotation) = Refused::by(&answer, &fields, field_of) {
        return page(&visit, &id, StatusCode::UNPROCESSABLE_ENTITY, Shown { rotation, ..Shown::default() }).await;
    }
    visit.after(&settings, answer, |secret| {
        let previous = match secret.previous_valid_until {
            Some(until) => format!("The previous secret also signs until {} UTC.", until.time().plain()),
            None => "The previous secret no longer signs.".to_owned(),
        };
        format!("The secret is rotated. {previous} “Show the secret” shows the new one.")
    })
}

/// Sends a test event, and leads to its delivery.
pub(crate) async fn test(visit: Visit, PathId(id): PathId) -> Answered {
    let call = Call::new(Method::POST, &ApiPath::of(["destinations", &id, "test"]));
    let sent: Result<DeliveryDetail, Refusal> = visit.api.send(&call).await.and_then(|answer| answer.read());
    match sent {
        Ok(DeliveryDetail { delivery: sent, .. }) => {
            let unless_waiting = "It is sent in its turn, within the limits.";
            let text = accepted(sent.waits_for.as_ref(), "A test event was accepted.", unless_waiting);
            visit.redirect(&format!("/deliveries/{}", sent.id), Some(Flash::done(text)))
        }
        Err(refusal) => visit.after(&format!("/destinations/{id}/settings"), Err::<(), _>(refusal), |()| String::new()),
    }
}

/// Whether a pasted request was signed with the secret of the destination.
pub(crate) async fn verify(visit: Visit, PathId(id): PathId, fields: Fields) -> Answered {
    let pairs = fields.raw("request_headers").lines().filter_map(|line| line.split_once(':'));
    let headers: BTreeMap<String, &str> =
        pairs.map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim())).collect();
    let body = json!({"destination": id, "headers": headers, "body": fields.raw("request_body")});
    let result = match visit.api.post::<Verified>(&ApiPath::of(["verify"]), &body).await {
        Ok(verified) => Ok(verified),
        Err(refusal) if refusal.status == StatusCode::UNPROCESSABLE_ENTITY => Err(refusal.sentence()),
        Err(refusal) => return Err(refusal),
    };
    page(&visit, &id, StatusCode::OK, Shown { verified: Some((result, fields)), ..Shown::default() }).await
}

/// Whether an event with the typed data would pass the typed filter. Nothing is saved.
pub(crate) async fn try_filter(visit: Visit, PathId(id): PathId, fields: Fields) -> Answered {
    let tried = match serde_json::from_str::<Value>(fields.text("data")) {
        Err(error) => Err(format!("The data is no JSON: {error}.")),
        Ok(data) => {
            let body = json!({"data": data, "filter": filter(fields.text("filter"))});
            match visit.api.post::<FilterTried>(&ApiPath::of(["destinations", &id, "filter", "try"]), &body).await {
                Ok(tried) => Ok(tried),
                Err(refusal) if refusal.status == StatusCode::UNPROCESSABLE_ENTITY => Err(refusal.sentence()),
                Err(refusal) => return Err(refusal),
            }
        }
    };
    page(&visit, &id, StatusCode::OK, Shown { tried: Some((tried, fields)), ..Shown::default() }).await
}

/// Deletes a destination whose name was typed.
pub(crate) async fn delete(visit: Visit, PathId(id): PathId, fields: Fields) -> Answered {
    let (destination, _) = super::read(&visit, &id).await?;
    let settings = format!("/destinations/{id}/settings");
    if fields.text("confirm") != destination.label().trim() {
        let unsure = "It was not typed as shown.".to_owned();
        let deletion = Refused::in_field(fields, "confirm", "The confirmation", unsure);
        return page(&visit, &id, StatusCode::UNPROCESSABLE_ENTITY, Shown { deletion, ..Shown::default() }).await;
    }
    let call = Call::new(Method::DELETE, &ApiPath::of(["destinations", &id])).if_match(fields.text("etag"))?;
    match visit.api.send(&call).await {
        Ok(_) => {
            let text = format!("{} is deleted. What waited is cancelled; the history stays.", destination.label());
            visit.redirect("/", Some(Flash::done(text)))
        }
        Err(refusal) => visit.after(&settings, Err::<(), _>(refusal), |()| String::new()),
    }
}
