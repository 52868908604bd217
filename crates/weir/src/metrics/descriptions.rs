//! The help texts of the metrics: what each metric measures, and what to do when it is high.

use metrics::{describe_counter, describe_gauge, describe_histogram};

const GAUGES: &[(&str, &str)] = &[
    ("weir_build_info", "Always 1; the labels give the version and the role of this process"),
    (
        "weir_store_up",
        "1 while the database answers and takes writes; at 0 no event is accepted and no result is recorded",
    ),
    ("weir_queue_up", "1 while the queue answers; at 0 events are accepted but nothing is sent"),
    (
        "weir_clock_offset_seconds",
        "How far the clock of Redis is ahead of this machine's; beyond 30 seconds the process is not ready",
    ),
    (
        "weir_store_round_trip_seconds",
        "Duration of the last check of the database, one round trip; above 50 ms limits are used less",
    ),
    (
        "weir_queue_round_trip_seconds",
        "Duration of the last check of the queue, one round trip; above 10 ms limits are used less",
    ),
    (
        "weir_runtime_busy_ratio",
        "Share of the last ten seconds in which the threads of this process were busy; near 1 it needs more CPU",
    ),
    (
        "weir_worker_busy_ratio",
        "How busy the worker is: the share of its capacity that attempts took in the last second, or the busy share of its threads if larger; scale workers on it",
    ),
    ("weir_worker_capacity", "Maximum number of attempts that the worker makes at one time"),
    (
        "weir_delivery_queue_depth",
        "Permits that no worker has taken, over all processes: use the max, not the sum; scale workers on it",
    ),
    (
        "weir_delivery_queue_oldest_seconds",
        "Age of the oldest permit that no worker has taken, over all processes; add workers when it grows",
    ),
    (
        "weir_backlog_deliveries",
        "Deliveries that wait in the store, over all processes, counted about every ten seconds; most wait for a rate limit",
    ),
    (
        "weir_http_connections",
        "Open connections of clients; at the limit (WEIR_MAX_CONNECTIONS) idle ones make room, and then new ones wait",
    ),
    ("weir_outbound_connections", "Open connections to destinations, by state (in use, idle)"),
    ("weir_postgres_pool_connections", "Open PostgreSQL connections for edits and reads, by state (in use, idle)"),
    (
        "weir_postgres_pool_max_connections",
        "Maximum number of PostgreSQL connections for edits and reads; when all are in use, reads wait",
    ),
    (
        "weir_replica_requests_total",
        "Requests for lists, history and audits, by the server that answers them: `replica`, or `primary` while the read replica is behind or away",
    ),
    ("weir_replica_up", "Whether the read replica (WEIR_DATABASE_READ_URL) is used: 0 while it is behind or away"),
    (
        "weir_replica_lag_seconds",
        "How long ago the read replica was last seen with everything that the primary had on its disk; 0 while it keeps up",
    ),
    (
        "weir_sqlite_wal_bytes",
        "Size of the SQLite write-ahead log; a checkpoint copies it into the file every few MiB, so growth means failing checkpoints",
    ),
    (
        "weir_destinations_stalled",
        "Destinations whose deliveries are due and allowed and of which none has started for 10 seconds, over all processes, by cause: use the max; alert above 0",
    ),
    (
        "weir_destinations_refusing",
        "Destinations whose receivers answered more than a tenth of the sends of five minutes with 429, until it is less than 8 %, over all processes: use the max",
    ),
    (
        "weir_destinations_slowed",
        "Destinations whose adaptive pace is less than half of what it was within the hour, over all processes: use the max",
    ),
    (
        "weir_limit_groups_behind",
        "Limit groups whose members' backlogs are above a threshold of the alerts, drain too late, or never, over all processes: use the max",
    ),
    (
        "weir_destinations_behind",
        "Destinations with due deliveries that use less than 80 % of their limit, over all processes, by cause: use the max",
    ),
    (
        "weir_start_lateness_seconds",
        "How late the latest start of all destinations is against what its limits allow, in seconds; 0 below 3 seconds",
    ),
    (
        "weir_watch_timestamp_seconds",
        "When this process last looked for stalled destinations, in Unix time; alert when it stands still",
    ),
    (
        "weir_dead_letter_destinations",
        "Destinations with at least ten new dead letters in the last hour, more than 5 % of what ended there, over all processes: use the max",
    ),
    (
        "weir_certificates_expiring",
        "Hosts of destinations whose certificate expires within 14 days, and client certificates of destinations that do, as this worker has seen them; the log names each",
    ),
    (
        "weir_retention_pass_timestamp_seconds",
        "When this scheduler last ended a pass of the retention, or began, in Unix time; alert when it is hours ago",
    ),
    (
        "weir_store_bytes",
        "Size of the database on disk without its write-ahead log, over all processes: use the max; plan the disk by it",
    ),
    ("weir_disk_bytes", "Size of the disk that holds the SQLite file"),
    (
        "weir_disk_free_bytes",
        "Free space of the disk that holds the SQLite file; when it is used up, no event is accepted",
    ),
    (
        "weir_postgres_slot_bytes",
        "Write-ahead log that a replication slot of PostgreSQL keeps, over all processes: use the max; it grows while nobody reads the slot",
    ),
    ("weir_queued_permits", "Published permits without a slot, over all processes"),
    ("weir_in_flight_sends", "Sends started and not yet settled, over all processes"),
    ("weir_scheduled_jobs", "Destinations with a job in the schedule: those with deliveries to send"),
    (
        "weir_attempts_under_way",
        "Attempts that the worker has begun and not ended, including those that wait for a slot",
    ),
    (
        "weir_attempts_unrecorded",
        "Ended attempts and unused permits that the store does not have yet; at the worker's capacity no attempt begins",
    ),
];
const COUNTERS: &[(&str, &str)] = &[
    (
        "weir_http_shed_total",
        "Connections of clients refused because as many were open as may be, by reason; raise the limit or add processes",
    ),
    ("weir_slots_used_total", "Sends that started inside their slots"),
    (
        "weir_permits_crowded_out_total",
        "Permits handed back because slow attempts of their destination hold its share of the worker; they are published again",
    ),
    ("weir_deliveries_total", "Deliveries that an attempt ended, by final state"),
    ("weir_breaker_changes_total", "State changes of circuit breakers, by new state"),
    ("weir_alerts_total", "Alert events sent to destinations, by type"),
    ("weir_scheduler_runs_total", "Runs of the destinations' jobs: the work of the scheduler"),
    (
        "weir_pace_changes_total",
        "Changes of adaptive paces by a tenth or more, by direction and reason; many lowered ones mean that receivers refuse",
    ),
    ("weir_permits_published_total", "Permits published by runs"),
    (
        "weir_permits_admitted_total",
        "New deliveries claimed in the commit of their event and offered to the queue without a run (fast path)",
    ),
    (
        "weir_permits_declined_total",
        "Fast-path deliveries that the queue declined and that wait for a run; each costs the store two writes",
    ),
    ("weir_permits_taken_total", "Permits taken by workers"),
    (
        "weir_permits_unused_total",
        "Permits handed back unsent: destination paused, held or deleted, or worker shutting down",
    ),
    (
        "weir_slots_missed_total",
        "Slots that passed unused; each one delays the next send of its destination by up to one spacing",
    ),
    ("weir_stale_publishes_total", "Runs whose job lease or settings were outdated and that published nothing"),
    ("weir_processes_lost_total", "Processes whose heartbeat ended without a shutdown; find out why they died"),
    (
        "weir_claims_recovered_total",
        "Claims recovered from dead processes; each counts as an attempt of unknown outcome",
    ),
    ("weir_claims_lost_total", "Attempts that ended after their claim was recovered: probable duplicates"),
    (
        "weir_retention_deleted_total",
        "Deliveries, attempts, events and whole days deleted by retention; the rows of a whole day are not counted one by one",
    ),
    ("weir_attempts_total", "Attempts by outcome and kind of error; alert on the share that fails"),
];
const HISTOGRAMS: &[(&str, &str)] = &[
    (
        "weir_store_commit_seconds",
        "Duration of commit batches, by operation; when it grows, check the disk of the database",
    ),
    ("weir_store_commit_size", "Operations in one commit batch, by operation"),
    (
        "weir_start_lag_seconds",
        "Delay from the earliest start that the limits allow to the start of a send, without connecting; add workers when it grows",
    ),
    (
        "weir_slot_request_seconds",
        "Duration of requests for slots; workers ask earlier by it, up to 80 ms, and slower answers cost slots",
    ),
    (
        "weir_scheduler_lateness_seconds",
        "Delay between the earliest due time of a batch of jobs that may publish and its run; the scheduler is overloaded when it grows",
    ),
    ("weir_attempt_duration_seconds", "Time from the start of a send to the end of the response"),
    (
        "weir_delivery_latency_seconds",
        "Time from the creation of an event, or its deliver_at, to its delivery, including the wait for rate limits",
    ),
];

/// Registers the descriptions. The recorder must be installed before.
pub(super) fn describe() {
    metrics_process::Collector::default().describe();
    for &(name, text) in GAUGES {
        describe_gauge!(name, text);
    }
    for &(name, text) in COUNTERS {
        describe_counter!(name, text);
    }
    for &(name, text) in HISTOGRAMS {
        describe_histogram!(name, text);
    }
}
