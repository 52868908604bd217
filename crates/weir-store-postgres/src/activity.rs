//! The activity log, and the answers of idempotency keys. Both are written in the transactions of the changes.

use std::borrow::Cow;

use async_trait::async_trait;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use weir_core::{Timestamp, activity::Activity, retention::ANSWERS_KEPT};
use weir_store::{
    ActivityFilter, ActivityLog, ActorFilter, Created, Creation, KeyedAnswer, ListOrder, Page, PageRequest,
    StoreResult, first_id,
    rows::{ACTIVITY_COLUMNS, ANSWER_COLUMNS, Value, activity, activity_ids, activity_values, keyed_answer},
};

use crate::{
    PostgresStore,
    edit::change,
    history::Select,
    rows::{Statement, bind, uuid},
};

/// Activities as rows, from arrays that [`bind_activities`] binds.
macro_rules! unnest_activities {
    ($($more:literal)?) => {
        concat!(
            "unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::text[],
            $9::text[], $10::text[], $11::text[], $12::text[], $13::text[]",
            $($more,)?
            ")"
        )
    };
}
pub(crate) use unnest_activities;

/// The values of [`ACTIVITY_COLUMNS`]. Each step of a purge writes the row of the purge again. No other row changes.
const RECORD: &str = "INSERT INTO activity VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
ON CONFLICT (id) DO UPDATE SET after = excluded.after";

/// [`RECORD`] for many activities.
const RECORD_ALL: &str =
    concat!("INSERT INTO activity SELECT * FROM ", unnest_activities!(), " ON CONFLICT (id) DO NOTHING");

/// Stores an answer, unless an answer that is still kept has the same key. An answer from the instant of the last
/// parameter or earlier is no longer kept, and is replaced. A call waits while another transaction stores the same key.
const ANSWER: &str = "INSERT INTO keyed_answers AS known (key, request, answer, at) VALUES ($1, $2, $3, $4)
ON CONFLICT (key) DO UPDATE SET request = excluded.request, answer = excluded.answer, at = excluded.at
WHERE known.at <= $5";

/// The most rows of each table that one step deletes.
const STEP: i64 = 500;

pub(crate) const PRUNE_ACTIVITY: &str =
    "DELETE FROM activity WHERE id IN (SELECT id FROM activity WHERE id < $1 ORDER BY id LIMIT $2)";
pub(crate) const PRUNE_ANSWERS: &str =
    "DELETE FROM keyed_answers WHERE key IN (SELECT key FROM keyed_answers WHERE at < $1 ORDER BY at LIMIT $2)";

#[async_trait]
impl ActivityLog for PostgresStore {
    async fn record_activity(&self, creation: Creation) -> StoreResult<Created<()>> {
        self.edit(|connection| change(record_alone(connection, &creation))).await
    }

    async fn list_activity(&self, filter: &ActivityFilter, page: PageRequest) -> StoreResult<Page<Activity>> {
        let rows = self.select(page_select(filter, page), activity).await?;
        Ok(Page::of(rows, page, |activity| *activity.id.as_bytes()))
    }

    async fn keyed_answer(&self, key: [u8; 32], kept_from: Timestamp) -> StoreResult<Option<KeyedAnswer>> {
        let sql = format!("SELECT {ANSWER_COLUMNS} FROM keyed_answers WHERE key = $1 AND at >= $2");
        let query = sqlx::query(AssertSqlSafe(sql)).bind(key.to_vec()).bind(kept_from.as_nanos());
        Ok(self.read(query, keyed_answer).await?.pop())
    }

    async fn prune_activity(&self, activity_before: Timestamp, answers_before: Timestamp) -> StoreResult<u64> {
        self.edit(|connection| change(prune(connection, activity_before, answers_before))).await
    }
}

