//! The commands that call the API of a running server, and their flags.

pub mod api;
pub mod audit;
pub mod complete;
pub mod destinations;
pub mod event_types;
pub mod limit;
pub mod limit_groups;
pub mod limit_keys;
pub mod temporary;
pub mod time;
pub mod watch;

use clap::Subcommand;

use self::{
    api::{ApiArgs, DeliveryCommand, EventCommand, KeyCommand, ReplayCommand, TailArgs},
    audit::AuditArgs,
    destinations::DestinationCommand,
    event_types::EventTypeCommand,
    limit_groups::LimitGroupCommand,
    limit_keys::LimitKeyCommand,
    watch::{ActivityArgs, AlertsArgs, OpenArgs, OverviewArgs, PreviewArgs, SheddingArgs, SimulateArgs, StatusArgs},
};

#[derive(Debug, Clone, Subcommand)]
pub enum ApiCommand {
    /// List, show, create, edit, pause, resume, test, purge and delete destinations
    #[command(alias = "destination")]
    Destinations(ApiArgs<DestinationCommand>),
    /// Post, list and show events
    #[command(alias = "event")]
    Events(ApiArgs<EventCommand>),
    /// List, show, retry and cancel deliveries
    #[command(alias = "delivery")]
    Deliveries(ApiArgs<DeliveryCommand>),
    /// Create, list, show and cancel replays, which send ended deliveries again
    #[command(alias = "replay")]
    Replays(ApiArgs<ReplayCommand>),
    /// Create, list and delete API keys
    #[command(alias = "key")]
    Keys(ApiArgs<KeyCommand>),
    /// Show the attempts at one or several destinations as they end, until Ctrl-C
    Tail(TailArgs),
    /// Show the destinations with what waits, how fast they are sent, and why not faster
    Overview(OverviewArgs),
    /// Show what is wrong now and the latest alerts; or the thresholds
    #[command(alias = "alert")]
    Alerts(AlertsArgs),
    /// Show who changed what
    Activity(ActivityArgs),
    /// Show what other limits would do to the backlog of a destination, and change nothing
    Preview(PreviewArgs),
    /// Try other limits on the recorded deliveries of a destination: what would yesterday have been like? Changes nothing
    Simulate(SimulateArgs),
    /// Show the state of the installation: its processes, store, queue and backlog. Exit code 0 if nothing is wrong, 1 if
    /// something is, as `weir doctor` judges
    Status(StatusArgs),
    /// Audit a running server: whether each limit was kept, how well it was used, and how long deliveries took
    Audit(AuditArgs),
    /// Find out what is wrong with a running installation: one verdict, with the cause and the next step of each finding.
    /// Exit code 0 if nothing is, 1 if something is
    Doctor(StatusArgs),
    /// Show what is refused under overload, and which limits would fit; or set limits
    Shedding(SheddingArgs),
    /// List, show, change and delete the types of events that producers may send
    #[command(name = "event-types", alias = "event-type")]
    EventTypes(ApiArgs<EventTypeCommand>),
    /// List, show, create, edit and delete limit groups: budgets that several destinations share
    #[command(name = "limit-groups", alias = "limit-group")]
    LimitGroups(ApiArgs<LimitGroupCommand>),
    /// List, pause and resume the limit keys of a destination, for example its customers
    #[command(name = "limit-keys", alias = "limit-key")]
    LimitKeys(ApiArgs<LimitKeyCommand>),
    /// Open the dashboard in a browser: the overview, or the page of a destination, delivery, event or replay
    Open(OpenArgs),
}

/// The shells for which there are completions.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum CompletedShell {
    Bash,
    Zsh,
    Fish,
}
