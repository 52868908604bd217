//! Load shedding: what people set, and what this process refuses.

use axum::{Json, extract::State};
use weir_api_types as types;
use weir_core::{
    activity::Action,
    shed::{ClassLimit, ClassLimits, ClientLimit, ClientLimits, ClientOverride, Mode, PeakFigures, ShedPolicy},
};

use super::{activity::Author, policies::replace};
use crate::{
    auth::Caller,
    problem::{ApiResult, Problem, Refused},
    readers::{
        body::Body,
        fields::object,
        query::Query,
        texts::{ApiKeyIdText, TenantText, text},
    },
    state::{Api, ApiState},
};

/// The clients that are shown.
const LARGEST: usize = 20;

text! {
    /// Whether requests are refused: `on`, `dry-run` (counted, not refused) or `off`.
    #[schema(as = ShedMode, value_type = String, pattern = "^(on|dry-run|off)$", example = "dry-run")]
    pub(crate) struct ModeText(Mode);
    parse = |text: &str| text.parse().map_err(|_| "must be `on`, `dry-run` or `off`".to_owned());
}

object! {
    /// When requests are refused. What is left out or null is automatic.
    pub(crate) struct SheddingRequest {
        /// Null: what the setting `WEIR_SHED` of each process says.
        mode: Option<ModeText>,
        /// How long an event may wait for the store before fewer events are let in.
        #[schema(minimum = 20, maximum = 10_000, default = 250)]
        target_ms: Option<u32>,
        classes: Option<ClassesRequest>,
        clients: Option<ClientsRequest>,
    }
}

object! {
    /// The limits of the classes, in each process.
    pub(crate) struct ClassesRequest {
        control: Option<ClassRequest>,
        ingest: Option<ClassRequest>,
        read: Option<ClassRequest>,
        heavy: Option<ClassRequest>,
    }
}

object! {
    /// The limit of a class of requests.
    pub(crate) struct ClassRequest {
        /// Null: automatic. 0 refuses every request of the class, which only `heavy` allows.
        #[schema(minimum = 0, maximum = 1_000_000)]
        in_flight: Option<u32>,
    }
}

object! {
    /// The limits of the clients, in all processes together.
    pub(crate) struct ClientsRequest {
        default: Option<ClientRequest>,
        #[schema(max_items = 500)]
        overrides: Option<Vec<OverrideRequest>>,
    }
}

object! {
    /// The limit of every client without an override.
    pub(crate) struct ClientRequest {
        /// Null: a fair share of what is free.
        #[schema(minimum = 0, maximum = 1_000_000)]
        in_flight: Option<u32>,
        /// Its share beside those of other clients.
        #[schema(minimum = 1, maximum = 1_000, default = 1)]
        weight: Option<u32>,
    }
}

object! {
    /// The limit of one tenant or one key: either must be named.
    pub(crate) struct OverrideRequest {
        /// The keys that are bound to this tenant alone count together.
        tenant: Option<TenantText>,
        /// A key counts by itself, whatever the limit of its tenant.
        key: Option<ApiKeyIdText>,
        /// Null: a fair share of what is free; 0: every request is refused, except changes by operators.
        #[schema(minimum = 0, maximum = 1_000_000)]
        in_flight: Option<u32>,
        /// Its share beside those of other clients.
        #[schema(minimum = 1, maximum = 1_000, default = 1)]
        weight: Option<u32>,
    }
    plural = "overrides";
}

impl From<SheddingRequest> for ShedPolicy {
    fn from(request: SheddingRequest) -> Self {
        let class = |limit: Option<ClassRequest>| ClassLimit { in_flight: limit.and_then(|limit| limit.in_flight) };
        let classes = request.classes.map_or_else(ClassLimits::default, |of| ClassLimits {
            control: class(of.control),
            ingest: class(of.ingest),
            read: class(of.read),
            heavy: class(of.heavy),
        });
        let clients = request.clients.map_or_else(ClientLimits::default, |of| ClientLimits {
            default: of.default.map_or_else(ClientLimit::default, |limit| ClientLimit {
                in_flight: limit.in_flight,
                weight: limit.weight.unwrap_or(1),
            }),
            overrides: of.overrides.into_iter().flatten().map(of_override).collect(),
        });
        let target_ms = request.target_ms.unwrap_or(Self::default().target_ms);
        Self { mode: request.mode.map(|mode| mode.0), target_ms, classes, clients }
    }
}

