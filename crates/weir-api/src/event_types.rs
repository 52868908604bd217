//! The catalogue of event types in the memory of a process: which events are accepted where it is strict.
//!
//! Where it is open, no request looks at it. The copy is read again when its number in the store has changed
//! ([`EventTypes::keep_fresh`]); while the store cannot be reached, the last copy stays. Schemas are compiled when the
//! first event of their type comes.
//!
//! A check takes time in proportion to the data, and a hostile schema can make that a hundredth of a second. So it is
//! done on a thread of its own where it may take long, and the keys share [`CHECKS`] such threads fairly.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use parking_lot::RwLock;
use serde_json::{Value, value::RawValue};
use tokio::{
    sync::Mutex,
    time::{MissedTickBehavior, interval},
};
use weir_core::{
    event_types::{Mode, near},
    json_schema::{JsonSchema, MAX_BYTES},
    pattern::EventPattern,
    shed::{Class, Reason},
};
use weir_store::{SharedStore, Store, StoreResult};

use crate::{
    auth::Sharer,
    errors::Errors,
    fair_share::{FairShare, Seat},
    meters,
    problem::{ApiResult, Problem},
};

/// How often the number of the catalogue is read: a change is in effect within a second.
const REFRESH_EVERY: Duration = Duration::from_millis(500);
/// The long checks at one time. One key has one of them, so that another key finds the other.
const CHECKS: usize = 2;
/// As many requests of a key wait for a check as it may have in flight, and no longer than a producer waits.
const WAITING_CHECKS: usize = 4_096;
const CHECKS_WAIT: Duration = Duration::from_secs(30);
/// The unknown types of a request for which near names are looked for: that takes up to a millisecond each.
const SUGGESTED: u32 = 3;

/// The catalogue, shared. Clones share one copy.
#[derive(Clone)]
pub struct EventTypes(Arc<Inner>);

struct Inner {
    mode: Mode,
    copy: RwLock<Arc<Catalogue>>,
    refreshing: Mutex<()>,
    checks: FairShare,
}

#[derive(Default)]
struct Catalogue {
    /// `None`: it was never read.
    version: Option<u64>,
    types: BTreeMap<String, Arc<Known>>,
    has_schemas: bool,
}

struct Known {
    version: u64,
    schema: Option<String>,
    compiled: OnceLock<Option<JsonSchema>>,
}

impl Known {
    /// `None` also for a schema that only a newer program understands: it must not refuse what that one accepts.
    fn schema(&self) -> Option<&JsonSchema> {
        let text = self.schema.as_ref()?;
        let compile = || JsonSchema::parse(&serde_json::from_str(text).ok()?).ok();
        self.compiled.get_or_init(compile).as_ref()
    }
}

impl EventTypes {
    pub fn new(mode: Mode) -> Self {
        let checks = FairShare::new("schema checks", Class::Ingest, CHECKS).with_waiting(WAITING_CHECKS, CHECKS_WAIT);
        Self(Arc::new(Inner { mode, copy: RwLock::default(), refreshing: Mutex::default(), checks }))
    }

    fn copy(&self) -> Arc<Catalogue> {
        Arc::clone(&self.0.copy.read())
    }

    /// Reads what has changed.
    pub async fn refresh(&self, store: &dyn Store) -> StoreResult<()> {
        let _one_at_a_time = self.0.refreshing.lock().await;
        let version = store.event_types_version().await?;
        let before = self.copy();
        if before.version == Some(version) {
            return Ok(());
        }
        // A lower number: the database is another one, so nothing of the copy is kept.
        let kept = before.version.filter(|before| *before < version);
        let mut catalogue = Catalogue { version: Some(version), ..Catalogue::default() };
        for found in store.known_event_types(kept.unwrap_or(0)).await? {
            let unchanged =
                before.types.get(&found.name).filter(|known| kept.is_some() && known.version == found.version);
            let known = unchanged.cloned().unwrap_or_else(|| {
                Arc::new(Known { version: found.version, schema: found.schema, compiled: OnceLock::new() })
            });
            catalogue.has_schemas |= known.schema.is_some();
            catalogue.types.insert(found.name, known);
        }
        *self.0.copy.write() = Arc::new(catalogue);
        Ok(())
    }

