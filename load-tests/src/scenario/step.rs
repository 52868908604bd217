//! Steps: actions at set times while events are posted.

use serde::Deserialize;
use serde_json::Value;

use super::ReceiverBehavior;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Step {
    pub(crate) at_s: f64,
    #[serde(rename = "do")]
    pub(crate) action: Action,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Action {
    Edit {
        to: String,
        settings: Value,
    },
    /// Other limits for a while. Their end needs no step.
    Override {
        to: String,
        rate_limits: Value,
        for_s: u32,
    },
    /// Other limits of a limit group.
    EditLimitGroup {
        limit_group: String,
        rate_limits: Value,
    },
    /// Destinations move into another limit group, or out of all.
    Move {
        of: String,
        limit_group: Option<String>,
    },
    Pause(String),
    Resume(String),
    Behavior {
        of: String,
        behavior: ReceiverBehavior,
    },
    /// SIGKILL, and a new process after `down_s`. The embedded set-up has one process, which is killed for every role.
    Kill {
        role: String,
        down_s: f64,
    },
    /// SIGSTOP, and SIGCONT after `for_s`.
    Stop {
        role: String,
        for_s: f64,
    },
    /// SIGKILL, and an empty Redis after `down_s`.
    RestartRedis {
        down_s: f64,
    },
    FlushRedis,
    /// SIGSTOP, and SIGCONT after `for_s`: Redis does not answer, and keeps its connections.
    HangRedis {
        for_s: f64,
    },
    /// All connections are cut, as in a fail-over.
    RestartPostgres {
        down_s: f64,
    },
    /// Starts workers, or stops them by SIGTERM.
    ScaleWorkers(u32),
    /// `POST /v1/replays` for each destination of one group.
    Replay {
        of: String,
        states: Vec<String>,
    },
}

impl Action {
    /// The group that it acts on, if any.
    pub(super) fn group(&self) -> Option<&str> {
        match self {
            Self::Edit { to: name, .. } | Self::Override { to: name, .. } => Some(name),
            Self::Pause(name) | Self::Resume(name) => Some(name),
            Self::Behavior { of: name, .. } | Self::Replay { of: name, .. } | Self::Move { of: name, .. } => Some(name),
            _ => None,
        }
    }

    /// The limit group that it names, if any.
    pub(super) fn limit_group(&self) -> Option<&str> {
        match self {
            Self::EditLimitGroup { limit_group, .. } => Some(limit_group),
            Self::Move { limit_group, .. } => limit_group.as_deref(),
            _ => None,
        }
    }

    /// Needs processes and servers that the harness started.
    pub(crate) fn needs_spawned(&self) -> bool {
        matches!(
            self,
            Self::Kill { .. }
                | Self::Stop { .. }
                | Self::RestartRedis { .. }
                | Self::FlushRedis
                | Self::HangRedis { .. }
                | Self::RestartPostgres { .. }
                | Self::ScaleWorkers(_)
        )
    }

    /// Needs the set-up with one process for each role.
    pub(super) fn needs_roles(&self) -> bool {
        self.needs_spawned() && !matches!(self, Self::Kill { .. } | Self::Stop { .. })
    }
}