fn of_override(request: OverrideRequest) -> ClientOverride {
    let OverrideRequest { tenant, key, in_flight, weight } = request;
    let (tenant, key) = (tenant.map(|tenant| tenant.0), key.map(|key| key.0.to_string()));
    ClientOverride { tenant, key, in_flight, weight: weight.unwrap_or(1) }
}

/// Show what is refused under overload
///
/// The limits that people have set, and what the process that answers does now. `suggested` says which limits the
/// requests since its start would have stayed below.
#[utoipa::path(
    get, path = "/v1/shedding", operation_id = "show_shedding", tag = "operation",
    responses((status = 200, description = "Limits and figures", body = types::Shedding))
)]
pub(crate) async fn show(State(api): State<Api>, caller: Caller, _: Query<()>) -> ApiResult<Json<types::Shedding>> {
    caller.check_unbound()?;
    // The policy that is in use, so that the answer does not need the store.
    let policy = api.shedding.lock().policy().clone();
    Ok(Json(view(&api, policy)))
}

/// Set what is refused under overload
///
/// Replaces all limits; null or an omitted field means automatic. In effect within a second in every process. A limit of
/// 0 that would refuse everything is not accepted. In a dry run (`"mode": "dry-run"`) nothing is refused: what would be
/// is counted, and nothing is relieved by it.
#[utoipa::path(
    put, path = "/v1/shedding", operation_id = "set_shedding", tag = "operation",
    request_body = SheddingRequest,
    responses(
        (status = 200, description = "The new limits", body = types::Shedding),
        (status = 409, response = inline(Refused)),
    )
)]
pub(crate) async fn set(
    State(api): State<Api>,
    caller: Caller,
    author: Author,
    _: Query<()>,
    Body(request): Body<SheddingRequest>,
) -> ApiResult<Json<types::Shedding>> {
    caller.check_unbound()?;
    let policy = ShedPolicy::from(request);
    let faults = policy.faults().into_iter();
    let faults: Vec<_> =
        faults.map(|(pointer, detail)| types::FieldError { pointer, detail: detail.to_owned() }).collect();
    if !faults.is_empty() {
        return Err(Problem::invalid(faults));
    }
    let read = || api.store.shed_policy();
    let set = |current, activity| api.store.set_shed_policy(current, policy.clone(), activity);
    replace(&api, &author, Action::SheddingChanged, &policy, read, set).await?;
    tracing::info!(?policy, "limits of load shedding set");
    api.shedding.use_policy(policy.clone());
    Ok(Json(view(&api, policy)))
}

fn view(api: &ApiState, policy: ShedPolicy) -> types::Shedding {
    let now = api.clock.now();
    let figures = api.shedding.lock().figures(now, LARGEST);
    let class = |limit: ClassLimit| types::ShedClass { in_flight: limit.in_flight };
    let ShedPolicy { mode, target_ms, classes, clients } = policy;
    let ClientLimits { default, overrides } = clients;
    let of_override = |of: ClientOverride| {
        let ClientOverride { tenant, key, in_flight, weight } = of;
        types::ShedOverride { tenant, key, in_flight, weight }
    };
    types::Shedding {
        mode: mode.map(|mode| mode.as_str().to_owned()),
        target_ms,
        classes: types::ShedClasses {
            control: class(classes.control),
            ingest: class(classes.ingest),
            read: class(classes.read),
            heavy: class(classes.heavy),
        },
        clients: types::ShedClients {
            default: types::ShedClient { in_flight: default.in_flight, weight: default.weight },
            overrides: overrides.into_iter().map(of_override).collect(),
        },
        now: types::SheddingNow {
            mode: figures.mode.as_str().to_owned(),
            level: figures.level.into(),
            blind: figures.is_blind,
            processes: figures.processes,
            classes: figures
                .classes
                .into_iter()
                .map(|of| types::ShedClassNow {
                    class: of.class.as_str().to_owned(),
                    in_flight: of.in_flight,
                    limit: of.limit,
                    peaks: peaks(of.peaks),
                })
                .collect(),
            clients: figures
                .clients
                .into_iter()
                .map(|of| types::ShedClientNow {
                    name: of.name.to_string(),
                    in_flight: of.in_flight,
                    limit: of.limit,
                    weight: of.weight,
                    refused: of.refused,
                    peaks: peaks(of.peaks),
                })
                .collect(),
        },
    }
}

fn peaks(figures: PeakFigures) -> types::ShedPeaks {
    types::ShedPeaks { peak_p99: figures.p99, peak_max: figures.most, suggested: figures.suggested }
}
