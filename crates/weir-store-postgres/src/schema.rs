//! The migrations in `migrations/postgres`, built into the program.
//!
//! A released migration never changes: sqlx stores its checksum in the database and refuses another text. Several
//! processes may start at once; one migrates, and the others wait for its lock. A database that a newer program has
//! migrated may be opened if its marker allows this program ([`weir_store::schema`]).

use sqlx::{
    PgConnection, SqlSafeStr as _,
    migrate::{Migrate as _, MigrateError, MigrationType, Migrator},
};
use weir_store::schema::{Migration, Migrations, migration};

/// The tables, and the functions, each in a file of its own. A released migration never changes: a later version of a
/// function is a new file.
const INITIAL: &str = concat!(
    include_str!("../../../migrations/postgres/0001_initial.sql"),
    include_str!("../../../migrations/postgres/functions/first_id_of_day.sql"),
    include_str!("../../../migrations/postgres/functions/make_partitions.sql"),
    include_str!("../../../migrations/postgres/functions/drop_partitions.sql"),
    include_str!("../../../migrations/postgres/functions/store_events.sql"),
    include_str!("../../../migrations/postgres/functions/advance_message_groups.sql"),
);

/// Counters and traffic, with the triggers that count.
const COUNTERS: &str = concat!(
    include_str!("../../../migrations/postgres/0004_counters_and_traffic.sql"),
    include_str!("../../../migrations/postgres/functions/count_deliveries.sql"),
);

/// Limit keys, and the function that stores them.
const LIMIT_KEYS: &str = concat!(
    include_str!("../../../migrations/postgres/0041_limit_keys.sql"),
    include_str!("../../../migrations/postgres/functions/store_events_with_limit_keys.sql"),
);

/// The migration that brought sealed rows.
pub(crate) const SEALED: i64 = 29;
/// The migration that brought bodies without heads.
pub(crate) const WITHOUT_HEADS: i64 = 42;

pub(crate) const MIGRATIONS: Migrations = Migrations(&[
    migration(1, "initial", INITIAL),
    migration(2, "attempt details", include_str!("../../../migrations/postgres/0002_attempt_details.sql")),
    migration(3, "activity", include_str!("../../../migrations/postgres/0003_activity.sql")),
    migration(4, "counters and traffic", COUNTERS),
    migration(5, "process profiles", include_str!("../../../migrations/postgres/0005_process_profiles.sql")),
    migration(6, "operational events", include_str!("../../../migrations/postgres/0006_operational_events.sql")),
    migration(7, "installation", include_str!("../../../migrations/postgres/0007_installation.sql")),
    migration(9, "session secret", include_str!("../../../migrations/postgres/0009_session_secret.sql")),
    migration(13, "minimum interval", include_str!("../../../migrations/postgres/0013_minimum_interval.sql")),
    migration(15, "released holds", include_str!("../../../migrations/postgres/0015_released_holds.sql")),
    migration(16, "bodies", include_str!("../../../migrations/postgres/0016_bodies.sql")),
    migration(20, "makers of keys", include_str!("../../../migrations/postgres/0020_makers_of_keys.sql")),
    migration(21, "uses of keys", include_str!("../../../migrations/postgres/0021_uses_of_keys.sql")),
    migration(22, "process hosts", include_str!("../../../migrations/postgres/0022_process_hosts.sql")),
    migration(26, "index fill", include_str!("../../../migrations/postgres/0026_index_fill.sql")),
    migration(28, "shedding", include_str!("../../../migrations/postgres/0028_shedding.sql")),
    migration(29, "sealing keys", include_str!("../../../migrations/postgres/0029_sealing_keys.sql")),
    migration(31, "egress", include_str!("../../../migrations/postgres/0031_egress.sql")),
    migration(33, "filters", include_str!("../../../migrations/postgres/0033_filters.sql")),
    migration(34, "adaptive", include_str!("../../../migrations/postgres/0034_adaptive.sql")),
    migration(35, "event types", include_str!("../../../migrations/postgres/0035_event_types.sql")),
    migration(36, "limit groups", include_str!("../../../migrations/postgres/0036_limit_groups.sql")),
    migration(38, "costs", include_str!("../../../migrations/postgres/0038_costs.sql")),
    migration(39, "throttled", include_str!("../../../migrations/postgres/0039_throttled.sql")),
    migration(40, "reservations", include_str!("../../../migrations/postgres/0040_reservations.sql")),
    migration(41, "limit keys", LIMIT_KEYS),
    migration(42, "body heads", include_str!("../../../migrations/postgres/0042_body_heads.sql")),
    migration(43, "process clocks", include_str!("../../../migrations/postgres/0043_process_clocks.sql")),
]);

