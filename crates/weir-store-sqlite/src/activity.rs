//! The activity log, and the answers of idempotency keys. Both are written in the transactions of the changes.

use async_trait::async_trait;
use weir_core::{Timestamp, activity::Activity, retention::ANSWERS_KEPT};
use weir_store::{
    ActivityFilter, ActivityLog, ActorFilter, Created, Creation, KeyedAnswer, Page, PageRequest, StoreResult, first_id,
    rows::{ACTIVITY_COLUMNS, ANSWER_COLUMNS, activity, activity_ids, activity_values, keyed_answer},
};

use crate::{
    SqliteStore,
    edit::Durable,
    error::Result,
    history::WhereClause,
    sql::{Values, execute, query, values},
    transaction::Transaction,
};

/// The values of [`ACTIVITY_COLUMNS`]. Each step of a purge writes the row of the purge again. No other row changes.
const RECORD: &str = "INSERT INTO activity VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET after = excluded.after";

/// Stores an answer unless a younger one has its key. An answer is too old at the instant of the last parameter, and
/// before it.
const ANSWER: &str = "INSERT INTO keyed_answers (key, request, answer, at) VALUES (?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET request = excluded.request, answer = excluded.answer, at = excluded.at
WHERE keyed_answers.at <= ?";

/// The most rows of each table that one step deletes: about a millisecond of the writer's time.
const STEP: i64 = 500;

pub(crate) const PRUNE_ACTIVITY: &str =
    "DELETE FROM activity WHERE id IN (SELECT id FROM activity WHERE id < ? ORDER BY id LIMIT +?)";
pub(crate) const PRUNE_ANSWERS: &str = "DELETE FROM keyed_answers WHERE key IN (
    SELECT key FROM keyed_answers INDEXED BY keyed_answers_by_age WHERE at < ? ORDER BY at LIMIT +?)";

#[async_trait]
impl ActivityLog for SqliteStore {
    async fn record_activity(&self, creation: Creation) -> StoreResult<Created<()>> {
        self.edit(Durable::Yes, move |transaction| transaction.create_once(&creation, |_| Ok(()))).await
    }

    async fn list_activity(&self, filter: &ActivityFilter, page: PageRequest) -> StoreResult<Page<Activity>> {
        let (sql, values) = page_sql(filter, page);
        Ok(Page::of(self.read(sql, values, activity).await?, page, |activity| *activity.id.as_bytes()))
    }

    async fn keyed_answer(&self, key: [u8; 32], kept_from: Timestamp) -> StoreResult<Option<KeyedAnswer>> {
        let sql = format!("SELECT {ANSWER_COLUMNS} FROM keyed_answers WHERE key = ? AND at >= ?");
        Ok(self.read(sql, values![&key, kept_from], keyed_answer).await?.pop())
    }

    async fn prune_activity(&self, activity_before: Timestamp, answers_before: Timestamp) -> StoreResult<u64> {
        self.edit(Durable::No, move |transaction| transaction.prune_activity(activity_before, answers_before)).await
    }
}