pub(crate) fn page_select(filter: &ActivityFilter, page: PageRequest) -> Select {
    let mut select = Select::new(format!("SELECT {ACTIVITY_COLUMNS} FROM activity"));
    if let Some(tenants) = &filter.tenants {
        let tenants: Vec<&str> = tenants.iter().map(String::as_str).collect();
        match *tenants.as_slice() {
            // The index has the activities of one tenant in the order of ids. The activities of several tenants would
            // have to be sorted.
            [tenant] => select.compare("tenant =", tenant),
            _ => {
                select.compare("tenant = ANY(", tenants);
                select.sql.push(')');
            }
        }
    }
    match &filter.actor {
        Some(ActorFilter::Name(name)) => select.compare("actor =", name),
        Some(ActorFilter::Key(id)) => select.compare("key_id =", uuid(id.as_bytes())),
        None => {}
    }
    if let Some(id) = filter.destination_id {
        select.compare("destination_id =", uuid(id.as_bytes()));
    }
    if let Some(before) = page.before {
        select.compare("id <", uuid(&before));
    }
    // Ids have only milliseconds, so the exact times follow.
    if let Some(from) = filter.from {
        select.compare("id >=", uuid(&first_id(from.as_millis())));
        select.compare("at >=", from.as_nanos());
    }
    if let Some(to) = filter.to {
        select.compare("id <", uuid(&first_id(to.as_millis().saturating_add(1))));
        select.compare("at <", to.as_nanos());
    }
    select.page("activity", ListOrder::Newest, page);
    select
}

/// Binds the arrays of [`unnest_activities!`], the first parameters of a statement.
pub(crate) fn bind_activities(sql: &'static str, activities: &[Activity]) -> Statement {
    let mut statement = sqlx::query(sql);
    for column in 0..3 {
        let ids = activities.iter().map(|activity| activity_ids(activity)[column].map(uuid));
        statement = statement.bind(ids.collect::<Vec<_>>());
    }
    let mut texts: [Vec<Option<String>>; 9] = Default::default();
    let mut times = Vec::with_capacity(activities.len());
    for activity in activities {
        times.push(activity.at.as_nanos());
        for (column, value) in texts.iter_mut().zip(activity_values(activity).into_iter().skip(1)) {
            column.push(if let Value::Text(text) = value { text.map(Cow::into_owned) } else { None });
        }
    }
    texts.into_iter().fold(statement.bind(times), |statement, column| statement.bind(column))
}

/// Records activities in the transaction of the connection, in one statement.
pub(crate) async fn record_all(connection: &mut PgConnection, activities: &[Activity]) -> Result<(), sqlx::Error> {
    if activities.is_empty() {
        return Ok(());
    }
    bind_activities(RECORD_ALL, activities).execute(connection).await.map(drop)
}

/// Records an activity in the transaction of the connection.
pub(crate) async fn record(connection: &mut PgConnection, activity: &Activity) -> Result<(), sqlx::Error> {
    let ids = activity_ids(activity).into_iter();
    let statement = ids.fold(sqlx::query(RECORD), |statement, id| statement.bind(id.map(uuid)));
    activity_values(activity).into_iter().fold(statement, bind).execute(connection).await.map(drop)
}

/// Records a creation in the transaction of the connection. If an earlier request has stored an answer under the same
/// key, returns that answer and records nothing. Then nothing must be created.
pub(crate) async fn record_creation(
    connection: &mut PgConnection,
    creation: &Creation,
) -> Result<Option<KeyedAnswer>, sqlx::Error> {
    if let Some(answer) = &creation.answer {
        let stored = sqlx::query(ANSWER)
            .bind(answer.key.to_vec())
            .bind(answer.request.to_vec())
            .bind(&answer.answer)
            .bind(answer.at.as_nanos())
            .bind(answer.at.before(ANSWERS_KEPT).as_nanos())
            .execute(&mut *connection)
            .await?;
        if stored.rows_affected() == 0 {
            let sql = format!("SELECT {ANSWER_COLUMNS} FROM keyed_answers WHERE key = $1");
            let row = sqlx::query(AssertSqlSafe(sql)).bind(answer.key.to_vec()).fetch_one(connection).await?;
            return Ok(Some(keyed_answer(&row)?));
        }
    }
    record(connection, &creation.activity).await?;
    Ok(None)
}

async fn record_alone(connection: &mut PgConnection, creation: &Creation) -> Result<Created<()>, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    let before = record_creation(&mut transaction, creation).await?;
    transaction.commit().await?;
    Ok(before.map_or(Created::New(()), Created::Before))
}

async fn prune(
    connection: &mut PgConnection,
    activity_before: Timestamp,
    answers_before: Timestamp,
) -> Result<u64, sqlx::Error> {
    let first = first_id(activity_before.as_millis());
    let old = sqlx::query(PRUNE_ACTIVITY).bind(uuid(&first)).bind(STEP);
    let activities = old.execute(&mut *connection).await?.rows_affected();
    let old = sqlx::query(PRUNE_ANSWERS).bind(answers_before.as_nanos()).bind(STEP);
    Ok(activities + old.execute(connection).await?.rows_affected())
}