/// The checksum of migration 41 before its indexes could be made in advance. Only databases of unreleased programs have it.
const ACCEPT_FORMER: &str = "
UPDATE _sqlx_migrations SET checksum = $1 WHERE version = 41 AND checksum = decode(
    '63124f87b549c5b125c0c41d489979e14de12f23517154a8dfb64762f0940236af0fd8d85cb8850ca6a76cc2d465115b', 'hex')";

fn migrator() -> Migrator {
    let migration = |one: &Migration| {
        let sql = one.sql.into_sql_str();
        sqlx::migrate::Migration::new(one.version, one.description.into(), MigrationType::Simple, sql, false)
    };
    Migrator::with_migrations(MIGRATIONS.0.iter().map(migration).collect())
}

/// Migrates the schema. Returns the versions and descriptions of the migrations that this call applied. The session
/// holds the lock, so the connection must be closed after an error.
pub(crate) async fn migrate(connection: &mut PgConnection) -> Result<Vec<(i64, String)>, MigrateError> {
    // The migrator takes this lock again, which is allowed. It is taken here so that the versions read next do not
    // change.
    connection.lock().await?;
    let before = applied(connection).await?;
    // A newer program has migrated the database: its marker says whether this one may use it.
    let newer = MIGRATIONS.newer_version(&before);
    if let Some(version) = newer
        && !MIGRATIONS.may_use(oldest_program(connection).await?)
    {
        return Err(MigrateError::VersionMissing(version));
    }
    let mut migrator = migrator();
    if let Some(limit_keys) = migrator.iter().find(|one| one.version == 41).filter(|_| before.contains(&41)) {
        sqlx::query(ACCEPT_FORMER).bind(&limit_keys.checksum[..]).execute(&mut *connection).await?;
    }
    // The migrations of the newer program are unknown here, and stay.
    migrator.set_ignore_missing(newer.is_some());
    migrator.run_direct(None, connection, false).await?;
    connection.unlock().await?;
    Ok(MIGRATIONS.missing(&before))
}

async fn oldest_program(connection: &mut PgConnection) -> Result<i64, MigrateError> {
    Ok(sqlx::query_scalar("SELECT oldest_program::bigint FROM schema_marker").fetch_one(connection).await?)
}

/// The versions applied to a database. Does not create the table that records them.
async fn applied(connection: &mut PgConnection) -> Result<Vec<i64>, MigrateError> {
    let known: bool =
        sqlx::query_scalar("SELECT to_regclass('_sqlx_migrations') IS NOT NULL").fetch_one(&mut *connection).await?;
    if !known {
        return Ok(Vec::new());
    }
    let rows = connection.list_applied_migrations("_sqlx_migrations").await?;
    Ok(rows.into_iter().map(|row| row.version).collect())
}

#[cfg(test)]
mod tests {
    use sqlx::{AssertSqlSafe, raw_sql};
    use weir_core::{
        DeliveryId, DeliveryState, DestinationId, EventId, InstallationId, Timestamp,
        access::Actor,
        delivery::{AttemptDetails, AttemptOutcome},
        limit::MinInterval,
    };
    use weir_store::{
        ActivityLog as _, ApiKeys as _, ClaimRequest, Counters as _, Destinations as _, EventFilter, History as _,
        Ingest as _, Lists as _, NewEvent, Outbox as _, Processes as _, RunDestinations as _, StateCounts, conformance,
    };

