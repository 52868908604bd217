//! The tab *Backlog*: what waits, since when, and what can be done about it.

use askama::Template;
use weir_api_types::{Delivery, DestinationOverview, List};
use weir_core::access::Role;

use super::{Head, Tab};
use crate::{
    client::ApiPath,
    example::Example,
    frame::{Frame, Me, Section},
    pages::deliveries::DeliveryText as _,
    path_id::PathId,
    refusal::Refusal,
    units::Units as _,
    views::{DestinationText as _, Drain, RowText as _, WaitsForText as _},
    visit::{Answered, Visit},
};

/// The oldest deliveries that the page lists.
const ROWS: &str = "20";

/// What live updates replace.
struct Live {
    head: Head,
    state: DestinationOverview,
    oldest: Vec<Delivery>,
    /// More wait than the page lists.
    has_more: bool,
    example: Example,
}

impl Live {
    fn fragment(&self) -> String {
        format!("{}/fragments/destinations/{}/backlog", self.head.base, self.head.destination.id)
    }

    /// The path of the API that sends a test event.
    fn test(&self) -> String {
        format!("/v1/destinations/{}/test", self.head.destination.id)
    }

    /// A list of deliveries of this destination, with the base.
    fn list(&self, states: &str) -> String {
        let Head { base, destination, .. } = &self.head;
        format!("{base}/deliveries?destination={}&state={states}&order=oldest", destination.id)
    }
}

#[derive(Template)]
#[template(path = "destination_backlog.html")]
struct BacklogPage {
    frame: Frame,
    live: Live,
}

#[derive(Template)]
#[template(path = "destination_backlog_live.html")]
struct BacklogLive {
    live: Live,
}

async fn read(visit: &Visit, id: &str) -> Result<(Me, Live), Refusal> {
    let overview = ApiPath::of(["destinations", id, "overview"]);
    let oldest = ApiPath::of(["deliveries"]).with("destination", id).with("state", "pending,retrying");
    let oldest = oldest.with("order", "oldest").with("limit", ROWS);
    let (me, (destination, etag), state, oldest) = tokio::try_join!(
        visit.me(),
        super::read(visit, id),
        visit.api.get(&overview),
        visit.api.get::<List<Delivery>>(&oldest)
    )?;
    let (base, can_operate) = (visit.site.base.clone(), me.role.includes(Role::Operate));
    let head = Head { base, destination, etag, tab: Tab::Backlog, can_operate };
    let has_more = oldest.next_cursor.is_some();
    let example = Example::new(visit, &me);
    Ok((me, Live { head, state, oldest: oldest.data, has_more, example }))
}

pub(crate) async fn show(visit: Visit, PathId(id): PathId) -> Answered {
    let (me, live) = read(&visit, &id).await?;
    let frame = visit.frame(me, Section::None, format!("Backlog of {}", live.head.destination.label()));
    let frame = frame.live(format!("?destination={}", live.head.destination.id));
    visit.page(&BacklogPage { frame, live })
}

pub(crate) async fn fragment(visit: Visit, PathId(id): PathId) -> Answered {
    let (_, live) = read(&visit, &id).await?;
    visit.fragment(&BacklogLive { live })
}