    /// Refreshes the copy again and again, until `shutdown` resolves.
    pub async fn keep_fresh(self, store: SharedStore, shutdown: impl Future<Output = ()>) {
        let refreshes = async {
            let mut ticks = interval(REFRESH_EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                if let Err(error) = self.refresh(&*store).await {
                    tracing::debug!(%error, "could not read the catalogue of event types; the last copy is used");
                }
            }
        };
        tokio::select! {
            () = shutdown => {}
            () = refreshes => {}
        }
    }

    /// What the events of a request are checked by; `None`: they are not.
    pub(crate) async fn checks(&self, store: &dyn Store) -> ApiResult<Option<Checks>> {
        if self.0.mode == Mode::Open {
            return Ok(None);
        }
        let mut catalogue = self.copy();
        if catalogue.version.is_none() {
            self.refresh(store).await?;
            catalogue = self.copy();
        }
        Ok(Some(Checks { catalogue, suggested: AtomicU32::new(0) }))
    }

    /// The turn of a key for a check that may take long.
    pub(crate) async fn turn(&self, sharer: Sharer) -> ApiResult<Seat> {
        let seat = self.0.checks.take(sharer).await;
        seat.ok_or_else(|| {
            meters::no_room(Class::Ingest, Reason::Client);
            let detail = "this key has too many events whose data waits for its check by a schema; try again";
            Problem::no_room(Reason::Client, detail)
        })
    }

    /// The patterns that match no type of the catalogue. An empty catalogue says nothing about patterns.
    pub(crate) fn unknown(&self, patterns: &[EventPattern]) -> Vec<String> {
        let catalogue = self.copy();
        let is_known = |pattern: &EventPattern| match pattern {
            EventPattern::Any => true,
            operational if operational.is_operational() => true,
            EventPattern::Exact(name) => catalogue.types.contains_key(name),
            EventPattern::Prefix(prefix) => {
                catalogue.types.range(prefix.clone()..).next().is_some_and(|(name, _)| name.starts_with(prefix))
            }
        };
        match catalogue.types.is_empty() {
            true => Vec::new(),
            false => patterns.iter().filter(|pattern| !is_known(pattern)).map(ToString::to_string).collect(),
        }
    }
}

/// Checks the events of one request by one copy of the catalogue.
pub(crate) struct Checks {
    catalogue: Arc<Catalogue>,
    suggested: AtomicU32,
}

impl Checks {
    pub(crate) fn have_schemas(&self) -> bool {
        self.catalogue.has_schemas
    }

    /// Adds what is wrong with the type of an event, or with its data.
    pub(crate) fn check(&self, event_type: &str, data: &RawValue, errors: &mut Errors) {
        let Some(known) = self.catalogue.types.get(event_type) else {
            meters::event_refused("unknown_type");
            errors.add("/type", self.unknown(event_type));
            return;
        };
        let Some(schema) = known.schema() else { return };
        match serde_json::from_str::<Value>(data.get()) {
            Ok(value) => {
                let faults = schema.check(&value, data.get().len()).err().unwrap_or_default();
                if !faults.is_empty() {
                    meters::event_refused("schema");
                }
                for fault in faults {
                    errors.add(format!("/data{}", fault.pointer), fault.detail);
                }
            }
            Err(error) => {
                meters::event_refused("schema");
                errors.add("/data", format!("cannot be checked by the schema of its type: {error}"));
            }
        }
    }

    fn unknown(&self, event_type: &str) -> String {
        let types = &self.catalogue.types;
        let mut text = "is not in the catalogue of event types".to_owned();
        let near = match self.suggested.fetch_add(1, Ordering::Relaxed) {
            ..SUGGESTED => near(event_type, types.keys().map(String::as_str)),
            _ => Vec::new(),
        };
        match near.as_slice() {
            [] => text.push_str(": add it there (`PUT /v1/event-types/{name}`), or use one of its types"),
            near => {
                let near: Vec<_> = near.iter().map(|name| format!("`{name}`")).collect();
                text.push_str(&format!("; did you mean {}?", near.join(" or ")));
            }
        }
        text
    }
}

