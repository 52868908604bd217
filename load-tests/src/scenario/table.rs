//! The scenarios of the folder, built into the program, in the order in which they run.

macro_rules! scenarios {
    ($($name:literal),* $(,)?) => {
        /// Names and texts.
        pub(crate) const SCENARIOS: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../scenarios/", $name, ".toml")))),*];
    };
}

scenarios!(
    "steady",
    "viral",
    "neighbours",
    "refusing-neighbours",
    "edit-quick",
    "pause",
    "kill-all",
    "kill-worker",
    "overlap",
    "thousand",
    "slow",
    "dead",
    "flapping",
    "edit-ladder",
    "override-ends",
    "outage",
    "ordered",
    "coalesce",
    "replay-beside-live",
    "group-fair",
    "group-edit",
    "group-move",
    "group-below-share",
    "cost-window",
    "reservations-beside",
    "key-flood",
    "keys-10k",
    "key-kills",
    "keyed-members",
    "keyed-moves",
    "overload",
    "intake-flood",
    "kill-scheduler",
    "kill-api",
    "stop-worker",
    "redis-restart",
    "redis-flush",
    "redis-hangs",
    "postgres-restart",
    "scale-up-down",
    "soak",
);
