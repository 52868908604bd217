//! Steps: what is done while events come in.

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
    Pause(String),
    Resume(String),
    Behavior {
        of: String,
        behavior: ReceiverBehavior,
    },
    /// SIGKILL, and a new process after a while. In the embedded set-up the one process, whatever the role.
    Kill {
        role: String,
        down_s: f64,
    },
    /// SIGSTOP, and SIGCONT after a while.
    Stop {
        role: String,
        for_s: f64,
    },
    /// SIGKILL, and an empty one after a while.
    RestartRedis {
        down_s: f64,
    },
    FlushRedis,
    /// Connections cut, as by a fail-over.
    RestartPostgres {
        down_s: f64,
    },
    /// Workers started, or told to end.
    ScaleWorkers(u32),
    /// `POST /v1/replays`, of one group's destinations.
    Replay {
        of: String,
        states: Vec<String>,
    },
}

impl Action {
    /// Whom it is about.
    pub(super) fn group(&self) -> Option<&str> {
        match self {
            Self::Edit { to: name, .. } | Self::Pause(name) | Self::Resume(name) => Some(name),
            Self::Behavior { of: name, .. } | Self::Replay { of: name, .. } => Some(name),
            _ => None,
        }
    }

    /// Only with processes and servers of the harness's own.
    pub(crate) fn needs_spawned(&self) -> bool {
        matches!(
            self,
            Self::Kill { .. }
                | Self::Stop { .. }
                | Self::RestartRedis { .. }
                | Self::FlushRedis
                | Self::RestartPostgres { .. }
                | Self::ScaleWorkers(_)
        )
    }

    /// Only where each role is a process.
    pub(super) fn needs_roles(&self) -> bool {
        self.needs_spawned() && !matches!(self, Self::Kill { .. } | Self::Stop { .. })
    }
}
