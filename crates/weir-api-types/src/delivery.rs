//! Deliveries, their attempts, and groups of those that failed.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_core::Timestamp;

use crate::List;

/// One event owed to one destination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Delivery {
    #[schema(example = "dlv_01h2xcejqtf2nbrexx3vqjhp41")]
    pub id: String,
    pub event_id: String,
    pub event_type: String,
    pub destination_id: String,
    pub state: String,
    /// The number of counted attempts.
    pub attempt_count: u32,
    /// The due time of a waiting delivery, not before the end of a hold that its destination has asked for. Null while
    /// it waits for an earlier delivery of its `ordering_key`.
    pub next_attempt_at: Option<Timestamp>,
    /// Why a waiting delivery is not sent yet. Null if it does not wait, or if its destination is deleted.
    pub waits_for: Option<WaitsFor>,
    /// When a waiting delivery is expected to be sent, at the limits and the speed of the receiver that are known now: never
    /// in the past. Null if nobody can say: during a pause, behind a failing breaker, behind an earlier delivery of its
    /// `ordering_key`, or with more than 10,000 deliveries ahead. Where limit keys take turns it is the turn of its key, and
    /// rather too late: what other keys leave is not known in advance. A list measures at most 8 destinations, two of them
    /// with limit keys, and 50 keys of each; others have none.
    pub expected_at: Option<Timestamp>,
    /// The delivery becomes `expired` if it is not claimed by this instant.
    pub expires_at: Option<Timestamp>,
    /// How much of a limit in costs each attempt takes; absent for 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    #[schema(minimum = 1, maximum = 1_000, required = false)]
    pub cost: u32,
    /// Its limit key; absent where the destination had no limit keys when the event came. `""`: the event has no key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false, example = "cus_1")]
    pub limit_key: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// The error of the last attempt; null if it had none.
    pub last_error: Option<String>,
    /// The error in one word, as in the filter `error`: `dns`, `connect`, `tls`, `timeout`, `broken`, `forbidden`,
    /// `unknown`, or the class of the status (`5xx`).
    #[schema(example = "timeout")]
    pub last_error_kind: Option<String>,
    /// The HTTP status of the last attempt.
    pub last_status_code: Option<u16>,
}

/// The usual cost.
fn one() -> u32 {
    1
}

fn is_one(cost: &u32) -> bool {
    *cost == 1
}

/// A delivery with its attempts, oldest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeliveryDetail {
    #[serde(flatten)]
    pub delivery: Delivery,
    pub attempts: Vec<Attempt>,
}

/// One outbound HTTP request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Attempt {
    pub id: String,
    /// 1 for the first attempt.
    pub number: u32,
    /// When the send started. For an unknown outcome, the latest instant at which it may have started. Null if no send
    /// started.
    pub sent_at: Option<Timestamp>,
    pub status_code: Option<u16>,
    /// From the send start to the end of the answer; if no send started, how long Weir tried to connect.
    pub duration_ms: u32,
    pub error: Option<String>,
    /// The error in one word, or the class of a status that is not 2xx.
    #[schema(example = "timeout")]
    pub error_kind: Option<String>,
    pub outcome: String,
    /// The body of the response, truncated to 16 KiB; to 1 KiB for a 2xx response. A compressed one (`gzip`, `deflate`) is
    /// decoded.
    pub response_body: Option<String>,
    /// The time that was signed: the `webhook-timestamp` of the request.
    pub signed_at: Option<Timestamp>,
    /// The first 16 headers of the response as `[name, value]`; values are truncated to 256 bytes. Headers that may
    /// hold credentials, such as `set-cookie`, are left out.
    #[schema(value_type = Vec<Vec<String>>)]
    pub response_headers: Vec<(String, String)>,
    /// The address and port that the request was sent to.
    #[schema(value_type = Option<String>, example = "203.0.113.7:443")]
    pub remote_address: Option<SocketAddr>,
    /// How long the name look-up and the TCP connection took; null if the connection had been used before.
    pub connect_ms: Option<u32>,
    /// How long the TLS handshake took; null if the connection had been used before.
    pub tls_ms: Option<u32>,
}

/// The `detail` of a `hold` that is one of the limit group.
pub const HELD_BY_GROUP: &str = "its limit group is held";

/// Why a delivery, or everything of a destination, is not sent yet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WaitsFor {
    /// `pause`: until somebody resumes the destination. `hold`: the receiver asked Weir to
    /// wait, or people hold the destination or its limit group; a release of the destination ends the first of these.
    /// `breaker`: the destination fails, and one probe is sent at a time. `order`: an earlier delivery of its
    /// `ordering_key` has not ended. `due`: its own time, which is a retry or the `deliver_at` of its event. `turn`: the
    /// deliveries `ahead` of it, at the rate that the limits and the receiver allow. `key`: until somebody resumes its limit key.
    #[schema(pattern = "^(pause|hold|breaker|order|due|turn|key)$", example = "hold")]
    pub reason: String,
    /// When that ends; for `breaker` the next probe. Null for `pause` and `order`, while a probe is out, and for `turn` if
    /// no rate is known. With a capped `ahead`, the earliest instant.
    pub until: Option<Timestamp>,
    /// The reason in words, such as ``the destination answered 429 with retry-after: 120``.
    pub detail: Option<String>,
    /// Who paused the destination; null if it is not known.
    #[schema(example = "olga")]
    pub by: Option<String>,
    /// Since when the destination is paused; null if it is not known.
    #[serde(default)]
    pub since: Option<Timestamp>,
    /// Only of `turn`: how many deliveries are sent before it; where limit keys take turns, how many of its key. Null if a list
    /// has not counted them.
    pub ahead: Option<ListCount>,
}

/// An extension of a request inside the process: no destination is measured for the list that it asks for, so no delivery has
/// an `expected_at`. A file of all deliveries is older than such times when it is read, and measuring for each of its pages
/// took most of its time.
#[derive(Debug, Clone, Copy)]
pub struct Unmeasured;

/// One page of deliveries.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeliveryList {
    #[serde(flatten)]
    pub list: List<Delivery>,
    /// How many deliveries match the filter; only with `count=true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub count: Option<ListCount>,
}

/// A number of deliveries, counted up to a bound.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ListCount {
    /// At most 10,000.
    pub value: u64,
    /// There may be more than `value`, because no more deliveries were examined.
    pub capped: bool,
}

/// Groups of deliveries that failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeliveryGroups {
    pub data: Vec<DeliveryGroup>,
    /// How many deliveries were examined. For a key that is bound to tenants: how many of them are in a group.
    pub scanned: u64,
    /// Not all deliveries were examined, but the newest.
    pub capped: bool,
}

/// Deliveries of one destination that failed in the same way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeliveryGroup {
    pub destination_id: String,
    pub destination_name: String,
    pub state: String,
    /// The value of the filter `error` that finds these deliveries: a word such as `timeout`, or the status. Null if no
    /// attempt is recorded.
    #[schema(example = "503")]
    pub error: Option<String>,
    pub status_code: Option<u16>,
    /// The error of the newest delivery, in words.
    pub last_error: Option<String>,
    pub deliveries: u64,
    /// When the newest event of the group was created.
    pub newest_at: Timestamp,
    pub oldest_at: Timestamp,
    /// The newest delivery of the group.
    pub example_id: String,
}