/// Compiles a schema of a request, and adds its faults and those of the example.
pub(crate) fn check_schema(schema: Option<&Value>, example: Option<&Value>, errors: &mut Errors) {
    let bytes = example.map_or(0, |example| example.to_string().len());
    if bytes > MAX_BYTES {
        errors.add("/example", format!("must be at most {MAX_BYTES} bytes long, not {bytes}"));
    }
    let Some(schema) = schema else { return };
    match JsonSchema::parse(schema) {
        Err(faults) => {
            faults.into_iter().for_each(|fault| errors.add(format!("/schema{}", fault.pointer), fault.detail));
        }
        Ok(schema) => {
            let faults = example.and_then(|example| schema.check(example, bytes).err()).unwrap_or_default();
            for fault in faults {
                errors.add(format!("/example{}", fault.pointer), format!("{}, by the schema", fault.detail));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use weir_core::{
        Timestamp,
        activity::{Action, Activity, Origin},
        event_types::EventType,
    };
    use weir_store::EventTypes as _;
    use weir_store_sqlite::SqliteStore;

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

    async fn set(store: &SqliteStore, name: &str, schema: Value, expected: Option<u64>) {
        let event_type = EventType {
            name: name.to_owned(),
            description: String::new(),
            example: None,
            schema: Some(schema),
            created_at: NOW,
            updated_at: NOW,
            version: 0,
        };
        let activity = Activity::new(Origin::weir(), Action::EventTypeSet, NOW);
        store.set_event_type(expected, event_type, activity).await.unwrap();
    }

    async fn faults(types: &EventTypes, store: &SqliteStore, name: &str, data: &str) -> Vec<String> {
        let checks = types.checks(store).await.unwrap().unwrap();
        let mut errors = Errors::default();
        checks.check(name, &RawValue::from_string(data.to_owned()).unwrap(), &mut errors);
        errors.into_vec().into_iter().map(|error| error.pointer).collect()
    }

    #[tokio::test]
    async fn each_process_reads_changes_and_keeps_its_copy_while_the_store_is_lost() {
        let directory = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&directory.path().join("weir.db")).await.unwrap();
        let (one, other) = (EventTypes::new(Mode::Strict), EventTypes::new(Mode::Strict));
        set(&store, "a", json!({"type": "string"}), None).await;
        // A process that has read nothing reads at the first event.
        assert_eq!(faults(&one, &store, "a", "1").await, ["/data"]);
        other.refresh(&store).await.unwrap();
        let version = store.event_types_version().await.unwrap();
        set(&store, "a", json!({"type": "integer"}), Some(version)).await;
        set(&store, "b", json!({"type": "string"}), None).await;
        assert_eq!(faults(&one, &store, "b", "1").await, ["/type"], "it is not read again for each event");
        one.refresh(&store).await.unwrap();
        assert_eq!(faults(&one, &store, "a", "1").await, [""; 0]);
        assert_eq!(faults(&one, &store, "b", "1").await, ["/data"]);
        let version = store.event_types_version().await.unwrap();
        let deleted = Activity::new(Origin::weir(), Action::EventTypeDeleted, NOW);
        assert!(store.delete_event_type("b", version, deleted).await.unwrap());
        other.refresh(&store).await.unwrap();
        assert_eq!(faults(&other, &store, "b", "1").await, ["/type"]);
        store.close().await;
        assert!(other.refresh(&store).await.is_err());
        assert_eq!(faults(&other, &store, "a", "1").await, [""; 0]);
        assert_eq!(faults(&other, &store, "a", "\"x\"").await, ["/data"]);
        // Without any copy nothing can be said of an event.
        assert!(EventTypes::new(Mode::Strict).checks(&store).await.is_err());
        assert!(EventTypes::new(Mode::Open).checks(&store).await.unwrap().is_none());
    }

    #[test]
    fn only_the_first_unknown_types_of_a_request_cost_a_search() {
        let types = BTreeMap::from([(
            "order.created".to_owned(),
            Arc::new(Known { version: 1, schema: None, compiled: OnceLock::new() }),
        )]);
        let catalogue = Arc::new(Catalogue { version: Some(1), types, has_schemas: false });
        let checks = Checks { catalogue, suggested: AtomicU32::new(0) };
        let texts: Vec<_> = (0..5).map(|_| checks.unknown("order.craeted").contains("did you mean")).collect();
        assert_eq!(texts, [true, true, true, false, false]);
    }
}