/// Reads one index backwards from the cursor. No index serves several tenants or the key of an actor: for these the
/// whole log is read, newest first, until the page is full.
pub(crate) fn page_sql(filter: &ActivityFilter, page: PageRequest) -> (String, Values<'_>) {
    let mut conditions = WhereClause::new();
    let mut index = "NOT INDEXED";
    if let Some(tenants) = &filter.tenants {
        if tenants.len() == 1 {
            index = "INDEXED BY activity_of_tenant";
        }
        let marks = vec!["?"; tenants.len()].join(", ");
        let values = conditions.add(&format!("tenant IS NOT NULL AND tenant IN ({marks})"));
        for tenant in tenants {
            values.bind(tenant);
        }
    }
    match &filter.actor {
        Some(ActorFilter::Name(name)) => {
            index = "INDEXED BY activity_of_actor";
            conditions.add("actor = ?").bind(name);
        }
        Some(ActorFilter::Key(id)) => {
            conditions.add("key_id = ?").bind(id.as_bytes());
        }
        None => {}
    }
    if let Some(id) = &filter.destination_id {
        index = "INDEXED BY activity_of_destination";
        conditions.add("destination_id IS NOT NULL AND destination_id = ?").bind(id.as_bytes());
    }
    if let Some(before) = page.before {
        conditions.add("id < ?").bind(before);
    }
    // Ids have only milliseconds, so the exact times follow.
    if let Some(from) = filter.from {
        conditions.add("id >= ?").bind(first_id(from.as_millis()));
        conditions.add("at >= ?").bind(from);
    }
    if let Some(to) = filter.to {
        conditions.add("id < ?").bind(first_id(to.as_millis().saturating_add(1)));
        conditions.add("at < ?").bind(to);
    }
    conditions.values.bind(i64::from(page.limit) + 1);
    let terms = conditions.sql;
    let sql = format!("SELECT {ACTIVITY_COLUMNS} FROM activity {index} WHERE {terms} ORDER BY id DESC LIMIT +?");
    (sql, conditions.values)
}

impl Transaction<'_, '_> {
    pub(crate) fn record(&mut self, activity: &Activity) -> Result<()> {
        let mut values = Values::default();
        for id in activity_ids(activity) {
            values.bind(id);
        }
        for value in activity_values(activity) {
            values.bind(value);
        }
        execute(self.connection, RECORD, &values).map(drop)
    }

    /// Records an activity if the change was made.
    pub(crate) fn recorded<T>(
        &mut self,
        answer: T,
        is_made: impl FnOnce(&T) -> bool,
        activity: &Activity,
    ) -> Result<T> {
        if is_made(&answer) {
            self.record(activity)?;
        }
        Ok(answer)
    }

    /// Creates something, and records the creation. If an earlier request has stored an answer under the same key, only
    /// returns that answer.
    pub(crate) fn create_once<T>(
        &mut self,
        creation: &Creation,
        create: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<Created<T>> {
        if let Some(answer) = &creation.answer
            && let Some(before) = self.answer(answer)?
        {
            return Ok(Created::Before(before));
        }
        let new = create(self)?;
        self.record(&creation.activity)?;
        Ok(Created::New(new))
    }

    /// Stores an answer. If its key has one already, that is returned instead.
    fn answer(&mut self, answer: &KeyedAnswer) -> Result<Option<KeyedAnswer>> {
        let values = values![&answer.key, &answer.request, &answer.answer, answer.at, answer.at.before(ANSWERS_KEPT)];
        if execute(self.connection, ANSWER, &values)? == 1 {
            return Ok(None);
        }
        self.answer_of(answer)
    }

    /// The answer that an earlier request has stored under the key of a creation.
    pub(crate) fn stored_answer(&self, creation: &Creation) -> Result<Option<KeyedAnswer>> {
        let Some(answer) = &creation.answer else { return Ok(None) };
        let is_kept = |before: &KeyedAnswer| before.at > answer.at.before(ANSWERS_KEPT);
        Ok(self.answer_of(answer)?.filter(is_kept))
    }

    fn answer_of(&self, answer: &KeyedAnswer) -> Result<Option<KeyedAnswer>> {
        let sql = format!("SELECT {ANSWER_COLUMNS} FROM keyed_answers WHERE key = ?");
        Ok(query(self.connection, &sql, &values![&answer.key], |row| keyed_answer(row))?.pop())
    }

    fn prune_activity(&mut self, activity_before: Timestamp, answers_before: Timestamp) -> Result<u64> {
        let old = values![first_id(activity_before.as_millis()), STEP];
        let activities = execute(self.connection, PRUNE_ACTIVITY, &old)?;
        Ok(activities + execute(self.connection, PRUNE_ANSWERS, &values![answers_before, STEP])?)
    }
}
