//! Where the deliveries of replays wait: in the index of what is due, behind everything live.
//!
//! The due time of a delivery in the lane is stored [`LANE`] later than it is. So all that waits of a destination is in one
//! index, and whoever looks for it (counts, purges, expiry, deletion) finds both; a claim of live deliveries ends where the
//! lane begins; and a live delivery costs no more for there being a lane.

use weir_core::Timestamp;

/// What due times in the lane are stored later by: 146 years, so that the lane begins in 2116. The ends of both fit in an `i64`
/// until then.
pub(crate) const LANE: i64 = 1 << 62;
/// The first due time of the lane.
pub(crate) const LANE_START: Timestamp = Timestamp::from_nanos(LANE);

/// Whether a delivery with this stored due time waits in the lane.
pub(crate) fn is_in_lane(stored: Timestamp) -> bool {
    stored >= LANE_START
}

/// A due time as it is stored in the lane.
pub(crate) fn in_lane(due: Timestamp) -> Timestamp {
    Timestamp::from_nanos(due.as_nanos().saturating_add(LANE))
}

/// When a delivery is due, wherever it waits.
pub(crate) fn due(stored: Timestamp) -> Timestamp {
    if is_in_lane(stored) { Timestamp::from_nanos(stored.as_nanos() - LANE) } else { stored }
}