    use super::*;
    use crate::{PostgresStore, database::Database};

    /// Rows that each version may have written, by the number of its migration. A new migration adds rows that the
    /// version before it could not write.
    const LEFT_BEHIND: [(i64, &str); 28] = [
        (
            1,
            r#"
        SELECT make_partitions(ARRAY[20833]);
        INSERT INTO destinations (id, tenant, name, url, event_types, rate_limits, max_in_flight, timeout_ms, retry, headers,
            signing, paused, breaker, breaker_state, alerts, takes_alerts, ordered, created_at, updated_at)
        VALUES ('01a3185c-5000-7000-8000-000000000001', 'acme', 'a', 'https://example.com/', '["*"]',
            '[{"limit":10,"period":"second","burst":1}]', 64, 15000,
            '{"max_attempts":16,"max_age_s":259200,"delays":{"backoff":{"base_ms":10000,"cap_ms":3600000}}}', '[]',
            '{"secret":"whsec_BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=","previous":null,"style":{"style":"standard"}}', false, 'null', '{"open":null,"closed_at":null}', '{}', false, false, 1800000000000000000, 1800000000000000000);
        INSERT INTO limit_changes SELECT id, created_at, rate_limits FROM destinations;
        INSERT INTO events (id, tenant, event_type, created_at, idempotency_key, data_offset, body)
        VALUES ('01a3185c-5000-7000-8000-000000000002', 'acme', 'video.created', 1800000000000000000, 'order-1', 8,
            '{"data":1}');
        INSERT INTO idempotency_keys VALUES ('acme', 'order-1', '01a3185c-5000-7000-8000-000000000002', 2);
        INSERT INTO deliveries (id, event_id, destination_id, state, attempts, next_attempt_at, created_at, updated_at)
        VALUES ('01a3185c-5000-7000-8000-000000000003', '01a3185c-5000-7000-8000-000000000002',
                '01a3185c-5000-7000-8000-000000000001', 0, 0, 1800000000000000000, 1800000000000000000, 1800000000000000000),
            ('01a3185c-5000-7000-8000-000000000004', '01a3185c-5000-7000-8000-000000000002',
                '01a3185c-5000-7000-8000-000000000001', 3, 1, 1800000000000000000, 1800000000000000000, 1800000000000000000);
        INSERT INTO attempts (delivery_id, number, id, destination_id, sent_at, duration_ms, outcome, status_code)
        VALUES ('01a3185c-5000-7000-8000-000000000004', 1, '01a3185c-5000-7000-8000-000000000005',
            '01a3185c-5000-7000-8000-000000000001', 1800000000000000000, 12, 0, 200);
        "#,
        ),
        (
            2,
            r#"
        INSERT INTO attempts (delivery_id, number, id, destination_id, sent_at, duration_ms, outcome, status_code,
            signed_at, connection, response_headers)
        VALUES ('01a3185c-5000-7000-8000-000000000004', 2, '01a3185c-5000-7000-8000-000000000006',
            '01a3185c-5000-7000-8000-000000000001', 1800000001000000000, 12, 0, 200, 1800000000000000000,
            '["192.0.2.7:443",3,9]', '[["server","nginx"]]');
        "#,
        ),
        (
            3,
            r#"
        INSERT INTO activity (id, destination_id, at, action, actor, tenant, subject_kind, subject_id, subject_name, after)
        VALUES ('01a3185c-5000-7000-8000-000000000006', '01a3185c-5000-7000-8000-000000000001', 1800000000000000000,
            'destination.paused', 'weir', 'acme', 'destination', 'dst_01a3185c', 'a', '{"paused":true}');
        INSERT INTO keyed_answers VALUES (sha256('a'), sha256('b'), '{}', 1800000000000000000);
        "#,
        ),
        (
            4,
            // A program of the previous version stores a delivery beside the new schema.
            r#"
        INSERT INTO deliveries (id, event_id, destination_id, state, attempts, next_attempt_at, created_at, updated_at)
        VALUES ('01a3185c-5000-7000-8000-000000000007', '01a3185c-5000-7000-8000-000000000002',
            '01a3185c-5000-7000-8000-000000000001', 6, 0, 1800000000000000000, 1800000000000000000, 1800000000000000000);
        INSERT INTO processes (beat) VALUES (1);
        "#,
        ),
        (
            5,
            r#"
        INSERT INTO processes (beat, role, version, started_at) VALUES (1, 'worker', '0.1.0', 1800000000000000000);
        INSERT INTO events (id, tenant, event_type, created_at, data_offset, body)
        VALUES ('01a3185c-5000-7000-8000-000000000008', 'acme', 'weir.breaker.opened', 1800000000000000000, 8,
            '{"data":1}');
        "#,
        ),
        (
            6,
            r#"
        INSERT INTO events (id, tenant, event_type, created_at, data_offset, body)
        VALUES ('01a3185c-5000-7000-8000-000000000009', 'acme', 'weir.test', 1800000000000000000, 8, '{"data":1}');
        "#,
        ),
        (7, "UPDATE installation SET id = '01a3185c-5000-7000-8000-00000000000a'"),
        (9, r"INSERT INTO session_secret VALUES (true, decode(repeat('09', 32), 'hex'));"),
        (
            13,
            // A program of the previous version edits the limits beside the new schema.
            r#"
        INSERT INTO limit_changes (destination_id, at, rate_limits)
        SELECT id, 1800000001000000000, rate_limits FROM destinations;
        UPDATE limit_changes SET min_interval_ms = 100 WHERE at = 1800000000000000000;
        "#,
        ),
        (
            15,
            "UPDATE destinations SET held_until = 1800000060000000000, held_reason = 'busy', released_at = 1800000000000000000",
        ),
        (16, r#"UPDATE destinations SET body = '{"format":"data","content_type":"text/plain","source":null}'"#),
        (
            20,
            // A program of the previous version makes a key beside the new schema.
            r"
        INSERT INTO api_keys VALUES ('01a3185c-5000-7000-8000-00000000000b', 'old', 'read', NULL,
            decode(repeat('01', 32), 'hex'), 1800000000000000000, NULL);
        INSERT INTO api_keys VALUES ('01a3185c-5000-7000-8000-00000000000c', 'new', 'read', NULL,
            decode(repeat('02', 32), 'hex'), 1800000000000000000, NULL);
        INSERT INTO api_key_makers VALUES ('01a3185c-5000-7000-8000-00000000000c', 'WEIR_API_KEYS', NULL);
        ",
        ),
        (21, "INSERT INTO api_key_uses VALUES ('01a3185c-5000-7000-8000-00000000000b', 1800000007000000000)"),
        (22, "UPDATE processes SET host = 'node-1'"),
        (26, "SELECT 1"),
        (28, "SELECT 1"),
        // A process of the previous version seals nothing.
        (29, "SELECT 1"),
        (
            31,
            r#"
        UPDATE destinations SET egress = '{"proxy":"http://weir@proxy.example:3128","ca":null,"client_certificate":null}',
            egress_secrets = '{"proxy_password":"p","client_key":null}'
        "#,
        ),
        (33, r#"UPDATE destinations SET event_filter = '{"/a":1}'; UPDATE events SET filtered = 2"#),
        (34, r#"UPDATE destinations SET adaptive = '{"min_per_s":1.0,"max_per_s":null,"latency":true}'"#),
        (35, "SELECT 1"),
        (36, "SELECT 1"),
        (38, "SELECT 1"),
        (39, "SELECT 1"),
        (40, "SELECT 1"),
        (
            41,
            // A program of the previous version stores a delivery by its own function, and refuses to read a destination
            // with limit keys.
            r#"
        SELECT store_events(lock_space => 1, locks => '{}', key_space => 2, key_locks => '{}', tenants => '{}',
            versions => '{}', owner => NULL, event_ids => ARRAY['01a3185c-5000-7000-8000-00000000000d'::uuid],
            event_tenants => ARRAY['acme'], event_types => ARRAY['video.created'],
            event_times => ARRAY[1800000000000000000], event_keys => ARRAY[NULL::text], data_offsets => ARRAY[8],
            bodies => ARRAY['{"data":1}'::bytea], event_starts => NULL, event_ends => NULL, coalesce_keys => NULL,
            ordering_keys => NULL, traceparents => NULL, delivery_counts => ARRAY[1],
            delivery_ids => ARRAY['01a3185c-5000-7000-8000-00000000000e'::uuid],
            delivery_events => ARRAY['01a3185c-5000-7000-8000-00000000000d'::uuid],
            delivery_destinations => ARRAY['01a3185c-5000-7000-8000-000000000001'::uuid],
            delivery_times => ARRAY[1800000000000000000], claimed_until => ARRAY[NULL::bigint], delayed_until => NULL,
            delivery_ends => NULL, delivery_coalesce_keys => NULL, delivery_superseded => NULL,
            delivery_ordering_keys => NULL, delivery_follows => NULL);
        "#,
        ),
        (
            42,
            // Bodies of which the head is not stored. A program of the previous version fails at the negative offset.
            r#"
        INSERT INTO events (id, tenant, event_type, created_at, data_offset, body)
        VALUES ('01a3185c-5000-7000-8000-00000000000f', 'acme', 'video.created', 1800000000000000000, -108, '1}');
        "#,
        ),
        // A process of the previous version beats and says nothing of its clock.
        (43, "UPDATE processes SET beat = beat + 1"),
    ];

    /// The statements of docs/operations/upgrades.md, with which an operator makes indexes while the version before runs.
    #[tokio::test]
    async fn indexes_that_an_operator_has_made_are_used() {
        let page = include_str!("../../../docs/operations/upgrades.md");
        let block = page.split("```sql\n").nth(1).unwrap().split("```").next().unwrap();
        let (made, each) = block.trim().trim_end_matches("\\gexec").rsplit_once(";\n").unwrap();
        let database = Database::create().await;
        let mut connection = database.connect().await;
        migrator().run_to(40, &mut connection).await.unwrap();
        raw_sql("SELECT make_partitions(ARRAY[20833, 20834])").execute(&mut connection).await.unwrap();
        let each: Vec<String> = sqlx::query_scalar(each).fetch_all(&mut connection).await.unwrap();
        assert_eq!(each.len(), 2);
        // One statement at a time: an index that is made without blocking needs a transaction of its own.
        for statement in made.split(';').map(str::to_owned).chain(each) {
            raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await.unwrap();
        }
        const INDEXES: &str = "SELECT indexrelid::bigint FROM pg_index WHERE indexrelid::regclass::text ~ '_flow'
            AND indrelid::regclass::text <> 'attempts' AND indisvalid ORDER BY 1";
        let before: Vec<i64> = sqlx::query_scalar(INDEXES).fetch_all(&mut connection).await.unwrap();
        assert_eq!(before.len(), 4);
        migrator().run_direct(None, &mut connection, false).await.unwrap();
        let after: Vec<i64> = sqlx::query_scalar(INDEXES).fetch_all(&mut connection).await.unwrap();
        assert_eq!(after, before, "the migration made no other ones");
        let valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = 'attempts_of_flow'::regclass";
        assert!(sqlx::query_scalar::<_, bool>(valid).fetch_one(&mut connection).await.unwrap());
    }

    fn bytes(last: u128) -> [u8; 16] {
        (0x01a3_185c_5000_7000_8000_0000_0000_0000_u128 + last).to_be_bytes()
    }

    #[tokio::test]
    async fn migrations_keep_the_rows_of_every_earlier_version() {
        let database = Database::create().await;
        let mut connection = database.connect().await;
        for (version, left_behind) in LEFT_BEHIND {
            migrator().run_to(version, &mut connection).await.unwrap();
            raw_sql(left_behind).execute(&mut connection).await.unwrap();
        }
        assert_eq!(
            LEFT_BEHIND.map(|(version, _)| version).last(),
            Some(&MIGRATIONS.latest()),
            "LEFT_BEHIND has no rows of the newest version"
        );

        let installation = PostgresStore::installation(&database.url()).await.unwrap();
        assert_eq!(installation, InstallationId::from_bytes(bytes(10)));
        let now = Timestamp::from_secs(1_800_000_000);
        let store = PostgresStore::open(&database.url(), now).await.unwrap();
        let destination = store.destination(DestinationId::from_bytes(bytes(1))).await.unwrap().unwrap();
        assert_eq!(destination.settings.retry.max_attempts, 16);
        let changes = store.limit_changes(destination.id).await.unwrap();
        let with_interval = destination.settings.rate_limits.clone().with_min_interval(MinInterval::from_millis(100));
        assert_eq!(changes[0].limits, with_interval);
        assert_eq!(changes[1].limits, destination.settings.rate_limits);
        let counts = store.counts(&[destination.id]).await.unwrap();
        assert_eq!(counts, [StateCounts::new([2, 0, 0, 1, 0, 0, 1, 0, 0])], "before and after the counters were added");
        let event = store.event(EventId::from_bytes(bytes(2))).await.unwrap().unwrap();
        assert_eq!((event.body.data(), event.filtered), ("1".into(), 2));
        let body = store.event(EventId::from_bytes(bytes(15))).await.unwrap().unwrap().body;
        assert_eq!((body.data(), body.head().event_type), ("1".into(), "video.created"));
        assert!(destination.settings.filter.is_some());
        let detail = store.delivery(DeliveryId::from_bytes(bytes(4))).await.unwrap().unwrap();
        assert_eq!(detail.delivery.state, DeliveryState::Delivered);
        assert_eq!(detail.attempts[0].outcome, AttemptOutcome::Delivered);
        assert_eq!(detail.attempts[0].details, AttemptDetails::default());
        assert_eq!(detail.attempts[1].details.response_headers, [("server".to_owned(), "nginx".to_owned())]);
        assert_eq!(store.named_destinations("acme", "a").await.unwrap(), std::slice::from_ref(&destination));
        let page = weir_store::PageRequest { before: None, limit: 9 };
        let activity = store.list_activity(&Default::default(), page).await.unwrap().rows.remove(0);
        assert_eq!((activity.origin.actor.name(), activity.destination_id), ("weir", Some(destination.id)));
        let running = store.running_processes().await.unwrap();
        let roles = running.iter().map(|process| process.profile.as_ref().map(|profile| profile.role.as_str()));
        assert_eq!(roles.collect::<Vec<_>>(), [None, Some("worker")]);
        assert!(running.iter().all(|process| process.clock_ahead_us.is_none()));
        assert_eq!(store.session_secret([1; 32]).await.unwrap(), [9; 32]);
        let keys = store.api_keys().await.unwrap();
        let kept = keys.iter().map(|key| (key.created_by.clone(), key.last_used_at));
        let used_at = Timestamp::from_secs(1_800_000_007);
        assert_eq!(kept.collect::<Vec<_>>(), [(None, Some(used_at)), (Some(Actor::Setting), None)]);
        let filter = EventFilter { event_type: Some("weir.*".parse().unwrap()), ..EventFilter::default() };
        let operational = store.list_events(&filter, page).await.unwrap().rows;
        assert_eq!(
            operational.iter().map(|event| event.event_type.as_str()).collect::<Vec<_>>(),
            ["weir.test", "weir.breaker.opened"]
        );
        let again = NewEvent::new(event.clone(), None, 7);
        let again = store.ingest(vec![again]).await.unwrap().remove(0).unwrap();
        assert_eq!((again.duplicate, again.deliveries, again.event), (true, 2, event));
        let request =
            ClaimRequest { destination_id: destination.id, expires_at: Timestamp::MAX, ..conformance::request(1, 9) };
        let claimed = store.claim(vec![request], now).await.unwrap().remove(0).deliveries;
        assert_eq!(
            claimed.iter().map(|claimed| claimed.claim.delivery_id).collect::<Vec<_>>(),
            [DeliveryId::from_bytes(bytes(3)), DeliveryId::from_bytes(bytes(14))]
        );
    }
}
