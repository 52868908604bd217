//! A Redis that another installation reaches too, and one whose keys an operator damages under load: limits are kept, and
//! used again soon.

use std::time::Duration;

use serde_json::json;

use crate::support::{Answer, App, Fleet, Receiver, assert_cap, cases::limit, servers};

const SECOND: Duration = Duration::from_secs(1);
/// From the end of a fault until a destination is back at its limit, and a little more for the sends that show it.
const BACK: Duration = Duration::from_secs(12);

/// An installation with a destination at 10/s and a backlog of ten minutes.
async fn sending(app: &App, receiver: &Receiver, path: &str) -> String {
    let id = app.destination(json!({"url": receiver.url(path), "rate_limits": limit(10, "second")})).await;
    app.events("any", 6_000).await;
    receiver.wait_for(path, 10, BACK).await;
    id
}

/// The destination is at its limit: 30 sends in the time of 30, and a second more.
async fn at_its_limit(receiver: &Receiver, path: &str) {
    receiver.wait_for(path, receiver.count(path) + 30, SECOND * 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_installation_on_a_redis_is_refused_until_it_has_a_prefix_of_its_own() {
    let (mut fleet, receiver) = (Fleet::new().await, Receiver::start().await);
    let first = fleet.launch("serve").await;
    let id = sending(&first, &receiver, "/first").await;
    let database = servers::database().await;
    let other_database = ("WEIR_DATABASE_URL", database.as_str());
    for role in ["serve", "api", "scheduler", "worker"] {
        let Err(status) = fleet.try_launch_with(role, &[other_database]).await else { panic!("{role} must not start") };
        assert_eq!(status.code(), Some(2));
    }
    let log = fleet.log();
    for word in ["redis_prefix", "WEIR_REDIS_PREFIX", "WEIR_REDIS_URL", "another Weir"] {
        assert!(log.contains(word), "{word}: {log}");
    }
    at_its_limit(&receiver, "/first").await;

    let second = fleet.launch_with("serve", &[other_database, ("WEIR_REDIS_PREFIX", "second")]).await;
    let id_of_second = sending(&second, &receiver, "/second").await;
    // A third one in another database of the server, where the default prefix is free. Channels are common to both.
    let (database, url) = (servers::database().await, format!("{}/1", fleet.redis.url()));
    let third = [("WEIR_DATABASE_URL", database.as_str()), ("WEIR_REDIS_URL", url.as_str())];
    let third = fleet.launch_with("serve", &third).await;
    let id_of_third = sending(&third, &receiver, "/third").await;
    let paths = ["/first", "/second", "/third"];
    tokio::join!(
        at_its_limit(&receiver, paths[0]),
        at_its_limit(&receiver, paths[1]),
        at_its_limit(&receiver, paths[2])
    );
    for (app, path, id) in
        [(&first, paths[0], &id), (&second, paths[1], &id_of_second), (&third, paths[2], &id_of_third)]
    {
        assert_cap(&receiver.arrivals(path), 10, SECOND);
        app.assert_audit_clean(id).await;
    }
}

/// What an operator may do to keys: the pattern of their names, and a command on each key `k`.
const DAMAGES: [(&str, &str); 14] = [
    ("*:job:dst_*", "'DEL', k"),
    ("*:job:dst_*", "'SET', k, 'x'"),
    ("*:in_flight:dst_*", "'DEL', k"),
    ("*:in_flight:dst_*", "'SET', k, 'x'"),
    ("*:queued:dst_*", "'SET', k, 'x'"),
    ("*:queue", "'XGROUP', 'DESTROY', k, 'workers'"),
    ("*:queue", "'XTRIM', k, 'MAXLEN', 0"),
    ("*:queue", "'DEL', k"),
    ("*:queue", "'SET', k, 'x'"),
    ("*:schedule", "'SET', k, 'x'"),
    ("*:busy", "'SET', k, 'x'"),
    ("*:generation", "'DEL', k"),
    ("*:generation", "'HSET', k, 'began', 'x'"),
    ("*", "'DEL', k"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_are_damaged_under_load_cost_seconds_and_no_limit() {
    let (fleet, receiver) = (Fleet::new().await, Receiver::start().await);
    receiver.script("/slow", [Answer::status(200).after(SECOND * 3)]);
    let apps = [fleet.launch("serve").await, fleet.launch("serve").await];
    let create = async |path: &str, rate: u32, events: usize| {
        let settings = json!({
            "url": receiver.url(path), "event_types": [path.trim_start_matches('/')],
            "rate_limits": limit(rate, "second"),
        });
        let id = apps[0].destination(settings).await;
        apps[0].events(path.trim_start_matches('/'), events).await;
        id
    };
    let (quick, slow) = (create("/quick", 20, 6_000).await, create("/slow", 5, 1_500).await);
    let flows = async |what: &str| {
        let quick = receiver.wait_for("/quick", receiver.count("/quick") + 20, BACK);
        let slow = receiver.wait_for("/slow", receiver.count("/slow") + 5, BACK);
        tokio::join!(quick, slow);
        eprintln!("sends after {what}");
    };
    flows("the start").await;
    for (pattern, command) in DAMAGES {
        let on_each = format!(
            "EVAL \"for _, k in ipairs(redis.call('KEYS', '{pattern}')) do redis.pcall({command}) end return 'done'\" 0"
        );
        assert_eq!(fleet.redis.ask(&on_each).await.unwrap(), "done");
        flows(command).await;
    }
    for (path, id, rate) in [("/quick", quick, 20), ("/slow", slow, 5)] {
        assert_cap(&receiver.arrivals(path), rate, SECOND);
        apps[0].assert_audit_clean(&id).await;
    }
}
