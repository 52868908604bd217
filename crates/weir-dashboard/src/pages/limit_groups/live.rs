//! What live updates replace on the page of a limit group: its figures, the shares of its members, and its reservations.

use askama::Template;
use weir_api_types::{LimitGroupMember, LimitGroupOverview, LimitGroupRow, List, RateLimit, Reservation};
use weir_core::access::Role;

use crate::{
    client::ApiPath,
    extend::extend,
    frame::Me,
    names::label,
    path_id::PathId,
    refusal::Refusal,
    units::{Seconds, Units as _},
    views::{Drain, LimitText as _, OverrideText as _, reason_in_words},
    visit::{Answered, Visit},
};

pub(super) const PATH: &str = "/limit-groups";
/// How many reservations are shown: those of the last seconds or minutes.
const RESERVATIONS: &str = "10";
/// The width of the bar of shares, in its own units.
const BAR: f64 = 1_000.0;
/// The colours of the bar. The members after them share the last one.
const COLOURS: [&str; 8] = ["share-0", "share-1", "share-2", "share-3", "share-4", "share-5", "share-6", "share-7"];
/// The colour of what callers outside Weir take.
const OF_CALLERS: &str = "share-callers";

extend! {
    pub(super) trait GroupText for LimitGroupRow {
        /// The limits in force, and those after the override.
        fn limits(&self) -> String {
            let listed = |limits: &[RateLimit]| match limits {
                [] => "unlimited".to_owned(),
                limits => limits.iter().map(|limit| limit.short()).collect::<Vec<_>>().join(", "),
            };
            let own = listed(&self.limit_group.rate_limits);
            let overridden = self.limit_group.overridden.as_ref().and_then(|of| of.rate_limits.as_deref());
            overridden.map_or_else(|| own.clone(), |now| format!("{} now, then {own}", listed(now)))
        }

        fn tenant(&self) -> &str {
            self.limit_group.tenant.as_deref().unwrap_or("all")
        }

        fn drain(&self) -> Drain {
            Drain::of(self.backlog, self.drain_eta_s, self.drains)
        }
    }
}

extend! {
    pub(super) trait MemberText for LimitGroupMember {
        fn label(&self) -> &str {
            label(&self.name, &self.url)
        }

        fn drain(&self) -> Drain {
            Drain::of(self.backlog, self.drain_eta_s, self.drains)
        }

        /// Which limit makes it no faster, where its share of the group does not.
        fn bound_by(&self) -> Option<&'static str> {
            match self.reason.as_deref()? {
                "key" => Some("bound by its limit keys"),
                "limit" => Some("bound by its own limit"),
                "adaptive" => Some("bound by its adaptive pace"),
                "slow" => Some("bound by its receiver"),
                _ => None,
            }
        }

        fn why(&self) -> String {
            self.reason.as_deref().map_or("", reason_in_words).to_owned()
        }
    }
}

extend! {
    pub(super) trait ReservationText for Reservation {
        /// How long the call may begin.
        fn width(&self) -> Seconds {
            Seconds(self.ends_at.since(self.starts_at).as_secs_f64())
        }

        fn state_in_words(&self) -> &str {
            match self.state.as_str() {
                "coming" => "coming",
                "given_back" => "given back",
                _ => "over",
            }
        }
    }
}

/// A part of the bar: what one member uses of the rate, or what the last ones use together.
pub(super) struct Part {
    pub(super) colour: &'static str,
    pub(super) x: u32,
    pub(super) width: u32,
    pub(super) title: String,
}

/// The figures of a group.
pub(super) struct Live {
    pub(super) base: String,
    /// Where programs reach the API.
    pub(super) url: String,
    pub(super) may_change: bool,
    pub(super) shown: LimitGroupOverview,
    /// The last ones.
    pub(super) reserved: Vec<Reservation>,
}

impl Live {
    pub(super) fn path(&self) -> String {
        format!("{}{PATH}/{}", self.base, self.shown.row.limit_group.id)
    }

    pub(super) fn colour(&self, index: &usize) -> &'static str {
        COLOURS[(*index).min(COLOURS.len() - 1)]
    }

    /// Which part of the group's rate each member and the callers outside Weir use. If the group is unlimited, which part of all
    /// that is used.
    pub(super) fn parts(&self) -> Vec<Part> {
        let members = self.shown.data.iter().enumerate();
        let members = members.map(|(index, member)| (self.colour(&index), member.label(), member.achieved_per_s));
        let of_callers = (OF_CALLERS, "Reservations", self.shown.reservations.per_s);
        let users: Vec<(&str, &str, f64)> = members.chain([of_callers]).collect();
        let used: f64 = users.iter().map(|(.., per_s)| per_s).sum();
        let whole = self.shown.row.configured_per_s.unwrap_or(used).max(used);
        let mut x = 0.0;
        let mut parts = Vec::new();
        for (colour, name, per_s) in users {
            let width = if whole > 0.0 { per_s / whole * BAR } else { 0.0 };
            if width > 0.0 {
                let title = format!("{name}: {}", per_s.per_s());
                // Rounded at both ends, so that parts meet.
                let (from, to) = (x as u32, (x + width).round() as u32);
                parts.push(Part { colour, x: from, width: to.saturating_sub(from), title });
            }
            x += width;
        }
        parts
    }
}

/// The part of the page that live updates replace.
#[derive(Template)]
#[template(path = "limit_group_live.html")]
struct LivePart {
    live: Live,
}

/// Whether the caller may change groups of this tenant; those of all tenants are for admins of the installation.
pub(super) fn may_change(me: &Me, tenant: Option<&str>) -> bool {
    match tenant {
        Some(_) => me.role.includes(Role::Operate),
        None => me.role.includes(Role::Admin) && !me.is_bound(),
    }
}

pub(super) async fn read(visit: &Visit, id: &str) -> Result<Live, Refusal> {
    let overview = ApiPath::of(["limit-groups", id, "overview"]);
    let reservations = ApiPath::of(["limit-groups", id, "reservations"]).with("limit", RESERVATIONS);
    let (me, shown, reserved): (_, LimitGroupOverview, List<Reservation>) =
        tokio::try_join!(visit.me(), visit.api.get(&overview), visit.api.get(&reservations))?;
    let may_change = may_change(&me, shown.row.limit_group.tenant.as_deref());
    Ok(Live { base: visit.site.base.clone(), url: visit.public_url(), may_change, shown, reserved: reserved.data })
}

pub(crate) async fn fragment(visit: Visit, PathId(id): PathId) -> Answered {
    let live = read(&visit, &id).await?;
    visit.fragment(&LivePart { live })
}
