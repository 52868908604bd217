//! Load shedding: what people have set, and what is refused now.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// When requests are refused, and the figures of this process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Shedding {
    /// `on`, `dry-run` or `off`; null: what the setting `WEIR_SHED` of each process says.
    #[schema(pattern = "^(on|dry-run|off)$", example = "dry-run")]
    pub mode: Option<String>,
    /// How long an event may wait for the store before fewer events are let in.
    #[schema(example = 250)]
    pub target_ms: u32,
    pub classes: ShedClasses,
    pub clients: ShedClients,
    pub now: SheddingNow,
}

/// The limits of the classes, in each process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ShedClasses {
    pub control: ShedClass,
    pub ingest: ShedClass,
    pub read: ShedClass,
    pub heavy: ShedClass,
}

/// The limit of a class of requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ShedClass {
    /// Null: automatic.
    pub in_flight: Option<u32>,
}

/// The limits of the clients, in all processes together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ShedClients {
    pub default: ShedClient,
    pub overrides: Vec<ShedOverride>,
}

/// The limit of every client without an override.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ShedClient {
    /// Null: a fair share of what is free.
    pub in_flight: Option<u32>,
    #[schema(example = 1)]
    pub weight: u32,
}

/// The limit of one tenant or one key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ShedOverride {
    /// The keys that are bound to this tenant alone count together.
    #[schema(example = "acme")]
    pub tenant: Option<String>,
    /// The id of a key.
    pub key: Option<String>,
    /// Null: a fair share of what is free; 0: every request is refused, except changes by operators.
    pub in_flight: Option<u32>,
    #[schema(example = 4)]
    pub weight: u32,
}

/// What the process that answers does now. Each process has figures of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SheddingNow {
    #[schema(pattern = "^(on|dry-run|off)$", example = "on")]
    pub mode: String,
    /// The pressure on the store: from 1 heavy requests are refused, from 2 reads, at 3 events are bounded.
    #[schema(maximum = 3)]
    pub level: u32,
    /// Whether nothing is known of other processes, because the queue does not answer.
    pub blind: bool,
    /// The processes that share the limits of clients.
    #[schema(example = 1)]
    pub processes: u32,
    pub classes: Vec<ShedClassNow>,
    /// The twenty clients with the highest peaks.
    pub clients: Vec<ShedClientNow>,
}

/// A class of requests in this process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ShedClassNow {
    #[schema(pattern = "^(control|ingest|read|heavy)$", example = "ingest")]
    pub class: String,
    pub in_flight: u32,
    /// 0 while the class is refused.
    #[schema(example = 256)]
    pub limit: u32,
    #[serde(flatten)]
    pub peaks: ShedPeaks,
}

/// A client in this process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ShedClientNow {
    #[schema(example = "billing")]
    pub name: String,
    pub in_flight: u32,
    /// Its own limit; null: a fair share.
    pub limit: Option<u32>,
    #[schema(example = 1)]
    pub weight: u32,
    /// Requests that were refused, or would have been in a dry run, since the process began.
    pub refused: u64,
    #[serde(flatten)]
    pub peaks: ShedPeaks,
}

/// The highest numbers in flight of each second with a request, since the process began.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ShedPeaks {
    pub peak_p99: u32,
    pub peak_max: u32,
    /// A limit that these peaks stay below: 1.5 times the 99.9th percentile. Null before the first second is over.
    pub suggested: Option<u32>,
}
